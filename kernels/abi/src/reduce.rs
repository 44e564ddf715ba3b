//! The arguments of the reduce kernel, which combines what copy engines moved.

use std::mem::{offset_of, size_of};

/// Operands of a reduction at most: the ranks of a reduction by copy engines.
pub const OPERANDS: usize = crate::MAX_FAN + 1;
/// Form: operands are multiplied by the scalar on reading.
pub const SCALE: u8 = 1;
/// Form: the value is divided by the divisor.
pub const DIVIDE: u8 = 2;

/// Arguments of the kernel, passed by value (104 bytes); its twin is in `kernels/cuda/plan.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct ReduceArgs {
    /// Addresses of the operands, in the order in which they are combined.
    pub from: [u64; OPERANDS],
    /// The address that the value is written to: apart from all operands, or equal to one.
    pub to: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Factor for [`SCALE`], as [`crate::Args::scalar`].
    pub scalar: u64,
    /// Divisor for [`DIVIDE`].
    pub divisor: u32,
    /// The number of operands.
    pub n: u8,
    /// [`SCALE`] and [`DIVIDE`].
    pub form: u8,
    /// The type that memory adds, for the kernel that lets it: 1 half, 2 bfloat16, 3 float, 4 double, 5 and 6
    /// integers of 32 and 64 bits.
    pub adds: u8,
    /// The padding, which is zero.
    pub pad: u8,
}

const _: () = {
    assert!(size_of::<ReduceArgs>() == 104 && offset_of!(ReduceArgs, to) == 72);
    assert!(offset_of!(ReduceArgs, divisor) == 96 && offset_of!(ReduceArgs, adds) == 102);
};

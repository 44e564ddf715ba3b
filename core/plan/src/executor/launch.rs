//! The parts that all executors share: a launch of steps, and the operation of a call on values.

use hawser_kernels_abi::{Args, DeviceOp, KernelKey};
use hawser_types::{Algorithm, Call, Collective, DataType, ReduceOp, Route, Scalar};

use crate::algo::ProgramKey;

/// Bytes of a pack: chunks, instances and tiles are multiples of it.
pub const PACK_BYTES: u64 = 16;
/// One launch, ready but for what only the runtime knows: `args.comm`, `args.op_number`,
/// `args.steps` if the steps did not fit (`n_inline == 0`), and scratch.
/// With `args.n_blocks == 0` there is nothing to launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchPlan {
    /// Kernel arguments.
    pub args: Box<Args>,
    /// The kernel that runs the launch.
    pub kernel: KernelKey,
    /// Threads per block.
    pub threads: u32,
    /// Scratch memory needed, in bytes.
    pub scratch_bytes: u64,
    /// The way in which copy engines may move it from user buffer to user buffer.
    pub direct: Direct,
    /// Most CTAs at once that combine what copy engines move.
    pub ctas: u32,
}

impl LaunchPlan {
    /// Sets the address of a buffer (0 input, 1 output, 2 scratch) in all works of a launch of one call.
    pub fn set_base(&mut self, buffer: usize, address: u64) {
        let used = self.args.blocks[..usize::from(self.args.n_blocks)].iter().map(|block| block.work).max();
        let works = &mut self.args.works[..=usize::from(used.unwrap_or(0))];
        works.iter_mut().for_each(|work| work.base[buffer] = address);
    }

    /// The blocks that it is launched in.
    pub fn blocks(&self) -> u8 {
        if self.reduces() { self.ctas as u8 } else { self.args.n_blocks }
    }

    /// True if copy engines make the moves of a reduction, and kernels of [`LaunchPlan::ctas`] blocks
    /// combine.
    pub fn reduces(&self) -> bool {
        self.kernel.route == Route::COPY_ENGINE && self.kernel.op != DeviceOp::Copy
    }
}

/// The operation of the device on values for `call`: averages of floating-point types are sums of inputs
/// multiplied by 1/ranks, averages of integers are divided at the end.
pub fn device_op(call: &Call) -> DeviceOp {
    if !call.collective.reduces() {
        return DeviceOp::Copy;
    }
    match call.op {
        ReduceOp::Sum => DeviceOp::Sum,
        ReduceOp::Prod => DeviceOp::Prod,
        ReduceOp::Max => DeviceOp::Max,
        ReduceOp::Min => DeviceOp::Min,
        ReduceOp::Avg if call.dtype.is_float() => DeviceOp::PreMulSum,
        ReduceOp::Avg => DeviceOp::SumDiv,
        ReduceOp::PreMulSum => DeviceOp::PreMulSum,
    }
}

/// The factor of `PRE`, and 1 if it is an address.
pub fn scalar(call: &Call, ranks: u32) -> (u64, u8) {
    match (call.op, call.scalar) {
        (ReduceOp::Avg, _) if call.dtype == DataType::Float64 => ((1.0 / f64::from(ranks)).to_bits(), 0),
        (ReduceOp::Avg, _) if call.dtype.is_float() => (u64::from((1.0 / ranks as f32).to_bits()), 0),
        (ReduceOp::PreMulSum, Scalar::Immediate(bits)) => (bits, 0),
        (ReduceOp::PreMulSum, Scalar::Device(address)) => (address, 1),
        _ => (0, 0),
    }
}

/// Legs below this go as they come: to keep in step costs them more than it brings.
const LEAST_IN_STEP: u64 = 1 << 20;
/// Ranks above this have steps with several peers.
const MOST_IN_STEP: u32 = 9;

/// The ways in which a launch moves data without staging. Equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direct {
    /// Not at all.
    No,
    /// Each leg as a whole, when both ends are ready.
    Free,
    /// Each leg as a whole, and every rank sends to one peer and receives from one at a time: the next turn
    /// of a rank begins when its last one is over.
    LockStep,
    /// Tile by tile along a chain of ranks, each of which passes on what came into its user's buffer.
    Chain,
    /// The values that a reduction's owners have combined, tile by tile, to everybody who gets them.
    PassedOn,
}

impl Direct {
    /// For a program whose legs have `bytes` bytes each.
    pub fn of(key: &ProgramKey, bytes: u64) -> Self {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter};
        match (key.algorithm, key.collective) {
            (Algorithm::Ring, Broadcast) if key.ranks > 2 => Self::Chain,
            (Algorithm::Ring, _) if key.ranks > 2 => Self::No,
            (_, AllReduce | Reduce) => Self::PassedOn,
            (_, ReduceScatter) => Self::No,
            (_, AllGather | AllToAll)
                if (3..=MOST_IN_STEP).contains(&key.ranks) && bytes >= LEAST_IN_STEP =>
            {
                Self::LockStep
            }
            _ => Self::Free,
        }
    }

    /// True if only senders copy, tile by tile: a leg whose sender comes first is staged.
    pub fn is_pushed(self) -> bool {
        matches!(self, Self::Chain | Self::PassedOn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_of_averages_and_factors() {
        let call = |op, dtype, scalar| Call {
            collective: Collective::AllReduce,
            count: 1,
            dtype,
            op,
            scalar,
            root: 0,
            input: 0,
            output: 0,
            gap: 0,
        };
        let zero = Scalar::Immediate(0);
        assert_eq!(scalar(&call(ReduceOp::Avg, DataType::Float64, zero), 4), (0.25f64.to_bits(), 0));
        assert_eq!(
            scalar(&call(ReduceOp::Avg, DataType::Float16, zero), 8),
            (u64::from(0.125f32.to_bits()), 0)
        );
        assert_eq!(device_op(&call(ReduceOp::Avg, DataType::Int8, zero)), DeviceOp::SumDiv);
        assert_eq!(scalar(&call(ReduceOp::PreMulSum, DataType::Int32, Scalar::Device(4096)), 2), (4096, 1));
        assert_eq!(scalar(&call(ReduceOp::Sum, DataType::Int32, zero), 2), (0, 0));
    }
}

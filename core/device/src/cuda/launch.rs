//! Kernel launches.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr;

use cudarc::driver::sys::{CUfunction, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig};
use hawser_base::error::Result;
use hawser_kernels_abi::KernelKey;

use super::context::Context;
use super::raw_stream;
use super::result::{MISSING, Status, code};
use crate::device::Stream;

/// The size and the manner of a kernel's launch.
#[derive(Clone, Copy)]
pub struct Grid {
    /// The number of blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory of a block beyond what the kernel always has.
    pub shared_bytes: u32,
    /// The manner of the launch.
    pub manner: Manner,
}

/// The ways in which a kernel goes with others.
#[derive(Clone, Copy)]
pub enum Manner {
    /// After what is before it on the stream.
    Plain,
    /// The kernel waits itself for the end of the one before it on the stream (`griddepcontrol.wait`), so it
    /// may start earlier (programmatic dependent launch).
    Overlapping,
    /// Its blocks come before those of other kernels that wait for a multiprocessor: a priority as streams
    /// have it.
    Urgent(c_int),
}

/// Launches a kernel that takes one structure, at `args`, by value.
pub fn launch(
    context: &Context,
    function: CUfunction,
    kernel: KernelKey,
    grid: Grid,
    args: *const c_void,
    stream: Stream,
) -> Result<()> {
    let mut params = [args.cast_mut()];
    let _scope = context.enter()?;
    let mut status = Status { call: "cuLaunchKernelEx", code: MISSING, since: 0 };
    if !matches!(grid.manner, Manner::Plain) {
        status = special(context, function, grid, &mut params, stream);
    }
    // Without such launches, or where a capture does not take it, the kernel follows as any other.
    if matches!(status.code, MISSING | code::NOT_SUPPORTED) {
        status = plain(context, function, grid, &mut params, stream);
    }
    if status.is_ok() {
        return Ok(());
    }
    let (blocks, threads) = (grid.blocks, grid.threads);
    let what =
        format!("launching {} with {blocks} x {threads} threads on stream {:#x}", kernel.symbol(), stream.0);
    Err(status.error(context).context(what))
}

fn plain(
    context: &Context,
    function: CUfunction,
    grid: Grid,
    params: &mut [*mut c_void; 1],
    stream: Stream,
) -> Status {
    let (blocks, threads, shared): (c_uint, c_uint, c_uint) = (grid.blocks, grid.threads, grid.shared_bytes);
    let (stream, params) = (raw_stream(stream), params.as_mut_ptr());
    let driver = context.driver;
    // SAFETY: the kernel takes one structure by value, which the driver copies before it returns.
    unsafe {
        driver.launch_kernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, params, ptr::null_mut())
    }
}

fn special(
    context: &Context,
    function: CUfunction,
    grid: Grid,
    params: &mut [*mut c_void; 1],
    stream: Stream,
) -> Status {
    // SAFETY: both are plain C structures for which zeros mean "nothing asked for".
    let (mut config, mut attribute): (CUlaunchConfig, CUlaunchAttribute) = unsafe { (zeroed(), zeroed()) };
    match grid.manner {
        Manner::Urgent(priority) => {
            attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
            attribute.value.priority = priority;
        }
        _ => {
            attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attribute.value.programmaticStreamSerializationAllowed = 1;
        }
    }
    (config.gridDimX, config.gridDimY, config.gridDimZ) = (grid.blocks, 1, 1);
    (config.blockDimX, config.blockDimY, config.blockDimZ) = (grid.threads, 1, 1);
    config.sharedMemBytes = grid.shared_bytes;
    (config.hStream, config.attrs, config.numAttrs) = (raw_stream(stream), &raw mut attribute, 1);
    // SAFETY: as in `plain`; the configuration and its attribute live until the call returns.
    unsafe { context.driver.launch_kernel_ex(&config, function, params.as_mut_ptr(), ptr::null_mut()) }
}

//! Four ranks in one process sum a thousand numbers, through cudarc's nccl module. cudarc loads
//! `libnccl.so` from `LD_LIBRARY_PATH`. With a GPU the ranks share the GPUs that there are, else they run
//! on Hawser's host device.

use std::error::Error;
use std::ptr;

use cudarc::driver::CudaContext;
use cudarc::nccl::{Comm, ReduceOp, group_end, group_start, result, sys};

const RANKS: usize = 4;
const COUNT: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let version = result::get_nccl_version().map_err(failed)?;
    println!("libnccl.so has the interface of NCCL {}.{}", version / 10000, version / 100 % 100);
    // SAFETY: only asks whether libcuda.so can be loaded.
    let has_driver = unsafe { cudarc::driver::sys::is_culib_present() };
    let gpus = if has_driver { CudaContext::device_count()? as usize } else { 0 };
    let sums = if gpus > 0 { on_gpus(gpus)? } else { on_the_host()? };
    for (rank, sum) in sums.iter().enumerate() {
        println!("rank {rank} has {}, {}, {}, ...", sum[0], sum[1], sum[2]);
        let wanted = |i: usize| (RANKS * i + 6) as f32;
        assert!(sum.iter().enumerate().all(|(i, x)| *x == wanted(i)), "rank {rank} has a wrong sum");
    }
    println!("all right");
    Ok(())
}

/// The numbers of a rank.
fn numbers(rank: usize) -> Vec<f32> {
    (0..COUNT).map(|i| (rank + i) as f32).collect()
}

/// With cudarc's safe types.
fn on_gpus(gpus: usize) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    // Streams of their own: ranks that share a GPU must not share one.
    let stream = |rank: usize| Ok(CudaContext::new(rank % gpus)?.new_stream()?);
    let streams = (0..RANKS).map(stream).collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let comms = Comm::from_devices(streams.clone()).map_err(failed)?;
    let mut buffers = Vec::new();
    for (rank, stream) in streams.iter().enumerate() {
        buffers.push(stream.clone_htod(&numbers(rank))?);
    }
    // One thread speaks for all ranks: their calls belong together, so they stand in a group.
    group_start().map_err(failed)?;
    for (comm, buffer) in comms.iter().zip(&mut buffers) {
        comm.all_reduce_in_place(buffer, &ReduceOp::Sum).map_err(failed)?;
    }
    group_end().map_err(failed)?;
    streams.iter().zip(&buffers).map(|(stream, buffer)| Ok(stream.clone_dtoh(buffer)?)).collect()
}

/// With cudarc's plain functions, since its safe types are about GPU memory.
fn on_the_host() -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    let (mut comms, devices) = ([ptr::null_mut(); RANKS], [0, 1, 2, 3]);
    let mut buffers: Vec<Vec<f32>> = (0..RANKS).map(numbers).collect();
    // SAFETY: both arrays have an element for each rank.
    unsafe { result::comm_init_all(comms.as_mut_ptr(), RANKS as i32, devices.as_ptr()) }.map_err(failed)?;
    group_start().map_err(failed)?;
    for (comm, buffer) in comms.iter().zip(&mut buffers) {
        let data = buffer.as_mut_ptr().cast();
        let (kind, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
        // SAFETY: the buffer has COUNT floats and outlives the group.
        unsafe { result::all_reduce(data, data, COUNT, kind, sum, *comm, ptr::null_mut()) }
            .map_err(failed)?;
    }
    group_end().map_err(failed)?;
    for comm in comms {
        // SAFETY: the communicator was made above and is used no more.
        unsafe { result::comm_destroy(comm) }.map_err(failed)?;
    }
    Ok(buffers)
}

/// cudarc's errors of NCCL have no text.
fn failed(error: result::NcclError) -> String {
    format!("NCCL: {:?}", error.0)
}

// How a grid goes with those before and after it on its stream.
#pragma once

#include "memory.cuh"

namespace hawser {

// Waits until the grid before this one on the stream is over. Nothing in memory is touched before.
__device__ __forceinline__ void follow_previous_grid() {
#if !defined(HAWSER_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The block is over: all threads call it, last.
//
// The next grid on the stream may take its place on the multiprocessors when a thread of each block has said so. Not before all
// peers that the block waits for are known to run: a grid that occupies room while this one waits could keep away the very kernel
// that the peer must run first. The first thread has the first bytes of all that its block waits for, so it has heard from each.
//
// The host counts blocks that are over (core/runtime/src/stream_order.rs): later operations of the communicator may come from another
// stream.
__device__ __forceinline__ void end_block(u64 done) {
#if !defined(HAWSER_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    __syncthreads();
    if (threadIdx.x == 0 && done != 0) add_release_gpu(done, 1);
}

} // namespace hawser

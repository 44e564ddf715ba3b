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

// The next grid on the stream may take its place on the multiprocessors. Only after the last wait for a peer: a grid that
// occupies room while this one still waits could keep away the very kernel that the peer must run first.
__device__ __forceinline__ void let_next_grid_start() {
#if !defined(HAWSER_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The block is over, as the host counts it (core/runtime/src/comm/order.rs): later operations of the communicator may come from
// another stream. All threads call it, last.
__device__ __forceinline__ void count_block(u64 done) {
    __syncthreads();
    if (threadIdx.x == 0 && done != 0) add_release_gpu(done, 1);
}

} // namespace hawser

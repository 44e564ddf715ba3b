// The end of a kernel, as the host counts it: core/runtime/src/comm/order.rs.
#pragma once

#include "memory.cuh"

namespace hawser {

// The block is over: later operations of the communicator may come from another stream. All threads call it, last.
__device__ __forceinline__ void count_block(u64 done) {
    __syncthreads();
    if (threadIdx.x == 0 && done != 0) add_release_gpu(done, 1);
}

} // namespace hawser

// Bulk copies (cp.async.bulk, sm_90) from any GPU's memory to shared memory, and the barriers that tell of their end.
#pragma once

#include "memory.cuh"
#include "plan.h"

namespace hawser {

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void init_barrier(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and the phase ends only when so many bytes have come too.
__device__ __forceinline__ void arrive_and_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Waits for the end of a phase. Only for what this block's threads and copies do: they always come to their end.
__device__ __forceinline__ void wait_phase(u64* barrier, u32 parity) {
    u32 over;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (over == 0);
}

// Addresses and lengths are multiples of 16.
__device__ __forceinline__ void load_bulk(void* to, u64 from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
// To memory: stored, or added to what is there. They go in groups, which end in their order.
__device__ __forceinline__ void store_bulk(u64 to, const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
template <u32 TYPE>
__device__ __forceinline__ void add_bulk(u64 to, const void* from, u32 bytes) {
    u32 source = shared_address(from);
#define HAWSER_ADD_BULK(type) \
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add." type " [%0], [%1], %2;" ::"l"(to), "r"(source), "r"(bytes) : "memory")
    if constexpr (TYPE == HAWSER_ADDS_F16) HAWSER_ADD_BULK("noftz.f16");
    else if constexpr (TYPE == HAWSER_ADDS_BF16) HAWSER_ADD_BULK("noftz.bf16");
    else if constexpr (TYPE == HAWSER_ADDS_F32) HAWSER_ADD_BULK("f32");
    else if constexpr (TYPE == HAWSER_ADDS_F64) HAWSER_ADD_BULK("f64");
    else if constexpr (TYPE == HAWSER_ADDS_U32) HAWSER_ADD_BULK("u32");
    else HAWSER_ADD_BULK("u64");
#undef HAWSER_ADD_BULK
}
__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all groups but the last ones are in memory, or have been read from shared memory.
template <u32 LAST>
__device__ __forceinline__ void wait_bulk() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(LAST) : "memory"); }
template <u32 LAST>
__device__ __forceinline__ void wait_bulk_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LAST) : "memory"); }

// Between this thread's accesses and bulk copies.
__device__ __forceinline__ void fence_bulk() { asm volatile("fence.proxy.async;" ::: "memory"); }

} // namespace hawser

// Every access to memory that others write or read at the same time, and the barriers of a block.
// README.md says which is used where and why.
#pragma once

#include <cstdint>

namespace hawser {

using u32 = uint32_t;
using u64 = uint64_t;
using i32 = int32_t;
using i64 = int64_t;

struct alignas(16) Pack {
    u64 x, y;
};

// One LL word: 8 bytes of data between two copies of the flag.
struct Word {
    u32 d0, f0, d1, f1;
};

#ifndef HAWSER_EMULATED

__device__ __forceinline__ u64 load_acquire_sys(u64 address) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(address) : "memory");
    return v;
}

__device__ __forceinline__ void store_relaxed_sys(u64 address, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(v) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys_u32(u64 address, u32 v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

__device__ __forceinline__ void store_release_gpu(u64 address, u64 v) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(v) : "memory");
}

__device__ __forceinline__ void fence_acq_rel_sys() {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

__device__ __forceinline__ u32 load_relaxed_sys_u32(u64 address) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    return v;
}

__device__ __forceinline__ u64 load_relaxed_sys(u64 address) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(address) : "memory");
    return v;
}

__device__ __forceinline__ u32 load_acquire_sys_u32(u64 address) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    return v;
}

__device__ __forceinline__ u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ u32 add_acq_rel_gpu(u32* address, u32 v) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(v) : "memory");
    return before;
}

__device__ __forceinline__ void add_release_gpu(u64 address, u32 v) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

// Data: 16 bytes that bypass L1. Used for FIFO slots and local buffers alike.
__device__ __forceinline__ Pack load_pack(u64 address) {
    Pack v;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(address));
    return v;
}

// Plain store: published later by a fence and a counter (Simple), or local.
__device__ __forceinline__ void store_pack(u64 address, Pack v) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(v.x), "l"(v.y) : "memory");
}

__device__ __forceinline__ Word load_word(u64 address) {
    Word v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.d0), "=r"(v.f0), "=r"(v.d1), "=r"(v.f1)
                 : "l"(address));
    return v;
}

__device__ __forceinline__ void store_word(u64 address, u64 data, u32 flag) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(address), "r"((u32)data), "r"(flag),
                 "r"((u32)(data >> 32))
                 : "memory");
}

// An eighth of an LL128 line.
__device__ __forceinline__ Pack load_line_part(u64 address) { return load_pack(address); }

__device__ __forceinline__ void store_line_part(u64 address, Pack v) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(v.x), "l"(v.y) : "memory");
}

// The same by lanes that may not be together: the line is not whole, order comes from fences.
__device__ __forceinline__ Pack load_line_part_alone(u64 address) { return load_pack(address); }
__device__ __forceinline__ void store_line_part_alone(u64 address, Pack v) { store_line_part(address, v); }

// Parts of local buffers, for odd addresses and ends.
template <class W>
__device__ __forceinline__ u64 load_part(u64 address) {
    if constexpr (sizeof(W) == 8) {
        u64 v;
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(address));
        return v;
    } else if constexpr (sizeof(W) == 2) {
        uint16_t v;
        asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(v) : "l"(address));
        return v;
    } else {
        u32 v;
        if constexpr (sizeof(W) == 4) asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(address));
        else asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(address));
        return v;
    }
}

template <class W>
__device__ __forceinline__ void store_part(u64 address, u64 v) {
    if constexpr (sizeof(W) == 8) {
        asm volatile("st.global.u64 [%0], %1;" ::"l"(address), "l"(v) : "memory");
    } else if constexpr (sizeof(W) == 4) {
        asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"((u32)v) : "memory");
    } else if constexpr (sizeof(W) == 2) {
        asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"((uint16_t)v) : "memory");
    } else {
        asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"((u32)v) : "memory");
    }
}

// Eight bytes if `some`, else 0 or nothing. Predicated, no branch: lanes that are together stay together.
__device__ __forceinline__ u64 load_part_if(bool some, u64 address) {
    u64 v;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u64 %0, 0; @p ld.relaxed.sys.global.u64 %0, [%1]; }"
                 : "=&l"(v)
                 : "l"(address), "r"((u32)some));
    return v;
}

__device__ __forceinline__ void store_part_if(bool some, u64 address, u64 v) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.u64 [%0], %1; }" ::"l"(address), "l"(v), "r"((u32)some)
                 : "memory");
}

// Named barriers of the block; `threads` counts all that arrive or wait.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif // HAWSER_EMULATED: emulated/device.hpp has them

} // namespace hawser

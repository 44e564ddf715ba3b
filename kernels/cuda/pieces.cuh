// Pieces of 8 bytes of local buffers, at any address and up to their end.
#pragma once

#include "memory.cuh"

namespace hawser {

// 8 bytes at `address`, of which only the first `valid` exist (a multiple of SIZE; the rest reads as
// zero); `address` is a multiple of SIZE.
template <int SIZE>
__device__ __noinline__ u64 load_odd(u64 address, i32 valid) {
    if (valid >= 8) {
        // The two aligned words around it: each holds at least one wanted byte.
        u64 aligned = address & ~7ull;
        u32 shift = (u32)(address & 7) * 8;
        u64 low = load_part<u64>(aligned), high = load_part<u64>(aligned + 8);
        return (low >> shift) | (high << (64 - shift)); // shift > 0: aligned pieces do not come here
    }
    u64 v = 0;
#pragma unroll 1
    for (i32 at = 0; at < valid; at += SIZE) {
        u64 part = SIZE == 1 ? load_part<uint8_t>(address + at)
                             : SIZE == 2 ? load_part<uint16_t>(address + at) : load_part<u32>(address + at);
        v |= part << (8 * at);
    }
    return v;
}

template <int SIZE>
__device__ __noinline__ void store_odd(u64 address, i32 valid, u64 v) {
    if (valid >= 8 && SIZE < 4 && (address & 3) == 0) {
        store_part<u32>(address, v);
        store_part<u32>(address + 4, v >> 32);
        return;
    }
    valid = valid < 8 ? valid : 8;
#pragma unroll 1
    for (i32 at = 0; at < valid; at += SIZE) {
        if (SIZE == 1) store_part<uint8_t>(address + at, v >> (8 * at));
        else if (SIZE == 2) store_part<uint16_t>(address + at, v >> (8 * at));
        else store_part<u32>(address + at, v >> (8 * at));
    }
}

// A piece (8 bytes) of a local buffer.
template <int SIZE>
__device__ __forceinline__ u64 load_piece(u64 address, i32 valid) {
    if (valid >= 8 && (SIZE == 8 || (address & 7) == 0)) return load_part<u64>(address);
    if (SIZE == 8 || valid <= 0) return 0;
    return load_odd<SIZE == 8 ? 4 : SIZE>(address, valid);
}

template <int SIZE>
__device__ __forceinline__ void store_piece(u64 address, i32 valid, u64 v) {
    if (valid >= 8 && (SIZE == 8 || (address & 7) == 0)) store_part<u64>(address, v);
    else if (SIZE < 8 && valid > 0) store_odd<SIZE == 8 ? 4 : SIZE>(address, valid, v);
}

} // namespace hawser

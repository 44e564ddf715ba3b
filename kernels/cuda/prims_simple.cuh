// Simple: plain 16-byte packs. The preparing warp has waited for tails and credits, the publishing
// warp fences and publishes, so this is a pure fan-in, fan-out loop.
#pragma once

#include "state.cuh"
#include "types.cuh"

namespace hawser {

// U packs of one operand from pack `at` on, `stride` apart, below `end`.
template <int U>
__device__ __forceinline__ void load_packs(Pack (&v)[U], u64 address, u32 at, u32 stride, u32 end) {
#pragma unroll
    for (int u = 0; u < U; u++) {
        u32 pack = at + u * stride;
        if (pack < end) v[u] = load_pack(address + (u64)pack * 16);
    }
}

template <class M, int U>
struct PackValues {
    typename M::Value low[U], high[U];

    __device__ __forceinline__ void fold(const M& m, const Pack (&v)[U], bool pre, bool first) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            M::fold(low[u], m.value(v[u].x, pre), first);
            M::fold(high[u], m.value(v[u].y, pre), first);
        }
    }
    __device__ __forceinline__ void get(const M& m, Pack (&v)[U], bool post) const {
#pragma unroll
        for (int u = 0; u < U; u++) v[u] = {m.piece(low[u], post), m.piece(high[u], post)};
    }
};

// Packs in flight per operand and thread.
template <class M>
constexpr int SIMPLE_UNROLL = M::OP == Op::Copy                                    ? 8
                              : M::N == 8 && SOFT_FP8                              ? 1
                              : M::OP == Op::SumDiv || M::N == 8 || SLOW_LINKS     ? 2
                                                                                   : 4;

// Packs that need no care: all operands two by two, then the value to all destinations.
template <class M>
__device__ __forceinline__ void simple_fast(const Record& r, const M& m, u32 worker, u32 workers) {
    constexpr int U = SIMPLE_UNROLL<M>;
    u32 end = r.fast_packs, n_in = r.n_in, n_out = r.n_out;
    bool plain = r.plain, post = r.flags & HAWSER_POST;
    u32 pre_at = r.flags & HAWSER_PRE ? r.src_at : NONE;
    for (u32 at = worker; at < end; at += U * workers) {
        Pack a[U], b[U];
        PackValues<M, U> values;
#pragma unroll 1
        for (u32 i = 0; i < n_in; i += 2) {
            load_packs(a, r.in[i].address, at, workers, end);
            if (M::OP == Op::Copy || plain) break;
            bool two = i + 1 < n_in;
            if (two) load_packs(b, r.in[i + 1].address, at, workers, end);
            values.fold(m, a, pre_at == i, i == 0);
            if (two) values.fold(m, b, pre_at == i + 1, false);
        }
        if (M::OP != Op::Copy && !plain) values.get(m, a, post);
#pragma unroll 1
        for (u32 o = 0; o < n_out; o++) {
            u64 address = r.out[o].address;
#pragma unroll
            for (int u = 0; u < U; u++) {
                u32 pack = at + u * workers;
                if (pack < end) store_pack(address + (u64)pack * 16, a[u]);
            }
        }
    }
}

// Pack `at` (in bytes) of operand `i`, what exists of it.
template <int SIZE>
__device__ __forceinline__ Pack load_careful(const Record& r, u32 i, u32 at) {
    u64 address = r.in[i].address + at;
    i32 valid = (i == r.src_at ? r.src_valid : i == r.dst_at ? r.dst_valid : r.bytes) - (i32)at;
    return {load_piece<SIZE>(address, valid), load_piece<SIZE>(address + 8, valid - 8)};
}

// The other packs, one at a time: local operands at odd addresses or past their end. Two operands are loaded
// before either is used: a small message between hosts is one such pack, and each load from host memory takes
// a microsecond.
template <class M>
__device__ __forceinline__ void simple_careful(const Record& r, const M& m, u32 worker, u32 workers) {
    constexpr int SIZE = M::SIZE;
    u32 n_in = r.n_in, n_out = r.n_out, packs = (u32)r.bytes / 16;
    bool post = r.flags & HAWSER_POST, has_dst = r.flags & HAWSER_HAS_DST;
    u32 pre_at = r.flags & HAWSER_PRE ? r.src_at : NONE;
#pragma unroll 1
    for (u32 pack = r.fast_packs + worker; pack < packs; pack += workers) {
        u32 at = pack * 16;
        Pack out = {0, 0};
        typename M::Value low, high;
#pragma unroll 1
        for (u32 i = 0; i < n_in; i += 2) {
            bool two = i + 1 < n_in;
            out = load_careful<SIZE>(r, i, at);
            if constexpr (M::OP != Op::Copy) {
                Pack next = {0, 0};
                if (two) next = load_careful<SIZE>(r, i + 1, at);
                M::fold(low, m.value(out.x, pre_at == i), i == 0);
                M::fold(high, m.value(out.y, pre_at == i), i == 0);
                if (two) M::fold(low, m.value(next.x, pre_at == i + 1), false);
                if (two) M::fold(high, m.value(next.y, pre_at == i + 1), false);
            }
        }
        if constexpr (M::OP != Op::Copy) {
            if (!r.plain) out = {m.piece(low, post), m.piece(high, post)};
        }
#pragma unroll 1
        for (u32 o = has_dst ? 1 : 0; o < n_out; o++) store_pack(r.out[o].address + at, out);
        if (has_dst) {
            i32 valid = r.dst_valid - (i32)at;
            store_piece<SIZE>(r.dst + at, valid, out.x);
            store_piece<SIZE>(r.dst + at + 8, valid - 8, out.y);
        }
    }
}

template <class M>
__device__ __forceinline__ void move_simple(const Record& r, const M& m, u32 worker, u32 workers, u32) {
    simple_fast(r, m, worker, workers);
    if (r.fast_packs < (u32)r.bytes / 16) simple_careful(r, m, worker, workers);
}

} // namespace hawser

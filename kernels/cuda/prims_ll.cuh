// LL: words of 16 bytes carry 8 bytes of data between two copies of the flag. Whoever sees both
// flags has the data; each half of a word is whole by itself, so it does not matter whether the 16
// bytes arrive at once. No fence, no tail.
#pragma once

#include "types.cuh"
#include "wait.cuh"

namespace hawser {

// Loads the words of all peers, then again those that lack a flag, until none does: the loads of
// all peers are under way together.
template <int FAN>
__device__ __forceinline__ void poll_words(const Record& r, u64 at, u32 turn, Patience& patience, u64 (&data)[FAN]) {
    u32 n_recv = r.n_recv;
    Word words[FAN];
    bool there[FAN];
#pragma unroll
    for (int p = 0; p < FAN; p++) there[p] = p >= n_recv;
    while (true) {
#pragma unroll
        for (int p = 0; p < FAN; p++)
            if (!there[p]) words[p] = load_word(r.in[p].address + at);
        u32 missing = NONE;
#pragma unroll
        for (int p = 0; p < FAN; p++) {
            u32 flag = (u32)r.in[p].flag;
            if (!there[p]) there[p] = words[p].f0 == flag && words[p].f1 == flag;
            if (!there[p]) missing = p;
        }
        if (missing == NONE) break;
        if (patience.due() && give_up(turn + 1, turn, HAWSER_WAIT_RECV, r.recv_peer[missing], patience.since)) {
            patience.lost();
            break;
        }
    }
#pragma unroll
    for (int p = 0; p < FAN; p++) data[p] = words[p].d0 | (u64)words[p].d1 << 32;
}

// recv[0..order], local operand(s), recv[order..], folded in this order.
template <class M, int FAN>
__device__ __forceinline__ u64 reduce_words(const Record& r, const M& m, u64 (&data)[FAN], u64 src, u32 at) {
    typename M::Value sum;
    u32 n_in = r.n_in, src_at = r.src_at, dst_at = r.dst_at;
    bool pre = r.flags & HAWSER_PRE;
#pragma unroll 1
    for (u32 i = 0; i < n_in; i++) {
        u64 piece = data[0];
        if (i == src_at) piece = src;
        else if (i == dst_at) piece = load_piece<M::SIZE>(r.dst + at, r.dst_valid - (i32)at);
        else {
#pragma unroll
            for (int p = 0; p + 1 < FAN; p++) data[p] = data[p + 1];
        }
        M::fold(sum, m.value(piece, pre && i == src_at), i == 0);
    }
    return m.piece(sum, r.flags & HAWSER_POST);
}

template <class M>
__device__ __forceinline__ void move_ll(const Record& r, const M& m, u32 worker, u32 workers, u32 turn) {
    constexpr int SIZE = M::SIZE;
    constexpr int FAN = M::OP == Op::Copy ? 1 : HAWSER_MAX_FAN;
    u32 pieces = (u32)r.bytes / 8, n_out = r.n_out;
    bool has_src = r.flags & HAWSER_HAS_SRC, has_dst = r.flags & HAWSER_HAS_DST;
    Patience patience;
    u64 src = 0, next = 0;
    // One piece ahead, so that the local load is under way while we wait for the words.
    for (u32 i = worker, ahead = worker; i < pieces; i += workers) {
        u32 at = 8 * i;
#pragma unroll 1
        for (; has_src && ahead <= i + workers; ahead += workers) {
            src = next;
            if (ahead < pieces) next = load_piece<SIZE>(r.src + 8 * (u64)ahead, r.src_valid - (i32)(8 * ahead));
        }
        u64 data[FAN];
        poll_words(r, 2 * (u64)at, turn, patience, data);
        u64 out = r.n_recv > 0 ? data[0] : src;
        if constexpr (M::OP != Op::Copy) {
            if (!r.plain) out = reduce_words(r, m, data, src, at);
        }
#pragma unroll 1
        for (u32 o = 0; o < n_out; o++) store_word(r.out[o].address + 2 * (u64)at, out, (u32)r.out[o].flag);
        if (has_dst) store_piece<SIZE>(r.dst + at, r.dst_valid - (i32)at, out);
    }
}

} // namespace hawser

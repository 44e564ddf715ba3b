// LL: words of 16 bytes carry 8 bytes of data between two copies of the epoch, so whoever sees both has the data. A
// thread owns the same word of every slot. For small sizes: one or two hops, no fence.
#pragma once

#include "exchange.cuh"

namespace hawser {

// Waits for the words of `epoch` from the ranks of `missing`. False: given up.
__device__ __forceinline__ bool receive_words(const HawserExchange& a, u64 slots, u32 missing, u32 epoch, u32 number,
                                              u64 (&data)[PEERS]) {
    u64 since = 0;
    Word words[PEERS];
    for (u32 polls = 1; missing != 0; polls++) {
#pragma unroll
        for (u32 p = 0; p < PEERS; p++)
            if (in(missing, p)) words[p] = load_word(slots + p * HAWSER_WORD_SLOT);
        u32 still = 0;
#pragma unroll
        for (u32 p = 0; p < PEERS; p++)
            if (in(missing, p) && (words[p].f0 != epoch || words[p].f1 != epoch)) still |= 1u << p;
        missing = still;
        if (missing != 0 && polls % LOOK == 0 && stop_waiting(a, number, __ffs(missing) - 1, since)) return false;
    }
#pragma unroll
    for (u32 p = 0; p < PEERS; p++) data[p] = words[p].d0 | (u64)words[p].d1 << 32;
    return true;
}

// The first thread of a block speaks for it to peers that get no data.
__device__ __forceinline__ void send_flags(const HawserExchange& a, u32 mask, u64 offset, u32 epoch) {
    u32 others = all_k(a) & ~mask;
    if (threadIdx.x != 0 || others == 0) return;
#pragma unroll 1
    for (u32 k = 1; k < a.ranks; k++)
        if (in(others, k)) store_word(a.to[k] + offset, 0, epoch);
}

// Combines the operands of all ranks along the tree.
template <class M>
__device__ __forceinline__ u64 nest_pieces(const HawserExchange& a, const M& m, u64 own, const u64 (&data)[PEERS]) {
    auto operand = [&](auto p) { return PieceValue<M>{m.value(p.value == a.rank ? own : data[p.value])}; };
    return m.piece(nested<0, PEERS>(a.ranks, operand).value, false);
}

// Combines the operands in the order of ranks; a single operand keeps its bits.
template <class M>
__device__ __forceinline__ u64 fold_pieces(const HawserExchange& a, const M& m, u64 own, const u64 (&data)[PEERS]) {
    if constexpr (M::IS_ORDERED)
        if (a.order == HAWSER_NESTED) return nest_pieces(a, m, own, data);
    u32 mask = operands(a);
    typename M::Value sum;
    u64 last = 0;
    bool first = true;
#pragma unroll
    for (u32 p = 0; p < PEERS; p++) {
        if (!in(mask, p)) continue;
        last = p == a.rank ? own : data[p];
        if constexpr (M::OP != Op::Copy) M::fold(sum, m.value(last), first);
        first = false;
    }
    if constexpr (M::OP != Op::Copy) return m.piece(sum, a.form & HAWSER_DIVIDE);
    return last;
}

// Reads and sends 8 bytes at `at` of every part. Returns those of this rank.
template <class M, bool WHOLE>
__device__ __forceinline__ u64 send_words(const HawserExchange& a, const M& m, u64 at, u64 offset, u32 epoch) {
    u32 n = a.ranks, form = a.form, send = a.send1;
    u64 sent[PEERS];
    if (send == 0 && a.keep == 0 && !(form & HAWSER_OWN)) return 0; // there may be no input at all
    if (form & HAWSER_SAME) {
        sent[0] = get_piece<M, WHOLE>(a.src[0], a.src_len[0], at);
        if (in(a.keep, a.rank)) put_piece<M, WHOLE>(a.dst[a.rank], a.len[a.rank], at, sent[0]);
        sent[0] = prepared(m, sent[0], form);
#pragma unroll
        for (u32 k = 1; k < PEERS; k++)
            if (in(send, k)) store_word(a.to[k] + offset, sent[0], epoch);
        return sent[0];
    }
    bool own = (form & HAWSER_OWN) || in(a.keep, a.rank);
#pragma unroll
    for (u32 k = 0; k < PEERS; k++)
        if (k == 0 ? own : in(send, k)) sent[k] = get_piece<M, WHOLE>(a.src[k], a.src_len[k], at);
    if (a.keep != 0) {
#pragma unroll
        for (u32 k = 0; k < PEERS; k++) {
            u32 p = rank_of(a, k);
            if (k < n && in(a.keep, p)) put_piece<M, WHOLE>(a.dst[p], a.len[p], at, sent[k]);
        }
    }
#pragma unroll
    for (u32 k = 1; k < PEERS; k++)
        if (in(send, k)) store_word(a.to[k] + offset, prepared(m, sent[k], form), epoch);
    return prepared(m, sent[0], form);
}

// Waits for the flags of the ranks `owed`, whose words lie at `slots`. False: all threads leave.
__device__ __forceinline__ bool settle_words(const HawserExchange& a, u64 slots, u32 owed, u32 epoch, u32 number) {
    u64 data[PEERS];
    bool good = receive_words(a, slots, threadIdx.x == 0 ? owed : 0, epoch, number, data);
    return !__syncthreads_or(!good);
}

// One word of every slot: 8 bytes at `at` of everything. `offset`: of this thread's words of even epochs.
template <class M, bool WHOLE>
__device__ __forceinline__ bool exchange_word(const HawserExchange& a, const M& m, u64 at, u64 offset, Count& count, u32 number) {
    constexpr u64 PARITY = PEERS * HAWSER_WORD_SLOT;
    u32 form = a.form, rank = a.rank;
    bool active = WHOLE || at < a.most;
    u32 epoch = count.epoch + 1, everyone = threadIdx.x == 0 ? awaited(a) : 0;
    u64 here = offset + (epoch % 2) * PARITY, there = offset + (epoch + 1) % 2 * PARITY;
    if (count.owed != 0 && !settle_words(a, a.mine + there, count.owed, epoch - 1, number)) return false;
    count.owed = all_p(a) & ~awaited(a);
    count.epoch += form & HAWSER_SECOND ? 2 : 1;
    u64 own = 0, data[PEERS];
    send_flags(a, a.send1, here, epoch);
    if (active) own = send_words<M, WHOLE>(a, m, at, here, epoch);
    bool good = receive_words(a, a.mine + here, everyone | (active ? a.recv1 : 0), epoch, number, data);
    // A bare flag speaks for the whole block: all of it must have read the first exchange. All leave, or none.
    bool bare = (form & HAWSER_SECOND) && a.send2 != all_k(a);
    if (bare) good = !__syncthreads_or(!good);
    if (!good) return false;
    if (!(form & HAWSER_FOLD)) {
#pragma unroll
        for (u32 p = 0; p < PEERS; p++)
            if (active && in(a.recv1, p)) put_piece<M, WHOLE>(a.dst[p], a.len[rank], at, data[p]);
        return true;
    }
    u64 value = fold_pieces(a, m, own, data);
    if (form & HAWSER_SECOND) {
        if (bare) send_flags(a, a.send2, there, epoch + 1);
#pragma unroll
        for (u32 k = 1; k < PEERS; k++)
            if (active && in(a.send2, k)) store_word(a.to[k] + there, value, epoch + 1);
    }
    if (active && a.dst[rank] != 0 && !in(a.keep, rank)) put_piece<M, WHOLE>(a.dst[rank], a.len[rank], at, value);
    if (!(form & HAWSER_SECOND)) return true;
    if (!receive_words(a, a.mine + there, everyone | (active ? a.recv2 : 0), epoch + 1, number + 1, data)) return false;
#pragma unroll
    for (u32 p = 0; p < PEERS; p++)
        if (active && in(a.recv2, p)) put_piece<M, WHOLE>(a.dst[p], a.len[p], at, data[p]);
    return true;
}

template <class M>
__device__ __forceinline__ void exchange_words(const HawserExchange& a) {
    follow_previous_grid();
    Count count(a.epochs, blockIdx.x);
    u32 number = 0;
    M m;
    m.divisor = a.divisor;
    m.load_factor(a.scalar, a.scalar_is_address != 0);
    if (threadIdx.x == 0) block_lost = 0;
    __syncthreads(); // all have read the counter
    u32 bytes = 8 * blockDim.x, in_block = 8 * threadIdx.x;
    u64 offset = (u64)blockIdx.x * (2 * PEERS * HAWSER_WORD_SLOT) + 16 * threadIdx.x;
    bool good = true;
    for (u64 base = (u64)blockIdx.x * bytes; base < a.most; base += (u64)gridDim.x * bytes) {
        // The block has read all words of the exchange before the last; all leave, or none.
        if (number != 0 && __syncthreads_or(!good)) break;
        bool whole = (a.form & HAWSER_ALIGNED) && base + bytes <= a.least;
        good = whole ? exchange_word<M, true>(a, m, base + in_block, offset, count, number)
                     : exchange_word<M, false>(a, m, base + in_block, offset, count, number);
        number += 2;
    }
    if (threadIdx.x == 0) count.store();
    end_block(a.done);
}

} // namespace hawser

// Several calls in one launch, each in blocks of its own or in turn in the same ones. What the kernel of one call gets as
// arguments follows from a few numbers, so that those of many fit a launch; after that a block does as exchange_words.cuh says.
#pragma once

#include "exchange_words.cuh"

namespace hawser {

#ifndef HAWSER_EMULATED
__shared__ HawserExchange bundle_args; // of the operation that the block runs now
#endif

// Where one peer's parts lie. Called by thread k for rank + k.
__device__ __forceinline__ void unfold_peer(const HawserBundle& b, const HawserBundleOp& op, u32 k, HawserExchange& a) {
    u32 p = b.rank + k;
    if (p >= b.ranks) p -= b.ranks;
    bool cut = op.shape & HAWSER_CUT, skipped = p == op.skipped;
    u64 at = skipped ? 0 : (u64)(p - (p > op.skipped ? 1 : 0)) * op.part;
    u64 len = skipped ? 0 : cut ? (u64)rest(op.total, at, (i32)op.part) : op.part;
    a.to[k] = b.to[k];
    a.src[k] = op.input + (op.shape & HAWSER_SPREAD_SRC ? at : 0);
    a.src_len[k] = a.len[p] = len;
    a.dst[p] = in(op.has_dst, p) ? op.output + (op.shape & HAWSER_SPREAD_DST ? at : 0) : 0;
}

// The rest of the arguments, by one thread.
__device__ __forceinline__ void unfold_rest(const HawserBundle& b, const HawserBundleOp& op, HawserExchange& a) {
    u32 parts = b.ranks - (op.skipped < b.ranks ? 1 : 0);
    a.mine = b.mine, a.comm = b.comm, a.epochs = b.epochs, a.done = b.done;
    a.scalar = op.scalar, a.op_number = op.op_number;
    a.most = ((u64)op.part + 15) / 16 * 16;
    a.least = op.shape & HAWSER_CUT ? (u64)rest(op.total, (u64)(parts - 1) * op.part, (i32)op.part) : op.part;
    a.divisor = b.ranks, a.tile = 0, a.flags_at = 0;
    a.rank = b.rank, a.ranks = b.ranks, a.form = op.form, a.scalar_is_address = op.scalar_is_address;
    a.send1 = op.send1, a.recv1 = op.recv1, a.keep = op.keep, a.send2 = op.send2, a.recv2 = op.recv2, a.order = op.order, a.direct = 0;
}

template <class M>
__device__ __forceinline__ void exchange_bundle(const HawserBundle& b) {
    follow_previous_grid();
    u32 block = b.first + blockIdx.x, bytes = 8 * blockDim.x;
    Count count(b.epochs, block);
    u64 offset = (u64)block * (2 * PEERS * HAWSER_WORD_SLOT) + 16 * threadIdx.x;
    bool good = true;
    if (threadIdx.x == 0) block_lost = 0;
    for (u64 todo = b.todo[blockIdx.x]; todo != 0; todo &= todo - 1) {
        const HawserBundleOp& op = b.ops[__ffsll(todo) - 1];
        HawserExchange& a = bundle_args;
        // The block has read all words of the operation before, and its arguments; all leave, or none.
        if (__syncthreads_or(!good)) break;
        if (threadIdx.x < b.ranks) unfold_peer(b, op, threadIdx.x, a);
        if (threadIdx.x == PEERS) unfold_rest(b, op, a);
        __syncthreads();
        M m;
        m.divisor = a.divisor;
        m.load_factor(a.scalar, a.scalar_is_address != 0);
        u64 base = (u64)(block - op.first) * bytes, at = base + 8 * threadIdx.x;
        bool whole = (a.form & HAWSER_ALIGNED) && base + bytes <= a.least;
        good = whole ? exchange_word<M, true>(a, m, at, offset, count, 0)
                     : exchange_word<M, false>(a, m, at, offset, count, 0);
    }
    if (threadIdx.x == 0) count.store();
    end_block(b.done);
}

} // namespace hawser

// What kernels of one or two exchanges share: every rank writes into the areas of all others, then waits for all others.
//
// An exchange has a number, the **epoch**, which grows by one from exchange to exchange and lives in device memory, so
// replayed graphs go on counting. Its slots are used by turns (epoch % 2). Every exchange sends something to every peer, if
// only a flag: whoever has seen all flags of epoch e knows that all peers have read what was sent in e - 1, so the slots of
// e + 1 are free. No credits, no barriers between ranks. An exchange waits for the ranks that it receives from. Flags of the
// others are **owed**: who sends the next time looks at them first. So the root of a small broadcast, or whoever sends to it in
// a gather, ends although the others have not come yet. The second exchange of a launch owes nothing, nor does the one before it.
//
// Names: `k` counts peers from the own rank on (to, src, send1, send2), so that no two ranks begin with the same peer; `p` is
// a rank (dst, len, recv1, recv2, keep), since values are combined in the order of ranks, or along a tree over it (nest.cuh).
#pragma once

#include "grid.cuh"
#include "nest.cuh"
#include "plan.h"
#include "report.cuh"
#include "types.cuh"

namespace hawser {

constexpr u32 PEERS = HAWSER_EXCHANGE_RANKS;
constexpr u32 LANES = 32;
constexpr u32 WHOLE_WARP = 0xffffffff;
constexpr u32 LOOK = 1024; // polls between two looks at the abort word, a power of two

// Packs under way per lane: of copies, and per operand of a reduction, so many operands at a time. More of them spill.
constexpr u32 TILE_COPIES = 8;
template <class M>
constexpr u32 TILE_FOLDS = M::N <= 2 ? 4 : M::N == 8 && SOFT_FP8 ? 1 : 2;
template <class M>
constexpr u32 TILE_OPERANDS = M::N <= 2 ? 2 : 4;

// The same where subtrees are kept meanwhile.
template <class M>
constexpr u32 NEST_PACKS = M::N <= 4 ? 2 : 1;
constexpr u32 NEST_OPERANDS = 4;

#ifndef HAWSER_EMULATED
__shared__ u32 block_lost; // somebody of the block has given up
#endif

// Says whether to stop waiting for `peer` in the exchange `number` of this launch.
__device__ __noinline__ bool stop_waiting(const HawserExchange& a, u32 number, u32 peer, u64& since) {
    volatile u32* lost = &block_lost;
    if (*lost != 0) return true;
    const HawserDevComm& comm = *(const HawserDevComm*)a.comm;
    u64 now = now_ns();
    if (since == 0) since = now;
    u32 code = 0;
    const Waited waited{number % 2, peer, HAWSER_WAIT_RECV, number / 2, a.op_number};
    if (told_to_leave(comm, waited)) code = HAWSER_ABORTED;
    else if (comm.deadline_ns != 0 && now - since > comm.deadline_ns) code = HAWSER_DEADLINE;
    if (code == 0) return false;
    *lost = 1;
    write_report(comm.report, code, waited);
    return true;
}

// What lasts from launch to launch, per block (LL) or warp: the epoch, and the ranks whose flags of it are owed.
struct Count {
    u64 address;
    u32 epoch, owed;

    __device__ __forceinline__ Count(u64 counts, u32 unit) : address(counts + HAWSER_COUNT_BYTES * (u64)unit) {
        u64 both = load_relaxed_sys(address);
        epoch = (u32)both, owed = (u32)(both >> 32);
    }
    __device__ __forceinline__ void store() const { store_relaxed_sys(address, (u64)owed << 32 | epoch); }
};

__device__ __forceinline__ bool in(u32 mask, u32 bit) { return mask >> bit & 1; }
// All ranks but the first peer number, or but the own rank.
__device__ __forceinline__ u32 all_k(const HawserExchange& a) { return (1u << a.ranks) - 2; }
__device__ __forceinline__ u32 all_p(const HawserExchange& a) { return ((1u << a.ranks) - 1) & ~(1u << a.rank); }
// The ranks that a launch waits for in its first exchange.
__device__ __forceinline__ u32 awaited(const HawserExchange& a) { return a.form & HAWSER_SECOND ? all_p(a) : a.recv1; }
__device__ __forceinline__ u32 rank_of(const HawserExchange& a, u32 k) {
    u32 p = a.rank + k;
    return p < a.ranks ? p : p - a.ranks;
}
__device__ __forceinline__ u32 k_of(const HawserExchange& a, u32 p) { return p < a.rank ? p + a.ranks - a.rank : p - a.rank; }
// Bytes of a slot of tiles where there are `ranks` ranks.
__device__ __forceinline__ u32 tile_slot(u32 ranks) {
    return ranks <= 2 ? 4 * HAWSER_TILE_SLOT : ranks <= 4 ? 2 * HAWSER_TILE_SLOT : HAWSER_TILE_SLOT;
}
__device__ __forceinline__ u32 operands(const HawserExchange& a) { return a.recv1 | (a.form & HAWSER_OWN ? 1u << a.rank : 0); }

// Bytes from `at` to the end of `len`, from 0 to `most`.
__device__ __forceinline__ i32 rest(u64 len, u64 at, i32 most) {
    i64 left = (i64)(len - at);
    return left < most ? (i32)(left > 0 ? left : 0) : most;
}

// 8 bytes of user data at `at` of a part of `len` bytes. WHOLE: they exist and are aligned.
template <class M, bool WHOLE>
__device__ __forceinline__ u64 get_piece(u64 address, u64 len, u64 at) {
    if constexpr (WHOLE) return load_part<u64>(address + at);
    else return load_piece<M::SIZE>(address + at, rest(len, at, 8));
}
template <class M, bool WHOLE>
__device__ __forceinline__ void put_piece(u64 address, u64 len, u64 at, u64 v) {
    if constexpr (WHOLE) store_part<u64>(address + at, v);
    else store_piece<M::SIZE>(address + at, rest(len, at, 8), v);
}

// User data as they are sent: scaled if the operation wants that.
template <class M>
__device__ __forceinline__ u64 prepared(const M& m, u64 piece, u32 form) {
    if constexpr (M::OP == Op::PreMul) {
        if (form & HAWSER_SCALE) return m.piece(m.value(piece, true), false);
    }
    return piece;
}
template <class M>
__device__ __forceinline__ Pack prepared(const M& m, Pack v, u32 form) {
    return {prepared(m, v.x, form), prepared(m, v.y, form)};
}

} // namespace hawser

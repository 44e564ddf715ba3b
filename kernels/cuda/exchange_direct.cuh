// zero_copy: ranks that reach each other's buffers move user data straight between them. For large sizes.
//
// The blocks of all ranks meet (exchange_meet.cuh). If some rank's buffers cannot be reached by the others, all ranks see that and
// take the way of Simple. What is combined is read from all ranks. What only moves is written to where it belongs, or read by
// those who get it where one rank has it all or gets it all (HAWSER_DIRECT_PULL): reading in one direction fills a link with
// fewer blocks, in both directions writing is faster. A value that stays here and goes to peers too is passed on when all have been
// combined, each by the lane that has combined it: first everybody reads, then everybody writes (DIRECT_PASSERS).
#pragma once

#include "exchange_meet.cuh"

namespace hawser {

// Packs under way per lane and operand, and operands at a time: jobs hold fewer registers than tiles.
template <class M>
constexpr u32 DIRECT_FOLDS = M::N <= 4 ? 4 : TILE_FOLDS<M>;
template <class M>
constexpr u32 DIRECT_OPERANDS = M::N <= 4 ? 2 : TILE_OPERANDS<M>;
// Bytes of a job that a warp moves at a time.
template <class M>
constexpr u32 DIRECT_BATCH = (M::OP == Op::Copy ? TILE_COPIES : DIRECT_FOLDS<M>) * LANES * 16;
// Blocks that copy what stays on the rank as fast as a link takes as much.
constexpr u32 DIRECT_KEEPERS = 12;

// Stores what the lanes hold of a batch of `len` bytes at places `first` to `last` - 1 of a job.
template <u32 B>
__device__ __forceinline__ void store_batch(const DirectJob& job, u32 first, u32 last, u64 base, u64 len, const Pack (&v)[B]) {
    u64 at = threadIdx.x % LANES * 16;
#pragma unroll 1
    for (u32 i = first; i < last; i++) {
        u64 to = job.to[i] + base + at;
#pragma unroll
        for (u32 b = 0; b < B; b++)
            if (at + b * LANES * 16 < len) store_pack(to + b * LANES * 16, v[b]);
    }
}
template <u32 B>
__device__ __forceinline__ void load_batch(u64 from, u64 len, Pack (&v)[B]) {
    u64 at = threadIdx.x % LANES * 16;
#pragma unroll
    for (u32 b = 0; b < B; b++)
        if (at + b * LANES * 16 < len) v[b] = load_pack(from + at + b * LANES * 16);
}

// Copies a batch at `base`. The whole warp calls it.
__device__ __forceinline__ void copy_batch(const DirectJob& job, u64 base) {
    Pack v[TILE_COPIES];
    load_batch(job.from[0] + base, job.len - base, v);
    store_batch(job, 0, job.n_to, base, job.len - base, v);
}

// Combines NEST_OPERANDS operands from number `first` on, as far as there are so many, of a turn of a batch.
template <class M>
__device__ __forceinline__ auto nest_some(const HawserExchange& a, const M& m, const DirectJob& job, u32 first, u64 base) {
    constexpr u32 B = NEST_PACKS<M>, O = NEST_OPERANDS;
    Pack v[O][B];
#pragma unroll
    for (u32 o = 0; o < O; o++)
        if (first + o < job.n_from) load_batch(job.from[first + o] + base, job.len - base, v[o]);
    auto operand = [&](auto o) { return PackValues<M, B>::of(m, v[o.value], a.form & HAWSER_SCALE); };
    return nested<0, O>(job.n_from - first, operand);
}

// Combines a batch at `base` along the tree over ranks, NEST_PACKS packs of a lane at a turn. The whole warp calls it.
template <class M>
__device__ __forceinline__ void nest_batch(const HawserExchange& a, const M& m, const DirectJob& job, u64 base) {
    constexpr u32 B = NEST_PACKS<M>;
    static_assert(DIRECT_FOLDS<M> % B == 0, "a batch is a number of turns");
    u64 end = base + DIRECT_BATCH<M> < job.len ? base + DIRECT_BATCH<M> : job.len;
#pragma unroll 1
    for (; base < end; base += B * LANES * 16) {
        PackValues<M, B> values;
#pragma unroll 1
        for (u32 first = 0; first < job.n_from; first += NEST_OPERANDS) {
            auto some = nest_some(a, m, job, first, base);
            if (first == 0) values = some;
            else values.join(some);
        }
        Pack all[B];
#pragma unroll
        for (u32 b = 0; b < B; b++) all[b] = values.pack(m, b);
        store_batch(job, 0, job.n_now, base, job.len - base, all);
    }
}

// Combines a batch at `base`, in the order of ranks. The whole warp calls it.
template <class M>
__device__ __forceinline__ void fold_batch(const HawserExchange& a, const M& m, const DirectJob& job, u64 base) {
    constexpr u32 B = DIRECT_FOLDS<M>, O = DIRECT_OPERANDS<M>;
    if constexpr (M::NESTED) return nest_batch(a, m, job, base);
    bool scale = a.form & HAWSER_SCALE, divide = a.form & HAWSER_DIVIDE;
    typename M::Value low[B], high[B];
    u64 len = job.len - base;
#pragma unroll 1
    for (u32 group = 0; group < job.n_from; group += O) {
        Pack v[O][B];
#pragma unroll
        for (u32 o = 0; o < O; o++)
            if (group + o < job.n_from) load_batch(job.from[group + o] + base, len, v[o]);
#pragma unroll
        for (u32 o = 0; o < O; o++) {
            if (group + o >= job.n_from) continue;
#pragma unroll
            for (u32 b = 0; b < B; b++) {
                M::fold(low[b], m.value(v[o][b].x, scale), group + o == 0);
                M::fold(high[b], m.value(v[o][b].y, scale), group + o == 0);
            }
        }
    }
    Pack all[B];
#pragma unroll
    for (u32 b = 0; b < B; b++) all[b] = {m.piece(low[b], divide), m.piece(high[b], divide)};
    store_batch(job, 0, job.n_now, base, len, all);
}

// Passes on the batches at `base` and, `turn` bytes apart, behind it, as many as are under way at once. The whole warp calls it.
template <class M>
__device__ __forceinline__ void pass_batches(const DirectJob& job, u64 base, u64 turn) {
    constexpr u32 B = DIRECT_FOLDS<M>, BATCHES = TILE_COPIES / B;
    Pack v[BATCHES][B];
#pragma unroll
    for (u32 i = 0; i < BATCHES; i++)
        if (base + i * turn < job.len) load_batch(job.to[0] + base + i * turn, job.len - base - i * turn, v[i]);
#pragma unroll
    for (u32 i = 0; i < BATCHES; i++) {
        u64 at = base + i * turn;
        if (at < job.len) store_batch(job, job.n_now, job.n_to, at, job.len - at, v[i]);
    }
}

// The share of block `block` of `blocks` in some jobs, whose batches take turns.
template <class M>
__device__ __forceinline__ void do_jobs(const HawserExchange& a, const M& m, const DirectJob* job, u32 jobs, u32 block, u32 blocks) {
    u64 warps = blockDim.x / LANES, longest = 0;
    for (u32 j = 0; j < jobs; j++) longest = job[j].len > longest ? job[j].len : longest;
    u64 first = (block * warps + threadIdx.x / LANES) * DIRECT_BATCH<M>, turn = blocks * warps * DIRECT_BATCH<M>;
#pragma unroll 1
    for (u64 base = first; base < longest; base += turn) {
#pragma unroll 1
        for (u32 j = 0; j < jobs; j++) {
            if (base >= job[j].len) continue;
            if constexpr (M::OP == Op::Copy) copy_batch(job[j], base);
            else fold_batch(a, m, job[j], base);
        }
    }
    if constexpr (M::OP != Op::Copy) {
        constexpr u32 BATCHES = TILE_COPIES / DIRECT_FOLDS<M>;
        if (jobs == 0 || job->n_now == job->n_to) return; // a reduction has one such job
#pragma unroll 1
        for (u64 base = first; base < job->len; base += BATCHES * turn) pass_batches<M>(*job, base, turn);
    }
}

// Does everything. Blocks of their own copy what stays: a multiprocessor's loads wait behind its stores to peers.
template <class M>
__device__ __noinline__ void move_direct(const HawserExchange& a, const M& m, const Direct& direct) {
    const DirectJob* kept = direct.job + direct.jobs;
    u32 share = (DIRECT_KEEPERS + a.ranks - 2) / (a.ranks - 1), third = gridDim.x / 3;
    u32 keepers = direct.kept == 0 ? 0 : direct.jobs == 0 ? gridDim.x : share < third ? share : third;
    u32 movers = gridDim.x - keepers;
    if (blockIdx.x >= movers) return do_jobs(a, m, kept, direct.kept, blockIdx.x - movers, keepers);
    do_jobs(a, m, direct.job, direct.jobs, blockIdx.x, movers);
    if (keepers == 0) do_jobs(a, m, kept, direct.kept, blockIdx.x, movers);
}

// The bytes behind the last pack of every job. One thread of the grid calls it.
template <class M>
__device__ __noinline__ void move_ends(const HawserExchange& a, const M& m, const Direct& direct) {
    for (u32 j = 0; j < direct.jobs + direct.kept; j++) {
        const DirectJob& job = direct.job[j];
        for (u32 at = 0; at < job.end; at += 8) {
            i32 valid = (i32)(job.end - at);
            typename M::Value value;
            u64 v = 0;
            auto operand = [&](u32 o) {
                v = load_piece<M::SIZE>(job.from[o] + job.len + at, valid);
                return PieceValue<M>{m.value(v, a.form & HAWSER_SCALE)};
            };
            if constexpr (M::NESTED) value = nested<0, PEERS>(job.n_from, [&](auto p) { return operand(p.value); }).value;
            else for (u32 o = 0; o < job.n_from; o++) M::fold(value, operand(o).value, o == 0);
            if constexpr (M::OP != Op::Copy) v = m.piece(value, a.form & HAWSER_DIVIDE);
            for (u32 i = 0; i < job.n_to; i++) store_piece<M::SIZE>(job.to[i] + job.len + at, valid, v);
        }
    }
}

// The whole call. False: some rank's buffers cannot be reached, nothing has happened. All threads call it.
template <class M>
__device__ __noinline__ bool exchange_direct(const HawserExchange& a) {
    Direct& direct = own_direct();
    Count count(a.epochs, HAWSER_TILE_UNITS + blockIdx.x);
    u32 epoch = ++count.epoch, warp = threadIdx.x / LANES;
    DirectPlace place(a, epoch);
    if (warp == 0) {
        Meeting meeting = meet(a, direct, place, epoch);
        __syncwarp();
        if (place.lane == 0) {
            direct.meeting = meeting;
            if (meeting == Meeting::Open) list_jobs(a, direct);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) count.store();
    if (direct.meeting == Meeting::Open) {
        M m;
        m.divisor = a.divisor;
        m.load_factor(a.scalar, a.scalar_is_address != 0);
        move_direct(a, m, direct);
        if (blockIdx.x == 0 && threadIdx.x == 0) move_ends(a, m, direct);
    }
    __syncthreads();
    if (warp == 0 && direct.meeting != Meeting::Closed) {
        bool good = direct.meeting == Meeting::Open;
        if (good && place.has_peer) {
            fence_acq_rel_sys();
            store_relaxed_sys_u32(place.done_to, epoch);
        }
        if (!good) await_done(a, place, epoch, DIRECT_BEGUN_NS);
        if (good || all_have_come(place, epoch)) await_done(a, place, epoch, DIRECT_DONE_NS);
    }
    return direct.meeting != Meeting::Closed;
}

} // namespace hawser

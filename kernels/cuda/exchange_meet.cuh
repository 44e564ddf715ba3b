// How blocks of zero_copy meet: each block of a rank tells the same block of all others where they may read and write (a
// **line**), and none leaves before all others are done with its buffers. What there is to do then is a list of jobs.
#pragma once

#include "exchange.cuh"

namespace hawser {

constexpr u32 DIRECT_JOBS = 2 * PEERS;
// So many blocks first combine everything, then pass it on; fewer do both for each batch, so that reads and writes overlap.
#ifndef HAWSER_DIRECT_PASSERS
#define HAWSER_DIRECT_PASSERS 32
#endif
constexpr u32 DIRECT_PASSERS = HAWSER_DIRECT_PASSERS;
// A rank that gives up: its peers may have begun with its buffers a moment ago, or are done in a while. They have not begun if
// by then one of them still has not come, since each tells all at the same time.
#ifdef HAWSER_EMULATED // many threads take turns there
constexpr u64 DIRECT_BEGUN_NS = 100000, DIRECT_DONE_NS = 2000000;
#else
constexpr u64 DIRECT_BEGUN_NS = 50000000, DIRECT_DONE_NS = 1000000000;
#endif

// What a line says beside the epoch.
constexpr u32 LINE_CLOSED = 1; // buffers cannot be reached
constexpr u32 LINE_OPEN = 2;
constexpr u32 LINE_WITHDRAWN = 3; // the rank has given up

enum class Meeting : u32 { Lost, Closed, Open };

// What comes from `from`, combined if it is several, goes to all of `to`. All are multiples of 16.
struct DirectJob {
    u64 from[PEERS], to[PEERS];
    u64 len; // without `end`
    u32 n_from, n_to;
    u32 n_now; // of a value: places that it goes to at once, the others get it from the first of them
    u32 end;   // bytes behind the last pack
};

// What a block knows.
struct Direct {
    u64 read[PEERS], write[PEERS]; // by k: where rank + k lets this rank read and write
    Meeting meeting;
    u32 jobs, kept; // jobs, and behind them those that stay on the rank
    DirectJob job[DIRECT_JOBS];
};

#ifdef HAWSER_EMULATED
Direct& own_direct();
#else
__shared__ Direct direct_shared;
__device__ __forceinline__ Direct& own_direct() { return direct_shared; }
#endif

// Where the lines and flags of this block lie in an area, and the block's counter.
struct DirectPlace {
    u32 lane;
    bool has_peer; // lane k: there is a peer number k
    u64 to, from;  // the line at rank + k, and from it
    u64 done_to, done_from;

    __device__ __forceinline__ DirectPlace(const HawserExchange& a, u32 epoch) {
        lane = threadIdx.x % LANES;
        has_peer = lane >= 1 && lane < a.ranks;
        if (!has_peer) return;
        u64 lines = a.flags_at + HAWSER_TILE_UNITS * HAWSER_UNIT_FLAGS, block = blockIdx.x;
        u64 line = lines + (block * 2 + epoch % 2) * PEERS * HAWSER_DIRECT_LINE;
        u64 done = lines + HAWSER_DIRECT_BLOCKS * 2 * PEERS * HAWSER_DIRECT_LINE + block * PEERS * 4;
        // `to` points at this rank's slots.
        u64 peer = a.to[lane] - a.rank * (u64)tile_slot(a.ranks);
        to = peer + line + a.rank * HAWSER_DIRECT_LINE;
        from = a.mine + line + rank_of(a, lane) * HAWSER_DIRECT_LINE;
        done_to = peer + done + a.rank * 4;
        done_from = a.mine + done + rank_of(a, lane) * 4;
    }
};

// An address of a buffer of this rank as a peer finds it: in another process that is elsewhere.
__device__ __forceinline__ u64 as_seen(u64 address, u64 seen, u32 peer) {
    return seen == 0 ? address : address + load_part<u64>(seen + peer * 8);
}

// Whether the peer's line, as read, says that it comes.
__device__ __forceinline__ bool has_come(u64 line, u32 epoch) { return (u32)line == epoch && line >> 32 != LINE_WITHDRAWN; }

// Tells all peers where this rank's buffers are and waits until all have told. The first warp calls it. Each look is at all lines
// again: one that was there may be withdrawn while another peer is waited for, and its buffers are then soon gone.
__device__ __forceinline__ Meeting meet(const HawserExchange& a, Direct& direct, const DirectPlace& place, u32 epoch) {
    bool ready = (a.direct & HAWSER_DIRECT_READY) && (a.form & HAWSER_ALIGNED);
    if (place.has_peer) {
        u32 peer = rank_of(a, place.lane);
        store_relaxed_sys(place.to, as_seen(a.src[place.lane], a.src_seen, peer));
        store_relaxed_sys(place.to + 8, as_seen(a.dst[peer], a.dst_seen, peer));
        fence_acq_rel_sys();
        store_relaxed_sys(place.to + 16, (u64)(ready ? LINE_OPEN : LINE_CLOSED) << 32 | epoch);
    }
    u64 since = 0, seen = 0;
    bool there = !place.has_peer, stop = false;
    for (u32 polls = 1; !stop; polls++) {
        if (place.has_peer) {
            seen = load_acquire_sys(place.from + 16);
            there = has_come(seen, epoch);
        }
        if (__all_sync(WHOLE_WARP, there)) break;
        if (polls % LOOK == 0) stop = !there && stop_waiting(a, 0, rank_of(a, place.lane), since);
        stop = __any_sync(WHOLE_WARP, stop);
    }
    if (stop) {
        if (place.has_peer) store_relaxed_sys(place.to + 16, (u64)LINE_WITHDRAWN << 32 | epoch);
        return Meeting::Lost;
    }
    if (place.has_peer) {
        direct.read[place.lane] = load_part<u64>(place.from);
        direct.write[place.lane] = load_part<u64>(place.from + 8);
    }
    bool open = place.has_peer ? seen >> 32 == LINE_OPEN : ready;
    return __all_sync(WHOLE_WARP, open) ? Meeting::Open : Meeting::Closed;
}

// Whether all peers' lines are there. The first warp calls it.
__device__ __forceinline__ bool all_have_come(const DirectPlace& place, u32 epoch) {
    bool there = !place.has_peer || has_come(load_acquire_sys(place.from + 16), epoch);
    return __all_sync(WHOLE_WARP, there);
}

// Waits until all peers are done with this rank's buffers, or for so long after giving up. The first warp calls it.
__device__ __forceinline__ void await_done(const HawserExchange& a, const DirectPlace& place, u32 epoch, u64 patience) {
    u64 since = 0, stopped = 0;
    bool there = !place.has_peer;
    for (u32 polls = 1;; polls++) {
        if (!there) there = (i32)(load_acquire_sys_u32(place.done_from) - epoch) >= 0;
        if (__all_sync(WHOLE_WARP, there)) break;
        if (polls % LOOK != 0) continue;
        if (!there && stopped == 0 && stop_waiting(a, 1, rank_of(a, place.lane), since)) stopped = now_ns();
        bool leave = stopped != 0 && now_ns() - stopped > patience;
        if (__any_sync(WHOLE_WARP, leave)) break;
    }
    __syncwarp();
}

__device__ __forceinline__ DirectJob& add_job(Direct& direct, u32& jobs, u64 len) {
    DirectJob& job = direct.job[jobs++];
    job.len = len & ~15ull, job.end = (u32)(len % 16);
    job.n_from = job.n_to = 0;
    return job;
}
__device__ __forceinline__ void add_copy(Direct& direct, u32& jobs, u64 from, u64 to, u64 len) {
    DirectJob& job = add_job(direct, jobs, len);
    job.from[job.n_from++] = from, job.to[job.n_to++] = to;
    job.n_now = job.n_to;
}

// Operands of this rank's part, and where their value goes.
__device__ __forceinline__ void list_fold(const HawserExchange& a, Direct& direct, u32& jobs) {
    u32 rank = a.rank, mask = operands(a);
    if (mask == 0) return;
    DirectJob& job = add_job(direct, jobs, a.len[rank]);
    for (u32 p = 0; p < a.ranks; p++)
        if (in(mask, p)) job.from[job.n_from++] = p == rank ? a.src[0] : direct.read[k_of(a, p)];
    if (a.dst[rank] != 0 && !in(a.keep, rank)) job.to[job.n_to++] = a.dst[rank];
    u32 own = job.n_to;
    for (u32 k = 1; (a.form & HAWSER_SECOND) && k < a.ranks; k++)
        if (in(a.send2, k)) job.to[job.n_to++] = direct.write[k];
    job.n_now = own != 0 && gridDim.x >= DIRECT_PASSERS ? own : job.n_to;
    if (job.n_to == 0) jobs--;
}

// What there is to do on this rank. One thread calls it.
__device__ __noinline__ void list_jobs(const HawserExchange& a, Direct& direct) {
    u32 jobs = 0;
    if (a.form & HAWSER_FOLD) {
        list_fold(a, direct, jobs);
    } else if (a.direct & HAWSER_DIRECT_PULL) {
        for (u32 k = 1; k < a.ranks; k++)
            if (in(a.recv1, rank_of(a, k))) add_copy(direct, jobs, direct.read[k], a.dst[rank_of(a, k)], a.len[a.rank]);
    } else {
        for (u32 k = 1; k < a.ranks; k++) {
            if (!in(a.send1, k)) continue;
            bool more = (a.form & HAWSER_SAME) && jobs != 0;
            if (more) direct.job[0].to[direct.job[0].n_to++] = direct.write[k];
            else add_copy(direct, jobs, a.src[k], direct.write[k], a.src_len[k]);
        }
    }
    direct.jobs = jobs;
    for (u32 k = 0; k < a.ranks; k++)
        if (in(a.keep, rank_of(a, k))) add_copy(direct, jobs, a.src[k], a.dst[rank_of(a, k)], a.src_len[k]);
    direct.kept = jobs - direct.jobs;
}

} // namespace hawser

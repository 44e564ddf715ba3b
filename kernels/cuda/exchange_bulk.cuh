// SymBulk: the ranks of one process move user data straight between their buffers, by bulk copies through shared memory. Few
// blocks fill the links: one thread loads, one stores, the others combine. For large sizes.
//
// Each block of a rank tells the same block of all others where they may read and write (a **line**), then all of them do their
// share of the tiles, and none leaves before all others are done with its buffers. If some rank's buffers cannot be reached by
// the others, all ranks see that in the lines and take the way of SymSimple.
#pragma once

#include "bulk.cuh"
#include "exchange.cuh"

namespace hawser {

constexpr u32 BULK_STAGES = 6;
constexpr u32 BULK_STAGE = HAWSER_BULK_SHARED / BULK_STAGES;
constexpr u32 BULK_JOBS = PEERS;
// Warps: the last two have one thread each at work.
constexpr u32 BULK_LOADS = 15, BULK_STORES = 14, BULK_WORKERS = 14;
constexpr u32 BULK_COPIES = 4; // packs under way per thread that copies
// A rank that gives up: its peers may have begun with its buffers a moment ago, or are done in a while.
constexpr u64 BULK_BEGUN_NS = 50000000, BULK_DONE_NS = 1000000000;

// What a line says beside the epoch.
constexpr u32 LINE_CLOSED = 1; // buffers cannot be reached
constexpr u32 LINE_OPEN = 2;
constexpr u32 LINE_WITHDRAWN = 3; // the rank has given up

enum class Meeting : u32 { Lost, Closed, Open };

// Tiles of `tile` bytes, whose operands come from `from`, go to `to`. All are multiples of 16.
struct BulkJob {
    u64 from[PEERS], to[PEERS];
    u64 len;
    u32 n_from, n_to, tile, end, first; // end: bytes behind the last pack
};

struct Bulk {
    u64 full[BULK_STAGES], folded[BULK_STAGES], empty[BULK_STAGES];
    u64 read[PEERS], write[PEERS]; // by k: where rank + k lets this rank read and write
    Meeting meeting;
    u32 jobs;
    u64 steps;
    BulkJob job[BULK_JOBS];
};

// The tiles of a block, one after the other: every job's first, every job's second, and so on.
struct BulkWalk {
    u64 step = 0, at = 0;
    u32 job = 0, size = 0, stage = 0, phase = 0;
    bool started = false;

    __device__ __forceinline__ bool next(const Bulk& bulk) {
        if (started) {
            job++;
            if (++stage == BULK_STAGES) stage = 0, phase ^= 1;
        }
        started = true;
        for (;; job++) {
            if (job >= bulk.jobs) job = 0, step++;
            if (step >= bulk.steps) return false;
            const BulkJob& j = bulk.job[job];
            at = (step * gridDim.x + blockIdx.x) * j.tile;
            if (at >= j.len) continue;
            size = j.len - at < j.tile ? (u32)(j.len - at) : j.tile;
            return true;
        }
    }
};

// Where the lines and flags of this block lie in an area, and the block's counter.
struct BulkPlace {
    u32 lane;
    bool has_peer; // lane k: there is a peer number k
    u64 to, from;  // the line at rank + k, and from it
    u64 done_to, done_from;

    __device__ __forceinline__ BulkPlace(const HawserExchange& a, u32 epoch) {
        lane = threadIdx.x % LANES;
        has_peer = lane >= 1 && lane < a.ranks;
        if (!has_peer) return;
        u64 lines = a.flags_at + HAWSER_TILE_UNITS * HAWSER_UNIT_FLAGS, block = blockIdx.x;
        u64 line = lines + (block * 2 + epoch % 2) * PEERS * HAWSER_BULK_LINE;
        u64 done = lines + HAWSER_BULK_BLOCKS * 2 * PEERS * HAWSER_BULK_LINE + block * PEERS * 4;
        // `to` points at this rank's slots.
        u64 peer = a.to[lane] - a.rank * (u64)tile_slot(a.ranks);
        to = peer + line + a.rank * HAWSER_BULK_LINE;
        from = a.mine + line + rank_of(a, lane) * HAWSER_BULK_LINE;
        done_to = peer + done + a.rank * 4;
        done_from = a.mine + done + rank_of(a, lane) * 4;
    }
};

// Tells all peers where this rank's buffers are and waits until all have told. The first warp calls it.
__device__ __forceinline__ Meeting meet(const HawserExchange& a, Bulk& bulk, const BulkPlace& place, u32 epoch) {
    bool ready = (a.bulk & HAWSER_BULK_READY) && (a.form & HAWSER_ALIGNED);
    if (place.has_peer) {
        store_relaxed_sys(place.to, a.src[place.lane]);
        store_relaxed_sys(place.to + 8, a.dst[rank_of(a, place.lane)]);
        fence_acq_rel_sys();
        store_relaxed_sys(place.to + 16, (u64)(ready ? LINE_OPEN : LINE_CLOSED) << 32 | epoch);
    }
    u64 since = 0, seen = 0;
    bool there = !place.has_peer, stop = false;
    for (u32 polls = 1; !stop; polls++) {
        if (!there) {
            seen = load_acquire_sys(place.from + 16);
            there = (u32)seen == epoch && seen >> 32 != LINE_WITHDRAWN;
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
        bulk.read[place.lane] = load_part<u64>(place.from);
        bulk.write[place.lane] = load_part<u64>(place.from + 8);
    }
    bool open = place.has_peer ? seen >> 32 == LINE_OPEN : ready;
    return __all_sync(WHOLE_WARP, open) ? Meeting::Open : Meeting::Closed;
}

// Waits until all peers are done with this rank's buffers, or for so long after giving up. The first warp calls it.
__device__ __forceinline__ void await_done(const HawserExchange& a, const BulkPlace& place, u32 epoch, u64 patience) {
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

// What there is to copy, in tiles that let all operands fit a stage. One thread calls it.
template <class M>
__device__ __noinline__ void list_jobs(const HawserExchange& a, Bulk& bulk) {
    u32 jobs = 0, rank = a.rank;
    if (a.form & HAWSER_FOLD) {
        BulkJob& job = bulk.job[0];
        u32 from = 0, to = 0, mask = operands(a);
        job.first = 0;
        for (u32 p = 0; p < a.ranks; p++) {
            if (!in(mask, p)) continue;
            // Ranks begin with different peers.
            if (p <= rank) job.first = from;
            job.from[from++] = p == rank ? a.src[0] : bulk.read[p < rank ? p + a.ranks - rank : p - rank];
        }
        for (u32 k = 1; (a.form & HAWSER_SECOND) && k < a.ranks; k++)
            if (in(a.send2, k)) job.to[to++] = bulk.write[k];
        if (a.dst[rank] != 0 && !in(a.keep, rank)) job.to[to++] = a.dst[rank];
        job.n_from = from, job.n_to = to, job.len = a.len[rank];
        if (from != 0 && to != 0) jobs = 1;
    } else {
        bool same = a.form & HAWSER_SAME;
        for (u32 k = 1; k < a.ranks; k++) {
            if (!in(a.send1, k)) continue;
            BulkJob& job = bulk.job[jobs];
            bool is_new = !same || jobs == 0;
            if (is_new) job.from[0] = a.src[k], job.len = a.src_len[k], job.n_from = 1, job.n_to = 0, job.first = 0;
            if (same) bulk.job[0].to[bulk.job[0].n_to++] = bulk.write[k];
            else job.to[job.n_to++] = bulk.write[k];
            if (is_new) jobs++;
        }
    }
    bulk.jobs = jobs;
    bulk.steps = 0;
    for (u32 j = 0; j < jobs; j++) {
        BulkJob& job = bulk.job[j];
        job.end = (u32)(job.len % 16);
        job.len -= job.end;
        job.tile = BULK_STAGE / job.n_from & ~127u;
        u64 span = (u64)job.tile * gridDim.x, steps = (job.len + span - 1) / span;
        bulk.steps = steps > bulk.steps ? steps : bulk.steps;
    }
}

// The thread that loads.
__device__ __forceinline__ void load_tiles(Bulk& bulk, unsigned char* stages) {
    fence_bulk(); // what peers had stored before they told their addresses
    u32 used = 0;
    for (BulkWalk w; w.next(bulk);) {
        const BulkJob& job = bulk.job[w.job];
        if (used >= BULK_STAGES) wait_phase(&bulk.empty[w.stage], w.phase ^ 1);
        used++;
        arrive_and_expect(&bulk.full[w.stage], job.n_from * w.size);
        unsigned char* stage = stages + w.stage * BULK_STAGE;
        u32 o = job.first;
        for (u32 i = 0; i < job.n_from; i++) {
            load_bulk(stage + o * job.tile, job.from[o] + w.at, w.size, &bulk.full[w.stage]);
            o = o + 1 < job.n_from ? o + 1 : 0;
        }
    }
}

// The thread that stores. FOLDS: what workers have combined; two stages are then left to it, otherwise three.
template <bool FOLDS>
__device__ __forceinline__ void store_tiles(Bulk& bulk, unsigned char* stages) {
    constexpr u32 BEHIND = FOLDS ? 1 : 2;
    u32 stored = 0;
    for (BulkWalk w; w.next(bulk); stored++) {
        const BulkJob& job = bulk.job[w.job];
        wait_phase(FOLDS ? &bulk.folded[w.stage] : &bulk.full[w.stage], w.phase);
        for (u32 i = 0; i < job.n_to; i++) store_bulk(job.to[i] + w.at, stages + w.stage * BULK_STAGE, w.size);
        end_group();
        wait_until_read<BEHIND>();
        if (stored >= BEHIND) arrive(&bulk.empty[(w.stage + BULK_STAGES - BEHIND) % BULK_STAGES]);
    }
    wait_until_stored();
    fence_bulk();
}

// Workers: combine the operands of every tile, in the order of ranks, where the first one lies.
template <class M>
__device__ __forceinline__ void fold_tiles(const HawserExchange& a, const M& m, Bulk& bulk, unsigned char* stages) {
    bool scale = a.form & HAWSER_SCALE, divide = a.form & HAWSER_DIVIDE;
    for (BulkWalk w; w.next(bulk);) {
        const BulkJob& job = bulk.job[w.job];
        u32 n = job.n_from, tile = job.tile;
        wait_phase(&bulk.full[w.stage], w.phase);
        unsigned char* stage = stages + w.stage * BULK_STAGE;
        for (u32 at = threadIdx.x * 16; at < w.size; at += BULK_WORKERS * LANES * 16) {
            typename M::Value low, high;
#pragma unroll 1
            for (u32 group = 0; group < n; group += 2) {
                Pack v = *(const Pack*)(stage + group * tile + at), next;
                bool two = group + 1 < n;
                if (two) next = *(const Pack*)(stage + (group + 1) * tile + at);
                M::fold(low, m.value(v.x, scale), group == 0);
                M::fold(high, m.value(v.y, scale), group == 0);
                if (!two) break;
                M::fold(low, m.value(next.x, scale), false);
                M::fold(high, m.value(next.y, scale), false);
            }
            *(Pack*)(stage + at) = {m.piece(low, divide), m.piece(high, divide)};
        }
        fence_bulk_shared();
        __syncwarp();
        if (threadIdx.x % LANES == 0) arrive(&bulk.folded[w.stage]);
    }
}

// Workers: what stays on this rank.
__device__ __forceinline__ void copy_kept(const HawserExchange& a) {
    constexpr u32 B = BULK_COPIES, THREADS = BULK_WORKERS * LANES;
#pragma unroll 1
    for (u32 k = 0; k < a.ranks; k++) {
        u32 p = rank_of(a, k);
        if (!in(a.keep, p)) continue;
        u64 src = a.src[k], dst = a.dst[p], len = a.src_len[k] & ~15ull;
        u64 step = (u64)THREADS * 16;
#pragma unroll 1
        for (u64 base = (u64)blockIdx.x * B * step + threadIdx.x * 16; base < len; base += gridDim.x * B * step) {
            Pack v[B];
#pragma unroll
            for (u32 b = 0; b < B; b++)
                if (base + b * step < len) v[b] = load_pack(src + base + b * step);
#pragma unroll
            for (u32 b = 0; b < B; b++)
                if (base + b * step < len) store_pack(dst + base + b * step, v[b]);
        }
        if (blockIdx.x != 0 || threadIdx.x != 0) continue;
        for (u32 at = 0; at < a.src_len[k] % 16; at += 8) {
            i32 valid = (i32)(a.src_len[k] % 16 - at);
            store_piece<1>(dst + len + at, valid, load_piece<1>(src + len + at, valid));
        }
    }
}

// The bytes behind the last pack of every job. One thread of the grid calls it.
template <class M>
__device__ __noinline__ void move_ends(const HawserExchange& a, const M& m, const Bulk& bulk) {
    for (u32 j = 0; j < bulk.jobs; j++) {
        const BulkJob& job = bulk.job[j];
        for (u32 at = 0; at < job.end; at += 8) {
            i32 valid = (i32)(job.end - at);
            typename M::Value value;
            u64 v = 0;
            for (u32 o = 0; o < job.n_from; o++) {
                v = load_piece<M::SIZE>(job.from[o] + job.len + at, valid);
                if constexpr (M::OP != Op::Copy) M::fold(value, m.value(v, a.form & HAWSER_SCALE), o == 0);
            }
            if constexpr (M::OP != Op::Copy) v = m.piece(value, a.form & HAWSER_DIVIDE);
            for (u32 i = 0; i < job.n_to; i++) store_piece<M::SIZE>(job.to[i] + job.len + at, valid, v);
        }
    }
}

// The whole call by bulk copies. False: some rank's buffers cannot be reached, nothing has happened. All threads call it.
template <class M>
__device__ __noinline__ bool exchange_bulk(const HawserExchange& a) {
    extern __shared__ __align__(128) unsigned char stages[];
    __shared__ Bulk bulk;
    u64 counter = a.epochs + 4 * (u64)(HAWSER_TILE_UNITS + blockIdx.x);
    u32 epoch = load_relaxed_sys_u32(counter) + 1, warp = threadIdx.x / LANES;
    BulkPlace place(a, epoch);
    if (warp == 0) {
        Meeting meeting = meet(a, bulk, place, epoch);
        __syncwarp();
        if (place.lane == 0) {
            bulk.meeting = meeting;
            if (meeting == Meeting::Open) list_jobs<M>(a, bulk);
        }
    } else if (threadIdx.x == LANES) {
        for (u32 s = 0; s < BULK_STAGES; s++) {
            init_barrier(&bulk.full[s], 1);
            init_barrier(&bulk.folded[s], BULK_WORKERS);
            init_barrier(&bulk.empty[s], 1);
        }
        fence_bulk();
    }
    __syncthreads();
    if (threadIdx.x == 0) store_relaxed_sys_u32(counter, epoch);
    if (bulk.meeting == Meeting::Open) {
        constexpr bool SUMS = M::OP != Op::Copy;
        if (warp == BULK_LOADS) {
            if (place.lane == 0) load_tiles(bulk, stages);
        } else if (warp == BULK_STORES) {
            if (place.lane == 0) store_tiles<SUMS>(bulk, stages);
        } else {
            M m;
            m.divisor = a.divisor;
            m.load_factor(a.scalar, a.scalar_is_address != 0);
            if constexpr (SUMS) fold_tiles(a, m, bulk, stages);
            if (a.keep != 0) copy_kept(a);
            if (blockIdx.x == 0 && threadIdx.x == 0) move_ends(a, m, bulk);
        }
        __syncwarp();
    }
    __syncthreads();
    if (warp == 0 && bulk.meeting != Meeting::Closed) {
        bool good = bulk.meeting == Meeting::Open;
        if (good && place.has_peer) {
            fence_acq_rel_sys();
            store_relaxed_sys_u32(place.done_to, epoch);
        }
        await_done(a, place, epoch, good ? BULK_DONE_NS : BULK_BEGUN_NS);
    }
    return bulk.meeting != Meeting::Closed;
}

} // namespace hawser

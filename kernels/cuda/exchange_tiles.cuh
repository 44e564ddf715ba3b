// Simple: every warp moves tiles of plain data and then raises a flag at each peer. Warps need no barrier between them:
// while some wait for a fence or a flag, others move data. For medium and large sizes.
#pragma once

#include "exchange_direct.cuh"

namespace hawser {

// One warp's place in the exchanges, and its tile: bytes [at, at + size) of everything.
struct Tile {
    u32 lane, size;
    u64 at;
    u64 parity;     // bytes from slots of even epochs to those of odd ones
    u64 slots;      // offset of the warp's slots of even epochs
    u64 flag_to;    // lane k: where rank + k looks for the flag of this warp
    u64 flag_of;    // lane k: where rank + k raises its own
    bool has_peer;  // lane k: there is a peer number k

    __device__ __forceinline__ u64 slot(u32 epoch) const { return slots + epoch % 2 * parity; }

    // Tells all peers that what the warp has stored is there and what it has read may be overwritten.
    __device__ __forceinline__ void publish(u32 epoch) const {
        __syncwarp();
        if (has_peer) {
            fence_acq_rel_sys();
            store_relaxed_sys_u32(flag_to, epoch);
        }
    }
    // Waits for the ranks of `mask`. False: given up.
    __device__ __forceinline__ bool await(const HawserExchange& a, u32 mask, u32 epoch, u32 number) const {
        u64 since = 0;
        bool there = !has_peer || !in(mask, rank_of(a, lane));
        for (u32 polls = 1;; polls++) {
            if (!there) there = (i32)(load_acquire_sys_u32(flag_of) - epoch) >= 0;
            if (__all_sync(WHOLE_WARP, there)) break;
            if (polls % LOOK == 0) {
                bool stop = !there && stop_waiting(a, number, rank_of(a, lane), since);
                if (__any_sync(WHOLE_WARP, stop)) return false;
            }
        }
        __syncwarp(); // what a lane has acquired is there for all: votes do not say so
        return true;
    }
};

// 16 bytes of user data at `at` of a part of `len` bytes. WHOLE: they exist and are aligned.
template <class M, bool WHOLE>
__device__ __forceinline__ Pack get_pack(u64 address, u64 len, u64 at) {
    if constexpr (WHOLE) return load_pack(address + at);
    i32 valid = rest(len, at, 16);
    if ((address + at) % 16 == 0 && valid == 16) return load_pack(address + at);
    return {load_piece<M::SIZE>(address + at, valid), load_piece<M::SIZE>(address + at + 8, valid - 8)};
}
template <class M, bool WHOLE>
__device__ __forceinline__ void put_pack(u64 address, u64 len, u64 at, Pack v) {
    if constexpr (WHOLE) return store_pack(address + at, v);
    i32 valid = rest(len, at, 16);
    if ((address + at) % 16 == 0 && valid == 16) return store_pack(address + at, v);
    store_piece<M::SIZE>(address + at, valid, v.x);
    store_piece<M::SIZE>(address + at + 8, valid - 8, v.y);
}

// Moves user data of the tile to slots of peers and tells them; what only stays on this rank is copied while flags are under way.
template <class M, bool WHOLE>
__device__ __forceinline__ void push_tile(const HawserExchange& a, const M& m, const Tile& t, u32 epoch) {
    constexpr u32 B = TILE_COPIES;
    bool same = a.form & HAWSER_SAME;
    u32 last = same ? 0 : a.ranks;
    // Items are (peer, batch of packs): the peer changes fastest where a tile is one batch.
#pragma unroll 1
    for (u32 i = same ? 0 : 1; i <= last; i++) {
        u32 k = i == a.ranks ? 0 : i, p = rank_of(a, k);
        if (i == a.ranks) t.publish(epoch);
        bool keep = in(a.keep, p), send = same ? a.send1 != 0 : in(a.send1, k);
        if (!keep && !send) continue;
        u64 src = a.src[k], len = a.src_len[k];
        u32 end = WHOLE ? t.size : (u32)rest(len, t.at, (i32)t.size);
#pragma unroll 1
        for (u32 base = t.lane * 16; base < end; base += B * LANES * 16) {
            Pack v[B];
#pragma unroll
            for (u32 b = 0; b < B; b++)
                if (base + b * LANES * 16 < end) v[b] = get_pack<M, WHOLE>(src, len, t.at + base + b * LANES * 16);
            if (keep) {
#pragma unroll
                for (u32 b = 0; b < B; b++)
                    if (base + b * LANES * 16 < end) put_pack<M, WHOLE>(a.dst[p], a.len[p], t.at + base + b * LANES * 16, v[b]);
            }
            if (!send) continue;
#pragma unroll
            for (u32 b = 0; b < B; b++) v[b] = prepared(m, v[b], a.form);
            u64 offset = t.slot(epoch) + base;
#pragma unroll 1
            for (u32 d = same ? 1 : k; d < (same ? a.ranks : k + 1); d++) {
                if (!in(a.send1, d)) continue;
                u64 to = a.to[d] + offset;
#pragma unroll
                for (u32 b = 0; b < B; b++)
                    if (base + b * LANES * 16 < end) store_pack(to + b * LANES * 16, v[b]);
            }
        }
    }
    if (same) t.publish(epoch);
}

// Moves what came from the ranks of `mask` to its places; `own_len`: all of it has the length of this rank's part.
template <class M, bool WHOLE>
__device__ __forceinline__ void pull_tile(const HawserExchange& a, const Tile& t, u32 mask, bool own_len, u32 epoch) {
    constexpr u32 B = TILE_COPIES;
#pragma unroll 1
    for (u32 p = 0; p < a.ranks; p++) {
        if (!in(mask, p)) continue;
        u64 len = own_len ? a.len[a.rank] : a.len[p], dst = a.dst[p], from = a.mine + t.slot(epoch) + p * (u64)tile_slot(a.ranks);
        u32 end = WHOLE ? t.size : (u32)rest(len, t.at, (i32)t.size);
#pragma unroll 1
        for (u32 base = t.lane * 16; base < end; base += B * LANES * 16) {
            Pack v[B];
#pragma unroll
            for (u32 b = 0; b < B; b++)
                if (base + b * LANES * 16 < end) v[b] = load_pack(from + base + b * LANES * 16);
#pragma unroll
            for (u32 b = 0; b < B; b++)
                if (base + b * LANES * 16 < end) put_pack<M, WHOLE>(dst, len, t.at + base + b * LANES * 16, v[b]);
        }
    }
}

// Sends what was combined to the ranks of the second exchange, if there is one.
template <u32 B>
__device__ __forceinline__ void send_folded(const HawserExchange& a, const Pack (&last)[B], u64 offset, u32 base, u32 end) {
#pragma unroll 1
    for (u32 k = 1; (a.form & HAWSER_SECOND) && k < a.ranks; k++) {
        if (!in(a.send2, k)) continue;
        u64 to = a.to[k] + offset;
#pragma unroll
        for (u32 b = 0; b < B; b++)
            if (base + b * LANES * 16 < end) store_pack(to + b * LANES * 16, last[b]);
    }
}

// Keeps what was combined, and sends it on.
template <class M, bool WHOLE, u32 B>
__device__ __forceinline__ void give_folded(const HawserExchange& a, const Pack (&value)[B], const Tile& t, u32 epoch, u32 base, u32 end) {
    u64 len = a.len[a.rank], dst = in(a.keep, a.rank) ? 0 : a.dst[a.rank];
    send_folded(a, value, t.slot(epoch + 1) + base, base, end);
    if (dst == 0) return;
#pragma unroll
    for (u32 b = 0; b < B; b++)
        if (base + b * LANES * 16 < end) put_pack<M, WHOLE>(dst, len, t.at + base + b * LANES * 16, value[b]);
}

// Combines NEST_OPERANDS operands from rank `first` on, as far as there are so many ranks, of the packs from `base` on.
template <class M, bool WHOLE>
__device__ __forceinline__ auto nest_some(const HawserExchange& a, const M& m, const Tile& t, u64 slots, u32 first, u32 base, u32 end) {
    constexpr u32 B = NEST_PACKS<M>, O = NEST_OPERANDS;
    Pack v[O][B];
#pragma unroll
    for (u32 o = 0; o < O; o++) {
        u32 p = first + o;
        if (p >= a.ranks) continue;
#pragma unroll
        for (u32 b = 0; b < B; b++) {
            u32 at = base + b * LANES * 16;
            if (at >= end) continue;
            u64 slot = slots + p * (u64)tile_slot(a.ranks);
            v[o][b] = p == a.rank ? get_pack<M, WHOLE>(a.src[0], a.len[p], t.at + at) : load_pack(slot + at);
        }
    }
    auto operand = [&](auto o) {
        return PackValues<M, B>::of(m, v[o.value], first + o.value == a.rank && (a.form & HAWSER_SCALE));
    };
    return nested<0, O>(a.ranks - first, operand);
}

// Combines the operands of the first exchange, those of all ranks, along the tree, keeps the value and sends it on. In
// kernels for this order alone: beside fold_tile it would take registers that that one needs.
template <class M, bool WHOLE>
__device__ __forceinline__ void nest_tile(const HawserExchange& a, const M& m, const Tile& t, u32 epoch) {
    constexpr u32 B = NEST_PACKS<M>, O = NEST_OPERANDS;
    static_assert(2 * O == PEERS, "the tree of each half, and their node");
    u32 end = WHOLE ? t.size : (u32)rest(a.len[a.rank], t.at, (i32)t.size);
    u64 slots = a.mine + t.slot(epoch);
#pragma unroll 1
    for (u32 base = t.lane * 16; base < end; base += B * LANES * 16) {
        PackValues<M, B> values;
#pragma unroll 1
        for (u32 first = 0; first < a.ranks; first += O) {
            auto some = nest_some<M, WHOLE>(a, m, t, slots, first, base, end);
            if (first == 0) values = some;
            else values.join(some);
        }
        Pack value[B];
#pragma unroll
        for (u32 b = 0; b < B; b++) value[b] = values.pack(m, b);
        give_folded<M, WHOLE>(a, value, t, epoch, base, end);
    }
}

// Combines the operands of the first exchange in the order of ranks, keeps the value and sends it on.
template <class M, bool WHOLE>
__device__ __forceinline__ void fold_tile(const HawserExchange& a, const M& m, const Tile& t, u32 epoch) {
    constexpr u32 B = TILE_FOLDS<M>, O = TILE_OPERANDS<M>;
    u32 rank = a.rank, mask = operands(a), slot = tile_slot(a.ranks);
    if (mask == 0) return;
    if constexpr (M::NESTED) return nest_tile<M, WHOLE>(a, m, t, epoch);
    u64 len = a.len[rank], slots = a.mine + t.slot(epoch);
    u32 end = WHOLE ? t.size : (u32)rest(len, t.at, (i32)t.size);
    bool divide = a.form & HAWSER_DIVIDE;
#pragma unroll 1
    for (u32 base = t.lane * 16; base < end; base += B * LANES * 16) {
        typename M::Value low[B], high[B];
        Pack last[B];
        bool first = true;
#pragma unroll 1
        for (u32 group = 0; group < a.ranks; group += O) {
            Pack v[O][B];
#pragma unroll
            for (u32 o = 0; o < O; o++) {
                u32 p = group + o;
                if (!in(mask, p)) continue;
#pragma unroll
                for (u32 b = 0; b < B; b++) {
                    u32 at = base + b * LANES * 16;
                    if (at >= end) continue;
                    v[o][b] = p == rank ? get_pack<M, WHOLE>(a.src[0], len, t.at + at) : load_pack(slots + p * (u64)slot + at);
                }
            }
#pragma unroll
            for (u32 o = 0; o < O; o++) {
                u32 p = group + o;
                if (!in(mask, p)) continue;
                bool scale = p == rank && (a.form & HAWSER_SCALE);
#pragma unroll
                for (u32 b = 0; b < B; b++) {
                    last[b] = v[o][b];
                    if constexpr (M::OP != Op::Copy) {
                        M::fold(low[b], m.value(last[b].x, scale), first);
                        M::fold(high[b], m.value(last[b].y, scale), first);
                    }
                }
                first = false;
            }
        }
        if constexpr (M::OP != Op::Copy) {
#pragma unroll
            for (u32 b = 0; b < B; b++) last[b] = {m.piece(low[b], divide), m.piece(high[b], divide)};
        }
        give_folded<M, WHOLE>(a, last, t, epoch, base, end);
    }
}

template <class M, bool WHOLE>
__device__ __forceinline__ bool exchange_tile(const HawserExchange& a, const M& m, const Tile& t, Count& count, u32 number) {
    u32 epoch = count.epoch + 1;
    if (count.owed != 0 && !t.await(a, count.owed, epoch - 1, number)) return false;
    count.owed = all_p(a) & ~awaited(a);
    count.epoch += a.form & HAWSER_SECOND ? 2 : 1;
    push_tile<M, WHOLE>(a, m, t, epoch);
    if (!t.await(a, awaited(a), epoch, number)) return false;
    if (!(a.form & HAWSER_FOLD)) {
        pull_tile<M, WHOLE>(a, t, a.recv1, true, epoch);
        return true;
    }
    fold_tile<M, WHOLE>(a, m, t, epoch);
    if (!(a.form & HAWSER_SECOND)) return true;
    t.publish(epoch + 1);
    if (!t.await(a, all_p(a), epoch + 1, number + 1)) return false;
    pull_tile<M, WHOLE>(a, t, a.recv2, false, epoch + 1);
    return true;
}

// The place of a warp.
__device__ __forceinline__ Tile own_tile(const HawserExchange& a, u32 unit) {
    u64 parity = (u64)a.ranks * tile_slot(a.ranks), flags = a.flags_at + (u64)unit * HAWSER_UNIT_FLAGS;
    Tile t{threadIdx.x % LANES, a.tile, 0, parity, unit * 2 * parity, 0, 0, false};
    t.has_peer = t.lane >= 1 && t.lane < a.ranks;
    if (t.has_peer) {
        // `to` points at this rank's slots.
        t.flag_to = a.to[t.lane] - a.rank * (u64)tile_slot(a.ranks) + flags + 4 * a.rank;
        t.flag_of = a.mine + flags + 4 * rank_of(a, t.lane);
    }
    return t;
}

template <class M>
__device__ __forceinline__ void exchange_tiles(const HawserExchange& a) {
    follow_previous_grid();
    if (threadIdx.x == 0) block_lost = 0;
    __syncthreads();
    if (a.direct != 0 && exchange_direct<M>(a)) return end_block(a.done);
    u32 warps = blockDim.x / LANES, unit = blockIdx.x * warps + threadIdx.x / LANES;
    Count count(a.epochs, unit);
    u32 number = 0;
    M m;
    m.divisor = a.divisor;
    m.load_factor(a.scalar, a.scalar_is_address != 0);
    Tile t = own_tile(a, unit);
    for (t.at = (u64)unit * a.tile; t.at < a.most; t.at += (u64)gridDim.x * warps * a.tile) {
        bool whole = (a.form & HAWSER_ALIGNED) && t.at + a.tile <= a.least;
        bool good = whole ? exchange_tile<M, true>(a, m, t, count, number) : exchange_tile<M, false>(a, m, t, count, number);
        if (!good) break;
        number += 2;
    }
    __syncwarp();
    if (t.lane == 0) count.store();
    end_block(a.done);
}

} // namespace hawser

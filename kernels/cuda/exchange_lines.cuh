// LL128: lines of 128 bytes carry 120 bytes of data and the epoch. Eight lanes store a line with one instruction and load
// it with one; that a line lands whole is a property of NVLink. A warp owns the same lines of every slot and needs nobody
// else of its block. Between small sizes, where half of the wire may be flags, and large ones, where a fence costs nothing.
#pragma once

#include "exchange.cuh"

namespace hawser {

constexpr u32 ROW_DATA = 480; // four lines: what a warp stores with one instruction
constexpr u32 ROW_BYTES = 512;
constexpr int ROWS_AHEAD = 4; // user loads under way per lane

// A lane's sixteen bytes of a row: which bytes of the data, and whether it is the one with the flag.
struct LinePart {
    u32 place = threadIdx.x % LANES / 8 * 120 + threadIdx.x % 8 * 16;
    bool flag = threadIdx.x % 8 == 7;

    // EVEN: pieces of 8 bytes are aligned and there or not, so that no lane takes a way of its own.
    template <class M, bool EVEN>
    __device__ __forceinline__ Pack get(u64 address, u64 len, u64 row_at) const {
        u64 at = row_at + place;
        bool x = !EVEN || at < len, y = !flag && (!EVEN || at + 8 < len);
        return {x ? get_piece<M, EVEN>(address, len, at) : 0, y ? get_piece<M, EVEN>(address, len, at + 8) : 0};
    }
    template <class M, bool EVEN>
    __device__ __forceinline__ void put(u64 address, u64 len, u64 row_at, Pack v) const {
        u64 at = row_at + place;
        if (!EVEN || at < len) put_piece<M, EVEN>(address, len, at, v.x);
        if (!flag && (!EVEN || at + 8 < len)) put_piece<M, EVEN>(address, len, at + 8, v.y);
    }
    // Stores a line with one instruction.
    __device__ __forceinline__ void send(u64 address, Pack v, u32 epoch) const {
        __syncwarp();
        store_line_part(address, {v.x, flag ? (u64)epoch : v.y});
    }
    // Stores what a lane has of a line in `turn` 0 or 1: the flag in turn 1. In between is a fence.
    __device__ __forceinline__ void send_in(u32 turn, u64 address, Pack v, u32 epoch) const {
        if (turn == 1 && flag) store_line_part_alone(address, {v.x, (u64)epoch});
        if (turn == 0 && !flag) store_pack(address, v);
    }
};

// Between the turns of lines that are not stored with one instruction. Lanes that read odd ends of user data take ways of
// their own, and nothing brings them together for sure: __syncwarp only lets them wait for each other.
__device__ __forceinline__ void next_turn() {
    __syncwarp();
    fence_acq_rel_sys();
    __syncwarp();
}

// Waits for a row from all ranks of `mask`; `slots` is the row's address of rank 0. False: given up.
__device__ __forceinline__ bool receive_row(const HawserExchange& a, const LinePart& part, u64 slots, u32 mask, u32 epoch,
                                            u32 number, Pack (&v)[PEERS]) {
    u64 since = 0;
    for (u32 polls = 1;; polls++) {
        __syncwarp();
#pragma unroll
        for (u32 p = 0; p < PEERS; p++)
            if (in(mask, p)) v[p] = load_line_part(slots + p * HAWSER_LINE_SLOT);
        u32 missing = 0;
#pragma unroll
        for (u32 p = 0; p < PEERS; p++)
            if (in(mask, p) && v[p].y != epoch) missing |= 1u << p;
        if (!part.flag) missing = 0;
        if (!__any_sync(WHOLE_WARP, missing != 0)) return true;
        if (polls % LOOK == 0) {
            bool stop = missing != 0 && stop_waiting(a, number, __ffs(missing) - 1, since);
            if (__any_sync(WHOLE_WARP, stop)) return false;
        }
    }
}

// Waits for the flags of a row from all ranks of `mask`, in lanes that may have parted; reads no data. False: given up.
__device__ __forceinline__ bool await_flags(const HawserExchange& a, const LinePart& part, u64 slots, u32 mask, u32 epoch,
                                            u32 number) {
    u64 since = 0;
    for (u32 polls = 1;; polls++) {
        u32 missing = 0;
#pragma unroll
        for (u32 p = 0; p < PEERS; p++)
            if (in(mask, p) && part.flag && load_line_part_alone(slots + p * HAWSER_LINE_SLOT).y != epoch) missing |= 1u << p;
        if (!__any_sync(WHOLE_WARP, missing != 0)) return true;
        if (polls % LOOK == 0) {
            bool stop = missing != 0 && stop_waiting(a, number, __ffs(missing) - 1, since);
            if (__any_sync(WHOLE_WARP, stop)) return false;
        }
    }
}

// The same for a row whose data are wanted: flags first, then, behind a fence, the data.
__device__ __forceinline__ bool receive_row_in_turns(const HawserExchange& a, const LinePart& part, u64 slots, u32 mask, u32 epoch,
                                                     u32 number, Pack (&v)[PEERS]) {
    if (!await_flags(a, part, slots, mask, epoch, number)) return false;
    next_turn();
#pragma unroll
    for (u32 p = 0; p < PEERS; p++)
        if (in(mask, p)) v[p] = load_line_part_alone(slots + p * HAWSER_LINE_SLOT);
    return true;
}

template <bool EVEN>
__device__ __forceinline__ bool receive(const HawserExchange& a, const LinePart& part, u64 slots, u32 mask, u32 epoch,
                                        u32 number, Pack (&v)[PEERS]) {
    if constexpr (EVEN) return receive_row(a, part, slots, mask, epoch, number, v);
    else return receive_row_in_turns(a, part, slots, mask, epoch, number, v);
}

// A line without data for every peer outside `mask`.
__device__ __forceinline__ void send_bare_lines(const HawserExchange& a, const LinePart& part, u32 mask, u64 offset, u32 epoch) {
    u32 others = all_k(a) & ~mask;
    __syncwarp(); // a bare flag speaks for the whole warp: all lanes have read what came before
#pragma unroll 1
    for (u32 k = 1; others != 0 && k < a.ranks; k++)
        if (in(others, k)) part.send_in(1, a.to[k] + offset, {0, 0}, epoch);
}

// Reads rows [0, rows) of every part from `at` on, and sends them: whole, or what belongs to `turn`.
template <class M, bool EVEN>
__device__ __forceinline__ void send_rows(const HawserExchange& a, const M& m, const LinePart& part, u64 at, u64 offset, u32 rows,
                                          u32 epoch, u32 turn) {
    if (!EVEN && part.flag != (turn == 1)) return;
    if (a.send1 == 0 && a.keep == 0) return; // there may be no input at all
    bool same = a.form & HAWSER_SAME;
    u32 first = same || in(a.keep, a.rank) ? 0 : 1, last = same ? 1 : a.ranks;
#pragma unroll 1
    for (u32 k = first; k < last; k++) {
        u32 p = rank_of(a, k);
        bool keep = in(a.keep, p), send = in(a.send1, k) || same;
        if (!keep && !send) continue;
        u64 src = a.src[k], len = a.src_len[k];
#pragma unroll 1
        for (u32 row = 0; row < rows; row += ROWS_AHEAD) {
            Pack v[ROWS_AHEAD];
#pragma unroll
            for (u32 b = 0; b < ROWS_AHEAD; b++)
                if (row + b < rows) v[b] = part.template get<M, EVEN>(src, len, at + (row + b) * ROW_DATA);
#pragma unroll
            for (u32 b = 0; b < ROWS_AHEAD; b++) {
                if (row + b >= rows) break;
                if (keep) part.template put<M, EVEN>(a.dst[p], a.len[p], at + (row + b) * ROW_DATA, v[b]);
                Pack out = prepared(m, v[b], a.form);
                u64 to = offset + (row + b) * ROW_BYTES;
                if (!same) {
                    if (send && EVEN) part.send(a.to[k] + to, out, epoch);
                    else if (send) part.send_in(turn, a.to[k] + to, out, epoch);
                    continue;
                }
#pragma unroll
                for (u32 d = 1; d < PEERS; d++)
                    if (in(a.send1, d) && EVEN) part.send(a.to[d] + to, out, epoch);
                    else if (in(a.send1, d)) part.send_in(turn, a.to[d] + to, out, epoch);
            }
        }
    }
}

// Combines a row of all ranks along the tree.
template <class M>
__device__ __forceinline__ Pack nest_row(const HawserExchange& a, const M& m, Pack own, const Pack (&v)[PEERS]) {
    auto operand = [&](auto p) {
        bool mine = p.value == a.rank;
        return PackValues<M, 1>::of(m, {mine ? own : v[p.value]}, mine && (a.form & HAWSER_SCALE));
    };
    return nested<0, PEERS>(a.ranks, operand).pack(m, 0);
}

// Combines a row in the order of ranks; a single operand keeps its bits.
template <class M>
__device__ __forceinline__ Pack fold_row(const HawserExchange& a, const M& m, Pack own, const Pack (&v)[PEERS]) {
    if constexpr (M::IS_ORDERED)
        if (a.order == HAWSER_NESTED) return nest_row(a, m, own, v);
    u32 mask = operands(a);
    typename M::Value low, high;
    Pack last = {0, 0};
    bool first = true;
#pragma unroll
    for (u32 p = 0; p < PEERS; p++) {
        if (!in(mask, p)) continue;
        bool scale = p == a.rank && (a.form & HAWSER_SCALE);
        last = p == a.rank ? own : v[p];
        if constexpr (M::OP != Op::Copy) {
            M::fold(low, m.value(last.x, scale), first);
            M::fold(high, m.value(last.y, scale), first);
        }
        first = false;
    }
    bool divide = a.form & HAWSER_DIVIDE;
    if constexpr (M::OP != Op::Copy) return {m.piece(low, divide), m.piece(high, divide)};
    return last;
}

// Sends a row of the value.
template <bool EVEN>
__device__ __forceinline__ void send_row(const HawserExchange& a, const LinePart& part, u64 offset, Pack value, u32 epoch) {
#pragma unroll
    for (u32 turn = 0; turn < (EVEN ? 1 : 2); turn++) {
        if (turn == 1) next_turn();
#pragma unroll
        for (u32 k = 1; k < PEERS; k++) {
            if (!in(a.send2, k)) continue;
            if constexpr (EVEN) part.send(a.to[k] + offset, value, epoch);
            else part.send_in(turn, a.to[k] + offset, value, epoch);
        }
    }
}

// One or two exchanges of the warp's tile at `at`. `offset`: of its lines of even epochs.
template <class M, bool EVEN>
__device__ __forceinline__ bool exchange_rows(const HawserExchange& a, const M& m, u64 at, u64 offset, Count& count, u32 number) {
    LinePart part;
    u32 epoch = count.epoch + 1;
    u32 rank = a.rank, form = a.form, rows = (u32)(rest(a.most, at, (i32)a.tile) + ROW_DATA - 1) / ROW_DATA;
    u64 parity = a.ranks * HAWSER_LINE_SLOT, here = offset + epoch % 2 * parity, there = offset + (epoch + 1) % 2 * parity;
    bool fold = form & HAWSER_FOLD, second = form & HAWSER_SECOND;
    Pack v[PEERS], next = {0, 0};
    // A bare line lies in the first row. No fence: nothing is read behind these flags, what is sent depends on them.
    if (count.owed != 0 && !await_flags(a, part, a.mine + there, count.owed, epoch - 1, number)) return false;
    count.owed = all_p(a) & ~awaited(a);
    count.epoch += second ? 2 : 1;
    send_bare_lines(a, part, a.send1, here, epoch);
    send_rows<M, EVEN>(a, m, part, at, here, rows, epoch, 0);
    if constexpr (!EVEN) {
        next_turn();
        send_rows<M, EVEN>(a, m, part, at, here, rows, epoch, 1);
    }
    u64 dst = in(a.keep, rank) ? 0 : a.dst[rank], len = a.len[rank];
    if (form & HAWSER_OWN) next = part.template get<M, EVEN>(a.src[0], a.src_len[0], at);
#pragma unroll 1
    for (u32 row = 0; row < rows; row++) {
        u64 row_at = at + row * ROW_DATA;
        u32 mask = row == 0 ? awaited(a) : a.recv1;
        Pack own = next; // one row ahead, under way while we wait
        if ((form & HAWSER_OWN) && row + 1 < rows) next = part.template get<M, EVEN>(a.src[0], a.src_len[0], row_at + ROW_DATA);
        if (!receive<EVEN>(a, part, a.mine + here + row * ROW_BYTES, mask, epoch, number, v)) return false;
        if (!fold) {
#pragma unroll
            for (u32 p = 0; p < PEERS; p++)
                if (in(a.recv1, p)) part.template put<M, EVEN>(a.dst[p], len, row_at, v[p]);
            continue;
        }
        Pack value = fold_row(a, m, own, v);
        if (second) send_row<EVEN>(a, part, there + row * ROW_BYTES, value, epoch + 1);
        if (dst != 0) part.template put<M, EVEN>(dst, len, row_at, value);
    }
    if (!second) return true;
    send_bare_lines(a, part, a.send2, there, epoch + 1);
#pragma unroll 1
    for (u32 row = 0; row < rows; row++) {
        u32 mask = row == 0 ? all_p(a) : a.recv2;
        if (!receive<EVEN>(a, part, a.mine + there + row * ROW_BYTES, mask, epoch + 1, number + 1, v)) return false;
#pragma unroll
        for (u32 p = 0; p < PEERS; p++)
            if (in(a.recv2, p)) part.template put<M, EVEN>(a.dst[p], a.len[p], at + row * ROW_DATA, v[p]);
    }
    return true;
}

template <class M>
__device__ __forceinline__ void exchange_lines(const HawserExchange& a) {
    follow_previous_grid();
    u32 warps = blockDim.x / LANES, unit = blockIdx.x * warps + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    Count count(a.epochs, unit);
    u32 number = 0;
    M m;
    m.divisor = a.divisor;
    m.load_factor(a.scalar, a.scalar_is_address != 0);
    if (threadIdx.x == 0) block_lost = 0;
    __syncthreads();
    u64 offset = (u64)unit * (2 * a.ranks * HAWSER_LINE_SLOT) + 16 * lane;
    for (u64 at = (u64)unit * a.tile; at < a.most; at += (u64)gridDim.x * warps * a.tile) {
        bool even = (a.form & HAWSER_ALIGNED) && (a.form & HAWSER_EIGHTS);
        bool good = even ? exchange_rows<M, true>(a, m, at, offset, count, number)
                          : exchange_rows<M, false>(a, m, at, offset, count, number);
        if (!good) break;
        number += 2;
    }
    __syncwarp();
    if (lane == 0) count.store();
    end_block(a.done);
}

} // namespace hawser

// LL128: lines of 128 bytes carry 120 bytes of data and a flag of 8 bytes. Eight threads of a warp
// store a line with one instruction and load it with one. Needs links that deliver such a line
// whole (NVLink). No fence, no tail.
//
// One instruction: that holds only while the eight threads stay together. Local data in whole pieces of 8 bytes are read and
// written by predicated instructions, which part nobody. Where they have odd ends or addresses, threads of a warp take different
// ways, and even after __syncwarp the compiler may let each store and load its part for itself. So lines of such messages go in
// two turns with a fence in between: data before the flag, and the flag before the data on the other side.
#pragma once

#include "types.cuh"
#include "wait.cuh"

namespace hawser {

constexpr u32 LINE_DATA = 120;
constexpr u32 LINE = 128;
constexpr u32 LINE_THREADS = 8;
constexpr u32 WARP_LINES = WARP / LINE_THREADS;

// Lines under way per warp and operand, in units of WARP_LINES.
template <class M>
constexpr int LINE_UNROLL = M::OP == Op::Copy ? 4 : SLOW_LINKS || (M::N == 8 && SOFT_FP8) ? 1 : 2;

// The warp's share of a turn. Line `at + u * stride` belongs to this thread's eighth of the warp.
template <class M>
struct Lines {
    static constexpr int U = LINE_UNROLL<M>, SIZE = M::SIZE;

    const Record& r;
    u32 part = threadIdx.x % LINE_THREADS; // which 16 bytes of the line
    u32 at, stride, lines;
    bool together; // local data are whole pieces, so threads do not part: the same for all of them

    __device__ __forceinline__ bool mine(int u) const { return at + u * stride < lines; }
    __device__ __forceinline__ u32 data_at(int u) const { return (at + u * stride) * LINE_DATA + part * 16; }
    __device__ __forceinline__ u64 slot_at(int u) const { return (u64)(at + u * stride) * LINE + part * 16; }
    __device__ __forceinline__ bool flag_part() const { return part == LINE_THREADS - 1; }

    __device__ __forceinline__ void load(Pack (&v)[U], u64 slot) const {
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; u++)
            if (mine(u)) v[u] = load_line_part(slot + slot_at(u));
    }
    // Repeats the loads until all flags of the warp's lines are there. The warp stays together: the
    // eight loads of a line are one access, so a new flag comes with new data.
    __device__ __forceinline__ void poll(Pack (&v)[U], Target from, u32 turn, u32 peer, Patience& patience) const {
        while (true) {
            bool missing = false;
#pragma unroll
            for (int u = 0; u < U; u++) missing |= mine(u) && flag_part() && v[u].y != from.flag;
            if (!__any_sync(ALL_LANES, missing)) break;
            bool stop = patience.due() && give_up(turn + 1, turn, HAWSER_WAIT_RECV, peer, patience.since);
            if (__any_sync(ALL_LANES, stop)) {
                patience.lost();
                return;
            }
            load(v, from.address);
        }
        if (together) return;
        part_turns();
#pragma unroll
        for (int u = 0; u < U; u++)
            if (mine(u) && !flag_part()) v[u] = load_line_part_alone(from.address + slot_at(u));
    }
    // Between the flags and the data of lines that are not moved with one instruction.
    static __device__ __forceinline__ void part_turns() {
        __syncwarp();
        fence_acq_rel_sys();
        __syncwarp();
    }
    __device__ __forceinline__ void load_local(Pack (&v)[U], u64 address, i32 valid) const {
#pragma unroll
        for (int u = 0; u < U; u++) {
            v[u] = {0, 0};
            i32 left = valid - (i32)data_at(u);
            if (together) {
                v[u].x = load_part_if(mine(u) && left >= 8, address + data_at(u));
                v[u].y = load_part_if(mine(u) && left >= 16 && !flag_part(), address + data_at(u) + 8);
                continue;
            }
            if (!mine(u)) continue;
            v[u].x = load_piece<SIZE>(address + data_at(u), left);
            if (!flag_part()) v[u].y = load_piece<SIZE>(address + data_at(u) + 8, left - 8);
        }
    }
    __device__ __forceinline__ void store_local(const Pack (&v)[U]) const {
#pragma unroll
        for (int u = 0; u < U; u++) {
            i32 left = r.dst_valid - (i32)data_at(u);
            if (together) {
                store_part_if(mine(u) && left >= 8, r.dst + data_at(u), v[u].x);
                store_part_if(mine(u) && left >= 16 && !flag_part(), r.dst + data_at(u) + 8, v[u].y);
                continue;
            }
            if (!mine(u)) continue;
            store_piece<SIZE>(r.dst + data_at(u), left, v[u].x);
            if (!flag_part()) store_piece<SIZE>(r.dst + data_at(u) + 8, left - 8, v[u].y);
        }
    }
    __device__ __forceinline__ void send(const Pack (&v)[U]) const {
        u32 n_out = r.n_out;
#pragma unroll 1
        for (u32 o = 0; o < n_out; o++) {
            Target to = r.out[o];
            __syncwarp();
            if (together) {
#pragma unroll
                for (int u = 0; u < U; u++)
                    if (mine(u)) store_line_part(to.address + slot_at(u), {v[u].x, flag_part() ? to.flag : v[u].y});
                continue;
            }
#pragma unroll
            for (int u = 0; u < U; u++)
                if (mine(u) && !flag_part()) store_pack(to.address + slot_at(u), v[u]);
            part_turns();
#pragma unroll
            for (int u = 0; u < U; u++)
                if (mine(u) && flag_part()) store_line_part_alone(to.address + slot_at(u), {v[u].x, to.flag});
        }
    }
};

// The value of `lines`: operands are folded in order; the next slot is under way while we wait for one.
template <class M>
__device__ __forceinline__ void reduce_lines(const Lines<M>& lines, const M& m, Pack (&v)[Lines<M>::U], u32 turn,
                                             Patience& patience) {
    constexpr int U = Lines<M>::U;
    const Record& r = lines.r;
    typename M::Value low[U], high[U];
    u32 n_in = r.n_in, src_at = r.src_at, dst_at = r.dst_at, received = 0;
    bool pre = r.flags & HAWSER_PRE, post = r.flags & HAWSER_POST, plain = r.plain, loaded = false;
    Pack next[U];
#pragma unroll 1
    for (u32 i = 0; i < n_in; i++) {
        bool src = i == src_at, dst = i == dst_at;
        if (!src && !dst && !loaded) lines.load(next, r.in[i].address);
#pragma unroll
        for (int u = 0; u < U; u++) v[u] = next[u];
        loaded = i + 1 < n_in && i + 1 != src_at && i + 1 != dst_at;
        if (loaded) lines.load(next, r.in[i + 1].address);
        if (src || dst) lines.load_local(v, src ? r.src : r.dst, src ? r.src_valid : r.dst_valid);
        else lines.poll(v, r.in[i], turn, r.recv_peer[received++], patience);
        if (M::OP == Op::Copy || plain) return;
        if constexpr (M::OP != Op::Copy) {
#pragma unroll
            for (int u = 0; u < U; u++) {
                M::fold(low[u], m.value(v[u].x, pre && src), i == 0);
                M::fold(high[u], m.value(v[u].y, pre && src), i == 0);
            }
        }
    }
    if constexpr (M::OP != Op::Copy) {
#pragma unroll
        for (int u = 0; u < U; u++) v[u] = {m.piece(low[u], post), m.piece(high[u], post)};
    }
}

template <class M>
__device__ __forceinline__ void move_ll128(const Record& r, const M& m, u32 worker, u32 workers, u32 turn) {
    constexpr int U = Lines<M>::U;
    Patience patience;
    u32 total = ((u32)r.bytes + LINE_DATA - 1) / LINE_DATA, stride = workers / LINE_THREADS;
    u32 first = worker / WARP * WARP_LINES; // of the warp
    u64 src = r.flags & HAWSER_HAS_SRC ? r.src | (u32)r.src_valid : 0;
    u64 dst = r.flags & (HAWSER_HAS_DST | HAWSER_ACC_DST) ? r.dst | (u32)r.dst_valid : 0;
    bool together = ((src | dst) & 7) == 0;
    for (u32 base = first; base < total; base += U * stride) {
        Lines<M> lines{r};
        lines.at = base + worker % WARP / LINE_THREADS;
        lines.stride = stride;
        lines.lines = total;
        lines.together = together;
        Pack v[U];
        reduce_lines(lines, m, v, turn, patience);
        lines.send(v);
        if (r.flags & HAWSER_HAS_DST) lines.store_local(v);
    }
}

} // namespace hawser

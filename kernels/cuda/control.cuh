// The two control warps of a block. The preparing warp runs ahead of the workers: it names the
// operands of a turn and waits for tails, credits and other channels. The publishing warp follows
// them: it fences and publishes tails, credits and progress, so that no worker waits for a fence.
#pragma once

#include "wait.cuh"

namespace hawser {

// number % depth without a 64-bit division; depth < 65,536.
__device__ __forceinline__ u32 slot_of(u64 number, u32 depth) {
    if ((depth & (depth - 1)) == 0) return (u32)number & (depth - 1);
    u32 rest = (u32)(number >> 32) % depth;
    rest = (rest << 16 | ((u32)number >> 16)) % depth;
    return (rest << 16 | ((u32)number & 0xffff)) % depth;
}

// The credit that a sender has heard of is kept with its counters, so that a launch need not read it again where the peer writes
// it, which may be memory of the host. The low half is enough: it is at most `depth` behind the slots sent.
__device__ __forceinline__ volatile u32* kept_credit(u64 counters, u32 protocol) {
    return (volatile u32*)(counters + 48) + protocol;
}

__device__ __forceinline__ u64 whole_credit(u64 sent, u32 kept) { return sent - ((u32)sent - kept); }

// Reads a connection: its addresses and counters. Loads that do not wait for each other.
__device__ __noinline__ void open_link(u32 at, const HawserEntry& entry, u64 index, u32 protocol) {
    Link& link = sh.links[at];
    const Pack* conn = (const Pack*)(entry.conns + index * sizeof(HawserConn));
    volatile const u64* counters = (volatile const u64*)(entry.counters + index * HAWSER_COUNTER_BYTES);
    u64 fifo_offset = entry.fifo_offset;
    Pack a = conn[0], b = conn[1], c = conn[2], d = conn[3];
    bool far_words = protocol == HAWSER_LL && d.y != 0;
    u64 sent = counters[protocol], taken = counters[3 + protocol];
    link.seen[HAWSER_WAIT_SEND] = whole_credit(sent, *kept_credit((u64)counters, protocol));
    link.send_fifo = far_words ? a.y + HAWSER_FAR_WORDS : a.x + fifo_offset;
    link.send_tail = a.y + 64 * protocol;
    link.send_credit = b.x + 64 * protocol;
    link.recv_fifo = far_words ? c.x + HAWSER_FAR_WORDS : b.y + fifo_offset;
    link.recv_tail = c.x + 64 * protocol;
    link.recv_credit = c.y + 64 * protocol;
    link.counters = (u64)counters;
    link.send_bytes = far_words ? a.y + HAWSER_FAR_TOLD : d.y;
    link.sent = sent;
    link.taken = taken;
    link.seen[HAWSER_WAIT_RECV] = 0;
}

// The shared entry of `peer`, or -1.
__device__ __forceinline__ i32 find_link(u32 peer) {
#pragma unroll 1
    for (u32 i = 0; i < MAX_CONNS; i++) {
        u32 at = (peer + i) % MAX_CONNS, key = sh.keys[at];
        if (key == peer) return (i32)at;
        if (key == FREE) return -1;
    }
    return -1;
}

struct Place {
    u64 address;
    i32 valid;
};

// Where a tile of a chunk lies and how many of its `bytes` bytes exist. In scratch whole chunks do.
__device__ __forceinline__ Place place(const HawserWork& w, u32 instance, u32 tile, u32 buf, u32 chunk, u32 size, i32 bytes) {
    u32 block = chunk / w.per_block, j = chunk - block * w.per_block;
    u64 at = j * w.chunk + instance * w.instance + (u64)tile * w.tile;
    u64 count = buf == HAWSER_SCRATCH ? w.per_block * w.chunk : w.count, end = (j + 1) * w.chunk;
    end = end < count ? end : count;
    u64 left = end > at ? (end - at) * size : 0;
    return {w.base[buf] + (block * count + at) * size, left < (u64)bytes ? (i32)left : bytes};
}

// The chunk of the next repetition.
__device__ __forceinline__ u32 next_chunk(u32 chunk, i32 stride, u32 chunks) {
    if (chunks == 0) return chunk;
    i32 moved = (i32)chunk + stride % (i32)chunks;
    return (u32)(moved < 0 ? moved + (i32)chunks : moved >= (i32)chunks ? moved - (i32)chunks : moved);
}

// The block of this launch that runs `channel` for our instance, or -1.
__device__ __forceinline__ i32 block_of(u32 channel) {
#pragma unroll 1
    for (u32 i = 0; i < sh.n_blocks; i++) {
        const HawserBlock& b = sh.blocks[i];
        if (b.channel == channel && b.instance == sh.block.instance) return (i32)i;
    }
    return -1;
}

// How far a channel is that has run all repetitions of a step for a tile; grows along the way.
__device__ __forceinline__ u64 progress_at(const HawserWork& w, u32 tile, u32 n_steps, u32 step) {
    return ((u64)(tile / w.slices) * n_steps + step) * w.slices + tile % w.slices + 1;
}

// What a lane of the preparing warp waits for.
struct Awaited {
    u64 address = 0; // 0 = nothing
    u64 value = 0;
    u32 what = HAWSER_WAIT_CHANNEL, peer = 0;
    u32 link = 0; // unless it waits for a channel
    u64 bytes_at = 0; // where to tell the bytes of the slot, if somebody asks
    u32 flag = 0;     // LL: of the slot
};

// Tells the bytes of a slot. Those of LL come with its flag, since no tail follows them.
__device__ __forceinline__ void tell_bytes(u64 address, u32 bytes, u32 flag, u32 protocol) {
    if (protocol == HAWSER_LL) store_relaxed_sys(address, (u64)flag << 32 | bytes);
    else store_relaxed_sys_u32(address, bytes);
}

// Waits for all lanes together. False: given up.
__device__ __forceinline__ bool await(u32 turn, const Awaited& a) {
    bool counter = a.what != HAWSER_WAIT_CHANNEL;
    bool there = a.address == 0 || (counter && (i64)(sh.links[a.link].seen[a.what] - a.value) >= 0);
    Patience patience;
    while (!__all_sync(ALL_LANES, there)) {
        if (!there) {
            u64 seen = load_acquire_sys(a.address);
            there = (i64)(seen - a.value) >= 0;
            if (there && counter) sh.links[a.link].seen[a.what] = seen;
        }
        bool stop = false;
        if (patience.due() && !there) stop = give_up(turn, turn, a.what, a.peer, patience.since);
        if (__any_sync(ALL_LANES, stop)) return false;
    }
    return true;
}

// One end of a connection in this turn: lanes 0-7 take from recv[lane], lanes 8-15 send to send[lane - 8].
__device__ __forceinline__ Awaited use_link(Record& r, const HawserStep& step, u32 lane, u32 protocol) {
    bool sends = lane >= HAWSER_MAX_FAN;
    u32 i = lane % HAWSER_MAX_FAN, depth = sh.comm.depth;
    u32 peer = sends ? step.send[i] : step.recv[i];
    i32 at = find_link(peer);
    u32 index = at >= 0 ? (u32)at : MAX_CONNS + lane;
    Link& link = sh.links[index];
    if (at < 0) open_link(index, sh.entry, (u64)sh.block.lane * sh.entry.columns + peer, protocol);
    if (at < 0 && sends) link.seen[HAWSER_WAIT_SEND] = load_acquire_sys(link.send_credit);
    u64 number = sends ? link.sent : link.taken, next = number + 1;
    u32 place = slot_of(number, depth);
    u64 slot = (u64)place * sh.comm.slot_stride[protocol];
    bool simple = protocol == HAWSER_SIMPLE;
    Awaited a;
    a.peer = peer;
    if (sends) {
        link.sent = next;
        r.out[i + (simple && (step.flags & HAWSER_HAS_DST) ? 1 : 0)] = {link.send_fifo + slot, next};
        r.tail[i] = {link.send_tail, next};
        if (next > depth) a = {link.send_credit, next - depth, HAWSER_WAIT_SEND, peer, index};
        if (link.send_bytes != 0) a.bytes_at = link.send_bytes + (simple ? 4 : 8) * (u64)place;
        a.flag = (u32)next;
    } else {
        link.taken = next;
        u32 locals = (step.flags & HAWSER_HAS_SRC ? 1 : 0) + (step.flags & HAWSER_ACC_DST ? 1 : 0);
        r.in[i + (protocol != HAWSER_LL && i >= step.order ? locals : 0)] = {link.recv_fifo + slot, next};
        r.recv_peer[i] = (uint16_t)peer;
        r.credit[i] = {link.recv_credit, next};
        if (simple) a = {link.recv_tail, next, HAWSER_WAIT_RECV, peer, index};
    }
    if (at < 0) ((volatile u64*)link.counters)[(sends ? 0 : 3) + protocol] = next;
    if (at < 0 && sends) *kept_credit(link.counters, protocol) = (u32)link.seen[HAWSER_WAIT_SEND];
    return a;
}

// Fills the record of a turn; returns what the lane must wait for.
__device__ __forceinline__ Awaited fill(Record& r, const HawserStep& step, u32 index, u32 tile, u32 chunk,
                                        bool last, u32 protocol, u32 size) {
    u32 lane = threadIdx.x % WARP, flags = step.flags;
    const HawserWork& w = sh.work;
    u64 rest = w.instance - (u64)tile * w.tile;
    i32 bytes = (i32)((rest < w.tile ? rest : w.tile) * size);
    Awaited a;
    u32 n_recv = step.n_recv, n_send = step.n_send;
    if (lane < HAWSER_MAX_FAN ? lane < n_recv : lane < HAWSER_MAX_FAN + n_send && lane < 2 * HAWSER_MAX_FAN)
        a = use_link(r, step, lane, protocol);
    bool has_src = flags & HAWSER_HAS_SRC, has_dst = flags & HAWSER_HAS_DST, acc = flags & HAWSER_ACC_DST;
    u32 order = step.order < n_recv ? step.order : n_recv;
    u32 fast = (u32)bytes / 16;
    if (lane == 16 ? has_src : lane == 17 && (has_dst || acc)) {
        bool src = lane == 16;
        Place p = place(w, sh.block.instance, tile, src ? step.src_buf : step.dst_buf, chunk, size, bytes);
        fast = p.address % 16 == 0 ? (u32)p.valid / 16 : 0;
        (src ? r.src : r.dst) = p.address;
        (src ? r.src_valid : r.dst_valid) = p.valid;
        if (protocol != HAWSER_LL) {
            if (src) r.in[order + (acc ? 1 : 0)] = {p.address, 0};
            else if (acc) r.in[order] = {p.address, 0};
        }
        if (protocol == HAWSER_SIMPLE && !src && has_dst) r.out[0] = {p.address, 0};
    }
    if (lane == 18 && step.after_channel != HAWSER_NO_DEP) {
        i32 other = block_of(step.after_channel);
        if (other >= 0) {
            // Channels of another work, whose tiles are not these, have one tile.
            u32 awaited = sh.blocks[other].work == sh.block.work ? tile : 0;
            u64 done = progress_at(sh.work, awaited, sh.blocks[other].n_steps, step.after_step);
            a = {sh.comm.deps + offsetof(HawserDeps, progress) + 8 * (u64)other, ((u64)sh.epoch << 40) + done,
                 HAWSER_WAIT_CHANNEL, step.after_channel, 0};
        }
    }
    u32 other = __shfl_sync(ALL_LANES, fast, 17);
    fast = __shfl_sync(ALL_LANES, fast, 16);
    if (lane == 19) {
        u32 locals = (has_src ? 1 : 0) + (acc ? 1 : 0);
        bool simple = protocol == HAWSER_SIMPLE;
        r.bytes = bytes;
        r.fast_packs = fast < other ? fast : other;
        r.step = index;
        r.tile = tile;
        r.flags = (uint8_t)flags;
        r.n_recv = (uint8_t)n_recv;
        r.n_send = (uint8_t)n_send;
        r.order = (uint8_t)order;
        r.n_in = (uint8_t)(n_recv + locals);
        r.n_out = (uint8_t)(n_send + (simple && has_dst ? 1 : 0));
        r.src_at = has_src ? (uint8_t)(order + (acc ? 1 : 0)) : (uint8_t)NONE;
        r.dst_at = acc ? (uint8_t)order : (uint8_t)NONE;
        r.plain = n_recv + locals == 1 && (flags & (HAWSER_PRE | HAWSER_POST)) == 0;
        // With a single block nobody waits, and the epoch does not advance.
        r.progress = (flags & HAWSER_SIGNAL) && last && sh.n_blocks > 1
                         ? ((u64)sh.epoch << 40) + progress_at(sh.work, tile, sh.block.n_steps, index)
                         : 0;
    }
    return a;
}

// Counters of the shared entries go back to global memory, for the next launch.
__device__ __forceinline__ void save_links(u32 protocol) {
    for (u32 at = threadIdx.x % WARP; at < MAX_CONNS; at += WARP) {
        if (sh.keys[at] == FREE) continue;
        u64* counters = (u64*)sh.links[at].counters;
        counters[protocol] = sh.links[at].sent;
        counters[3 + protocol] = sh.links[at].taken;
        *kept_credit((u64)counters, protocol) = (u32)sh.links[at].seen[HAWSER_WAIT_SEND];
    }
}

// The preparing warp.
__device__ __noinline__ void prepare(u32 protocol, u32 size) {
    u32 lane = threadIdx.x % WARP, threads = blockDim.x, turn = 0, tiles = sh.work.tiles, slices = sh.work.slices;
    for (u32 group = 0; group < tiles; group += slices) {
        u32 end = tiles - group < slices ? tiles : group + slices;
        for (u32 index = 0; index < sh.block.n_steps; index++) {
            const HawserStep* step = &sh.inline_steps[index];
            if (sh.steps != 0) {
                __syncwarp();
                if (lane < 16) ((u32*)&sh.step)[lane] = ((const u32*)(sh.steps + index * sizeof(HawserStep)))[lane];
                __syncwarp();
                step = &sh.step;
            }
            u32 times = step->times, chunk = lane == 16 ? step->src_chunk : step->dst_chunk;
            u32 chunks = sh.work.chunks[lane == 16 ? step->src_buf : step->dst_buf];
            for (u32 repetition = 0; repetition < times; repetition++) {
                for (u32 tile = group; tile < end; tile++, turn++) {
                    // The record was last used by turn - 4, which is over when the workers have left turn - 2.
                    __syncwarp();
                    if (turn >= 2) barrier_wait(FREED + turn % 2, threads - WARP);
                    if (given_up() <= turn) {
                        barrier_arrive(START + turn % 2, threads);
                        return;
                    }
                    Record& record = sh.records[turn % STAGES];
                    Awaited a = fill(record, *step, index, tile, chunk, repetition + 1 == times, protocol, size);
                    __syncwarp();
                    bool there = await(turn, a);
                    // The slot is ours now; the publishing warp's fence orders this before the tail.
                    if (there && a.bytes_at != 0) tell_bytes(a.bytes_at, (u32)record.bytes | sh.work.tag, a.flag, protocol);
                    __syncwarp();
                    barrier_arrive(START + turn % 2, threads);
                    if (!there) return;
                }
                chunk = next_chunk(chunk, step->stride, chunks);
            }
        }
    }
    save_links(protocol);
}

// The publishing warp.
__device__ __noinline__ void publish(u32 protocol) {
    u32 lane = threadIdx.x % WARP, threads = blockDim.x, turns = sh.turns;
    bool simple = protocol == HAWSER_SIMPLE;
    if (turns > 0) barrier_arrive(START + 0, threads);
    if (turns > 1) barrier_arrive(START + 1, threads);
    for (u32 turn = 0; turn < turns; turn++) {
        barrier_wait(MOVED + turn % 2, threads - WARP);
        if (given_up() <= turn) return;
        const Record& r = sh.records[turn % STAGES];
        u32 n_recv = r.n_recv, n_send = simple ? r.n_send : 0, i = lane % HAWSER_MAX_FAN;
        bool credits = lane < n_recv, tails = lane >= HAWSER_MAX_FAN && lane < HAWSER_MAX_FAN + n_send;
        Target to = {0, 0};
        if (credits) to = r.credit[i];
        if (tails) to = r.tail[i];
        u64 progress = r.progress;
        __syncwarp();
        // The record is read: only now may the preparing warp get round to it.
        if (turn + 2 < turns) barrier_arrive(START + turn % 2, threads);
        if (n_send > 0) fence_acq_rel_sys();
        if (credits || tails) store_relaxed_sys(to.address, to.flag);
        if (lane == 16 && progress != 0)
            store_release_gpu(sh.comm.deps + offsetof(HawserDeps, progress) + 8 * (u64)blockIdx.x, progress);
        __syncwarp();
    }
}

} // namespace hawser

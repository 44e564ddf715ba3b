// A block that only sends or only receives part of a message by LL, as those of ncclSend and ncclRecv do. A program in general
// takes several looks at memory, one after the other, and work is handed from warp to warp; here one look tells all that there
// is to know, and all warps move data. The FIFOs are the same: what the other end runs does not matter.
#pragma once

#include "control.cuh"
#include "grid.cuh"
#include "prims_ll.cuh"

namespace hawser {

// Whether the block's program is a part of a message. Without dependencies no channel waits for another.
__device__ __forceinline__ bool is_message(const HawserArgs& args, const HawserBlock& block) {
    if (args.steps != 0 || args.entry.deps != 0 || block.n_steps != 1) return false;
    const HawserStep& step = args.inline_steps[block.first_step];
    bool sends = step.flags == HAWSER_HAS_SRC && step.n_send == 1 && step.n_recv == 0;
    bool receives = step.flags == HAWSER_HAS_DST && step.n_recv == 1 && step.n_send == 0;
    return step.times == 1 && (sends || receives);
}

// One end of a FIFO.
struct Pipe {
    u64 fifo, tail, credit;
    u64 counters;
    u64 number; // slots sent or taken
    u64 seen;   // of the sender: the credit that it knows of
    u64 told;   // of the sender: where the bytes of slots are told, or 0
    u32 peer;
    bool sends;
};

// Reads the end and, into shared memory, the communicator: loads that do not wait for each other.
template <u32 PROTOCOL>
__device__ __forceinline__ Pipe open_pipe(const HawserArgs& args, const HawserBlock& block, const HawserStep& step) {
    Pipe pipe;
    pipe.sends = step.n_send != 0;
    pipe.peer = pipe.sends ? step.send[0] : step.recv[0];
    u64 index = (u64)block.lane * args.entry.columns + pipe.peer;
    u64 counters = args.entry.counters + index * HAWSER_COUNTER_BYTES;
    const volatile HawserConn* conn = (const volatile HawserConn*)(args.entry.conns + index * sizeof(HawserConn));
    pipe.counters = counters;
    pipe.number = ((const volatile u64*)counters)[pipe.sends ? PROTOCOL : 3 + PROTOCOL];
    pipe.seen = whole_credit(pipe.number, *kept_credit(counters, PROTOCOL));
    u64 tail = pipe.sends ? conn->send_tail : conn->recv_tail;
    bool far = conn->send_bytes != 0;
    u64 near_fifo = (pipe.sends ? conn->send_fifo : conn->recv_fifo) + args.entry.fifo_offset;
    pipe.fifo = far ? tail + HAWSER_FAR_WORDS : near_fifo;
    pipe.told = far && pipe.sends ? tail + HAWSER_FAR_TOLD : 0;
    pipe.tail = tail + 64 * PROTOCOL;
    pipe.credit = (pipe.sends ? conn->send_credit : conn->recv_credit) + 64 * PROTOCOL;
    if (threadIdx.x < sizeof(HawserDevComm) / sizeof(u64)) ((u64*)&sh.comm)[threadIdx.x] = ((const u64*)args.comm)[threadIdx.x];
    if (threadIdx.x == 0) {
        sh.op_number = args.op_number;
        sh.given_up = NEVER;
        sh.records[0].step = 0;
    }
    return pipe;
}

// Waits until the slot before `pipe.number` is free. False: given up.
__device__ __forceinline__ bool await_credit(Pipe& pipe, u32 tile) {
    u64 least = pipe.number - sh.comm.depth;
    if (pipe.number <= sh.comm.depth) return true;
    Patience patience;
    while ((i64)(pipe.seen - least) < 0) {
        pipe.seen = load_acquire_sys(pipe.credit);
        if (patience.due() && give_up(tile, 0, HAWSER_WAIT_SEND, pipe.peer, patience.since)) return false;
    }
    return true;
}

// Waits for a word. False: given up.
__device__ __forceinline__ bool await_word(const Pipe& pipe, u64 at, u32 tile, u64& data) {
    u32 flag = (u32)pipe.number;
    Patience patience;
    while (true) {
        Word word = load_word(at);
        data = word.d0 | (u64)word.d1 << 32;
        if (word.f0 == flag && word.f1 == flag) return true;
        if (patience.due() && give_up(tile, 0, HAWSER_WAIT_RECV, pipe.peer, patience.since)) return false;
    }
}

template <class M>
__device__ __forceinline__ void move_message(const HawserArgs& args, const HawserBlock& block) {
    constexpr int SIZE = M::SIZE;
    const HawserStep& step = args.inline_steps[block.first_step];
    const HawserWork& w = args.works[block.work];
    u32 thread = threadIdx.x, threads = blockDim.x, tiles = w.tiles;
    follow_previous_grid();
    Pipe pipe = open_pipe<HAWSER_LL>(args, block, step);
    u32 buf = pipe.sends ? step.src_buf : step.dst_buf, chunk = pipe.sends ? step.src_chunk : step.dst_chunk;
    u64 first = 0;
    for (u32 tile = 0; tile < tiles; tile++) {
        u64 left = w.instance - (u64)tile * w.tile;
        i32 bytes = (i32)((left < w.tile ? left : w.tile) * SIZE);
        u32 pieces = (u32)bytes / 8;
        Place at = place(w, block.instance, tile, buf, chunk, SIZE, bytes);
        auto load = [&](u32 i) { return load_piece<SIZE>(at.address + 8 * (u64)i, at.valid - (i32)(8 * i)); };
        if (tile == 0) { // under way while the counters come
            if (pipe.sends && thread < pieces) first = load(thread);
            __syncthreads();
        }
        if (thread == 0) sh.records[0].tile = tile;
        u64 place = slot_of(pipe.number++, sh.comm.depth), slot = pipe.fifo + place * sh.comm.slot_stride[HAWSER_LL];
        bool good = !pipe.sends || await_credit(pipe, tile);
        if (good && pipe.told != 0 && thread == 0) tell_bytes(pipe.told + 8 * place, bytes, (u32)pipe.number, HAWSER_LL);
        for (u32 i = thread; good && i < pieces; i += threads) {
            u64 data;
            if (pipe.sends) {
                data = tile == 0 && i == thread ? first : load(i);
                store_word(slot + 16 * (u64)i, data, (u32)pipe.number);
            } else if ((good = await_word(pipe, slot + 16 * (u64)i, tile, data))) {
                store_piece<SIZE>(at.address + 8 * (u64)i, at.valid - (i32)(8 * i), data);
            }
        }
        // All have read the slot, and the counter long before. All leave, or none.
        if (__syncthreads_or(!good)) return;
        if (thread == 0 && !pipe.sends) store_relaxed_sys(pipe.credit, pipe.number);
    }
    if (thread != 0 || tiles == 0) return;
    ((volatile u64*)pipe.counters)[pipe.sends ? HAWSER_LL : 3 + HAWSER_LL] = pipe.number;
    if (pipe.sends) *kept_credit(pipe.counters, HAWSER_LL) = (u32)pipe.seen;
}

} // namespace hawser

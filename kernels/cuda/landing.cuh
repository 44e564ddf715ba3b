// A block that sends or receives its part of a large message between GPUs of a host. The receiver tells where the sender finds its
// buffer (the **landing**), and the sender stores the data there: no byte passes a FIFO. The sender decides: it stages the message, as
// others go, if it cannot reach the buffer, or knows of no memory of other ranks that it reaches and so does not wait to be told.
//
// A message that landed takes one slot of Simple's FIFO, which stays empty: so what orders slots orders it, the tail says that
// the data have come, and the credit that the receiver is done. The number of that slot is the message's.
#pragma once

#include "message.cuh"
#include "pieces.cuh"
#include "prims_simple.cuh"

namespace hawser {

// What a receiver says of a landing, beside the number of the message.
constexpr u32 LANDING_NONE = 1; // the sender cannot reach the buffer; within a block: the message is staged
constexpr u32 LANDING_OPEN = 2;
constexpr u32 LANDING_WITHDRAWN = 3; // the receiver has given up
constexpr u32 LANDING_LOST = 4;      // only within a block: it has given up

// A receiver that gives up: the sender may have begun a moment ago, and is done in a while. It says when it begins.
#ifdef HAWSER_EMULATED // many threads take turns there
constexpr u64 LANDING_BEGUN_NS = 100000, LANDING_DONE_NS = 2000000;
#else
constexpr u64 LANDING_BEGUN_NS = 50000000, LANDING_DONE_NS = 1000000000;
#endif

// The sender's first thread waits for the landing. Answers its state.
__device__ __noinline__ u32 await_landing(const Pipe& pipe) {
    u64 at = pipe.credit + HAWSER_LANDING_AT, state;
    Patience patience;
    while (true) {
        state = load_acquire_sys(at + 8);
        if ((u32)state == (u32)pipe.number && state >> 32 != LANDING_WITHDRAWN) break;
        if (patience.due() && give_up(0, 0, HAWSER_WAIT_SEND, pipe.peer, patience.since)) return LANDING_LOST;
    }
    sh.landing = load_relaxed_sys(at);
    if (state >> 32 == LANDING_OPEN) store_relaxed_sys(pipe.tail + HAWSER_BEGUN_AT, pipe.number);
    return (u32)(state >> 32);
}

__device__ __forceinline__ void tell_landing(const Pipe& pipe, u32 state) {
    store_relaxed_sys(pipe.credit + HAWSER_LANDING_AT + 8, (u64)state << 32 | (u32)pipe.number);
}

__device__ __forceinline__ bool has_come(const Pipe& pipe) { return (i64)(load_acquire_sys(pipe.tail) - pipe.number) >= 0; }

// Takes a landing back. The buffer may be freed when this is over.
__device__ __noinline__ void withdraw_landing(const Pipe& pipe) {
    tell_landing(pipe, LANDING_WITHDRAWN);
    u64 since = now_ns(), patience = LANDING_BEGUN_NS;
    while (!has_come(pipe)) {
        if (load_relaxed_sys(pipe.tail + HAWSER_BEGUN_AT) == pipe.number) patience = LANDING_DONE_NS;
        if (now_ns() - since > patience) return;
    }
}

// The receiver's first thread waits for the first data. Answers whether they landed.
__device__ __noinline__ u32 await_landed(const Pipe& pipe) {
    Patience patience;
    while (!has_come(pipe)) {
        if (!patience.due() || !give_up(0, 0, HAWSER_WAIT_RECV, pipe.peer, patience.since)) continue;
        withdraw_landing(pipe);
        return LANDING_LOST;
    }
    return load_relaxed_sys(pipe.tail + HAWSER_BEGUN_AT) == pipe.number ? LANDING_OPEN : LANDING_NONE;
}

// Stores the share of block `block` of `blocks` in a message at its landing: batches in turns, so that all blocks are in the same few
// pages of memory. All threads call it.
__device__ __forceinline__ void store_landed(const HawserWork& w, u32 block, u32 blocks) {
    constexpr int U = 8;
    u64 from = w.base[0], to = sh.landing, packs = w.count / 16, batch = (u64)U * blockDim.x;
    u32 thread = threadIdx.x, threads = blockDim.x;
#pragma unroll 1
    for (u64 first = block * batch; first < packs; first += blocks * batch) {
        u64 left = packs - first, at = first * 16;
        u32 end = left < batch ? (u32)left : (u32)batch;
        Pack v[U];
        if (from % 16 == 0) {
            load_packs(v, from + at, thread, threads, end);
        } else {
#pragma unroll
            for (int u = 0; u < U; u++) {
                u64 pack = from + at + (u64)(thread + u * threads) * 16;
                if (thread + u * threads < end) v[u] = {load_piece<1>(pack, 8), load_piece<1>(pack + 8, 8)};
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++)
            if (thread + u * threads < end) store_pack(to + at + (u64)(thread + u * threads) * 16, v[u]);
    }
    if (block != 0 || thread != 0) return;
    for (u64 at = packs * 16; at < w.count; at += 8)
        store_piece<1>(to + at, (i32)(w.count - at), load_piece<1>(from + at, (i32)(w.count - at)));
}

// The end that a message uses; its number is that of the next slot.
__device__ __forceinline__ Pipe open_landing(const HawserArgs& args, const HawserBlock& block, const HawserStep& step) {
    follow_previous_grid();
    Pipe pipe = open_pipe<HAWSER_SIMPLE>(args, block, step);
    pipe.number++;
    return pipe;
}

// The message landed: its slot counts as used. The first thread calls it.
__device__ __forceinline__ void use_slot(const Pipe& pipe) {
    ((volatile u64*)pipe.counters)[pipe.sends ? HAWSER_SIMPLE : 3 + HAWSER_SIMPLE] = pipe.number;
    fence_acq_rel_sys();
    store_relaxed_sys(pipe.sends ? pipe.tail : pipe.credit, pipe.number);
}

// Sends the block's part of a message to its landing. False: it has none. All threads call it, as the functions that follow.
__device__ __forceinline__ bool send_landed(const HawserArgs& args, const HawserBlock& block, const HawserStep& step, const HawserWork& w) {
    Pipe pipe = open_landing(args, block, step);
    __syncthreads();
    if (threadIdx.x == 0) sh.records[0].tile = 0, sh.landing_state = await_landing(pipe);
    __syncthreads();
    u32 state = sh.landing_state;
    if (state != LANDING_OPEN) return state == LANDING_LOST;
    store_landed(w, block.instance, (u32)((w.count + w.instance - 1) / w.instance));
    __syncthreads();
    if (threadIdx.x == 0) use_slot(pipe);
    return true;
}

// Tells the sender the landing.
__device__ __forceinline__ Pipe offer_landing(const HawserArgs& args, const HawserBlock& block, const HawserStep& step, u64 landing) {
    Pipe pipe = open_landing(args, block, step);
    if (threadIdx.x == 0) {
        store_relaxed_sys(pipe.credit + HAWSER_LANDING_AT, landing);
        fence_acq_rel_sys();
        tell_landing(pipe, landing != 0 ? LANDING_OPEN : LANDING_NONE);
    }
    return pipe;
}

// Waits for the first data. True: all has landed, or the block has given up; false: the message is staged.
__device__ __forceinline__ bool receive_landed(const Pipe& pipe) {
    if (threadIdx.x == 0) {
        sh.records[0].tile = 0;
        u32 state = await_landed(pipe);
        if (state == LANDING_OPEN) use_slot(pipe);
        sh.landing_state = state;
    }
    __syncthreads();
    return sh.landing_state != LANDING_NONE;
}

} // namespace hawser

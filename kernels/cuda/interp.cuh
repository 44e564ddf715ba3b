// The kernel body: warps 0 to n-3 work, warp n-2 prepares turns, warp n-1 publishes what was moved.
#pragma once

#include "control.cuh"
#include "grid.cuh"
#include "landing.cuh"
#include "message.cuh"
#include "prims_ll.cuh"
#include "prims_ll128.cuh"
#include "prims_simple.cuh"

namespace hawser {

// Copies an array of W with all threads.
template <class W>
__device__ __forceinline__ void spread(void* to, const void* from, u32 bytes) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < bytes / sizeof(W); i += blockDim.x) ((W*)to)[i] = ((const W*)from)[i];
}

// Enters the peers of all steps into the table of connections and reads their state. Peers that
// find no place are opened anew in every turn that uses them.
__device__ __forceinline__ void open_links(const HawserStep* steps, u32 protocol) {
    u32 i = threadIdx.x % 16, n_steps = sh.block.n_steps;
    bool sends = i >= HAWSER_MAX_FAN;
    for (u32 s = threadIdx.x / 16; s < n_steps; s += blockDim.x / 16) {
        const HawserStep& step = steps[s];
        if (sends ? i - HAWSER_MAX_FAN >= step.n_send : i >= step.n_recv) continue;
        u32 peer = sends ? step.send[i - HAWSER_MAX_FAN] : step.recv[i];
#pragma unroll 1
        for (u32 probe = 0; probe < MAX_CONNS; probe++) {
            u32 at = (peer + probe) % MAX_CONNS;
            u32 key = atomicCAS(&sh.keys[at], FREE, peer);
            if (key == FREE) open_link(at, sh.entry, (u64)sh.block.lane * sh.entry.columns + peer, protocol);
            if (key == FREE || key == peer) break;
        }
    }
}

// Number of turns: every step of every tile, with repetitions. One warp.
__device__ __forceinline__ void count_turns(const HawserStep* steps) {
    u32 turns = 0;
#pragma unroll 1
    for (u32 s = threadIdx.x % WARP; s < sh.block.n_steps; s += WARP) turns += steps[s].times;
#pragma unroll
    for (u32 other = WARP / 2; other > 0; other /= 2) turns += __shfl_xor_sync(ALL_LANES, turns, other);
    sh.turns = turns * sh.work.tiles;
}

// Reads the launch's epoch. The last block to have read it sets the one of the next launch.
__device__ __forceinline__ void take_epoch(u64 deps) {
    HawserDeps* d = (HawserDeps*)deps;
    u32 epoch = *(volatile u32*)&d->epoch;
    sh.epoch = epoch;
    if (add_acq_rel_gpu(&d->done, 1) + 1 != sh.n_blocks) return;
    *(volatile u32*)&d->done = 0;
    *(volatile u32*)&d->epoch = epoch + 1;
}

// What follows the copying of arguments: all that lies in memory, side by side. The first steps' peers are the first warp's, so the
// last one reads the communicator.
__device__ __noinline__ void enter(u32 protocol, const HawserDevComm* comm) {
    const HawserStep* steps = (const HawserStep*)sh.steps;
    if (steps == nullptr) steps = sh.inline_steps;
    u32 last = blockDim.x - 1 - threadIdx.x;
    if (last < sizeof(HawserDevComm) / sizeof(u64)) ((u64*)&sh.comm)[last] = ((const u64*)comm)[last];
    if (threadIdx.x / WARP == blockDim.x / WARP - 1) count_turns(steps);
    if (last == WARP && sh.n_blocks > 1 && sh.entry.deps != 0) take_epoch(sh.entry.deps);
    open_links(steps, protocol);
}

template <class M, int PROTOCOL>
__device__ __forceinline__ void work(const M& m, u32 workers) {
    u32 threads = blockDim.x, turns = sh.turns;
    for (u32 turn = 0; turn < turns; turn++) {
        __syncwarp();
        barrier_wait(START + turn % 2, threads);
        bool leave = given_up() <= turn;
        const Record& r = sh.records[turn % STAGES];
        if (!leave) {
            if constexpr (PROTOCOL == HAWSER_LL) move_ll(r, m, threadIdx.x, workers, turn);
            else if constexpr (PROTOCOL == HAWSER_LL128) move_ll128(r, m, threadIdx.x, workers, turn);
            else move_simple(r, m, threadIdx.x, workers, turn);
        }
        __syncwarp();
        barrier_arrive(MOVED + turn % 2, threads - WARP);
        if (turn + 2 < turns) barrier_arrive(FREED + turn % 2, threads - WARP);
        if (leave) return;
    }
}

// Brings what a block needs into shared memory. All threads call it.
template <class M, int PROTOCOL>
__device__ __forceinline__ M read_program(const HawserArgs& args, const HawserBlock& block) {
    u32 thread = threadIdx.x, n_inline = args.steps != 0 ? 0 : block.n_steps;
    if (thread < MAX_CONNS) sh.keys[thread] = FREE;
    spread<u32>(sh.inline_steps, args.inline_steps + (n_inline != 0 ? block.first_step : 0), n_inline * sizeof(HawserStep));
    spread<u64>(sh.blocks, args.blocks, args.n_blocks * sizeof(HawserBlock));
    spread<u64>(&sh.work, &args.works[block.work], sizeof(HawserWork));
    if (thread == 0) {
        sh.entry = args.entry;
        sh.block = block;
        sh.steps = args.steps != 0 ? args.steps + block.first_step * sizeof(HawserStep) : 0;
        sh.op_number = args.op_number;
        sh.n_blocks = args.n_blocks;
        sh.given_up = NEVER;
    }
    follow_previous_grid();
    __syncthreads();
    M m;
    m.divisor = args.divisor;
    m.load_factor(args.scalar, args.scalar_is_address != 0);
    enter(PROTOCOL, (const HawserDevComm*)args.comm);
    __syncthreads();
    return m;
}

// Runs the program that was read.
template <class M, int PROTOCOL>
__device__ __forceinline__ void follow_program(const M& m) {
    u32 threads = blockDim.x, warp = threadIdx.x / WARP, warps = threads / WARP;
    if (warp == warps - 2) prepare(PROTOCOL, M::SIZE);
    else if (warp == warps - 1) publish(PROTOCOL);
    else work<M, PROTOCOL>(m, threads - 2 * WARP);
}

template <class M, int PROTOCOL>
__device__ __forceinline__ void interpret(const HawserArgs& args) {
    const HawserBlock block = args.blocks[blockIdx.x];
    bool message = false;
    if constexpr (M::OP == Op::Copy && PROTOCOL == HAWSER_LL) message = is_message(args, block);
    if (message) {
        move_message<M>(args, block);
    } else {
        follow_program<M, PROTOCOL>(read_program<M, PROTOCOL>(args, block));
    }
    end_block(args.done);
}

// Messages that may land. A receiver gets ready for one that is staged while it waits for the first data.
template <class M>
__device__ __forceinline__ void interpret_landing(const HawserArgs& args) {
    const HawserBlock block = args.blocks[blockIdx.x];
    const HawserStep& step = args.inline_steps[block.first_step];
    const HawserWork& w = args.works[block.work];
    bool receives = step.n_recv != 0, over = false;
    if (step.n_send != 0 && w.landing != 0) over = send_landed(args, block, step, w);
    if (!over) {
        Pipe pipe;
        if (receives) pipe = offer_landing(args, block, step, w.landing);
        M m = read_program<M, HAWSER_SIMPLE>(args, block);
        if (receives) over = receive_landed(pipe);
        if (!over) follow_program<M, HAWSER_SIMPLE>(m);
    }
    end_block(args.done);
}

} // namespace hawser

#define HAWSER_KERNEL(OP, op, T, type, PROTOCOL, protocol)                                                            \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                              \
        hawser_##op##_##type##_##protocol(const __grid_constant__ HawserArgs args) {                                  \
        hawser::interpret<hawser::Math<T, hawser::Op::OP>, PROTOCOL>(args);                                           \
    }
#define HAWSER_KERNELS(OP, op, T, type)                                                                               \
    HAWSER_KERNEL(OP, op, T, type, HAWSER_LL, ll)                                                                     \
    HAWSER_KERNEL(OP, op, T, type, HAWSER_LL128, ll128)                                                               \
    HAWSER_KERNEL(OP, op, T, type, HAWSER_SIMPLE, simple)

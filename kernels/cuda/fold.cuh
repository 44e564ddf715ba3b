// Combines what copy engines have moved: operands in this GPU's memory, into one place of it. Few blocks, so each keeps as many
// bytes on their way as its shared memory holds: one thread loads, by bulk copies, and teams of warps combine and store.
#pragma once

#include "plan.h"
#include "types.cuh"
#ifndef HAWSER_EMULATED // emulated/bulk.hpp has them
#include "bulk.cuh"
#endif

namespace hawser {

constexpr u32 FOLD_STAGES = 8, FOLD_STAGE = HAWSER_BULK_SHARED / FOLD_STAGES;
constexpr u32 FOLD_WARP = 32, FOLD_TEAM = 4 * FOLD_WARP, FOLD_TEAMS = 4; // FOLD_TEAMS divides FOLD_STAGES
constexpr u32 FOLD_WORKERS = FOLD_TEAM * FOLD_TEAMS;                     // and a warp that loads

struct FoldBarriers {
    u64 full[FOLD_STAGES], empty[FOLD_STAGES];
};

#ifdef HAWSER_EMULATED
FoldBarriers& fold_barriers();
unsigned char* fold_stages();
#else
__shared__ FoldBarriers fold_shared;
__device__ __forceinline__ FoldBarriers& fold_barriers() { return fold_shared; }
__device__ __forceinline__ unsigned char* fold_stages() {
    extern __shared__ __align__(128) unsigned char stages[];
    return stages;
}
#endif

// The tiles of a block, and the stages that they take in turn.
struct FoldWalk {
    u64 at, end;
    u32 tile, stage = 0, phase = 0;
    bool again = false; // the stage was used before

    __device__ __forceinline__ FoldWalk(u64 bytes, u32 n) : end(bytes), tile(FOLD_STAGE / n & ~127u) { at = (u64)blockIdx.x * tile; }
    __device__ __forceinline__ bool more() const { return at < end; }
    __device__ __forceinline__ u32 size() const { return end - at < tile ? (u32)(end - at) : tile; }
    __device__ __forceinline__ void next() {
        at += (u64)gridDim.x * tile;
        if (++stage == FOLD_STAGES) stage = 0, phase ^= 1, again = true;
    }
};

// The thread that loads.
__device__ __forceinline__ void load_operands(const HawserFold& a, u64 bytes) {
    FoldBarriers& barriers = fold_barriers();
    fence_bulk(); // what copy engines had written before this kernel began
    for (FoldWalk w(bytes, a.n); w.more(); w.next()) {
        if (w.again) wait_phase(&barriers.empty[w.stage], w.phase ^ 1);
        u32 size = w.size();
        arrive_and_expect(&barriers.full[w.stage], a.n * size);
        unsigned char* stage = fold_stages() + w.stage * FOLD_STAGE;
        for (u32 i = 0; i < a.n; i++) load_bulk(stage + i * w.tile, a.from[i] + w.at, size, &barriers.full[w.stage]);
    }
}

// The values of a pack.
template <class M>
struct FoldPack {
    typename M::Value low, high;

    __device__ __forceinline__ void fold(const M& m, const Pack& pack, bool scale, bool first) {
        M::fold(low, m.value(pack.x, scale), first);
        M::fold(high, m.value(pack.y, scale), first);
    }
};

// A team: every FOLD_TEAMS-th stage is its own.
template <class M>
__device__ __forceinline__ void fold_stage_by_stage(const HawserFold& a, const M& m, u64 bytes) {
    FoldBarriers& barriers = fold_barriers();
    bool scale = a.form & HAWSER_FOLD_SCALE, divide = a.form & HAWSER_FOLD_DIVIDE;
    u32 n = a.n, team = threadIdx.x / FOLD_TEAM, own = threadIdx.x % FOLD_TEAM * 16;
    for (FoldWalk w(bytes, n); w.more(); w.next()) {
        if (w.stage % FOLD_TEAMS != team) continue;
        wait_phase(&barriers.full[w.stage], w.phase);
        const unsigned char* stage = fold_stages() + w.stage * FOLD_STAGE;
        u32 size = w.size();
        for (u32 at = own; at < size; at += 2 * FOLD_TEAM * 16) {
            // Two packs at once, of two operands, so that loads overlap. At the end the second is the first once more.
            u32 second = at + FOLD_TEAM * 16 < size ? at + FOLD_TEAM * 16 : at;
            FoldPack<M> x, y;
#pragma unroll 1
            for (u32 i = 0; i < n; i += 2) {
                const unsigned char* from = stage + i * w.tile;
                bool two = i + 1 < n;
                Pack u = *(const Pack*)(from + at), v = *(const Pack*)(from + second), p, q;
                if (two) p = *(const Pack*)(from + w.tile + at), q = *(const Pack*)(from + w.tile + second);
                x.fold(m, u, scale, i == 0);
                y.fold(m, v, scale, i == 0);
                if (!two) break;
                x.fold(m, p, scale, false);
                y.fold(m, q, scale, false);
            }
            store_pack(a.to + w.at + at, {m.piece(x.low, divide), m.piece(x.high, divide)});
            if (second != at) store_pack(a.to + w.at + second, {m.piece(y.low, divide), m.piece(y.high, divide)});
        }
        __syncwarp(); // all lanes have read
        if (threadIdx.x % FOLD_WARP == 0) arrive(&barriers.empty[w.stage]);
    }
}

// From byte `first` on, by pieces of 8 bytes: what is left, and operands at odd addresses.
template <class M>
__device__ __noinline__ void fold_pieces(const HawserFold& a, const M& m, u64 first) {
    u64 step = (u64)gridDim.x * FOLD_WORKERS * 8;
    for (u64 at = first + ((u64)blockIdx.x * FOLD_WORKERS + threadIdx.x) * 8; at < a.bytes; at += step) {
        i32 valid = (i32)(a.bytes - at < 8 ? a.bytes - at : 8);
        typename M::Value value;
#pragma unroll 1
        for (u32 i = 0; i < a.n; i++) {
            u64 v = load_piece<M::SIZE>(a.from[i] + at, valid);
            M::fold(value, m.value(v, a.form & HAWSER_FOLD_SCALE), i == 0);
        }
        store_piece<M::SIZE>(a.to + at, valid, m.piece(value, a.form & HAWSER_FOLD_DIVIDE));
    }
}

template <class M>
__device__ __forceinline__ void fold_operands(const HawserFold& a) {
    FoldBarriers& barriers = fold_barriers();
    u64 odd = a.to;
    for (u32 i = 0; i < a.n; i++) odd |= a.from[i];
    u64 bytes = odd % 16 == 0 ? a.bytes & ~15ull : 0;
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < FOLD_STAGES; s++) {
            init_barrier(&barriers.full[s], 1);
            init_barrier(&barriers.empty[s], FOLD_TEAM / FOLD_WARP);
        }
        fence_bulk();
    }
    __syncthreads();
    if (threadIdx.x >= FOLD_WORKERS) {
        if (threadIdx.x == FOLD_WORKERS) load_operands(a, bytes);
        return;
    }
    M m;
    m.divisor = a.divisor;
    m.load_factor(a.scalar, false);
    fold_stage_by_stage(a, m, bytes);
    fold_pieces(a, m, bytes);
}

} // namespace hawser

// The planner does not offer them to older GPUs.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define HAWSER_FOLDS_SINCE_SM90(...)
#else
#define HAWSER_FOLDS_SINCE_SM90(...) __VA_ARGS__
#endif

// The kernel of an operation and a type, named as KernelKey::symbol says. core/plan/src/executor/copy_engine/reduce_kernel.rs
// says which calls have one.
#define HAWSER_FOLD(OP, op, T, type)                                                                                  \
    extern "C" __global__ void __launch_bounds__(HAWSER_FOLD_THREADS, 1)                                              \
        hawser_##op##_##type##_dma(const __grid_constant__ HawserFold args) {                                         \
        HAWSER_FOLDS_SINCE_SM90(hawser::fold_operands<hawser::Math<T, hawser::Op::OP>>(args);)                        \
    }

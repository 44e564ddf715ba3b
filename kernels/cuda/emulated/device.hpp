// A GPU of fibers: enough of CUDA to run the kernels' source on one CPU thread, in random
// interleavings. Barriers and warp operations check that they are used as the hardware demands. It
// shows errors of logic (deadlocks, wrong slots, wrong places) and flags that overtake plain stores for
// want of a fence; of memory order it knows nothing else.
#pragma once

#include "fibers.hpp"

#include <cstring>
#include <map>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define HAWSER_EMULATED
#undef __noinline__
#define __noinline__
#undef __forceinline__
#define __forceinline__ inline
#undef __grid_constant__
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)

struct Dim { unsigned x; };
inline Dim emulated_thread, emulated_block, emulated_dim, emulated_grid;
#define threadIdx emulated_thread
#define blockIdx emulated_block
#define blockDim emulated_dim
#define gridDim emulated_grid

// Stores of 16 bytes land late and in any order, until a fence of the same thread or, after a barrier of the warp or the block,
// of another. A thread sees its own.
inline bool weak_stores = false;
inline void land(Warp& w, size_t i) {
    std::memcpy((void*)w.pending[i].address, &w.pending[i].x, 16);
    w.pending[i] = w.pending.back();
    w.pending.pop_back();
    emulated_progress++;
}
inline void land_all(Warp& w, unsigned lane, bool others) {
    for (size_t i = w.pending.size(); i-- > 0;) {
        const Pending& p = w.pending[i];
        if (p.lane == lane || (others && p.generation != w.generation)) land(w, i);
    }
}
inline void land_own(Warp& w, unsigned lane, uint64_t address) {
    for (size_t i = w.pending.size(); i-- > 0;)
        if (w.pending[i].lane == lane && w.pending[i].address == address) return land(w, i);
}
inline void land_older(BlockRun& block) {
    for (Warp& w : block.warps)
        for (size_t i = w.pending.size(); i-- > 0;)
            if (w.pending[i].phase != block.all.phase) land(w, i);
}

inline void Fibers::step(Fiber& f, unsigned times) {
    fiber = &f;
    for (unsigned n = 0; n < times && !f.over; n++) {
        emulated_thread = {f.thread}, emulated_block = {f.block->index};
        emulated_dim = {f.block->threads}, emulated_grid = {f.block->grid};
        resume_fiber();
        emulated_ns += 10;
        if (f.waits_for && *f.waits_for == f.waits_value) return;
    }
    if (!f.over) return;
    BlockRun& block = *f.block;
    Warp& warp = block.warps[f.thread / 32];
    land_all(warp, f.thread % 32, false);
    block.left++, warp.left++;
    if (block.all.count != 0 && block.all.count == block.threads - block.left) block.all.complete();
}

inline Warp& own_warp() { return fiber->block->warps[fiber->thread / 32]; }
inline void emulated_arrive(unsigned id, unsigned threads) {
    Barrier& b = fiber->block->barriers[id];
    REQUIRE(b.count == 0 || b.threads == threads, "barrier %u: %u or %u threads", id, b.threads, threads);
    REQUIRE(!b.here[fiber->thread], "barrier %u: thread %u arrives twice", id, fiber->thread);
    b.threads = threads;
    b.here[fiber->thread] = true;
    if (++b.count == threads) b.complete();
    emulated_progress++;
}
inline void emulated_sync(unsigned id, unsigned threads) {
    unsigned phase = fiber->block->barriers[id].phase;
    emulated_arrive(id, threads);
    wait_for_change(fiber->block->barriers[id].phase, phase);
}
inline const uint64_t* emulated_warp(const char* what, uint64_t value) {
    Warp& w = fiber->block->warps[fiber->thread / 32];
    unsigned g = w.generation;
    REQUIRE(w.count == 0 || w.what[g % 2] == what, "warp diverged: %s and %s", w.what[g % 2], what);
    w.what[g % 2] = what;
    w.values[g % 2][fiber->thread % 32] = value;
    if (++w.count == 32) w.count = 0, w.generation++;
    wait_for_change(w.generation, g);
    return w.values[g % 2];
}
// Threads that have left do not count. `whole_warps`: they must have left as whole warps, as `barrier.aligned` demands; a
// compiler may let lanes that leave a loop wait for the others of their warp, who then wait for them.
inline bool whole_warps = true;
inline bool __syncthreads_or(bool vote) {
    BlockRun& block = *fiber->block;
    REQUIRE(!whole_warps || own_warp().left == 0, "thread %u waits at a barrier, lanes of its warp have left", fiber->thread);
    unsigned phase = block.all.phase;
    if (block.all.count == 0) block.votes[phase % 2] = false;
    block.votes[phase % 2] |= vote;
    if (++block.all.count == block.threads - block.left) block.all.complete();
    emulated_progress++;
    wait_for_change(block.all.phase, phase);
    return block.votes[phase % 2];
}
inline void __syncthreads() { __syncthreads_or(false); }
inline void __syncwarp() { emulated_warp("syncwarp", 0); }
inline bool __all_sync(unsigned, bool v) {
    const uint64_t* all = emulated_warp("all", v);
    for (int i = 0; i < 32; i++) if (!all[i]) return false;
    return true;
}
inline bool __any_sync(unsigned, bool v) {
    const uint64_t* all = emulated_warp("any", v);
    for (int i = 0; i < 32; i++) if (all[i]) return true;
    return false;
}
inline unsigned __shfl_sync(unsigned, unsigned v, unsigned from) { return (unsigned)emulated_warp("shfl", v)[from]; }
inline unsigned __shfl_xor_sync(unsigned, unsigned v, unsigned mask) {
    return (unsigned)emulated_warp("xor", v)[(fiber->thread % 32) ^ mask];
}
inline uint32_t atomicCAS(uint32_t* p, uint32_t want, uint32_t v) {
    maybe_yield();
    uint32_t old = *p;
    if (old == want) *p = v;
    return old;
}
inline uint32_t atomicCAS_system(uint32_t* p, uint32_t want, uint32_t v) { return atomicCAS(p, want, v); }
inline void atomicMin(uint32_t* p, uint32_t v) { if (v < *p) *p = v; }
inline void __threadfence_system() {}
inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
inline int __ffsll(unsigned long long v) { return __builtin_ffsll((long long)v); }
template <class To, class From> To as(From v) { To t; std::memcpy(&t, &v, sizeof t); return t; }
inline float __uint_as_float(uint32_t v) { return as<float>(v); }
inline uint32_t __float_as_uint(float v) { return as<uint32_t>(v); }
inline double __longlong_as_double(long long v) { return as<double>(v); }
inline long long __double_as_longlong(double v) { return as<long long>(v); }
inline float __fmul_rn(float a, float b) { volatile float c = a * b; return c; }
inline double __dmul_rn(double a, double b) { volatile double c = a * b; return c; }
template <class T, class F> uint32_t each_byte(uint32_t a, uint32_t b, F f) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) v |= (uint32_t)(uint8_t)f((T)(a >> 8 * i), (T)(b >> 8 * i)) << 8 * i;
    return v;
}
inline uint32_t __vadd4(uint32_t a, uint32_t b) { return each_byte<uint8_t>(a, b, [](int x, int y) { return x + y; }); }
inline uint32_t __vmaxu4(uint32_t a, uint32_t b) { return each_byte<uint8_t>(a, b, [](int x, int y) { return x > y ? x : y; }); }
inline uint32_t __vminu4(uint32_t a, uint32_t b) { return each_byte<uint8_t>(a, b, [](int x, int y) { return x < y ? x : y; }); }
inline uint32_t __vmaxs4(uint32_t a, uint32_t b) { return each_byte<int8_t>(a, b, [](int x, int y) { return x > y ? x : y; }); }
inline uint32_t __vmins4(uint32_t a, uint32_t b) { return each_byte<int8_t>(a, b, [](int x, int y) { return x < y ? x : y; }); }

#include "../memory.cuh"
#include "../plan.h"

// What the blocks of a rank tell the host: why they gave up, and what they answered. The address of the first is given to them.
struct Told {
    HawserReport report, answer;
};

namespace hawser {

template <class T> T& at(u64 address) { return *(T*)address; }
inline u64 load_acquire_sys(u64 a) { yield_fiber(); return at<u64>(a); }
inline u32 load_acquire_sys_u32(u64 a) { yield_fiber(); return at<u32>(a); }
template <class W> void store(u64 a, W v) {
    at<W>(a) = v;
    emulated_progress++;
    maybe_yield();
}
inline void store_relaxed_sys(u64 a, u64 v) { store(a, v); }
inline void store_relaxed_sys_u32(u64 a, u32 v) { store(a, v); }
inline void store_release_gpu(u64 a, u64 v) { at<u64>(a) = v; }
inline void fence_acq_rel_sys() {
    land_all(own_warp(), fiber->thread % 32, true);
    land_older(*fiber->block);
    for (unsigned n = dice() % 50; n > 0; n--) yield_fiber();
}
inline u32 load_relaxed_sys_u32(u64 a) { return at<u32>(a); }
inline u64 load_relaxed_sys(u64 a) { return at<u64>(a); }
inline u64 now_ns() { return emulated_ns; }
inline u32 add_acq_rel_gpu(u32* a, u32 v) { u32 old = *a; *a += v; return old; }
inline void add_release_gpu(u64 a, u32 v) { at<u32>(a) += v; }
inline Pack load_pack(u64 a) {
    REQUIRE(a % 16 == 0, "misaligned load");
    maybe_yield();
    if (weak_stores) land_own(own_warp(), fiber->thread % 32, a);
    return at<Pack>(a);
}
inline void store_pack(u64 a, Pack v) {
    if (!weak_stores) return store(a, v);
    REQUIRE(a % 16 == 0, "misaligned store");
    Warp& w = own_warp();
    w.pending.push_back({a, v.x, v.y, fiber->thread % 32, w.generation, fiber->block->all.phase});
    if (dice() % 2) land(w, dice() % w.pending.size());
    maybe_yield();
}
inline Word load_word(u64 a) { yield_fiber(); return at<Word>(a); }
inline void store_word(u64 a, u64 d, u32 f) { store(a, Word{(u32)d, f, (u32)(d >> 32), f}); }
// A line is stored when its eight parts have come, and loaded as it was when the first part was asked for.
struct LineCopy { Pack parts[8]; unsigned count = 0; };
inline std::map<std::pair<Warp*, u64>, LineCopy> line_stores, line_loads;
inline void store_line_part(u64 a, Pack v) {
    auto key = std::make_pair(&own_warp(), a & ~127ull);
    LineCopy& line = line_stores[key];
    line.parts[a % 128 / 16] = v;
    if (++line.count == 8) {
        std::memcpy((void*)(a & ~127ull), line.parts, 128);
        line_stores.erase(key);
        emulated_progress++;
    }
    maybe_yield();
}
inline Pack load_line_part_alone(u64 a) {
    yield_fiber();
    return at<Pack>(a);
}
inline void store_line_part_alone(u64 a, Pack v) {
    at<Pack>(a) = v;
    maybe_yield();
}
inline Pack load_line_part(u64 a) {
    yield_fiber();
    auto key = std::make_pair(&own_warp(), a & ~127ull);
    LineCopy& line = line_loads[key];
    if (line.count == 0) std::memcpy(line.parts, (void*)(a & ~127ull), 128);
    Pack v = line.parts[a % 128 / 16];
    if (++line.count == 8) line_loads.erase(key);
    return v;
}
template <class W> u64 load_part(u64 a) {
    REQUIRE(a % sizeof(W) == 0, "misaligned load");
    return at<W>(a);
}
template <class W> void store_part(u64 a, u64 v) {
    REQUIRE(a % sizeof(W) == 0, "misaligned store");
    at<W>(a) = (W)v;
    emulated_progress++;
}
inline u64 load_part_if(bool some, u64 a) { return some ? load_part<u64>(a) : 0; }
inline void store_part_if(bool some, u64 a, u64 v) {
    if (some) store_part<u64>(a, v);
}
inline void barrier_wait(u32 b, u32 n) { emulated_sync(b, n); }
inline void barrier_arrive(u32 b, u32 n) { emulated_arrive(b, n); maybe_yield(); }

} // namespace hawser

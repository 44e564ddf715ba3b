// A GPU of fibers: enough of CUDA to run the kernels' source on one CPU thread, in random
// interleavings. Barriers and warp operations check that they are used as the hardware demands. It
// shows errors of logic (deadlocks, wrong slots, wrong places), not of memory order.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <ucontext.h>
#include <vector>

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

struct Barrier {
    unsigned count = 0, phase = 0, threads = 0;
    std::vector<bool> here = std::vector<bool>(1024);
};
struct Warp {
    uint64_t values[2][32];
    const char* what[2];
    unsigned count = 0, generation = 0;
};
struct BlockRun {
    unsigned index, threads;
    Barrier barriers[16];
    std::vector<Warp> warps = std::vector<Warp>(32);
    std::shared_ptr<void> shared;
};
struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(128 << 10);
    BlockRun* block;
    unsigned thread;
    std::function<void()> body;
    bool over = false;
};
struct Dim { unsigned x; };

inline Dim emulated_thread, emulated_block, emulated_dim;
inline Fiber* fiber;
inline ucontext_t scheduler;
inline std::mt19937 dice;
inline uint64_t emulated_ns = 1;
#define threadIdx emulated_thread
#define blockIdx emulated_block
#define blockDim emulated_dim

#define REQUIRE(x, ...)                                                          \
    if (!(x)) {                                                                  \
        std::printf("%s:%d: %s: ", __FILE__, __LINE__, #x);                      \
        std::printf(__VA_ARGS__);                                                \
        std::printf("\n");                                                       \
        std::abort();                                                            \
    }

inline void yield_fiber() { swapcontext(&fiber->context, &scheduler); }
inline void maybe_yield() { if (dice() % 4 == 0) yield_fiber(); }

inline void run_fibers(std::vector<std::unique_ptr<Fiber>>& fibers) {
    static void (*start)() = [] { fiber->body(); fiber->over = true; yield_fiber(); };
    for (auto& f : fibers) {
        getcontext(&f->context);
        f->context.uc_stack = {f->stack.data(), 0, f->stack.size()};
        f->context.uc_link = nullptr;
        makecontext(&f->context, start, 0);
    }
    std::vector<Fiber*> alive;
    for (auto& f : fibers) alive.push_back(f.get());
    uint64_t switches = 0;
    while (!alive.empty()) {
        size_t i = dice() % alive.size();
        // Bursts: one warp or thread may run far ahead.
        unsigned burst = dice() % 8 == 0 ? 64 : 1;
        fiber = alive[i];
        for (unsigned n = 0; n < burst && !fiber->over; n++) {
            emulated_thread = {fiber->thread};
            emulated_block = {fiber->block->index};
            emulated_dim = {fiber->block->threads};
            swapcontext(&scheduler, &fiber->context);
            emulated_ns += 10;
        }
        if (fiber->over) { alive[i] = alive.back(); alive.pop_back(); }
        REQUIRE(++switches < 400u * 1000 * 1000, "no end: %zu threads wait", alive.size());
    }
}

inline void emulated_arrive(unsigned id, unsigned threads) {
    Barrier& b = fiber->block->barriers[id];
    REQUIRE(b.count == 0 || b.threads == threads, "barrier %u: %u or %u threads", id, b.threads, threads);
    REQUIRE(!b.here[fiber->thread], "barrier %u: thread %u arrives twice", id, fiber->thread);
    b.threads = threads;
    b.here[fiber->thread] = true;
    if (++b.count == threads) {
        b.count = 0;
        b.phase++;
        b.here.assign(1024, false);
    }
}
inline void emulated_sync(unsigned id, unsigned threads) {
    unsigned phase = fiber->block->barriers[id].phase;
    emulated_arrive(id, threads);
    while (fiber->block->barriers[id].phase == phase) yield_fiber();
}
inline const uint64_t* emulated_warp(const char* what, uint64_t value) {
    Warp& w = fiber->block->warps[fiber->thread / 32];
    unsigned g = w.generation;
    REQUIRE(w.count == 0 || w.what[g % 2] == what, "warp diverged: %s and %s", w.what[g % 2], what);
    w.what[g % 2] = what;
    w.values[g % 2][fiber->thread % 32] = value;
    if (++w.count == 32) w.count = 0, w.generation++;
    while (w.generation == g) yield_fiber();
    return w.values[g % 2];
}
inline void __syncthreads() { emulated_sync(0, emulated_dim.x); }
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

namespace hawser {

template <class T> T& at(u64 address) { return *(T*)address; }
inline u64 load_acquire_sys(u64 a) { yield_fiber(); return at<u64>(a); }
inline void store_relaxed_sys(u64 a, u64 v) { at<u64>(a) = v; maybe_yield(); }
inline void store_relaxed_sys_u32(u64 a, u32 v) { at<u32>(a) = v; maybe_yield(); }
inline void store_release_gpu(u64 a, u64 v) { at<u64>(a) = v; }
inline void fence_acq_rel_sys() { for (unsigned n = dice() % 50; n > 0; n--) yield_fiber(); }
inline u32 load_relaxed_sys_u32(u64 a) { return at<u32>(a); }
inline u64 now_ns() { return emulated_ns; }
inline u32 add_acq_rel_gpu(u32* a, u32 v) { u32 old = *a; *a += v; return old; }
inline Pack load_pack(u64 a) { maybe_yield(); return at<Pack>(a); }
inline void store_pack(u64 a, Pack v) { at<Pack>(a) = v; maybe_yield(); }
inline Word load_word(u64 a) { yield_fiber(); return at<Word>(a); }
inline void store_word(u64 a, u64 d, u32 f) { at<Word>(a) = {(u32)d, f, (u32)(d >> 32), f}; maybe_yield(); }
// A line is stored when its eight parts have come, and loaded as it was when the first part was asked for.
struct LineCopy { Pack parts[8]; unsigned count = 0; };
inline std::map<std::pair<Warp*, u64>, LineCopy> line_stores, line_loads;
inline void store_line_part(u64 a, Pack v) {
    auto key = std::make_pair(&fiber->block->warps[fiber->thread / 32], a & ~127ull);
    LineCopy& line = line_stores[key];
    line.parts[a % 128 / 16] = v;
    if (++line.count == 8) {
        std::memcpy((void*)(a & ~127ull), line.parts, 128);
        line_stores.erase(key);
    }
    maybe_yield();
}
inline Pack load_line_part(u64 a) {
    yield_fiber();
    auto key = std::make_pair(&fiber->block->warps[fiber->thread / 32], a & ~127ull);
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
}
inline void barrier_wait(u32 b, u32 n) { emulated_sync(b, n); }
inline void barrier_arrive(u32 b, u32 n) { emulated_arrive(b, n); maybe_yield(); }

} // namespace hawser

#include "../state.cuh"

namespace hawser {
inline Shared& emulated_shared() { return *(Shared*)fiber->block->shared.get(); }
} // namespace hawser
#define sh emulated_shared()
#include "../interp.cuh"

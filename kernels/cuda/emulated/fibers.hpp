// Threads of emulated GPUs as fibers on one CPU thread, in random order or in orders that let some run far ahead of others.
#pragma once

#undef _FORTIFY_SOURCE // its longjmp takes a change of stacks for an error
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <ucontext.h>
#include <vector>

#define REQUIRE(x, ...)                                                          \
    if (!(x)) {                                                                  \
        std::printf("%s:%d: %s: ", __FILE__, __LINE__, #x);                      \
        std::printf(__VA_ARGS__);                                                \
        std::printf("\n");                                                       \
        std::fflush(stdout);                                                     \
        std::abort();                                                            \
    }

struct Barrier {
    unsigned count = 0, phase = 0, threads = 0;
    std::vector<bool> here = std::vector<bool>(1024);

    void complete() {
        count = 0;
        phase++;
        here.assign(1024, false);
    }
};
// A plain store that others may not see yet.
struct Pending {
    uint64_t address, x, y;
    unsigned lane, generation, phase; // of the warp's and the block's barriers
};
struct Warp {
    uint64_t values[2][32];
    const char* what[2];
    unsigned count = 0, generation = 0, left = 0;
    std::vector<Pending> pending;
};
struct BlockRun {
    unsigned index, grid, threads, left = 0;
    Barrier barriers[16];
    Barrier all; // of __syncthreads: those that have not left
    bool votes[2];
    std::vector<Warp> warps = std::vector<Warp>(32);
    std::shared_ptr<void> shared;
};
struct Fiber {
    jmp_buf context;
    ucontext_t first;
    std::unique_ptr<char[]> stack;
    BlockRun* block;
    unsigned rank, thread;
    std::function<void()> body;
    bool started = false, over = false;
    const unsigned* waits_for = nullptr; // to become different from `waits_value`
    unsigned waits_value = 0;
};

inline Fiber* fiber;
inline jmp_buf scheduler;
inline std::mt19937 dice;
inline uint64_t emulated_ns = 1;
inline uint64_t emulated_progress = 0; // stores, barriers and ends so far

[[gnu::noinline]] inline void yield_fiber() {
    if (_setjmp(fiber->context) == 0) _longjmp(scheduler, 1);
}
inline void maybe_yield() {
    if (dice() % 4 == 0) yield_fiber();
}
inline void wait_for_change(const unsigned& of, unsigned from) {
    while (of == from) {
        fiber->waits_for = &of, fiber->waits_value = from;
        yield_fiber();
    }
    fiber->waits_for = nullptr;
}
[[gnu::noinline]] inline void resume_fiber() {
    if (_setjmp(scheduler) != 0) return;
    if (fiber->started) _longjmp(fiber->context, 1);
    fiber->started = true;
    setcontext(&fiber->first);
}

// Whom the scheduler lets run for a while.
struct Policy {
    enum { ALL, ONLY_RANK, NOT_RANK, NOT_WARP, NOT_THREAD } kind = ALL;
    unsigned rank = 0, block = 0, thread = 0;

    bool holds(const Fiber& f) const {
        bool same = f.rank == rank, here = same && f.block->index == block;
        switch (kind) {
        case ONLY_RANK: return !same;
        case NOT_RANK: return same;
        case NOT_WARP: return here && f.thread / 32 == thread / 32;
        case NOT_THREAD: return here && f.thread == thread;
        default: return false;
        }
    }
};

class Fibers {
public:
    // Called when the last fiber of a rank is over; may add the rank's next kernel.
    std::function<void(unsigned rank)> next;

    void add(BlockRun* block, unsigned rank, unsigned thread, std::function<void()> body) {
        auto f = std::make_unique<Fiber>();
        if (spare.empty()) f->stack.reset(new char[STACK]);
        else f->stack = std::move(spare.back()), spare.pop_back();
        f->block = block, f->rank = rank, f->thread = thread, f->body = std::move(body);
        getcontext(&f->first);
        f->first.uc_stack.ss_sp = f->stack.get(), f->first.uc_stack.ss_size = STACK;
        f->first.uc_link = nullptr;
        makecontext(&f->first, start, 0);
        alive.push_back(std::move(f));
        if (of_rank.size() <= rank) of_rank.resize(rank + 1);
        of_rank[rank]++;
    }

    // Until all are over. `drift`: at times only one rank runs, or all but one rank, warp or thread, and on until those
    // that run have nothing left to do: ranks drift apart as far as their protocol lets them.
    void run(bool drift) {
        Policy policy;
        uint64_t quiet = 0, until = 0, seen = emulated_progress, tries = 0;
        while (!alive.empty()) {
            if (drift && tries++ >= until) {
                policy = choose();
                until = tries + 200 + dice() % (400 * alive.size());
                if (policy.kind != Policy::ALL && dice() % 2) until = ~0ull; // until they are stuck
            }
            quiet = emulated_progress == seen ? quiet + 1 : 0;
            seen = emulated_progress;
            if (policy.kind != Policy::ALL && quiet > 200 + 40 * alive.size()) until = tries;
            REQUIRE(quiet < 100u * 1000 * 1000, "no end: %zu threads wait, such as %u of block %u of rank %u", alive.size(),
                    alive[0]->thread, alive[0]->block->index, alive[0]->rank);
            size_t i = dice() % alive.size();
            Fiber& f = *alive[i];
            if (policy.holds(f) || (f.waits_for && *f.waits_for == f.waits_value)) continue;
            // Bursts: one warp or thread may run far ahead.
            step(f, dice() % 8 == 0 ? 64 : 1);
            if (f.over) end(i);
        }
    }

private:
    static constexpr size_t STACK = 128 << 10;
    std::vector<std::unique_ptr<Fiber>> alive;
    std::vector<unsigned> of_rank;
    static inline std::vector<std::unique_ptr<char[]>> spare;

    static void start() {
        fiber->body();
        fiber->over = true;
        yield_fiber();
    }
    static void step(Fiber& f, unsigned times);
    Policy choose() const {
        const Fiber& f = *alive[dice() % alive.size()];
        static const auto kinds = {Policy::ALL, Policy::ALL, Policy::ONLY_RANK, Policy::NOT_RANK, Policy::NOT_RANK,
                                   Policy::NOT_WARP, Policy::NOT_THREAD, Policy::NOT_THREAD};
        return {kinds.begin()[dice() % kinds.size()], f.rank, f.block->index, f.thread};
    }
    void end(size_t i) {
        unsigned rank = alive[i]->rank;
        spare.push_back(std::move(alive[i]->stack));
        std::swap(alive[i], alive.back());
        alive.pop_back();
        emulated_progress++;
        if (--of_rank[rank] == 0 && next) next(rank);
    }
};

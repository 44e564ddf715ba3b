// Giving up: every wait looks now and then whether the communicator was aborted or the deadline is over.
#pragma once

#include "state.cuh"

namespace hawser {

constexpr u32 SPINS = 1024; // polls between two looks: well below a millisecond

__device__ __forceinline__ u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ u32 given_up(const Shared& sh) { return *(const volatile u32*)&sh.given_up; }

// Says whether to stop waiting. `since` is 0 at first and keeps the time of the first look. If so,
// all warps leave at the start of `turn`, and the first one writes the report.
__device__ __noinline__ bool give_up(Shared& sh, u32 turn, const Record& record, u32 what, u32 peer, u64& since) {
    if (given_up(sh) != NEVER) return true;
    u32 code = 0;
    u64 now = now_ns();
    if (since == 0) since = now;
    if (sh.comm.abort != 0 && load_relaxed_sys_u32(sh.comm.abort) != 0) code = HAWSER_ABORTED;
    else if (sh.comm.deadline_ns != 0 && now - since > sh.comm.deadline_ns) code = HAWSER_DEADLINE;
    if (code == 0) return false;
    atomicMin(&sh.given_up, turn);
    HawserReport* report = (HawserReport*)sh.comm.report;
    if (report != nullptr && atomicCAS_system(&report->code, 0u, code) == 0) {
        volatile HawserReport* to = report;
        to->block = blockIdx.x;
        to->step = record.step;
        to->peer = peer;
        to->what = what;
        to->tile = record.tile;
        to->op_number = sh.op_number;
        __threadfence_system();
    }
    return true;
}

// A poll loop's memory.
struct Patience {
    u64 since = 0;
    u32 spins = 0;
    __device__ __forceinline__ bool look() { return ++spins % SPINS == 0; }
};

} // namespace hawser

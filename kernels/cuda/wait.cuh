// Giving up: every wait looks now and then whether the communicator was aborted or the deadline is over.
#pragma once

#include "report.cuh"
#include "state.cuh"

namespace hawser {

constexpr u32 SPINS = 1024; // polls between two looks, a power of two: well below a millisecond

__device__ __forceinline__ u32 given_up() { return *(const volatile u32*)&sh.given_up; }

// Says whether to stop waiting. `record` is the turn that waits. `since` is 0 at first and keeps the time of the first look. If so,
// all warps leave at the start of `turn`, and the first one writes the report.
__device__ __noinline__ bool give_up(u32 turn, u32 record, u32 what, u32 peer, u64& since) {
    if (given_up() != NEVER) return true;
    u32 code = 0;
    u64 now = now_ns();
    if (since == 0) since = now;
    const auto& at = sh.records[record % STAGES];
    const Waited waited{at.step, peer, what, at.tile, sh.op_number};
    if (told_to_leave(sh.comm, waited)) code = HAWSER_ABORTED;
    else if (sh.comm.deadline_ns != 0 && now - since > sh.comm.deadline_ns) code = HAWSER_DEADLINE;
    if (code == 0) return false;
    atomicMin(&sh.given_up, turn);
    write_report(sh.comm.report, code, waited);
    return true;
}

// A poll loop's memory.
struct Patience {
    u64 since = 0;
    u32 spins = 0;
    u32 mask = SPINS - 1;
    // Counts a poll; says whether it is time to look.
    __device__ __forceinline__ bool due() { return (++spins & mask) == 0; }
    // After giving up: look at every poll, so that the turn ends soon.
    __device__ __forceinline__ bool lost() { mask = 0; return true; }
};

} // namespace hawser

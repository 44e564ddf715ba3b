// What blocks tell the host, which may look at any time: why the first of a rank gave up, and whether one waits for the rank
// that the host asks about.
#pragma once

#include "memory.cuh"
#include "plan.h"

namespace hawser {

struct Waited {
    u32 step, peer, what, tile;
    u64 op_number;
};

// `at` is the address of the rank's report, or 0.
__device__ __forceinline__ void write_report(u64 at, u32 code, const Waited& waited) {
    HawserReport* report = (HawserReport*)at;
    if (report == nullptr || atomicCAS_system(&report->code, 0u, HAWSER_REPORTING) != 0) return;
    volatile HawserReport* to = report;
    to->block = blockIdx.x;
    to->step = waited.step;
    to->peer = waited.peer;
    to->what = waited.what;
    to->tile = waited.tile;
    to->op_number = waited.op_number;
    __threadfence_system();
    to->code = code;
}

// Looks at the abort word. Says whether to leave; answers, behind the report, if the host asks about this wait.
__device__ __forceinline__ bool told_to_leave(const HawserDevComm& comm, const Waited& waited) {
    if (comm.abort == 0) return false;
    u32 word = load_relaxed_sys_u32(comm.abort);
    if (word == HAWSER_ASK + waited.peer && waited.what != HAWSER_WAIT_CHANNEL && comm.report != 0) {
        write_report(comm.report + sizeof(HawserReport), HAWSER_WAITING, waited);
    }
    return word == HAWSER_LEAVE;
}

} // namespace hawser

// What the first block of a rank that gives up tells the host, which may look at any time.
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

} // namespace hawser

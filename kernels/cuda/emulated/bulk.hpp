// Bulk copies and their barriers on fibers: a copy lands at any time until somebody has to have it.
#pragma once

#include "device.hpp"

namespace hawser {

// What lies in the 8 bytes of a barrier.
struct PhaseBarrier {
    int32_t bytes; // that are still to come
    uint8_t arrivals, missing;
    uint16_t phase;

    void look() {
        REQUIRE(missing != 0xff, "more arrivals than a phase has");
        if (missing != 0 || bytes != 0) return;
        missing = arrivals;
        phase++;
        emulated_progress++;
    }
};
static_assert(sizeof(PhaseBarrier) == 8, "");

struct BulkCopy {
    void* to;
    u64 from;
    u32 bytes;
    PhaseBarrier* barrier;
};
inline std::vector<BulkCopy> bulk_copies;

inline PhaseBarrier* phase_barrier(u64* barrier) { return (PhaseBarrier*)barrier; }
inline void init_barrier(u64* barrier, u32 arrivals) { *phase_barrier(barrier) = {0, (uint8_t)arrivals, (uint8_t)arrivals, 0}; }
inline void arrive(u64* barrier) {
    phase_barrier(barrier)->missing--;
    phase_barrier(barrier)->look();
    maybe_yield();
}
inline void arrive_and_expect(u64* barrier, u32 bytes) {
    phase_barrier(barrier)->bytes += (int32_t)bytes;
    arrive(barrier);
}
inline void load_bulk(void* to, u64 from, u32 bytes, u64* barrier) {
    REQUIRE((u64)to % 16 == 0 && from % 16 == 0 && bytes % 16 == 0 && bytes > 0, "a bulk copy of %u odd bytes", bytes);
    bulk_copies.push_back({to, from, bytes, phase_barrier(barrier)});
    maybe_yield();
}
// Any copy may land while somebody waits.
inline void land_a_copy() {
    if (bulk_copies.empty()) return;
    std::swap(bulk_copies[dice() % bulk_copies.size()], bulk_copies.back());
    BulkCopy copy = bulk_copies.back();
    bulk_copies.pop_back();
    std::memcpy(copy.to, (void*)copy.from, copy.bytes);
    copy.barrier->bytes -= (int32_t)copy.bytes;
    copy.barrier->look();
}
inline void wait_phase(u64* barrier, u32 parity) {
    while (phase_barrier(barrier)->phase % 2 == parity % 2) {
        if (dice() % 8 == 0) land_a_copy();
        yield_fiber();
    }
}
inline void fence_bulk() {}

} // namespace hawser

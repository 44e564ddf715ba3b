// Bulk copies and their barriers on fibers: a copy lands at any time until somebody has to have it.
#pragma once

#include "device.hpp"

#include "../plan.h"

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
// Groups on their way to memory, by thread: any write of the oldest group that is not there yet may land, first read, then written.
struct BulkWrite {
    u64 to;
    const void* from;
    u32 bytes;
    void (*add)(u64 to, const unsigned char* from, u32 bytes);
    std::vector<unsigned char> read;
    bool is_read, is_there;
};
inline std::map<Fiber*, std::vector<std::vector<BulkWrite>>> bulk_groups;
inline std::map<Fiber*, std::vector<BulkWrite>> bulk_group; // that is not committed
inline void read_bulk(BulkWrite& w) {
    if (w.is_read) return;
    w.read.assign((const unsigned char*)w.from, (const unsigned char*)w.from + w.bytes);
    w.is_read = true;
}
inline void land_bulk(BulkWrite& w) {
    read_bulk(w);
    if (w.is_there) return;
    w.add(w.to, w.read.data(), w.bytes);
    w.is_there = true;
    emulated_progress++;
}
inline void land_some() {
    for (auto& group : bulk_groups[fiber])
        for (BulkWrite& w : group)
            if (dice() % 4 == 0) dice() % 2 ? read_bulk(w) : land_bulk(w);
}
inline void write_bulk(u64 to, const void* from, u32 bytes, void (*add)(u64, const unsigned char*, u32)) {
    REQUIRE(to % 16 == 0 && (u64)from % 16 == 0 && bytes % 16 == 0 && bytes > 0, "a bulk write of %u odd bytes", bytes);
    bulk_group[fiber].push_back({to, from, bytes, add, {}, false, false});
    maybe_yield();
}
inline void store_bulk(u64 to, const void* from, u32 bytes) {
    write_bulk(to, from, bytes, [](u64 to, const unsigned char* from, u32 bytes) { std::memcpy((void*)to, from, bytes); });
}
template <class T>
inline void add_elements(u64 to, const unsigned char* from, u32 bytes) {
    for (u32 at = 0; at < bytes; at += sizeof(T)) *(T*)(to + at) += *(const T*)(from + at);
}
template <u32 TYPE>
inline void add_bulk(u64 to, const void* from, u32 bytes) {
    auto add = TYPE == HAWSER_ADDS_F32 ? add_elements<float> : TYPE == HAWSER_ADDS_F64 ? add_elements<double> : TYPE == HAWSER_ADDS_U32 ? add_elements<u32> : add_elements<u64>;
    REQUIRE(TYPE != HAWSER_ADDS_F16 && TYPE != HAWSER_ADDS_BF16, "the emulation does not add halves");
    write_bulk(to, from, bytes, add);
}
inline void commit_bulk() {
    bulk_groups[fiber].push_back(std::move(bulk_group[fiber]));
    bulk_group[fiber].clear();
    land_some();
}
template <u32 LAST>
inline void wait_bulk() {
    auto& groups = bulk_groups[fiber];
    for (size_t i = 0; i + LAST < groups.size(); i++)
        for (BulkWrite& w : groups[i]) land_bulk(w);
    if (groups.size() > LAST) groups.erase(groups.begin(), groups.end() - LAST);
    maybe_yield();
}
template <u32 LAST>
inline void wait_bulk_read() {
    auto& groups = bulk_groups[fiber];
    for (size_t i = 0; i + LAST < groups.size(); i++)
        for (BulkWrite& w : groups[i]) read_bulk(w);
    maybe_yield();
}
inline void wait_phase(u64* barrier, u32 parity) {
    while (phase_barrier(barrier)->phase % 2 == parity % 2) {
        if (dice() % 8 == 0) land_a_copy();
        yield_fiber();
    }
}
inline void fence_bulk() {}

} // namespace hawser

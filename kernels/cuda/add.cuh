// Sums what copy engines have moved where memory itself adds (cp.reduce.async.bulk, sm_90). One thread moves tiles from each
// operand to shared memory and on to where the sum is made, so a block is so small (a warp, few registers, less than 5 KiB) that it begins
// beside blocks of a GEMM which leave no room for others until they are over (docs/adr/0009). fold.cuh does all that memory
// cannot: other operations, factors, types that are to be summed up in float.
#pragma once

#include "plan.h"
#include "types.cuh"
#ifndef HAWSER_EMULATED // emulated/bulk.hpp has them
#include "bulk.cuh"
#endif

namespace hawser {

constexpr u32 ADD_STAGES = 4, ADD_TILE = HAWSER_ADD_SHARED / ADD_STAGES & ~127u;

#ifdef HAWSER_EMULATED
u64* add_barriers();
unsigned char* add_stages();
#else
__shared__ u64 add_full[ADD_STAGES];
__device__ __forceinline__ u64* add_barriers() { return add_full; }
__device__ __forceinline__ unsigned char* add_stages() {
    extern __shared__ __align__(128) unsigned char stages[];
    return stages;
}
#endif

// What a block moves, in this order: its tiles in batches of as many as there are stages; of a batch the first operand's tiles,
// then the second's, and so on. So the n-th thing is in stage n % ADD_STAGES, and the operand before it for the same tile was ADD_STAGES
// things ago. The last batch may have fewer tiles: what is missing is moved as nothing.
struct AddWalk {
    const HawserFold& a;
    u64 at;          // of the batch
    u32 operand = 0; // that is not in place
    u32 stage = 0;

    __device__ __forceinline__ AddWalk(const HawserFold& a) : a(a), at((u64)blockIdx.x * ADD_TILE) { skip_own(); }
    __device__ __forceinline__ bool more() const { return at < a.bytes; }
    __device__ __forceinline__ u64 offset() const { return at + (u64)stage * gridDim.x * ADD_TILE; }
    __device__ __forceinline__ u32 size() const {
        u64 offset = this->offset();
        return offset >= a.bytes ? 0 : a.bytes - offset < ADD_TILE ? (u32)(a.bytes - offset) : ADD_TILE;
    }
    __device__ __forceinline__ void next() {
        if (++stage < ADD_STAGES) return;
        stage = 0, operand++;
        skip_own();
        if (operand < a.n) return;
        operand = 0, at += (u64)gridDim.x * ADD_TILE * ADD_STAGES;
        skip_own();
    }

private:
    __device__ __forceinline__ void skip_own() {
        if (operand < a.n && a.from[operand] == a.to) operand++;
    }
};

__device__ __forceinline__ void load_tile(const AddWalk& w) {
    u32 size = w.size();
    if (size == 0) return;
    u64* full = &add_barriers()[w.stage];
    arrive_and_expect(full, size);
    load_bulk(add_stages() + w.stage * ADD_TILE, w.a.from[w.operand] + w.offset(), size, full);
}

// The operand that comes first is the sum so far, unless one is in place.
__device__ __forceinline__ void add_tile(const AddWalk& w, bool is_first) {
    u64 to = w.a.to + w.offset();
    const unsigned char* from = add_stages() + w.stage * ADD_TILE;
    u32 size = w.size();
    if (size == 0) return;
    if (is_first) return store_bulk(to, from, size);
    switch (w.a.adds) {
    case HAWSER_ADDS_F16: return add_bulk<HAWSER_ADDS_F16>(to, from, size);
    case HAWSER_ADDS_BF16: return add_bulk<HAWSER_ADDS_BF16>(to, from, size);
    case HAWSER_ADDS_F32: return add_bulk<HAWSER_ADDS_F32>(to, from, size);
    case HAWSER_ADDS_F64: return add_bulk<HAWSER_ADDS_F64>(to, from, size);
    case HAWSER_ADDS_U32: return add_bulk<HAWSER_ADDS_U32>(to, from, size);
    case HAWSER_ADDS_U64: return add_bulk<HAWSER_ADDS_U64>(to, from, size);
    }
}

// One thread calls it. Addresses and lengths are multiples of 16.
__device__ __forceinline__ void add_operands(const HawserFold& a) {
    for (u32 s = 0; s < ADD_STAGES; s++) init_barrier(&add_barriers()[s], 1);
    fence_bulk(); // and what copy engines had written before this kernel began
    bool in_place = false;
    for (u32 i = 0; i < a.n; i++) in_place |= a.from[i] == a.to;
    AddWalk w(a), ahead(a);
    for (u32 i = 0; i < ADD_STAGES && ahead.more(); i++, ahead.next()) load_tile(ahead);
    u32 phase = 0;
    for (bool again = false; w.more(); again = true) {
        if (w.size() != 0) wait_phase(&add_barriers()[w.stage], phase);
        wait_bulk<ADD_STAGES - 1>(); // the operand before it is there
        add_tile(w, w.operand == 0 && !in_place);
        commit_bulk();
        // The stage before this one has been read.
        wait_bulk_read<1>();
        if (again && ahead.more()) load_tile(ahead), ahead.next();
        if (w.stage == ADD_STAGES - 1) phase ^= 1;
        w.next();
    }
    wait_bulk<0>();
}

} // namespace hawser

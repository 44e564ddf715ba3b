// Combines operands along the balanced tree over ranks that HAWSER_REPRODUCIBLE=2 declares: ((0 1) (2 3)) of four, (((0 1) (2 3)) 4)
// of five. Every node is rounded to the element type, as it is where ranks of a smaller communicator have combined it.
#pragma once

#include "types.cuh"

namespace hawser {

// The values of some packs.
template <class M, u32 PACKS>
struct PackValues {
    typename M::Value low[PACKS], high[PACKS];

    __device__ __forceinline__ static PackValues of(const M& m, const Pack (&v)[PACKS], bool scale) {
        PackValues values;
#pragma unroll
        for (u32 b = 0; b < PACKS; b++) values.low[b] = m.value(v[b].x, scale), values.high[b] = m.value(v[b].y, scale);
        return values;
    }
    __device__ __forceinline__ void join(const PackValues& right) {
#pragma unroll
        for (u32 b = 0; b < PACKS; b++) low[b] = M::joined(low[b], right.low[b]), high[b] = M::joined(high[b], right.high[b]);
    }
    __device__ __forceinline__ Pack pack(const M& m, u32 b) const { return {m.piece(low[b], false), m.piece(high[b], false)}; }
};

// The value of a piece.
template <class M>
struct PieceValue {
    typename M::Value value;

    __device__ __forceinline__ void join(const PieceValue& right) { value = M::joined(value, right.value); }
};

// A number that the compiler knows: what it indexes stays in registers.
template <u32 N>
struct Number {
    static constexpr u32 value = N;
};

// Combines operands [FIRST, FIRST + WIDTH) as far as they are among `n`: that is the tree of WIDTH, a power of two, without the nodes
// that have no right side. `get(Number<p>())` is operand p.
template <u32 FIRST, u32 WIDTH, class Get>
__device__ __forceinline__ auto nested(u32 n, const Get& get) {
    if constexpr (WIDTH == 1) return get(Number<FIRST>());
    else {
        auto left = nested<FIRST, WIDTH / 2>(n, get);
        if (FIRST + WIDTH / 2 < n) left.join(nested<FIRST + WIDTH / 2, WIDTH / 2>(n, get));
        return left;
    }
}

} // namespace hawser

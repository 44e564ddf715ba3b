// Combines operands along the balanced tree over ranks that HAWSER_REPRODUCIBLE=2 declares: ((0 1) (2 3)) of four, (((0 1) (2 3)) 4)
// of five. Every node is rounded to the element type, as it is where ranks of a smaller communicator have combined it.
#pragma once

#include "types.cuh"

namespace hawser {

// Operands come in the order of ranks: to add one more is to add 1 to a binary number, whose digits are finished subtrees of 1, 2, 4
// and 8 operands, and whose carries join two of them. At most 15 operands.
template <class M>
struct Nest {
    static constexpr u32 LEVELS = 4;
    using Value = typename M::Value;
    Value tree[LEVELS];

    // Adds operand number `p`.
    __device__ __forceinline__ void add(u32 p, Value v) {
#pragma unroll
        for (u32 l = 0; l < LEVELS; l++) {
            if (!(p >> l & 1)) {
                tree[l] = v;
                return;
            }
            v = M::joined(tree[l], v);
        }
    }
    // The value of `n` operands: what is left over joins the larger subtrees, the smallest first.
    __device__ __forceinline__ Value value(u32 n) const {
        Value v{};
        bool any = false;
#pragma unroll
        for (u32 l = 0; l < LEVELS; l++) {
            if (!(n >> l & 1)) continue;
            v = any ? M::joined(tree[l], v) : tree[l];
            any = true;
        }
        return v;
    }
};

// The same for the two pieces of a pack.
template <class M>
struct NestedPack {
    Nest<M> low, high;

    __device__ __forceinline__ void add(const M& m, u32 p, Pack v, bool scale) {
        low.add(p, m.value(v.x, scale));
        high.add(p, m.value(v.y, scale));
    }
    __device__ __forceinline__ Pack value(const M& m, u32 n) const {
        return {m.piece(low.value(n), false), m.piece(high.value(n), false)};
    }
};

} // namespace hawser

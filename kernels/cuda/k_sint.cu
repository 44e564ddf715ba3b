// Signed integers of 4 and 8 bytes, where the sign matters.
#include "interp.cuh"

#define TYPE(T, type)                 \
    HAWSER_KERNELS(Max, max, T, type) \
    HAWSER_KERNELS(Min, min, T, type) \
    HAWSER_KERNELS(SumDiv, sumdiv, T, type)

TYPE(int32_t, i32)
TYPE(int64_t, i64)

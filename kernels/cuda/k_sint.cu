// Signed integers, where the sign matters.
#include "interp.cuh"

#define TYPE(T, type)                 \
    HAWSER_KERNELS(Max, max, T, type) \
    HAWSER_KERNELS(Min, min, T, type) \
    HAWSER_KERNELS(SumDiv, sumdiv, T, type)

TYPE(int8_t, i8)
TYPE(int32_t, i32)
TYPE(int64_t, i64)

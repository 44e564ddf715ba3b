// Sums beside copy engines: integers. Those that do not depend on the sign are the unsigned ones.
#include "fold.cuh"

#define SIGNED_TOO(T, type)          \
    HAWSER_FOLD(Max, max, T, type)   \
    HAWSER_FOLD(Min, min, T, type)   \
    HAWSER_FOLD(SumDiv, sumdiv, T, type)
#define TYPE(T, type)                \
    HAWSER_FOLD(Sum, sum, T, type)   \
    HAWSER_FOLD(Prod, prod, T, type) \
    SIGNED_TOO(T, type)

TYPE(uint8_t, u8)
TYPE(uint32_t, u32)
TYPE(uint64_t, u64)
SIGNED_TOO(int8_t, i8)
SIGNED_TOO(int32_t, i32)
SIGNED_TOO(int64_t, i64)

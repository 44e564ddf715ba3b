// Unsigned integers of 4 and 8 bytes; sums and products of signed ones too.
#include "interp.cuh"

#define TYPE(T, type)                       \
    HAWSER_KERNELS(Sum, sum, T, type)       \
    HAWSER_KERNELS(Prod, prod, T, type)     \
    HAWSER_KERNELS(PreMul, premul, T, type) \
    HAWSER_KERNELS(Max, max, T, type)       \
    HAWSER_KERNELS(Min, min, T, type)       \
    HAWSER_KERNELS(SumDiv, sumdiv, T, type)

TYPE(uint32_t, u32)
TYPE(uint64_t, u64)

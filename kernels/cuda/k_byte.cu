// Integers of 1 byte.
#include "interp.cuh"

#define SIGNED_TOO(T, type)           \
    HAWSER_KERNELS(Max, max, T, type) \
    HAWSER_KERNELS(Min, min, T, type) \
    HAWSER_KERNELS(SumDiv, sumdiv, T, type)

HAWSER_KERNELS(Sum, sum, uint8_t, u8)
HAWSER_KERNELS(Prod, prod, uint8_t, u8)
HAWSER_KERNELS(PreMul, premul, uint8_t, u8)
SIGNED_TOO(uint8_t, u8)
SIGNED_TOO(int8_t, i8)

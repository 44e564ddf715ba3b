// Sums beside copy engines: floats of 16 and 8 bits.
#include "fold.cuh"

#define TYPE(T, type)                  \
    HAWSER_FOLD(Sum, sum, T, type)     \
    HAWSER_FOLD(Prod, prod, T, type)   \
    HAWSER_FOLD(Max, max, T, type)     \
    HAWSER_FOLD(Min, min, T, type)     \
    HAWSER_FOLD(PreMul, premul, T, type)

TYPE(hawser::F16, f16)
TYPE(hawser::BF16, bf16)
TYPE(hawser::E4M3, e4m3)
TYPE(hawser::E5M2, e5m2)

// 8-bit floats.
#include "interp.cuh"

#define TYPE(T, type)                      \
    HAWSER_KERNELS(Sum, sum, T, type)      \
    HAWSER_KERNELS(Prod, prod, T, type)    \
    HAWSER_KERNELS(Max, max, T, type)      \
    HAWSER_KERNELS(Min, min, T, type)      \
    HAWSER_KERNELS(PreMul, premul, T, type)

TYPE(hawser::E4M3, e4m3)
TYPE(hawser::E5M2, e5m2)

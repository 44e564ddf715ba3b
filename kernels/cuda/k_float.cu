// float and double.
#include "interp.cuh"

#define TYPE(T, type)                      \
    HAWSER_KERNELS(Sum, sum, T, type)      \
    HAWSER_KERNELS(Prod, prod, T, type)    \
    HAWSER_KERNELS(Max, max, T, type)      \
    HAWSER_KERNELS(Min, min, T, type)      \
    HAWSER_KERNELS(PreMul, premul, T, type)

TYPE(float, f32)
TYPE(double, f64)

// Sums beside copy engines: float and double.
#include "fold.cuh"

#define TYPE(T, type)                  \
    HAWSER_FOLD(Sum, sum, T, type)     \
    HAWSER_FOLD(Prod, prod, T, type)   \
    HAWSER_FOLD(Max, max, T, type)     \
    HAWSER_FOLD(Min, min, T, type)     \
    HAWSER_FOLD(PreMul, premul, T, type)

TYPE(float, f32)
TYPE(double, f64)

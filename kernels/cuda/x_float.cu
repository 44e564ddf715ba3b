// Exchanges of float and double.
#include "exchange_kernels.cuh"

HAWSER_EXCHANGES(Sum, sum, float, f32)
HAWSER_EXCHANGES(Sum, sum, double, f64)
HAWSER_EXCHANGES(PreMul, premul, float, f32)
HAWSER_EXCHANGES(Max, max, float, f32)

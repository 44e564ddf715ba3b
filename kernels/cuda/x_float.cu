// Exchanges of float and double.
#include "exchange_kernels.cuh"

HAWSER_EXCHANGES_OF_FLOATS(Sum, sum, float, f32)
HAWSER_EXCHANGES_OF_FLOATS(Sum, sum, double, f64)
HAWSER_EXCHANGES_OF_FLOATS(PreMul, premul, float, f32)
HAWSER_EXCHANGES_OF_FLOATS(Max, max, float, f32)

// Exchanges of 16-bit floats.
#include "exchange_kernels.cuh"

using namespace hawser;

HAWSER_EXCHANGES(Sum, sum, F16, f16)
HAWSER_EXCHANGES(PreMul, premul, F16, f16)
HAWSER_EXCHANGES(Max, max, F16, f16)

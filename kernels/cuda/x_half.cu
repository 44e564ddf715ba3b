// Exchanges of 16-bit floats.
#include "exchange_kernels.cuh"

using namespace hawser;

HAWSER_EXCHANGES_OF_FLOATS(Sum, sum, F16, f16)
HAWSER_EXCHANGES_OF_FLOATS(PreMul, premul, F16, f16)
HAWSER_EXCHANGES_OF_FLOATS(Max, max, F16, f16)

// Exchanges of bfloat16.
#include "exchange_kernels.cuh"

using namespace hawser;

HAWSER_EXCHANGES_OF_FLOATS(Sum, sum, BF16, bf16)
HAWSER_EXCHANGES_OF_FLOATS(PreMul, premul, BF16, bf16)
HAWSER_EXCHANGES_OF_FLOATS(Max, max, BF16, bf16)

// Exchanges of bfloat16.
#include "exchange_kernels.cuh"

using namespace hawser;

HAWSER_EXCHANGES(Sum, sum, BF16, bf16)
HAWSER_EXCHANGES(PreMul, premul, BF16, bf16)
HAWSER_EXCHANGES(Max, max, BF16, bf16)

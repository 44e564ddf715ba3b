// Exchanges of integers of 4 and 8 bytes, and of 8-bit floats.
#include "exchange_kernels.cuh"

using namespace hawser;

HAWSER_EXCHANGES(Sum, sum, uint32_t, u32)
HAWSER_EXCHANGES(Sum, sum, uint64_t, u64)
HAWSER_EXCHANGES_OF_FLOATS(Sum, sum, E4M3, e4m3)
HAWSER_EXCHANGES_OF_FLOATS(Sum, sum, E5M2, e5m2)

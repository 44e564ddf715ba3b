// Exchanges of bytes that are only moved.
#include "exchange_kernels.cuh"

HAWSER_EXCHANGES(Copy, copy, uint8_t, u8)

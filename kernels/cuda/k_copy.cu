// Bytes that are only moved.
#include "kernels.cuh"

HAWSER_KERNELS(Copy, copy, uint8_t, u8)

// Bytes that are only moved.
#include "interp.cuh"

HAWSER_KERNELS(Copy, copy, uint8_t, u8)

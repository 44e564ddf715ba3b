// Bytes that are only moved.
#include "interp.cuh"

HAWSER_KERNELS(Copy, copy, uint8_t, u8)

extern "C" __global__ void __launch_bounds__(512, 1) hawser_copy_u8_simple_landing(const __grid_constant__ HawserArgs args) {
    hawser::interpret_landing<hawser::Math<uint8_t, hawser::Op::Copy>>(args);
}

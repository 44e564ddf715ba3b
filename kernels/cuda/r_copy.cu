// Sums beside copy engines that memory makes.
#include "add.cuh"

// The planner does not offer it to older GPUs.
extern "C" __global__ void __launch_bounds__(1) hawser_copy_u8_dma(const __grid_constant__ HawserFold args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    hawser::add_operands(args);
#endif
}

// Names of the kernels: hawser_<operation>_<type>_<protocol>, as KernelKey::symbol says.
#pragma once

#include "exchange_lines.cuh"
#include "exchange_tiles.cuh"
#include "exchange_words.cuh"
#include "interp.cuh"

// Older GPUs have few links worth it: the planner does not offer exchanges there, and compiling takes time.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HAWSER_SINCE_SM80(code)
#else
#define HAWSER_SINCE_SM80(code) code
#endif

#define HAWSER_STEPS(OP, op, T, type, PROTOCOL, protocol)                                                             \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                              \
        hawser_##op##_##type##_##protocol(const __grid_constant__ HawserArgs args) {                                  \
        hawser::interpret<hawser::Math<T, hawser::Op::OP>, PROTOCOL>(args);                                           \
    }
#define HAWSER_EXCHANGE(OP, op, T, type, function, protocol)                                                          \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                              \
        hawser_##op##_##type##_##protocol(const __grid_constant__ HawserExchange args) {                              \
        HAWSER_SINCE_SM80(hawser::function<hawser::Math<T, hawser::Op::OP>>(args);)                                   \
    }
#define HAWSER_KERNELS(OP, op, T, type)                                                                               \
    HAWSER_STEPS(OP, op, T, type, HAWSER_LL, ll)                                                                      \
    HAWSER_STEPS(OP, op, T, type, HAWSER_LL128, ll128)                                                                \
    HAWSER_STEPS(OP, op, T, type, HAWSER_SIMPLE, simple)                                                              \
    HAWSER_EXCHANGE(OP, op, T, type, exchange_words, symll)                                                           \
    HAWSER_EXCHANGE(OP, op, T, type, exchange_lines, symll128)                                                        \
    HAWSER_EXCHANGE(OP, op, T, type, exchange_tiles, symsimple)

// The exchange kernels of an operation and a type, named as KernelKey::symbol says: hawser_<operation>_<type>_<protocol>.
// core/plan/src/executor/fused/support.rs says which calls they run.
#pragma once

#include "exchange_bundle.cuh"
#include "exchange_lines.cuh"
#include "exchange_tiles.cuh"
#include "exchange_words.cuh"

// The planner does not offer exchanges to older GPUs, and compiling takes time.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define HAWSER_SINCE_SM90(...)
#else
#define HAWSER_SINCE_SM90(...) __VA_ARGS__
#endif

#define HAWSER_EXCHANGE(M, op, type, Arguments, function, protocol)                                                   \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                              \
        hawser_##op##_##type##_##protocol(const __grid_constant__ Arguments args) {                                   \
        HAWSER_SINCE_SM90(hawser::function<M>(args);)                                                                 \
    }
#define HAWSER_EXCHANGES(OP, op, T, type)                                                                             \
    namespace hawser { using op##_##type = Math<T, Op::OP>; }                                                         \
    HAWSER_EXCHANGE(hawser::op##_##type, op, type, HawserExchange, exchange_words, symll)                             \
    HAWSER_EXCHANGE(hawser::op##_##type, op, type, HawserBundle, exchange_bundle, symll_bundle)                       \
    HAWSER_EXCHANGE(hawser::op##_##type, op, type, HawserExchange, exchange_lines, symll128)                          \
    HAWSER_EXCHANGE(hawser::op##_##type, op, type, HawserExchange, exchange_tiles, symsimple)
// The same of floats, whose sums depend on the order: kernels of tiles that combine along the nested tree as well. Those of words and
// lines are told by their arguments.
#define HAWSER_EXCHANGES_OF_FLOATS(OP, op, T, type)                                                                   \
    HAWSER_EXCHANGES(OP, op, T, type)                                                                                 \
    namespace hawser { using op##_##type##_nested = Math<T, Op::OP, true>; }                                          \
    HAWSER_EXCHANGE(hawser::op##_##type##_nested, op, type, HawserExchange, exchange_tiles, symsimple_nested)

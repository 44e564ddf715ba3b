// What the demos share: checks that say what failed, and numbered steps.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

// A call of the CUDA driver that must succeed.
#define DRIVER(call)                                      \
    do {                                                  \
        CUresult result = (call);                         \
        if (result != CUDA_SUCCESS) {                     \
            const char* why = "unknown";                  \
            cuGetErrorString(result, &why);               \
            fail("%s: %s (%d)", #call, why, (int)result); \
        }                                                 \
    } while (0)

// A call of the CUDA runtime that must succeed.
#define RUNTIME(call)                                                                 \
    do {                                                                              \
        cudaError_t result = (call);                                                  \
        if (result != cudaSuccess) fail("%s: %s", #call, cudaGetErrorString(result)); \
    } while (0)

// Ends the demo with the reason.
inline void fail(const char* format, ...) {
    va_list values;
    va_start(values, format);
    fprintf(stderr, "FAILED: ");
    vfprintf(stderr, format, values);
    fprintf(stderr, "\n");
    va_end(values);
    exit(1);
}

// Prints a numbered step.
inline void step(const char* format, ...) {
    static int number = 0;
    va_list values;
    va_start(values, format);
    printf("%d. ", ++number);
    vprintf(format, values);
    printf("\n");
    va_end(values);
    fflush(stdout);
}

inline size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

inline int attribute(CUdevice device, CUdevice_attribute which) {
    int value = 0;
    return cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

// Physical memory of a device that other processes may map by a file descriptor.
inline CUmemAllocationProp shareable_on(int device) {
    CUmemAllocationProp of = {};
    of.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    of.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    of.location.id = device;
    of.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return of;
}

// Lets a device read and write mapped memory.
inline void allow(CUdeviceptr at, size_t bytes, int device) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cuMemSetAccess(at, bytes, &access, 1));
}

// The value that word `i` of a buffer of `owner` has.
__host__ __device__ inline uint32_t pattern(uint32_t owner, size_t i) {
    return owner * 0x9e3779b9u + (uint32_t)i;
}

__global__ void fill(uint32_t* words, size_t count, uint32_t owner) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x)
        words[i] = pattern(owner, i);
}

// The number of words that are not what `owner` wrote.
inline size_t wrong_words(const uint32_t* on_device, size_t count, uint32_t owner) {
    std::vector<uint32_t> words(count);
    RUNTIME(cudaMemcpy(words.data(), on_device, count * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) wrong += words[i] != pattern(owner, i);
    return wrong;
}

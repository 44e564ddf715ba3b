/* What differs between GPUs (-DWITH_CUDA) and the host device, where buffers are ordinary memory. */
#ifndef DEVICE_H
#define DEVICE_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WITH_CUDA
#include <cuda_runtime.h>
#include <nccl.h>

static void cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

/* Ranks beyond the number of GPUs share them in turn, which needs NCCL_MULTI_RANK_GPU_ENABLE=1. */
static int device_of(int rank) {
    int count;
    cuda(cudaGetDeviceCount(&count));
    return rank % count;
}

static float *allocate(int rank, size_t bytes) {
    void *memory;
    cuda(cudaSetDevice(device_of(rank)));
    cuda(cudaMalloc(&memory, bytes));
    return (float *)memory;
}

static void copy(void *to, const void *from, size_t bytes) {
    cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}

/* Ranks that share a GPU need streams of their own: on one stream, each would wait for the rank before it. */
static cudaStream_t stream_of(int rank) {
    cudaStream_t stream;
    cuda(cudaSetDevice(device_of(rank)));
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void wait_for(int rank) {
    cuda(cudaSetDevice(device_of(rank)));
    cuda(cudaDeviceSynchronize());
}

#else

/* The part of nccl.h that the example uses, so that it compiles where neither CUDA nor NCCL is installed. */
typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t;
typedef enum { ncclSuccess = 0 } ncclResult_t;
typedef enum { ncclFloat32 = 7 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
ncclResult_t ncclGetVersion(int *version);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ranks, const int *devices);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);

static int device_of(int rank) { return rank; }

static float *allocate(int rank, size_t bytes) {
    (void)rank;
    void *memory = malloc(bytes);
    if (memory == NULL) abort();
    return (float *)memory;
}

static void copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

/* There is only the default stream. */
static cudaStream_t stream_of(int rank) {
    (void)rank;
    return NULL;
}

/* Calls on the host device return when the work is done. */
static void wait_for(int rank) { (void)rank; }

#endif
#endif

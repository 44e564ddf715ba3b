// A matrix product whose inner dimension is cut among ranks: every rank multiplies its share, and the products are added
// up while they are still being computed. One kernel computes all rows; its blocks mark the parts that they have written.
//
//     tensor_parallel [ranks]       a thread for each rank; with fewer GPUs ranks share them
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "hawser.h"

namespace {

constexpr int ROWS = 2048, INNER = 512, COLUMNS = 2048, PARTS = 8, TILE = 16;
// Blocks that write one part: PARTS cuts the rows, a block writes a tile.
constexpr unsigned BLOCKS_OF_PART = ROWS / PARTS / TILE * (COLUMNS / TILE);

#define CUDA(call)                                                              \
    do {                                                                        \
        cudaError_t error = (call);                                             \
        if (error != cudaSuccess) {                                             \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
            std::exit(1);                                                       \
        }                                                                       \
    } while (0)

#define NCCL(call)                                                            \
    do {                                                                      \
        if ((call) != ncclSuccess) {                                          \
            std::fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(NULL));  \
            std::exit(1);                                                     \
        }                                                                     \
    } while (0)

__host__ __device__ float left(int row, int k) { return (float)((row + k) % 7); }
__host__ __device__ float right(int k, int column) { return (float)((k + column) % 5); }

// A tile of the product; blocks of the first rows come first.
__global__ void multiply(int rank, float *product, hawserPartitionedWords_t words) {
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = rank * INNER; k < (rank + 1) * INNER; k++) sum += left(row, k) * right(k, column);
    product[(size_t)row * COLUMNS + column] = sum;
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) hawserPartitionReady(words, row / (ROWS / PARTS));
}

// Counts what differs from the product over the inner dimensions of all ranks, in the rows of one part.
__global__ void check(int ranks, int part, const float *sum, unsigned *wrong) {
    int row = part * (ROWS / PARTS) + blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    float expected = 0;
    for (int k = 0; k < ranks * INNER; k++) expected += left(row, k) * right(k, column);
    if (sum[(size_t)row * COLUMNS + column] != expected) atomicAdd(wrong, 1u);
}

void run(int rank, int ranks, int device, ncclUniqueId id) {
    CUDA(cudaSetDevice(device));
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    float *product, *sum;
    unsigned *wrong, count;
    cudaStream_t compute, consume;
    CUDA(cudaMalloc(&product, sizeof(float) * ROWS * COLUMNS));
    CUDA(cudaMalloc(&sum, sizeof(float) * ROWS * COLUMNS));
    CUDA(cudaMalloc(&wrong, sizeof *wrong));
    CUDA(cudaMemset(wrong, 0, sizeof *wrong));
    CUDA(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&consume, cudaStreamNonBlocking));

    hawserPartitionedConfig_t config = HAWSER_PARTITIONED_CONFIG_INITIALIZER;
    config.collective = "all_reduce", config.sendbuff = product, config.recvbuff = sum;
    config.count = (size_t)ROWS * COLUMNS, config.partitions = PARTS, config.arrivals = BLOCKS_OF_PART;
    hawserPartitioned_t parts;
    hawserPartitionedWords_t words;
    NCCL(hawserPartitionedInit(&config, comm, &parts));
    NCCL(hawserPartitionedWords(parts, &words));

    cudaEvent_t begun, used;
    CUDA(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&used, cudaEventDisableTiming));
    for (int round = 0; round < 3; round++) {
        NCCL(hawserPartitionedStart(parts, compute));
        CUDA(cudaEventRecord(begun, compute));
        CUDA(cudaStreamWaitEvent(consume, begun, 0));
        multiply<<<dim3(COLUMNS / TILE, ROWS / TILE), dim3(TILE, TILE), 0, compute>>>(rank, product, words);
        for (int part = 0; part < PARTS; part++) {
            NCCL(hawserPartitionedWait(parts, part, consume));
            check<<<dim3(COLUMNS / 256, ROWS / PARTS), 256, 0, consume>>>(ranks, part, sum, wrong);
        }
        // The next round writes what this one's checks read.
        CUDA(cudaEventRecord(used, consume));
        CUDA(cudaStreamWaitEvent(compute, used, 0));
        NCCL(hawserPartitionedFinish(parts, compute));
    }
    CUDA(cudaStreamSynchronize(compute));
    CUDA(cudaMemcpy(&count, wrong, sizeof count, cudaMemcpyDefault));
    std::printf("rank %d on GPU %d: %u of %d numbers are wrong\n", rank, device, count, ROWS * COLUMNS);
    NCCL(hawserPartitionedFree(parts));
    NCCL(ncclCommDestroy(comm));
    if (count != 0) std::exit(1);
}

}  // namespace

int main(int argc, char **argv) {
    int gpus = 0, ranks = argc > 1 ? std::atoi(argv[1]) : 2;
    // Streams of several ranks wait here; none may stand behind another one in a hardware queue.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    // Kernels are loaded now: to load one later may wait for a stream that waits for a partition.
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    CUDA(cudaGetDeviceCount(&gpus));
    if (ranks > gpus) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    ncclUniqueId id;
    NCCL(ncclGetUniqueId(&id));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank++) threads.emplace_back(run, rank, ranks, rank % gpus, id);
    for (std::thread &thread : threads) thread.join();
    std::puts("PASS");
    return 0;
}

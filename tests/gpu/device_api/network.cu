// Kernels of a user that reach other ranks over the network by NVIDIA's device API (GIN), on whatever libnccl.so.2 is
// found:
//   network RANKS [processes | hosts]
// The ranks are threads, processes, or processes that count as hosts of their own; they share the GPUs that there are.
// Prints a line for each check of rank 0 and PASS, or what was wrong. Compiled with NVIDIA's headers (2.30.5 or later).
#include "ranks.cuh"

constexpr int ROUNDS = 40, THREADS = 128, PART = 1 << 16; // ints that go to each rank
constexpr int MOST = 16;                                   // ranks

// All-to-all: everybody puts a part to everybody with a signal, waits for all, and looks.
__global__ void all_to_all(ncclDevComm comm, ncclWindow_t window, int *user, unsigned *wrong) {
    ncclGin gin{comm, 0};
    ncclTeam world = ncclTeamWorld(comm);
    int *sent = user, *got = user + PART * MOST;
    const ncclGinSignal_t arrived = 0;
    const uint64_t before = gin.readSignal(arrived);
    // Nobody begins before all have read that.
    ncclGinBarrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 0, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
    for (int round = 1; round <= ROUNDS; round++) {
        for (int at = threadIdx.x; at < PART * world.nRanks; at += blockDim.x)
            sent[at] = round * 1000 + world.rank * 100 + at / PART;
        __syncthreads();
        if (threadIdx.x < world.nRanks) {
            const size_t from = sizeof(int) * PART * threadIdx.x, to = sizeof(int) * PART * (MOST + world.rank);
            gin.put(world, threadIdx.x, window, to, window, from, sizeof(int) * PART,
                    ncclGin_StrongSignalInc{arrived}, ncclGin_WeakCounterInc{0});
        }
        gin.waitSignal(ncclCoopCta(), arrived, before + uint64_t(round) * world.nRanks);
        for (int at = threadIdx.x; at < PART * world.nRanks; at += blockDim.x)
            if (((volatile int *)got)[at] != round * 1000 + at / PART * 100 + world.rank) atomicAdd(wrong, 1);
        gin.flush(ncclCoopCta());
        // Nobody writes again before all have looked.
        ncclGinBarrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 0, cuda::memory_order_acq_rel,
                       ncclGinFenceLevel::Relaxed);
    }
    if (threadIdx.x == 0 && gin.readCounter(0) < uint64_t(ROUNDS) * world.nRanks) atomicAdd(wrong, 1);
}

// Values in descriptors, a signal in a window, and reads; in the second context.
__global__ void words(ncclDevComm comm, ncclWindow_t window, int *user, unsigned *wrong) {
    ncclGin gin{comm, 1};
    ncclTeam world = ncclTeamWorld(comm);
    const size_t values = sizeof(int) * PART * MOST * 2, sum = values + 8 * MOST, read = sum + 64;
    auto *here = (volatile unsigned long long *)((char *)user + values);
    const uint64_t before = gin.readSignal(1);
    ncclGinBarrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 1, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
    if (threadIdx.x < world.nRanks) {
        gin.putValue(world, threadIdx.x, window, values + 8 * world.rank, 0x0123456789abcd00ull + world.rank,
                     ncclGin_StrongSignalAdd{1, 5});
        gin.signal(world, threadIdx.x, ncclGin_StrongVASignalAdd{window, sum, 7});
    }
    gin.waitSignal(ncclCoopCta(), 1, before + 5 * world.nRanks);
    if (threadIdx.x < world.nRanks && here[threadIdx.x] != 0x0123456789abcd00ull + threadIdx.x) atomicAdd(wrong, 1);
    ncclGinBarrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 1, cuda::memory_order_acq_rel, ncclGinFenceLevel::Put);
    if (threadIdx.x < world.nRanks) {
        ncclGinRequest_t request;
        gin.get(world, threadIdx.x, window, values + 8 * threadIdx.x, window, read + 8 * threadIdx.x, 8);
        gin.flushAsync(world, threadIdx.x, &request);
        gin.wait(request);
        auto *mine = (volatile unsigned long long *)((char *)user + read);
        if (mine[threadIdx.x] != 0x0123456789abcd00ull + threadIdx.x) atomicAdd(wrong, 1);
    }
    __syncthreads();
    if (threadIdx.x == 0 && here[MOST] != 7ull * world.nRanks) atomicAdd(wrong, 1);
    ncclGinBarrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 1, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
    if (threadIdx.x == 0) here[MOST] = 0;
    ncclGinBarrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 1, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
}

// The signal that `filling` waits for, as it is before anybody puts.
__global__ void remember(ncclDevComm comm, uint64_t *before) {
    ncclGin gin{comm, 0};
    if (threadIdx.x == 0) *before = gin.readSignal(0);
    ncclGinBarrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 0, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
}

// As many blocks as the GPU holds wait for what one of them puts, so that no multiprocessor is free to copy it.
__global__ void filling(ncclDevComm comm, ncclWindow_t window, int *user, const uint64_t *before, unsigned *wrong) {
    ncclGin gin{comm, 0};
    ncclTeam world = ncclTeamWorld(comm);
    int *sent = user, *got = user + PART * MOST;
    if (blockIdx.x == 0) {
        for (int at = threadIdx.x; at < PART * world.nRanks; at += blockDim.x) sent[at] = world.rank + at / PART * 1000;
        __syncthreads();
        if (threadIdx.x < world.nRanks) {
            const size_t from = sizeof(int) * PART * threadIdx.x, to = sizeof(int) * PART * (MOST + world.rank);
            gin.put(world, threadIdx.x, window, to, window, from, sizeof(int) * PART, ncclGin_StrongSignalInc{0});
        }
    }
    gin.waitSignal(ncclCoopCta(), 0, *before + world.nRanks);
    if (blockIdx.x > 0) return;
    for (int at = threadIdx.x; at < PART * world.nRanks; at += blockDim.x)
        if (((volatile int *)got)[at] != world.rank * 1000 + at / PART) atomicAdd(wrong, 1);
    gin.flush(ncclCoopCta());
    ncclGinBarrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 0, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
}

// Blocks of `filling` that the GPU holds at once.
static int places(int gpu) {
    int blocks = 0, multiprocessors = 0;
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, filling, THREADS, 0));
    CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, gpu));
    return blocks * multiprocessors;
}

static void run(int rank, int ranks, ncclUniqueId id) {
    check(ranks >= 1 && ranks <= MOST, "RANKS", "1 to 16");
    int gpus = 0;
    CUDA(cudaGetDeviceCount(&gpus));
    CUDA(cudaSetDevice(rank % gpus));
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    ncclCommProperties properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    NCCL(ncclCommQueryProperties(comm, &properties));
    check(properties.ginType != NCCL_GIN_TYPE_NONE, "ginType", "there is no network in kernels");
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned *wrong;
    CUDA(cudaMalloc(&wrong, sizeof *wrong));
    CUDA(cudaMemset(wrong, 0, sizeof *wrong));
    uint64_t *before;
    CUDA(cudaMalloc(&before, sizeof *before));
    const size_t bytes = sizeof(int) * PART * MOST * 2 + 8 * MOST + 64 + 8 * MOST;
    int *memory;
    NCCL(ncclMemAlloc((void **)&memory, bytes));
    CUDA(cudaMemset(memory, 0, bytes));
    ncclWindow_t window;
    NCCL(ncclCommWindowRegister(comm, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
    ncclDevCommRequirements reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    reqs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    reqs.ginContextCount = 2, reqs.ginSignalCount = 2, reqs.ginCounterCount = 1, reqs.worldGinBarrierCount = 2;
    for (int again = 0; again < 2; again++) {
        ncclDevComm made;
        NCCL(ncclDevCommCreate(comm, &reqs, &made));
        for (int twice = 0; twice < 2; twice++) {
            all_to_all<<<1, THREADS, 0, stream>>>(made, window, memory, wrong);
            outcome(rank, "all-to-all", wrong);
            words<<<1, THREADS, 0, stream>>>(made, window, memory, wrong);
            outcome(rank, "values, words and reads", wrong);
            // Ranks that share a GPU would wait for each other's places.
            if (ranks > gpus) continue;
            remember<<<1, THREADS, 0, stream>>>(made, before);
            filling<<<places(rank % gpus), THREADS, 0, stream>>>(made, window, memory, before, wrong);
            outcome(rank, "puts of kernels that fill the GPU", wrong);
        }
        NCCL(ncclDevCommDestroy(comm, &made));
    }
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclMemFree(memory));
    NCCL(ncclCommDestroy(comm));
}

int main(int argc, char **argv) { return start(argc, argv, run); }

// Kernels of a user that reach other ranks' memory by NVIDIA's device API, on whatever libnccl.so.2 is found:
//   kernels RANKS [processes]
// The ranks are threads, or processes; they share the GPUs that there are. Prints a line for each check of rank 0
// and PASS, or what was wrong. Compiled with NVIDIA's headers (2.28.9 or later).
#include "ranks.cuh"

constexpr int BLOCKS = 4, THREADS = 128, ROUNDS = 50;
constexpr size_t COUNT = 1 << 20, OFFSET = 1024; // ints of a window, and of what lies before it
constexpr size_t OWN_BYTES = 4096;

// Everybody writes a number into its place at everybody's, passes a barrier, and counts wrong ones.
__global__ void exchange(ncclDevComm comm, ncclWindow_t window, const int *user, unsigned *wrong) {
    ncclLsaBarrierSession<ncclCoopCta> bar{ncclCoopCta(), comm, ncclTeamLsa(comm), comm.lsaBarrier, blockIdx.x};
    const int rank = comm.lsaRank, ranks = comm.lsaSize;
    const int thread = threadIdx.x + blockIdx.x * blockDim.x, threads = blockDim.x * gridDim.x;
    if (thread < 32) { // a warp of the first block looks for its window by an address
        ncclWindow_t found = ncclFindWindow(ncclCoopWarp(), comm, user + 5);
        if (found != window) atomicAdd(wrong, 1);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int peer = 0; peer < ranks; peer++) {
            int *there = (int *)ncclGetLsaPointer(window, rank * threads * sizeof(int), peer);
            there[thread] = round * 1000 + rank;
        }
        bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
        for (int peer = 0; peer < ranks; peer++) {
            const volatile int *here = (int *)ncclGetLocalPointer(window, peer * threads * sizeof(int));
            if (here[thread] != round * 1000 + peer) atomicAdd(wrong, 1);
        }
        bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
    }
}

// The buffer of the program in the resource window is zero, and everybody's.
__global__ void own_buffer(ncclDevComm comm, ncclDevResourceHandle_t handle, unsigned *wrong) {
    ncclLsaBarrierSession<ncclCoopCta> bar{ncclCoopCta(), comm, ncclTeamLsa(comm), comm.lsaBarrier, blockIdx.x};
    const int rank = comm.lsaRank, ranks = comm.lsaSize;
    if (threadIdx.x < ranks) {
        int *there = (int *)ncclGetResourceBufferLsaPointer(comm, handle, threadIdx.x);
        if (there[rank] != 0) atomicAdd(wrong, 1);
        there[rank] = 100 + rank;
    }
    bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
    if (threadIdx.x < ranks) {
        volatile int *here = (int *)ncclGetResourceBufferLocalPointer(comm, handle);
        if (here[threadIdx.x] != 100 + (int)threadIdx.x) atomicAdd(wrong, 1);
    }
}

// A low-latency all-to-all: each thread sends an element to each rank.
__global__ void all_to_all(ncclDevComm comm, ncclLLA2AHandle handle, unsigned *wrong) {
    const int rank = comm.lsaRank, ranks = comm.lsaSize;
    ncclLLA2ASession<ncclCoopCta> session{
        ncclCoopCta(), comm, ncclTeamLsa(comm), handle, blockIdx.x, /*maxElts=*/ranks * THREADS};
    for (int round = 0; round < 4; round++) {
        for (int peer = 0; peer < ranks; peer++)
            session.send(peer, rank * THREADS + threadIdx.x, round * 10000 + rank * 100 + peer);
        for (int peer = 0; peer < ranks; peer++) {
            int got = session.template recv<int>(peer * THREADS + threadIdx.x);
            if (got != round * 10000 + peer * 100 + rank) atomicAdd(wrong, 1);
        }
        session.endEpoch(ncclCoopCta());
    }
}

static void run(int rank, int ranks, ncclUniqueId id) {
    int gpus = 0;
    CUDA(cudaGetDeviceCount(&gpus));
    CUDA(cudaSetDevice(rank % gpus));
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    check(ncclTeamLsa(comm).nRanks == ranks, "ncclTeamLsa", "not all ranks are one load-store team");
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned *wrong;
    CUDA(cudaMalloc(&wrong, sizeof *wrong));
    CUDA(cudaMemset(wrong, 0, sizeof *wrong));
    int *memory;
    NCCL(ncclMemAlloc((void **)&memory, (OFFSET + COUNT) * sizeof(int)));
    ncclWindow_t window;
    NCCL(ncclCommWindowRegister(comm, memory + OFFSET, COUNT * sizeof(int), &window, NCCL_WIN_COLL_SYMMETRIC));

#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
    ncclDevCommRequirements reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
    ncclDevCommRequirements reqs = {};
#endif
    ncclDevResourceHandle_t buffer = 0;
    ncclDevResourceRequirements own = {}, low_latency = {};
    ncclLLA2AHandle handle = {};
    NCCL(ncclLLA2ACreateRequirement(BLOCKS, ncclLLA2ACalcSlots(ranks * THREADS, sizeof(int)), &handle, &low_latency));
    own.bufferSize = OWN_BYTES, own.bufferAlign = 512, own.outBufferHandle = &buffer, own.next = &low_latency;
    reqs.resourceRequirementsList = &own;
    reqs.lsaBarrierCount = BLOCKS;
    for (int again = 0; again < 3; again++) {
        ncclDevComm made;
        NCCL(ncclDevCommCreate(comm, &reqs, &made));
        check(made.rank == rank && made.nRanks == ranks && made.lsaSize == ranks, "ncclDevComm", "wrong ranks");
        exchange<<<BLOCKS, THREADS, 0, stream>>>(made, window, memory + OFFSET, wrong);
        outcome(rank, "windows and barriers", wrong);
        own_buffer<<<1, THREADS, 0, stream>>>(made, buffer, wrong);
        outcome(rank, "buffer of the program", wrong);
        all_to_all<<<BLOCKS, THREADS, 0, stream>>>(made, handle, wrong);
        outcome(rank, "low-latency all-to-all", wrong);
        NCCL(ncclDevCommDestroy(comm, &made));
    }
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclMemFree(memory));
    NCCL(ncclCommDestroy(comm));
}

int main(int argc, char **argv) { return start(argc, argv, run); }

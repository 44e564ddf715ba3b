// A symmetric heap of several processes, each with a GPU: every process makes a piece of memory, hands it to
// all others by a file descriptor, and maps all pieces side by side, so that rank r's piece lies r pieces
// behind the first. Each then writes into its neighbour's piece, the neighbour checks it, and ten copies are
// timed. With fewer GPUs than processes these share them.
//
//   symmetric_mem_p2p_demo [processes, default: one per GPU, at least 2]
#include "common.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>

const size_t PIECE = 256 << 20;
const int COPIES = 10, MOST = 16;

// What the processes share: a barrier, and what each measured.
struct Shared {
    std::atomic<int> arrived[8];
    std::atomic<bool> failed;
    double gigabytes[MOST];
};

// Waits for all processes. Each barrier is used once.
static void barrier(Shared* shared, int number, int ranks) {
    shared->arrived[number]++;
    while (shared->arrived[number] < ranks) {
        if (shared->failed) exit(1);
        usleep(100);
    }
}

// Sends a descriptor and the rank that it is from.
static void send_descriptor(int socket, int descriptor, int rank) {
    char space[CMSG_SPACE(sizeof(int))] = {};
    iovec data = {&rank, sizeof rank};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    *(int*)CMSG_DATA(head) = descriptor;
    if (sendmsg(socket, &message, 0) < 0) fail("sending a descriptor: %m");
}

// Takes a descriptor and the rank that it is from.
static int take_descriptor(int socket, int* rank) {
    char space[CMSG_SPACE(sizeof(int))] = {};
    iovec data = {rank, sizeof *rank};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    if (recvmsg(socket, &message, 0) < 0) fail("taking a descriptor: %m");
    return *(int*)CMSG_DATA(CMSG_FIRSTHDR(&message));
}

// Maps a piece at its place, for this process's device.
static void map_piece(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle memory, int device) {
    DRIVER(cuMemMap(at, bytes, 0, memory, 0));
    allow(at, bytes, device);
    DRIVER(cuMemRelease(memory));  // the mapping keeps it
}

// Gigabytes per second of ten copies from this process's piece to another one.
static double measure(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    RUNTIME(cudaStreamCreate(&stream));
    RUNTIME(cudaEventCreate(&begin));
    RUNTIME(cudaEventCreate(&end));
    DRIVER(cuMemcpyDtoDAsync(to, from, bytes, stream));
    RUNTIME(cudaEventRecord(begin, stream));
    for (int i = 0; i < COPIES; i++) DRIVER(cuMemcpyDtoDAsync(to, from, bytes, stream));
    RUNTIME(cudaEventRecord(end, stream));
    RUNTIME(cudaEventSynchronize(end));
    float ms = 0;
    RUNTIME(cudaEventElapsedTime(&ms, begin, end));
    return (double)bytes * COPIES / ms / 1e6;
}

static void run(int rank, int ranks, int sockets[][2], Shared* shared) {
    int gpus = 0;
    RUNTIME(cudaGetDeviceCount(&gpus));
    const int device = rank % gpus;
    RUNTIME(cudaSetDevice(device));
    RUNTIME(cudaFree(nullptr));
    CUmemAllocationProp of = shareable_on(device);
    size_t granularity;
    DRIVER(cuMemGetAllocationGranularity(&granularity, &of, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    const size_t bytes = round_up(PIECE, granularity), count = bytes / sizeof(uint32_t);
    CUmemGenericAllocationHandle own;
    DRIVER(cuMemCreate(&own, bytes, &of, 0));
    CUdeviceptr base;
    DRIVER(cuMemAddressReserve(&base, bytes * ranks, granularity, 0, 0));
    if (rank == 0)
        step("every process made %zu MiB and reserved addresses for %d pieces", bytes >> 20, ranks);

    int descriptor;
    DRIVER(cuMemExportToShareableHandle(&descriptor, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    for (int peer = 0; peer < ranks; peer++)
        if (peer != rank) send_descriptor(sockets[peer][1], descriptor, rank);
    close(descriptor);
    map_piece(base + bytes * rank, bytes, own, device);
    for (int i = 1; i < ranks; i++) {
        int peer;
        int theirs = take_descriptor(sockets[rank][0], &peer);
        CUmemGenericAllocationHandle memory;
        DRIVER(cuMemImportFromShareableHandle(&memory, (void*)(uintptr_t)theirs,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        close(theirs);
        map_piece(base + bytes * peer, bytes, memory, device);
    }
    barrier(shared, 0, ranks);
    if (rank == 0) step("every process mapped the pieces of all others, by file descriptors");

    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    fill<<<128, 256>>>((uint32_t*)(base + bytes * next), count, rank);
    RUNTIME(cudaDeviceSynchronize());
    barrier(shared, 1, ranks);
    size_t wrong = wrong_words((const uint32_t*)(base + bytes * rank), count, before);
    if (wrong != 0) fail("rank %d: %zu of %zu words of rank %d are wrong", rank, wrong, count, before);
    barrier(shared, 2, ranks);
    if (rank == 0) step("a kernel of each process wrote into the next one's piece: all words are right");

    shared->gigabytes[rank] = measure(base + bytes * next, base + bytes * rank, bytes);
    barrier(shared, 3, ranks);
    for (int i = 0; rank == 0 && i < ranks; i++) {
        if (i == 0)
            step("%d copies of %zu MiB from each process's piece to the next one's, all at once:", COPIES,
                 bytes >> 20);
        printf("   rank %d on GPU %d to rank %d on GPU %d: %.1f GB/s\n", i, i % gpus, (i + 1) % ranks,
               (i + 1) % ranks % gpus, shared->gigabytes[i]);
    }
    for (int peer = 0; peer < ranks; peer++) DRIVER(cuMemUnmap(base + bytes * peer, bytes));
    DRIVER(cuMemAddressFree(base, bytes * ranks));
    barrier(shared, 4, ranks);
    if (rank == 0) {
        step("all pieces are unmapped, and all memory is free");
        fflush(stdout);
    }
}

// GPUs of this machine, counted by a child: a process that has used CUDA must not fork.
static int count_gpus() {
    pid_t child = fork();
    if (child == 0) {
        int gpus = 0;
        _exit(cudaGetDeviceCount(&gpus) == cudaSuccess ? gpus : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

int main(int argc, char** argv) {
    const int gpus = count_gpus();
    if (gpus == 0) fail("no GPU");
    const int ranks = argc > 1 ? atoi(argv[1]) : std::max(2, gpus);
    if (ranks < 2 || ranks > MOST) fail("2 to %d processes", MOST);
    step("%d GPUs, %d processes", gpus, ranks);
    fflush(stdout);
    void* pages = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) fail("shared memory: %m");
    Shared* shared = new (pages) Shared();
    int sockets[MOST][2];
    for (int rank = 0; rank < ranks; rank++)
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets[rank]) != 0) fail("socketpair: %m");
    for (int rank = 0; rank < ranks; rank++) {
        if (fork() == 0) {
            run(rank, ranks, sockets, shared);
            return 0;
        }
    }
    int failed = 0, status;
    while (wait(&status) > 0) {
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        failed = 1;
        shared->failed = true;
    }
    printf(failed ? "FAILED\n" : "PASS\n");
    return failed;
}

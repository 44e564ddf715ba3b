// What programs with kernels of their own share: checks, their outcome, and ranks as threads or processes.
#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#define CUDA(call) check((call) == cudaSuccess, #call, cudaGetErrorString(cudaGetLastError()))
#define NCCL(call) check((call) == ncclSuccess, #call, ncclGetLastError(nullptr))

static void check(bool is_right, const char *what, const char *why) {
    if (is_right) return;
    fprintf(stderr, "FAILED: %s: %s\n", what, why);
    _exit(1);
}

// Waits for the kernels of a rank, and fails if they counted something wrong.
static void outcome(int rank, const char *what, unsigned *wrong) {
    CUDA(cudaDeviceSynchronize());
    unsigned count = 0;
    CUDA(cudaMemcpy(&count, wrong, sizeof count, cudaMemcpyDeviceToHost));
    CUDA(cudaMemset(wrong, 0, sizeof count));
    char text[64];
    snprintf(text, sizeof text, "%u values on rank %d", count, rank);
    check(count == 0, what, text);
    if (rank == 0) printf("%s: ok\n", what);
}

// A rank: what one thread or process does.
using Rank = void (*)(int rank, int ranks, ncclUniqueId id);

// Runs RANKS ranks (the first argument) as threads, or as processes; as processes that count as hosts of their own if the
// second argument says "hosts". Prints PASS or FAILED; the answer is the program's exit code.
static int start(int argc, char **argv, Rank run) {
    const int ranks = argc > 1 ? atoi(argv[1]) : 2;
    ncclUniqueId id;
    if (argc < 3) {
        NCCL(ncclGetUniqueId(&id));
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks; rank++) threads.emplace_back(run, rank, ranks, id);
        for (auto &thread : threads) thread.join();
        puts("PASS");
        return 0;
    }
    // The first rank makes the id after the fork: nothing of CUDA or NCCL may live before.
    struct Shared { std::atomic<int> is_there; ncclUniqueId id; };
    auto *shared = (Shared *)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = 0;
    for (int rank = 0; rank < ranks; rank++) {
        if (fork() != 0) continue;
        if (strcmp(argv[2], "hosts") == 0) setenv("NCCL_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
        if (rank == 0) {
            NCCL(ncclGetUniqueId(&shared->id));
            shared->is_there = 1;
        }
        while (!shared->is_there) usleep(1000);
        run(rank, ranks, shared->id);
        fflush(stdout);
        _exit(0);
    }
    for (int rank = 0; rank < ranks; rank++) {
        int status = 0;
        wait(&status);
        failed += status != 0;
    }
    puts(failed ? "FAILED" : "PASS");
    return failed != 0;
}

// The ranks of the demos of registration: all in this process, one per GPU, at least two.
#pragma once

#include "common.h"

#include <dlfcn.h>
#include <nccl.h>

#include <cstring>

#define NCCL(call)                                                                         \
    do {                                                                                   \
        ncclResult_t result = (call);                                                      \
        if (result != ncclSuccess)                                                         \
            fail("%s: %s: %s", #call, ncclGetErrorString(result), ncclGetLastError(NULL)); \
    } while (0)

// One rank: its communicator and stream.
struct Rank {
    int device;
    ncclComm_t comm;
    cudaStream_t stream;
};

inline std::vector<Rank> all_ranks() {
    int gpus = 0, version = 0;
    RUNTIME(cudaGetDeviceCount(&gpus));
    if (gpus < 2) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);  // Hawser's, as in NCCL from 2.29 on
    NCCL(ncclGetVersion(&version));
    std::vector<Rank> ranks(gpus < 2 ? 2 : gpus);
    std::vector<int> devices;
    for (size_t rank = 0; rank < ranks.size(); rank++) devices.push_back((int)rank % gpus);
    std::vector<ncclComm_t> comms(ranks.size());
    NCCL(ncclCommInitAll(comms.data(), (int)ranks.size(), devices.data()));
    for (size_t rank = 0; rank < ranks.size(); rank++) {
        ranks[rank] = {devices[rank], comms[rank], nullptr};
        RUNTIME(cudaSetDevice(devices[rank]));
        RUNTIME(cudaStreamCreateWithFlags(&ranks[rank].stream, cudaStreamNonBlocking));
    }
    step("%zu ranks on %d GPUs, served by %s %d.%d.%d", ranks.size(), gpus,
         dlsym(RTLD_DEFAULT, "hawserLastDecision") ? "Hawser, with the interface of NCCL" : "NVIDIA's NCCL",
         version / 10000, version / 100 % 100, version % 100);
    return ranks;
}

// The head of hawser.h's record of the last operation, as far as it is needed here: the demos have to build
// and run without Hawser too.
struct Decision {
    size_t size;
    unsigned magic, version;
    uint64_t operation, bytes;
    float predicted;
    unsigned channels, threads, known;
    size_t text;
    char collective[32], algorithm[64], protocol[16], executor[16], rule[256];
    unsigned zero_copy, reserved;
};

// How the last operation moved its data, where Hawser can tell.
inline void tell_how(ncclComm_t comm) {
    typedef ncclResult_t (*Ask)(ncclComm_t, Decision*, char*, size_t);
    Ask ask = (Ask)dlsym(RTLD_DEFAULT, "hawserLastDecision");
    if (ask == nullptr) return;
    Decision decision = {};
    decision.size = sizeof decision;
    decision.magic = 0x52415748;
    decision.version = 2;
    NCCL(ask(comm, &decision, nullptr, 0));
    printf("   %s of %llu bytes: %s, %s/%s, %s\n", decision.collective, (unsigned long long)decision.bytes,
           decision.algorithm, decision.executor, decision.protocol,
           decision.zero_copy ? "zero-copy: straight between the buffers" : "through staging");
}

inline void wait_for_all(std::vector<Rank>& ranks) {
    for (Rank& rank : ranks) {
        RUNTIME(cudaSetDevice(rank.device));
        RUNTIME(cudaStreamSynchronize(rank.stream));
    }
}

inline void end(std::vector<Rank>& ranks) {
    for (Rank& rank : ranks) {
        RUNTIME(cudaSetDevice(rank.device));
        NCCL(ncclCommDestroy(rank.comm));
        RUNTIME(cudaStreamDestroy(rank.stream));
    }
    printf("PASS\n");
}

// Sets all floats of a buffer.
inline void set(float* buffer, size_t count, float value) {
    std::vector<float> numbers(count, value);
    RUNTIME(cudaMemcpy(buffer, numbers.data(), count * sizeof(float), cudaMemcpyHostToDevice));
}

// Ends the demo unless all floats of a buffer are this.
inline void expect(const float* buffer, size_t count, float value, const char* what) {
    std::vector<float> numbers(count);
    RUNTIME(cudaMemcpy(numbers.data(), buffer, count * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++)
        if (numbers[i] != value) fail("%s: number %zu is %g, not %g", what, i, numbers[i], value);
}

// One large buffer is registered once and then cut into the parts of many calls, as allocators do: inputs in
// its first half, outputs in its second. Every part counts as registered.
#include "ranks.h"

const size_t PART = 4 << 20;  // floats
const int PARTS = 4;

int main() {
    std::vector<Rank> ranks = all_ranks();
    const size_t n = ranks.size(), bytes = (n + 1) * PARTS * PART * sizeof(float);
    std::vector<float*> buffers(n);
    std::vector<void*> handles(n);
    for (size_t i = 0; i < n; i++) {
        RUNTIME(cudaSetDevice(ranks[i].device));
        NCCL(ncclMemAlloc((void**)&buffers[i], bytes));
        NCCL(ncclCommRegister(ranks[i].comm, buffers[i], bytes, &handles[i]));
        for (int part = 0; part < PARTS; part++) set(buffers[i] + part * PART, PART, (float)(10 * part + i));
    }
    step("each rank registered one buffer of %zu MiB: %d inputs, then %d outputs of %zu blocks", bytes >> 20,
         PARTS, PARTS, n);

    for (int part = 0; part < PARTS; part++) {
        NCCL(ncclGroupStart());
        for (size_t i = 0; i < n; i++) {
            float *input = buffers[i] + part * PART, *output = buffers[i] + (PARTS + part * n) * PART;
            NCCL(ncclAllGather(input, output, PART, ncclFloat, ranks[i].comm, ranks[i].stream));
        }
        NCCL(ncclGroupEnd());
    }
    wait_for_all(ranks);
    for (size_t i = 0; i < n; i++) {
        RUNTIME(cudaSetDevice(ranks[i].device));
        for (int part = 0; part < PARTS; part++)
            for (size_t from = 0; from < n; from++)
                expect(buffers[i] + (PARTS + part * n + from) * PART, PART, (float)(10 * part + from),
                       "all-gather");
    }
    step("%d all-gathers of %zu MiB at different offsets: all blocks are right", PARTS,
         PART * sizeof(float) >> 20);
    tell_how(ranks[0].comm);

    for (size_t i = 0; i < n; i++) {
        RUNTIME(cudaSetDevice(ranks[i].device));
        NCCL(ncclCommDeregister(ranks[i].comm, handles[i]));
        NCCL(ncclMemFree(buffers[i]));
    }
    step("deregistered, and freed");
    end(ranks);
    return 0;
}

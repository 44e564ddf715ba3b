// Local registration: each rank takes its buffers from ncclMemAlloc, which can be mapped by peers and read by
// NICs, and registers them with its communicator. Offsets may differ between ranks: nothing of it is
// collective.
#include "ranks.h"

const size_t COUNT = 16 << 20;  // floats

int main() {
    std::vector<Rank> ranks = all_ranks();
    struct Buffers {
        float *input, *output;
        void *input_handle, *output_handle;
    };
    std::vector<Buffers> buffers(ranks.size());
    const size_t bytes = COUNT * sizeof(float);
    for (size_t i = 0; i < ranks.size(); i++) {
        RUNTIME(cudaSetDevice(ranks[i].device));
        NCCL(ncclMemAlloc((void**)&buffers[i].input, bytes));
        NCCL(ncclMemAlloc((void**)&buffers[i].output, bytes));
        NCCL(ncclCommRegister(ranks[i].comm, buffers[i].input, bytes, &buffers[i].input_handle));
        NCCL(ncclCommRegister(ranks[i].comm, buffers[i].output, bytes, &buffers[i].output_handle));
        set(buffers[i].input, COUNT, (float)(i + 1));
    }
    step("each rank has two buffers of %zu MiB from ncclMemAlloc, registered with its communicator",
         bytes >> 20);

    NCCL(ncclGroupStart());
    for (size_t i = 0; i < ranks.size(); i++)
        NCCL(ncclAllReduce(buffers[i].input, buffers[i].output, COUNT, ncclFloat, ncclSum, ranks[i].comm,
                           ranks[i].stream));
    NCCL(ncclGroupEnd());
    wait_for_all(ranks);
    const float sum = (float)(ranks.size() * (ranks.size() + 1) / 2);
    for (size_t i = 0; i < ranks.size(); i++) {
        RUNTIME(cudaSetDevice(ranks[i].device));
        expect(buffers[i].output, COUNT, sum, "all-reduce");
    }
    step("an all-reduce between them: every number is %g on every rank", sum);
    tell_how(ranks[0].comm);

    for (size_t i = 0; i < ranks.size(); i++) {
        RUNTIME(cudaSetDevice(ranks[i].device));
        NCCL(ncclCommDeregister(ranks[i].comm, buffers[i].input_handle));
        NCCL(ncclCommDeregister(ranks[i].comm, buffers[i].output_handle));
        NCCL(ncclMemFree(buffers[i].input));
        NCCL(ncclMemFree(buffers[i].output));
    }
    step("deregistered, and freed");
    end(ranks);
    return 0;
}

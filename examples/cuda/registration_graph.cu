// Buffers that a CUDA graph uses are known when it is captured, so a library may register them then and move
// data straight between them (NCCL_GRAPH_REGISTER=1, the default). Two all-reduces at different offsets of
// one buffer are captured on every rank, by a thread-local capture, and the graph is launched three times.
#include "ranks.h"

const size_t COUNT = 8 << 20;  // floats of each all-reduce
const int LAUNCHES = 3;

int main() {
    std::vector<Rank> ranks = all_ranks();
    std::vector<float*> buffers;
    for (Rank& rank : ranks) {
        RUNTIME(cudaSetDevice(rank.device));
        buffers.emplace_back();
        RUNTIME(cudaMalloc(&buffers.back(), 2 * COUNT * sizeof(float)));
        set(buffers.back(), 2 * COUNT, 1);
    }
    step("each rank has a buffer of %zu MiB", 2 * COUNT * sizeof(float) >> 20);

    for (Rank& rank : ranks) {
        RUNTIME(cudaSetDevice(rank.device));
        RUNTIME(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    }
    for (size_t offset : {size_t(0), COUNT}) {
        NCCL(ncclGroupStart());
        for (size_t i = 0; i < ranks.size(); i++) {
            float* part = buffers[i] + offset;
            NCCL(ncclAllReduce(part, part, COUNT, ncclFloat, ncclSum, ranks[i].comm, ranks[i].stream));
        }
        NCCL(ncclGroupEnd());
    }
    std::vector<cudaGraph_t> captured(ranks.size());
    for (size_t i = 0; i < ranks.size(); i++) {
        RUNTIME(cudaSetDevice(ranks[i].device));
        RUNTIME(cudaStreamEndCapture(ranks[i].stream, &captured[i]));
    }
    // Only now: a thread whose streams are being captured may not make graphs ready.
    std::vector<cudaGraphExec_t> graphs(ranks.size());
    for (size_t i = 0; i < ranks.size(); i++) {
        RUNTIME(cudaSetDevice(ranks[i].device));
        RUNTIME(cudaGraphInstantiate(&graphs[i], captured[i], 0));
        RUNTIME(cudaGraphDestroy(captured[i]));
    }
    step("two all-reduces of %zu MiB captured on every rank, at offsets 0 and %zu MiB",
         COUNT * sizeof(float) >> 20, COUNT * sizeof(float) >> 20);
    tell_how(ranks[0].comm);

    float expected = 1;
    for (int launch = 0; launch < LAUNCHES; launch++) {
        for (size_t i = 0; i < ranks.size(); i++) {
            RUNTIME(cudaSetDevice(ranks[i].device));
            RUNTIME(cudaGraphLaunch(graphs[i], ranks[i].stream));
        }
        expected *= (float)ranks.size();
    }
    wait_for_all(ranks);
    for (size_t i = 0; i < ranks.size(); i++) {
        RUNTIME(cudaSetDevice(ranks[i].device));
        expect(buffers[i], 2 * COUNT, expected, "after the graphs");
    }
    step("launched %d times: every number is %g on every rank", LAUNCHES, expected);

    for (size_t i = 0; i < ranks.size(); i++) {
        RUNTIME(cudaSetDevice(ranks[i].device));
        RUNTIME(cudaGraphExecDestroy(graphs[i]));
        RUNTIME(cudaFree(buffers[i]));
    }
    step("the graphs are destroyed, and what was registered for them is released");
    end(ranks);
    return 0;
}

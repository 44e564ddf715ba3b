/* What Hawser's libnccl.so.2 offers beside NCCL's functions. Include nccl.h first: its types are used.
 *
 * A program that may also run on NVIDIA's library looks the functions up with dlsym(). As NCCL's, they put work on a stream and
 * return, may stand in groups, be captured in CUDA graphs, and return an ncclResult_t whose text ncclGetLastError() has.
 */
#ifndef HAWSER_H
#define HAWSER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Collectives whose parts differ in length. Counts and displacements are in elements, one for each rank of the communicator;
 * displacements that are NULL stand for parts that lie one behind the other in rank order. What a rank sends to another must be
 * as long as what that one receives from it: this is not checked between ranks. Parts of an output must not overlap. Counts may be
 * 0. In a group, parts match messages of ncclSend and ncclRecv between the same two ranks in the order of the calls. */

/* Elements sendcounts[p] from sendbuff + sdispls[p] go to rank p; recvcounts[p] elements of rank p arrive at
 * recvbuff + rdispls[p]. The two buffers must differ. */
ncclResult_t hawserAlltoAllv(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[], void *recvbuff,
                             const size_t recvcounts[], const size_t rdispls[], ncclDataType_t datatype, ncclComm_t comm,
                             cudaStream_t stream);

/* Elements of every rank go to all; those of rank p arrive at recvbuff + rdispls[p]. sendcount equals recvcounts of this rank.
 * In place if sendbuff is where the own elements arrive. */
ncclResult_t hawserAllGatherv(const void *sendbuff, size_t sendcount, void *recvbuff, const size_t recvcounts[],
                              const size_t rdispls[], ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

/* As hawserAllGatherv, but for the root alone: recvbuff, recvcounts and rdispls count there only. */
ncclResult_t hawserGatherv(const void *sendbuff, size_t sendcount, void *recvbuff, const size_t recvcounts[],
                           const size_t rdispls[], ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/* Elements sendcounts[p] from sendbuff + sdispls[p] of the root go to rank p, which passes that count as recvcount; sendbuff,
 * sendcounts and sdispls count on the root only. In place at the root if recvbuff is where its own elements are. */
ncclResult_t hawserScatterv(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[], void *recvbuff,
                            size_t recvcount, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/* Runs a program that computes what no collective of NCCL does (coll="custom" in MSCCL's XML) by its name, which its file has in
 * MSCCL_XML_FILES or MSCCL_ALGO_DIR on all ranks: from count elements at sendbuff to count elements at recvbuff, cut into the
 * chunks of the program: of a multiple of 16 bytes if it moves them to other places. The buffers must not overlap; what the
 * program does not write is not touched. All ranks call it. */
ncclResult_t hawserCustom(const char *program, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          ncclComm_t comm, cudaStream_t stream);

/* Options of one call, in the list that begins at the field ext of ncclCollConfig_t: this vendor, one of these numbers, and a text.
 * They narrow what algSelection leaves; what cannot be kept is an error unless forceAlgSelection is 0. Other libraries skip them.
 * With a rule, no other rule counts for the call; that one still has to be for such calls. All ranks name the same. */
#define HAWSER_VENDOR 0x485752
#define HAWSER_OPTION_EXECUTOR 1 /* "interpreter", "fused", "copy_engine" or "host" */
#define HAWSER_OPTION_PROTOCOL 2 /* "LL", "LL128" or "Simple", by any executor */
#define HAWSER_OPTION_RULE 3     /* the name of a rule (HAWSER_RULES), as its file has it */
#define HAWSER_OPTION_REPRODUCIBLE 4 /* "0", "1" or "2": HAWSER_REPRODUCIBLE for this call */
#define HAWSER_OPTION_CLASS 5 /* "urgent", "normal" or "best_effort": the class of this call */

/* The class of the operations that are called on a communicator from now on: "urgent", "normal" or "best_effort". Best-effort
 * operations give way to more urgent ones of the process, for a limited time; what they compute does not change. HAWSER_CLASS
 * overrules it; HAWSER_OPTION_CLASS and rules overrule both. No other rank is asked: ranks that differ are slower, not wrong. */
ncclResult_t hawserCommSetClass(ncclComm_t comm, const char *operations);

/* What the last operation of a communicator ran, and why. Fill with HAWSER_DECISION_INITIALIZER. */
typedef struct {
    size_t size;                 /* as the initialiser sets it */
    unsigned int magic, version; /* as the initialiser sets them */
    uint64_t operation;          /* number of the operation on this communicator, from 0 on */
    uint64_t bytes;              /* of the larger of input and output; of all messages */
    float predictedUs;           /* what the cost model or the rule said, in microseconds; 0 for messages */
    unsigned int channels;       /* blocks of the launch */
    unsigned int threads;        /* of each; 0 where no kernel ran */
    unsigned int known;          /* 0: there was no operation yet, or rules changed since; all else is empty then */
    size_t textBytes;            /* length of the text with its final zero byte */
    char collective[32];         /* all_reduce, sendrecv, ... */
    char algorithm[64];          /* Ring, AllPairs, the name of a program of the user, ... */
    char protocol[16];           /* LL, LL128, Simple */
    char executor[16];           /* interpreter, fused, copy_engine, host */
    char rule[256];              /* the tuner and its rule with file and line; empty if the cost model decided */
    unsigned int zeroCopy;       /* 1: a fused kernel moved data straight between the buffers of one process */
    unsigned int reserved;       /* 0 */
} hawserDecision_t;

#define HAWSER_DECISION_INITIALIZER { sizeof(hawserDecision_t), 0x52415748, 2, 0, 0, 0, 0, 0, 0, 0, "", "", "", "", "", 0, 0 }

/* The decision, and in text (at most capacity bytes with the final zero byte; NULL for none) all candidates with what removed each
 * or its predicted time, what decided, and the rules that had a say. Operations of an open group count when it is closed. */
ncclResult_t hawserLastDecision(ncclComm_t comm, hawserDecision_t *decision, char *text, size_t capacity);

/* Partitioned collectives: buffers that are filled, and used, in partitions (words of MPI 4.0, chapter 4). A partition is a range of
 * elements of every block of the collective: partition 1 of an all-gather is that range of every rank's elements. It goes on its way
 * when all ranks have said that theirs is ready, in the order that the configuration names; so a GEMM's first tiles travel while it
 * computes the next ones, and the next GEMM begins with what has arrived.
 *
 *     hawserPartitionedInit(&config, comm, &p);           all ranks, once; waits for them
 *     hawserPartitionedStart(p, stream);                  a round begins behind what is on the stream
 *     hawserPartitionedReady(p, i, producing_stream);     this rank's partition i is there when that stream has come so far
 *     hawserPartitionedWait(p, i, consuming_stream);      that stream goes on when partition i of the output has arrived
 *     hawserPartitionedFinish(p, stream);                 the stream waits for all of them; the round is over
 *     hawserPartitionedFree(p);
 *
 * Buffers stay the same for all rounds. What uses the output of a round has to be ordered before the next Start, as has what fills the
 * input after it. The collective has a communicator of its own, so calls on comm do not wait for partitions. No call may stand in a
 * group; Init needs a thread for each rank. A round may be captured in a CUDA graph, with Start and Finish on the capturing stream,
 * unless ranks of one process share a GPU; the object must outlive the graph. On the host device Wait and Finish wait by themselves. */
typedef struct hawserPartitioned *hawserPartitioned_t;

typedef struct {
    size_t size;                 /* as the initialiser sets it */
    unsigned int magic, version; /* as the initialiser sets them */
    const char *collective;      /* "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "alltoall", "gather", "scatter" */
    const void *sendbuff;        /* as of the collective */
    void *recvbuff;
    size_t count; /* of the whole collective, as NCCL counts it */
    ncclDataType_t datatype;
    int op;                     /* an ncclRedOp_t; counts for collectives that reduce */
    int root;                   /* counts for collectives that have one */
    unsigned int partitions;    /* 1 to 4096 */
    const size_t *counts;       /* elements of each partition, which add up to count; NULL: as equal as can be */
    const unsigned int *order;  /* the partitions in the order in which they go; NULL: that of their numbers */
    unsigned int arrivals;      /* times that kernels call hawserPartitionReady before a partition is ready */
    unsigned int reserved;      /* 0 */
    const void *config;         /* an ncclCollConfig_t for the calls that carry partitions, or NULL */
} hawserPartitionedConfig_t;

#define HAWSER_PARTITIONED_CONFIG_INITIALIZER \
    { sizeof(hawserPartitionedConfig_t), 0x54505748, 1, NULL, NULL, NULL, 0, (ncclDataType_t)7, 0, 0, 1, NULL, NULL, 1, 0, NULL }

/* The words of a partitioned collective, on the device: one for each partition. For kernels. */
typedef struct {
    uint32_t *ready;
    const uint32_t *arrived;
    unsigned int arrivals, partitions;
} hawserPartitionedWords_t;

/* All but buffers and op's factor is the same on all ranks; a difference is an error on all, which names the rank. */
ncclResult_t hawserPartitionedInit(const hawserPartitionedConfig_t *config, ncclComm_t comm, hawserPartitioned_t *partitioned);
ncclResult_t hawserPartitionedStart(hawserPartitioned_t partitioned, cudaStream_t stream);
ncclResult_t hawserPartitionedReady(hawserPartitioned_t partitioned, unsigned int partition, cudaStream_t stream);
ncclResult_t hawserPartitionedWait(hawserPartitioned_t partitioned, unsigned int partition, cudaStream_t stream);
ncclResult_t hawserPartitionedArrived(hawserPartitioned_t partitioned, unsigned int partition, int *arrived);
ncclResult_t hawserPartitionedFinish(hawserPartitioned_t partitioned, cudaStream_t stream);
/* Between rounds, on all ranks, when the last one is over: from now on partitions go in the order in which they were ready, on whichever
 * rank was last. Those that kernels marked, and those of a captured round, keep their places. order: room for all partitions, or NULL. */
ncclResult_t hawserPartitionedLearn(hawserPartitioned_t partitioned, unsigned int *order);
/* From the next round on kernels may mark partitions, and streams wait for these words instead of the host's calls. */
ncclResult_t hawserPartitionedWords(hawserPartitioned_t partitioned, hawserPartitionedWords_t *words);
ncclResult_t hawserPartitionedFree(hawserPartitioned_t partitioned);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/* One thread says so for its block, after __syncthreads(): what the block wrote of the partition is there. It is ready after
 * config.arrivals such calls, in the round after whose Start the kernel is ordered. */
static __device__ __forceinline__ void hawserPartitionReady(hawserPartitionedWords_t words, unsigned int partition) {
    __threadfence_system();
    atomicAdd_system(words.ready + partition, 1u);
}

/* Waits in a kernel until a partition of the output has arrived; the other threads of a block wait by __syncthreads(). Kernels that
 * fill the GPU and wait here keep the partition from being carried where that takes a kernel: prefer hawserPartitionedWait. */
static __device__ __forceinline__ void hawserPartitionWait(hawserPartitionedWords_t words, unsigned int partition) {
    while (*(const volatile uint32_t *)(words.arrived + partition) == 0) __nanosleep(100);
    __threadfence_system();
}
#endif

#endif

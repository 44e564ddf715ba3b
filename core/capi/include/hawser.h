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
 * chunks of the program. The buffers must not overlap; what the program does not write is not touched. All ranks call it. */
ncclResult_t hawserCustom(const char *program, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          ncclComm_t comm, cudaStream_t stream);

/* Options of one call, in the list that begins at the field ext of ncclCollConfig_t: this vendor, one of these numbers, and a text.
 * They narrow what algSelection leaves; what cannot be kept is an error unless forceAlgSelection is 0. Other libraries skip them.
 * With a rule, no other rule counts for the call; that one still has to be for such calls. All ranks name the same. */
#define HAWSER_VENDOR 0x485752
#define HAWSER_OPTION_EXECUTOR 1 /* "interpreter", "fused", "copy_engine" or "host" */
#define HAWSER_OPTION_PROTOCOL 2 /* "LL", "LL128" or "Simple", by any executor */
#define HAWSER_OPTION_RULE 3     /* the name of a rule (HAWSER_RULES), as its file has it */

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

#ifdef __cplusplus
}
#endif

#endif

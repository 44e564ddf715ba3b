/* The part of NCCL 2.32.3's interface that these programs use, declared from its documented ABI. */
#ifndef HAWSER_TESTS_NCCL_H
#define HAWSER_TESTS_NCCL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct communicator *ncclComm_t;
typedef struct stream *cudaStream_t;
typedef struct { char bytes[128]; } ncclUniqueId;

enum { SUCCESS = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { FLOAT32 = 7, SUM = 0, HOST_IMMEDIATE = 1 };
enum { UNDEF = INT_MIN, VERSION = 23203 };

typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName;
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched;
    int graphUsageMode, numRmaCtx, maxP2pPeers, graphStreamOrdering, launchOrderImplicit, numRmaSig;
    int rmaEagerInit, hostCftMode, nvlsHostMode;
} ncclConfig_t;

typedef struct {
    size_t size;
    unsigned magic, version;
    void *ext;
    int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
    const char *algSelection;
    int forceAlgSelection, CTAPolicy;
    uint64_t userProfilerTag;
    void *launchCompletionEvent;
} ncclCollConfig_t;

typedef struct {
    size_t size;
    unsigned magic, version;
    float estimatedTime;
} ncclSimInfo_t;

typedef struct {
    size_t size;
    unsigned magic, version;
    int rank, nRanks, cudaDev, nvmlDev;
    bool deviceApiSupport, multimemSupport;
    int ginType, nLsaTeams;
    bool hostRmaSupport;
    int railedGinType;
    uint64_t commHash;
    int ginMinStride, ginConnectionType;
    bool ginSupport[64];
    size_t devCommRuntimeVersionSize;
    bool cftSupport, cftMulticastSupport, cftCountedSupport;
} ncclCommProperties_t;

typedef struct { int nRanks, rank, stride; } ncclTeam_t;

_Static_assert(sizeof(ncclUniqueId) == 128, "ncclUniqueId");
_Static_assert(sizeof(ncclConfig_t) == 120, "ncclConfig_t");
_Static_assert(offsetof(ncclConfig_t, nvlsHostMode) == 112, "ncclConfig_t.nvlsHostMode");
_Static_assert(sizeof(ncclCollConfig_t) == 72, "ncclCollConfig_t");
_Static_assert(sizeof(ncclSimInfo_t) == 24, "ncclSimInfo_t");
_Static_assert(sizeof(ncclCommProperties_t) == 152, "ncclCommProperties_t");
_Static_assert(sizeof(ncclTeam_t) == 12, "ncclTeam_t");

int ncclGetVersion(int *version);
int pncclGetVersion(int *version);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(ncclComm_t comm);
int ncclGetUniqueId(ncclUniqueId *id);
int ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
int pncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
int ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
int ncclCommInitAll(ncclComm_t *comms, int devices, const int *list);
int ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *part, ncclConfig_t *config);
int ncclCommDestroy(ncclComm_t comm);
int ncclCommAbort(ncclComm_t comm);
int ncclCommCount(ncclComm_t comm, int *count);
int ncclCommUserRank(ncclComm_t comm, int *rank);
int ncclCommGetAsyncError(ncclComm_t comm, int *state);
int ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *properties);
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclGroupSimulateEnd(ncclSimInfo_t *info);
int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, ncclComm_t comm, cudaStream_t stream);
int pncclAllReduce(const void *send, void *recv, size_t count, int type, int op, ncclComm_t comm, cudaStream_t stream);
int ncclAllReduceConfig(const void *send, void *recv, size_t count, int type, int op, ncclComm_t comm,
                        cudaStream_t stream, const ncclCollConfig_t *config);
int ncclBcast(void *buffer, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream);
int ncclSend(const void *send, size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream);
int ncclRecv(void *recv, size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream);
int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, ncclComm_t comm);
int ncclRedOpDestroy(int op, ncclComm_t comm);

static inline ncclConfig_t no_config(void) {
    ncclConfig_t c;
    const int undefined = UNDEF;
    for (size_t at = 0; at < sizeof c; at += sizeof undefined) memcpy((char *)&c + at, &undefined, sizeof undefined);
    c.size = sizeof c, c.magic = 0xcafebeef, c.version = VERSION, c.netName = NULL, c.commName = NULL;
    return c;
}

/* Ends the program with a line that says what was wrong. */
#define WANT(condition)                                                                              \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition,           \
                    ncclGetLastError(NULL));                                                         \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

#define OK(call) WANT((call) == SUCCESS)

#endif

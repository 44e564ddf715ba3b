/* hawser.h from C: partitioned collectives, whose buffers are filled and used in parts. */
#include <pthread.h>
#include <stdatomic.h>

#include "hawser_nccl.h"

typedef int ncclResult_t;
typedef int ncclDataType_t;

#include "../../core/capi/include/hawser.h"

_Static_assert(sizeof(hawserPartitionedConfig_t) == 96, "hawserPartitionedConfig_t");
_Static_assert(sizeof(hawserPartitionedWords_t) == 24, "hawserPartitionedWords_t");

enum { RANKS = 3, COUNT = 1000, PARTITIONS = 4 };

static ncclUniqueId meeting;
static pthread_barrier_t barrier;

static hawserPartitionedConfig_t all_reduce(const float *send, float *recv) {
    hawserPartitionedConfig_t config = HAWSER_PARTITIONED_CONFIG_INITIALIZER;
    config.collective = "all_reduce", config.sendbuff = send, config.recvbuff = recv, config.count = COUNT;
    config.partitions = PARTITIONS;
    return config;
}

/* A sum whose partitions are filled from the last to the first, marked by the host and by stores. */
static void sum(ncclComm_t comm, int rank) {
    float send[COUNT], recv[COUNT];
    hawserPartitionedConfig_t config = all_reduce(send, recv);
    unsigned order[PARTITIONS] = {3, 2, 1, 0};
    config.order = order, config.arrivals = 2;
    hawserPartitioned_t p;
    OK(hawserPartitionedInit(&config, comm, &p));
    hawserPartitionedWords_t words;
    OK(hawserPartitionedWords(p, &words));
    WANT(words.arrivals == 2 && words.partitions == PARTITIONS && words.ready && words.arrived);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) send[i] = -1e9f, recv[i] = 0;
        OK(hawserPartitionedStart(p, NULL));
        for (int part = PARTITIONS - 1; part >= 0; part--) {
            int arrived;
            OK(hawserPartitionedArrived(p, part, &arrived));
            WANT(!arrived);
            for (int i = part * 250; i < (part + 1) * 250; i++) send[i] = (float)(rank + i + round);
            if (part % 2) {
                OK(hawserPartitionedReady(p, part, NULL));
            } else { /* as two blocks of a kernel do */
                atomic_fetch_add((_Atomic uint32_t *)words.ready + part, 1);
                atomic_fetch_add((_Atomic uint32_t *)words.ready + part, 1);
            }
            OK(hawserPartitionedWait(p, part, NULL));
            for (int i = part * 250; i < (part + 1) * 250; i++) WANT(recv[i] == (float)(RANKS * (i + round) + 3));
            if (part == 2) OK(ncclAllReduce(&config.count, &config.count, 1, 5, 2, comm, NULL)); /* uint64, max */
        }
        OK(hawserPartitionedFinish(p, NULL));
    }
    unsigned learned[PARTITIONS];
    OK(hawserPartitionedLearn(p, learned));
    WANT(learned[0] == 3 && learned[1] == 2 && learned[2] == 1 && learned[3] == 0);
    OK(hawserPartitionedLearn(p, NULL));
    WANT(hawserPartitionedReady(p, 0, NULL) == INVALID_USAGE);
    WANT(strstr(ncclGetLastError(NULL), "no round has begun"));
    OK(hawserPartitionedFree(p));
    WANT(hawserPartitionedStart(p, NULL) == INVALID_ARGUMENT);
    WANT(strstr(ncclGetLastError(NULL), "is no partitioned collective"));
}

static void blocks(ncclComm_t comm, int rank) {
    float send[RANKS * COUNT], recv[COUNT];
    hawserPartitionedConfig_t config = all_reduce(send, recv);
    size_t counts[2] = {1, COUNT - 1};
    config.collective = "reduce_scatter", config.partitions = 2, config.counts = counts;
    hawserPartitioned_t p;
    OK(hawserPartitionedInit(&config, comm, &p));
    OK(hawserPartitionedStart(p, NULL));
    for (int i = 0; i < RANKS * COUNT; i++) send[i] = (float)i;
    OK(hawserPartitionedReady(p, 1, NULL));
    OK(hawserPartitionedReady(p, 0, NULL));
    OK(hawserPartitionedFinish(p, NULL));
    for (int i = 0; i < COUNT; i++) WANT(recv[i] == (float)(RANKS * (rank * COUNT + i)));
    OK(hawserPartitionedFree(p));
}

/* What is wrong on one rank is an error on all. */
// The last error is the process's, so no rank may go on before all have read theirs.
static void all_come(void) { pthread_barrier_wait(&barrier); }

static void refused(ncclComm_t comm, int rank) {
    float data[COUNT];
    hawserPartitioned_t p;
    hawserPartitionedConfig_t config = all_reduce(data, data);
    if (rank == 1) config.collective = "all_reduced";
    WANT(hawserPartitionedInit(&config, comm, &p) == INVALID_ARGUMENT);
    WANT(strstr(ncclGetLastError(NULL), "all_reduced is no collective"));
    all_come();
    config = all_reduce(data, data);
    if (rank == 2) config.magic = 7;
    WANT(hawserPartitionedInit(&config, comm, &p) == INVALID_ARGUMENT);
    WANT(strstr(ncclGetLastError(NULL), "HAWSER_PARTITIONED_CONFIG_INITIALIZER") || rank != 2);
    all_come();
    config = all_reduce(data, data);
    if (rank == 0) config.count = COUNT / 2;
    WANT(hawserPartitionedInit(&config, comm, &p) == INVALID_ARGUMENT);
    WANT(strstr(ncclGetLastError(NULL), "rank 1 asks for all_reduce"));
    all_come();
    WANT(hawserPartitionedInit(&config, NULL, &p) == INVALID_ARGUMENT);
    WANT(hawserPartitionedFree(NULL) == INVALID_ARGUMENT);
}

static void *rank_main(void *argument) {
    int rank = (int)(intptr_t)argument;
    ncclComm_t comm;
    OK(ncclCommInitRank(&comm, RANKS, meeting, rank));
    sum(comm, rank), blocks(comm, rank), refused(comm, rank);
    OK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    pthread_t thread[RANKS];
    WANT(pthread_barrier_init(&barrier, NULL, RANKS) == 0);
    OK(ncclGetUniqueId(&meeting));
    for (intptr_t r = 0; r < RANKS; r++) WANT(pthread_create(&thread[r], NULL, rank_main, (void *)r) == 0);
    for (int r = 0; r < RANKS; r++) WANT(pthread_join(thread[r], NULL) == 0);
    puts("partitioned: ok");
    return 0;
}

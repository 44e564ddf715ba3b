/* hawser.h from C: collectives whose parts differ in length, and the question what ran. */
#include <pthread.h>

#include "hawser_nccl.h"

typedef int ncclResult_t;
typedef int ncclDataType_t;

#include "../../core/capi/include/hawser.h"

_Static_assert(sizeof(hawserDecision_t) == 448, "hawserDecision_t");

enum { RANKS = 4, MOST = 4096 };

static ncclUniqueId meeting;
/* The last error is the process's: nobody may fail in another way while a rank reads it. */
static pthread_barrier_t barrier;

/* Elements from one rank to another: none, few, many. */
static size_t length(int from, int to) { return (size_t)((from * 7 + to * 3) % 5) * (size_t)(from + to * 90); }

static float value(int from, int to, size_t i) { return (float)(from * 100000 + to * 10000 + (int)i); }

static void all_to_all(ncclComm_t comm, int rank) {
    static __thread float send[MOST], recv[MOST];
    size_t counts[RANKS], displs[RANKS], rcounts[RANKS], rdispls[RANKS], at = 0, end = MOST;
    for (int p = 0; p < RANKS; p++) {
        counts[p] = length(rank, p), displs[p] = at, rcounts[p] = length(p, rank);
        for (size_t i = 0; i < counts[p]; i++) send[at + i] = value(rank, p, i);
        at += counts[p];
        end -= rcounts[p], rdispls[p] = end;
    }
    for (int i = 0; i < MOST; i++) recv[i] = -1;
    OK(hawserAlltoAllv(send, counts, rank % 2 ? displs : NULL, recv, rcounts, rdispls, FLOAT32, comm, NULL));
    for (size_t i = 0; i < end; i++) WANT(recv[i] == -1);
    for (int p = 0; p < RANKS; p++)
        for (size_t i = 0; i < rcounts[p]; i++) WANT(recv[rdispls[p] + i] == value(p, rank, i));
    pthread_barrier_wait(&barrier);
    WANT(hawserAlltoAllv(send, NULL, NULL, recv, rcounts, NULL, FLOAT32, comm, NULL) == INVALID_ARGUMENT);
    WANT(strstr(ncclGetLastError(NULL), "sendcounts is NULL"));
    pthread_barrier_wait(&barrier);
    WANT(hawserAlltoAllv(send, counts, NULL, recv, rcounts, NULL, 99, comm, NULL) == INVALID_ARGUMENT);
}

static void rooted(ncclComm_t comm, int rank) {
    static __thread float own[MOST], all[MOST];
    size_t counts[RANKS], at[RANKS], end = 0;
    for (int p = 0; p < RANKS; p++) counts[p] = length(p, 2), at[p] = end, end += counts[p];
    for (size_t i = 0; i < counts[rank]; i++) own[i] = value(rank, 2, i);
    for (int i = 0; i < MOST; i++) all[i] = -1;
    OK(hawserGatherv(own, counts[rank], all, rank == 2 ? counts : NULL, NULL, FLOAT32, 2, comm, NULL));
    for (int p = 0; p < RANKS; p++)
        for (size_t i = 0; i < counts[p]; i++) WANT(all[at[p] + i] == (rank == 2 ? value(p, 2, i) : -1));
    for (int i = 0; i < MOST; i++) own[i] = -1;
    OK(hawserScatterv(all, rank == 2 ? counts : NULL, NULL, own, counts[rank], FLOAT32, 2, comm, NULL));
    for (size_t i = 0; i < counts[rank]; i++) WANT(own[i] == value(rank, 2, i));
    for (int i = 0; i < MOST; i++) all[i] = -1;
    for (size_t i = 0; i < counts[rank]; i++) all[at[rank] + i] = value(rank, 2, i);
    OK(hawserAllGatherv(all + at[rank], counts[rank], all, counts, at, FLOAT32, comm, NULL));
    for (int p = 0; p < RANKS; p++)
        for (size_t i = 0; i < counts[p]; i++) WANT(all[at[p] + i] == value(p, 2, i));
    WANT(all[end] == -1);
    WANT(hawserGatherv(own, 1, all, counts, NULL, FLOAT32, RANKS, comm, NULL) == INVALID_ARGUMENT);
    WANT(hawserScatterv(all, counts, NULL, own, 1, FLOAT32, -1, comm, NULL) == INVALID_ARGUMENT);
}

static void decision(ncclComm_t comm) {
    float data[1000] = {0};
    char text[4000], few[20];
    hawserDecision_t last = HAWSER_DECISION_INITIALIZER;
    OK(ncclAllReduce(data, data, 1000, FLOAT32, SUM, comm, NULL));
    OK(hawserLastDecision(comm, &last, text, sizeof text));
    WANT(last.known && last.bytes == 4000 && !strcmp(last.collective, "all_reduce") && !strcmp(last.executor, "host"));
    WANT(last.algorithm[0] && !strcmp(last.protocol, "Simple") && last.channels && last.predictedUs > 0 && !last.rule[0]);
    WANT(last.textBytes == strlen(text) + 1 && strstr(text, "decided: ") && strstr(text, "predicted fastest"));
    uint64_t operation = last.operation;
    OK(hawserLastDecision(comm, &last, few, sizeof few));
    WANT(last.operation == operation && strlen(few) == sizeof few - 1 && !strncmp(few, text, sizeof few - 1));
    struct { hawserDecision_t head; char guard[8]; } first = {HAWSER_DECISION_INITIALIZER, "guarded"};
    first.head.version = 1, first.head.size = 432; /* a program that was built with version 1 of the struct */
    memset((char *)&first.head + 432, 'x', 16);
    OK(hawserLastDecision(comm, &first.head, NULL, 0));
    WANT(first.head.known && !strcmp((char *)&first.head + 168, "host") && !strcmp(first.head.protocol, "Simple"));
    WANT(((char *)&first.head)[432] == 'x');
    last.magic = 1;
    WANT(hawserLastDecision(comm, &last, NULL, 0) == INVALID_ARGUMENT);
    WANT(strstr(ncclGetLastError(NULL), "HAWSER_DECISION_INITIALIZER"));
    WANT(hawserLastDecision(comm, NULL, NULL, 0) == INVALID_ARGUMENT);
}

static void class_of(ncclComm_t comm) {
    float data[1000] = {0};
    OK(hawserCommSetClass(comm, "best_effort"));
    OK(ncclAllReduce(data, data, 1000, FLOAT32, SUM, comm, NULL));
    WANT(hawserCommSetClass(comm, "high") == INVALID_ARGUMENT && strstr(ncclGetLastError(NULL), "urgent, normal"));
    WANT(hawserCommSetClass(comm, NULL) == INVALID_ARGUMENT && hawserCommSetClass(NULL, "urgent") == INVALID_ARGUMENT);
    OK(hawserCommSetClass(comm, "normal"));
}

static void *rank_main(void *argument) {
    int rank = (int)(intptr_t)argument;
    ncclComm_t comm;
    OK(ncclCommInitRank(&comm, RANKS, meeting, rank));
    hawserDecision_t none = HAWSER_DECISION_INITIALIZER;
    OK(hawserLastDecision(comm, &none, NULL, 0));
    WANT(!none.known && none.textBytes == 1);
    for (int round = 0; round < 3; round++) all_to_all(comm, rank), rooted(comm, rank);
    hawserDecision_t last = HAWSER_DECISION_INITIALIZER;
    OK(hawserLastDecision(comm, &last, NULL, 0));
    WANT(last.known && !strcmp(last.collective, "sendrecv"));
    OK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    pthread_t thread[RANKS];
    OK(ncclGetUniqueId(&meeting));
    WANT(pthread_barrier_init(&barrier, NULL, RANKS) == 0);
    for (intptr_t r = 0; r < RANKS; r++) WANT(pthread_create(&thread[r], NULL, rank_main, (void *)r) == 0);
    for (int r = 0; r < RANKS; r++) WANT(pthread_join(thread[r], NULL) == 0);
    ncclComm_t alone;
    int device = 0;
    OK(ncclCommInitAll(&alone, 1, &device));
    decision(alone);
    class_of(alone);
    OK(ncclCommDestroy(alone));
    puts("vector: ok");
    return 0;
}

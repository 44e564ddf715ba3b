/* Four ranks multiply matrices and add up their products while they still multiply: an all-reduce in eight parts.
 * Ranks are threads on the host device; tensor_parallel.cu does the same on GPUs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The part of nccl.h that the example uses, so that it compiles where NCCL is not installed. */
typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef enum { ncclSuccess = 0 } ncclResult_t;
typedef enum { ncclFloat32 = 7 } ncclDataType_t;
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);

#include "hawser.h"

enum { RANKS = 4, PARTS = 8, ROWS = 256, INNER = 128, COLUMNS = 256 };

#define CHECK(call)                                                                \
    do {                                                                           \
        if ((call) != ncclSuccess) {                                               \
            fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(NULL));            \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

static ncclUniqueId id;

/* Rows of the product of this rank's share of the inner dimension. */
static void multiply(int rank, int first, int rows, float product[ROWS][COLUMNS]) {
    for (int r = first; r < first + rows; r++)
        for (int c = 0; c < COLUMNS; c++) {
            product[r][c] = 0;
            for (int k = rank * INNER; k < (rank + 1) * INNER; k++) product[r][c] += (float)((r + k) % 7) * (float)((k + c) % 5);
        }
}

/* What the sum over all ranks must be: the product over the whole inner dimension. */
static float expected(int r, int c) {
    float sum = 0;
    for (int k = 0; k < RANKS * INNER; k++) sum += (float)((r + k) % 7) * (float)((k + c) % 5);
    return sum;
}

static void *run(void *argument) {
    int rank = (int)(intptr_t)argument, rows = ROWS / PARTS, early = 0;
    static _Thread_local float product[ROWS][COLUMNS], sum[ROWS][COLUMNS];
    ncclComm_t comm;
    CHECK(ncclCommInitRank(&comm, RANKS, id, rank));

    hawserPartitionedConfig_t config = HAWSER_PARTITIONED_CONFIG_INITIALIZER;
    config.collective = "all_reduce", config.sendbuff = product, config.recvbuff = sum;
    config.count = ROWS * COLUMNS, config.partitions = PARTS;
    hawserPartitioned_t parts;
    CHECK(hawserPartitionedInit(&config, comm, &parts));

    CHECK(hawserPartitionedStart(parts, NULL));
    for (int part = 0; part < PARTS; part++) {
        multiply(rank, part * rows, rows, product);
        CHECK(hawserPartitionedReady(parts, part, NULL));
        int arrived;
        CHECK(hawserPartitionedArrived(parts, 0, &arrived));
        early += arrived && part < PARTS - 1;
    }
    for (int part = 0; part < PARTS; part++) {
        CHECK(hawserPartitionedWait(parts, part, NULL));
        for (int r = part * rows; r < (part + 1) * rows; r++)
            for (int c = 0; c < COLUMNS; c++)
                if (sum[r][c] != expected(r, c)) {
                    fprintf(stderr, "rank %d: row %d, column %d is wrong\n", rank, r, c);
                    exit(1);
                }
    }
    CHECK(hawserPartitionedFinish(parts, NULL));
    printf("rank %d has the sum of %d products, part by part%s\n", rank, RANKS, early ? "; the first came while it multiplied" : "");

    CHECK(hawserPartitionedFree(parts));
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    pthread_t thread[RANKS];
    CHECK(ncclGetUniqueId(&id));
    for (intptr_t rank = 0; rank < RANKS; rank++) pthread_create(&thread[rank], NULL, run, (void *)rank);
    for (int rank = 0; rank < RANKS; rank++) pthread_join(thread[rank], NULL);
    printf("all right\n");
    return 0;
}

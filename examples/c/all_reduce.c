/* Four ranks in one process sum a thousand numbers. On GPUs with -DWITH_CUDA, else on the host device. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"

enum { RANKS = 4, COUNT = 1000 };

#define CHECK(call)                                                                                        \
    do {                                                                                                   \
        ncclResult_t result = (call);                                                                      \
        if (result != ncclSuccess) {                                                                       \
            fprintf(stderr, "%s: %s: %s\n", #call, ncclGetErrorString(result), ncclGetLastError(NULL));    \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

int main(void) {
    ncclComm_t comm[RANKS];
    int devices[RANKS], version;
    float *buffer[RANKS], numbers[COUNT];
    cudaStream_t stream[RANKS];

    CHECK(ncclGetVersion(&version));
    printf("served by %s NCCL %d.%d.%d\n",
           dlsym(RTLD_DEFAULT, "hawserLastDecision") ? "Hawser, with the interface of" : "NVIDIA's", version / 10000,
           version / 100 % 100, version % 100);

    for (int rank = 0; rank < RANKS; rank++) devices[rank] = device_of(rank);
    CHECK(ncclCommInitAll(comm, RANKS, devices));
    for (int rank = 0; rank < RANKS; rank++) {
        buffer[rank] = allocate(rank, sizeof numbers);
        stream[rank] = stream_of(rank);
        for (int i = 0; i < COUNT; i++) numbers[i] = (float)(rank + i);
        copy(buffer[rank], numbers, sizeof numbers);
    }

    /* One thread speaks for all ranks: their calls belong together, so they stand in a group. */
    CHECK(ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK(ncclAllReduce(buffer[rank], buffer[rank], COUNT, ncclFloat32, ncclSum, comm[rank], stream[rank]));
    }
    CHECK(ncclGroupEnd());

    for (int rank = 0; rank < RANKS; rank++) {
        wait_for(rank);
        copy(numbers, buffer[rank], sizeof numbers);
        for (int i = 0; i < COUNT; i++) {
            if (numbers[i] != (float)(RANKS * i + 6)) {
                fprintf(stderr, "rank %d, number %d: %g is wrong\n", rank, i, numbers[i]);
                return 1;
            }
        }
        printf("rank %d has %g, %g, %g, ...\n", rank, numbers[0], numbers[1], numbers[2]);
        CHECK(ncclCommDestroy(comm[rank]));
    }
    printf("all right\n");
    return 0;
}

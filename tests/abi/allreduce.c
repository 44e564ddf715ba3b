/* Four ranks on the host device: one thread per rank, then one thread for all of them in groups. */
#include <pthread.h>

#include "hawser_nccl.h"

enum { RANKS = 4, COUNT = 1000 };

static ncclUniqueId meeting;

static void *rank_main(void *argument) {
    int rank = (int)(intptr_t)argument;
    ncclComm_t comm;
    OK(ncclCommInitRank(&comm, RANKS, meeting, rank));
    float send[COUNT], recv[COUNT];
    for (int i = 0; i < COUNT; i++) send[i] = (float)(rank + i);
    OK(ncclAllReduce(send, recv, COUNT, FLOAT32, SUM, comm, NULL));
    for (int i = 0; i < COUNT; i++) WANT(recv[i] == (float)(RANKS * i + 6));

    /* 0.5 * (0 + 1 + 2 + 3 + 4 i) */
    float half = 0.5f;
    int op = -1;
    OK(ncclRedOpCreatePreMulSum(&op, &half, FLOAT32, HOST_IMMEDIATE, comm));
    WANT(op >= 5);
    OK(ncclAllReduce(send, recv, COUNT, FLOAT32, op, comm, NULL));
    OK(ncclRedOpDestroy(op, comm));
    for (int i = 0; i < COUNT; i++) WANT(recv[i] == (float)(2 * i + 3));

    /* To the next rank, from the one before. */
    OK(ncclGroupStart());
    OK(ncclSend(send, COUNT, FLOAT32, (rank + 1) % RANKS, comm, NULL));
    OK(ncclRecv(recv, COUNT, FLOAT32, (rank + RANKS - 1) % RANKS, comm, NULL));
    OK(ncclGroupEnd());
    WANT(recv[5] == (float)((rank + RANKS - 1) % RANKS + 5));

    /* Even and odd ranks apart. */
    ncclComm_t part;
    OK(ncclCommSplit(comm, rank % 2, rank, &part, NULL));
    OK(ncclAllReduce(send, recv, COUNT, FLOAT32, SUM, part, NULL));
    WANT(recv[0] == (float)(rank % 2 == 0 ? 2 : 4));
    OK(ncclCommDestroy(part));
    OK(ncclCommSplit(comm, -1, 0, &part, NULL));
    WANT(part == NULL);
    OK(ncclCommDestroy(comm));
    WANT(ncclCommCount(comm, &op) == INVALID_ARGUMENT);
    return NULL;
}

static void threads(void) {
    pthread_t thread[RANKS];
    OK(ncclGetUniqueId(&meeting));
    for (intptr_t r = 0; r < RANKS; r++) WANT(pthread_create(&thread[r], NULL, rank_main, (void *)r) == 0);
    for (int r = 0; r < RANKS; r++) WANT(pthread_join(thread[r], NULL) == 0);
}

static void one_thread(void) {
    ncclComm_t comm[RANKS];
    static float data[RANKS][COUNT];
    int devices[RANKS] = {0, 1, 2, 3};
    OK(ncclCommInitAll(comm, RANKS, devices));
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < COUNT; i++) data[r][i] = (float)(r * i);
    }
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) OK(ncclAllReduce(data[r], data[r], COUNT, FLOAT32, SUM, comm[r], NULL));
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < COUNT; i++) WANT(data[r][i] == (float)(6 * i));
    }
    data[2][7] = 77.0f;
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) OK(ncclBcast(data[r], COUNT, FLOAT32, 2, comm[r], NULL));
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) WANT(data[r][7] == 77.0f);

    /* An error of one call fails the group; nothing was launched and the communicators live on. */
    OK(ncclGroupStart());
    OK(ncclAllReduce(data[0], data[0], COUNT, FLOAT32, SUM, comm[0], NULL));
    WANT(ncclAllReduce(data[1], data[1], COUNT, 99, SUM, comm[1], NULL) == INVALID_ARGUMENT);
    WANT(ncclGroupEnd() == INVALID_ARGUMENT);
    WANT(data[0][7] == 77.0f);
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) OK(ncclAllReduce(data[r], data[r], 8, FLOAT32, SUM, comm[r], NULL));
    OK(ncclGroupEnd());
    WANT(data[3][7] == 4 * 77.0f);
    for (int r = 0; r < RANKS; r++) OK(ncclCommDestroy(comm[r]));
}

int main(void) {
    threads();
    one_thread();
    puts("allreduce: ok");
    return 0;
}

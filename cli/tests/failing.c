/* NCCL's library, but with an all-reduce that fails on rank 1. All else is found in the library this is linked with. */
#include <stddef.h>

int ncclCommUserRank(void *comm, int *rank);
int pncclAllReduce(const void *, void *, size_t, int, int, void *, void *);

const char *ncclGetLastError(void *comm) {
    return comm ? "" : "out of luck";
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, void *comm, void *stream) {
    int rank = -1;
    ncclCommUserRank(comm, &rank);
    return rank == 1 ? 5 : pncclAllReduce(in, out, count, type, op, comm, stream);
}

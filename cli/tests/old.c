/* The library named by OLD_NCCL_TARGET, without the functions that NCCL got after 2.10. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

typedef struct { char bytes[128]; } Id;

static void *find(const char *name) {
    void *library = dlopen(getenv("OLD_NCCL_TARGET"), RTLD_NOW | RTLD_LOCAL);
    void *function = library ? dlsym(library, name) : NULL;
    if (!function) abort();
    return function;
}

#define FORWARD(name, parameters, arguments) \
    int name parameters { return ((int (*) parameters)find(#name)) arguments; }

FORWARD(ncclGetUniqueId, (Id *id), (id))
FORWARD(ncclCommInitRank, (void **comm, int ranks, Id id, int rank), (comm, ranks, id, rank))
FORWARD(ncclCommDestroy, (void *comm), (comm))
FORWARD(ncclCommAbort, (void *comm), (comm))
FORWARD(ncclCommGetAsyncError, (void *comm, int *status), (comm, status))
FORWARD(ncclGroupStart, (void), ())
FORWARD(ncclGroupEnd, (void), ())
FORWARD(ncclAllGather, (const void *in, void *out, size_t count, int type, void *comm, void *stream),
        (in, out, count, type, comm, stream))
FORWARD(ncclAllReduce, (const void *in, void *out, size_t count, int type, int op, void *comm, void *stream),
        (in, out, count, type, op, comm, stream))
FORWARD(ncclReduceScatter, (const void *in, void *out, size_t count, int type, int op, void *comm, void *stream),
        (in, out, count, type, op, comm, stream))
FORWARD(ncclBroadcast, (const void *in, void *out, size_t count, int type, int root, void *comm, void *stream),
        (in, out, count, type, root, comm, stream))
FORWARD(ncclReduce, (const void *in, void *out, size_t count, int type, int op, int root, void *comm, void *stream),
        (in, out, count, type, op, root, comm, stream))
FORWARD(ncclSend, (const void *in, size_t count, int type, int peer, void *comm, void *stream),
        (in, count, type, peer, comm, stream))
FORWARD(ncclRecv, (void *out, size_t count, int type, int peer, void *comm, void *stream),
        (out, count, type, peer, comm, stream))

int ncclGetVersion(int *version) {
    *version = 2708;
    return 0;
}

const char *ncclGetErrorString(int status) {
    return status ? "a failure" : "no error";
}

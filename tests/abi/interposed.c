/* Runs under the interposer: its functions must be called, and must reach the library behind. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "hawser_nccl.h"

int main(void) {
    int (*calls)(void);
    *(void **)&calls = dlsym(RTLD_DEFAULT, "interposed_calls");
    WANT(calls != NULL);
    int version = 0;
    OK(ncclGetVersion(&version));
    WANT(version == VERSION + 1000000);

    ncclUniqueId id;
    ncclComm_t comm;
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&comm, 1, id, 0));
    float data[2] = {3, 4};
    OK(ncclAllReduce(data, data, 2, FLOAT32, SUM, comm, NULL));
    WANT(calls() == 1);
    WANT(data[0] == 3 && data[1] == 4);
    OK(pncclAllReduce(data, data, 2, FLOAT32, SUM, comm, NULL));
    WANT(calls() == 1);
    /* The library itself does not go through the interposer. */
    WANT(ncclAllReduceConfig(data, data, 2, FLOAT32, SUM, comm, NULL, NULL) == SUCCESS && calls() == 1);
    OK(ncclCommDestroy(comm));
    puts("interposed: ok");
    return 0;
}

/* A program that includes and links what `make install` has installed: two ranks sum a number, and say how. */
#include <stdio.h>

#include "device.h"
#include <hawser.h>
#include <hawser_plugin.h>

enum { RANKS = 2 };

static int failed(const char *what, ncclResult_t result) {
    if (result != ncclSuccess) fprintf(stderr, "%s: %s\n", what, ncclGetLastError(NULL));
    return result != ncclSuccess;
}

int main(void) {
    ncclComm_t comm[RANKS];
    float number[RANKS] = {1, 2};
    hawserDecision_t decision = HAWSER_DECISION_INITIALIZER;

    if (failed("init", ncclCommInitAll(comm, RANKS, NULL))) return 1;
    if (failed("class", hawserCommSetClass(comm[0], "urgent"))) return 1;
    if (failed("start", ncclGroupStart())) return 1;
    for (int rank = 0; rank < RANKS; rank++) {
        float *own = &number[rank];
        if (failed("sum", ncclAllReduce(own, own, 1, ncclFloat32, ncclSum, comm[rank], NULL))) return 1;
    }
    if (failed("end", ncclGroupEnd())) return 1;
    if (failed("decision", hawserLastDecision(comm[0], &decision, NULL, 0))) return 1;
    for (int rank = 0; rank < RANKS; rank++) {
        if (number[rank] != 3 || failed("destroy", ncclCommDestroy(comm[rank]))) return 1;
    }
    printf("%s by %s\nall right, with plugins that end in %d\n", decision.collective, decision.algorithm, HAWSER_SUCCESS);
    return 0;
}

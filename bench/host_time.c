// Host time of a call: how long the calling thread is busy until the work is on the streams.
//
//     cc -O2 -pthread bench/host_time.c -o host_time -lcuda -ldl && ./host_time ROUNDS LIBRARY...
//
// One thread drives two GPUs, where nothing else is said (with one GPU: HOST_TIME_DEVICES=0,0 and NCCL_MULTI_RANK_GPU_ENABLE=1). Libraries take
// turns in one process; each is opened apart. Streams are drained after every 25 steps, outside of the time, so no
// queue is ever full. Prints the median and the smallest and largest round in microseconds for each way of calling,
// and the ratio of the first library to each other one:
//
//   alone     an all-reduce on each rank, without a group, by a thread for each
//   group     the same two calls in a group
//   sendrecv  a send and a receive on each rank, in a group
//   group16   sixteen all-reduces of buffers of their own on each rank, in a group
//   capture   an all-reduce on each rank in a group, captured into a graph
//
// HOST_TIME_CPU=1 counts the processor's time of the calling thread, for a machine that does other work too (the
// smallest round says most there). HOST_TIME_WAYS=4 leaves captures out: the stand-in for the driver
// (core/device/src/cuda/fake, LD_LIBRARY_PATH=target/debug/deps/fake-cuda) has none.
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, STEPS = 25, IN_GROUP = 16, SLOT = 256, BATCHES = 80, WAYS = 5, MOST_LIBRARIES = 4, MOST_ROUNDS = 99, FLOAT = 7, SUM = 0 };

static const char *const WAY[WAYS] = {"alone", "group", "sendrecv", "group16", "capture"};

typedef void *Comm;
typedef struct {
    const char *path;
    int (*init)(Comm *, int, const int *), (*start)(void), (*end)(void), (*destroy)(Comm);
    int (*reduce)(const void *, void *, size_t, int, int, Comm, CUstream);
    int (*send)(const void *, size_t, int, int, Comm, CUstream), (*recv)(void *, size_t, int, int, Comm, CUstream);
    Comm comm[RANKS];
    double us[WAYS][MOST_ROUNDS];
} Library;

static int device[RANKS] = {0, 1};
static CUcontext context[RANKS];
static CUstream stream[RANKS];
static CUdeviceptr in[RANKS], out[RANKS];

static void fail(const char *what, int code) {
    fprintf(stderr, "host_time: %s: error %d\n", what, code);
    exit(1);
}

static void cu(const char *what, CUresult code) {
    if (code != CUDA_SUCCESS) fail(what, code);
}

static void nccl(const char *what, int code) {
    if (code != 0) fail(what, code);
}

static void *symbol(void *handle, const char *name) {
    void *found = dlsym(handle, name);
    if (!found) fail(dlerror(), 0);
    return found;
}

static void open_library(Library *library, const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fail(dlerror(), 0);
    library->path = path;
    library->init = symbol(handle, "ncclCommInitAll");
    library->start = symbol(handle, "ncclGroupStart");
    library->end = symbol(handle, "ncclGroupEnd");
    library->destroy = symbol(handle, "ncclCommDestroy");
    library->reduce = symbol(handle, "ncclAllReduce");
    library->send = symbol(handle, "ncclSend");
    library->recv = symbol(handle, "ncclRecv");
    nccl("ncclCommInitAll", library->init(library->comm, RANKS, device));
}

static void open_devices(void) {
    const char *given = getenv("HOST_TIME_DEVICES");
    if (given && sscanf(given, "%d,%d", &device[0], &device[1]) != 2) fail("HOST_TIME_DEVICES is two numbers", 0);
    cu("cuInit", cuInit(0));
    for (int r = 0; r < RANKS; r++) {
        cu("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context[r], device[r]));
        cu("cuCtxSetCurrent", cuCtxSetCurrent(context[r]));
        cu("cuStreamCreateWithPriority", cuStreamCreateWithPriority(&stream[r], CU_STREAM_NON_BLOCKING, 0));
        cu("cuMemAlloc", cuMemAlloc(&in[r], IN_GROUP * SLOT));
        cu("cuMemAlloc", cuMemAlloc(&out[r], IN_GROUP * SLOT));
    }
}

static void reduce_on(const Library *library, int r, int slot) {
    void *from = (void *)(in[r] + slot * SLOT), *to = (void *)(out[r] + slot * SLOT);
    nccl("ncclAllReduce", library->reduce(from, to, 2, FLOAT, SUM, library->comm[r], stream[r]));
}

static void reduce(const Library *library, int slot) {
    for (int r = 0; r < RANKS; r++) reduce_on(library, r, slot);
}

static void exchange(const Library *library) {
    for (int r = 0; r < RANKS; r++) {
        nccl("ncclSend", library->send((void *)in[r], 2, FLOAT, 1 - r, library->comm[r], stream[r]));
        nccl("ncclRecv", library->recv((void *)out[r], 2, FLOAT, 1 - r, library->comm[r], stream[r]));
    }
}

static void step(const Library *library, int way) {
    nccl("ncclGroupStart", library->start());
    for (int i = 0; i < (way == 3 ? IN_GROUP : 1); i++) way == 2 ? exchange(library) : reduce(library, i);
    nccl("ncclGroupEnd", library->end());
}

static clockid_t host_clock = CLOCK_MONOTONIC;

static double now_us(void) {
    struct timespec now;
    clock_gettime(host_clock, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void drain(void) {
    for (int r = 0; r < RANKS; r++) cu("cuStreamSynchronize", cuStreamSynchronize(stream[r]));
}

static void begin_capture(void) {
    for (int r = 0; r < RANKS; r++)
        cu("cuStreamBeginCapture", cuStreamBeginCapture(stream[r], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
}

static void end_capture(void) {
    for (int r = 0; r < RANKS; r++) {
        CUgraph graph;
        cu("cuStreamEndCapture", cuStreamEndCapture(stream[r], &graph));
        cu("cuGraphDestroy", cuGraphDestroy(graph));
    }
}

// A rank that has a thread of its own.
typedef struct {
    const Library *library;
    int rank;
    double spent;
} Alone;

static pthread_barrier_t together;

static void *run_alone(void *argument) {
    Alone *alone = argument;
    cu("cuCtxSetCurrent", cuCtxSetCurrent(context[alone->rank]));
    for (int batch = 0; batch < BATCHES; batch++) {
        pthread_barrier_wait(&together);
        double start = now_us();
        for (int i = 0; i < STEPS; i++) reduce_on(alone->library, alone->rank, 0);
        alone->spent += now_us() - start;
        cu("cuStreamSynchronize", cuStreamSynchronize(stream[alone->rank]));
    }
    return NULL;
}

// The microseconds of a call, where each rank has a thread: their mean.
static double measure_alone(const Library *library) {
    Alone alone[RANKS];
    pthread_t thread[RANKS];
    double spent = 0;
    pthread_barrier_init(&together, NULL, RANKS);
    for (int r = 0; r < RANKS; r++) {
        alone[r] = (Alone){library, r, 0};
        if (pthread_create(&thread[r], NULL, run_alone, &alone[r])) fail("pthread_create", 0);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(thread[r], NULL);
        spent += alone[r].spent;
    }
    pthread_barrier_destroy(&together);
    return spent / (RANKS * BATCHES * STEPS);
}

// The microseconds of a step.
static double measure(const Library *library, int way) {
    if (way == 0) return measure_alone(library);
    double spent = 0;
    for (int batch = 0; batch < BATCHES; batch++) {
        if (way == 4) begin_capture();
        double start = now_us();
        for (int i = 0; i < STEPS; i++) step(library, way);
        spent += now_us() - start;
        way == 4 ? end_capture() : drain();
    }
    return spent / (BATCHES * STEPS);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words) {
    int rounds = count > 1 ? atoi(words[1]) : 0, libraries = count - 2;
    if (rounds < 1 || rounds > MOST_ROUNDS || libraries < 1 || libraries > MOST_LIBRARIES) {
        fprintf(stderr, "usage: host_time ROUNDS LIBRARY...: 1 to %d rounds, 1 to %d libraries\n", MOST_ROUNDS, MOST_LIBRARIES);
        return 2;
    }
    if (getenv("HOST_TIME_CPU")) host_clock = CLOCK_THREAD_CPUTIME_ID;
    const char *some = getenv("HOST_TIME_WAYS");
    int ways = some ? atoi(some) : WAYS;
    static Library library[MOST_LIBRARIES];
    open_devices();
    for (int l = 0; l < libraries; l++) open_library(&library[l], words[2 + l]);
    // The last way comes last in each library's life: a capture changes how later launches are ordered.
    for (int way = 0; way < ways && way < WAYS; way++) {
        for (int l = 0; l < libraries; l++) measure(&library[l], way);
        for (int round = 0; round < rounds; round++)
            for (int i = 0; i < libraries; i++) {
                int l = round % 2 ? libraries - 1 - i : i;
                library[l].us[way][round] = measure(&library[l], way);
            }
        printf("%-9s", WAY[way]);
        double first = 0;
        for (int l = 0; l < libraries; l++) {
            double *us = library[l].us[way];
            qsort(us, rounds, sizeof *us, compare);
            if (l == 0) first = us[rounds / 2];
            printf("   %8.3f (%.3f to %.3f)", us[rounds / 2], us[0], us[rounds - 1]);
            if (l > 0) printf(" x%.3f", first / us[rounds / 2]);
        }
        printf("\n");
        fflush(stdout);
    }
    return 0;
}

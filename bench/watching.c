// Cost of watching on the host device: two ranks of one thread, an all-reduce on each in a group.
//
//     cc -O2 bench/watching.c -o watching -ldl && HAWSER_DEVICE=host ./watching ROUNDS LIBRARY[@PROFILER]...
//
// Every library is opened apart and has communicators of its own; a file is opened once, so give copies of it. Those
// with a profiler behind `@` (a path for NCCL_PROFILER_PLUGIN) are watched by it, with the mask of
// NCCL_PROFILE_EVENT_MASK, else its own. Libraries take turns: each round measures all of them, one after the other.
// What the progress words cost: build the library twice, once without them (the feature `unwatched` of core/runtime):
//
//     cargo build --release -p hawser-capi --features hawser-runtime/unwatched && cp target/release/libnccl.so none.so
//     cargo build --release -p hawser-capi && cp target/release/libnccl.so words.so && cp none.so none-too.so
//     HAWSER_DEVICE=host ./watching 201 ./none.so ./words.so ./none-too.so
//
// Prints the median of the rounds in microseconds for each size, the smallest and largest, and the median of the
// rounds' ratios to the first library.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, MOST_LIBRARIES = 4, MOST_ROUNDS = 999, SIZES = 3, FLOAT = 7, SUM = 0 };

static const size_t BYTES[SIZES] = {8, 1 << 10, 64 << 10};
static const int CALLS[SIZES] = {4000, 4000, 400};

typedef void *Comm;
typedef struct {
    const char *name;
    int (*init)(Comm *, int, const int *), (*start)(void), (*end)(void), (*destroy)(Comm);
    int (*reduce)(const void *, void *, size_t, int, int, Comm, void *);
    Comm comm[RANKS];
    double us[SIZES][MOST_ROUNDS];
} Library;

static float in[RANKS][16 << 10], out[RANKS][16 << 10];

static void must(int code, const char *what)
{
    if (code != 0) {
        fprintf(stderr, "%s: %d\n", what, code);
        exit(1);
    }
}

static void *symbol(void *handle, const char *name)
{
    void *found = dlsym(handle, name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

static void load(Library *library, char *argument)
{
    char *profiler = strchr(argument, '@');
    library->name = strdup(argument);
    if (profiler)
        *profiler++ = 0;
    setenv("NCCL_PROFILER_PLUGIN", profiler ? profiler : "none", 1);
    void *handle = dlopen(argument, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    library->init = symbol(handle, "ncclCommInitAll");
    library->start = symbol(handle, "ncclGroupStart");
    library->end = symbol(handle, "ncclGroupEnd");
    library->destroy = symbol(handle, "ncclCommDestroy");
    library->reduce = symbol(handle, "ncclAllReduce");
    int devices[RANKS] = {0, 1};
    must(library->init(library->comm, RANKS, devices), "ncclCommInitAll");
}

static double measure(Library *library, size_t bytes, int calls)
{
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int call = 0; call < calls; call++) {
        must(library->start(), "ncclGroupStart");
        for (int rank = 0; rank < RANKS; rank++)
            must(library->reduce(in[rank], out[rank], bytes / sizeof(float), FLOAT, SUM, library->comm[rank], NULL),
                 "ncclAllReduce");
        must(library->end(), "ncclGroupEnd");
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((to.tv_sec - from.tv_sec) * 1e6 + (to.tv_nsec - from.tv_nsec) / 1e3) / calls;
}

static int by_value(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **arguments)
{
    static Library libraries[MOST_LIBRARIES];
    int rounds = count > 1 ? atoi(arguments[1]) : 0, n = count - 2;
    if (rounds < 1 || rounds > MOST_ROUNDS || n < 1 || n > MOST_LIBRARIES) {
        fprintf(stderr, "usage: %s ROUNDS LIBRARY[@PROFILER]...\n", arguments[0]);
        return 2;
    }
    for (int i = 0; i < n; i++)
        load(&libraries[i], arguments[i + 2]);
    for (int round = -1; round < rounds; round++)
        for (int size = 0; size < SIZES; size++)
            for (int i = 0; i < n; i++) {
                // The one that begins changes, lest it has a place of its own in each round.
                Library *library = &libraries[(i + round + 1) % n];
                double us = measure(library, BYTES[size], CALLS[size]);
                if (round >= 0)
                    library->us[size][round] = us;
            }
    for (int size = 0; size < SIZES; size++)
        for (int i = 0; i < n; i++) {
            double ratio[MOST_ROUNDS];
            for (int round = 0; round < rounds; round++)
                ratio[round] = libraries[i].us[size][round] / libraries[0].us[size][round];
            double us[MOST_ROUNDS];
            memcpy(us, libraries[i].us[size], sizeof us);
            qsort(us, rounds, sizeof *us, by_value);
            qsort(ratio, rounds, sizeof *ratio, by_value);
            printf("%6zu B  %9.3f us (%.3f to %.3f)  x%.4f  %s\n", BYTES[size], us[rounds / 2], us[0], us[rounds - 1],
                   ratio[rounds / 2], libraries[i].name);
        }
    for (int i = 0; i < n; i++)
        for (int rank = 0; rank < RANKS; rank++)
            libraries[i].destroy(libraries[i].comm[rank]);
    return 0;
}

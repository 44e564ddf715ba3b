/* A tuner of ABI version VERSION (2 to 6). It prefers tree/LL with three channels.
 * Macros: NO_NAME, NO_INIT, NO_TUNE, NO_FINALIZE, NO_CHUNK leave that slot NULL. */
#include "record.h"

enum {
    INIT_FAILS = 1,    /* ncclSystemError */
    INIT_STRANGE = 2,  /* 8, which is no code of NCCL */
    TUNE_FAILS = 3,    /* after it changed everything */
    TUNE_NONSENSE = 4, /* no number, impossible ones, negative channels */
    TUNE_NOTHING = 5,
    FINALIZE_FAILS = 6,
    CHUNK_FAILS = 7,
};

static int contexts;

struct domains {
    int count, fewest, most;
};

struct constants {
    double base[7][3], hw[3][7][3], ll[4][3], ring[4][3], tree128[4][3], tree[4][3], nvls_tree[4][3];
};

_Static_assert(sizeof(struct constants) == 1152, "constants");

static int start(uint64_t id, size_t ranks, size_t nodes, logger_t *logger, void **context)
{
    record("init id=%llu ranks=%zu nodes=%zu", (unsigned long long)id, ranks, nodes);
    if (fault == INIT_FAILS || fault == INIT_STRANGE) {
        record("\n");
        return fault == INIT_FAILS ? 2 : 8;
    }
    logger(3, 0x40, "tuner.c", 1, "tuner of version %d for %zu ranks", VERSION, ranks);
    *context = (void *)(uintptr_t)(0x10 + contexts++);
    return 0;
}

#if VERSION >= 5
static struct domains *kept_domains;
static struct constants *kept_constants;

static int init(void **context, uint64_t id, size_t ranks, size_t nodes, logger_t *logger,
                struct domains *domains, struct constants *constants)
{
    int code = start(id, ranks, nodes, logger, context);
    if (code)
        return code;
    record(" domains=%d,%d,%d", domains->count, domains->fewest, domains->most);
    record(" constants=%g,%g,%g,%g,%g,%g,%g\n", constants->base[1][0], constants->hw[2][5][2],
           constants->ll[3][0], constants->ring[2][1], constants->tree128[3][1], constants->tree[0][2],
           constants->nvls_tree[3][2]);
    constants->base[0][0] = 1.5;
    kept_domains = domains;
    kept_constants = constants;
    return 0;
}
#else
static int init(size_t ranks, size_t nodes, logger_t *logger, void **context)
{
    int code = start(0, ranks, nodes, logger, context);
    if (!code)
        record("\n");
    return code;
}
#endif

#if VERSION == 2
static int tune(void *context, int function, size_t bytes, int collnet, int nvls, int operations,
                int *algorithm, int *protocol, int *channels)
{
    record("tune %p function=%d bytes=%zu collnet=%d nvls=%d operations=%d in=%d,%d,%d\n", context, function,
           bytes, collnet, nvls, operations, *algorithm, *protocol, *channels);
    if (fault == TUNE_NOTHING)
        return 0;
    *algorithm = fault == TUNE_NONSENSE ? 6 : 0;
    *protocol = fault == TUNE_NONSENSE ? 2 : 0;
    *channels = fault == TUNE_NONSENSE ? -4 : 3;
    return fault == TUNE_FAILS ? 5 : 0;
}
#else
static int change(void *context, int function, size_t bytes, int operations, float (*table)[3], int rows,
                  int columns, int registered, int *channels)
{
    record("tune %p function=%d bytes=%zu operations=%d table=%dx%d registered=%d channels=%d\n", context,
           function, bytes, operations, rows, columns, registered, *channels);
    record("cells");
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            if (table[i][j] >= 0)
                record(" %d/%d=%g", i, j, table[i][j]);
            else if (table[i][j] != -1.0f)
                record(" %d/%d is neither a time nor -1", i, j);
    record("\n");
    if (fault == TUNE_NOTHING)
        return 0;
    if (fault == TUNE_NONSENSE) {
        table[1][2] = 0.0f / 0.0f;
        table[6][2] = 0; /* is impossible */
        *channels = -4;
        return 0;
    }
    table[0][0] = 0;
    table[1][2] = -1;
    *channels = 3;
    return fault == TUNE_FAILS ? 5 : 0;
}
#endif

#if VERSION == 3
static int tune(void *context, int function, size_t bytes, int operations, float **table, int rows, int columns,
                int *channels)
{
    return change(context, function, bytes, operations, (float(*)[3])table, rows, columns, -1, channels);
}
#elif VERSION > 3
static int tune(void *context, int function, size_t bytes, int operations, float **table, int rows, int columns,
                int registered, int *channels)
{
#if VERSION >= 5
    /* What init lent is still there, with our change. */
    record("kept %d,%g\n", kept_domains->most, kept_constants->base[0][0]);
#endif
    return change(context, function, bytes, operations, (float(*)[3])table, rows, columns, registered, channels);
}
#endif

static int finalize(void *context)
{
    record("finalize %p\n", context);
    return fault == FINALIZE_FAILS ? 3 : 0;
}

#if VERSION >= 6
static int chunk(void *context, int function, size_t bytes, int algorithm, int protocol, int channels, size_t *size)
{
    record("chunk %p function=%d bytes=%zu choice=%d/%d channels=%d in=%zu\n", context, function, bytes, algorithm,
           protocol, channels, *size);
    if (fault == TUNE_NOTHING)
        return 0;
    *size = 65536;
    return fault == CHUNK_FAILS ? 9 : 0;
}
#endif

struct {
    const char *name;
    __typeof__(&init) init;
    __typeof__(&tune) tune;
    __typeof__(&finalize) finalize;
#if VERSION >= 6
    __typeof__(&chunk) chunk;
#endif
} table = {
#ifndef NO_NAME
    .name = "recorder",
#endif
#ifndef NO_INIT
    .init = init,
#endif
#ifndef NO_TUNE
    .tune = tune,
#endif
#ifndef NO_FINALIZE
    .finalize = finalize,
#endif
#if VERSION >= 6 && !defined NO_CHUNK
    .chunk = chunk,
#endif
};

/* The name that the host looks for. SECOND adds an older table to the same library, an incomplete one. */
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
extern __typeof__(table) JOIN(ncclTunerPlugin_v, VERSION) __attribute__((alias("table")));
#ifdef SECOND
struct {
    void *slots[4];
} JOIN(ncclTunerPlugin_v, SECOND);
#endif

/* Slots that a macro left out are unused functions. */
void *used[] = {(void *)init, (void *)tune, (void *)finalize};
#if VERSION >= 6
void *used_too = (void *)chunk;
#endif

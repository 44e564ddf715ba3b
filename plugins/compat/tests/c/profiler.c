/* A profiler of ABI version VERSION (1 to 7) that writes down every field of what it gets.
 * Macros: NO_NAME, NO_INIT, NO_START, NO_STOP, NO_RECORD, NO_FINALIZE leave that slot NULL. */
#include "record.h"

#include <sys/types.h>

enum {
    INIT_FAILS = 1,   /* with code 8 */
    START_FAILS = 2,  /* although it sets the handle */
    NOT_WANTED = 3,   /* every event gets NULL */
    NO_CONTEXT = 4,   /* init succeeds without one */
    STOP_FAILS = 5,
    MASK_ONCE = 6,    /* only the first init writes the mask, as NVIDIA's example does */
};

/* What init writes into the mask, and where that is. */
int wanted = 0xffff;
static int *mask_place;
static int contexts, handles;

#if VERSION >= 5
typedef uint64_t kind_t;
#else
typedef uint8_t kind_t;
#endif

#if VERSION == 1
typedef uint8_t name_t; /* names are numbers */
#define NAME "%d"
#define SHOW(n) (n)
#else
typedef const char *name_t;
#define NAME "%s"
#define SHOW(n) text(n)
#endif

struct descr {
    kind_t type;
    void *parent;
    int rank;
    union {
        struct {
#if VERSION <= 3
            const char *name;
            uint64_t hash;
#endif
            uint64_t seq;
            name_t func;
            const void *send;
            void *recv;
            size_t count;
            int root;
            name_t datatype;
#if VERSION == 1
            uint32_t op;
#endif
#if VERSION <= 2
            size_t traffic;
#endif
            uint8_t channels, warps;
            name_t algo, proto;
#if VERSION == 1
            int collnet, nvls;
#endif
#if VERSION >= 5
            void *group;
#endif
#if VERSION >= 7
            const char *variant;
            bool symmetric;
            uint64_t tag;
#endif
        } coll;
        struct {
#if VERSION <= 3
            const char *name;
            uint64_t hash;
#endif
            name_t func;
            void *buff;
            name_t datatype;
            size_t count;
            int peer;
#if VERSION >= 4
            uint8_t channels;
#endif
#if VERSION >= 5
            void *group;
#endif
#if VERSION >= 7
            uint64_t tag;
#endif
        } p2p;
        struct {
            pid_t pid;
            uint8_t channel;
            int peer, steps, chunk, is_send;
        } proxy_op;
        struct {
            int step;
        } proxy_step;
#if VERSION >= 3
        struct {
            uint8_t channel;
#if VERSION >= 4
            uint64_t timer;
#endif
        } kernel;
        struct {
            int64_t id;
            void *data;
        } net;
#endif
#if VERSION >= 5
        struct {
            bool captured;
            int depth;
        } group_api;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            bool captured;
#if VERSION >= 7
            uint64_t tag;
#endif
        } coll_api;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            void *stream;
            bool captured;
#if VERSION >= 7
            uint64_t tag;
#endif
        } p2p_api;
        struct {
            void *stream;
        } launch;
#endif
#if VERSION >= 6
        struct {
            uint64_t seq;
            const char *func;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype, *strategy;
            bool intra;
            uint32_t batch_size, batches, ce_seq;
            void *stream;
#if VERSION >= 7
            uint64_t tag;
#endif
        } ce_coll;
        struct {
            bool complete;
            int ranks;
        } ce_sync;
        struct {
            int ops;
            size_t bytes;
            bool intra;
        } ce_batch;
#endif
#if VERSION >= 7
        struct {
            uint8_t channel, phase;
            const char *name;
            uint64_t timer;
        } phase;
#endif
    };
};

enum { DESCR_BYTES = VERSION == 2 ? 128 : VERSION <= 3 ? 120 : VERSION == 4 ? 104 : VERSION <= 6 ? 112 : 136 };
_Static_assert(sizeof(struct descr) == DESCR_BYTES, "descriptor");

#if VERSION <= 3
union args {
    struct {
        size_t bytes;
        int steps;
    } op;
    struct {
        int appended;
    } ctrl;
};
#else
union args {
    size_t bytes;
    int appended;
    void *data;
    uint64_t timer;
};
#endif

static int begin(void **context, int *mask)
{
    if (fault == INIT_FAILS)
        return 8;
    if (fault != MASK_ONCE || contexts == 0)
        __atomic_store_n(mask, wanted, __ATOMIC_RELAXED);
    mask_place = mask;
    contexts++;
    *context = fault == NO_CONTEXT ? NULL : (void *)(uintptr_t)(0x100 + contexts);
    return 0;
}

/* Writes the mask from outside of any call, as a plugin's own thread would. */
void change_mask(int mask)
{
    __atomic_store_n(mask_place, mask, __ATOMIC_RELAXED);
}

#if VERSION <= 3
static int init(void **context, int *mask)
{
    record("init mask=%d\n", *mask);
    return begin(context, mask);
}
#else
static int ready(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                 logger_t *logger)
{
    record("init mask=%d id=%llu name=%s nodes=%d ranks=%d rank=%d\n", *mask, (unsigned long long)id, text(name),
           nodes, ranks, rank);
    logger(3, 0x4000, "profiler.c", 1, "profiler of version %d for rank %d", VERSION, rank);
    return begin(context, mask);
}
#if VERSION == 4
static int init(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,
                logger_t *logger)
{
    return ready(context, id, mask, name, nodes, ranks, rank, logger);
}
#else
static int init(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                logger_t *logger)
{
    return ready(context, id, mask, name, nodes, ranks, rank, logger);
}
#endif
#endif

#if VERSION >= 7
static void tag(uint64_t number)
{
    record(" tag=%llu", (unsigned long long)number);
}

static void tag_of_call(const struct descr *d)
{
    if (d->type == 1 << 9)
        tag(d->coll_api.tag);
    else if (d->type == 1 << 10)
        tag(d->p2p_api.tag);
    else if (d->type == 1 << 12)
        tag(d->ce_coll.tag);
    else if (d->type == 1 << 15)
        record(" phase channel=%d %d %s timer=%llu", d->phase.channel, d->phase.phase, text(d->phase.name),
               (unsigned long long)d->phase.timer);
}
#endif

static void coll(const struct descr *d)
{
    record(" coll");
#if VERSION <= 3
    record(" name=%s hash=%llu", text(d->coll.name), (unsigned long long)d->coll.hash);
#endif
    record(" seq=%llu func=" NAME " send=%p recv=%p count=%zu root=%d datatype=" NAME, (unsigned long long)d->coll.seq,
           SHOW(d->coll.func), d->coll.send, d->coll.recv, d->coll.count, d->coll.root, SHOW(d->coll.datatype));
    record(" channels=%d warps=%d algo=" NAME " proto=" NAME, d->coll.channels, d->coll.warps, SHOW(d->coll.algo),
           SHOW(d->coll.proto));
#if VERSION == 1
    record(" op=%u collnet=%d nvls=%d", d->coll.op, d->coll.collnet, d->coll.nvls);
#endif
#if VERSION <= 2
    record(" traffic=%zu", d->coll.traffic);
#endif
#if VERSION >= 5
    record(" group=%p", d->coll.group);
#endif
#if VERSION >= 7
    record(" variant='%s' symmetric=%d", text(d->coll.variant), d->coll.symmetric);
    tag(d->coll.tag);
#endif
}

static void p2p(const struct descr *d)
{
    record(" p2p");
#if VERSION <= 3
    record(" name=%s hash=%llu", text(d->p2p.name), (unsigned long long)d->p2p.hash);
#endif
    record(" func=" NAME " buff=%p datatype=" NAME " count=%zu peer=%d", SHOW(d->p2p.func), d->p2p.buff,
           SHOW(d->p2p.datatype), d->p2p.count, d->p2p.peer);
#if VERSION >= 4
    record(" channels=%d", d->p2p.channels);
#endif
#if VERSION >= 5
    record(" group=%p", d->p2p.group);
#endif
#if VERSION >= 7
    tag(d->p2p.tag);
#endif
}

#if VERSION >= 3
static void kernel(const struct descr *d)
{
    record(" kernel channel=%d", d->kernel.channel);
#if VERSION >= 4
    record(" timer=%llu", (unsigned long long)d->kernel.timer);
#endif
}
#endif

#if VERSION >= 5
static void api(const struct descr *d)
{
    if (d->type == 1 << 8)
        record(" group api captured=%d depth=%d", d->group_api.captured, d->group_api.depth);
    else if (d->type == 1 << 9)
        record(" coll api func=%s count=%zu datatype=%s root=%d stream=%p captured=%d", d->coll_api.func,
               d->coll_api.count, d->coll_api.datatype, d->coll_api.root, d->coll_api.stream, d->coll_api.captured);
    else if (d->type == 1 << 10)
        record(" p2p api func=%s count=%zu datatype=%s stream=%p captured=%d", d->p2p_api.func, d->p2p_api.count,
               d->p2p_api.datatype, d->p2p_api.stream, d->p2p_api.captured);
    else if (d->type == 1 << 11)
        record(" launch stream=%p", d->launch.stream);
}
#endif

#if VERSION >= 6
static void copy_engine(const struct descr *d)
{
    if (d->type == 1 << 12) {
        record(" ce coll seq=%llu func=%s send=%p recv=%p count=%zu root=%d datatype=%s stream=%p",
               (unsigned long long)d->ce_coll.seq, d->ce_coll.func, d->ce_coll.send, d->ce_coll.recv, d->ce_coll.count,
               d->ce_coll.root, d->ce_coll.datatype, d->ce_coll.stream);
        record(" strategy='%s' intra=%d batch=%u,%u,%u", text(d->ce_coll.strategy), d->ce_coll.intra,
               d->ce_coll.batch_size, d->ce_coll.batches, d->ce_coll.ce_seq);
    } else if (d->type == 1 << 13)
        record(" ce sync complete=%d ranks=%d", d->ce_sync.complete, d->ce_sync.ranks);
    else if (d->type == 1 << 14)
        record(" ce batch ops=%d bytes=%zu intra=%d", d->ce_batch.ops, d->ce_batch.bytes, d->ce_batch.intra);
}
#endif

static int start(void *context, void **handle, struct descr *d)
{
    record("start %p type=%llu parent=%p rank=%d", context, (unsigned long long)d->type, d->parent, d->rank);
    switch (d->type) {
    case 1 << 1:
        coll(d);
        break;
    case 1 << 2:
        p2p(d);
        break;
    case 1 << 3:
        record(" op pid=%d channel=%d peer=%d steps=%d chunk=%d send=%d", d->proxy_op.pid, d->proxy_op.channel,
               d->proxy_op.peer, d->proxy_op.steps, d->proxy_op.chunk, d->proxy_op.is_send);
        break;
    case 1 << 4:
        record(" step %d", d->proxy_step.step);
        break;
#if VERSION >= 3
    case 1 << 6:
        kernel(d);
        break;
    case 1 << 7:
        record(" net id=%lld data=%p", (long long)d->net.id, d->net.data);
        break;
#endif
    }
#if VERSION >= 5
    api(d);
#endif
#if VERSION >= 6
    copy_engine(d);
#endif
#if VERSION >= 7
    tag_of_call(d);
#endif
    *handle = fault == NOT_WANTED ? NULL : (void *)(uintptr_t)(0x12 + handles++);
    record(" -> %p\n", *handle);
    return fault == START_FAILS ? 3 : 0;
}

static int stop(void *handle)
{
    record("stop %p\n", handle);
    return fault == STOP_FAILS ? 3 : 0;
}

static int state(void *handle, int number, union args *args)
{
    record("state %p %d", handle, number);
#if VERSION <= 3
    if (number >= 13)
        record(" appended=%d", args->ctrl.appended);
    else
        record(" bytes=%zu steps=%d", args->op.bytes, args->op.steps);
#else
    if (number >= 13 && number <= 18)
        record(" appended=%d", args->appended);
    else
        record(" args=%llu", (unsigned long long)args->timer);
#endif
    record("\n");
    return 0;
}

static int finalize(void *context)
{
    record("finalize %p\n", context);
    return 0;
}

struct {
    const char *name;
    __typeof__(&init) init;
    __typeof__(&start) start;
    __typeof__(&stop) stop;
    __typeof__(&state) state;
    __typeof__(&finalize) finalize;
} table = {
#ifndef NO_NAME
    .name = "recorder",
#endif
#ifndef NO_INIT
    .init = init,
#endif
#ifndef NO_START
    .start = start,
#endif
#ifndef NO_STOP
    .stop = stop,
#endif
#ifndef NO_RECORD
    .state = state,
#endif
#ifndef NO_FINALIZE
    .finalize = finalize,
#endif
};

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
extern __typeof__(table) JOIN(ncclProfiler_v, VERSION) __attribute__((alias("table")));

/* Slots that a macro left out are unused functions. */
void *used[] = {(void *)init, (void *)start, (void *)stop, (void *)state, (void *)finalize};

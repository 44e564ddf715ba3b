/* An env plugin of ABI version VERSION (1 or 2). Macros: NO_NAME, NO_INIT, NO_GET, NO_FINALIZE leave that slot NULL. */
#include "record.h"

enum { INIT_FAILS = 1 };

static char value[64];

static int init(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix
#if VERSION >= 2
                , logger_t *logger
#endif
)
{
    record("init %d.%d.%d suffix='%s'\n", major, minor, patch, suffix);
    if (fault == INIT_FAILS)
        return 8;
#if VERSION >= 2
    logger(3, 0x80, "env.c", 1, "env of version %d", VERSION);
#endif
    return 0;
}

static int finalize(void)
{
    record("finalize\n");
    memset(value, 'x', sizeof value - 1);
    return 0;
}

/* Every answer lies in the same place, so it lasts until the next question only. */
static const char *get(const char *name)
{
    record("get %s\n", name);
    if (!strcmp(name, "UNSET"))
        return NULL;
    if (!strcmp(name, "STRANGE"))
        return "a\xff";
    snprintf(value, sizeof value, "value of %s", name);
    return value;
}

struct {
    const char *name;
    __typeof__(&init) init;
    __typeof__(&finalize) finalize;
    __typeof__(&get) get;
} table = {
#ifndef NO_NAME
    .name = "recorder",
#endif
#ifndef NO_INIT
    .init = init,
#endif
#ifndef NO_FINALIZE
    .finalize = finalize,
#endif
#ifndef NO_GET
    .get = get,
#endif
};

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
extern __typeof__(table) JOIN(ncclEnvPlugin_v, VERSION) __attribute__((alias("table")));

/* Slots that a macro left out are unused functions. */
void *used[] = {(void *)init, (void *)finalize, (void *)get};

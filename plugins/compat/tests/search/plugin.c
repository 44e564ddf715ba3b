/* Libraries for the tests of the search. Macros: NET, COLLNET, TUNER, ENV (a table of that kind, with this name), OLD_NET,
 * GIN (tables that are not supported), BROKEN_TUNER (a table without functions), and what goes wrong: ON_LOAD, IN_INIT
 * (statements), UNDEFINED. */
#include <stdlib.h>
#include <unistd.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

__attribute__((unused)) static void crash(void)
{
    volatile int *volatile nowhere = 0;

    *nowhere = 1;
}

#ifdef ON_LOAD
__attribute__((constructor)) static void loaded(void)
{
    ON_LOAD;
}
#endif

#ifdef UNDEFINED
extern int nowhere_to_be_found(void);
int user(void)
{
    return nowhere_to_be_found();
}
#endif

/* Functions have different types in NCCL; here nobody calls more than these. */
__attribute__((unused)) static int init(void)
{
#ifdef IN_INIT
    IN_INIT;
#endif
    return 0;
}

__attribute__((unused)) static int devices(int *count)
{
    *count = 0;
    return 0;
}

__attribute__((unused)) static int refuse(void)
{
    return 3;
}

#define R (void *)refuse
#ifdef NET
void *ncclNetPlugin_v8[19] = {TEXT(NET), (void *)init, (void *)devices, R, R, R, R, R, R, R, R, R, R, R, R, R, R, R, R};
void *ncclNetPlugin_v7[19] = {"older"};
#endif
#ifdef COLLNET
void *ncclCollNetPlugin_v8[17] = {TEXT(COLLNET), (void *)init, (void *)devices, R, R, R, R, R, R, R, R, R, R, R, R, R, R};
#endif
#ifdef TUNER
void *ncclTunerPlugin_v4[4] = {TEXT(TUNER), (void *)init, R, R};
#endif
#ifdef BROKEN_TUNER
void *ncclTunerPlugin_v4[4] = {"broken"};
#endif
#ifdef ENV
void *ncclEnvPlugin_v1[4] = {TEXT(ENV), (void *)init, R, R};
#endif
#ifdef OLD_NET
void *ncclNetPlugin_v4[16] = {"old"};
#endif
#ifdef GIN
void *ncclGinPlugin_v13[20] = {"gin"};
#endif

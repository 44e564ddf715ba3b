/* The test plugins write down what the host does with them; the tests compare the text. */
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

char recorded[1 << 16];
int recorded_bytes;
/* What goes wrong; 0 = nothing. The numbers are the plugin's. */
int fault;

/* NCCL's log callback. */
typedef void logger_t(int level, unsigned long subsys, const char *file, int line, const char *format, ...);

__attribute__((format(printf, 1, 2), unused))
static void record(const char *format, ...)
{
    static char is_writing;
    size_t space;
    va_list arguments;
    int written;

    /* Ranks may be threads. */
    while (__atomic_test_and_set(&is_writing, __ATOMIC_ACQUIRE))
        ;
    space = sizeof recorded - recorded_bytes;
    va_start(arguments, format);
    written = vsnprintf(recorded + recorded_bytes, space, format, arguments);
    va_end(arguments);
    if (written > 0 && (size_t)written < space)
        recorded_bytes += written;
    __atomic_clear(&is_writing, __ATOMIC_RELEASE);
}

/* A string that may be NULL. */
__attribute__((unused))
static const char *text(const char *s)
{
    return s ? s : "NULL";
}

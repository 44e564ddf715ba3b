/* The variadic callback through which C plugins log: Rust cannot define one. Formats the line and hands it on. */
#include <stdarg.h>
#include <stdio.h>

typedef void sink_t(int level, unsigned long subsys, const char *file, int line, const char *text);

static sink_t *sink;

__attribute__((visibility("hidden"))) void hawser_compat_set_sink(sink_t *s)
{
    __atomic_store_n(&sink, s, __ATOMIC_RELEASE);
}

__attribute__((visibility("hidden"), format(printf, 5, 6)))
void hawser_compat_logger(int level, unsigned long subsys, const char *file, int line, const char *format, ...)
{
    sink_t *s = __atomic_load_n(&sink, __ATOMIC_ACQUIRE);
    char text[2048];
    va_list arguments;

    if (!s || !format)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    s(level, subsys, file, line, text);
}

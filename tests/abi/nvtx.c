/* A stand-in for NVIDIA's library of NVTX: it writes ranges to the file that HEARD names, and counts the open
 * ones of each thread. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t colour_kind;
    uint32_t colour;
    int32_t payload_kind, reserved;
    uint64_t payload;
    int32_t message_kind;
    const char *message;
};

static __thread int open_ranges;
static char domain_name[16];

static void hear(const char *what, const char *name, int depth) {
    FILE *file = fopen(getenv("HEARD"), "a");
    if (!file) abort();
    fprintf(file, "%s %s %s %d\n", what, domain_name, name, depth);
    fclose(file);
}

void *nvtxDomainCreateA(const char *name) {
    snprintf(domain_name, sizeof domain_name, "%s", name);
    return domain_name;
}

int nvtxDomainRangePushEx(void *domain, const struct attributes *range) {
    int known = domain == domain_name && range->version == 2 && range->size == 48 && range->message_kind == 1;
    hear(known ? "begin" : "wrong", range->message, open_ranges);
    return open_ranges++;
}

int nvtxDomainRangePop(void *domain) {
    open_ranges--;
    hear(domain == domain_name ? "end" : "wrong", "-", open_ranges);
    return open_ranges;
}

/* A small stand-in for libcuda.so.1, for tests on machines without a GPU: two devices whose memory
 * is host memory. It checks what the real driver leaves to luck: calls that are unsafe during a
 * capture, work on the legacy stream, double registration, and objects that are never freed.
 * Names and numbers are those of the CUDA driver API. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICES 2
#define RANGES 256
#define API __attribute__((visibility("default"))) int

typedef uint64_t ptr_t;
enum { OK = 0, INVALID_VALUE = 1, OOM = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201, ALREADY_ENABLED = 704,
       ALREADY_REGISTERED = 712, ILLEGAL_STATE = 401, NOT_READY = 600, NOT_PERMITTED = 800, CAPTURE_UNSUPPORTED = 900, CAPTURE_IMPLICIT = 906, NOT_FOUND = 500 };
enum { FREE, DEVICE, VMM, OPENED, PINNED, REGISTERED, TAKEN };

struct range { _Atomic int kind; int device, fd; char *addr; size_t bytes; int access; uint64_t id; };
struct context { int device, retained; };
struct stream { int capture, nodes, priority, waits; }; /* the capture that it is in, what was recorded, and the work it is behind */
struct graph { int nodes, capture; };
struct object { void (*destroy)(void *); void *data; int references; uintptr_t capture; struct object *next; };

static struct range ranges[RANGES];
static _Atomic uint64_t ids;
static struct context contexts[DEVICES];
/* Ranks are threads, and count at the same time. */
static _Atomic int busy, passed, live, capturing, captures, records, waits, external_waits, value_waits, launches, overlapping, graph_launches, copies_within;
static _Atomic int bound; /* pieces of memory that are in multicast objects */
static int peer_access[DEVICES][DEVICES];
static uintptr_t latest_node, record_node, recorded_after; /* of captures: nodes are numbers */
static unsigned loaded, last_grid, last_block, last_shared, most_shared;
static __thread struct context *current;
static __thread int mode;

static int is_env(const char *name) { return getenv(name) != 0; }

/* Questions of the tests. */
API fake_bound(void) { return bound; }
API fake_live(void) { return live; }
API fake_records(void) { return records; }
API fake_waits(void) { return waits; }
API fake_external_waits(void) { return external_waits; }
API fake_latest_node(void) { return (int)latest_node; }
API fake_recorded_after(void) { return (int)recorded_after; }
API fake_value_waits(void) { return value_waits; }
API fake_launches(void) { return launches; }
API fake_overlapping(void) { return overlapping; }
API fake_graph_launches(void) { return graph_launches; }
API fake_copies_within(void) { return copies_within; }
API fake_grid(void) { return (int)last_grid; }
API fake_block(void) { return (int)last_block; }
API fake_loaded(void) { return (int)loaded; }
API fake_shared(void) { return (int)last_shared; }
API fake_set_capturing(int on) { return capturing = on; }
/* While the GPU is busy, a stream that is put behind something waits until all of that has passed. */
API fake_set_busy(int on) { return busy = on; }
API fake_pass(void) { return passed++; }
API fake_opened(void) { /* allocations of other processes */
  int n = 0;
  for (int i = 0; i < RANGES; i++) n += ranges[i].kind == OPENED;
  return n;
}
API fake_is_current(void) { return current != 0; }
API fake_peer_access(int from, int to) { return peer_access[from][to]; }

/* Calls that may allocate need a current context and, during any capture, the relaxed mode. */
static int unsafe_call(void) { return !current ? INVALID_CONTEXT : capturing && mode != 2 ? CAPTURE_UNSUPPORTED : OK; }
static struct range *find(ptr_t p) {
  for (int i = 0; i < RANGES; i++) {
    struct range *r = &ranges[i];
    if (r->kind && r->kind != TAKEN && p >= (ptr_t)r->addr && p < (ptr_t)r->addr + r->bytes) return r;
  }
  return 0;
}
/* The kind comes last: who looks for an address meanwhile finds a whole range, or none. */
static struct range *add(int kind, char *addr, size_t bytes, int fd) {
  for (int i = 0; i < RANGES; i++) {
    struct range *r = &ranges[i];
    int is_free = FREE;
    if (!atomic_compare_exchange_strong(&r->kind, &is_free, TAKEN)) continue;
    r->device = current ? current->device : 0, r->fd = fd, r->addr = addr, r->bytes = bytes, r->access = 0, r->id = ++ids;
    r->kind = kind, live++;
    return r;
  }
  abort();
}
static void drop(struct range *r) { r->kind = FREE; live--; }

API cuInit(unsigned flags) { return is_env("FAKE_NO_DEVICE") ? NO_DEVICE : flags ? INVALID_VALUE : OK; }
API cuDriverGetVersion(int *v) { *v = 13000; return OK; }
API cuGetErrorName(int code, const char **text) { return *text = code == OOM ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER", OK; }
API cuGetErrorString(int code, const char **text) { return *text = code == OOM ? "out of memory" : "other", OK; }
API cuDeviceGetCount(int *n) { *n = DEVICES; return OK; }
API cuDeviceGet(int *d, int ordinal) { *d = ordinal; return OK; }
API cuDeviceGetName(char *s, int n, int d) { (void)d; snprintf(s, n, "Fake GPU"); return OK; }
API cuDeviceTotalMem_v2(size_t *b, int d) { (void)d; *b = 1 << 30; return OK; }
API cuDeviceGetAttribute(int *v, int a, int d) {
  (void)d;
  *v = a == 75 ? 9 : a == 76 ? 0 : a == 16 ? 132 : a == 102 || a == 103 ? 1 : a == 132 ? is_env("FAKE_MULTICAST") : 0;
  return OK;
}
API cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0000:%dB:00.0", d + 1); return OK; }
API cuDeviceCanAccessPeer(int *can, int d, int p) { *can = d != p; return OK; }
API cuDeviceGetP2PAttribute(int *v, int a, int d, int p) { (void)d, (void)p; *v = a == 3; return OK; }
API cuDevicePrimaryCtxRetain(struct context **c, int d) {
  *c = &contexts[d], contexts[d].device = d, contexts[d].retained++, live++;
  return OK;
}
API cuDevicePrimaryCtxRelease_v2(int d) { live--; return contexts[d].retained-- > 0 ? OK : INVALID_CONTEXT; }
API cuCtxGetCurrent(struct context **c) { *c = current; return OK; }
API cuCtxSetCurrent(struct context *c) { current = c; return OK; }
API cuCtxGetDevice(int *d) { return current ? (*d = current->device, OK) : INVALID_CONTEXT; }
API cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0, *greatest = -5; return OK; }
API cuCtxEnablePeerAccess(struct context *peer, unsigned flags) {
  if (!current || flags) return INVALID_CONTEXT;
  int *on = &peer_access[current->device][peer->device];
  return *on ? ALREADY_ENABLED : (*on = 1, OK);
}
API cuThreadExchangeStreamCaptureMode(int *m) { int old = mode; mode = *m; *m = old; return OK; }

/* Device memory: a memfd, so that another process can open it. */
API cuMemAlloc_v2(ptr_t *p, size_t n) {
  int e = unsafe_call();
  if (e) return e;
  if (n > 1 << 30) return OOM;
  int fd = memfd_create("device", 0);
  if (ftruncate(fd, n)) return OOM;
  char *a = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  memset(a, 0xee, n);
  *p = (ptr_t)add(DEVICE, a, n, fd)->addr;
  return OK;
}
API cuMemFree_v2(ptr_t p) {
  struct range *r = find(p);
  if (!r || r->kind != DEVICE || (ptr_t)r->addr != p) return INVALID_VALUE;
  munmap(r->addr, r->bytes), close(r->fd), drop(r);
  return unsafe_call();
}
API cuMemGetInfo_v2(size_t *f, size_t *t) { *f = 12 << 20, *t = 1 << 30; return current ? OK : INVALID_CONTEXT; }
static int async(ptr_t p, size_t n, struct stream *s) {
  struct range *r = find(p);
  if (!s) return CAPTURE_IMPLICIT; /* our own work must not use the legacy stream */
  return !current ? INVALID_CONTEXT : !r || p + n > (ptr_t)r->addr + r->bytes ? INVALID_VALUE : OK;
}
API cuMemsetD8Async(ptr_t p, unsigned char v, size_t n, struct stream *s) {
  int e = async(p, n, s);
  return e ? e : (memset((void *)p, v, n), OK);
}
API cuMemcpyHtoDAsync_v2(ptr_t p, const void *q, size_t n, struct stream *s) {
  int e = async(p, n, s);
  return e ? e : (memcpy((void *)p, q, n), OK);
}
API cuMemcpyDtoHAsync_v2(void *q, ptr_t p, size_t n, struct stream *s) {
  int e = async(p, n, s);
  return e ? e : (memcpy(q, (void *)p, n), OK);
}

/* Legacy IPC: process id and descriptor number. */
API cuMemGetAddressRange_v2(ptr_t *base, size_t *bytes, ptr_t p) {
  struct range *r = find(p);
  if (!r || (r->kind != DEVICE && r->kind != VMM)) return INVALID_VALUE;
  *base = (ptr_t)r->addr, *bytes = r->bytes;
  if (r->kind == VMM && is_env("FAKE_HOST_PIECES")) *base = 0; /* as the driver does of VMM in the host's memory */
  return OK;
}
API cuIpcGetMemHandle(int *handle, ptr_t p) {
  struct range *r = find(p);
  if (!r || r->kind != DEVICE) return INVALID_VALUE;
  handle[0] = getpid(), handle[1] = r->fd, handle[2] = (int)r->bytes;
  return OK;
}
struct ipc { int n[16]; };
API cuIpcOpenMemHandle_v2(ptr_t *p, struct ipc h, unsigned flags) {
  char path[64];
  if (is_env("FAKE_NO_IPC")) return NOT_PERMITTED;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.n[0], h.n[1]);
  int e = unsafe_call(), fd = open(path, O_RDWR);
  if (e || fd < 0 || flags != 1 || h.n[0] == getpid()) return e ? e : INVALID_VALUE;
  *p = (ptr_t)add(OPENED, mmap(0, h.n[2], PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), h.n[2], fd)->addr;
  return OK;
}
API cuIpcCloseMemHandle(ptr_t p) {
  struct range *r = find(p);
  if (!r || r->kind != OPENED) return INVALID_VALUE;
  munmap(r->addr, r->bytes), close(r->fd), drop(r);
  return OK;
}

/* VMM: a handle is a descriptor plus 1000. */
struct prop { int type, handle_types, location_type, device; void *win32; unsigned char flags[8]; };
struct access { int location_type, device, flags; };
API cuMemGetAllocationGranularity(size_t *g, const struct prop *p, int option) { (void)option; *g = 2 << 20; return p->type == 1 ? OK : INVALID_VALUE; }
API cuMemCreate(ptr_t *h, size_t n, const struct prop *p, unsigned long long flags) {
  int e = unsafe_call();
  if (is_env("FAKE_NO_VMM") && p->handle_types) return NOT_PERMITTED;
  if (e || flags || p->type != 1 || p->handle_types > 1 || p->location_type != 1 || n % (2 << 20)) return e ? e : INVALID_VALUE;
  if (n > 1 << 30) return OOM;
  int fd = memfd_create("vmm", 0);
  if (ftruncate(fd, n)) return OOM;
  *h = fd + 1000, live++;
  return OK;
}
API cuMemRelease(ptr_t h) { live--; return close((int)h - 1000) ? INVALID_VALUE : OK; }
API cuMemAddressReserve(ptr_t *p, size_t n, size_t align, ptr_t at, unsigned long long flags) {
  if (align || at || flags) return INVALID_VALUE;
  *p = (ptr_t)mmap(0, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), live++;
  return OK;
}
API cuMemAddressFree(ptr_t p, size_t n) { live--; return find(p) || munmap((void *)p, n) ? INVALID_VALUE : OK; }
API cuMemMap(ptr_t p, size_t n, size_t offset, ptr_t h, unsigned long long flags) {
  int e = unsafe_call();
  if (e || offset || flags) return e ? e : INVALID_VALUE;
  if (mmap((void *)p, n, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)h - 1000, 0) == MAP_FAILED) return INVALID_VALUE;
  add(VMM, (char *)p, n, dup((int)h - 1000)); /* the mapping keeps the memory */
  return OK;
}
API cuMemUnmap(ptr_t p, size_t n) {
  struct range *r = find(p);
  if (!r || r->kind != VMM || r->bytes != n) return INVALID_VALUE;
  close(r->fd), drop(r);
  return mmap((void *)p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? INVALID_VALUE : OK;
}
API cuMemSetAccess(ptr_t p, size_t n, const struct access *a, size_t count) {
  struct range *r = find(p);
  if (!r || count != 1 || a->location_type != 1 || a->flags != 3) return INVALID_VALUE;
  if (!r->access) r->device = a->device;
  r->access |= 1 << a->device;
  return mprotect((void *)p, n, PROT_READ | PROT_WRITE) ? INVALID_VALUE : OK;
}
API cuMemRetainAllocationHandle(ptr_t *h, void *p) {
  struct range *r = find((ptr_t)p);
  if (!r || r->kind != VMM) return INVALID_VALUE;
  *h = dup(r->fd) + 1000, live++;
  return OK;
}
API cuMemExportToShareableHandle(int *fd, ptr_t h, int type, unsigned long long flags) {
  *fd = dup((int)h - 1000);
  return type != 1 || flags || *fd < 0 ? INVALID_VALUE : OK;
}
API cuMemImportFromShareableHandle(ptr_t *h, void *fd, int type) {
  int copy = dup((int)(intptr_t)fd);
  *h = copy + 1000, live++;
  return type != 1 || copy < 0 ? INVALID_VALUE : OK;
}

/* Multicast: an object is memory that all its processes share, with a word in front of what is mapped that counts the devices
 * that have joined. Memory is bound when all have, a device joins once, and is unbound as it was bound. */
struct multicast { unsigned devices; size_t bytes; unsigned long long handle_types, flags; };
struct members { _Atomic unsigned wanted, joined; };
static struct members *members_of(ptr_t h) {
  return mmap(0, sizeof(struct members), PROT_READ | PROT_WRITE, MAP_SHARED, (int)h - 1000, 0);
}
API cuMulticastGetGranularity(size_t *g, const struct multicast *p, int option) {
  *g = 2 << 20;
  return option == 0 && p->devices > 1 && p->handle_types == 1 ? OK : INVALID_VALUE;
}
API cuMulticastCreate(ptr_t *h, const struct multicast *p) {
  int e = unsafe_call(), fd = memfd_create("multicast", 0);
  if (e || p->flags || p->handle_types != 1 || p->devices < 2 || !p->bytes || p->bytes % (2 << 20)) return e ? e : INVALID_VALUE;
  if (is_env("FAKE_NO_OBJECTS") || ftruncate(fd, p->bytes)) return OOM;
  *h = fd + 1000, live++;
  struct members *m = members_of(*h);
  m->wanted = p->devices;
  return munmap(m, sizeof *m), OK;
}
API cuMulticastAddDevice(ptr_t h, int device) {
  struct members *m = members_of(h);
  (void)device;
  int e = is_env("FAKE_SHARED_GPU") || m->joined == m->wanted ? INVALID_VALUE : (m->joined++, OK);
  return munmap(m, sizeof *m), e;
}
API cuMulticastBindAddr(ptr_t h, size_t offset, ptr_t p, size_t n, unsigned long long flags) {
  struct members *m = members_of(h);
  struct range *r = find(p);
  int is_whole = r && r->kind == VMM && (ptr_t)r->addr == p && r->bytes == n;
  int e = m->joined != m->wanted ? ILLEGAL_STATE : !is_whole || flags || offset % (2 << 20) ? INVALID_VALUE : (bound++, OK);
  return munmap(m, sizeof *m), e;
}
API cuMulticastUnbind(ptr_t h, int device, size_t offset, size_t n) {
  (void)h, (void)device, (void)offset, (void)n;
  return bound-- > 0 ? OK : INVALID_VALUE;
}

/* Host memory. */
API cuMemHostAlloc(void **p, size_t n, unsigned flags) {
  int e = unsafe_call();
  if (e || flags != 3) return e ? e : INVALID_VALUE;
  *p = add(PINNED, memset(malloc(n), 0xee, n), n, -1)->addr;
  return OK;
}
API cuMemFreeHost(void *p) {
  struct range *r = find((ptr_t)p);
  if (!r || r->kind != PINNED) return INVALID_VALUE;
  free(r->addr), drop(r);
  return unsafe_call();
}
API cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
  int e = unsafe_call();
  if (e || flags != 3) return e ? e : INVALID_VALUE;
  if (find((ptr_t)p)) return ALREADY_REGISTERED;
  add(REGISTERED, p, n, -1);
  return OK;
}
API cuMemHostUnregister(void *p) {
  struct range *r = find((ptr_t)p);
  if (!r || r->kind != REGISTERED || !current) return INVALID_VALUE;
  drop(r);
  return OK;
}
API cuMemHostGetDevicePointer_v2(ptr_t *d, void *p, unsigned flags) {
  struct range *r = find((ptr_t)p);
  if (!current || flags || !r || r->kind < PINNED) return INVALID_VALUE;
  *d = (ptr_t)p;
  return OK;
}
API cuPointerGetAttribute(void *data, int attribute, ptr_t p) {
  struct range *r = find(p);
  if (!r) return INVALID_VALUE;
  if (attribute == 8) return *(char *)data = 0, OK;
  if (attribute == 10) return *(char *)data = r->kind == DEVICE, OK; // suits legacy IPC
  if (attribute == 18) return r->kind == VMM ? *(uint64_t *)data = r->bytes, OK : INVALID_VALUE;
  if (attribute == 19) return r->kind == VMM ? *(uint64_t *)data = (ptr_t)r->addr, OK : INVALID_VALUE;
  if (attribute == 7) return *(uint64_t *)data = r->id, OK; // no two have the same
  unsigned value = attribute == 2 ? (r->kind < PINNED ? 2 : 1) : attribute == 9 ? r->device
                 : attribute == 16 ? (!current || r->device == current->device || r->access >> current->device & 1 ? 3 : 0) : 0;
  memcpy(data, &value, sizeof value);
  return OK;
}

/* Streams and events. A stream whose address is odd is one of the test's: bits 8 and up are its capture. */
static int is_own(struct stream *s) { return s && !((uintptr_t)s & 1); }
static void wait_while_busy(struct stream *s) { if (busy && is_own(s)) s->waits = passed + 1; }
API cuStreamCreateWithPriority(struct stream **s, unsigned flags, int priority) {
  if (!current || flags != 1 || (priority && priority != -5)) return INVALID_VALUE;
  if (unsafe_call()) return unsafe_call();
  *s = calloc(1, sizeof **s), live++;
  (*s)->priority = priority;
  return OK;
}
API cuStreamGetPriority(struct stream *s, int *priority) { return *priority = is_own(s) ? s->priority : 0, OK; }
API cuStreamDestroy_v2(struct stream *s) { free(s), live--; return OK; }
API cuStreamSynchronize(struct stream *s) { return s ? unsafe_call() : OK; }
API cuStreamQuery(struct stream *s) { return !s ? INVALID_VALUE : s->waits > passed ? NOT_READY : OK; }
static uintptr_t capture_of(struct stream *s) { return (uintptr_t)s & 1 ? (uintptr_t)s >> 8 : is_own(s) ? s->capture : 0; }
API cuStreamGetCaptureInfo_v2(struct stream *s, int *status, uint64_t *id, uintptr_t *graph, const uintptr_t **deps, size_t *n) {
  if (!graph != !deps || !deps != !n) return INVALID_VALUE;
  if (!s && capturing) return CAPTURE_IMPLICIT;
  *id = capture_of(s), *status = *id != 0;
  if (graph) *graph = capture_of(s), *deps = &latest_node, *n = latest_node != 0;
  return OK;
}
/* One edge, to the node that records an event, is kept. */
API cuGraphAddEventRecordNode(uintptr_t *node, uintptr_t graph, const uintptr_t *after, size_t n, void *event) {
  if (!current || !graph || n != 1 || !event) return INVALID_VALUE;
  *node = record_node = ++latest_node, recorded_after = *after, latest_node = *after;
  return OK;
}
API cuGraphRemoveDependencies(uintptr_t graph, const uintptr_t *from, const uintptr_t *to, size_t n) {
  if (!current || !graph || n != 1 || *from != recorded_after || *to != record_node) return INVALID_VALUE;
  recorded_after = 0;
  return OK;
}
API cuGraphAddDependencies(uintptr_t graph, const uintptr_t *from, const uintptr_t *to, size_t n) {
  if (!current || !graph || n != 1 || recorded_after || *to != record_node) return INVALID_VALUE;
  recorded_after = *from;
  return OK;
}
API cuStreamGetId(struct stream *s, unsigned long long *id) {
  if (!current) return INVALID_CONTEXT;
  if (capture_of(s)) return CAPTURE_UNSUPPORTED;
  *id = (uintptr_t)s;
  return OK;
}
/* Memory of VMM is for the devices alone that were given access, whose ends of copies it may be. */
static int is_denied(struct range *r) { return r && r->kind == VMM && !(r->access >> current->device & 1); }
/* One end at least is memory of a device. Copies within one are counted: drivers make kernels of them. Programs may
   have them on the legacy stream. */
API cuMemcpyAsync(ptr_t to, ptr_t from, size_t n, struct stream *s) {
  static struct stream *const other = (struct stream *)1;
  struct range *a = find(to), *b = find(from);
  int e = !s && capturing ? CAPTURE_IMPLICIT : async(a ? to : from, n, s ? s : other);
  if (e) return e;
  if (is_denied(a) || is_denied(b)) return INVALID_VALUE;
  copies_within += a && b && a->kind < PINNED && b->kind < PINNED && a->device == b->device;
  memmove((void *)to, (void *)from, n);
  return OK;
}
/* Operations: 1 waits for a 32-bit value, 2 writes one; a wait that is not met yet would wait for ever here. */
struct memop { int what; ptr_t at; uint32_t value, high; unsigned flags; ptr_t alias, pad; };
API cuStreamBatchMemOp_v2(struct stream *s, unsigned count, struct memop *ops, unsigned flags) {
  (void)s;
  if (!current || flags || count > 256) return INVALID_VALUE;
  for (unsigned i = 0; i < count; i++) {
    if (!ops[i].at || ops[i].at % 4 || ops[i].flags || (ops[i].what != 1 && ops[i].what != 2)) return INVALID_VALUE;
    if (ops[i].what == 2) *(uint32_t *)ops[i].at = ops[i].value;
    else value_waits++;
  }
  return OK;
}
/* Called at once; a captured call is called when it is captured, in place of its replays. */
API cuLaunchHostFunc(struct stream *s, void (*function)(void *), void *data) {
  (void)s;
  if (!current || !function) return INVALID_VALUE;
  function(data);
  return OK;
}
API cuStreamWaitValue32_v2(struct stream *s, ptr_t p, unsigned value, unsigned flags) {
  (void)value;
  if (!current || flags || !p || p % 4) return INVALID_VALUE;
  value_waits++, wait_while_busy(s);
  return OK;
}
API cuEventCreate(void **e, unsigned flags) { *e = malloc(1), live++; return !(flags & ~2u) ? unsafe_call() : INVALID_VALUE; }
/* Not reached when first asked, then 1.5 ms apart. */
API cuEventElapsedTime(float *ms, void *a, void *b) {
  static int asked;
  if (!current || !a || !b) return INVALID_VALUE;
  *ms = 1.5f;
  return asked++ % 2 ? OK : 600;
}
API cuEventRecord(void *e, void *s) { (void)s; records++; return e && current ? OK : INVALID_VALUE; }
API cuStreamWaitEvent(struct stream *s, void *e, unsigned flags) {
  int external = flags == 1 && capture_of(s);
  if (!e || (flags && !external)) return INVALID_VALUE;
  external_waits += external, waits += !external;
  wait_while_busy(s);
  if (capture_of(s)) latest_node += 16;
  return OK;
}
API cuEventDestroy_v2(void *e) { free(e), live--; return OK; }

/* User objects: those of a capture live as long as its graph, or what was instantiated from it. */
static struct object *objects;
static void refer(uintptr_t capture, int more) {
  for (struct object **o = &objects; *o;) {
    struct object *it = *o;
    if (it->capture == capture && capture) it->references += more;
    if (it->references > 0) { o = &it->next; continue; }
    *o = it->next, it->destroy(it->data), free(it), live--;
  }
}
API cuUserObjectCreate(struct object **o, void *data, void (*destroy)(void *), unsigned references, unsigned flags) {
  if (!current || !destroy || references != 1 || flags != 1) return INVALID_VALUE;
  *o = calloc(1, sizeof **o), live++;
  (*o)->destroy = destroy, (*o)->data = data, (*o)->references = 1, (*o)->next = objects;
  return objects = *o, OK;
}
API cuUserObjectRelease(struct object *o, unsigned count) { return o->references -= count, refer(0, 0), OK; }
API cuGraphRetainUserObject(uintptr_t graph, struct object *o, unsigned count, unsigned flags) {
  if (!current || !graph || count != 1 || flags != 1) return INVALID_VALUE;
  return o->capture = graph, OK;
}

/* Graphs: only launches are counted. A capture of one's own is told from the tests' by its large number. */
API cuStreamBeginCapture_v2(struct stream *s, int how) {
  if (!current || !is_own(s) || how != 1) return s ? INVALID_VALUE : CAPTURE_UNSUPPORTED;
  if (s->capture) return ILLEGAL_STATE;
  s->capture = 1000000 + ++captures, s->nodes = 0, capturing++;
  return OK;
}
API cuStreamEndCapture(struct stream *s, struct graph **g) {
  if (!current || !is_own(s) || !s->capture) return ILLEGAL_STATE;
  *g = malloc(sizeof **g), (*g)->nodes = s->nodes, (*g)->capture = s->capture, s->capture = 0, capturing--, live++;
  return OK;
}
API cuGraphInstantiateWithFlags(struct graph **e, struct graph *g, unsigned long long flags) {
  if (!g || flags) return INVALID_VALUE;
  if (unsafe_call()) return unsafe_call();
  *e = malloc(sizeof **e), **e = *g, live++, refer(g->capture, 1);
  return OK;
}
API cuGraphLaunch(struct graph *e, struct stream *s) {
  if (!current || !e || !is_own(s) || s->capture) return INVALID_VALUE;
  graph_launches++, launches += e->nodes;
  return OK;
}
API cuGraphExecDestroy(struct graph *e) { refer(e->capture, -1), free(e), live--; return current ? OK : INVALID_CONTEXT; }
API cuGraphDestroy(struct graph *g) { refer(g->capture, -1), free(g), live--; return current ? OK : INVALID_CONTEXT; }

/* Kernels: every image has every symbol of Hawser's. */
API cuLibraryLoadData(void **l, const void *code, void *o, void *v, unsigned n, void *lo, void *lv, unsigned ln) {
  (void)o, (void)v, (void)lo, (void)lv;
  return n || ln || is_env("FAKE_NO_BINARY") ? 209 : (*l = (void *)code, OK);
}
API cuLibraryGetKernel(void **k, void *l, const char *name) { return strncmp(name, "hawser_", 7) ? NOT_FOUND : (*k = l, OK); }
API cuKernelGetFunction(void **f, void *k) { *f = k; return unsafe_call(); }
API cuFuncLoad(void *f) { return f ? loaded++, unsafe_call() : INVALID_VALUE; }
API cuFuncGetAttribute(int *v, int a, void *f) { (void)a, (void)f; *v = 0; return OK; }
// Launches may ask for no more shared memory than a kernel was allowed (attribute 8); an H200 has 227 KiB.
API cuFuncSetAttribute(void *f, int a, int v) {
  if (f && a == 9) return v < -1 || v > 100 ? INVALID_VALUE : OK;
  return !f || a != 8 || v > 227 << 10 ? INVALID_VALUE : (most_shared = v, OK);
}
API cuModuleLoadData(void **m, const void *code) { *m = (void *)code; return unsafe_call(); }
API cuModuleGetFunction(void **f, void *m, const char *name) { return strncmp(name, "hawser_", 7) ? NOT_FOUND : (*f = m, OK); }
API cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   struct stream *s, void **params, void **extra) {
  if (!current || !f || gy * gz * by * bz != 1 || shared > most_shared || !params || !params[0] || extra || bx > 1024) return INVALID_VALUE;
  if (is_own(s) && s->capture) return s->nodes++, OK;
  launches++, last_grid = gx, last_block = bx, last_shared = shared;
  return OK;
}

// The beginning of CUlaunchConfig; attributes: programmatic stream serialization is number 6, priority 8.
struct config { unsigned grid[3], block[3], shared; struct stream *stream; struct attribute { int id; char pad[4]; char value[64]; } *attributes; unsigned count; };

API cuLaunchKernelEx(const struct config *c, void *f, void **params, void **extra) {
  if (!c || c->count != 1) return INVALID_VALUE;
  int early = c->attributes->id == 6 && c->attributes->value[0] == 1, urgent = c->attributes->id == 8 && *(int *)c->attributes->value == -5;
  if (!early && !urgent) return INVALID_VALUE;
  overlapping += early;
  return cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream, params, extra);
}

/* A net plugin for tests: connections are queues in this process, and knobs make it misbehave in every way that plugins
 * in the field do. Compiled once per version with -DVERSION. */
#include "net_abi.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Set by the test before the call that they are about. The order is that of `Knob` in net_support. */
enum knob {
  KNOB_INIT_CODE,
  KNOB_DEVICES,
  KNOB_SKIP,          /* every n-th isend and irecv answers "not now" */
  KNOB_CONNECT_DELAY, /* attempts that find nothing */
  KNOB_ACCEPT_DELAY,
  KNOB_FAIL_CALL, /* enum call */
  KNOB_FAIL_CODE,
  KNOB_NO_SIZES, /* 1: test writes no sizes; 2: it writes nonsense */
  KNOB_PROPERTIES, /* enum properties_kind */
  KNOB_NULL_OBJECTS, /* listen succeeds without an object */
  KNOBS
};

/* The order is that of `Call` in net_support. */
enum call {
  CALL_NONE,
  CALL_DEVICES,
  CALL_GET_PROPERTIES,
  CALL_LISTEN,
  CALL_CONNECT,
  CALL_ACCEPT,
  CALL_REG_MR,
  CALL_DEREG_MR,
  CALL_ISEND,
  CALL_IRECV,
  CALL_IFLUSH,
  CALL_TEST,
  CALL_MAKE_V_DEVICE,
  CALL_SET_NET_ATTR,
  CALL_CLOSE,
};

enum properties_kind { PROPERTIES_SANE, PROPERTIES_NO_NAME, PROPERTIES_ABSURD };

/* What the test looks at afterwards. The order is that of `Seen` in net_support. */
enum seen {
  SEEN_INIT,
  SEEN_FINALIZE,
  SEEN_DEVICES,
  SEEN_GET_PROPERTIES,
  SEEN_COMM_ID,
  SEEN_TRAFFIC_CLASS,
  SEEN_LISTENERS, /* open now, as the next three */
  SEEN_SENDERS,
  SEEN_RECEIVERS,
  SEEN_MRS,
  SEEN_OPTIONAL,
  SEEN_FLUSHES,
  SEEN_PROFILE, /* of the last message */
  SEEN_MR_KIND,
  SEEN_MR_FD,
  SEEN_MR_OFFSET,
  SEEN_MEMBERS, /* of the last virtual device */
  SEEN_ATTRIBUTE_OP,
  SEEN_CONSUMED,
  SEENS
};

int net_test_knobs[KNOBS] = {[KNOB_DEVICES] = 2};
long net_test_seen[SEENS];

#if VERSION >= 7
enum { MAX_REQUESTS = 32 };
#else
enum { MAX_REQUESTS = 8 };
#endif
enum { MAX_RECVS = 8, MAX_SENDS = MAX_REQUESTS * MAX_RECVS };
static const uint64_t MAGIC = 0x6861777365720001;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static logger_t *log_line;
#if VERSION >= 10
static profiler_t *report;
#endif
static int virtual_devices;

enum kind { FREE, SEND, RECV, FLUSH };

struct pipe;

struct request {
  enum kind kind;
  struct pipe *pipe;
  int count, filled, done, failure;
  int has[MAX_RECVS];
  char *data[MAX_RECVS];
  size_t bytes[MAX_RECVS];
  int tags[MAX_RECVS];
};

/* Requests that wait for their peer, oldest first. */
struct queue {
  struct request *at[MAX_SENDS];
  int count;
};

/* A connection: sends and receives meet in `match`. */
struct pipe {
  int users;
  struct queue sends, recvs;
};

struct comm {
  uint64_t magic;
  struct pipe *pipe;
  int limit; /* of requests */
  struct request requests[MAX_SENDS + MAX_REQUESTS];
};

struct listener {
  uint64_t magic;
  struct pipe *arrived;
  int attempts;
};

/* What a handle holds; the connecting side keeps its state there, as plugins in the field do. */
struct handle {
  uint64_t magic;
  struct listener *listener;
  void *self;
  int attempts;
};

struct mr {
  struct comm *comm;
  char *data;
  size_t bytes;
};

#define FAIL_IF_ASKED(call) \
  do { \
    if (net_test_knobs[KNOB_FAIL_CALL] == (call)) return net_test_knobs[KNOB_FAIL_CODE]; \
  } while (0)

static int skip(void) {
  static int calls;
  int every = net_test_knobs[KNOB_SKIP];
  return every > 0 && ++calls % every == 0;
}

static int net_init(NET_INIT_PARAMETERS) {
  net_test_seen[SEEN_INIT]++;
  log_line = log;
  log(LEVEL_INFO, SUBSYS_NET, __FILE__, __LINE__, "init of version %d", VERSION);
  if (net_test_knobs[KNOB_INIT_CODE]) return net_test_knobs[KNOB_INIT_CODE];
#if VERSION >= 10
  report = profiler;
#endif
#if VERSION >= 11
  net_test_seen[SEEN_COMM_ID] = (long)comm_id;
  net_test_seen[SEEN_TRAFFIC_CLASS] = config->traffic_class;
  uint64_t *made = malloc(sizeof *made);
  *made = MAGIC;
  *context = made;
#endif
  return OK;
}

static int net_devices(int *count) {
  net_test_seen[SEEN_DEVICES]++;
  FAIL_IF_ASKED(CALL_DEVICES);
  *count = net_test_knobs[KNOB_DEVICES];
  return OK;
}

static void absurd(struct properties *p) {
  p->ptr_support = 0x40;
  p->speed = -5;
  p->port = -1;
  p->latency = -3.0f;
  p->max_comms = -1;
  p->max_recvs = 1000;
#if VERSION >= 9
  p->members.count = 77;
  p->max_p2p_bytes = 0;
  p->max_collective_bytes = (size_t)1 << 60;
#endif
}

static int net_get_properties(int device, struct properties *p) {
  static char names[64][16];
  net_test_seen[SEEN_GET_PROPERTIES]++;
  FAIL_IF_ASKED(CALL_GET_PROPERTIES);
  memcpy(names[device], "queue0", 7);
  names[device][5] = (char)('0' + device);
  p->name = net_test_knobs[KNOB_PROPERTIES] == PROPERTIES_NO_NAME ? NULL : names[device];
  p->pci_path = device == 0 ? "/sys/devices/test" : NULL;
  p->guid = 100 + (uint64_t)device;
  p->ptr_support = PTR_HOST | PTR_CUDA | PTR_DMABUF;
  p->speed = 1000;
  p->port = device;
  p->latency = 2.5f;
  p->max_comms = 64;
  p->max_recvs = MAX_RECVS;
#if VERSION >= 9
  p->force_flush = 1;
  p->members.count = 1;
  p->members.devices[0] = device;
  p->max_p2p_bytes = 1 << 20;
  p->max_collective_bytes = 1 << 19;
#endif
#if VERSION >= 11
  p->max_multi_request = 2;
#endif
#if VERSION >= 12
  p->rail = 3;
  p->plane = -1;
#endif
  if (net_test_knobs[KNOB_PROPERTIES] == PROPERTIES_ABSURD) absurd(p);
  return OK;
}

#if VERSION >= 11
#define CHECK_CONTEXT() \
  do { \
    if (*(uint64_t *)context != MAGIC) return INTERNAL_ERROR; \
  } while (0)
#else
#define CHECK_CONTEXT() do { } while (0)
#endif

static int net_listen(CONTEXT_PARAMETER int device, void *opaque, void **out) {
  struct handle *handle = opaque;
  CHECK_CONTEXT();
  FAIL_IF_ASKED(CALL_LISTEN);
  if (net_test_knobs[KNOB_NULL_OBJECTS]) return OK;
  if (device < 0 || device >= net_test_knobs[KNOB_DEVICES] + virtual_devices) return INTERNAL_ERROR;
  struct listener *listener = calloc(1, sizeof *listener);
  listener->magic = MAGIC;
  memset(opaque, 0, HANDLE_BYTES);
  handle->magic = MAGIC;
  handle->listener = listener;
  *out = listener;
  net_test_seen[SEEN_LISTENERS]++;
  return OK;
}

static struct comm *new_comm(struct pipe *pipe, int limit) {
  struct comm *comm = calloc(1, sizeof *comm);
  comm->magic = MAGIC;
  comm->pipe = pipe;
  comm->limit = limit;
  pipe->users++;
  return comm;
}

static int net_connect(CONTEXT_PARAMETER int device, CONFIG_PARAMETER void *opaque,
                       void **out OFFLOAD_PARAMETER) {
  struct handle *handle = opaque;
  CHECK_CONTEXT();
  FAIL_IF_ASKED(CALL_CONNECT);
  if (device < 0 || handle->magic != MAGIC || (uintptr_t)opaque % 16) return INTERNAL_ERROR;
#if VERSION >= 7
  if (*offload) return INTERNAL_ERROR;
#endif
#if VERSION == 10
  net_test_seen[SEEN_TRAFFIC_CLASS] = config->traffic_class;
#endif
  /* The buffer must be the one of the first attempt, with what was written there. */
  if (handle->attempts == 0) handle->self = opaque;
  if (handle->self != opaque) return INTERNAL_ERROR;
  if (handle->attempts++ < net_test_knobs[KNOB_CONNECT_DELAY]) {
    *out = NULL;
    return OK;
  }
  pthread_mutex_lock(&lock);
  struct pipe *pipe = calloc(1, sizeof *pipe);
  *out = new_comm(pipe, MAX_SENDS);
  pipe->users++; /* the receiver to be */
  handle->listener->arrived = pipe;
  net_test_seen[SEEN_SENDERS]++;
  pthread_mutex_unlock(&lock);
  return OK;
}

static int net_accept(void *opaque, void **out OFFLOAD_PARAMETER) {
  struct listener *listener = opaque;
  FAIL_IF_ASKED(CALL_ACCEPT);
  if (listener->magic != MAGIC) return INTERNAL_ERROR;
#if VERSION >= 7
  if (*offload) return INTERNAL_ERROR;
#endif
  *out = NULL;
  pthread_mutex_lock(&lock);
  if (listener->arrived && listener->attempts++ >= net_test_knobs[KNOB_ACCEPT_DELAY]) {
    *out = new_comm(listener->arrived, MAX_REQUESTS);
    listener->arrived->users--;
    listener->arrived = NULL;
    net_test_seen[SEEN_RECEIVERS]++;
  }
  pthread_mutex_unlock(&lock);
  return OK;
}

static int add_mr(void *comm, void *data, size_t bytes, int kind, void **out) {
  FAIL_IF_ASKED(CALL_REG_MR);
  struct mr *mr = calloc(1, sizeof *mr);
  mr->comm = comm;
  mr->data = data;
  mr->bytes = bytes;
  *out = mr;
  net_test_seen[SEEN_MRS]++;
  net_test_seen[SEEN_MR_KIND] = kind;
  return mr->comm->magic == MAGIC ? OK : INTERNAL_ERROR;
}

static int net_reg_mr(void *comm, void *data, mr_length bytes, int kind, void **out) {
  return add_mr(comm, data, (size_t)bytes, kind, out);
}

static int net_reg_mr_dma_buf(void *comm, void *data, size_t bytes, int kind, uint64_t offset, int fd,
                              void **out) {
  net_test_seen[SEEN_MR_FD] = fd;
  net_test_seen[SEEN_MR_OFFSET] = (long)offset;
  return add_mr(comm, data, bytes, kind, out);
}

static int net_dereg_mr(void *comm, void *opaque) {
  struct mr *mr = opaque;
  FAIL_IF_ASKED(CALL_DEREG_MR);
  if (mr->comm != comm) return INTERNAL_ERROR;
  free(mr);
  net_test_seen[SEEN_MRS]--;
  return OK;
}

static int holds(struct comm *comm, struct mr *mr, char *data, size_t bytes) {
  return mr && mr->comm == comm && data >= mr->data && data + bytes <= mr->data + mr->bytes;
}

/* NULL if the connection has no room: the caller must not let it come to that. */
static struct request *new_request(struct comm *comm, enum kind kind) {
  int used = 0;
  struct request *found = NULL;
  for (int i = 0; i < MAX_SENDS + MAX_REQUESTS; i++) {
    used += comm->requests[i].kind != FREE && comm->requests[i].kind != FLUSH;
    if (comm->requests[i].kind == FREE) found = &comm->requests[i];
  }
  if (!found || (kind != FLUSH && used >= comm->limit)) return NULL;
  memset(found, 0, sizeof *found);
  found->kind = kind;
  found->pipe = comm->pipe;
  return found;
}

static void tell_profiler(void *parent) {
#if VERSION >= 10
  void *event = parent;
  net_test_seen[SEEN_PROFILE] = (long)(intptr_t)parent;
  report(&event, 0, parent, 0x70001, NULL);
  if (event) report(&event, 1, parent, 0x70001, NULL);
#else
  (void)parent;
#endif
}

static int net_isend(void *opaque, void *data, length bytes, int tag, void *mr,
                     PROFILE_PARAMETER void **out) {
  struct comm *comm = opaque;
  FAIL_IF_ASKED(CALL_ISEND);
  *out = NULL;
  if (skip()) return OK;
  if (!holds(comm, mr, data, (size_t)bytes)) return INTERNAL_ERROR;
  pthread_mutex_lock(&lock);
  struct request *request = new_request(comm, SEND);
  if (request) {
    request->count = 1;
    request->data[0] = data;
    request->bytes[0] = (size_t)bytes;
    request->tags[0] = tag;
    comm->pipe->sends.at[comm->pipe->sends.count++] = request;
  }
  pthread_mutex_unlock(&lock);
#if VERSION >= 10
  tell_profiler(profile);
#else
  tell_profiler(NULL);
#endif
  *out = request;
  return request ? OK : INTERNAL_ERROR;
}

static int net_irecv(void *opaque, int count, void **data, length *bytes, int *tags, void **mrs,
                     PROFILES_PARAMETER void **out) {
  struct comm *comm = opaque;
  FAIL_IF_ASKED(CALL_IRECV);
  if (*out == (void *)1) net_test_seen[SEEN_OPTIONAL]++;
  *out = NULL;
  if (skip()) return OK;
  if (count < 1 || count > MAX_RECVS) return INTERNAL_ERROR;
  pthread_mutex_lock(&lock);
  struct request *request = new_request(comm, RECV);
  for (int i = 0; request && i < count; i++) {
    if (!holds(comm, mrs[i], data[i], (size_t)bytes[i])) {
      request->kind = FREE;
      request = NULL;
      break;
    }
    request->data[i] = data[i];
    request->bytes[i] = (size_t)bytes[i];
    request->tags[i] = tags[i];
  }
  if (request) {
    request->count = count;
    comm->pipe->recvs.at[comm->pipe->recvs.count++] = request;
  }
  pthread_mutex_unlock(&lock);
#if VERSION >= 10
  tell_profiler(profiles[0]);
#endif
  *out = request;
  return request ? OK : INTERNAL_ERROR;
}

static int net_iflush(void *opaque, int count, void **data, int *bytes, void **mrs, void **out) {
  struct comm *comm = opaque;
  FAIL_IF_ASKED(CALL_IFLUSH);
  for (int i = 0; i < count; i++)
    if (!holds(comm, mrs[i], data[i], (size_t)bytes[i])) return INTERNAL_ERROR;
  pthread_mutex_lock(&lock);
  struct request *request = new_request(comm, FLUSH);
  request->done = 1;
  pthread_mutex_unlock(&lock);
  net_test_seen[SEEN_FLUSHES]++;
  *out = request;
  return OK;
}

static void pop(struct queue *queue) {
  queue->count--;
  memmove(queue->at, queue->at + 1, (size_t)queue->count * sizeof queue->at[0]);
}

/* Gives the oldest send to the first buffer with its tag in the oldest receive, while there are both. */
static void match(struct pipe *pipe) {
  while (pipe->sends.count && pipe->recvs.count) {
    struct request *send = pipe->sends.at[0], *recv = pipe->recvs.at[0];
    int i = 0;
    while (i < recv->count && (recv->has[i] || recv->tags[i] != send->tags[0])) i++;
    send->done = 1;
    pop(&pipe->sends);
    if (i == recv->count || send->bytes[0] > recv->bytes[i]) {
      recv->failure = i == recv->count ? INTERNAL_ERROR : INVALID_USAGE;
      send->failure = recv->failure;
      recv->done = 1;
      pop(&pipe->recvs);
      continue;
    }
    memcpy(recv->data[i], send->data[0], send->bytes[0]);
    recv->has[i] = 1;
    recv->bytes[i] = send->bytes[0];
    if (++recv->filled == recv->count) {
      recv->done = 1;
      pop(&pipe->recvs);
    }
  }
}

static int net_test(void *opaque, int *done, int *bytes) {
  struct request *request = opaque;
  FAIL_IF_ASKED(CALL_TEST);
  if (request->kind == FREE) return INTERNAL_ERROR;
  pthread_mutex_lock(&lock);
  match(request->pipe);
  *done = request->done;
  int failure = request->done ? request->failure : OK;
  if (request->done) {
    for (int i = 0; bytes && request->kind != FLUSH && i < request->count; i++) {
      if (net_test_knobs[KNOB_NO_SIZES] == 0) bytes[i] = (int)request->bytes[i];
      if (net_test_knobs[KNOB_NO_SIZES] == 2) bytes[i] = -7;
    }
    request->kind = FREE;
  }
  pthread_mutex_unlock(&lock);
  return failure;
}

static int close_comm(struct comm *comm, enum seen counter) {
  pthread_mutex_lock(&lock);
  if (--comm->pipe->users == 0) free(comm->pipe);
  net_test_seen[counter]--;
  free(comm);
  pthread_mutex_unlock(&lock);
  FAIL_IF_ASKED(CALL_CLOSE);
  return OK;
}

static int net_close_send(void *comm) { return close_comm(comm, SEEN_SENDERS); }

static int net_close_recv(void *comm) { return close_comm(comm, SEEN_RECEIVERS); }

static int net_close_listen(void *opaque) {
  net_test_seen[SEEN_LISTENERS]--;
  free(opaque);
  FAIL_IF_ASKED(CALL_CLOSE);
  return OK;
}

#if VERSION >= 7
static int net_get_device_mr(void *comm, void *mr, void **device_mr) {
  (void)comm, (void)mr, (void)device_mr;
  return INTERNAL_ERROR;
}

static int net_irecv_consumed(void *comm, int count, void *request) {
  (void)comm, (void)request;
  net_test_seen[SEEN_CONSUMED] = count;
  return OK;
}
#endif

#if VERSION >= 9
static int net_make_v_device(int *device, struct members *members) {
  FAIL_IF_ASKED(CALL_MAKE_V_DEVICE);
  if (members->count < 1 || members->count > MEMBERS) return INTERNAL_ERROR;
  long all = 0;
  for (int i = 0; i < members->count; i++) all = all * 10 + members->devices[i];
  net_test_seen[SEEN_MEMBERS] = all;
  *device = net_test_knobs[KNOB_DEVICES] + virtual_devices++;
  return OK;
}
#endif

#if VERSION >= 11
static int net_finalize(void *context) {
  CHECK_CONTEXT();
  net_test_seen[SEEN_FINALIZE]++;
  *(uint64_t *)context = 0;
  free(context);
  return OK;
}

static int net_set_net_attr(void *context, struct attributes *attributes) {
  CHECK_CONTEXT();
  FAIL_IF_ASKED(CALL_SET_NET_ATTR);
  net_test_seen[SEEN_ATTRIBUTE_OP] = attributes->op;
  return attributes->send.max_peers == 4 && attributes->recv.min_flows == -1 ? OK : INTERNAL_ERROR;
}
#endif

/* Not constant: tests take entries out before it is read. */
struct net_table SYMBOL(ncclNetPlugin_v) = {
  .name = "Queue",
  .init = net_init,
  .devices = net_devices,
  .get_properties = net_get_properties,
  .listen = net_listen,
  .connect = net_connect,
  .accept = net_accept,
  .reg_mr = net_reg_mr,
  .reg_mr_dma_buf = net_reg_mr_dma_buf,
  .dereg_mr = net_dereg_mr,
  .isend = net_isend,
  .irecv = net_irecv,
  .iflush = net_iflush,
  .test = net_test,
  .close_send = net_close_send,
  .close_recv = net_close_recv,
  .close_listen = net_close_listen,
#if VERSION >= 7
  .get_device_mr = net_get_device_mr,
  .irecv_consumed = net_irecv_consumed,
#endif
#if VERSION >= 9
  .make_v_device = net_make_v_device,
#endif
#if VERSION >= 11
  .finalize = net_finalize,
  .set_net_attr = net_set_net_attr,
#endif
};

#if VERSION == 12
/* An older table in the same library: empty but for its name, and never to be looked at. */
void *ncclNetPlugin_v8[19] = {"older"};
#endif

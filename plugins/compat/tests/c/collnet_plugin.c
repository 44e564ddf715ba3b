/* A collnet plugin for tests: the ranks are threads of this process and the "network" computes on the host. Compiled once
 * per version with -DVERSION. */
#include "net_abi.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Set by the test before the call that they are about. The order is that of `Knob` in collnet.rs. */
enum knob { KNOB_INIT_CODE, KNOB_DEVICES, KNOB_SKIP, KNOB_FAIL_CALL, KNOB_FAIL_CODE, KNOB_NO_SIZES, KNOB_NULL_OBJECTS, KNOBS };

/* The order is that of `Call` in collnet.rs. */
enum call {
  CALL_NONE,
  CALL_DEVICES,
  CALL_GET_PROPERTIES,
  CALL_LISTEN,
  CALL_CONNECT,
  CALL_REDUCE_SUPPORT,
  CALL_REG_MR,
  CALL_DEREG_MR,
  CALL_IALLREDUCE,
  CALL_IALLGATHER,
  CALL_IREDUCESCATTER,
  CALL_IFLUSH,
  CALL_TEST,
};

/* What the test looks at afterwards. The order is that of `Seen` in collnet.rs. */
enum seen { SEEN_INIT, SEEN_FINALIZE, SEEN_DEVICES, SEEN_COMM_ID, SEEN_LISTENERS, SEEN_COMMS, SEEN_MRS, SEEN_FLUSHES, SEENS };

int collnet_test_knobs[KNOBS] = {[KNOB_DEVICES] = 1};
long collnet_test_seen[SEENS];

enum { MAX_RANKS = 8, MAX_OPS = 64, MAX_PARTS = 8, PATIENCE_SECONDS = 30 };
enum { INT32 = 2, FLOAT32 = 7, SUM = 0, MAX = 2 };
static const uint64_t MAGIC = 0x6861777365720002;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t joined = PTHREAD_COND_INITIALIZER;

enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, FLUSH };

/* One rank's part of an operation. */
struct part {
  enum kind kind;
  char *send, *recv;
  struct segment parts[MAX_PARTS];
  int part_count;
  size_t count, per_rank, offset, bytes;
  int type, op;
};

/* An operation that all ranks take part in. */
struct operation {
  int posted, tested;
  struct part ranks[MAX_RANKS];
};

struct group {
  int ranks, arrived, left;
  struct operation operations[MAX_OPS];
};

struct listener {
  uint64_t magic;
  struct group *group; /* of rank 0 */
};

struct handle {
  uint64_t magic;
  struct listener *listener;
};

struct request {
  struct comm *comm;
  enum kind kind;
  int number;
  size_t bytes;
};

struct comm {
  uint64_t magic;
  struct group *group;
  int rank, next;
};

#define FAIL_IF_ASKED(call) \
  do { \
    if (collnet_test_knobs[KNOB_FAIL_CALL] == (call)) return collnet_test_knobs[KNOB_FAIL_CODE]; \
  } while (0)

static int collnet_init(COLLNET_INIT_PARAMETERS) {
  collnet_test_seen[SEEN_INIT]++;
  log(LEVEL_INFO, SUBSYS_NET, __FILE__, __LINE__, "collnet of version %d", VERSION);
#if VERSION >= 11
  collnet_test_seen[SEEN_COMM_ID] = (long)comm_id;
  uint64_t *made = malloc(sizeof *made);
  *made = MAGIC;
  *context = made;
#endif
  return collnet_test_knobs[KNOB_INIT_CODE];
}

static int collnet_devices(int *count) {
  collnet_test_seen[SEEN_DEVICES]++;
  FAIL_IF_ASKED(CALL_DEVICES);
  *count = collnet_test_knobs[KNOB_DEVICES];
  return OK;
}

static int collnet_get_properties(int device, struct properties *p) {
  FAIL_IF_ASKED(CALL_GET_PROPERTIES);
  p->name = "switch";
  p->guid = (uint64_t)device;
  p->ptr_support = PTR_HOST;
  p->speed = 100;
  p->max_comms = 2;
  p->max_recvs = 1;
#if VERSION >= 9
  p->members.count = 1;
  p->members.devices[0] = device;
  p->max_p2p_bytes = 1 << 20;
  p->max_collective_bytes = 1 << 18;
#endif
#if VERSION >= 11
  p->max_multi_request = 1;
#endif
  return OK;
}

static int collnet_listen(CONTEXT_PARAMETER int device, void *opaque, void **out) {
  struct handle *handle = opaque;
  (void)device;
#if VERSION >= 11
  if (*(uint64_t *)context != MAGIC) return INTERNAL_ERROR;
#endif
  FAIL_IF_ASKED(CALL_LISTEN);
  struct listener *listener = calloc(1, sizeof *listener);
  listener->magic = MAGIC;
  handle->magic = MAGIC;
  handle->listener = listener;
  *out = collnet_test_knobs[KNOB_NULL_OBJECTS] == 1 ? NULL : listener;
  __atomic_fetch_add(&collnet_test_seen[SEEN_LISTENERS], 1, __ATOMIC_RELAXED);
  return OK;
}

/* Blocks until all ranks are here, as real ones do. */
static int collnet_connect(void *handles[], int ranks, int rank, void *opaque, void **out) {
  struct handle *mine = handles[rank], *first = handles[0];
  FAIL_IF_ASKED(CALL_CONNECT);
  if (ranks > MAX_RANKS || mine->magic != MAGIC || mine->listener != opaque) return INTERNAL_ERROR;
  if (collnet_test_knobs[KNOB_NULL_OBJECTS]) return OK;
  struct timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += PATIENCE_SECONDS;
  pthread_mutex_lock(&lock);
  struct group *group = first->listener->group;
  if (!group) {
    group = calloc(1, sizeof *group);
    group->ranks = ranks;
    first->listener->group = group;
  }
  group->arrived++;
  pthread_cond_broadcast(&joined);
  int late = 0;
  while (group->arrived < ranks && !late) late = pthread_cond_timedwait(&joined, &lock, &deadline);
  struct comm *comm = calloc(1, sizeof *comm);
  comm->magic = MAGIC;
  comm->group = group;
  comm->rank = rank;
  collnet_test_seen[SEEN_COMMS]++;
  pthread_mutex_unlock(&lock);
  *out = comm;
  return late ? REMOTE_ERROR : OK;
}

static int collnet_reduce_support(int type, int op, int *supported) {
  FAIL_IF_ASKED(CALL_REDUCE_SUPPORT);
  *supported = (type == INT32 || type == FLOAT32) && (op == SUM || op == MAX);
  return OK;
}

static int collnet_reg_mr_dma_buf(void *comm, void *data, size_t bytes, int kind, uint64_t offset, int fd, void **mr) {
  (void)bytes, (void)kind, (void)offset, (void)fd;
  FAIL_IF_ASKED(CALL_REG_MR);
  if (((struct comm *)comm)->magic != MAGIC) return INTERNAL_ERROR;
  __atomic_fetch_add(&collnet_test_seen[SEEN_MRS], 1, __ATOMIC_RELAXED);
  *mr = data; /* the address is its own registration */
  return OK;
}

static int collnet_reg_mr(void *comm, void *data, mr_length bytes, int kind, void **mr) {
  return collnet_reg_mr_dma_buf(comm, data, (size_t)bytes, kind, 0, -1, mr);
}

static int collnet_dereg_mr(void *comm, void *mr) {
  (void)comm, (void)mr;
  FAIL_IF_ASKED(CALL_DEREG_MR);
  __atomic_fetch_sub(&collnet_test_seen[SEEN_MRS], 1, __ATOMIC_RELAXED);
  return OK;
}

static void reduce(char *into, const char *from, size_t count, int type, int op) {
  for (size_t i = 0; i < count; i++) {
    if (type == FLOAT32) {
      float *a = (float *)into + i, b = ((const float *)from)[i];
      *a = op == SUM ? *a + b : *a > b ? *a : b;
    } else {
      int32_t *a = (int32_t *)into + i, b = ((const int32_t *)from)[i];
      *a = op == SUM ? *a + b : *a > b ? *a : b;
    }
  }
}

/* Copies between a flat buffer and the parts that it is cut into. */
static void scatter(struct part *part, char *flat, int to_parts) {
  size_t at = 0;
  for (int i = 0; i < part->part_count; i++) {
    char *data = part->parts[i].data;
    size_t bytes = part->parts[i].bytes;
    memcpy(to_parts ? data : flat + at, to_parts ? flat + at : data, bytes);
    at += bytes;
  }
}

static void finish(struct group *group, struct operation *operation) {
  struct part *ranks = operation->ranks;
  size_t whole = ranks[0].per_rank * (size_t)group->ranks;
  if (ranks[0].kind == ALL_REDUCE) whole = ranks[0].count * 4;
  char *result = calloc(2, whole + 1), *one = result + whole;
  for (int rank = 0; rank < group->ranks; rank++) {
    struct part *part = &ranks[rank];
    if (part->kind == ALL_GATHER) {
      memcpy(result + (size_t)rank * part->per_rank, part->send, part->per_rank);
      continue;
    }
    if (part->kind == REDUCE_SCATTER) scatter(part, one, 0);
    char *from = part->kind == REDUCE_SCATTER ? one : part->send;
    if (rank == 0) memcpy(result, from, whole);
    else reduce(result, from, whole / 4, part->type, part->op);
  }
  for (int rank = 0; rank < group->ranks; rank++) {
    struct part *part = &ranks[rank];
    if (part->kind == ALL_REDUCE) memcpy(part->recv, result, whole);
    if (part->kind == ALL_GATHER) scatter(part, result + part->offset, 1);
    if (part->kind == REDUCE_SCATTER) memcpy(part->recv, result + (size_t)rank * part->per_rank + part->offset, part->bytes);
  }
  free(result);
}

static int begin(struct comm *comm, struct part part, size_t bytes, void **out) {
  static int calls;
  int every = collnet_test_knobs[KNOB_SKIP];
  *out = NULL;
  if (comm->magic != MAGIC) return INTERNAL_ERROR;
  if (every && __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % every == 0) return OK;
  struct request *request = calloc(1, sizeof *request);
  *request = (struct request){comm, part.kind, comm->next++, bytes};
  pthread_mutex_lock(&lock);
  struct operation *operation = &comm->group->operations[request->number % MAX_OPS];
  operation->ranks[comm->rank] = part;
  if (++operation->posted == comm->group->ranks) finish(comm->group, operation);
  pthread_mutex_unlock(&lock);
  *out = request;
  return OK;
}

static int collnet_iallreduce(void *comm, void *send, void *recv, length count, int type, int op, void *send_mr,
                              void *recv_mr, void **request) {
  FAIL_IF_ASKED(CALL_IALLREDUCE);
  if (send_mr != send || recv_mr != recv) return INTERNAL_ERROR;
  struct part part = {.kind = ALL_REDUCE, .send = send, .recv = recv, .count = (size_t)count, .type = type, .op = op};
  return begin(comm, part, (size_t)count * 4, request);
}

#if VERSION >= 8
static int collnet_iallgather(void *comm, void *send, int parts, struct segment *recv, size_t bytes_per_rank,
                              size_t window_offset, size_t window_bytes, void *send_mr, void **request) {
  FAIL_IF_ASKED(CALL_IALLGATHER);
  if (send_mr != send || parts > MAX_PARTS || recv[0].mr == NULL) return INTERNAL_ERROR;
  struct part part = {.kind = ALL_GATHER, .send = send, .part_count = parts, .per_rank = bytes_per_rank,
                      .offset = window_offset, .bytes = window_bytes};
  memcpy(part.parts, recv, (size_t)parts * sizeof *recv);
  return begin(comm, part, window_bytes, request);
}

static int collnet_ireducescatter(void *comm, int parts, struct segment *send, void *recv, size_t bytes_per_rank,
                                  size_t window_offset, size_t window_bytes, int type, int op, void *recv_mr,
                                  void **request) {
  FAIL_IF_ASKED(CALL_IREDUCESCATTER);
  if (recv_mr != recv || parts > MAX_PARTS || send[0].mr == NULL) return INTERNAL_ERROR;
  struct part part = {.kind = REDUCE_SCATTER, .recv = recv, .part_count = parts, .per_rank = bytes_per_rank,
                      .offset = window_offset, .bytes = window_bytes, .type = type, .op = op};
  memcpy(part.parts, send, (size_t)parts * sizeof *send);
  return begin(comm, part, window_bytes, request);
}
#endif

static int collnet_iflush(void *comm, void *data, int bytes, void *mr, void **out) {
  (void)bytes;
  FAIL_IF_ASKED(CALL_IFLUSH);
  if (mr != data) return INTERNAL_ERROR;
  struct request *request = calloc(1, sizeof *request);
  *request = (struct request){comm, FLUSH, -1, 0};
  __atomic_fetch_add(&collnet_test_seen[SEEN_FLUSHES], 1, __ATOMIC_RELAXED);
  *out = request;
  return OK;
}

static int collnet_test(void *opaque, int *done, int *bytes) {
  struct request *request = opaque;
  FAIL_IF_ASKED(CALL_TEST);
  pthread_mutex_lock(&lock);
  struct group *group = request->comm->group;
  *done = request->kind == FLUSH;
  if (request->kind != FLUSH) {
    struct operation *operation = &group->operations[request->number % MAX_OPS];
    *done = operation->posted == group->ranks;
    if (*done && ++operation->tested == group->ranks) memset(operation, 0, sizeof *operation);
  }
  pthread_mutex_unlock(&lock);
  if (!*done) return OK;
  if (bytes && !collnet_test_knobs[KNOB_NO_SIZES]) *bytes = (int)request->bytes;
  free(request);
  return OK;
}

static int collnet_close_coll(void *opaque) {
  struct comm *comm = opaque;
  pthread_mutex_lock(&lock);
  if (++comm->group->left == comm->group->ranks) free(comm->group);
  collnet_test_seen[SEEN_COMMS]--;
  pthread_mutex_unlock(&lock);
  free(comm);
  return OK;
}

static int collnet_close_listen(void *listener) {
  __atomic_fetch_sub(&collnet_test_seen[SEEN_LISTENERS], 1, __ATOMIC_RELAXED);
  free(listener);
  return OK;
}

#if VERSION >= 9
static int collnet_make_v_device(int *device, struct members *members) {
  *device = collnet_test_knobs[KNOB_DEVICES];
  return members->count == 2 ? OK : INTERNAL_ERROR;
}
#endif

#if VERSION >= 11
static int collnet_finalize(void *context) {
  collnet_test_seen[SEEN_FINALIZE]++;
  free(context);
  return OK;
}
#endif

/* Not constant: tests take entries out before it is read. */
struct collnet_table SYMBOL(ncclCollNetPlugin_v) = {
  .name = "Switch",
  .init = collnet_init,
  .devices = collnet_devices,
  .get_properties = collnet_get_properties,
  .listen = collnet_listen,
  .connect = collnet_connect,
  .reduce_support = collnet_reduce_support,
  .reg_mr = collnet_reg_mr,
  .reg_mr_dma_buf = collnet_reg_mr_dma_buf,
  .dereg_mr = collnet_dereg_mr,
  .iallreduce = collnet_iallreduce,
#if VERSION >= 8
  .iallgather = collnet_iallgather,
  .ireducescatter = collnet_ireducescatter,
#endif
  .iflush = collnet_iflush,
  .test = collnet_test,
  .close_coll = collnet_close_coll,
  .close_listen = collnet_close_listen,
#if VERSION >= 9
  .make_v_device = collnet_make_v_device,
#endif
#if VERSION >= 11
  .finalize = collnet_finalize,
#endif
};

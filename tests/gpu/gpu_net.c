/* A net plugin that reaches GPU memory, for machines without such a NIC: between processes of a host, over Unix sockets,
 * with a copy to or from the host on a stream of its own. It blocks while it copies, so it says nothing about speed.
 *
 * cc -std=gnu11 -O1 -shared -fPIC -DVERSION=11 tests/gpu/gpu_net.c -o libnccl-net-gpu.so -ldl
 */
#define _GNU_SOURCE
#include "../../plugins/compat/tests/c/net_abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST_REQUESTS = 32 };

struct comm;

struct request {
  struct comm *comm;
  int is_used, is_done;
  char *data;   /* where the message is, or is to be */
  char *bounce; /* the same on the host */
  size_t room;
  size_t moved; /* bytes on the wire so far, those of the length in front included */
  uint64_t bytes;
};

/* An end of a connection, and its requests in order. */
struct comm {
  int fd, sends, first, count;
  struct request requests[MOST_REQUESTS];
};

static void *driver;

/* Calls a function of CUDA's driver, which is declared nowhere here. */
#define DRIVER(name, ...) (((int (*)())dlsym(driver, name))(__VA_ARGS__))

static int failed(const char *what) {
  fprintf(stderr, "gpu_net.c: %s: %s\n", what, strerror(errno));
  return SYSTEM_ERROR;
}

static void expect(int result, const char *what) {
  if (result) {
    fprintf(stderr, "gpu_net.c: %s: error %d of CUDA\n", what, result);
    abort();
  }
}

/* True for memory of a GPU. */
static int is_of_gpu(const void *data) {
  unsigned kind = 0;
  return DRIVER("cuPointerGetAttribute", &kind, 2 /* memory type */, data) == 0 && kind == 2 /* device */;
}

/* Copies between any kinds of memory, that of a GPU on a stream that waits for no other one. The driver would copy from
 * host to host behind such copies of the program's streams. */
static void copy(void *to, const void *from, size_t bytes) {
  static void *stream, *current;
  if (!is_of_gpu(to) && !is_of_gpu(from)) {
    memcpy(to, from, bytes);
    return;
  }
  if (!current) {
    expect(DRIVER("cuInit", 0), "cuInit");
    expect(DRIVER("cuDevicePrimaryCtxRetain", &current, 0), "cuDevicePrimaryCtxRetain");
  }
  expect(DRIVER("cuCtxSetCurrent", current), "cuCtxSetCurrent");
  if (!stream) expect(DRIVER("cuStreamCreate", &stream, 1), "cuStreamCreate");
  expect(DRIVER("cuMemcpyAsync", to, from, bytes, stream), "cuMemcpyAsync");
  expect(DRIVER("cuStreamSynchronize", stream), "cuStreamSynchronize");
}

static int net_init(NET_INIT_PARAMETERS) {
  (void)comm_id, (void)config, (void)log, (void)profiler;
  *context = &driver;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver ? OK : failed(dlerror());
}

static int net_devices(int *count) {
  *count = 1;
  return OK;
}

static int net_get_properties(int device, struct properties *p) {
  memset(p, 0, sizeof *p);
  p->name = "gpu0";
  p->ptr_support = PTR_HOST | PTR_CUDA;
  p->force_flush = 1;
  p->speed = 10000;
  p->max_comms = 1024;
  p->max_recvs = 1;
  p->members.count = 1;
  p->members.devices[0] = device;
  p->max_p2p_bytes = p->max_collective_bytes = 64 << 20;
  p->max_multi_request = 1;
  return OK;
}

static int net_listen(void *context, int device, void *opaque, void **listener) {
  (void)context, (void)device;
  struct sockaddr_un *place = opaque;
  struct comm *made = calloc(1, sizeof *made);
  static int count;
  memset(opaque, 0, HANDLE_BYTES);
  place->sun_family = AF_UNIX;
  snprintf(place->sun_path + 1, 60, "hawser-gpu-net-%d-%d", getpid(), count++);
  made->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made->fd < 0 || bind(made->fd, (void *)place, sizeof(sa_family_t) + 64) || listen(made->fd, 1))
    return failed("listen");
  *listener = made;
  return OK;
}

static int net_connect(void *context, int device, void *opaque, void **sender, void **offload) {
  (void)context, (void)device, (void)offload;
  struct comm *made = calloc(1, sizeof *made);
  made->sends = 1;
  made->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made->fd < 0 || connect(made->fd, opaque, sizeof(sa_family_t) + 64)) return failed("connect");
  *sender = made;
  return OK;
}

static int net_accept(void *listener, void **receiver, void **offload) {
  (void)offload;
  *receiver = NULL;
  int fd = accept4(((struct comm *)listener)->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return errno == EAGAIN ? OK : failed("accept");
  struct comm *made = calloc(1, sizeof *made);
  made->fd = fd;
  *receiver = made;
  return OK;
}

struct mr {
  char *data;
  size_t bytes;
};

static int net_reg_mr(void *comm, void *data, size_t bytes, int kind, void **out) {
  (void)comm, (void)kind;
  struct mr *mr = malloc(sizeof *mr);
  *mr = (struct mr){data, bytes};
  *out = mr;
  return OK;
}

static int net_reg_mr_dma_buf(void *comm, void *data, size_t bytes, int kind, uint64_t offset, int fd, void **mr) {
  (void)offset, (void)fd;
  return net_reg_mr(comm, data, bytes, kind, mr);
}

static int net_dereg_mr(void *comm, void *mr) {
  (void)comm;
  free(mr);
  return OK;
}

static struct request *post(struct comm *comm, char *data, size_t bytes, struct mr *mr) {
  if (comm->count == MOST_REQUESTS) return NULL;
  if (data < mr->data || data + bytes > mr->data + mr->bytes) {
    fprintf(stderr, "gpu_net.c: %zu bytes at %p are outside their registration\n", bytes, (void *)data);
    abort();
  }
  struct request *request = &comm->requests[(comm->first + comm->count) % MOST_REQUESTS];
  if (request->is_used) return NULL;
  comm->count++;
  *request = (struct request){.comm = comm, .is_used = 1, .data = data, .room = bytes, .bytes = bytes};
  request->bounce = malloc(bytes + 1);
  return request;
}

static int net_isend(void *comm, void *data, size_t bytes, int tag, void *mr, void *profile, void **out) {
  (void)tag, (void)profile;
  struct request *request = post(comm, data, bytes, mr);
  if (request && bytes) copy(request->bounce, data, bytes);
  *out = request;
  return OK;
}

static int net_irecv(void *comm, int count, void **data, size_t *bytes, int *tags, void **mrs, void **profiles,
                     void **out) {
  (void)count, (void)tags, (void)profiles;
  *out = post(comm, data[0], bytes[0], mrs[0]);
  return OK;
}

static int net_iflush(void *comm, int count, void **data, int *bytes, void **mrs, void **request) {
  (void)comm, (void)count, (void)data, (void)bytes, (void)mrs;
  *request = NULL;
  return OK;
}

/* Moves the oldest request on: its length, then its bytes. */
static int progress(struct comm *comm) {
  while (comm->count) {
    struct request *request = &comm->requests[comm->first];
    size_t head = sizeof request->bytes, at = request->moved > head ? request->moved - head : 0;
    struct iovec parts[2] = {
      {(char *)&request->bytes + (request->moved < head ? request->moved : head),
       request->moved < head ? head - request->moved : 0},
      {request->bounce + at, request->bytes - at},
    };
    int has_head = request->moved >= head;
    ssize_t moved;
    if (comm->sends) {
      struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
      moved = has_head && at == request->bytes ? 0 : sendmsg(comm->fd, &message, MSG_NOSIGNAL);
    } else if (has_head && at == request->bytes) {
      moved = 0;
    } else {
      moved = readv(comm->fd, has_head ? parts + 1 : parts, 1);
      if (moved == 0) return REMOTE_ERROR;
    }
    if (moved < 0) return errno == EAGAIN ? OK : REMOTE_ERROR;
    request->moved += (size_t)moved;
    if (request->moved >= head && !comm->sends && request->bytes > request->room) return INVALID_USAGE;
    if (request->moved < head + request->bytes || request->moved < head) continue;
    if (!comm->sends && request->bytes) copy(request->data, request->bounce, request->bytes);
    request->is_done = 1;
    comm->first = (comm->first + 1) % MOST_REQUESTS;
    comm->count--;
  }
  return OK;
}

static int net_test(void *opaque, int *done, int *bytes) {
  struct request *request = opaque;
  int result = request->is_done ? OK : progress(request->comm);
  *done = request->is_done;
  if (request->is_done) {
    if (bytes) *bytes = (int)request->bytes;
    free(request->bounce);
    request->is_used = 0;
    return OK;
  }
  return result;
}

static int net_close(void *opaque) {
  struct comm *comm = opaque;
  close(comm->fd);
  free(comm);
  return OK;
}

static int net_get_device_mr(void *comm, void *mr, void **device_mr) {
  (void)comm, (void)mr, (void)device_mr;
  return INTERNAL_ERROR;
}

static int net_irecv_consumed(void *comm, int count, void *request) {
  (void)comm, (void)count, (void)request;
  return OK;
}

static int net_make_v_device(int *device, struct members *members) {
  (void)device, (void)members;
  return INVALID_USAGE;
}

static int net_finalize(void *context) {
  (void)context;
  return OK;
}

static int net_set_net_attr(void *context, struct attributes *attributes) {
  (void)context, (void)attributes;
  return OK;
}

const struct net_table SYMBOL(ncclNetPlugin_v) = {
  .name = "GpuQueue",
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
  .close_send = net_close,
  .close_recv = net_close,
  .close_listen = net_close,
  .get_device_mr = net_get_device_mr,
  .irecv_consumed = net_irecv_consumed,
  .make_v_device = net_make_v_device,
  .finalize = net_finalize,
  .set_net_attr = net_set_net_attr,
};

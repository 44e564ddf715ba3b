/* Drives a net plugin through one version of NCCL's table (-DVERSION=8 to 12, net_abi.h), as a host would, in one process:
 *
 *     harness LIBRARY
 *
 * Without devices it prints "declined". Else it opens connections on the first device, and on all devices as one where
 * the version has virtual devices; sends messages of many sizes, grouped ones too, with every byte checked; flushes;
 * closes everything in both orders. It ends with 0 if all of that was right. */
#include "net_abi.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 3 << 20, GROUP = 3, ROUNDS = 24, FLYING = 8, SECONDS = 60 };

static struct net_table *net;
#if VERSION >= 11
static void *context;
#endif
static const char *what = "start";

static void fail(const char *text, int code) {
  printf("harness v%d: %s: %s (%d)\n", VERSION, what, text, code);
  exit(1);
}

static void check(int code, const char *text) {
  if (code != OK) fail(text, code);
}

/* Every loop that waits asks it. */
static void in_time(time_t since) {
  if (time(NULL) - since > SECONDS) fail("nothing happened in time", 0);
}

static void log_line(int level, unsigned long subsys, const char *file, int line, const char *format, ...) {
  (void)level, (void)subsys, (void)file, (void)line;
  va_list arguments;
  va_start(arguments, format);
  printf("log: ");
  vprintf(format, arguments);
  printf("\n");
  va_end(arguments);
}

#if VERSION >= 10
static int no_profiler(void **event, int type, void *parent, int64_t plugin, void *payload) {
  (void)event, (void)type, (void)parent, (void)plugin, (void)payload;
  return OK;
}
#endif

static void initialise(void) {
#if VERSION >= 11
  struct config config = {-1};
  check(net->init(&context, 7, &config, log_line, no_profiler), "init");
#elif VERSION == 10
  check(net->init(log_line, no_profiler), "init");
#else
  check(net->init(log_line), "init");
#endif
}

static int listen_on(int device, void *handle, void **listener) {
#if VERSION >= 11
  return net->listen(context, device, handle, listener);
#else
  return net->listen(device, handle, listener);
#endif
}

static int connect_from(int device, void *handle, void **sender) {
  void *offload = NULL;
#if VERSION >= 11
  return net->connect(context, device, handle, sender, &offload);
#elif VERSION == 10
  struct config config = {-1};
  return net->connect(device, &config, handle, sender, &offload);
#else
  return net->connect(device, handle, sender, &offload);
#endif
}

static int post_send(void *comm, void *data, size_t bytes, int tag, void *mr, void **request) {
#if VERSION >= 10
  return net->isend(comm, data, (length)bytes, tag, mr, NULL, request);
#else
  return net->isend(comm, data, (length)bytes, tag, mr, request);
#endif
}

static int post_receive(void *comm, int count, void **data, length *bytes, int *tags, void **mrs, void **request) {
#if VERSION >= 10
  void *profiles[GROUP] = {NULL};
  return net->irecv(comm, count, data, bytes, tags, mrs, profiles, request);
#else
  return net->irecv(comm, count, data, bytes, tags, mrs, request);
#endif
}

static void wait_for(void *request, int *sizes) {
  int done = 0;
  for (time_t start = time(NULL); !done; in_time(start)) check(net->test(request, &done, sizes), "test");
}

static unsigned char byte_of(int number, size_t at) { return (unsigned char)(number * 31 + at * 7 + (at >> 8)); }

static void fill(unsigned char *data, size_t bytes, int number) {
  for (size_t at = 0; at < bytes; at++) data[at] = byte_of(number, at);
}

static void compare(const unsigned char *data, size_t bytes, int number) {
  for (size_t at = 0; at < bytes; at++)
    if (data[at] != byte_of(number, at)) fail("a byte is wrong", number);
}

struct ends {
  void *sender, *receiver, *listener;
  unsigned char *from, *to;
  void *from_mr, *to_mr;
};

static struct ends open_on(int device) {
  struct ends ends = {0};
  char handle[HANDLE_BYTES] = {0};
  check(listen_on(device, handle, &ends.listener), "listen");
  for (time_t start = time(NULL); !ends.sender || !ends.receiver; in_time(start)) {
    void *offload = NULL;
    if (!ends.sender) check(connect_from(device, handle, &ends.sender), "connect");
    if (!ends.receiver) check(net->accept(ends.listener, &ends.receiver, &offload), "accept");
  }
  ends.from = malloc(MOST), ends.to = malloc(MOST);
  if (!ends.from || !ends.to) fail("no memory", 0);
  check(net->reg_mr(ends.sender, ends.from, MOST, PTR_HOST, &ends.from_mr), "regMr of the sender");
  check(net->reg_mr(ends.receiver, ends.to, MOST, PTR_HOST, &ends.to_mr), "regMr of the receiver");
  return ends;
}

static void close_all(struct ends *ends, int receiver_first) {
  check(net->dereg_mr(ends->sender, ends->from_mr), "deregMr of the sender");
  check(net->dereg_mr(ends->receiver, ends->to_mr), "deregMr of the receiver");
  if (receiver_first) check(net->close_recv(ends->receiver), "closeRecv");
  check(net->close_send(ends->sender), "closeSend");
  if (!receiver_first) check(net->close_recv(ends->receiver), "closeRecv");
  check(net->close_listen(ends->listener), "closeListen");
  free(ends->from), free(ends->to);
}

/* One message at a time, of sizes that are nothing, odd, and several chunks. */
static void single_messages(struct ends *ends) {
  static const size_t sizes[] = {0, 1, 63, 4096, 4097, 65536, 1000003, MOST};
  what = "single messages";
  for (int number = 0; number < (int)(sizeof sizes / sizeof *sizes); number++) {
    void *receive = NULL, *send = NULL, *data = ends->to;
    length room = (length)sizes[number];
    int tag = 5, got = -1;
    memset(ends->to, 0xee, MOST);
    fill(ends->from, sizes[number], number);
    for (time_t start = time(NULL); !receive; in_time(start))
      check(post_receive(ends->receiver, 1, &data, &room, &tag, &ends->to_mr, &receive), "irecv");
    for (time_t start = time(NULL); !send; in_time(start))
      check(post_send(ends->sender, ends->from, sizes[number], tag, ends->from_mr, &send), "isend");
    wait_for(send, &got);
    wait_for(receive, &got);
    if (got != (int)sizes[number]) fail("the size is wrong", got);
    compare(ends->to, sizes[number], number);
    if (sizes[number] < MOST && ends->to[sizes[number]] != 0xee) fail("it wrote past the end", number);
    int bytes = (int)room;
    void *flush = NULL;
    check(net->iflush(ends->receiver, 1, &data, &bytes, &ends->to_mr, &flush), "iflush");
    if (flush) wait_for(flush, NULL);
  }
}

/* Groups of receives that their tags tell apart, and messages shorter than their receives. */
static void groups(struct ends *ends) {
  what = "groups";
  const size_t part = MOST / GROUP;
  for (int round = 0; round < ROUNDS; round++) {
    void *receive = NULL, *sends[GROUP] = {NULL}, *data[GROUP], *mrs[GROUP];
    length rooms[GROUP];
    int tags[GROUP], sizes[GROUP] = {-1, -1, -1};
    for (int one = 0; one < GROUP; one++) {
      data[one] = ends->to + one * part, mrs[one] = ends->to_mr;
      rooms[one] = (length)part, tags[one] = 100 + one;
      fill(ends->from + one * part, part, round + one);
    }
    for (time_t start = time(NULL); !receive; in_time(start))
      check(post_receive(ends->receiver, GROUP, data, rooms, tags, mrs, &receive), "irecv of a group");
    for (int turn = 0; turn < GROUP; turn++) {
      int one = (turn + round) % GROUP;
      size_t bytes = part - (size_t)(round * one);
      for (time_t start = time(NULL); !sends[one]; in_time(start))
        check(post_send(ends->sender, ends->from + one * part, bytes, 100 + one, ends->from_mr, &sends[one]), "isend");
    }
    for (int one = 0; one < GROUP; one++) wait_for(sends[one], NULL);
    wait_for(receive, sizes);
    for (int one = 0; one < GROUP; one++) {
      if (sizes[one] != (int)(part - (size_t)(round * one))) fail("a size of a group is wrong", sizes[one]);
      compare(ends->to + one * part, (size_t)sizes[one], round + one);
    }
  }
}

/* Several messages under way at once come in the order in which they were sent. */
static void stream(struct ends *ends) {
  what = "a stream";
  const size_t part = MOST / FLYING;
  void *receives[FLYING] = {NULL}, *sends[FLYING] = {NULL};
  for (int number = 0; number < FLYING; number++) {
    void *data = ends->to + number * part;
    length room = (length)part;
    int tag = 0;
    fill(ends->from + number * part, part, number + 50);
    for (time_t start = time(NULL); !receives[number]; in_time(start))
      check(post_receive(ends->receiver, 1, &data, &room, &tag, &ends->to_mr, &receives[number]), "irecv");
  }
  for (int number = 0; number < FLYING; number++)
    for (time_t start = time(NULL); !sends[number]; in_time(start))
      check(post_send(ends->sender, ends->from + number * part, part, 0, ends->from_mr, &sends[number]), "isend");
  for (int number = 0; number < FLYING; number++) {
    wait_for(receives[number], NULL);
    wait_for(sends[number], NULL);
    compare(ends->to + number * part, part, number + 50);
  }
}

static void drive(int device, int receiver_first) {
  struct ends ends = open_on(device);
  single_messages(&ends);
  groups(&ends);
  stream(&ends);
  what = "closing";
  close_all(&ends, receiver_first);
}

int main(int count, char **arguments) {
  void *library = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) fail(count == 2 ? dlerror() : "give a library", 0);
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
  net = dlsym(library, "ncclNetPlugin_v" TEXT(VERSION));
  if (!net) fail("the symbol is missing", 0);
  initialise();
  int devices = -1;
  check(net->devices(&devices), "devices");
  if (devices <= 0) {
    printf("harness v%d: %s declined\n", VERSION, net->name);
    return devices == 0 ? 0 : 1;
  }
  for (int device = 0; device < devices; device++) {
    struct properties properties;
    memset(&properties, 0, sizeof properties);
    check(net->get_properties(device, &properties), "getProperties");
    if (!properties.name || !(properties.ptr_support & PTR_HOST) || properties.speed <= 0 || properties.max_recvs < GROUP)
      fail("the properties make no sense", device);
  }
  drive(0, 0);
#if VERSION >= 9
  struct members members = {0};
  for (int device = 0; device < devices && device < MEMBERS; device++) members.devices[members.count++] = device;
  int joined = -1;
  check(net->make_v_device(&joined, &members), "makeVDevice");
  drive(joined, 1);
#endif
#if VERSION >= 11
  check(net->finalize(context), "finalize");
#endif
  printf("harness v%d: %s passed on %d devices\n", VERSION, net->name, devices);
  return 0;
}

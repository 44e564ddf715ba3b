/* The C side of NCCL's net and collnet tables, as far as the test plugins need it, for -DVERSION=6 to 12.
 * Layouts are asserted here as well as in Rust, so that neither side can drift. */
#ifndef NET_ABI_H
#define NET_ABI_H

#include <stddef.h>
#include <stdint.h>

#if !defined(VERSION) || VERSION < 6 || VERSION > 12
#error "compile with -DVERSION=6 to 12"
#endif

enum { OK = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { PTR_HOST = 1, PTR_CUDA = 2, PTR_DMABUF = 4 };
enum { LEVEL_INFO = 3, SUBSYS_NET = 0x10 };
enum { HANDLE_BYTES = 128 };

typedef void logger_t(int level, unsigned long subsys, const char *file, int line, const char *format, ...);
typedef int profiler_t(void **event, int type, void *parent, int64_t plugin, void *payload);

struct config {
  int traffic_class;
};

#if VERSION >= 12
enum { MEMBERS = 8 };
#else
enum { MEMBERS = 4 };
#endif

struct members {
  int count;
  int devices[MEMBERS];
};

struct flows {
  int32_t max_peers, min_peers, max_flows, min_flows;
};

struct attributes {
  struct flows send, recv;
  uint32_t op, algo, proto;
};

struct properties {
  char *name;
  char *pci_path;
  uint64_t guid;
  int ptr_support;
#if VERSION >= 8
  int reg_is_global;
#endif
#if VERSION >= 9
  int force_flush;
#endif
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
#if VERSION >= 7
  int device_type;
  int device_version;
#endif
#if VERSION >= 9
  struct members members;
  size_t max_p2p_bytes;
  size_t max_collective_bytes;
#endif
#if VERSION >= 11
  int max_multi_request;
#endif
#if VERSION >= 12
  int16_t rail;
  int16_t plane;
#endif
};

/* What differs in the signatures. */
#if VERSION >= 8
typedef size_t mr_length;
#else
typedef int mr_length;
#endif
#if VERSION >= 9
typedef size_t length;
#else
typedef int length;
#endif
#if VERSION >= 11
#define CONTEXT_PARAMETER void *context,
#else
#define CONTEXT_PARAMETER
#endif
#if VERSION == 10
#define CONFIG_PARAMETER struct config *config,
#else
#define CONFIG_PARAMETER
#endif
#if VERSION >= 7
#define OFFLOAD_PARAMETER , void **offload
#else
#define OFFLOAD_PARAMETER
#endif
#if VERSION >= 10
#define PROFILE_PARAMETER void *profile,
#define PROFILES_PARAMETER void **profiles,
#else
#define PROFILE_PARAMETER
#define PROFILES_PARAMETER
#endif

#if VERSION >= 11
#define NET_INIT_PARAMETERS \
  void **context, uint64_t comm_id, struct config *config, logger_t *log, profiler_t *profiler
#define COLLNET_INIT_PARAMETERS void **context, uint64_t comm_id, logger_t *log
#elif VERSION == 10
#define NET_INIT_PARAMETERS logger_t *log, profiler_t *profiler
#define COLLNET_INIT_PARAMETERS logger_t *log
#else
#define NET_INIT_PARAMETERS logger_t *log
#define COLLNET_INIT_PARAMETERS logger_t *log
#endif

struct net_table {
  const char *name;
  int (*init)(NET_INIT_PARAMETERS);
  int (*devices)(int *count);
  int (*get_properties)(int device, struct properties *properties);
  int (*listen)(CONTEXT_PARAMETER int device, void *handle, void **listener);
  int (*connect)(CONTEXT_PARAMETER int device, CONFIG_PARAMETER void *handle, void **sender OFFLOAD_PARAMETER);
  int (*accept)(void *listener, void **receiver OFFLOAD_PARAMETER);
  int (*reg_mr)(void *comm, void *data, mr_length bytes, int kind, void **mr);
  int (*reg_mr_dma_buf)(void *comm, void *data, size_t bytes, int kind, uint64_t offset, int fd, void **mr);
  int (*dereg_mr)(void *comm, void *mr);
  int (*isend)(void *comm, void *data, length bytes, int tag, void *mr, PROFILE_PARAMETER void **request);
  int (*irecv)(void *comm, int count, void **data, length *bytes, int *tags, void **mrs,
               PROFILES_PARAMETER void **request);
  int (*iflush)(void *comm, int count, void **data, int *bytes, void **mrs, void **request);
  int (*test)(void *request, int *done, int *bytes);
  int (*close_send)(void *comm);
  int (*close_recv)(void *comm);
  int (*close_listen)(void *listener);
#if VERSION >= 7
  int (*get_device_mr)(void *comm, void *mr, void **device_mr);
  int (*irecv_consumed)(void *comm, int count, void *request);
#endif
#if VERSION >= 9
  int (*make_v_device)(int *device, struct members *members);
#endif
#if VERSION >= 11
  int (*finalize)(void *context);
  int (*set_net_attr)(void *context, struct attributes *attributes);
#endif
};

#define BYTES(v6, v7, v8, v9, v10, v11, v12) \
  (VERSION == 6 ? v6 : VERSION == 7 ? v7 : VERSION == 8 ? v8 : VERSION == 9 ? v9 : VERSION == 10 ? v10 \
   : VERSION == 11 ? v11 : v12)

_Static_assert(sizeof(struct properties) == BYTES(48, 56, 64, 104, 104, 112, 128), "properties");
_Static_assert(sizeof(struct net_table) == BYTES(136, 152, 152, 160, 160, 176, 176), "net table");
_Static_assert(sizeof(struct attributes) == 44, "attributes");

/* A part of a buffer, for collnet. */
struct segment {
  void *mr;
  void *data;
#if VERSION >= 9
  size_t bytes;
#else
  uint32_t bytes;
#endif
};

struct collnet_table {
  const char *name;
  int (*init)(COLLNET_INIT_PARAMETERS);
  int (*devices)(int *count);
  int (*get_properties)(int device, struct properties *properties);
  int (*listen)(CONTEXT_PARAMETER int device, void *handle, void **listener);
  int (*connect)(void *handles[], int ranks, int rank, void *listener, void **comm);
  int (*reduce_support)(int type, int op, int *supported);
  int (*reg_mr)(void *comm, void *data, mr_length bytes, int kind, void **mr);
  int (*reg_mr_dma_buf)(void *comm, void *data, size_t bytes, int kind, uint64_t offset, int fd, void **mr);
  int (*dereg_mr)(void *comm, void *mr);
  int (*iallreduce)(void *comm, void *send, void *recv, length count, int type, int op, void *send_mr,
                    void *recv_mr, void **request);
#if VERSION >= 8
  int (*iallgather)(void *comm, void *send, int parts, struct segment *recv, size_t bytes_per_rank,
                    size_t window_offset, size_t window_bytes, void *send_mr, void **request);
  int (*ireducescatter)(void *comm, int parts, struct segment *send, void *recv, size_t bytes_per_rank,
                        size_t window_offset, size_t window_bytes, int type, int op, void *recv_mr,
                        void **request);
#endif
  int (*iflush)(void *comm, void *data, int bytes, void *mr, void **request);
  int (*test)(void *request, int *done, int *bytes);
  int (*close_coll)(void *comm);
  int (*close_listen)(void *listener);
#if VERSION >= 9
  int (*make_v_device)(int *device, struct members *members);
#endif
#if VERSION >= 11
  int (*finalize)(void *context);
#endif
};

_Static_assert(sizeof(struct collnet_table) == BYTES(120, 120, 136, 144, 144, 152, 152), "collnet table");
_Static_assert(sizeof(struct segment) == 24, "segment");

#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
/* The symbol that is looked for: SYMBOL(ncclNetPlugin_v). */
#define SYMBOL(prefix) CONCAT(prefix, VERSION)

#endif

/* The plugin tables that Hawser accepts, for plugins in C or C++: the newest version of each kind. Older ones work too.
 * Such a plugin also works with NVIDIA's library, which has the same tables.
 *
 * Made from plugins/api/tests/header: do not edit. */
#ifndef HAWSER_PLUGIN_H
#define HAWSER_PLUGIN_H

#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
#define HAWSER_CHECK(condition, text) static_assert(condition, text)
extern "C" {
#else
#include <stdbool.h>
#define HAWSER_CHECK(condition, text) _Static_assert(condition, text)
#endif

#define HAWSER_EXPORT __attribute__((visibility("default")))

/* Common ================================================================================================ */

/* Functions return one of the result codes. Everything is called through C: no C++ exception and no
 * longjmp may leave a function. A table is a constant that is exported under the name that its section
 * gives; the host reads it once, when it opens the library. */

/* Results. System: the OS or the hardware failed. Internal: the host misused the plugin. Usage: the user's
 * fault, a size that the receiver did not expect included. Remote: the other side is lost. */
#define HAWSER_SUCCESS 0
#define HAWSER_CUDA_ERROR 1
#define HAWSER_SYSTEM_ERROR 2
#define HAWSER_INTERNAL_ERROR 3
#define HAWSER_INVALID_ARGUMENT 4
#define HAWSER_INVALID_USAGE 5
#define HAWSER_REMOTE_ERROR 6
#define HAWSER_IN_PROGRESS 7

/* Levels of log lines. */
#define HAWSER_LOG_VERSION 1
#define HAWSER_LOG_WARN 2
#define HAWSER_LOG_INFO 3
#define HAWSER_LOG_ABORT 4
#define HAWSER_LOG_TRACE 5

/* What a log line is about: bits, so that users can choose (NCCL_DEBUG_SUBSYS). */
#define HAWSER_SUBSYS_INIT 0x1ul
#define HAWSER_SUBSYS_COLL 0x2ul
#define HAWSER_SUBSYS_P2P 0x4ul
#define HAWSER_SUBSYS_SHM 0x8ul
#define HAWSER_SUBSYS_NET 0x10ul
#define HAWSER_SUBSYS_GRAPH 0x20ul
#define HAWSER_SUBSYS_TUNING 0x40ul
#define HAWSER_SUBSYS_ENV 0x80ul
#define HAWSER_SUBSYS_ALLOC 0x100ul
#define HAWSER_SUBSYS_CALL 0x200ul
#define HAWSER_SUBSYS_PROXY 0x400ul
#define HAWSER_SUBSYS_NVLS 0x800ul
#define HAWSER_SUBSYS_BOOTSTRAP 0x1000ul
#define HAWSER_SUBSYS_REG 0x2000ul
#define HAWSER_SUBSYS_PROFILE 0x4000ul
#define HAWSER_SUBSYS_RAS 0x8000ul
#define HAWSER_SUBSYS_ALL (~0ul)

/* Writes a line to the host's log. It can be called at any time, from any thread, until finalize returns. */
typedef void (*hawser_logger_t)(int level, unsigned long subsys, const char *file, int line,
                                const char *format, ...);

/* Types of elements. */
#define HAWSER_TYPE_INT8 0
#define HAWSER_TYPE_UINT8 1
#define HAWSER_TYPE_INT32 2
#define HAWSER_TYPE_UINT32 3
#define HAWSER_TYPE_INT64 4
#define HAWSER_TYPE_UINT64 5
#define HAWSER_TYPE_FLOAT16 6
#define HAWSER_TYPE_FLOAT32 7
#define HAWSER_TYPE_FLOAT64 8
#define HAWSER_TYPE_BFLOAT16 9
#define HAWSER_TYPE_FLOAT8E4M3 10
#define HAWSER_TYPE_FLOAT8E5M2 11

/* Reductions. */
#define HAWSER_OP_SUM 0
#define HAWSER_OP_PROD 1
#define HAWSER_OP_MAX 2
#define HAWSER_OP_MIN 3
#define HAWSER_OP_AVG 4

/* Net: ncclNetPlugin_v12, found by NCCL_NET_PLUGIN ====================================================== */

/* Moves bytes between hosts. A connection is one-way; its receiver listens, the host carries the handle to
 * the sender, and both sides ask until the connection is up. connect, accept, isend and irecv never wait:
 * success with NULL in the output means 'not now, call again with the same arguments'. Sends match
 * receives strictly in the order in which they were posted. */

/* Kinds of memory: bits of ptrSupport; one of them for regMr. */
#define HAWSER_MEMORY_HOST 1
#define HAWSER_MEMORY_CUDA 2
#define HAWSER_MEMORY_DMABUF 4

/* Limits: bytes of a handle, requests in flight on a connection, receives in a group, members of a virtual
 * device. A sender must hold MAX_REQUESTS times maxRecvs requests. */
#define HAWSER_NET_HANDLE_BYTES 128
#define HAWSER_NET_MAX_REQUESTS 32
#define HAWSER_NET_MAX_RECVS 8
#define HAWSER_NET_MAX_MEMBERS 8

/* Reports an event of the network to profilers; NULL if nobody listens. type: 0 start, 1 stop, 2 update, 3
 * update and stop. plugin: kind of the plugin << 16 | version of data. */
typedef int (*hawser_net_profiler_t)(void **event, int type, void *parent, int64_t plugin, void *data);

/* What init is told. */
typedef struct hawser_net_config {
    int trafficClass; /* Traffic class of the packets; -1 = not set. */
} hawser_net_config_t;

/* The physical devices behind a device; itself if it is physical. */
typedef struct hawser_net_members {
    int ndevs;
    int devs[8];
} hawser_net_members_t;

/* A device. Strings live as long as the plugin. */
typedef struct hawser_net_properties {
    char *name; /* For logs. */
    char *pciPath; /* Path in sysfs; NULL for virtual devices. */
    uint64_t guid; /* Equal for devices that share a port. */
    int ptrSupport; /* HAWSER_MEMORY_ bits. */
    int regIsGlobal; /* 1: a registration is valid for all connections. */
    int forceFlush; /* 1: every receive into GPU memory needs a flush. */
    int speed; /* Megabits per second. */
    int port;
    float latency; /* Microseconds. */
    int maxComms; /* Connections at most. */
    int maxRecvs; /* Receives in a group at most: 1 to 8. */
    int netDeviceType; /* 0: data moves by calls of the host. Hawser uses no other type. */
    int netDeviceVersion; /* 0 */
    hawser_net_members_t members;
    size_t maxP2pBytes; /* Longest send of point-to-point traffic. */
    size_t maxCollBytes; /* Longest message of a collective. */
    int maxMultiRequestSize; /* Requests that one grouped call may hold; 1. */
    int16_t railId; /* -1 = unknown. */
    int16_t planeId; /* -1 = unknown. */
} hawser_net_properties_t;

/* Peers and connections per peer in one direction; -1 = not known. */
typedef struct hawser_net_flows {
    int32_t maxConcurrentPeers;
    int32_t minConcurrentPeers;
    int32_t maxFlowsPerPeer;
    int32_t minFlowsPerPeer;
} hawser_net_flows_t;

/* What a communicator will do: a hint. */
typedef struct hawser_net_attributes {
    hawser_net_flows_t send;
    hawser_net_flows_t recv;
    uint32_t op; /* Bits of functions, algorithms and protocols. */
    uint32_t algo;
    uint32_t proto;
} hawser_net_attributes_t;

/* regMrDmaBuf may be NULL without HAWSER_MEMORY_DMABUF; iflush, getDeviceMr, irecvConsumed, makeVDevice
 * and setNetAttr may be NULL. */
typedef struct hawser_net_v12 {
    const char *name; /* What NCCL_NET selects, without case. */
    /* Once per communicator. */
    int (*init)(void **ctx, uint64_t comm, const hawser_net_config_t *config, hawser_logger_t log,
            hawser_net_profiler_t profiler);
    int (*devices)(int *count); /* 0: not usable here; the host takes the next net. */
    int (*getProperties)(int dev, hawser_net_properties_t *properties);
    /* Writes the handle. Must give an object at once. */
    int (*listen)(void *ctx, int dev, void *handle, void **listenComm);
    /* deviceHandle may be NULL. */
    int (*connect)(void *ctx, int dev, void *handle, void **sendComm, void **deviceHandle);
    int (*accept)(void *listenComm, void **recvComm, void **deviceHandle);
    int (*regMr)(void *comm, void *data, size_t bytes, int kind, void **mr); /* May block. */
    int (*regMrDmaBuf)(void *comm, void *data, size_t bytes, int kind, uint64_t offset, int fd, void **mr);
    int (*deregMr)(void *comm, void *mr);
    /* The tag picks a buffer inside a grouped receive. */
    int (*isend)(void *sendComm, void *data, size_t bytes, int tag, void *mr, void *profile, void **request);
    /* n receives that are one request. A buffer may be longer than what is sent, never shorter. *request
     * may be 1 on entry: the caller sees by itself that the data are there, and the request may be over
     * early. */
    int (*irecv)(void *recvComm, int n, void **data, size_t *bytes, int *tags, void **mrs, void **profiles,
            void **request);
    /* Makes received data visible to the GPU. */
    int (*iflush)(void *recvComm, int n, void **data, int *bytes, void **mrs, void **request);
    /* Until done is 1; then the request is dead. bytes may be NULL, or has an entry per receive. */
    int (*test)(void *request, int *done, int *bytes);
    int (*closeSend)(void *sendComm);
    int (*closeRecv)(void *recvComm);
    int (*closeListen)(void *listenComm);
    int (*getDeviceMr)(void *comm, void *mr, void **deviceMr);
    int (*irecvConsumed)(void *recvComm, int n, void *request);
    int (*makeVDevice)(int *dev, hawser_net_members_t *members); /* Makes a virtual device. */
    int (*finalize)(void *ctx); /* The inverse of init. */
    int (*setNetAttr)(void *ctx, hawser_net_attributes_t *attributes);
} hawser_net_v12_t;
extern HAWSER_EXPORT const hawser_net_v12_t ncclNetPlugin_v12;

/* CollNet: ncclCollNetPlugin_v12, in the library of a net =============================================== */

/* Collectives that the network computes. One connection joins all ranks; requests are those of a net. */

/* A part of a buffer. */
typedef struct hawser_part {
    void *mr;
    void *address;
    size_t bytes;
} hawser_part_t;

/* If devices gives 0, everything behind it may be NULL. */
typedef struct hawser_collnet_v12 {
    const char *name;
    int (*init)(void **ctx, uint64_t comm, hawser_logger_t log);
    int (*devices)(int *count);
    int (*getProperties)(int dev, hawser_net_properties_t *properties);
    int (*listen)(void *ctx, int dev, void *handle, void **listenComm);
    /* Joins the ranks; may block until all of them call it. */
    int (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
    int (*reduceSupport)(int type, int op, int *supported);
    int (*regMr)(void *collComm, void *data, size_t bytes, int kind, void **mr);
    int (*regMrDmaBuf)(void *collComm, void *data, size_t bytes, int kind, uint64_t offset, int fd,
            void **mr);
    int (*deregMr)(void *collComm, void *mr);
    int (*iallreduce)(void *collComm, void *send, void *recv, size_t count, int type, int op, void *sendMr,
            void *recvMr, void **request);
    /* The window says which bytes of the whole this call is about. */
    int (*iallgather)(void *collComm, void *send, int nParts, hawser_part_t *recvParts, size_t bytesPerRank,
            size_t windowOffset, size_t windowBytes, void *sendMr, void **request);
    int (*ireducescatter)(void *collComm, int nParts, hawser_part_t *sendParts, void *recv,
            size_t bytesPerRank, size_t windowOffset, size_t windowBytes, int type, int op, void *recvMr,
            void **request);
    int (*iflush)(void *collComm, void *data, int bytes, void *mr, void **request);
    int (*test)(void *request, int *done, int *bytes);
    int (*closeColl)(void *collComm);
    int (*closeListen)(void *listenComm);
    int (*makeVDevice)(int *dev, hawser_net_members_t *members); /* May be NULL. */
    int (*finalize)(void *ctx);
} hawser_collnet_v12_t;
extern HAWSER_EXPORT const hawser_collnet_v12_t ncclCollNetPlugin_v12;

/* Tuner: ncclTunerPlugin_v6, found by NCCL_TUNER_PLUGIN ================================================= */

/* Changes the times that the host's cost model predicts; the host takes the lowest. All ranks ask with
 * equal arguments and must get equal answers. */

/* Collectives that a tuner is asked about. */
#define HAWSER_FUNC_BROADCAST 0
#define HAWSER_FUNC_REDUCE 1
#define HAWSER_FUNC_ALL_GATHER 2
#define HAWSER_FUNC_REDUCE_SCATTER 3
#define HAWSER_FUNC_ALL_REDUCE 4

/* Rows of the cost table. */
#define HAWSER_ALGO_TREE 0
#define HAWSER_ALGO_RING 1
#define HAWSER_ALGO_COLLNET_DIRECT 2
#define HAWSER_ALGO_COLLNET_CHAIN 3
#define HAWSER_ALGO_NVLS 4
#define HAWSER_ALGO_NVLS_TREE 5
#define HAWSER_ALGO_PAT 6

/* Columns of the cost table. */
#define HAWSER_PROTO_LL 0
#define HAWSER_PROTO_LL128 1
#define HAWSER_PROTO_SIMPLE 2

/* NVLink domains of the communicator, and how many ranks the smallest and the largest have. */
typedef struct hawser_nvl_domains {
    int count;
    int minRanks;
    int maxRanks;
} hawser_nvl_domains_t;

/* Constants of NCCL's cost model: microseconds per algorithm and protocol (hardware: NVLink, PCI,
 * network), and GB/s per generation (Volta, Ampere, Hopper, Blackwell) on 1, 2 and more hosts. Hawser
 * fills them in and does not read them back. */
typedef struct hawser_tuner_constants {
    double baseLatencies[7][3];
    double hwLatencies[3][7][3];
    double llMaxBws[4][3];
    double perChMaxRingLL128Bws[4][3];
    double perChMaxTreeLL128Bws[4][3];
    double perChMaxTreeBws[4][3];
    double perChMaxNVLSTreeBws[4][3];
} hawser_tuner_constants_t;

/* getChunkSize may be NULL. */
typedef struct hawser_tuner_v6 {
    const char *name;
    /* Once per communicator. An error: the communicator does without this tuner. */
    int (*init)(void **ctx, uint64_t comm, size_t nRanks, size_t nNodes, hawser_logger_t log,
            const hawser_nvl_domains_t *domains, hawser_tuner_constants_t *constants);
    /* cost is the address of ONE array float[numAlgo][numProto], whatever its type says: cast it to float*
     * and index it with algo * numProto + proto. Microseconds; -1.0 is impossible and must stay so.
     * *nChannels is 0 and may stay so. bytes is the larger of send and receive side. */
    int (*getCollInfo)(void *ctx, int func, size_t bytes, int numPipeOps, float **cost, int numAlgo,
            int numProto, int regBuff, int *nChannels);
    int (*finalize)(void *ctx);
    /* *chunk holds the host's choice and may stay so. */
    int (*getChunkSize)(void *ctx, int func, size_t bytes, int algo, int proto, int nChannels, size_t *chunk);
} hawser_tuner_v6_t;
extern HAWSER_EXPORT const hawser_tuner_v6_t ncclTunerPlugin_v6;

/* Profiler: ncclProfiler_v6, found by NCCL_PROFILER_PLUGIN ============================================== */

/* Watches. An event starts, may change its state, and stops; handles are the plugin's, NULL means 'not
 * interested'. Calls come from several threads, must not block, and their errors are nobody's concern. */

/* Kinds of events: bits of the mask. */
#define HAWSER_EVENT_GROUP (1 << 0)
#define HAWSER_EVENT_COLL (1 << 1)
#define HAWSER_EVENT_P2P (1 << 2)
#define HAWSER_EVENT_PROXY_OP (1 << 3)
#define HAWSER_EVENT_PROXY_STEP (1 << 4)
#define HAWSER_EVENT_PROXY_CTRL (1 << 5)
#define HAWSER_EVENT_KERNEL_CH (1 << 6)
#define HAWSER_EVENT_NET_PLUGIN (1 << 7)
#define HAWSER_EVENT_GROUP_API (1 << 8)
#define HAWSER_EVENT_COLL_API (1 << 9)
#define HAWSER_EVENT_P2P_API (1 << 10)
#define HAWSER_EVENT_KERNEL_LAUNCH (1 << 11)
#define HAWSER_EVENT_CE_COLL (1 << 12)
#define HAWSER_EVENT_CE_SYNC (1 << 13)
#define HAWSER_EVENT_CE_BATCH (1 << 14)

/* States of events. */
#define HAWSER_STATE_SEND_GPU_WAIT 8
#define HAWSER_STATE_SEND_WAIT 9
#define HAWSER_STATE_RECV_WAIT 10
#define HAWSER_STATE_RECV_FLUSH_WAIT 11
#define HAWSER_STATE_RECV_GPU_WAIT 12
#define HAWSER_STATE_PROXY_IDLE 13
#define HAWSER_STATE_PROXY_ACTIVE 14
#define HAWSER_STATE_PROXY_SLEEP 15
#define HAWSER_STATE_PROXY_WAKEUP 16
#define HAWSER_STATE_PROXY_APPEND 17
#define HAWSER_STATE_PROXY_APPEND_END 18
#define HAWSER_STATE_PROXY_OP_IN_PROGRESS 19
#define HAWSER_STATE_SEND_PEER_WAIT 20
#define HAWSER_STATE_NET_PLUGIN_UPDATE 21
#define HAWSER_STATE_KERNEL_CH_STOP 22
#define HAWSER_STATE_GROUP_START_API_STOP 23
#define HAWSER_STATE_GROUP_END_API_START 24

typedef struct hawser_event_coll {
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *datatype;
    uint8_t nChannels;
    uint8_t nWarps;
    const char *algo;
    const char *proto;
    void *parentGroup;
} hawser_event_coll_t;

typedef struct hawser_event_p2p {
    const char *func;
    void *buff;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t nChannels;
    void *parentGroup;
} hawser_event_p2p_t;

typedef struct hawser_event_proxy_op {
    int32_t pid; /* The process of the parent; compare it before the parent is touched. */
    uint8_t channelId;
    int peer;
    int nSteps;
    int chunkSize;
    int isSend;
} hawser_event_proxy_op_t;

typedef struct hawser_event_proxy_step {
    int step;
} hawser_event_proxy_step_t;

typedef struct hawser_event_kernel_ch {
    uint8_t channelId;
    uint64_t pTimer; /* Clock of the GPU. */
} hawser_event_kernel_ch_t;

typedef struct hawser_event_net {
    int64_t id;
    void *data;
} hawser_event_net_t;

typedef struct hawser_event_group_api {
    bool graphCaptured;
    int groupDepth;
} hawser_event_group_api_t;

typedef struct hawser_event_coll_api {
    const char *func;
    size_t count;
    const char *datatype;
    int root;
    void *stream;
    bool graphCaptured;
} hawser_event_coll_api_t;

typedef struct hawser_event_p2p_api {
    const char *func;
    size_t count;
    const char *datatype;
    void *stream;
    bool graphCaptured;
} hawser_event_p2p_api_t;

typedef struct hawser_event_launch {
    void *stream;
} hawser_event_launch_t;

typedef struct hawser_event_ce_coll {
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *datatype;
    const char *syncStrategy;
    bool intraBatchSync;
    uint32_t batchSize;
    uint32_t numBatches;
    uint32_t ceSeqNum;
    void *stream;
} hawser_event_ce_coll_t;

typedef struct hawser_event_ce_sync {
    bool isComplete;
    int nRanks;
} hawser_event_ce_sync_t;

typedef struct hawser_event_ce_batch {
    int numOps;
    size_t totalBytes;
    bool useIntraSync;
} hawser_event_ce_batch_t;

/* The particulars of an event; its kind says which. */
typedef union hawser_event_body {
    hawser_event_coll_t coll;
    hawser_event_p2p_t p2p;
    hawser_event_proxy_op_t proxyOp;
    hawser_event_proxy_step_t proxyStep;
    hawser_event_kernel_ch_t kernelCh;
    hawser_event_net_t netPlugin;
    hawser_event_group_api_t groupApi;
    hawser_event_coll_api_t collApi;
    hawser_event_p2p_api_t p2pApi;
    hawser_event_launch_t kernelLaunch;
    hawser_event_ce_coll_t ceColl;
    hawser_event_ce_sync_t ceCollSync;
    hawser_event_ce_batch_t ceCollBatch;
} hawser_event_body_t;

/* An event that starts. Strings live as long as the call. */
typedef struct hawser_event {
    uint64_t type; /* One HAWSER_EVENT_ bit. */
    void *parentObj; /* Handle of the parent, or NULL. */
    int rank;
    hawser_event_body_t body;
} hawser_event_t;

/* What comes with a state. */
typedef union hawser_state_args {
    size_t transSize; /* Bytes, for the states of a proxy step. */
    int appendedProxyOps; /* For PROXY_APPEND_END. */
    void *data; /* For NET_PLUGIN_UPDATE. */
    uint64_t pTimer; /* For KERNEL_CH_STOP. */
} hawser_state_args_t;

typedef struct hawser_profiler_v6 {
    const char *name;
    /* Once per communicator; commName may be NULL. Writes the mask of wanted events, and may go on writing
     * it. An error: the communicator does without this profiler. */
    int (*init)(void **ctx, uint64_t comm, int *mask, const char *commName, int nNodes, int nRanks, int rank,
            hawser_logger_t log);
    int (*startEvent)(void *ctx, void **event, hawser_event_t *description);
    int (*stopEvent)(void *event);
    int (*recordEventState)(void *event, int state, hawser_state_args_t *args); /* args may be NULL. */
    int (*finalize)(void *ctx);
} hawser_profiler_v6_t;
extern HAWSER_EXPORT const hawser_profiler_v6_t ncclProfiler_v6;

/* Env: ncclEnvPlugin_v2, found by NCCL_ENV_PLUGIN ======================================================= */

/* Where settings come from. It is the only source: a plugin that wants the environment to count calls
 * getenv. */

typedef struct hawser_env_v2 {
    const char *name;
    /* Once per process, with the version of NCCL that the host stands for. */
    int (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix, hawser_logger_t log);
    int (*finalize)(void);
    /* NULL = not set. The string lives until the next question for this name, or finalize. */
    const char *(*getEnv)(const char *name);
} hawser_env_v2_t;
extern HAWSER_EXPORT const hawser_env_v2_t ncclEnvPlugin_v2;

/* On other machines the tables would look different. */
HAWSER_CHECK(sizeof(hawser_net_config_t) == 4, "hawser_net_config_t");
HAWSER_CHECK(sizeof(hawser_net_members_t) == 36, "hawser_net_members_t");
HAWSER_CHECK(sizeof(hawser_net_properties_t) == 128, "hawser_net_properties_t");
HAWSER_CHECK(sizeof(hawser_net_flows_t) == 16, "hawser_net_flows_t");
HAWSER_CHECK(sizeof(hawser_net_attributes_t) == 44, "hawser_net_attributes_t");
HAWSER_CHECK(sizeof(hawser_net_v12_t) == 176, "hawser_net_v12_t");
HAWSER_CHECK(sizeof(hawser_part_t) == 24, "hawser_part_t");
HAWSER_CHECK(sizeof(hawser_collnet_v12_t) == 152, "hawser_collnet_v12_t");
HAWSER_CHECK(sizeof(hawser_nvl_domains_t) == 12, "hawser_nvl_domains_t");
HAWSER_CHECK(sizeof(hawser_tuner_constants_t) == 1152, "hawser_tuner_constants_t");
HAWSER_CHECK(sizeof(hawser_tuner_v6_t) == 40, "hawser_tuner_v6_t");
HAWSER_CHECK(sizeof(hawser_event_coll_t) == 88, "hawser_event_coll_t");
HAWSER_CHECK(sizeof(hawser_event_p2p_t) == 48, "hawser_event_p2p_t");
HAWSER_CHECK(sizeof(hawser_event_proxy_op_t) == 24, "hawser_event_proxy_op_t");
HAWSER_CHECK(sizeof(hawser_event_proxy_step_t) == 4, "hawser_event_proxy_step_t");
HAWSER_CHECK(sizeof(hawser_event_kernel_ch_t) == 16, "hawser_event_kernel_ch_t");
HAWSER_CHECK(sizeof(hawser_event_net_t) == 16, "hawser_event_net_t");
HAWSER_CHECK(sizeof(hawser_event_group_api_t) == 8, "hawser_event_group_api_t");
HAWSER_CHECK(sizeof(hawser_event_coll_api_t) == 48, "hawser_event_coll_api_t");
HAWSER_CHECK(sizeof(hawser_event_p2p_api_t) == 40, "hawser_event_p2p_api_t");
HAWSER_CHECK(sizeof(hawser_event_launch_t) == 8, "hawser_event_launch_t");
HAWSER_CHECK(sizeof(hawser_event_ce_coll_t) == 88, "hawser_event_ce_coll_t");
HAWSER_CHECK(sizeof(hawser_event_ce_sync_t) == 8, "hawser_event_ce_sync_t");
HAWSER_CHECK(sizeof(hawser_event_ce_batch_t) == 24, "hawser_event_ce_batch_t");
HAWSER_CHECK(sizeof(hawser_event_body_t) == 88, "hawser_event_body_t");
HAWSER_CHECK(sizeof(hawser_event_t) == 112, "hawser_event_t");
HAWSER_CHECK(sizeof(hawser_state_args_t) == 8, "hawser_state_args_t");
HAWSER_CHECK(sizeof(hawser_profiler_v6_t) == 48, "hawser_profiler_v6_t");
HAWSER_CHECK(sizeof(hawser_env_v2_t) == 32, "hawser_env_v2_t");

#ifdef __cplusplus
}
#endif
#endif

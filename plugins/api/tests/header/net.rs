//! Net and collnet.

use super::model::{Item, Struct, call, field};

pub const NET: &[Item] = &[
    Item::Section(
        "Net: ncclNetPlugin_v12, found by NCCL_NET_PLUGIN",
        "Moves bytes between hosts. A connection is one-way; its receiver listens, the host carries the handle to the \
         sender, and both sides ask until the connection is up. connect, accept, isend and irecv never wait: success with \
         NULL in the output means 'not now, call again with the same arguments'. Sends match receives strictly in the \
         order in which they were posted.",
    ),
    Item::Numbers(
        "HAWSER_MEMORY_",
        "Kinds of memory: bits of ptrSupport; one of them for regMr.",
        &[("HOST", "1"), ("CUDA", "2"), ("DMABUF", "4")],
    ),
    Item::Numbers(
        "HAWSER_NET_",
        "Limits: bytes of a handle, requests in flight on a connection, receives in a group, members of a virtual \
         device. A sender must hold MAX_REQUESTS times maxRecvs requests.",
        &[("HANDLE_BYTES", "128"), ("MAX_REQUESTS", "32"), ("MAX_RECVS", "8"), ("MAX_MEMBERS", "8")],
    ),
    Item::Code(
        "Reports an event of the network to profilers; NULL if nobody listens. type: 0 start, 1 stop, 2 update, 3 update \
         and stop. plugin: kind of the plugin << 16 | version of data.",
        "typedef int (*hawser_net_profiler_t)(void **event, int type, void *parent, int64_t plugin, void *data);",
    ),
    Item::Struct(Struct {
        name: "hawser_net_config_t",
        text: "What init is told.",
        size: 4,
        fields: &[field("int", "trafficClass", "", 0, "Traffic class of the packets; -1 = not set.")],
    }),
    Item::Struct(Struct {
        name: "hawser_net_members_t",
        text: "The physical devices behind a device; itself if it is physical.",
        size: 36,
        fields: &[field("int", "ndevs", "", 0, ""), field("int", "devs", "[8]", 4, "")],
    }),
    Item::Struct(Struct {
        name: "hawser_net_properties_t",
        text: "A device. Strings live as long as the plugin.",
        size: 128,
        fields: &[
            field("char *", "name", "", 0, "For logs."),
            field("char *", "pciPath", "", 8, "Path in sysfs; NULL for virtual devices."),
            field("uint64_t", "guid", "", 16, "Equal for devices that share a port."),
            field("int", "ptrSupport", "", 24, "HAWSER_MEMORY_ bits."),
            field("int", "regIsGlobal", "", 28, "1: a registration is valid for all connections."),
            field("int", "forceFlush", "", 32, "1: every receive into GPU memory needs a flush."),
            field("int", "speed", "", 36, "Megabits per second."),
            field("int", "port", "", 40, ""),
            field("float", "latency", "", 44, "Microseconds."),
            field("int", "maxComms", "", 48, "Connections at most."),
            field("int", "maxRecvs", "", 52, "Receives in a group at most: 1 to 8."),
            field(
                "int",
                "netDeviceType",
                "",
                56,
                "0: data moves by calls of the host. Hawser uses no other type.",
            ),
            field("int", "netDeviceVersion", "", 60, "0"),
            field("hawser_net_members_t", "members", "", 64, ""),
            field("size_t", "maxP2pBytes", "", 104, "Longest send of point-to-point traffic."),
            field("size_t", "maxCollBytes", "", 112, "Longest message of a collective."),
            field("int", "maxMultiRequestSize", "", 120, "Requests that one grouped call may hold; 1."),
            field("int16_t", "railId", "", 124, "-1 = unknown."),
            field("int16_t", "planeId", "", 126, "-1 = unknown."),
        ],
    }),
    Item::Struct(Struct {
        name: "hawser_net_flows_t",
        text: "Peers and connections per peer in one direction; -1 = not known.",
        size: 16,
        fields: &[
            field("int32_t", "maxConcurrentPeers", "", 0, ""),
            field("int32_t", "minConcurrentPeers", "", 4, ""),
            field("int32_t", "maxFlowsPerPeer", "", 8, ""),
            field("int32_t", "minFlowsPerPeer", "", 12, ""),
        ],
    }),
    Item::Struct(Struct {
        name: "hawser_net_attributes_t",
        text: "What a communicator will do: a hint.",
        size: 44,
        fields: &[
            field("hawser_net_flows_t", "send", "", 0, ""),
            field("hawser_net_flows_t", "recv", "", 16, ""),
            field("uint32_t", "op", "", 32, "Bits of functions, algorithms and protocols."),
            field("uint32_t", "algo", "", 36, ""),
            field("uint32_t", "proto", "", 40, ""),
        ],
    }),
    Item::Struct(Struct {
        name: "hawser_net_v12_t",
        text: "regMrDmaBuf may be NULL without HAWSER_MEMORY_DMABUF; iflush, getDeviceMr, irecvConsumed, makeVDevice and \
               setNetAttr may be NULL.",
        size: 176,
        fields: &[
            field("const char *", "name", "", 0, "What NCCL_NET selects, without case."),
            call(
                "init",
                ")(void **ctx, uint64_t comm, const hawser_net_config_t *config, hawser_logger_t log, hawser_net_profiler_t \
                 profiler)",
                8,
                "Once per communicator.",
            ),
            call("devices", ")(int *count)", 16, "0: not usable here; the host takes the next net."),
            call("getProperties", ")(int dev, hawser_net_properties_t *properties)", 24, ""),
            call(
                "listen",
                ")(void *ctx, int dev, void *handle, void **listenComm)",
                32,
                "Writes the handle. Must give an object at once.",
            ),
            call(
                "connect",
                ")(void *ctx, int dev, void *handle, void **sendComm, void **deviceHandle)",
                40,
                "deviceHandle may be NULL.",
            ),
            call("accept", ")(void *listenComm, void **recvComm, void **deviceHandle)", 48, ""),
            call("regMr", ")(void *comm, void *data, size_t bytes, int kind, void **mr)", 56, "May block."),
            call(
                "regMrDmaBuf",
                ")(void *comm, void *data, size_t bytes, int kind, uint64_t offset, int fd, void **mr)",
                64,
                "",
            ),
            call("deregMr", ")(void *comm, void *mr)", 72, ""),
            call(
                "isend",
                ")(void *sendComm, void *data, size_t bytes, int tag, void *mr, void *profile, void **request)",
                80,
                "The tag picks a buffer inside a grouped receive.",
            ),
            call(
                "irecv",
                ")(void *recvComm, int n, void **data, size_t *bytes, int *tags, void **mrs, void **profiles, void **request)",
                88,
                "n receives that are one request. A buffer may be longer than what is sent, never shorter. *request may \
                 be 1 on entry: the caller sees by itself that the data are there, and the request may be over early.",
            ),
            call(
                "iflush",
                ")(void *recvComm, int n, void **data, int *bytes, void **mrs, void **request)",
                96,
                "Makes received data visible to the GPU.",
            ),
            call(
                "test",
                ")(void *request, int *done, int *bytes)",
                104,
                "Until done is 1; then the request is dead. bytes may be NULL, or has an entry per receive.",
            ),
            call("closeSend", ")(void *sendComm)", 112, ""),
            call("closeRecv", ")(void *recvComm)", 120, ""),
            call("closeListen", ")(void *listenComm)", 128, ""),
            call("getDeviceMr", ")(void *comm, void *mr, void **deviceMr)", 136, ""),
            call("irecvConsumed", ")(void *recvComm, int n, void *request)", 144, ""),
            call("makeVDevice", ")(int *dev, hawser_net_members_t *members)", 152, "Makes a virtual device."),
            call("finalize", ")(void *ctx)", 160, "The inverse of init."),
            call("setNetAttr", ")(void *ctx, hawser_net_attributes_t *attributes)", 168, ""),
        ],
    }),
    Item::Export("ncclNetPlugin_v12", "hawser_net_v12_t"),
];

pub const COLLNET: &[Item] = &[
    Item::Section(
        "CollNet: ncclCollNetPlugin_v12, in the library of a net",
        "Collectives that the network computes. One connection joins all ranks; requests are those of a net.",
    ),
    Item::Struct(Struct {
        name: "hawser_part_t",
        text: "A part of a buffer.",
        size: 24,
        fields: &[
            field("void *", "mr", "", 0, ""),
            field("void *", "address", "", 8, ""),
            field("size_t", "bytes", "", 16, ""),
        ],
    }),
    Item::Struct(Struct {
        name: "hawser_collnet_v12_t",
        text: "If devices gives 0, everything behind it may be NULL.",
        size: 152,
        fields: &[
            field("const char *", "name", "", 0, ""),
            call("init", ")(void **ctx, uint64_t comm, hawser_logger_t log)", 8, ""),
            call("devices", ")(int *count)", 16, ""),
            call("getProperties", ")(int dev, hawser_net_properties_t *properties)", 24, ""),
            call("listen", ")(void *ctx, int dev, void *handle, void **listenComm)", 32, ""),
            call(
                "connect",
                ")(void *handles[], int nranks, int rank, void *listenComm, void **collComm)",
                40,
                "Joins the ranks; may block until all of them call it.",
            ),
            call("reduceSupport", ")(int type, int op, int *supported)", 48, ""),
            call("regMr", ")(void *collComm, void *data, size_t bytes, int kind, void **mr)", 56, ""),
            call(
                "regMrDmaBuf",
                ")(void *collComm, void *data, size_t bytes, int kind, uint64_t offset, int fd, void **mr)",
                64,
                "",
            ),
            call("deregMr", ")(void *collComm, void *mr)", 72, ""),
            call(
                "iallreduce",
                ")(void *collComm, void *send, void *recv, size_t count, int type, int op, void *sendMr, void *recvMr, void \
                 **request)",
                80,
                "",
            ),
            call(
                "iallgather",
                ")(void *collComm, void *send, int nParts, hawser_part_t *recvParts, size_t bytesPerRank, size_t windowOffset, \
                 size_t windowBytes, void *sendMr, void **request)",
                88,
                "The window says which bytes of the whole this call is about.",
            ),
            call(
                "ireducescatter",
                ")(void *collComm, int nParts, hawser_part_t *sendParts, void *recv, size_t bytesPerRank, size_t \
                 windowOffset, size_t windowBytes, int type, int op, void *recvMr, void **request)",
                96,
                "",
            ),
            call("iflush", ")(void *collComm, void *data, int bytes, void *mr, void **request)", 104, ""),
            call("test", ")(void *request, int *done, int *bytes)", 112, ""),
            call("closeColl", ")(void *collComm)", 120, ""),
            call("closeListen", ")(void *listenComm)", 128, ""),
            call("makeVDevice", ")(int *dev, hawser_net_members_t *members)", 136, "May be NULL."),
            call("finalize", ")(void *ctx)", 144, ""),
        ],
    }),
    Item::Export("ncclCollNetPlugin_v12", "hawser_collnet_v12_t"),
];

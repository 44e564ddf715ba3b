// The image that a launch reads: the C twin of kernels/abi/src/interpreter.rs, which documents every
// field. Sizes and offsets are pinned on both sides. Usable from host C++ as well.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr int HAWSER_MAX_BLOCKS = 64;
constexpr int HAWSER_MAX_WORKS = 20;
constexpr int HAWSER_INLINE_STEPS = 24;
constexpr int HAWSER_MAX_FAN = 8;
constexpr uint16_t HAWSER_NO_DEP = 0xffff;

// HawserStep::flags
constexpr uint32_t HAWSER_HAS_SRC = 1;
constexpr uint32_t HAWSER_HAS_DST = 2;
constexpr uint32_t HAWSER_ACC_DST = 4;
constexpr uint32_t HAWSER_PRE = 8;
constexpr uint32_t HAWSER_POST = 16;
constexpr uint32_t HAWSER_SIGNAL = 32;

// HawserStep::src_buf and dst_buf: input 0, output 1, and
constexpr uint32_t HAWSER_SCRATCH = 2;

// Protocol numbers: indices into slot_bytes, counters and so on.
constexpr int HAWSER_LL = 0;
constexpr int HAWSER_LL128 = 1;
constexpr int HAWSER_SIMPLE = 2;

// The word at HawserDevComm::abort: 0, "leave", or "whoever waits for rank p says so and goes on waiting" (HAWSER_ASK + p).
constexpr uint32_t HAWSER_LEAVE = 1;
constexpr uint32_t HAWSER_ASK = 1u << 31;

// HawserReport::code and HawserReport::what
constexpr uint32_t HAWSER_ABORTED = 1;
constexpr uint32_t HAWSER_DEADLINE = 2;
constexpr uint32_t HAWSER_REPORTING = 3; // the rest is being written
constexpr uint32_t HAWSER_WAITING = 4;   // the answer to HAWSER_ASK
constexpr uint32_t HAWSER_WAIT_RECV = 0;
constexpr uint32_t HAWSER_WAIT_SEND = 1;
constexpr uint32_t HAWSER_WAIT_CHANNEL = 2;

struct HawserStep {
    uint8_t flags;
    uint8_t n_recv;
    uint8_t n_send;
    uint8_t order;
    uint8_t src_buf;
    uint8_t dst_buf;
    uint16_t after_channel;
    uint16_t after_step;
    uint16_t pad;
    uint32_t src_chunk;
    uint32_t dst_chunk;
    uint32_t times;
    int32_t stride;
    uint32_t pad2;
    uint16_t recv[HAWSER_MAX_FAN];
    uint16_t send[HAWSER_MAX_FAN];
};

struct HawserBlock {
    uint16_t first_step;
    uint8_t n_steps;
    uint8_t lane;
    uint16_t instance;
    uint8_t work;
    uint8_t channel;
};

struct HawserWork {
    uint64_t base[3];
    uint64_t count;
    uint64_t chunk;
    uint64_t instance;
    uint32_t tile;
    uint32_t tiles;
    uint32_t per_block;
    uint32_t chunks[3];
    uint32_t slices; // tiles that every repetition of a step moves before the next one starts
    uint32_t tag; // added to the bytes told of every slot: type and operation
    uint64_t landing; // of a message that may land: where the sender finds the receiver's buffer, 0 = nowhere; where sent: 1 = wait for it
};

// What a block would have to look up before it can begin.
struct HawserEntry {
    uint64_t conns;
    uint64_t counters; // of connection i at + i * HAWSER_COUNTER_BYTES
    uint64_t deps; // 0 = no channel waits for another
    uint32_t columns;
    uint32_t fifo_offset; // of the launch's protocol
};
constexpr uint64_t HAWSER_COUNTER_BYTES = 64;

// Behind a credit: the landing of a message, then its state and number. Behind a tail: the number of the message that has begun.
constexpr uint64_t HAWSER_LANDING_AT = 16;
constexpr uint64_t HAWSER_BEGUN_AT = 16;

// Where the words of LL lie whose peer is on another host, and where their bytes are told, from the tails of a connection's end on.
constexpr uint64_t HAWSER_FAR_TOLD = 4096;
constexpr uint64_t HAWSER_FAR_WORDS = HAWSER_FAR_TOLD + 8192;

struct HawserArgs {
    uint64_t comm;
    uint64_t steps;
    uint64_t scalar;
    uint32_t divisor;
    uint8_t scalar_is_address;
    uint8_t protocol;
    uint8_t n_blocks;
    uint8_t n_inline;
    uint64_t op_number;
    uint64_t done; // counter of blocks that are over; 0 = nobody counts
    HawserEntry entry;
    HawserBlock blocks[HAWSER_MAX_BLOCKS];
    HawserWork works[HAWSER_MAX_WORKS];
    HawserStep inline_steps[HAWSER_INLINE_STEPS];
};

struct HawserConn {
    uint64_t send_fifo;
    uint64_t send_tail;
    uint64_t send_credit;
    uint64_t recv_fifo;
    uint64_t recv_tail;
    uint64_t recv_credit;
    uint64_t counters;
    uint64_t send_bytes; // u32[depth]: bytes of each slot that we send; 0 = the peer is on this host, and nobody asks
};

struct HawserDevComm {
    uint32_t rank;
    uint32_t ranks;
    uint32_t lanes;
    uint32_t depth;
    uint32_t slot_bytes[3];
    uint32_t slot_stride[3];
    uint32_t fifo_offset[3];
    uint32_t pad;
    uint64_t conns;
    uint64_t abort;
    uint64_t report;
    uint64_t deadline_ns;
    uint64_t deps;
};

struct HawserReport {
    uint32_t code;
    uint32_t block;
    uint32_t step;
    uint32_t peer;
    uint32_t what;
    uint32_t tile;
    uint64_t op_number;
};

// The area at HawserDevComm::deps.
struct HawserDeps {
    uint32_t epoch;
    uint32_t done;
    uint64_t progress[HAWSER_MAX_BLOCKS];
};

// What a kernel of one or two exchanges reads: kernels/abi/src/fused.rs documents every field.
constexpr int HAWSER_EXCHANGE_RANKS = 8;
constexpr uint32_t HAWSER_WORD_SLOT = 8192; // a word of 16 bytes for each of 512 threads
constexpr uint32_t HAWSER_LINE_SLOT = 4096; // eight rows of four lines
constexpr uint32_t HAWSER_TILE_SLOT = 8192; // of eight ranks
constexpr uint32_t HAWSER_UNIT_FLAGS = 32; // bytes of a warp's flags: one of 4 bytes for each rank
constexpr uint32_t HAWSER_COUNT_BYTES = 8; // what a block or warp keeps from launch to launch: epoch, ranks whose flags are owed
constexpr uint32_t HAWSER_TILE_UNITS = 704; // warps that have such flags; behind them lie the lines of zero_copy
constexpr uint32_t HAWSER_DIRECT_BLOCKS = 44;
constexpr uint32_t HAWSER_DIRECT_LINE = 32;     // read address, write address, state and epoch; for block, parity and rank
constexpr uint32_t HAWSER_BULK_SHARED = 196608; // bytes of shared memory that launches ask for which combine by bulk copies

// HawserExchange::direct
constexpr uint32_t HAWSER_DIRECT_TRY = 1;   // zero_copy
constexpr uint32_t HAWSER_DIRECT_READY = 2; // peers reach this rank's buffers
constexpr uint32_t HAWSER_DIRECT_PULL = 4;  // data are read by those who get them

// HawserExchange::form
constexpr uint32_t HAWSER_FOLD = 1;    // what comes first is combined into one value
constexpr uint32_t HAWSER_OWN = 2;     // src[0] is an operand too
constexpr uint32_t HAWSER_SECOND = 4;  // the value goes on in a second exchange
constexpr uint32_t HAWSER_SAME = 8;    // all of src are equal
constexpr uint32_t HAWSER_SCALE = 16;  // src is multiplied by the scalar on reading
constexpr uint32_t HAWSER_DIVIDE = 32; // the value is divided by the divisor
constexpr uint32_t HAWSER_ALIGNED = 64; // all of src and dst are multiples of 16
constexpr uint32_t HAWSER_EIGHTS = 128; // all of len are multiples of 8

// HawserExchange::order
constexpr uint32_t HAWSER_NESTED = 1; // operands are combined along the balanced tree over ranks, else in their order

struct HawserExchange {
    uint64_t to[HAWSER_EXCHANGE_RANKS];
    uint64_t src[HAWSER_EXCHANGE_RANKS];
    uint64_t src_len[HAWSER_EXCHANGE_RANKS];
    uint64_t dst[HAWSER_EXCHANGE_RANKS];
    uint64_t len[HAWSER_EXCHANGE_RANKS];
    uint64_t mine;
    uint64_t comm;
    uint64_t epochs;
    uint64_t scalar;
    uint64_t op_number;
    uint64_t done;
    uint64_t most;
    uint64_t least;
    uint64_t src_seen;
    uint64_t dst_seen;
    uint32_t divisor;
    uint32_t tile;
    uint32_t flags_at;
    uint8_t rank;
    uint8_t ranks;
    uint8_t form;
    uint8_t scalar_is_address;
    uint8_t send1;
    uint8_t recv1;
    uint8_t keep;
    uint8_t send2;
    uint8_t recv2;
    uint8_t order;
    uint8_t direct;
    uint8_t pad[1];
};

// What a kernel of several exchanges reads: kernels/abi/src/fused.rs documents every field.
constexpr int HAWSER_BUNDLE_OPS = 64;
constexpr int HAWSER_BUNDLE_BLOCKS = 32;

// HawserBundleOp::shape
constexpr uint32_t HAWSER_SPREAD_SRC = 1; // what is sent to rank p is part p of the input
constexpr uint32_t HAWSER_SPREAD_DST = 2; // what belongs to rank p is part p of the output
constexpr uint32_t HAWSER_CUT = 4;        // input and output are cut into the parts

struct HawserBundleOp {
    uint64_t input;
    uint64_t output;
    uint64_t scalar;
    uint64_t op_number;
    uint32_t part;
    uint32_t total;
    uint8_t form;
    uint8_t scalar_is_address;
    uint8_t send1;
    uint8_t recv1;
    uint8_t keep;
    uint8_t send2;
    uint8_t recv2;
    uint8_t order;
    uint8_t has_dst;
    uint8_t shape;
    uint8_t skipped;
    uint8_t first;
    uint8_t pad[4];
};

struct HawserBundle {
    uint64_t to[HAWSER_EXCHANGE_RANKS];
    uint64_t todo[HAWSER_BUNDLE_BLOCKS];
    uint64_t mine;
    uint64_t comm;
    uint64_t epochs;
    uint64_t done;
    uint8_t rank;
    uint8_t ranks;
    uint8_t first;
    uint8_t n_ops;
    uint8_t pad[4];
    HawserBundleOp ops[HAWSER_BUNDLE_OPS];
};

// What a kernel reads that combines what copy engines moved: kernels/abi/src/reduce.rs documents every field.
constexpr int HAWSER_FOLD_OPERANDS = HAWSER_MAX_FAN + 1;
constexpr int HAWSER_FOLD_THREADS = 544;

// HawserFold::form
constexpr uint32_t HAWSER_FOLD_SCALE = 1;  // operands are multiplied by the scalar on reading
constexpr uint32_t HAWSER_FOLD_DIVIDE = 2; // the value is divided by the divisor

// HawserFold::adds: what memory adds
constexpr uint32_t HAWSER_ADDS_F16 = 1;
constexpr uint32_t HAWSER_ADDS_BF16 = 2;
constexpr uint32_t HAWSER_ADDS_F32 = 3;
constexpr uint32_t HAWSER_ADDS_F64 = 4;
constexpr uint32_t HAWSER_ADDS_U32 = 5;
constexpr uint32_t HAWSER_ADDS_U64 = 6;
constexpr uint32_t HAWSER_ADD_SHARED = 4608; // bytes of shared memory of the kernel that lets memory add

struct HawserFold {
    uint64_t from[HAWSER_FOLD_OPERANDS];
    uint64_t to;
    uint64_t bytes;
    uint64_t scalar;
    uint32_t divisor;
    uint8_t n;
    uint8_t form;
    uint8_t adds;
    uint8_t pad;
};

static_assert(sizeof(HawserFold) == 104 && offsetof(HawserFold, to) == 72, "");
static_assert(offsetof(HawserFold, divisor) == 96 && offsetof(HawserFold, form) == 101, "");
static_assert(sizeof(HawserBundleOp) == 56 && offsetof(HawserBundleOp, part) == 32 && offsetof(HawserBundleOp, first) == 51, "");
static_assert(sizeof(HawserBundle) == 3944 && offsetof(HawserBundle, mine) == 320, "");
static_assert(offsetof(HawserBundle, rank) == 352 && offsetof(HawserBundle, ops) == 360, "");
static_assert(sizeof(HawserExchange) == 424 && offsetof(HawserExchange, mine) == 320, "");
static_assert(offsetof(HawserExchange, divisor) == 400 && offsetof(HawserExchange, direct) == 422, "");
static_assert(sizeof(HawserStep) == 64 && offsetof(HawserStep, src_chunk) == 12 && offsetof(HawserStep, recv) == 32, "");
static_assert(sizeof(HawserBlock) == 8, "");
static_assert(sizeof(HawserWork) == 88 && offsetof(HawserWork, tile) == 48 && offsetof(HawserWork, landing) == 80, "");
static_assert(sizeof(HawserConn) == 64 && offsetof(HawserConn, counters) == 48, "");
static_assert(sizeof(HawserEntry) == 32 && offsetof(HawserEntry, deps) == 16 && offsetof(HawserEntry, fifo_offset) == 28, "");
static_assert(sizeof(HawserDevComm) == 96 && offsetof(HawserDevComm, conns) == 56, "");
static_assert(sizeof(HawserReport) == 32, "");
static_assert(sizeof(HawserDeps) == 8 + 8 * HAWSER_MAX_BLOCKS, "");
static_assert(offsetof(HawserArgs, op_number) == 32 && offsetof(HawserArgs, entry) == 48 && offsetof(HawserArgs, blocks) == 80, "");
static_assert(offsetof(HawserArgs, works) == 592, "");
static_assert(offsetof(HawserArgs, inline_steps) == 592 + 88 * HAWSER_MAX_WORKS, "");
static_assert(sizeof(HawserArgs) <= 4096, "");

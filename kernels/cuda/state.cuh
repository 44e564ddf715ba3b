// What the warps of a block share. README.md tells who writes and reads what, and when.
#pragma once

#include "memory.cuh"
#include "plan.h"

namespace hawser {

#ifndef HAWSER_MAX_CONNS
#define HAWSER_MAX_CONNS 64
#endif
constexpr u32 MAX_CONNS = HAWSER_MAX_CONNS;       // connections kept in shared memory (a power of two)
constexpr u32 FREE = 0xffffffff;    // key of a free entry
constexpr u32 NONE = 255;           // no such operand
constexpr u32 STAGES = 4;           // records of steps under way
constexpr u32 NEVER = 0xffffffff;   // nobody has given up
constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffff;

// Named barriers, two of each by parity of the turn.
constexpr u32 START = 1;   // control warps -> workers: the record of the turn is ready
constexpr u32 MOVED = 3;   // workers -> publishing warp: data of the turn are written and read
constexpr u32 FREED = 5;   // workers -> preparing warp: the same

// One connection: addresses for the protocol of the launch, and counters.
struct Link {
    u64 send_fifo, send_tail, send_credit;
    u64 recv_fifo, recv_tail, recv_credit;
    u64 counters;
    u64 sent, taken;
    u64 seen[2]; // tail, credit: by WAIT_RECV, WAIT_SEND
    u64 send_bytes; // where the bytes of sent slots are told, or 0
};

struct Target {
    u64 address;
    u64 flag; // slot number + 1
};

// One turn: one repetition of one step for one tile.
struct Record {
    Target out[HAWSER_MAX_FAN + 1]; // Simple: [local destination,] slots; else slots only
    Target in[HAWSER_MAX_FAN + 2];  // Simple, LL128: operands in order; LL: the slots of recv
    u64 src, dst;                   // local addresses
    Target credit[HAWSER_MAX_FAN];  // where to publish that the slot of recv[i] has been read
    Target tail[HAWSER_MAX_FAN];    // where to publish that the slot of send[i] has been written
    u64 progress;                   // for other channels; 0 = nobody waits
    i32 bytes;                      // nominal
    i32 src_valid, dst_valid;       // bytes that exist
    u32 fast_packs;                 // Simple: packs that need no care at ends and odd addresses
    u32 step, tile;
    uint16_t recv_peer[HAWSER_MAX_FAN];
    uint8_t flags, n_in, n_out, n_recv, n_send, order;
    uint8_t src_at, dst_at; // positions of the local operands among all operands, or NONE
    bool plain;             // the value is the only operand, bit by bit
};

struct Shared {
    HawserDevComm comm;
    HawserEntry entry;
    HawserBlock block;
    HawserWork work;
    HawserStep step;                    // the current one
    HawserStep inline_steps[HAWSER_INLINE_STEPS];
    HawserBlock blocks[HAWSER_MAX_BLOCKS];
    u32 keys[MAX_CONNS];                // rank of the peer, or FREE
    Link links[MAX_CONNS + 2 * HAWSER_MAX_FAN]; // by key; then peers of this turn that found no place, by lane
    Record records[STAGES];
    u64 steps;                          // address, or 0: inline
    u64 op_number;
    u32 n_blocks;
    u32 turns;                          // of the whole launch
    u32 epoch;
    u32 given_up;                       // turn at whose start all leave, or NEVER
    u32 landing_state;                  // of a message without staging: landing.cuh
    u64 landing;
};

// One block's. Named directly everywhere: references would turn into generic addresses. Not static, as nothing in shared memory is:
// names of internal linkage hold a number made of the file's path, and builds in two folders would differ.
#ifndef HAWSER_EMULATED
__shared__ Shared sh;
#endif

} // namespace hawser

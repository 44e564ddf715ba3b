//! The image that an interpreter reads: what its kernels and the host device run.
//!
//! Every type is `repr(C)` and has a twin in `kernels/cuda/plan.h`; the assertions at the end pin
//! sizes and offsets, the header pins the same numbers. All addresses are device addresses.

use std::mem::{offset_of, size_of};

use hawser_types::DataType;

use crate::key::DeviceOp;

/// Most peers of one step in each direction.
pub const MAX_FAN: usize = 8;
/// Blocks (CTAs) of one launch at most.
pub const MAX_BLOCKS: usize = 64;
/// Works of one launch at most.
pub const MAX_WORKS: usize = 20;
/// Steps that travel inside the launch arguments; longer programs live in device memory.
pub const INLINE_STEPS: usize = 24;

/// Step flag: there is a local operand (`src_buf`, `src_chunk`).
pub const HAS_SRC: u8 = 1;
/// Step flag: the value is kept (`dst_buf`, `dst_chunk`).
pub const HAS_DST: u8 = 2;
/// Step flag: the destination is an operand too (local reduce: `dst = dst ⊕ src`).
pub const ACC_DST: u8 = 4;
/// Step flag: multiply the local operand by the scalar on reading (pre-multiplied sum).
pub const PRE: u8 = 8;
/// Step flag: divide the value by the number of ranks (integer average).
pub const POST: u8 = 16;
/// Step flag: some step of another channel waits for this one: publish it.
pub const SIGNAL: u8 = 32;

/// `Step::after_channel` when there is nothing to wait for.
pub const NO_DEP: u16 = 0xffff;

/// One lowered step (64 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Step {
    /// `HAS_SRC` … `SIGNAL`.
    pub flags: u8,
    /// Number of peers in `recv`.
    pub n_recv: u8,
    /// Number of peers in `send`.
    pub n_send: u8,
    /// Position of the local operand among the operands: operands are recv[0..order], local, recv[order..].
    pub order: u8,
    /// The buffer of the local operand: 0 input, 1 output, 2 scratch.
    pub src_buf: u8,
    /// The buffer of the destination, likewise.
    pub dst_buf: u8,
    /// Channel to wait for, or `NO_DEP`.
    pub after_channel: u16,
    /// Step of that channel.
    pub after_step: u16,
    /// The padding, which is zero.
    pub pad: u16,
    /// Chunk of the local operand in repetition 0.
    pub src_chunk: u32,
    /// Chunk of the destination in repetition 0.
    pub dst_chunk: u32,
    /// Repetitions (at least 1).
    pub times: u32,
    /// Chunks added per repetition, modulo the chunks of the buffer.
    pub stride: i32,
    /// The padding, which is zero.
    pub pad2: u32,
    /// Ranks to receive from.
    pub recv: [u16; MAX_FAN],
    /// Ranks to send to.
    pub send: [u16; MAX_FAN],
}

/// The steps, the data and the FIFOs that a block uses (8 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Block {
    /// First step of its channel.
    pub first_step: u16,
    /// Steps of its channel.
    pub n_steps: u8,
    /// FIFO lane.
    pub lane: u8,
    /// The number of the instance of the program: it takes elements `[instance * instance_elems,
    /// +instance_elems)` of every chunk.
    pub instance: u16,
    /// Index into `works`.
    pub work: u8,
    /// Channel of the program (for dependencies).
    pub channel: u8,
}

/// The places of the data (88 bytes).
///
/// Chunk `c` of a buffer: block `b = c / per_block`, `j = c % per_block`; elements
/// `[b * count + j * chunk, min(b * count + (j + 1) * chunk, (b + 1) * count))`, which may be empty.
/// Instance `i` takes `[i * instance, (i + 1) * instance)` of the nominal chunk, tile `t` of it
/// `[t * tile, min((t + 1) * tile, instance))`. **Transfers have the nominal length**: reads past
/// the real end of a chunk give anything, writes past it are dropped, so sender and receiver
/// always agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Work {
    /// Addresses of input, output, scratch (scratch blocks are `chunk * scratch chunks` long:
    /// `count = per_block * chunk`).
    pub base: [u64; 3],
    /// Elements per block.
    pub count: u64,
    /// Nominal elements per chunk; a multiple of a 16-byte pack unless the block is a single chunk.
    pub chunk: u64,
    /// Nominal elements per chunk and instance; a multiple of a 16-byte pack.
    pub instance: u64,
    /// Elements per tile, at most a slot; a multiple of a 16-byte pack.
    pub tile: u32,
    /// Tiles per instance: `ceil(instance / tile)`; 0 when there is nothing to do.
    pub tiles: u32,
    /// Chunks per block.
    pub per_block: u32,
    /// Chunks of input, output, scratch (the modulus of strides).
    pub chunks: [u32; 3],
    /// Tiles that every repetition of a step moves before the next one starts: while one is on the wire,
    /// the next is being written. `slices` times the slots that the program needs is at most the depth.
    pub slices: u32,
    /// Added to the bytes told in `Conn::send_bytes`: [`tag`] of the type and the operation, for networks
    /// that reduce.
    pub tag: u32,
    /// Of a message that goes by [`hawser_types::Route::LANDING`]. Where it is received: the address at which
    /// the sender finds the buffer, a multiple of 16; 0 if it finds it nowhere, so that data go through the
    /// FIFO. Where it is sent: 1 to wait for such an address, 0 to use the FIFO whatever it is.
    pub landing: u64,
}

/// Bits of a told size that are bytes; the type and the operation are above.
pub const TAG_SHIFT: u32 = 24;

/// Type (NCCL's number) and reduction (sum, product, maximum, minimum: 0 to 3) of a slot's elements, above
/// its bytes.
pub fn tag(dtype: DataType, op: DeviceOp) -> u32 {
    let op = match op {
        DeviceOp::Copy | DeviceOp::Sum | DeviceOp::PreMulSum | DeviceOp::SumDiv => 0,
        DeviceOp::Prod => 1,
        DeviceOp::Max => 2,
        DeviceOp::Min => 3,
    };
    (dtype as u32 | op << 4) << TAG_SHIFT
}

/// The place of a block in its work: tiles in groups of `slices`, for each group every step, for each step
/// every repetition, for each repetition the tiles of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The number of the tile.
    pub tile: u32,
    /// Step of the channel.
    pub step: u32,
    /// Repetition of the step.
    pub repetition: u32,
}

impl Place {
    /// Moves on; `tile >= work.tiles` afterwards means that the block is over.
    pub fn advance(&mut self, work: &Work, times: u32, n_steps: u32) {
        let slices = work.slices.max(1);
        let first = self.tile / slices * slices;
        self.tile += 1;
        if self.tile < (first + slices).min(work.tiles) {
            return;
        }
        (self.tile, self.repetition) = (first, self.repetition + 1);
        if self.repetition >= times {
            (self.repetition, self.step) = (0, self.step + 1);
        }
        if self.step >= n_steps {
            (self.step, self.tile) = (0, first + slices);
        }
    }
}

/// The elements of one tile of one repetition of a step.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// First element of the tile within its chunk.
    first: u64,
    /// Elements that travel.
    pub nominal: usize,
    repetition: u32,
    stride: i32,
    /// Bytes of an element.
    pub size: usize,
}

impl Span {
    /// For a block's instance at a place, with elements of `size` bytes.
    pub fn new(work: &Work, instance: u16, at: Place, step: &Step, size: usize) -> Self {
        let within = u64::from(at.tile) * u64::from(work.tile);
        let nominal = u64::from(work.tile).min(work.instance - within) as usize;
        let first = u64::from(instance) * work.instance + within;
        Self { first, nominal, repetition: at.repetition, stride: step.stride, size }
    }

    /// All tiles of a repetition of a step as one.
    pub fn whole(work: &Work, instance: u16, repetition: u32, step: &Step, size: usize) -> Self {
        let first = u64::from(instance) * work.instance;
        Self { first, nominal: work.instance as usize, repetition, stride: step.stride, size }
    }

    /// Address and number of real elements of the tile in a chunk of a buffer (0 past the chunk's end).
    pub fn local(&self, work: &Work, buf: u8, chunk: u32) -> (u64, usize) {
        let buf = usize::from(buf).min(2);
        let moved = i64::from(chunk) + i64::from(self.repetition) * i64::from(self.stride);
        let chunk = moved.rem_euclid(i64::from(work.chunks[buf].max(1))) as u64;
        let count = if buf == 2 { u64::from(work.per_block) * work.chunk } else { work.count };
        let (block, j) = (chunk / u64::from(work.per_block), chunk % u64::from(work.per_block));
        let start = j * work.chunk;
        let end = (start + work.chunk).min(count);
        let from = start + self.first;
        let len = end.saturating_sub(from).min(self.nominal as u64) as usize;
        (work.base[buf] + (block * count + from) * self.size as u64, len)
    }
}

/// Arguments of one launch, passed by value (4,096 bytes at most).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Args {
    /// Address of the rank's [`DevComm`].
    pub comm: u64,
    /// Address of the steps in device memory; 0 = `inline_steps`.
    pub steps: u64,
    /// Factor for `PRE`: f32 bits (half, float, bfloat16, fp8), f64 bits (double) or integer; an address if
    /// `scalar_is_address`.
    pub scalar: u64,
    /// Divisor for `POST`.
    pub divisor: u32,
    /// 1 when `scalar` is the address of one element of the data type.
    pub scalar_is_address: u8,
    /// The number of the protocol.
    pub protocol: u8,
    /// Blocks in use (the grid size).
    pub n_blocks: u8,
    /// Steps in `inline_steps`.
    pub n_inline: u8,
    /// Operation number of the communicator, for error records and traces.
    pub op_number: u64,
    /// Address of a `u32` to which every block adds 1 at its end; 0 = none.
    pub done: u64,
    /// The place where kernels begin; other executors look it up.
    pub entry: Entry,
    /// One entry per block.
    pub blocks: [Block; MAX_BLOCKS],
    /// One entry per piece of work.
    pub works: [Work; MAX_WORKS],
    /// Short programs travel here.
    pub inline_steps: [Step; INLINE_STEPS],
}

/// The addresses that a kernel would have to look up in [`DevComm`] and the `Conn` table before it can begin:
/// each look takes 0.7 µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Entry {
    /// As [`DevComm::conns`].
    pub conns: u64,
    /// Address of the counters of all entries of that table, [`COUNTER_BYTES`] each ([`Conn::counters`]).
    pub counters: u64,
    /// As [`DevComm::deps`]; 0 = no channel waits for another, so blocks need not agree on an epoch.
    pub deps: u64,
    /// As [`DevComm::ranks`].
    pub columns: u32,
    /// As [`DevComm::fifo_offset`], of the launch's protocol.
    pub fifo_offset: u32,
}

/// Bytes of a connection's private counters: `sent[3]`, `taken[3]`, and of 4 bytes each the low halves of the
/// credits that a sending block saw last; padded to a cache line.
pub const COUNTER_BYTES: u64 = 64;

/// Bytes from the tails of a connection's end to where the bytes of LL's slots are told, if its peer is on
/// another host.
pub const FAR_TOLD: u64 = 4096;
/// Bytes from those tails to LL's slots: behind what is told of 1,024 slots.
pub const FAR_WORDS: u64 = FAR_TOLD + 8192;

/// A FIFO end as the kernel sees it (64 bytes). `Conn` tables are indexed `[lane * columns + peer]`.
///
/// Rules of a FIFO (per protocol `p`, slots of `slot_bytes[p]`, `depth` slots):
/// 1. The sender owns `sent`, the receiver `taken`; both count slots from 0 and persist between launches.
/// 2. Slot `s` lies at `fifo + (s % depth) * stride`. The sender may write it when `credit >= s + 1 - depth`.
/// 3. Simple: the sender writes data, then publishes `tail = s + 1` (release); the receiver waits for
///    `tail >= s + 1` (acquire).
/// 4. LL and LL128: every word or line carries the flag `(u32 or u64)(s + 1)`; there is no tail.
/// 5. The receiver has read a slot, then publishes `credit = s + 1` (release) at the sender.
/// 6. Where `send_bytes` is not 0, the peer is on another host, and the sender tells the bytes that it puts
///    into slot `s`, with the work's tag added: who carries slots over a network need not know the program.
///    Simple: in `send_bytes[s % depth]`, before it publishes the tail. LL: in the low half of the `u64` at
///    `send_tail + FAR_TOLD + 8 * (s % depth)`, with the flag of rule 4 in the high half, at any time:
///    whoever reads it waits for the flags of all words. LL's slots lie [`FAR_WORDS`] behind `send_tail` and
///    `recv_tail` there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Conn {
    /// Start of the peer's FIFO memory for what we send (mapped here); protocol `p` at `+ fifo_offset[p]`.
    pub send_fifo: u64,
    /// Peer's tail counters for what we send: `u64[3]`, one per 64 bytes, in protocol order.
    pub send_tail: u64,
    /// Our credit counters, written by the peer: `u64[3]`, one per 64 bytes.
    pub send_credit: u64,
    /// Start of our FIFO memory for what the peer sends.
    pub recv_fifo: u64,
    /// Our tail counters, written by the peer.
    pub recv_tail: u64,
    /// Peer's credit counters, written by us.
    pub recv_credit: u64,
    /// Local persistent counters ([`COUNTER_BYTES`]): `u64 sent[3]`, `u64 taken[3]`, private to the block
    /// that uses the lane.
    pub counters: u64,
    /// Address of `u32[depth]` for the bytes of each slot that we send; 0 = the peer is on this host, and
    /// nobody asks.
    pub send_bytes: u64,
}

/// The facts that a kernel must know of its communicator, in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct DevComm {
    /// This rank.
    pub rank: u32,
    /// Columns of the `Conn` table: the ranks, and the network.
    pub ranks: u32,
    /// Lanes per peer.
    pub lanes: u32,
    /// Slots per FIFO.
    pub depth: u32,
    /// Payload bytes per slot by protocol.
    pub slot_bytes: [u32; 3],
    /// Bytes from slot to slot by protocol (LL: twice the payload; LL128: 128 per 120).
    pub slot_stride: [u32; 3],
    /// Offset of each protocol's FIFO from `send_fifo` / `recv_fifo`.
    pub fifo_offset: [u32; 3],
    /// The padding, which is zero.
    pub pad: u32,
    /// Address of the `Conn` table.
    pub conns: u64,
    /// Address of a host-mapped `u32` with a value of [`abort_word`].
    pub abort: u64,
    /// Address of two host-mapped [`Report`]s: the first block that gives up writes the first one, and a
    /// block that waits for the rank that the host asks about writes the second one.
    pub report: u64,
    /// Nanoseconds that a wait may last; 0 = for ever.
    pub deadline_ns: u64,
    /// Address of the dependency area: `u32 epoch, u32 done, u64 progress[MAX_BLOCKS]`.
    pub deps: u64,
}

/// Values of the abort word, which every wait of a launch reads now and then; 0 means nothing.
pub mod abort_word {
    /// All leave at once.
    pub const LEAVE: u32 = 1;
    /// With a rank added: a block that waits for that rank says so
    /// ([`Report::WAITING`](super::Report::WAITING)), and goes on waiting.
    pub const ASK: u32 = 1 << 31;
}

/// The report of a block that gave up or waits, in host memory (32 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Report {
    /// 0 = nothing, 1 = aborted, 2 = deadline, 3 = the rest is being written, 4 = the block waits.
    pub code: u32,
    /// The number of the block.
    pub block: u32,
    /// Step of the block's channel.
    pub step: u32,
    /// Peer that was awaited.
    pub peer: u32,
    /// 0 = waited to receive, 1 = waited to send, 2 = waited for another channel.
    pub what: u32,
    /// The number of the tile.
    pub tile: u32,
    /// Operation number.
    pub op_number: u64,
}

impl Report {
    /// `code` while the rest is being written.
    pub const BEING_WRITTEN: u32 = 3;
    /// `code` of the answer to [`abort_word::ASK`].
    pub const WAITING: u32 = 4;
}

impl Default for Args {
    fn default() -> Self {
        Self {
            comm: 0,
            steps: 0,
            scalar: 0,
            divisor: 1,
            scalar_is_address: 0,
            protocol: 0,
            n_blocks: 0,
            n_inline: 0,
            op_number: 0,
            done: 0,
            entry: Entry::default(),
            blocks: [Block::default(); MAX_BLOCKS],
            works: [Work::default(); MAX_WORKS],
            inline_steps: [Step::default(); INLINE_STEPS],
        }
    }
}

const _: () = {
    assert!(size_of::<Step>() == 64 && offset_of!(Step, src_chunk) == 12 && offset_of!(Step, recv) == 32);
    assert!(size_of::<Block>() == 8);
    assert!(size_of::<Work>() == 88 && offset_of!(Work, tile) == 48 && offset_of!(Work, landing) == 80);
    assert!(size_of::<Conn>() == 64);
    assert!(
        size_of::<Entry>() == 32 && offset_of!(Entry, deps) == 16 && offset_of!(Entry, fifo_offset) == 28
    );
    assert!(size_of::<DevComm>() == 96 && offset_of!(DevComm, conns) == 56);
    assert!(size_of::<Report>() == 32);
    assert!(offset_of!(Args, op_number) == 32 && offset_of!(Args, entry) == 48);
    assert!(offset_of!(Args, works) == 592 && offset_of!(Args, inline_steps) == 592 + 88 * MAX_WORKS);
    assert!(size_of::<Args>() <= 4096);
};

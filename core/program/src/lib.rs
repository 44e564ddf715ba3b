//! Programs: algorithms as data.
//!
//! A program says for every rank and channel which steps run in which order. Steps move and
//! combine **chunks**. Buffers are cut into blocks of the call's `count` elements (see
//! [`Collective::input_blocks`]) and every block into [`Shape::per_block`] chunks, so chunk `c`
//! lies in block `c / per_block`. Bytes appear only when a program is compiled for one call.
//!
//! Two ranks talk over a FIFO named by (lane, sender, receiver); the lane of a channel is its number unless
//! the program says otherwise. One execution of a step sends or takes one slot per peer. A device runs the
//! whole program once per *tile* (a piece of every chunk that fits into a slot), so a program that is free of
//! deadlock with the device's FIFO depth is so for every size.
//!
//! The crate has a builder ([`build`]), a text form ([`text`]), drawings ([`draw`]), a verifier that proves a
//! program right for all sizes ([`verify`]), the limits of devices ([`limits`]), and the programs that users
//! bring ([`imported`]).
//!
//! ```
//! use hawser_program::build::{input, output, recv, send};
//! use hawser_program::{Program, RankProgram, Shape, build, verify::verify};
//! use hawser_types::Collective;
//!
//! let shape = Shape {
//!     name: "mine".into(),
//!     collective: Collective::Broadcast,
//!     ranks: 2,
//!     root: 0,
//!     per_block: 1,
//!     scratch: 0,
//! };
//! let root = RankProgram::single(vec![build::copy_send(input(0), output(0), vec![1])]);
//! let other = RankProgram::single(vec![recv(0, output(0))]);
//! let program = Program { shape, ranks: vec![root, other] };
//! let verdict = verify(&program, 4, false).unwrap();
//! assert_eq!(verdict.min_depth, 1, "one slot of each FIFO is enough");
//!
//! let mut wrong = program;
//! wrong.ranks[1] = RankProgram::single(vec![send(output(0), vec![0])]);
//! assert!(verify(&wrong, 4, false).is_err());
//! ```

#![forbid(unsafe_code)]

pub mod build;
pub mod draw;
pub mod imported;
pub mod limits;
pub mod text;
pub mod verify;

use hawser_types::Collective;

pub use limits::{MAX_CHANNEL_STEPS, MAX_FAN};

/// The buffers of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Buf {
    /// The user's send buffer.
    Input = 0,
    /// The user's receive buffer.
    Output = 1,
    /// Memory of the communicator, undefined at the start.
    Scratch = 2,
}

/// A chunk of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ref {
    /// The buffer that the chunk is in.
    pub buf: Buf,
    /// The number of the chunk in its buffer.
    pub chunk: u32,
}

/// The operations of steps. `x` is the value that the step computes; operands are combined in the order given
/// by [`Step::order`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// `dst = src`
    Copy,
    /// `dst = dst ⊕ src`
    Reduce,
    /// send `src`
    Send,
    /// `dst = src`, and send it
    CopySend,
    /// `dst = recv` (exactly one peer)
    Recv,
    /// `x = recv` (one peer); send `x`; `dst = x` if there is a `dst`
    RecvCopySend,
    /// `x = recv… ⊕ src`; send `x`
    RecvReduceSend,
    /// `dst = recv… ⊕ src`
    RecvReduceCopy,
    /// `x = recv… ⊕ src`; `dst = x`; send `x`
    RecvReduceCopySend,
    /// A hand-written kernel inside a program. None is offered: fused kernels are protocols of whole programs
    /// (ADR 8).
    Native(u32),
}

impl Op {
    /// True if it combines values.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::Reduce | Self::RecvReduceSend | Self::RecvReduceCopy | Self::RecvReduceCopySend)
    }
}

/// Waits until a step of another channel of the same rank is over (within the same tile).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dep {
    /// Channel of the awaited step.
    pub channel: u32,
    /// Its index there; all its repetitions must be over.
    pub step: u32,
}

/// One step of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The operation of the step.
    pub op: Op,
    /// Ranks from which one slot each is taken.
    pub recv: Vec<u32>,
    /// Ranks to which the value is sent.
    pub send: Vec<u32>,
    /// Local operand.
    pub src: Option<Ref>,
    /// The chunk in which the value is kept.
    pub dst: Option<Ref>,
    /// Position of the local operand among the operands: 0 = before the first peer of `recv`.
    /// Fixes the order of the reduction.
    pub order: u32,
    /// The number of times that the step runs; repetition `i` uses chunk `(chunk + i * stride) mod chunks of
    /// the buffer`.
    pub times: u32,
    /// See `times`.
    pub stride: i32,
    /// The value is complete: the finishing operation (the division of an integer average) is applied here.
    pub finish: bool,
    /// Steps of other channels that must be over first.
    pub after: Vec<Dep>,
}

/// Steps that run one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Channel {
    /// The steps.
    pub steps: Vec<Step>,
}

/// The program of one rank: its channels run side by side.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankProgram {
    /// The channels.
    pub channels: Vec<Channel>,
    /// The lane of each channel, which names its FIFOs; empty = channel `c` has lane `c`. Channels of a rank
    /// that share a lane share no peer.
    pub lanes: Vec<u32>,
    /// The chunks that each channel moves as one: in a channel with a run of 8, chunk 3 of a step is chunks
    /// 24 to 31 of the buffer. Empty = 1 each. Channels without runs then have one tile, and nobody waits for
    /// channels with runs: tiles of a run are not those of its chunks.
    pub runs: Vec<u32>,
}

/// The part of a program that is equal for all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// A name for logs, files and `Why`.
    pub name: String,
    /// The collective that the program computes.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// The root, 0 where there is none.
    pub root: u32,
    /// Chunks per block of `count` elements.
    pub per_block: u32,
    /// Chunks of scratch.
    pub scratch: u32,
}

impl Shape {
    /// Chunks of a buffer.
    pub fn chunks(&self, buf: Buf) -> u32 {
        match buf {
            Buf::Input => self.collective.input_blocks(self.ranks) * self.per_block,
            Buf::Output => self.collective.output_blocks(self.ranks) * self.per_block,
            Buf::Scratch => self.scratch,
        }
    }
}

/// A whole program: all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The part that is equal for all ranks.
    pub shape: Shape,
    /// One entry per rank. Entries after the last rank are networks: they have no buffers and only add up
    /// what they are sent. A rank's own program calls its network "rank `shape.ranks`".
    pub ranks: Vec<RankProgram>,
}

impl RankProgram {
    /// The lane of a channel: its FIFOs are (lane, sender, receiver).
    pub fn lane(&self, channel: u32) -> u32 {
        self.lanes.get(channel as usize).copied().unwrap_or(channel)
    }

    /// The chunks that a channel moves as one.
    pub fn run(&self, channel: u32) -> u32 {
        self.runs.get(channel as usize).copied().unwrap_or(1)
    }

    /// The longest run of any channel.
    pub fn longest_run(&self) -> u32 {
        self.runs.iter().copied().max().unwrap_or(1)
    }

    /// Lanes up to the highest one.
    pub fn lane_count(&self) -> u32 {
        (0..self.channels.len() as u32).map(|channel| self.lane(channel) + 1).max().unwrap_or(0)
    }
}

impl Step {
    /// The chunk of repetition `i` of a reference, in a buffer of `chunks` chunks.
    pub fn chunk_at(&self, chunk: u32, i: u32, chunks: u32) -> u32 {
        let moved = i64::from(chunk) + i64::from(i) * i64::from(self.stride);
        moved.rem_euclid(i64::from(chunks.max(1))) as u32
    }
}

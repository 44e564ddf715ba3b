//! The faults that the verifier finds in a program.

use std::fmt;

use crate::{Buf, Ref};

/// A place in a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct At {
    /// The number of the rank.
    pub rank: u32,
    /// Channel of the rank.
    pub channel: u32,
    /// Step of the channel.
    pub step: u32,
    /// Repetition of the step.
    pub repetition: u32,
}

/// The first fault of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The program's shape is impossible.
    BadShape(String),
    /// Two channels of a rank talk to the same peer on the same lane, whose counters belong to one of them.
    SharedLane {
        /// The rank whose channels these are.
        rank: u32,
        /// The rank that both talk to.
        peer: u32,
        /// The lane that both use.
        lane: u32,
        /// The numbers of the two channels.
        channels: [usize; 2],
    },
    /// A step has the wrong operands or peers for its operation.
    BadStep {
        /// The place of the fault.
        at: At,
        /// The fault in words.
        what: String,
    },
    /// A step names a chunk that does not exist.
    OutOfBounds {
        /// The place of the fault.
        at: At,
        /// The chunk that the step names.
        reference: Ref,
        /// Chunks of the buffer on this rank.
        chunks: u32,
    },
    /// No step can go on: every channel that is left waits.
    Deadlock {
        /// Slots per FIFO.
        depth: u32,
        /// The steps that wait, each with what it waits for.
        waits: Vec<(At, Wait)>,
    },
    /// It runs with more slots than there are.
    TooDeep {
        /// Slots per FIFO that there are.
        depth: u32,
        /// Slots per FIFO with which it runs.
        needed: u32,
    },
    /// Slots were sent and never taken.
    UnbalancedFifo {
        /// Lane of the FIFO.
        lane: u32,
        /// The rank that sends.
        from: u32,
        /// The rank that receives.
        to: u32,
        /// Slots left over.
        slots: u32,
    },
    /// A step reads what nobody wrote.
    UndefinedRead {
        /// The place of the fault.
        at: At,
        /// The chunk that the step reads.
        reference: Ref,
    },
    /// A step reads an input that was overwritten in place.
    OverwrittenInput {
        /// The place of the fault.
        at: At,
        /// The chunk that the step names.
        reference: Ref,
    },
    /// Two channels of a rank use a chunk and nothing orders them; at least one writes.
    Race {
        /// The later of the two in the order that was run.
        at: At,
        /// The earlier.
        other: At,
        /// The chunk that both steps use.
        reference: Ref,
    },
    /// An output holds a contribution that does not belong there.
    WrongContribution {
        /// Rank of the output.
        rank: u32,
        /// Chunk of the output.
        chunk: u32,
        /// Rank it came from.
        source: u32,
        /// Chunk of that rank's input.
        source_chunk: u32,
    },
    /// An output holds a contribution more than once.
    DoubleCount {
        /// Rank of the output.
        rank: u32,
        /// Chunk of the output.
        chunk: u32,
        /// Rank it came from.
        source: u32,
        /// The number of times that the contribution is in the sum.
        count: u32,
    },
    /// An output lacks a contribution.
    Missing {
        /// Rank of the output.
        rank: u32,
        /// Chunk of the output.
        chunk: u32,
        /// Rank it should come from.
        source: u32,
    },
    /// A reduced output never got the finishing operation.
    NotFinished {
        /// Rank of the output.
        rank: u32,
        /// Chunk of the output.
        chunk: u32,
    },
    /// A step combines values otherwise than the declared tree does.
    OtherOrder {
        /// The place of the fault.
        at: At,
        /// The difference in words.
        what: String,
    },
    /// The finishing operation is applied to a finished value, or a finished value is reduced further.
    FinishedTwice {
        /// The place of the fault.
        at: At,
    },
}

/// The reasons why a channel waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wait {
    /// A slot from this rank.
    Receive(u32),
    /// Room in the FIFO to this rank.
    Room(u32),
    /// The end of a step of another channel of the same rank.
    Step {
        /// The number of the channel.
        channel: u32,
        /// The number of the step.
        step: u32,
    },
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} channel {} step {}", self.rank, self.channel, self.step)?;
        if self.repetition > 0 {
            write!(f, " repetition {}", self.repetition)?;
        }
        Ok(())
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receive(peer) => write!(f, "a slot from rank {peer}"),
            Self::Room(peer) => write!(f, "room in the FIFO to rank {peer}"),
            Self::Step { channel, step } => write!(f, "channel {channel} step {step}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadShape(what) => write!(f, "bad shape: {what}"),
            Self::SharedLane { rank, peer, lane, channels: [first, second] } => write!(
                f,
                "bad shape: channels {first} and {second} of rank {rank} both talk to rank {peer} on lane \
                 {lane}: give them different lanes"
            ),
            Self::BadStep { at, what } => write!(f, "bad step: {at}: {what}"),
            Self::OutOfBounds { at, reference, chunks } => {
                let name = name(*reference);
                write!(f, "out of bounds: {at} uses {name}, the buffer has {chunks} chunks on this rank")
            }
            Self::Deadlock { depth, waits } => deadlock(f, *depth, waits),
            Self::TooDeep { depth, needed } => write!(
                f,
                "limit: needs FIFOs of {needed} slots, there are {depth}: receive earlier, or move more \
                 chunks with one step"
            ),
            Self::UnbalancedFifo { lane, from, to, slots } => write!(
                f,
                "unbalanced FIFO: {slots} slots from rank {from} to rank {to} on lane {lane} are never taken"
            ),
            Self::UndefinedRead { at, reference } => {
                write!(f, "undefined read: {at} reads {}, which nobody wrote", name(*reference))
            }
            Self::OverwrittenInput { at, reference } => {
                let name = name(*reference);
                write!(f, "overwritten input: {at} reads {name} after it was overwritten in place")
            }
            Self::Race { at, other, reference } => {
                write!(f, "race: {at} and {other} both use {} and nothing orders them", name(*reference))
            }
            Self::WrongContribution { rank, chunk, source, source_chunk } => write!(
                f,
                "wrong contribution: output chunk {chunk} of rank {rank} holds input chunk {source_chunk} of \
                 rank {source}"
            ),
            Self::DoubleCount { rank, chunk, source, count } => write!(
                f,
                "double count: output chunk {chunk} of rank {rank} holds the contribution of rank {source} \
                 {count} times"
            ),
            Self::Missing { rank, chunk, source } => write!(
                f,
                "missing contribution: output chunk {chunk} of rank {rank} lacks the contribution of rank \
                 {source}"
            ),
            Self::NotFinished { rank, chunk } => write!(
                f,
                "not finished: output chunk {chunk} of rank {rank} never got the finishing operation"
            ),
            Self::OtherOrder { at, what } => write!(f, "other order: {at} {what}"),
            Self::FinishedTwice { at } => {
                write!(f, "finished twice: {at} works on a value that is finished already")
            }
        }
    }
}

impl std::error::Error for Fault {}

fn deadlock(f: &mut fmt::Formatter<'_>, depth: u32, waits: &[(At, Wait)]) -> fmt::Result {
    const SHOWN: usize = 8;
    write!(f, "deadlock with {depth} slots per FIFO: ")?;
    for (number, (at, wait)) in waits.iter().take(SHOWN).enumerate() {
        let comma = if number > 0 { "; " } else { "" };
        write!(f, "{comma}{at} waits for {wait}")?;
    }
    if waits.len() > SHOWN {
        write!(f, "; and {} more", waits.len() - SHOWN)?;
    }
    Ok(())
}

fn name(reference: Ref) -> String {
    let buf = match reference.buf {
        Buf::Input => "input",
        Buf::Output => "output",
        Buf::Scratch => "scratch",
    };
    format!("{buf} chunk {}", reference.chunk)
}

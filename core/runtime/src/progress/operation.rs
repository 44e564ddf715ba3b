//! An operation as its rank called it, and whom it waits for: what journals hold and reports carry.

use std::fmt;

use hawser_plan::p2p::Message;
use hawser_plan::{Call, Collective, DataType, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::op_number::operation as number_text;

/// The most messages of a batch that are kept.
pub const KEPT_MESSAGES: usize = 8;

/// An operation of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Its place among all operations of the rank on this communicator, from 1 on.
    pub sequence: u64,
    /// Its number, as in logs and errors (see `op_number.rs`).
    pub number: u64,
    /// The call.
    pub what: What,
    /// The stage that it has reached.
    pub stage: Stage,
    /// Milliseconds since it was called.
    pub age_ms: u64,
    /// The time that the planner predicts for a collective, in nanoseconds; 0 where there is none.
    pub predicted_ns: u64,
    /// The number that the program gave the call (`ncclCollConfig_t::userProfilerTag`), by which it finds the
    /// place of the call again; 0 where there is none.
    pub tag: u64,
}

/// A call: a collective, or messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A collective: all ranks have to call the same.
    Collective {
        /// The collective, as the number of its variant.
        collective: u8,
        /// The type of the elements.
        dtype: u8,
        /// The reduction; 0 where nothing is reduced.
        op: u8,
        /// Elements, as in NCCL's argument.
        count: u64,
        /// The root; 0 where there is none.
        root: u32,
    },
    /// Sends and receives that run together.
    Messages {
        /// The number of messages.
        total: u32,
        /// The first of them.
        first: Vec<OneMessage>,
    },
}

/// A send or a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneMessage {
    /// The other rank.
    pub peer: u32,
    /// True for a send.
    pub is_send: bool,
    /// The length.
    pub bytes: u64,
}

/// The stages of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// The call has begun: it is being planned, or makes its connections.
    Called,
    /// It runs, or waits for its turn on the stream.
    Submitted,
    /// It is over.
    Done,
}

/// A wait of a rank within an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The number of the operation.
    pub number: u64,
    /// The rank that has to do something.
    pub peer: u32,
    /// The thing that it has to do.
    pub awaited: Awaited,
    /// The block that waits.
    pub block: u32,
    /// The step of the program at which it waits.
    pub step: u32,
    /// Milliseconds since the wait was noticed.
    pub since_ms: u64,
}

/// The thing that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Awaited {
    /// Data that the peer sends.
    Data,
    /// Room for data at the peer, which has not taken what was sent before.
    Room,
    /// Another channel of this rank.
    Channel,
    /// The peer's side of a copy by copy engines.
    Copy,
}

impl Awaited {
    /// All of them, in the order of their codes from 1 on.
    pub const ALL: [Self; 4] = [Self::Data, Self::Room, Self::Channel, Self::Copy];

    /// Its number in a journal.
    pub fn code(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Room => 2,
            Self::Channel => 3,
            Self::Copy => 4,
        }
    }

    /// The inverse of [`Awaited::code`].
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|awaited| awaited.code() == code)
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "data",
            Self::Room => "room for data",
            Self::Channel => "another channel",
            Self::Copy => "a copy",
        })
    }
}

impl What {
    /// Describes a call of a collective.
    pub fn of_call(call: &Call) -> Self {
        let reduces = call.collective.reduces();
        Self::Collective {
            collective: call.collective as u8,
            dtype: call.dtype as i32 as u8,
            op: if reduces { call.op as u8 } else { 0 },
            count: call.count,
            root: if call.collective.rooted() { call.root } else { 0 },
        }
    }

    /// Describes messages that run together.
    pub fn of_messages(messages: &[Message]) -> Self {
        let one = |message: &Message| OneMessage {
            peer: message.peer,
            is_send: message.send,
            bytes: message.bytes,
        };
        Self::Messages {
            total: messages.len() as u32,
            first: messages.iter().take(KEPT_MESSAGES).map(one).collect(),
        }
    }

    /// Returns true for a collective, which all ranks have to call.
    pub fn is_collective(&self) -> bool {
        matches!(self, Self::Collective { .. })
    }

    /// The difference between this collective and another one with the same number; None if they fit.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let (
            Self::Collective { collective, dtype, op, count, root },
            Self::Collective {
                collective: other_collective,
                dtype: other_dtype,
                op: other_op,
                count: other_count,
                root: other_root,
            },
        ) = (self, other)
        else {
            return None;
        };
        if collective != other_collective {
            Some("another collective")
        } else if dtype != other_dtype {
            Some("another type")
        } else if count != other_count {
            Some("another count")
        } else if op != other_op {
            Some("another reduction")
        } else if root != other_root {
            Some("another root")
        } else {
            None
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collective { collective, dtype, op, count, root } => {
                let collectives = || Collective::ALL.into_iter().chain([Collective::SendRecv]);
                let found = collectives().find(|known| *known as u8 == *collective);
                let name = found.map_or("collective", Collective::name);
                let dtype = DataType::from_raw(i32::from(*dtype)).map_or("?", DataType::name);
                write!(f, "{name}({count} x {dtype}")?;
                if found.is_some_and(Collective::reduces) {
                    let op = ReduceOp::ALL.into_iter().find(|known| *known as u8 == *op);
                    write!(f, ", {}", op.map_or("?", ReduceOp::name))?;
                }
                if found.is_some_and(Collective::rooted) {
                    write!(f, ", root {root}")?;
                }
                f.write_str(")")
            }
            Self::Messages { total, first } => {
                for (at, OneMessage { peer, is_send, bytes }) in first.iter().take(4).enumerate() {
                    let way = if *is_send { "send to" } else { "receive from" };
                    write!(f, "{}{way} {peer} ({bytes} B)", if at == 0 { "" } else { ", " })?;
                }
                if *total > 4 {
                    write!(f, " and {} more", total - 4)?;
                }
                Ok(())
            }
        }
    }
}

impl Operation {
    /// Its number and what it is: "operation 7, all_reduce(1024 x float, sum)", with the call's tag if it has
    /// one.
    pub fn text(&self) -> String {
        let tag = if self.tag == 0 { String::new() } else { format!(" (tag {})", self.tag) };
        format!("{}{tag}, {}", number_text(self.number), self.what)
    }
}

/// A time as "350 ms", or "12.5 s".
pub fn seconds(ms: u64) -> String {
    if ms < 1000 { format!("{ms} ms") } else { format!("{:.1} s", ms as f64 / 1000.0) }
}

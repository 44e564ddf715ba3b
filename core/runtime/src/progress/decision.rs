//! Decisions that a living communicator is asked for, and its answers, as they travel through the control
//! socket.

use serde::{Deserialize, Serialize};

/// The most sizes that one question may have.
pub const MOST_SIZES: usize = 128;

/// A question: how would these calls run now?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Snake-case name of the collective.
    pub collective: String,
    /// Name of the element type.
    pub datatype: String,
    /// The root rank, where there is one.
    pub root: u32,
    /// Bytes of the larger of input and output, for each call.
    pub bytes: Vec<u64>,
}

/// The answer of a communicator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The number of the communicator, as sixteen hexadecimal digits.
    pub communicator: String,
    /// The name of the communicator.
    pub name: String,
    /// The rank that answers.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The number of hosts that the ranks run on.
    pub hosts: u32,
    /// The kind of device.
    pub device: String,
    /// The link between the ranks of a host.
    pub link: String,
    /// Collectives that the rank has begun.
    pub begun: u64,
    /// The rules that count: their files, and how many of them are for this communicator.
    pub rules: String,
    /// The decisions, one for each size that was asked for.
    pub choices: Vec<Choice>,
}

/// The decision for a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Bytes of the larger of input and output.
    pub bytes: u64,
    /// Name of the algorithm or program.
    pub algorithm: String,
    /// Name of the executor.
    pub executor: String,
    /// Name of the protocol.
    pub protocol: String,
    /// True if data goes straight between the buffers of users.
    pub zero_copy: bool,
    /// The blocks in which the rank that answers runs it.
    pub channels: u32,
    /// The threads of each block; 0 where there are none.
    pub threads: u32,
    /// The predicted time in microseconds.
    pub predicted_us: f32,
    /// The tuner and its rule, if one decided.
    pub rule: Option<String>,
    /// Candidates, what removed each, predicted times, and what tuners say.
    pub why: String,
}

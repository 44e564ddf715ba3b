//! Records by which processes answer clients of RAS, and which travel over the control connections.

use hawser_base::error::ErrorKind;
use hawser_base::liveness::Identity;
use serde::{Deserialize, Serialize};

pub use crate::progress::journal::COLLECTIVES;

/// The longest answer that travels, in bytes.
const LONGEST: usize = 11 << 10;

/// A process of a job: the number of its host and PID namespace, and its own there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessKey {
    /// The same for all processes of one host and PID namespace.
    pub machine: [u8; 16],
    /// The number of the process there.
    pub pid: u32,
}

impl ProcessKey {
    /// The key of a process.
    pub fn of(identity: &Identity) -> Self {
        Self { machine: identity.machine(), pid: identity.pid }
    }
}

/// The answer of a process: its ranks, and how many collectives each has called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessCensus {
    /// The process.
    pub process: ProcessKey,
    /// The address of its host, or its name.
    pub node: String,
    /// Its ranks.
    pub ranks: Vec<RankCensus>,
}

/// A rank of a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankCensus {
    /// The communicator's number, the same on all ranks.
    pub comm_id: u64,
    /// The number of its ranks.
    pub size: u32,
    /// The rank.
    pub rank: u32,
    /// The number of its device in the process.
    pub device: u32,
    /// The collectives that it has called, by the number of their variant.
    pub counts: [u64; COLLECTIVES],
    /// NCCL's code of what `ncclCommGetAsyncError` returns; 0: nothing is wrong.
    pub async_error: u8,
    /// True if `ncclCommFinalize` was called.
    pub is_finalized: bool,
    /// True if the communicator was aborted.
    pub is_aborted: bool,
}

impl ProcessCensus {
    /// The answer as bytes: of more ranks than fit, the last are left out.
    pub fn encode(mut self) -> Vec<u8> {
        let mut bytes = crate::record::encode(&self);
        while bytes.len() > LONGEST && !self.ranks.is_empty() {
            self.ranks.truncate(self.ranks.len() * LONGEST / (bytes.len() + LONGEST / 8));
            bytes = crate::record::encode(&self);
        }
        bytes
    }
}

/// The code of an error in NCCL's `ncclResult_t`.
pub fn nccl_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::UnhandledCuda => 1,
        ErrorKind::System | ErrorKind::Timeout => 2,
        ErrorKind::Internal | ErrorKind::Aborted => 3,
        ErrorKind::InvalidArgument => 4,
        ErrorKind::InvalidUsage => 5,
        ErrorKind::Remote => 6,
        ErrorKind::InProgress => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_too_long_keeps_its_first_ranks() {
        let rank = |rank| RankCensus {
            comm_id: u64::MAX - u64::from(rank),
            size: 1 << 20,
            rank,
            device: 7,
            counts: [u64::MAX; COLLECTIVES],
            async_error: 0,
            is_finalized: false,
            is_aborted: false,
        };
        let process = ProcessKey { machine: [7; 16], pid: 99 };
        let census =
            |ranks| ProcessCensus { process, node: "10.0.0.1".into(), ranks: (0..ranks).map(rank).collect() };
        let read = |bytes: &[u8]| crate::record::decode::<ProcessCensus>(bytes).unwrap();
        assert_eq!(read(&census(3).encode()), census(3));
        let bytes = census(5000).encode();
        let kept = read(&bytes).ranks;
        assert!(bytes.len() <= LONGEST && bytes.len() > LONGEST / 2, "{}", bytes.len());
        assert_eq!(kept, census(kept.len() as u32).ranks);
    }
}

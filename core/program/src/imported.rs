//! Programs that users bring: the program, and when it may run.

use hawser_types::{Digest, Protocol};

use crate::{Op, Program, text};

/// A program from a file, and when it may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The program; its name is the algorithm's.
    pub program: Program,
    /// The protocol that its author meant; others are taken where that one cannot be.
    pub protocol: Protocol,
    /// Bytes of the larger buffer for which it is meant, both included.
    pub bytes: (u64, u64),
    /// FIFO slots that it needs.
    pub min_depth: u32,
    /// True if input and output may be the same memory.
    pub right_in_place: bool,
    /// False for a program of no known collective that moves chunks to other places: calls need equal chunks.
    pub keeps_places: bool,
    /// The figures of the program that the cost model uses.
    pub traffic: Traffic,
    /// Changes that the importer made to what the file says, each with its place.
    pub changes: Vec<String>,
}

/// The traffic of the busiest rank of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Messages on the longest way.
    pub hops: u32,
    /// Chunks that it sends.
    pub out: u64,
    /// Chunks that its blocks move or combine.
    pub moved: u64,
}

impl Traffic {
    /// The work of the busiest rank of `program`, whose longest way has `hops` messages.
    pub fn of(program: &Program, hops: u32) -> Self {
        let mut most = Self { hops, out: 0, moved: 0 };
        for rank in &program.ranks {
            let steps = || rank.channels.iter().flat_map(|channel| &channel.steps);
            let out: u64 = steps().map(|step| u64::from(step.times) * step.send.len() as u64).sum();
            let moved: u64 =
                steps().map(|step| u64::from(step.times) * if step.op == Op::Reduce { 2 } else { 1 }).sum();
            (most.out, most.moved) = (most.out.max(out), most.moved.max(moved));
        }
        most
    }
}

impl Imported {
    /// FIFO lanes of one instance.
    pub fn lanes(&self) -> u32 {
        self.program.ranks.iter().map(|rank| rank.lane_count()).max().unwrap_or(0).max(1)
    }

    /// Channels of every rank.
    pub fn channels(&self) -> u32 {
        self.program.ranks.first().map_or(0, |rank| rank.channels.len() as u32).max(1)
    }

    /// A number that differs when programs, or when they may run, differ.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        digest.add_bytes(text::to_text(&self.program).as_bytes());
        [self.protocol as u64, self.bytes.0, self.bytes.1].iter().for_each(|&number| digest.add(number));
        digest.value()
    }
}

//! The words of the registry: what is known of an algorithm, and what its programs cost.

use hawser_program::RankProgram;
use hawser_program::verify::{Declared, Order};
use hawser_types::{Algorithm, Collective, Measured, Result};

/// Most ranks of a communicator. Programs that are not offered for so many give way to others, or to messages
/// ([`crate::vector::of_many_ranks`]). Steps name peers by 16 bits, so 65,535 is what no build can exceed.
pub const MAX_RANKS: u32 = 1 << 14;

/// The identity of a generated program; equal keys give equal programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProgramKey {
    /// The collective that the program computes.
    pub collective: Collective,
    /// The family of the program.
    pub algorithm: Algorithm,
    /// The number of ranks, 1…[`MAX_RANKS`].
    pub ranks: u32,
    /// The root, 0 where there is none.
    pub root: u32,
    /// The ranks of each host, for programs that know hosts; 0 = of their own choosing.
    pub per_host: u32,
}

impl ProgramKey {
    /// A program that knows no hosts, or splits the ranks into hosts by itself.
    pub const fn new(collective: Collective, algorithm: Algorithm, ranks: u32, root: u32) -> Self {
        Self { collective, algorithm, ranks, root, per_host: 0 }
    }
}

/// The kind of topology that an algorithm needs besides its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing else.
    Nothing,
    /// Several hosts of equally many ranks.
    Hosts,
    /// Such hosts, and a network between them that reduces (a collnet plugin).
    ReducingNetwork,
}

/// Everything that is known of an algorithm. The registry in [`super`] has one entry for each.
#[derive(Debug)]
pub struct Entry {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The places where it has been measured on GPUs: elsewhere the cost model does not take it unless the
    /// user names nothing else.
    pub measured: Measured,
    /// The kind of topology that the algorithm needs besides its ranks.
    pub needs: Needs,
    /// Its programs, one for each collective that it offers.
    pub generators: &'static [Generator],
}

/// The maker of an algorithm's program for one collective, and its cost. Functions are called for two ranks
/// or more.
#[derive(Debug)]
pub struct Generator {
    /// The collective that the program computes.
    pub collective: Collective,
    /// Makes the program of a rank.
    pub build: fn(&ProgramKey, u32) -> RankProgram,
    /// The traffic of a rank: the cost model's view of the program within a host.
    pub traffic: fn(&Load) -> Traffic,
    /// The traffic between hosts: the cost model's view of the program between hosts.
    pub across: fn(&Across) -> NetTraffic,
    /// Most ranks for which the program is offered.
    pub max_ranks: u32,
    /// The chunks that each block is cut into.
    pub per_block: fn(&ProgramKey) -> u32,
    /// The channels of every rank.
    pub channels: fn(&ProgramKey) -> u32,
    /// Most steps of one channel on any rank, where a program has several channels.
    pub most_channel_steps: fn(&ProgramKey) -> u32,
    /// The chunks of scratch memory.
    pub scratch: fn(&ProgramKey) -> u32,
    /// The check that the program exists for the hosts of a key.
    pub check: fn(&ProgramKey) -> Result<()>,
    /// As how many exchanges between all ranks a fused kernel can run the program; 0 = not at all.
    pub exchanges: u32,
    /// True if copy engines can move the program's data: its channels do not wait for each other.
    pub by_copies: bool,
    /// True if no two channels of a rank have a peer in common: then any of them may share a lane, and the
    /// program needs no more lanes than there are.
    pub shares_lanes: fn(&ProgramKey) -> bool,
    /// True if channels wait for steps of others: then each needs a block of its own.
    pub waits_across: bool,
    /// The lanes of a program that says itself which channels share one; 0 = each channel has its own.
    pub lanes: fn(&ProgramKey) -> u32,
    /// The most chunks that a step moves as one ([`RankProgram::runs`]).
    pub run: fn(&ProgramKey) -> u32,
    /// True if the program combines values in a declared order, operands included, where it is known to.
    pub keeps: fn(&ProgramKey, &Declared) -> bool,
}

impl Generator {
    /// A program of one channel with one chunk per block and no scratch, for any number of ranks.
    pub const fn new(
        collective: Collective,
        build: fn(&ProgramKey, u32) -> RankProgram,
        traffic: fn(&Load) -> Traffic,
        across: fn(&Across) -> NetTraffic,
    ) -> Self {
        Self {
            collective,
            build,
            traffic,
            across,
            max_ranks: MAX_RANKS,
            per_block: one,
            channels: one,
            most_channel_steps: two,
            scratch: none,
            check: fine,
            exchanges: 0,
            by_copies: false,
            shares_lanes: |_| false,
            waits_across: false,
            lanes: none,
            run: one,
            keeps: |_, _| false,
        }
    }
}

fn none(_key: &ProgramKey) -> u32 {
    0
}

/// One of something, whatever the key.
pub fn one(_key: &ProgramKey) -> u32 {
    1
}

/// Two of something, whatever the key.
pub fn two(_key: &ProgramKey) -> u32 {
    2
}

/// As many as there are ranks.
pub fn ranks(key: &ProgramKey) -> u32 {
    key.ranks
}

/// True if a program keeps a declared order whose owners combine all ranks in one step, in the order of
/// ranks.
pub fn one_step_keeps(key: &ProgramKey, declared: &Declared) -> bool {
    match declared.order {
        Order::Ranks => true,
        // Of three ranks, both orders combine the first two before the third.
        Order::Nested => key.ranks == 2 || key.ranks == 3 && !declared.is_narrow,
    }
}

fn fine(_key: &ProgramKey) -> Result<()> {
    Ok(())
}

/// All ranks but `rank`, beginning with its successor, so that no two ranks begin with the same peer.
pub fn others(rank: u32, ranks: u32) -> impl Iterator<Item = u32> {
    (1..ranks).map(move |d| (rank + d) % ranks)
}

/// The load that a program puts on its busiest rank and on the wire, for the cost model.
#[derive(Debug, Clone, Copy)]
pub struct Traffic {
    /// Hops that follow one another for the first tile.
    pub hops: f64,
    /// Hops that every further tile waits for.
    pub waits: f64,
    /// Tiles' times until the last rank of a pipeline has its first tile.
    pub fill: f64,
    /// Bytes out of (or into) the busiest rank.
    pub out: f64,
    /// Share of the wire's rate that the pattern reaches.
    pub share: f64,
    /// Bytes that the busiest rank's blocks send, receive or combine.
    pub streamed: f64,
    /// Bytes of a chunk.
    pub chunk: f64,
}

/// A call as the cost model sees it, and traffic of common forms.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The program.
    pub key: ProgramKey,
    /// Bytes of the larger of input and output.
    pub bytes: f64,
    /// Share of the wire's rate that is left when all ranks send to all.
    pub all_to_all: f64,
}

impl Load {
    /// The number of ranks.
    pub fn ranks(&self) -> f64 {
        f64::from(self.key.ranks)
    }

    /// The number of the other ranks.
    pub fn others(&self) -> f64 {
        self.ranks() - 1.0
    }

    /// The hops of a tree, or of partners at doubling distances.
    pub fn levels(&self) -> f64 {
        self.ranks().log2().ceil()
    }

    /// The bytes less a rank's own part.
    pub fn part(&self) -> f64 {
        self.bytes * self.others() / self.ranks()
    }

    /// Everything passes through every rank.
    pub fn chain(&self) -> Traffic {
        Traffic {
            hops: self.others(),
            waits: 1.0,
            fill: (self.ranks() - 2.0).max(0.0),
            out: self.bytes,
            share: 0.95,
            streamed: self.bytes,
            chunk: self.bytes,
        }
    }

    /// The part of each rank passes through every other rank.
    pub fn ring(&self) -> Traffic {
        Traffic {
            waits: self.others(),
            fill: 0.0,
            out: self.part(),
            streamed: self.part(),
            chunk: self.bytes / self.ranks(),
            ..self.chain()
        }
    }

    /// Every rank sends a part to every other rank at once.
    pub fn pairs(&self) -> Traffic {
        Traffic { hops: 1.0, waits: 1.0, share: self.all_to_all, ..self.ring() }
    }

    /// A program that no GPU has run for a measurement: by its form alone.
    pub fn by_form(&self, hops: f64, out: f64, chunk: f64) -> Traffic {
        Traffic { hops, waits: hops, fill: 0.0, out, streamed: 2.0 * out, chunk, ..self.pairs() }
    }
}

/// The traffic of a program between hosts.
#[derive(Debug, Clone, Copy)]
pub struct NetTraffic {
    /// Bytes out of the busiest host.
    pub out: f64,
    /// Bytes to other hosts out of the rank that sends most of them.
    pub out_of_rank: f64,
    /// Hops between hosts that follow one another.
    pub hops: f64,
    /// Those that every further tile waits for.
    pub waits: f64,
    /// Times that blocks move a tile for each hop. They are counted where ranks have NICs of their own: what
    /// was measured elsewhere has them in the time of a hop.
    pub passes: f64,
    /// Messages to and from other hosts that the busiest rank has for a tile, if the program has a root.
    pub busiest: f64,
    /// Messages that the busiest rank has for the first tile beside one each way for each hop, if it has no
    /// root.
    pub more_messages: f64,
}

impl NetTraffic {
    /// `out` bytes, all out of one rank, in `hops` hops, one message each way at a time.
    pub fn new(out: f64, hops: f64) -> Self {
        Self { out, out_of_rank: out, hops, waits: hops, passes: 0.0, busiest: 2.0, more_messages: 0.0 }
    }

    /// The same, where so many ranks of a host send equal parts of it.
    pub fn over(self, ranks: f64) -> Self {
        Self { out_of_rank: self.out / ranks.max(1.0), ..self }
    }
}

/// A call between hosts as the cost model sees it.
#[derive(Debug, Clone, Copy)]
pub struct Across {
    /// The program.
    pub key: ProgramKey,
    /// Bytes of the larger of input and output.
    pub bytes: f64,
    /// The number of hosts.
    pub hosts: f64,
    /// The ranks of the largest host.
    pub local: f64,
}

impl Across {
    /// The number of ranks.
    pub fn ranks(&self) -> f64 {
        f64::from(self.key.ranks)
    }

    /// The number of ranks on other hosts.
    pub fn far(&self) -> f64 {
        (self.ranks() - self.local).max(1.0)
    }

    /// The hops of a tree of hosts.
    pub fn levels(&self) -> f64 {
        self.hosts.log2().ceil()
    }

    /// Bytes out of a host along a ring.
    pub fn ring(&self) -> f64 {
        self.bytes * (self.ranks() - 1.0) / self.ranks()
    }

    /// Bytes out of a host all of whose ranks send a share of their bytes to every far rank. Many senders to
    /// one receiver do not fill its link.
    pub fn pairs(&self) -> f64 {
        self.bytes * self.local * self.far() / self.ranks() / if self.hosts > 2.0 { 0.85 } else { 1.0 }
    }
}

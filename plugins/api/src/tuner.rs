//! The tuner interface: chooses algorithm, protocol and number of channels of a collective.
//!
//! The host asks with the times that its cost model predicts; the tuner changes them and the host takes the lowest. All
//! ranks ask with equal arguments and **must get equal answers**: a tuner is a pure function of what it is asked and of
//! settings that are equal on all ranks.

use crate::collnet::DataType;
use crate::error::{Error, Result};
use crate::host::Log;
use crate::learner::Learner;

/// Collectives that tuners are asked about, with NCCL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs)] // NCCL's names
pub enum Function {
    Broadcast = 0,
    Reduce = 1,
    AllGather = 2,
    ReduceScatter = 3,
    AllReduce = 4,
    AllToAll = 8,
    Scatter = 9,
    Gather = 10,
}

impl Function {
    /// Those that every tuner is asked about, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Broadcast, Self::Reduce, Self::AllGather, Self::ReduceScatter, Self::AllReduce];

    /// Those and the ones that only tuners are asked about which want that
    /// ([`TunerContext::wants_every_collective`]).
    pub const EVERY: [Self; 8] = [
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllReduce,
        Self::AllToAll,
        Self::Scatter,
        Self::Gather,
    ];

    /// Name in rule files: `allreduce`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllGather => "allgather",
            Self::ReduceScatter => "reducescatter",
            Self::AllReduce => "allreduce",
            Self::AllToAll => "alltoall",
            Self::Scatter => "scatter",
            Self::Gather => "gather",
        }
    }
}

/// Algorithms. 0 to 6 have NCCL's numbers, those from 64 on are this library's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Algorithm(pub u32);

#[allow(missing_docs)] // names of the field
impl Algorithm {
    pub const TREE: Self = Self(0);
    pub const RING: Self = Self(1);
    pub const COLLNET_DIRECT: Self = Self(2);
    pub const COLLNET_CHAIN: Self = Self(3);
    pub const NVLS: Self = Self(4);
    pub const NVLS_TREE: Self = Self(5);
    pub const PAT: Self = Self(6);
    pub const ONE_SHOT: Self = Self(64);
    pub const ALL_PAIRS: Self = Self(65);
    pub const HIERARCHICAL: Self = Self(66);
    pub const DIRECT: Self = Self(67);
    /// `ONE_SHOT` by a fused kernel; protocols are those of its staging: LL for words, LL128 for lines, Simple for tiles.
    pub const SYM_ONE_SHOT: Self = Self(68);
    /// `ALL_PAIRS` by a fused kernel.
    pub const SYM_ALL_PAIRS: Self = Self(69);
    /// `DIRECT` by a fused kernel.
    pub const SYM_DIRECT: Self = Self(70);
    /// `RING` by copy engines; the protocol is Simple.
    pub const DMA_RING: Self = Self(72);
    /// `ALL_PAIRS` by copy engines.
    pub const DMA_ALL_PAIRS: Self = Self(73);
    /// `DIRECT` by copy engines.
    pub const DMA_DIRECT: Self = Self(74);
    pub const RECURSIVE_DOUBLING: Self = Self(80);
    pub const HALVING_DOUBLING: Self = Self(81);
    pub const BRUCK: Self = Self(82);
    pub const PAIRWISE: Self = Self(83);
    pub const KNOMIAL: Self = Self(84);
    /// The number of the first program that the user brought; `TunerConfig::programs` has their names.
    pub const FIRST_PROGRAM: u32 = 1024;

    /// The program at this place of `TunerConfig::programs`.
    pub const fn program(place: u32) -> Self {
        Self(Self::FIRST_PROGRAM.saturating_add(place))
    }

    /// Names in rule files, without case.
    pub const NAMES: [(Self, &'static str); 22] = [
        (Self::TREE, "tree"),
        (Self::RING, "ring"),
        (Self::COLLNET_DIRECT, "collnet_direct"),
        (Self::COLLNET_CHAIN, "collnet_chain"),
        (Self::NVLS, "nvls"),
        (Self::NVLS_TREE, "nvls_tree"),
        (Self::PAT, "pat"),
        (Self::ONE_SHOT, "one_shot"),
        (Self::ALL_PAIRS, "all_pairs"),
        (Self::HIERARCHICAL, "hierarchical"),
        (Self::DIRECT, "direct"),
        (Self::SYM_ONE_SHOT, "sym_one_shot"),
        (Self::SYM_ALL_PAIRS, "sym_all_pairs"),
        (Self::SYM_DIRECT, "sym_direct"),
        (Self::DMA_RING, "dma_ring"),
        (Self::DMA_ALL_PAIRS, "dma_all_pairs"),
        (Self::DMA_DIRECT, "dma_direct"),
        (Self::RECURSIVE_DOUBLING, "recursive_doubling"),
        (Self::HALVING_DOUBLING, "halving_doubling"),
        (Self::BRUCK, "bruck"),
        (Self::PAIRWISE, "pairwise"),
        (Self::KNOMIAL, "knomial"),
    ];
}

/// Protocols, with NCCL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // NCCL's names
pub enum Protocol {
    Ll = 0,
    Ll128 = 1,
    Simple = 2,
}

/// Reductions, with NCCL's numbers. All that `ncclRedOpCreatePreMulSum` makes are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // NCCL's names
pub enum Reduction {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    Avg = 4,
    PreMulSum = 5,
}

impl Reduction {
    /// All of them in the order of their numbers.
    pub const ALL: [Self; 6] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::PreMulSum];

    /// Name in rule files: `sum`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::PreMulSum => "premulsum",
        }
    }
}

/// A tuner plugin.
pub trait Tuner: Send + Sync {
    /// Name for logs. Constant.
    fn name(&self) -> &str;

    /// Makes the tuner ready for a communicator.
    ///
    /// # Errors
    /// `InvalidUsage`: the user's settings for this tuner are wrong; the communicator fails on all ranks with this text.
    /// Any other: the host says why and goes on without this tuner.
    fn open(&self, config: &TunerConfig) -> Result<Box<dyn TunerContext>>;

    /// As [`Tuner::open`], with settings that stand in these files instead of where the tuner would look: asked while a
    /// communicator works, when somebody wants other rules for it. The host takes the new context in place of the old one on
    /// all ranks at the same operation. No files = no settings.
    ///
    /// # Errors
    /// `Unsupported`: this tuner has no such settings and stays as it is. Any other: nothing changes on any rank, and whoever
    /// wanted it gets this text.
    fn open_with(&self, config: &TunerConfig, files: &[SettingsFile]) -> Result<Box<dyn TunerContext>> {
        let _ = (config, files);
        Err(Error::unsupported("settings that change while a communicator works"))
    }

    /// What learns from the times of a communicator and proposes other settings for it, which then come by
    /// [`Tuner::open_with`]. Asked on rank 0, after [`Tuner::open`]. None: this tuner does not learn.
    ///
    /// # Errors
    /// Any: the host says why and goes on without.
    fn learner(&self, config: &TunerConfig) -> Result<Option<Box<dyn Learner>>> {
        let _ = config;
        Ok(None)
    }
}

/// A file with settings, read by somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsFile {
    /// What messages call it: its path.
    pub name: String,
    /// What stands in it.
    pub text: String,
}

/// What a tuner learns of its communicator.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TunerConfig {
    /// Equal on all ranks of the communicator, different for others.
    pub comm_id: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of hosts.
    pub nodes: u32,
    /// NVLink domains: number, fewest and most ranks of one.
    pub domains: (u32, u32, u32),
    /// The name that the program gave the communicator; empty = none, or the host does not tell.
    pub name: String,
    /// Names of the programs that the user brought, by their places: algorithms from [`Algorithm::FIRST_PROGRAM`] on.
    pub programs: Vec<String>,
    /// Where log lines go.
    pub log: Log,
}

impl TunerConfig {
    /// A communicator whose NVLink domains are its hosts.
    pub fn new(comm_id: u64, ranks: u32, nodes: u32, log: Log) -> Self {
        let per_node = ranks / nodes.max(1);
        Self {
            comm_id,
            ranks,
            nodes,
            domains: (nodes, per_node, per_node),
            name: String::new(),
            programs: Vec::new(),
            log,
        }
    }
}

/// What is to be tuned.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Question {
    /// The collective.
    pub function: Function,
    /// Bytes of the larger of send and receive side.
    pub bytes: u64,
    /// Operations of the group that run together.
    pub pipelined: u32,
    /// Both buffers are registered.
    pub registered: bool,
    /// Type of the elements; None = the host does not tell (NCCL never does).
    pub data_type: Option<DataType>,
    /// The reduction; None = nothing is reduced, or the host does not tell.
    pub op: Option<Reduction>,
    /// Whether the operation is captured into a graph; None = the host does not tell (see [`TunerContext::wants_in_graph`]).
    pub in_graph: Option<bool>,
    /// The trial that the operation is for, see [`TunerContext::trial`]; None = none.
    pub trial: Option<u32>,
}

impl Question {
    /// A single operation on plain buffers.
    pub fn new(function: Function, bytes: u64) -> Self {
        Self {
            function,
            bytes,
            pipelined: 1,
            registered: false,
            data_type: None,
            op: None,
            in_graph: None,
            trial: None,
        }
    }
}

/// From this time on a candidate's `us` is a price that nobody has compared with a measured time, added to this number: tuners that
/// take the lowest time leave such candidates alone, those that want one can name it.
pub const UNMEASURED_US: f32 = 1e6;

/// From this time on a candidate is held back: the user's settings (`NCCL_PASS_SM`) want multiprocessors or copy engines, and this one
/// uses the other. The predicted time is added to this number. Only a tuner that sets it to 0 gets it, which one should do only where
/// it was told to by name. Tuners that do not want every collective see such candidates as impossible.
pub const HELD_US: f32 = 16_777_216.0;

/// One candidate and its predicted time. Tuners lower or raise `us`; below 0 is "impossible" and stays so.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Candidate {
    /// Which algorithm.
    pub algorithm: Algorithm,
    /// Which protocol.
    pub protocol: Protocol,
    /// Predicted microseconds; -1.0 = impossible; see also [`UNMEASURED_US`].
    pub us: f32,
}

/// What a tuner says besides the times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answer {
    /// Channels to use; None = the host's default.
    pub channels: Option<u32>,
}

/// What the answers of a tuner depend on besides the questions. Ranks where it differs would decide differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// Equal only where the tuner answers alike.
    pub digest: u64,
    /// Where the settings are from, for the error that names ranks: files, how much of them counts here.
    pub source: String,
}

/// A tuner, opened for a communicator.
pub trait TunerContext: Send + Sync {
    /// Changes the times of the candidates. Blocking: no. Thread: any, also several at once.
    ///
    /// # Errors
    /// Any: the host logs it once and uses its own times.
    fn tune(&self, question: &Question, candidates: &mut [Candidate]) -> Result<Answer>;

    /// Bytes per chunk for a choice; None = the host's default.
    fn chunk_bytes(&self, question: &Question, chosen: &Candidate, channels: u32) -> Result<Option<u64>> {
        let _ = (question, chosen, channels);
        Ok(None)
    }

    /// What all ranks must have in common; the host compares it at bring-up. None: nothing to compare.
    fn agreement(&self) -> Option<Agreement> {
        None
    }

    /// Whether it is asked about all-to-all, scatter and gather too, which NCCL asks no tuner about. Constant.
    fn wants_every_collective(&self) -> bool {
        false
    }

    /// Whether it may ask for copy engines ([`Algorithm::DMA_RING`] and its like) where the settings do not: the host then takes
    /// the memory that they need. Constant, and equal on all ranks that agree.
    fn wants_copy_engines(&self) -> bool {
        false
    }

    /// Whether its answers depend on [`Question::in_graph`], which costs the host a call of the driver for every operation.
    /// Constant.
    fn wants_in_graph(&self) -> bool {
        false
    }

    /// Whether an operation is for trying something, and what: its questions then have this number as [`Question::trial`].
    /// Operations are numbered alike on all ranks, from 0. The host keeps answers by this number, so there must be few that
    /// differ (16). It never asks for operations that are captured into a graph. A pure function, asked for every operation.
    fn trial(&self, operation: u64) -> Option<u32> {
        let _ = operation;
        None
    }

    /// Whether the host should measure some operations, those of trials among them, for the [`Learner`]. Constant, and equal
    /// on all ranks that agree.
    fn wants_times(&self) -> bool {
        false
    }

    /// What this tuner makes of a question, for people: asked after [`TunerContext::tune`], with the times from before it,
    /// when somebody wants to know. The first line says what decided, further lines how it came to that. Empty: nothing.
    ///
    /// # Errors
    /// Any: the host then knows the name of the tuner only.
    fn why(&self, question: &Question, candidates: &[Candidate]) -> Result<String> {
        let _ = (question, candidates);
        Ok(String::new())
    }
}

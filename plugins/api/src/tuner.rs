//! The tuner interface: a tuner chooses how a collective is done.
//!
//! The host asks with a list of [`Candidate`]s: every [`Decision`] that it could make, with the time that its
//! cost model predicts and a [`Status`]. The tuner changes times, or orders one candidate by its [`Answer`].
//! Without an order the host takes the candidate with the shortest time.
//!
//! All ranks ask with equal arguments and **must get equal answers**: a tuner is a pure function of what it
//! is asked and of settings that are equal on all ranks.
//!
//! ```
//! use hawser_plugin::Result;
//! use hawser_plugin::tuner::{Answer, Candidate, Executor, Function, Question, TunerContext};
//!
//! /// Orders rings for large all-reduces, and leaves fused kernels out.
//! struct Rings;
//!
//! impl TunerContext for Rings {
//!     fn tune(&self, question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
//!         let fused = candidates.iter_mut().filter(|c| c.decision.executor == Executor::Fused);
//!         fused.for_each(Candidate::leave_out);
//!         let is_ring = |c: &Candidate<'_>| c.is_offered() && c.decision.algorithm.name() == "ring";
//!         match candidates.iter().position(is_ring) {
//!             Some(place) if question.bytes >= 1 << 20 => Ok(Answer::ordered(place).with_channels(8)),
//!             _ => Ok(Answer::default()),
//!         }
//!     }
//! }
//! # use hawser_plugin::tuner::{Algorithm, Decision, Protocol};
//! # let ring = Decision::new(Algorithm::RING, Executor::Interpreter, Protocol::Simple);
//! # let mut list = [Candidate::predicted(ring, 90.0)];
//! # let answer = Rings.tune(&Question::new(Function::AllReduce, 1 << 20), &mut list).unwrap();
//! # assert_eq!((answer.order, answer.channels), (Some(0), Some(8)));
//! ```

use crate::collnet::DataType;
use crate::error::{Error, Result};
use crate::host::Log;
use crate::learner::Learner;

pub use crate::decision::{Algorithm, Answer, Candidate, Class, Decision, Executor, Protocol, Status};

/// The collectives that tuners are asked about, with NCCL's numbers.
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
    /// The collectives that every tuner is asked about, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Broadcast, Self::Reduce, Self::AllGather, Self::ReduceScatter, Self::AllReduce];

    /// All collectives: also those that only tuners are asked about which say so by
    /// [`TunerContext::wants_every_collective`].
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

    /// The name in NCCL's rule files: `allreduce`.
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

/// The reductions, with NCCL's numbers. All that `ncclRedOpCreatePreMulSum` makes are one reduction here.
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
    /// All reductions in the order of their numbers.
    pub const ALL: [Self; 6] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::PreMulSum];

    /// The name in rule files: `sum`.
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

/// A tuner plugin. It is made once in a process and opened for each communicator.
pub trait Tuner: Send + Sync {
    /// The name of the tuner for logs. It never changes.
    fn name(&self) -> &str;

    /// Makes the tuner ready for a communicator.
    ///
    /// # Errors
    /// `InvalidUsage`: the user's settings for this tuner are wrong; the communicator fails on all ranks with
    /// this text. Any other: the host says why and goes on without this tuner.
    fn open(&self, config: &TunerConfig) -> Result<Box<dyn TunerContext>>;

    /// Opens the tuner again for a communicator that works already, because somebody wants other settings for
    /// it. They stand in these files, not where the tuner would look by itself; no files = no settings. The
    /// host takes the new context in place of the old one on all ranks at the same operation.
    ///
    /// # Errors
    /// `Unsupported`: this tuner has no such settings and stays as it is. Any other: nothing changes on any
    /// rank, and whoever wanted the change gets this text.
    fn open_with(&self, config: &TunerConfig, files: &[SettingsFile]) -> Result<Box<dyn TunerContext>> {
        let _ = (config, files);
        Err(Error::unsupported("settings that change while a communicator works"))
    }

    /// Makes what learns from the times of a communicator and proposes other settings for it, which then come
    /// by [`Tuner::open_with`]. The host asks on rank 0, after [`Tuner::open`]. None: this tuner does not
    /// learn.
    ///
    /// # Errors
    /// Any: the host says why and goes on without a learner.
    fn learner(&self, config: &TunerConfig) -> Result<Option<Box<dyn Learner>>> {
        let _ = config;
        Ok(None)
    }
}

/// A file with settings that the host has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsFile {
    /// The path of the file, by which messages name it.
    pub name: String,
    /// The text of the file.
    pub text: String,
}

/// The facts about a communicator that a tuner is opened with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TunerConfig {
    /// A number that is equal on all ranks of the communicator, and another one for other communicators.
    pub comm_id: u64,
    /// The number of ranks.
    pub ranks: u32,
    /// The number of hosts.
    pub nodes: u32,
    /// The number of NVLink domains, the fewest ranks of one, and the most ranks of one.
    pub domains: (u32, u32, u32),
    /// The name that the program gave the communicator; empty = none, or the host does not tell.
    pub name: String,
    /// The names of the programs that the user brought: [`Algorithm::program`] with the place in this list.
    pub programs: Vec<String>,
    /// The log that the tuner writes to.
    pub log: Log,
}

impl TunerConfig {
    /// The facts about a communicator without a name, whose NVLink domains are its hosts.
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

/// A question to a tuner: the operation that is to be done.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Question {
    /// The collective.
    pub function: Function,
    /// The bytes of the send side or of the receive side, whichever is larger.
    pub bytes: u64,
    /// The number of operations of the group that run together.
    pub pipelined: u32,
    /// True if both buffers are registered.
    pub registered: bool,
    /// The type of the elements; None = the host does not tell (NCCL never does).
    pub data_type: Option<DataType>,
    /// The reduction; None = nothing is reduced, or the host does not tell.
    pub op: Option<Reduction>,
    /// True if the operation is captured into a graph; None = the host does not tell. See
    /// [`TunerContext::wants_in_graph`].
    pub in_graph: Option<bool>,
    /// The number of the trial that the operation is for; None = it is for none. See [`TunerContext::trial`].
    pub trial: Option<u32>,
    /// The rule that the call asks for, as the [`rule_id`] of its name: no other rule counts for it. None =
    /// it asks for none.
    pub rule: Option<u64>,
}

/// The number that stands for the name of a rule in questions: equal on all hosts and builds (FNV-1a), never
/// 0.
pub fn rule_id(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

impl Question {
    /// A question about a single operation on plain buffers.
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
            rule: None,
        }
    }
}

/// A summary of what the answers of a tuner depend on besides the questions. The host compares it between
/// ranks, because ranks with different ones would decide differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// A digest that is equal only where the tuner answers alike.
    pub digest: u64,
    /// The origin of the settings and the number of them that count here, for the error that names ranks.
    pub source: String,
}

/// A tuner that was opened for a communicator. Dropping it closes it.
pub trait TunerContext: Send + Sync {
    /// Answers a question. The tuner may give candidates other times ([`Candidate::estimate`]), leave some
    /// out ([`Candidate::leave_out`]) and order one by its answer. The decisions of candidates stay as they
    /// are; the host ignores a change there, and a refused candidate stays refused. If several tuners are
    /// asked, each sees the times that the one before it left, and the last order counts. Blocking: no.
    /// Thread: any, also several at once.
    ///
    /// # Errors
    /// Any: the host logs it once and uses its own times.
    fn tune(&self, question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer>;

    /// The bytes per chunk for the candidate that was taken; None = the host's default. `chosen.decision` has
    /// the number of channels that run.
    ///
    /// # Errors
    /// Any: the host logs it once and uses its default.
    fn chunk_bytes(&self, question: &Question, chosen: &Candidate<'_>) -> Result<Option<u64>> {
        let _ = (question, chosen);
        Ok(None)
    }

    /// The settings that all ranks must have in common; the host compares it at bring-up. None: there is
    /// nothing to compare.
    fn agreement(&self) -> Option<Agreement> {
        None
    }

    /// True if the tuner is asked about all-to-all, scatter and gather too, which NCCL asks no tuner about.
    /// Constant.
    fn wants_every_collective(&self) -> bool {
        false
    }

    /// True if the tuner may order [`Executor::CopyEngine`] where the settings do not want it: the host then
    /// takes the memory that copy engines need. Constant, and equal on all ranks that agree.
    fn wants_copy_engines(&self) -> bool {
        false
    }

    /// True if the answers depend on [`Question::in_graph`], which costs the host a call of the driver for
    /// every operation. Constant.
    fn wants_in_graph(&self) -> bool {
        false
    }

    /// The trial that an operation is for, if any: the questions about it then have this number as
    /// [`Question::trial`]. Operations are numbered alike on all ranks, from 0. The host keeps answers by
    /// this number, so there must be few different ones (16). It does not ask for operations that are
    /// captured into a graph. The four operations before one that is for trying something are measured, too,
    /// so that there is something to compare. This is a pure function; the host calls it for every operation.
    fn trial(&self, operation: u64) -> Option<u32> {
        let _ = operation;
        None
    }

    /// True if the host should measure some operations for the [`Learner`], those of trials among them.
    /// Constant, and equal on all ranks that agree.
    fn wants_times(&self) -> bool {
        false
    }

    /// Explains to people what this tuner makes of a question. The host asks after [`TunerContext::tune`],
    /// with the candidates as they were before it. The first line says what decided, further lines say how it
    /// came to that. An empty text: the tuner has nothing to say.
    ///
    /// # Errors
    /// Any: the host then knows the name of the tuner only.
    fn why(&self, question: &Question, candidates: &[Candidate<'_>]) -> Result<String> {
        let _ = (question, candidates);
        Ok(String::new())
    }
}

//! What is decided for a call: the candidates, the choice among them, and why.

use std::fmt;

use hawser_types::{Algorithm, Collective, Measured, Route};

use crate::algo::{self, ProgramKey};
use crate::topology::Topology;

/// What was decided for a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Which program.
    pub key: ProgramKey,
    /// Which protocol.
    pub route: Route,
    /// How often the program is laid over the data.
    pub instances: u32,
    /// Threads per block.
    pub threads: u32,
    /// What the cost model says, in µs.
    pub predicted_us: f32,
    /// The reasons.
    pub why: Why,
}

/// The candidates, what filtered each, what each would cost, and what decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Why {
    /// Which collective.
    pub collective: Collective,
    /// Bytes of the larger of input and output.
    pub bytes: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// All candidates in the order in which they were looked at.
    pub candidates: Vec<Candidate>,
    /// What decided.
    pub decided: String,
    /// The tuner and its rule, with file and line, if one decided.
    pub rule: Option<String>,
}

/// One algorithm with one protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Which family.
    pub algorithm: Algorithm,
    /// Which protocol.
    pub route: Route,
    /// Cost or reason.
    pub outcome: Outcome,
    /// Why it is taken only if advice orders it, if so.
    pub held: Option<&'static str>,
    /// It has been measured on GPUs in a topology of this form, so that its price means something.
    pub is_measured: bool,
}

impl Candidate {
    pub(crate) fn new(algorithm: Algorithm, route: Route, outcome: Outcome, topology: &Topology) -> Self {
        let is_measured = match algo::measured(algorithm) {
            Measured::Everywhere => true,
            Measured::BetweenHosts => topology.hosts() > 1 && topology.hosts() == topology.size(),
            Measured::Nowhere => false,
        };
        Self { algorithm, route, outcome, held: None, is_measured }
    }
}

/// What became of a candidate.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It is possible and would take this long.
    Predicted {
        /// Microseconds.
        us: f32,
        /// The cheapest number of instances.
        instances: u32,
        /// Blocks of one instance: the program's channels, fewer if some share a block.
        channels: u32,
    },
    /// It is out, for this reason.
    Filtered(String),
}

/// What a tuner said about the candidates of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// The tuner that gave the advice, for `Why`.
    pub source: String,
    /// The place of the candidate that has to be taken, also if it is held back; None = the fastest.
    pub order: Option<usize>,
    /// A time for every candidate, in their order; None = not this one.
    pub us: Vec<Option<f32>>,
    /// The number of blocks to use; None = as the cost model says.
    pub blocks: Option<u32>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8} {:6} ", self.algorithm.name(), self.route.name())?;
        match &self.outcome {
            Outcome::Predicted { us, instances, channels } => {
                write!(f, "{us:10.1} µs  {instances} × {channels} blocks")?;
                self.held.map_or(Ok(()), |reason| write!(f, "  held back: {reason}"))
            }
            Outcome::Filtered(reason) => write!(f, "{:>10}     {reason}", "-"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} bytes on {} ranks", self.collective.name(), self.bytes, self.ranks)?;
        for candidate in &self.candidates {
            writeln!(f, "  {candidate}")?;
        }
        write!(f, "  decided: {}", self.decided)
    }
}

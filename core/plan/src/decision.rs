//! The decision for a call: the candidates, the decision among them, and why.

use std::fmt;

use hawser_types::{Algorithm, Collective, Measured, Route};

use crate::algo::{self, ProgramKey};
use crate::topology::Topology;

/// The decision for a call: three words (algorithm, executor, protocol) and a number (channels), with what
/// follows from them.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The program, which the algorithm makes for the collective.
    pub key: ProgramKey,
    /// The executor, the protocol and the strategy.
    pub route: Route,
    /// The number of copies of the program that are laid over the data.
    pub instances: u32,
    /// The number of blocks: the copies times the channels of the program.
    pub channels: u32,
    /// The number of threads of a block.
    pub threads: u32,
    /// The predicted time in µs, by the cost model or by the tuner that decided.
    pub predicted_us: f32,
    /// The candidates and what decided between them.
    pub why: Why,
}

/// `AllPairs/fused/LL x 8`: algorithm, executor, protocol and channels.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} x {}", self.key.algorithm.name(), self.route.name(), self.channels)
    }
}

/// The candidates, what filtered each, what each would cost, and what decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Why {
    /// The collective that was asked for.
    pub collective: Collective,
    /// The bytes of the larger of input and output.
    pub bytes: u64,
    /// The number of ranks.
    pub ranks: u32,
    /// All candidates in the order in which they were looked at.
    pub candidates: Vec<Candidate>,
    /// The order in which every element is combined, if one is declared.
    pub order: Option<String>,
    /// The decision in words, and who made it.
    pub decided: String,
    /// The tuner and its rule, with file and line, if one decided.
    pub rule: Option<String>,
}

/// A decision that could be made: an algorithm with a route.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The family of the program.
    pub algorithm: Algorithm,
    /// The executor, the protocol and the strategy.
    pub route: Route,
    /// The predicted time, or the reason why it is out.
    pub outcome: Outcome,
    /// The reason why it is taken only if advice orders it, if so.
    pub held: Option<&'static str>,
    /// It has been measured on GPUs in a topology of this form, so that its price means something.
    pub is_measured: bool,
}

impl Candidate {
    pub(crate) fn new(algorithm: Algorithm, route: Route, outcome: Outcome, topology: &Topology) -> Self {
        let is_measured = match algo::measured(algorithm) {
            Measured::Everywhere => true,
            Measured::BetweenHosts => {
                topology.hosts() > 1 && topology.hosts() == topology.size() || topology.has_own_nics()
            }
            Measured::OwnNics => topology.has_own_nics(),
            Measured::Nowhere => false,
        };
        Self { algorithm, route, outcome, held: None, is_measured }
    }

    /// The predicted time in µs; None if it is out.
    pub fn us(&self) -> Option<f32> {
        match self.outcome {
            Outcome::Predicted { us, .. } => Some(us),
            Outcome::Filtered(_) => None,
        }
    }
}

/// The outcome of a candidate.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It is possible and would take this long.
    Predicted {
        /// The predicted time in µs.
        us: f32,
        /// The cheapest number of instances.
        instances: u32,
        /// Blocks of one instance: the program's channels, fewer if some share a block.
        channels: u32,
    },
    /// It is out, for this reason.
    Filtered(String),
}

/// The advice of a tuner about the candidates of a call.
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
        write!(f, "{:18} {:22} ", self.algorithm.name(), self.route.name())?;
        match &self.outcome {
            Outcome::Predicted { us, instances, channels } => {
                write!(f, "{us:10.1} µs  {instances} × {channels} blocks")?;
                match self.held {
                    Some(reason) => write!(f, "  held back: {reason}"),
                    None if !self.is_measured => f.write_str("  not measured on such machines"),
                    None => Ok(()),
                }
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
        if let Some(order) = &self.order {
            writeln!(f, "  declared order, {order}")?;
        }
        write!(f, "  decided: {}", self.decided)
    }
}

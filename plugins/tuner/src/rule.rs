//! A rule: when it counts, and what is to be done then.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use hawser_plugin::collnet::DataType;
use hawser_plugin::tuner::{
    Algorithm, Candidate, Class, Decision, Executor, Function, Protocol, Question, Reduction,
};

use crate::names::{self, DATA_TYPES};
use crate::range;

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named.
    pub file: Arc<str>,
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The place where it begins.
    pub place: Place,
    /// The name that its author gave it.
    pub name: Option<String>,
    /// Rules with a higher number are looked at first; equal ones in their order.
    pub priority: i64,
    /// The conditions under which the rule counts.
    pub when: Match,
    /// The actions: the first one that is possible is taken.
    pub chain: Vec<Action>,
    /// An action that the cost model takes for slower than its own choice, by more than [`GUARD`], is passed
    /// over.
    pub never_worse: bool,
}

/// Puts rules into the order in which they are looked at.
pub fn in_order<'r>(rules: impl Iterator<Item = &'r Rule>) -> Vec<&'r Rule> {
    let mut ordered: Vec<&Rule> = rules.collect();
    // Those of one priority keep their order.
    ordered.sort_by_key(|rule| std::cmp::Reverse(rule.priority));
    ordered
}

/// The factor by which an action of a `never_worse` rule may look slower than the cost model's own choice.
/// The model is not more exact.
pub const GUARD: f32 = 1.1;

impl Rule {
    /// `rule "small" (rules.toml:4:1)`.
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("rule \"{name}\" ({})", self.place),
            None => format!("rule at {}", self.place),
        }
    }
}

/// Everything but where it stands and its name: what ranks must have in common.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ->", self.when)?;
        for (at, action) in self.chain.iter().enumerate() {
            write!(f, "{} {action}", if at == 0 { "" } else { ", else" })?;
        }
        f.write_str(if self.never_worse { " never_worse" } else { "" })?;
        if self.priority == 0 { Ok(()) } else { write!(f, " priority {}", self.priority) }
    }
}

/// Ranges of which one has to hold; none = any number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ranges(pub Vec<RangeInclusive<u64>>);

impl Ranges {
    /// True if a number is in one of them.
    pub fn holds(&self, number: u64) -> bool {
        self.0.is_empty() || self.0.iter().any(|range| range.contains(&number))
    }

    /// True if every number that `other` allows is in one of these.
    fn covers(&self, other: &Self) -> bool {
        let inside = |inner: &RangeInclusive<u64>| {
            self.0.iter().any(|outer| outer.contains(inner.start()) && outer.contains(inner.end()))
        };
        self.0.is_empty() || (!other.0.is_empty() && other.0.iter().all(inside))
    }
}

/// Conditions; all that are given have to hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// Bit per number of [`Function`]; 0 = any.
    pub collectives: u32,
    /// Bytes of the larger of send and receive side.
    pub bytes: Ranges,
    /// Ranks of the communicator.
    pub ranks: Ranges,
    /// Ranks of every host.
    pub ranks_per_host: Ranges,
    /// The number of hosts.
    pub hosts: Ranges,
    /// Bit per number of [`DataType`]; 0 = any.
    pub data_types: u32,
    /// Bit per number of [`Reduction`]; 0 = any.
    pub ops: u32,
    /// Both buffers are registered, or not.
    pub registered: Option<bool>,
    /// In a graph, or not.
    pub in_graph: Option<bool>,
    /// Operations of the group that run together.
    pub pipelined: Option<u32>,
    /// Patterns for the communicator's name; none = any.
    pub communicators: Vec<String>,
}

/// The facts about a communicator that rules look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The number of ranks.
    pub ranks: u32,
    /// The number of hosts.
    pub hosts: u32,
    /// Fewest and most ranks of a host.
    pub per_host: (u32, u32),
    /// Its name; empty = none.
    pub name: String,
    /// Programs that the user brought, by their places.
    pub programs: Vec<String>,
}

impl Match {
    /// True if it is for such a communicator; if not, which condition fails.
    ///
    /// # Errors
    /// The key of the condition that fails.
    pub fn fits_job(&self, job: &Job) -> Result<(), &'static str> {
        let (fewest, most) = job.per_host;
        let named = |pattern: &String| names::matches_glob(pattern, &job.name);
        let held = [
            ("ranks", self.ranks.holds(job.ranks.into())),
            ("hosts", self.hosts.holds(job.hosts.into())),
            (
                "ranks_per_host",
                self.ranks_per_host.holds(fewest.into()) && self.ranks_per_host.holds(most.into()),
            ),
            ("communicator", self.communicators.is_empty() || self.communicators.iter().any(named)),
        ];
        held.iter().find(|(_, holds)| !holds).map_or(Ok(()), |(key, _)| Err(*key))
    }

    /// True if it is for such a call; communicators apart. If not, which condition fails.
    ///
    /// # Errors
    /// The key of the condition that fails.
    #[inline]
    pub fn fits_call(&self, question: &Question) -> Result<(), &'static str> {
        let bit = |mask: u32, number: Option<u32>| mask == 0 || number.is_some_and(|n| mask >> n & 1 != 0);
        if !bit(self.collectives, Some(question.function as u32)) {
            return Err("collective");
        }
        if !self.bytes.holds(question.bytes) {
            return Err("bytes");
        }
        if !bit(self.data_types, question.data_type.map(|t| t as u32)) {
            return Err("data_type");
        }
        if !bit(self.ops, question.op.map(|op| op as u32)) {
            return Err("op");
        }
        if self.registered.is_some_and(|wanted| wanted != question.registered) {
            return Err("registered");
        }
        if self.in_graph.is_some() && self.in_graph != question.in_graph {
            return Err("in_graph");
        }
        if self.pipelined.is_some_and(|wanted| wanted != question.pipelined) {
            return Err("operations");
        }
        Ok(())
    }

    /// True if it holds wherever `other` does.
    pub fn covers(&self, other: &Self) -> bool {
        let mask = |own: u32, other: u32| own == 0 || (other != 0 && other & !own == 0);
        let same = |own: Option<bool>, other: Option<bool>| own.is_none() || own == other;
        let names = self.communicators.is_empty()
            || self.communicators.iter().any(|pattern| pattern == "*")
            || (!other.communicators.is_empty()
                && other.communicators.iter().all(|name| self.communicators.contains(name)));
        names
            && mask(self.collectives, other.collectives)
            && mask(self.data_types, other.data_types)
            && mask(self.ops, other.ops)
            && same(self.registered, other.registered)
            && same(self.in_graph, other.in_graph)
            && (self.pipelined.is_none() || self.pipelined == other.pipelined)
            && self.bytes.covers(&other.bytes)
            && self.ranks.covers(&other.ranks)
            && self.ranks_per_host.covers(&other.ranks_per_host)
            && self.hosts.covers(&other.hosts)
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = Vec::new();
        let bits = |mask: u32, name: &dyn Fn(u32) -> &'static str| {
            let names: Vec<&str> = (0..32).filter(|bit| mask >> bit & 1 != 0).map(name).collect();
            names.join("|")
        };
        if self.collectives != 0 {
            let known = |bit: u32| Function::EVERY.into_iter().find(|f| *f as u32 == bit);
            let name = |bit: u32| known(bit).map_or("?", names::collective_name);
            words.push(bits(self.collectives, &name));
        }
        for (key, ranges, sizes) in [
            ("bytes", &self.bytes, true),
            ("ranks", &self.ranks, false),
            ("ranks_per_host", &self.ranks_per_host, false),
            ("hosts", &self.hosts, false),
        ] {
            if !ranges.0.is_empty() {
                let texts: Vec<String> = ranges.0.iter().map(|r| range::text(r, sizes)).collect();
                words.push(format!("{key} {}", texts.join("|")));
            }
        }
        if self.data_types != 0 {
            words.push(bits(self.data_types, &|bit| {
                DataType::ALL.get(bit as usize).map_or("?", |t| type_name(*t))
            }));
        }
        if self.ops != 0 {
            words.push(bits(self.ops, &|bit| Reduction::ALL.get(bit as usize).map_or("?", |op| op.name())));
        }
        for (key, value) in [("registered", self.registered), ("in_graph", self.in_graph)] {
            words.extend(value.map(|value| format!("{key} {value}")));
        }
        words.extend(self.pipelined.map(|count| format!("operations {count}")));
        if !self.communicators.is_empty() {
            words.push(format!("communicator {}", self.communicators.join("|")));
        }
        f.write_str(if words.is_empty() { "always" } else { "" })?;
        f.write_str(&words.join(", "))
    }
}

fn type_name(data_type: DataType) -> &'static str {
    let known = DATA_TYPES.iter().find(|(known, _)| *known == data_type);
    known.and_then(|(_, names)| names.first()).copied().unwrap_or("?")
}

/// An action: what a rule does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// The name of a program that the user brought; `way` then has no algorithm until the program was looked
    /// for.
    pub program: Option<String>,
    /// The candidates that the action means.
    pub way: Way,
    /// The number of channels (CTAs) to take; None = as the cost model says.
    pub channels: Option<u32>,
    /// The bytes per chunk; None = the library's default.
    pub chunk: Option<u64>,
    /// The class of the operation; None = as the call or the communicator says.
    pub class: Option<Class>,
}

impl Action {
    /// The action that leaves everything to the cost model.
    pub const DEFAULT: Self = Self { program: None, way: Way::ANY, channels: None, chunk: None, class: None };

    /// True if the action names a way to do the call, and not only how what is chosen anyway is done.
    pub fn names_a_way(&self) -> bool {
        self.program.is_some() || self.way != Way::ANY
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::DEFAULT {
            return f.write_str("default");
        }
        match &self.program {
            Some(program) => {
                write!(f, "program {program}")?;
                self.way.write_details(f)?;
            }
            None => write!(f, "{}", self.way)?,
        }
        self.channels.map_or(Ok(()), |channels| write!(f, " channels {channels}"))?;
        self.chunk.map_or(Ok(()), |chunk| write!(f, " chunk {}", range::size(chunk)))?;
        self.class.map_or(Ok(()), |class| write!(f, " class {}", class.name()))
    }
}

/// The candidates that an action means. What is None may be anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// The algorithm that is meant.
    pub algorithm: Option<Algorithm>,
    /// The executor that has to run the algorithm.
    pub executor: Option<RunBy>,
    /// The protocol that is meant. Without an executor it does not mean fused kernels, as it never did.
    pub protocol: Option<Protocol>,
    /// True if candidates that the user's settings hold back are meant too: the rule names the executor
    /// itself.
    pub takes_held: bool,
}

/// The executors that may run an algorithm by a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunBy {
    /// This executor.
    Only(Executor),
    /// Any executor but copy engines; with a protocol, no fused kernel either.
    Kernels,
}

impl RunBy {
    /// The word in rule files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Only(executor) => executor.name(),
            Self::Kernels => names::KERNELS,
        }
    }
}

impl Way {
    /// The number of a program that is not there: no candidate has it.
    pub const MISSING: Algorithm = Algorithm(u32::MAX);
    /// Every candidate that the settings do not hold back.
    pub const ANY: Self = Self { algorithm: None, executor: None, protocol: None, takes_held: false };

    /// True if a candidate is meant. Whether it is possible is another question.
    #[inline]
    pub fn takes(self, candidate: &Candidate<'_>) -> bool {
        let Decision { algorithm, executor, protocol, .. } = candidate.decision;
        let by_steps = self.protocol.is_none() || executor != Executor::Fused;
        let runs = match self.executor {
            None => by_steps,
            Some(RunBy::Kernels) => by_steps && executor != Executor::CopyEngine,
            Some(RunBy::Only(wanted)) => executor == wanted,
        };
        runs && (self.takes_held || !candidate.is_held_back())
            && self.algorithm.is_none_or(|wanted| wanted == algorithm)
            && self.protocol.is_none_or(|wanted| wanted == protocol)
    }

    /// Executor and protocol, after a slash each.
    fn write_details(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.executor.map_or(Ok(()), |executor| write!(f, "/{}", executor.name()))?;
        self.protocol.map_or(Ok(()), |protocol| write!(f, "/{}", protocol.name()))?;
        f.write_str(if self.executor.is_some() && !self.takes_held { " if not held back" } else { "" })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.algorithm.map_or("any", Algorithm::name))?;
        self.write_details(f)
    }
}

/// Something wrong in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The place of the fault.
    pub place: Place,
    /// The fault, and what would be right.
    pub text: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

//! Decisions about a collective, and the answers of a tuner: decisions, candidates and answers.
//!
//! A [`Decision`] is three words and a number: which algorithm, which executor runs it, which protocol it
//! uses, and on how many channels. A [`Candidate`] is a decision that the host could make, with the time that
//! it would take and a [`Status`]. All names are defined here; [`crate::tuner`] exports them too.

use std::fmt;

/// An algorithm: how data move between ranks, whoever runs it.
///
/// The numbers 0 to 6 are NCCL's. Those from 64 on are this library's own; 68 to 74 are not used any more.
/// Those from [`Algorithm::FIRST_PROGRAM`] on are programs that the user brought.
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
    pub const RECURSIVE_DOUBLING: Self = Self(80);
    pub const HALVING_DOUBLING: Self = Self(81);
    pub const BRUCK: Self = Self(82);
    pub const PAIRWISE: Self = Self(83);
    pub const KNOMIAL: Self = Self(84);
    pub const DOUBLE_RING: Self = Self(85);
    pub const NESTED: Self = Self(86);
    pub const RAIL_RING: Self = Self(87);
    pub const RAIL_TREE: Self = Self(88);
    pub const RAIL_RELAY: Self = Self(89);
    /// The number of the first program that the user brought; `TunerConfig::programs` has their names.
    pub const FIRST_PROGRAM: u32 = 1024;

    /// The names that stand in rule files. Case does not count there.
    pub const NAMES: [(Self, &'static str); 21] = [
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
        (Self::RECURSIVE_DOUBLING, "recursive_doubling"),
        (Self::HALVING_DOUBLING, "halving_doubling"),
        (Self::BRUCK, "bruck"),
        (Self::PAIRWISE, "pairwise"),
        (Self::KNOMIAL, "knomial"),
        (Self::DOUBLE_RING, "double_ring"),
        (Self::NESTED, "nested"),
        (Self::RAIL_RING, "rail_ring"),
        (Self::RAIL_TREE, "rail_tree"),
        (Self::RAIL_RELAY, "rail_relay"),
    ];
}

impl Algorithm {
    /// The program at this place of `TunerConfig::programs`.
    pub const fn program(place: u32) -> Self {
        Self(Self::FIRST_PROGRAM.saturating_add(place))
    }

    /// The place in `TunerConfig::programs`; None for an algorithm that is no program of the user.
    pub fn place(self) -> Option<usize> {
        self.0.checked_sub(Self::FIRST_PROGRAM).map(|place| place as usize)
    }

    /// The name in rule files; `program` for all programs of the user, `?` for a number that has no name.
    pub fn name(self) -> &'static str {
        if self.place().is_some() {
            return "program";
        }
        Self::NAMES.iter().find(|(known, _)| *known == self).map_or("?", |(_, name)| name)
    }
}

/// The executor of an algorithm: it runs the algorithm's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Executor {
    /// A kernel that takes any program step by step and moves data through FIFOs between ranks.
    Interpreter = 0,
    /// A kernel that is made for one or two exchanges between GPUs of one NVLink domain.
    Fused = 1,
    /// The GPU's copy engines, with a small kernel where data have to be reduced.
    CopyEngine = 2,
    /// Threads of the host's CPU, where ranks have no GPU.
    Host = 3,
}

impl Executor {
    /// All executors in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Interpreter, Self::Fused, Self::CopyEngine, Self::Host];

    /// The name in rule files and logs: `copy_engine`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interpreter => "interpreter",
            Self::Fused => "fused",
            Self::CopyEngine => "copy_engine",
            Self::Host => "host",
        }
    }
}

/// A protocol: how a receiver learns that data have arrived. The numbers are NCCL's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Protocol {
    /// Every 8 bytes hold 4 bytes of data and 4 of a flag: lowest latency, half the bandwidth.
    Ll = 0,
    /// Every 128 bytes hold 120 bytes of data and 8 of a flag.
    Ll128 = 1,
    /// Plain data, and a counter or flag after them: full bandwidth.
    Simple = 2,
}

impl Protocol {
    /// All protocols in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Ll, Self::Ll128, Self::Simple];

    /// The name in rule files and logs: `ll128`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ll => "ll",
            Self::Ll128 => "ll128",
            Self::Simple => "simple",
        }
    }
}

/// The way a collective is done, in three words and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The algorithm: how data move between ranks.
    pub algorithm: Algorithm,
    /// The executor: who runs the algorithm.
    pub executor: Executor,
    /// The protocol of its transfers.
    pub protocol: Protocol,
    /// The number of channels (CTAs, or queues of copy engines); 0 where it is not known.
    pub channels: u32,
}

impl Decision {
    /// A decision whose number of channels is not known.
    pub const fn new(algorithm: Algorithm, executor: Executor, protocol: Protocol) -> Self {
        Self { algorithm, executor, protocol, channels: 0 }
    }

    /// The same decision with another number of channels.
    #[must_use]
    pub const fn with_channels(mut self, channels: u32) -> Self {
        self.channels = channels;
        self
    }
}

/// `all_pairs/fused/ll128 channels 8`; a program of the user is `program 2/interpreter/simple`.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { algorithm, executor, protocol, channels } = *self;
        f.write_str(algorithm.name())?;
        if let Some(place) = algorithm.place() {
            write!(f, " {place}")?;
        }
        write!(f, "/{}/{}", executor.name(), protocol.name())?;
        if channels == 0 { Ok(()) } else { write!(f, " channels {channels}") }
    }
}

/// The status of a candidate: whether it can be taken, and how far its time can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status<'a> {
    /// It is possible, and its time is a prediction of a model that was compared with measured times, or the
    /// estimate of a tuner.
    Predicted,
    /// It is possible, but nobody has compared its predicted time with a measured one. The host takes it by
    /// its time only where nothing is [`Status::Predicted`].
    Unmeasured,
    /// It is possible, but the user's settings want something else. The host takes it only if a tuner orders
    /// it ([`Answer::ordered`]), which a tuner should do only where it was told to.
    HeldBack {
        /// The setting that holds it back, and what would ask for it.
        why: &'a str,
        /// True if the predicted time was compared with measured ones.
        is_measured: bool,
    },
    /// It is impossible, and no tuner can change that.
    Refused {
        /// The reason why it is impossible.
        why: &'a str,
    },
}

/// A decision that the host could make: what it would cost, and whether it can be taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate<'a> {
    /// The decision, with the number of channels that the host would use.
    pub decision: Decision,
    /// The microseconds that it is expected to take; 0 if it is refused.
    pub us: f32,
    /// True if it can be taken.
    pub status: Status<'a>,
}

impl<'a> Candidate<'a> {
    /// A candidate with a predicted time in microseconds.
    pub const fn predicted(decision: Decision, us: f32) -> Self {
        Self { decision, us, status: Status::Predicted }
    }

    /// A candidate that is impossible for the reason `why`.
    pub const fn refused(decision: Decision, why: &'a str) -> Self {
        Self { decision, us: 0.0, status: Status::Refused { why } }
    }

    /// True if the candidate can be ordered: it is not refused.
    pub const fn is_possible(&self) -> bool {
        !matches!(self.status, Status::Refused { .. })
    }

    /// True if the host may take the candidate because of its time: it is neither refused nor held back.
    pub const fn is_offered(&self) -> bool {
        matches!(self.status, Status::Predicted | Status::Unmeasured)
    }

    /// True if the settings hold the candidate back.
    pub const fn is_held_back(&self) -> bool {
        matches!(self.status, Status::HeldBack { .. })
    }

    /// True if the time was compared with measured ones, or is the estimate of a tuner.
    pub const fn is_measured(&self) -> bool {
        matches!(self.status, Status::Predicted | Status::HeldBack { is_measured: true, .. })
    }

    /// Gives the candidate a time that the tuner itself vouches for. An unmeasured candidate counts as
    /// predicted from then on; one that is held back or refused stays so.
    pub fn estimate(&mut self, us: f32) {
        match self.status {
            Status::Refused { .. } => return,
            Status::Unmeasured => self.status = Status::Predicted,
            Status::Predicted | Status::HeldBack { .. } => {}
        }
        self.us = us;
    }

    /// Makes the candidate impossible for this call.
    pub fn leave_out(&mut self) {
        (self.us, self.status) = (0.0, Status::Refused { why: "left out by a tuner" });
    }

    /// True if the host would rather take this candidate than `other`: one that is offered before one that is
    /// held back, one that is measured before one that is not, then the shorter time. False if this one is
    /// impossible.
    pub fn is_before(&self, other: &Self) -> bool {
        let class = |c: &Self| (!c.is_possible(), c.is_held_back(), !c.is_measured());
        let (own, theirs) = (class(self), class(other));
        self.is_possible() && (own < theirs || own == theirs && self.us < other.us)
    }
}

/// The answer of a tuner besides the times of candidates that it changed. The default has no opinion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Answer {
    /// The place of the candidate that has to be taken, whatever others cost and whatever holds it back; None
    /// = the host takes the candidate with the shortest time.
    pub order: Option<usize>,
    /// The number of channels to use; None = the host's default.
    pub channels: Option<u32>,
    /// The class of the operation; None = as the call or the communicator says.
    pub class: Option<Class>,
}

/// The class of an operation: how urgent it is. The numbers grow with the urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Class {
    /// It gives way to all others, but never for longer than a bound.
    BestEffort = 0,
    /// The class of operations of which nobody says another.
    Normal = 1,
    /// It comes first.
    Urgent = 2,
}

impl Class {
    /// All classes in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::BestEffort, Self::Normal, Self::Urgent];

    /// The name in rule files and logs: `best_effort`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BestEffort => "best_effort",
            Self::Normal => "normal",
            Self::Urgent => "urgent",
        }
    }
}

impl Answer {
    /// Orders the candidate at this place of the list.
    pub const fn ordered(place: usize) -> Self {
        Self { order: Some(place), channels: None, class: None }
    }

    /// The same answer with a number of channels; None = the host's default.
    #[must_use]
    pub fn with_channels(mut self, channels: impl Into<Option<u32>>) -> Self {
        self.channels = channels.into();
        self
    }

    /// The same answer with a class of the operation; None = as the call or the communicator says.
    #[must_use]
    pub fn with_class(mut self, class: impl Into<Option<Class>>) -> Self {
        self.class = class.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: Decision = Decision::new(Algorithm::RING, Executor::Interpreter, Protocol::Simple);

    #[test]
    fn decisions_have_a_text() {
        assert_eq!(RING.to_string(), "ring/interpreter/simple");
        let fused = Decision::new(Algorithm::ALL_PAIRS, Executor::Fused, Protocol::Ll128);
        assert_eq!(fused.with_channels(8).to_string(), "all_pairs/fused/ll128 channels 8");
        let own = Decision { algorithm: Algorithm::program(2), ..RING };
        assert_eq!(own.to_string(), "program 2/interpreter/simple");
        assert_eq!((Algorithm(68).name(), Algorithm::program(2).place()), ("?", Some(2)));
    }

    #[test]
    fn candidates_have_an_order() {
        let with = |us, status| Candidate { decision: RING, us, status };
        let held = |is_measured| Status::HeldBack { why: "a setting", is_measured };
        let order = [
            with(3.0, Status::Predicted),
            with(9.0, Status::Predicted),
            with(1.0, Status::Unmeasured),
            with(2.0, held(true)),
            with(1.0, held(false)),
        ];
        for (at, one) in order.iter().enumerate() {
            assert!(order[at + 1..].iter().all(|other| one.is_before(other) && !other.is_before(one)));
            assert!(one.is_possible() && one.is_offered() != one.is_held_back());
        }
        let refused = Candidate::refused(RING, "there is one host only");
        assert!(!refused.is_before(&order[4]) && order[4].is_before(&refused) && !refused.is_possible());
    }

    #[test]
    fn a_tuner_vouches_for_a_time_and_leaves_out() {
        let mut own = Candidate { decision: RING, us: 5.0, status: Status::Unmeasured };
        own.estimate(2.0);
        assert_eq!(own, Candidate::predicted(RING, 2.0));
        own.status = Status::HeldBack { why: "a setting", is_measured: true };
        own.estimate(1.0);
        assert!(own.is_held_back() && own.us == 1.0);
        own.leave_out();
        assert!(!own.is_possible());
        own.estimate(1.0);
        assert!(!own.is_possible() && own.us == 0.0);
    }

    #[test]
    fn nan_is_before_nothing_of_its_class() {
        let nan = Candidate::predicted(RING, f32::NAN);
        let usual = Candidate::predicted(RING, 1.0);
        assert!(!nan.is_before(&usual) && !usual.is_before(&nan));
    }
}

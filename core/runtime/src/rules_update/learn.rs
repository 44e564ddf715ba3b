//! Rank 0's learner: gets the times that ranks took, and proposes rules as anybody else does.
//!
//! ```text
//! each rank: Times ─take─► (collective, nanoseconds)... ─message─► rank 0: Gather
//! rank 0:    Gather ─all ranks told─► Learner ─Proposal─► the protocol (ADR 10)
//! ```
//!
//! The shortest time of all ranks is that of the operation: whoever begins last does not wait for anybody.
//! The mean of all is what the operation costs the job, waiting included.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hawser_plugin::learner::{Learner, Measured, Proposal};

use super::protocol::Outcome;
use super::wire;
use crate::record;
use crate::tuning::{Ran, Taken};

/// The most operations whose times have not come from all ranks; beyond it the oldest one is given up.
const MOST_OPEN: usize = 512;

/// Rank 0's learner, the times that it waits for, and its open proposal.
pub struct Learning {
    learner: Box<dyn Learner>,
    gather: Gather,
    /// The number and the content of the learner's own proposal, while that is open.
    open: Option<(u64, Arc<[u8]>)>,
    /// True if the rules have changed since the open proposal was made.
    is_stale: bool,
}

impl Learning {
    /// A learner for a communicator of so many ranks.
    pub fn new(learner: Box<dyn Learner>, ranks: u32) -> Self {
        Self { learner, gather: Gather { ranks, open: BTreeMap::new() }, open: None, is_stale: false }
    }

    /// Adds the times that another rank has told.
    pub fn hear(&mut self, rank: u32, times: &[(u64, u64)], now: Duration) {
        for &(number, nanos) in times {
            self.add(number, rank, nanos, None, now);
        }
    }

    /// Adds the times of this rank, which say what ran as well.
    pub fn take(&mut self, rank: u32, taken: &[Taken], now: Duration) {
        for Taken { number, ran, time } in taken {
            self.add(*number, rank, nanos(*time), Some(*ran), now);
        }
    }

    fn add(&mut self, number: u64, rank: u32, nanos: u64, ran: Option<Ran>, now: Duration) {
        if let Some(measured) = self.gather.add(number, rank, nanos, ran) {
            self.learner.measured(&measured, now);
        }
    }

    /// Tells the learner that something makes operations slow.
    pub fn stressed(&mut self, what: &str, now: Duration) {
        self.learner.stressed(what, now);
    }

    /// The proposal of the learner, if none is open.
    pub fn propose(&mut self, now: Duration) -> Option<Proposal> {
        if self.open.is_some() { None } else { self.learner.propose(now) }
    }

    /// Notes that the learner's proposal got this number.
    pub fn proposed(&mut self, number: u64, content: Arc<[u8]>) {
        (self.open, self.is_stale) = (Some((number, content)), false);
    }

    /// Tells the learner what became of the proposal with this number, if it was its own.
    pub fn settled(&mut self, number: u64, outcome: &Outcome, now: Duration) {
        if self.open.take_if(|(own, _)| *own == number).is_some() {
            let outcome = match outcome {
                Outcome::Changed(at) => Ok(*at),
                Outcome::Unchanged(why) | Outcome::Unknown(why) => Err(why.clone()),
            };
            self.learner.settled(outcome, now);
        }
    }

    /// The reason why a change may not be staged, if it is the learner's own and a user has changed the rules
    /// since.
    pub fn refuses(&self, content: &[u8]) -> Option<String> {
        let text = "a user's change came before this one of adaptive mode";
        (self.is_stale && self.is_own(content)).then(|| text.to_owned())
    }

    /// Notes that a change was decided. If it is not the learner's own, the learner begins anew with its
    /// rules.
    pub fn decided(&mut self, content: &[u8], now: Duration) {
        if !self.is_own(content)
            && let Some(files) = wire::unpack(content)
        {
            self.gather.open.clear();
            self.is_stale = true;
            self.learner.rebase(&files, now);
        }
    }

    fn is_own(&self, content: &[u8]) -> bool {
        self.open.as_ref().is_some_and(|(_, own)| **own == *content)
    }
}

/// The times of operations, gathered until those of all ranks are there.
struct Gather {
    ranks: u32,
    open: BTreeMap<u64, Row>,
}

#[derive(Default)]
struct Row {
    ran: Option<Ran>,
    /// The nanoseconds that each rank took.
    times: BTreeMap<u32, u64>,
}

impl Gather {
    fn add(&mut self, number: u64, rank: u32, nanos: u64, ran: Option<Ran>) -> Option<Measured> {
        let row = self.open.entry(number).or_default();
        row.ran = ran.or(row.ran);
        row.times.insert(rank, nanos);
        if row.times.len() == self.ranks as usize
            && let Some(ran) = row.ran
        {
            let measured = measured(&ran, &row.times);
            self.open.remove(&number);
            return measured;
        }
        if self.open.len() > MOST_OPEN
            && let Some(oldest) = self.open.first_key_value().map(|(number, _)| *number)
        {
            self.open.remove(&oldest);
        }
        None
    }
}

/// The measured time of an operation, from the times of all ranks.
fn measured(ran: &Ran, times: &BTreeMap<u32, u64>) -> Option<Measured> {
    let micros = |nanos: u64| nanos as f32 / 1000.0;
    let (&rank, &least) = times.iter().min_by_key(|(_, nanos)| **nanos)?;
    let next = times.iter().filter(|(other, _)| **other != rank).map(|(_, nanos)| *nanos).min();
    let Ran { function, bytes, decision, trial } = *ran;
    let late = next.map(|next| (rank, micros(next - least)));
    let cost_us = times.values().map(|nanos| micros(*nanos)).sum::<f32>() / times.len() as f32;
    Some(Measured { function, bytes, decision, trial, us: micros(least), cost_us, late })
}

/// Encodes times as a message: the number of each operation and its nanoseconds.
pub fn encode(taken: &[Taken]) -> Vec<u8> {
    record::encode(&taken.iter().map(|t| (t.number, nanos(t.time))).collect::<Vec<_>>())
}

/// Decodes what [`encode`] made; None for bytes that no rank sends.
pub fn decode(bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
    record::decode(bytes)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use hawser_plugin::tuner::{Algorithm, Decision, Executor, Function, Protocol, SettingsFile};

    use super::*;

    const RAN: Ran = Ran {
        function: Function::AllReduce,
        bytes: 4096,
        decision: Decision::new(Algorithm::RING, Executor::Host, Protocol::Simple),
        trial: true,
    };

    #[test]
    fn the_shortest_time_counts_when_all_have_told() {
        let mut gather = Gather { ranks: 3, open: BTreeMap::new() };
        assert_eq!(gather.add(7, 2, 9_000, None), None);
        assert_eq!(gather.add(8, 2, 1_000, None), None);
        assert_eq!(gather.add(7, 1, 2_500, None), None);
        let measured = gather.add(7, 0, 8_500, Some(RAN)).unwrap();
        assert_eq!((measured.us, measured.late, measured.trial), (2.5, Some((1, 6.0)), true));
        assert!((measured.cost_us - 20.0 / 3.0).abs() < 1e-3, "{measured:?}");
        assert_eq!((measured.function, measured.bytes), (Function::AllReduce, 4096));
        assert_eq!(gather.open.len(), 1);
        for number in 100..2_000 {
            assert_eq!(gather.add(number, 1, 1, None), None);
        }
        assert!(gather.open.len() <= MOST_OPEN && gather.open.contains_key(&1_999));
    }

    /// Remembers what it is told.
    #[derive(Default)]
    struct Told(Arc<Mutex<Vec<String>>>);

    impl Learner for Told {
        fn rebase(&mut self, files: &[SettingsFile], _: Duration) {
            self.0.lock().unwrap().push(format!("rebase {}", files[0].text));
        }
        fn measured(&mut self, measured: &Measured, _: Duration) {
            self.0.lock().unwrap().push(format!("{} µs", measured.us));
        }
        fn stressed(&mut self, _: &str, _: Duration) {}
        fn propose(&mut self, _: Duration) -> Option<Proposal> {
            Some(Proposal { why: String::new(), files: Vec::new() })
        }
        fn settled(&mut self, outcome: Result<u64, String>, _: Duration) {
            self.0.lock().unwrap().push(format!("{outcome:?}"));
        }
    }

    #[test]
    fn a_users_change_goes_before_its_own() {
        let now = Duration::ZERO;
        let content = |text: &str| wire::pack(&[SettingsFile { name: "a".into(), text: text.into() }]);
        let told = Told::default();
        let heard = told.0.clone();
        let mut learning = Learning::new(Box::new(told), 1);
        learning.take(0, &[Taken { number: 3, ran: RAN, time: Duration::from_micros(5) }], now);
        assert!(learning.propose(now).is_some());
        learning.proposed(1, content("own"));
        assert!(learning.propose(now).is_none(), "one is open");
        assert_eq!(learning.refuses(&content("own")), None);
        learning.decided(&content("own"), now);
        learning.settled(7, &Outcome::Changed(1), now);
        learning.settled(1, &Outcome::Changed(40), now);
        learning.proposed(2, content("own 2"));
        learning.decided(&content("user"), now);
        assert_eq!(learning.refuses(&content("another")), None);
        let why = learning.refuses(&content("own 2")).unwrap();
        learning.settled(2, &Outcome::Unchanged(why.clone()), now);
        let expected = ["5 µs".into(), "Ok(40)".into(), "rebase user".into(), format!("Err({why:?})")];
        assert_eq!(*heard.lock().unwrap(), expected);
    }

    #[test]
    fn times_travel() {
        let taken = |number, micros| Taken { number, ran: RAN, time: Duration::from_micros(micros) };
        let bytes = encode(&[taken(7, 3), taken(u64::MAX, 0)]);
        assert_eq!(decode(&bytes), Some(vec![(7, 3_000), (u64::MAX, 0)]));
        assert_eq!((decode(&encode(&[])), decode(&bytes[1..])), (Some(vec![]), None));
    }
}

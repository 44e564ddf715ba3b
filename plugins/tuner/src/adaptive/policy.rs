//! What rank 0 makes of measured times. Pure: time is passed in, nothing is sent from here.
//!
//! ```text
//! measured ─► slow loop: is a way clearly better, hopeless, or not better any more? ─┐
//!        └──► fast loop: far over the usual, or a rank late, three times in a row? ──┼─► wanted table ─► wish ─► agreed
//! stressed ─► ───────────────────────────────────────────────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_plugin::tuner::{Algorithm, Function, Protocol};

use super::times::Times;
use crate::names;
use crate::range;

/// Times on both sides that a verdict for or against a choice needs.
const ENOUGH: usize = 8;
/// What replaces another way is faster by this factor in the median, and most of its times are below most of the other's.
const GAIN: f32 = 0.95;
const MOST: f32 = 0.8;
/// Times after which a way may be found hopeless.
const FEW: usize = 3;
/// A hopeless way takes so many times longer, even at its best.
const HOPELESS: f32 = 1.5;
/// How long a hopeless way is not tried.
const AVOIDED_FOR: Duration = Duration::from_secs(600);
/// So many times the usual is stress, if it comes [`STRIKES`] times in a row.
const OVER: f32 = 3.0;
const STRIKES: u32 = 3;
/// How long it has to be calm before what was learned counts again: at first, and at most.
const FIRST_HOLD: Duration = Duration::from_secs(10);
const MOST_HOLD: Duration = Duration::from_secs(600);
/// How far apart changes are which are not urgent: each one makes all ranks plan their calls anew.
const PAUSE: Duration = Duration::from_secs(2);

/// Calls that are judged together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    function: i32,
    /// Their bytes lie between this power of two and the next.
    power: u32,
}

impl Class {
    /// Of a call.
    pub fn of(function: Function, bytes: u64) -> Self {
        Self { function: function as i32, power: bytes.max(1).ilog2() }
    }

    /// The collective.
    pub fn function(self) -> Function {
        let known = Function::EVERY.into_iter().find(|function| *function as i32 == self.function);
        known.unwrap_or(Function::AllReduce)
    }

    /// The bytes.
    pub fn bytes(self) -> std::ops::RangeInclusive<u64> {
        let first = 1 << self.power;
        first..=first + (first - 1)
    }
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = names::collective_name(self.function());
        write!(f, "{name} of {}", range::text(&self.bytes(), true))
    }
}

/// A way to run a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { algorithm, protocol } = *self;
        match algorithm.0.checked_sub(Algorithm::FIRST_PROGRAM) {
            Some(place) => write!(f, "program {place}")?,
            None => f.write_str(names::algorithm_name(algorithm))?,
        }
        write!(f, "/{}", names::protocol_name(algorithm, protocol))
    }
}

/// What all ranks have in common beside the files of the user.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Only the floor counts, and nothing is tried.
    pub is_floor: bool,
    /// What runs instead of the floor.
    pub learned: BTreeMap<Class, Learned>,
    /// What is not tried, and until when.
    pub avoided: Vec<(Class, Way, Duration)>,
}

/// A way that has proved to be better than the floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Learned {
    /// What runs.
    pub way: Way,
    /// Its median when that was found, in microseconds.
    pub us: f32,
    /// What the floor is.
    pub floor: Way,
    /// Its median then.
    pub floor_us: f32,
}

/// The two loops.
#[derive(Debug, Default)]
pub struct Policy {
    classes: BTreeMap<Class, State>,
    /// What all ranks have.
    agreed: Table,
    /// What they should have.
    wanted: Table,
    /// Why those differ.
    reasons: Vec<String>,
    /// The wish that is being decided.
    open: Option<Table>,
    /// No wish before.
    not_before: Duration,
    is_urgent: bool,
    /// The floor counts until then.
    until: Duration,
    hold: Duration,
    /// What was learned counts again since then.
    calm_since: Option<Duration>,
}

/// What is known of a class.
#[derive(Debug, Default)]
struct State {
    times: Vec<(Way, Times)>,
    /// What runs if nothing is tried.
    usual: Option<Way>,
    /// Operations in a row that were far over their usual times.
    strikes: u32,
    late: Times,
    /// The rank that was late beyond the usual, and how often in a row.
    latecomer: (u32, u32),
}

impl State {
    fn of(&mut self, way: Way) -> &mut Times {
        let at = self.times.iter().position(|(known, _)| *known == way).unwrap_or_else(|| {
            self.times.push((way, Times::default()));
            self.times.len() - 1
        });
        &mut self.times[at].1
    }

    fn known(&self, way: Way) -> Option<&Times> {
        self.times.iter().find(|(known, _)| *known == way).map(|(_, times)| times)
    }
}

impl Policy {
    /// How long an operation of a class took by a way: microseconds; `late` is the rank that began last, and by how much.
    pub fn measured(
        &mut self,
        (class, way, is_trial): (Class, Way, bool),
        us: f32,
        late: Option<(u32, f32)>,
        now: Duration,
    ) {
        let stress = (!is_trial).then(|| self.stress(class, way, us, late)).flatten();
        let state = self.classes.entry(class).or_default();
        state.of(way).push(us);
        if !is_trial {
            state.usual = Some(way);
        }
        match stress {
            Some(what) => self.stressed(&what, now),
            None if self.wanted.is_floor => {}
            None if is_trial => self.judge(class, way, now),
            None => self.look_back(class, way),
        }
    }

    /// Something makes operations slow: back to the floor, at once.
    pub fn stressed(&mut self, what: &str, now: Duration) {
        if !self.wanted.is_floor {
            let is_back = self.calm_since.is_some_and(|since| now < since + self.hold);
            self.hold =
                if is_back { (self.hold * 2).min(MOST_HOLD) } else { (self.hold / 2).max(FIRST_HOLD) };
            let hold = self.hold.as_secs();
            self.reasons.push(format!("{what}: the floor counts until it has been calm for {hold} s"));
            self.wanted.is_floor = true;
            self.is_urgent = true;
        }
        self.until = now + self.hold;
    }

    /// What all ranks should agree on now, and why; it is open until [`Policy::settled`].
    pub fn wish(&mut self, now: Duration) -> Option<(Table, String)> {
        if self.open.is_some() {
            return None;
        }
        if self.wanted.is_floor && now >= self.until {
            self.wanted.is_floor = false;
            self.calm_since = Some(now);
            // What was measured before has to prove itself again.
            self.classes.clear();
            self.reasons.push(format!("it has been calm for {} s", self.hold.as_secs()));
        }
        if now < self.not_before && !self.is_urgent {
            return None;
        }
        self.wanted.avoided.retain(|(_, _, until)| now < *until);
        if self.wanted == self.agreed {
            self.reasons.clear();
            return None;
        }
        self.open = Some(self.wanted.clone());
        self.is_urgent = false;
        let why = match self.reasons.is_empty() {
            true => "what was hopeless is tried again".to_owned(),
            false => std::mem::take(&mut self.reasons).join("; "),
        };
        Some((self.wanted.clone(), why))
    }

    /// What became of the wish: all ranks have it, or nothing has changed.
    pub fn settled(&mut self, is_agreed: bool, now: Duration) {
        let Some(table) = self.open.take() else { return };
        if is_agreed {
            self.agreed = table;
            self.not_before = now + PAUSE;
        } else {
            self.not_before = now + PAUSE * 5;
        }
    }

    /// A trial: is the way better than what usually runs, or hopeless?
    fn judge(&mut self, class: Class, way: Way, now: Duration) {
        let Some(state) = self.classes.get_mut(&class) else { return };
        let Some(usual) = state.usual.filter(|usual| *usual != way) else { return };
        let (Some(own), Some(others)) = (state.known(way), state.known(usual)) else { return };
        let (us, other_us) = (own.median(), others.median());
        if own.count() >= FEW && others.count() >= FEW && own.quantile(0.0) > HOPELESS * others.upper() {
            let is_floor = self.wanted.learned.get(&class).is_some_and(|learned| learned.floor == way);
            if !is_floor && !self.wanted.avoided.iter().any(|(c, w, _)| (*c, *w) == (class, way)) {
                self.wanted.avoided.push((class, way, now + AVOIDED_FOR));
                self.reasons.push(format!("{class}: {way} is hopeless: {us:.1} µs, {usual} {other_us:.1}"));
            }
            return;
        }
        if own.count() < ENOUGH || others.count() < ENOUGH {
            return;
        }
        let is_better = us <= GAIN * other_us && own.quantile(MOST) < others.quantile(1.0 - MOST);
        match self.wanted.learned.get(&class).copied() {
            Some(learned) if learned.floor == way && us <= other_us => {
                let text = format!("is not better than {way} any more: {other_us:.1} and {us:.1} µs");
                self.give_up(class, learned, &text);
            }
            Some(learned) if learned.floor == way => {}
            before if is_better && before.is_none_or(|learned| learned.way != way) => {
                let floor = before.map_or((usual, other_us), |learned| (learned.floor, learned.floor_us));
                let spread = |times: &Times| {
                    format!("({:.1} to {:.1})", times.quantile(1.0 - MOST), times.quantile(MOST))
                };
                self.reasons.push(format!(
                    "{class}: {way} instead of {usual}: {us:.1} µs {} against {other_us:.1} {}",
                    spread(own),
                    spread(others)
                ));
                let learned = Learned { way, us, floor: floor.0, floor_us: floor.1 };
                self.wanted.learned.insert(class, learned);
                state.times.clear();
            }
            _ => {}
        }
        // Each verdict has times of its own: whoever looks often enough sees chance.
        if let Some(state) = self.classes.get_mut(&class) {
            *state.of(way) = Times::default();
        }
    }

    /// What was learned is in use: it has to stay below what the floor took when it was replaced.
    fn look_back(&mut self, class: Class, way: Way) {
        let Some(learned) = self.wanted.learned.get(&class).copied().filter(|learned| learned.way == way)
        else {
            return;
        };
        let own = self.classes.get(&class).and_then(|state| state.known(way));
        let Some(own) = own.filter(|own| own.count() >= ENOUGH) else { return };
        let us = own.median();
        if us > learned.floor_us {
            let (floor, floor_us) = (learned.floor, learned.floor_us);
            let text = format!("takes {us:.1} µs by now, {floor} took {floor_us:.1} before");
            self.give_up(class, learned, &text);
        }
    }

    fn give_up(&mut self, class: Class, learned: Learned, text: &str) {
        self.wanted.learned.remove(&class);
        self.classes.remove(&class);
        self.reasons.push(format!("{class}: {} {text}", learned.way));
    }

    /// What is wrong, if an operation that was no trial makes it the third time in a row.
    fn stress(&mut self, class: Class, way: Way, us: f32, late: Option<(u32, f32)>) -> Option<String> {
        let state = self.classes.entry(class).or_default();
        let usual = state.known(way).filter(|times| times.count() >= ENOUGH);
        let (median, upper) = (usual.map(Times::median)?, usual.map(Times::upper)?);
        state.strikes = if us > OVER * upper { state.strikes + 1 } else { 0 };
        if state.strikes >= STRIKES {
            state.strikes = 0;
            return Some(format!("{class} by {way} takes {us:.1} µs, usually {median:.1}"));
        }
        let (rank, behind) = late?;
        let is_usual = state.late.count() < ENOUGH || behind <= OVER * (state.late.upper() + median);
        state.late.push(behind);
        state.latecomer = match state.latecomer {
            _ if is_usual => (rank, 0),
            (before, times) if before == rank => (rank, times + 1),
            _ => (rank, 1),
        };
        (state.latecomer.1 >= STRIKES).then(|| {
            state.latecomer.1 = 0;
            format!("rank {rank} begins {class} {behind:.1} µs after all others")
        })
    }
}

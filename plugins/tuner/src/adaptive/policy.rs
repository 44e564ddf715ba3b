//! The judgement of rank 0 about measured times. It is pure: time is passed in, nothing is sent from here.
//!
//! ```text
//! measured ─► slow loop: is a way clearly better, hopeless, or not better any more? ─┐
//! └──► fast loop: far over the usual, or a rank late, three times in a row? ──┼─► wanted table ─► wish ─►
//! agreed stressed ─► ───────────────────────────────────────────────────────────────────────┘
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hawser_plugin::tuner::{Algorithm, Decision, Executor, Function, Protocol};

use super::WINDOW;
use super::times::Times;
use crate::names;
use crate::range;

/// Windows that a verdict for or against a choice needs, and measured operations until something is usual.
const ENOUGH: usize = 8;
/// The factor by which a way that replaces another one costs less in the median, and less at all in most
/// windows. The cost of a window counts as a share of that of the operations just before it.
const GAIN: f32 = 0.95;
const MOST: f32 = 0.8;
/// Windows after which a way may be found hopeless.
const FEW: usize = 3;
/// A hopeless way takes so many times longer, even at its best; one that takes far longer needs one window
/// less.
const HOPELESS: f32 = 1.5;
const FAR: f32 = 3.0;
/// A way that costs less by this factor in every window needs no second verdict.
const CLEAR: f32 = 0.9;
/// The time for which a hopeless way is not tried.
const AVOIDED_FOR: Duration = Duration::from_secs(600);
/// So many times the usual is stress, if it comes [`STRIKES`] times in a row. What has turned out to be
/// ordinary for this job has to come twice as often the next time; that is forgotten by halves.
const OVER: f32 = 3.0;
const STRIKES: u32 = 3;
const MOST_STRIKES: u32 = STRIKES << 9;
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Windows of what is suspended that have to be better than the floor under the same stress.
const PROOF: usize = 4;
/// The time for which it has to be calm before what was learned counts again: at first, and at most.
const FIRST_HOLD: Duration = Duration::from_secs(10);
const MOST_HOLD: Duration = Duration::from_secs(600);
/// The time between changes which are not urgent, since each one makes all ranks plan their calls anew: at
/// first, and at most. It doubles with each, so at rest there are no more than three in an hour.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MOST_PAUSE: Duration = Duration::from_secs(1200);

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

/// A way to run a call: a decision whose number of channels does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The executor: who runs the algorithm.
    pub executor: Executor,
    /// The protocol.
    pub protocol: Protocol,
}

impl From<Decision> for Way {
    fn from(decision: Decision) -> Self {
        let Decision { algorithm, executor, protocol, .. } = decision;
        Self { algorithm, executor, protocol }
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Decision::new(self.algorithm, self.executor, self.protocol).fmt(f)
    }
}

/// The table that all ranks have in common beside the files of the user.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Only the floor counts, and nothing is tried.
    pub is_floor: bool,
    /// The ways that run instead of the floor.
    pub learned: BTreeMap<Class, Learned>,
    /// The ways that are not tried, and until when.
    pub avoided: Vec<(Class, Way, Duration)>,
}

/// A way that has proved to be better than the floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Learned {
    /// The way that runs.
    pub way: Way,
    /// The median of what an operation cost when that was found, in microseconds.
    pub us: f32,
    /// The way that the floor takes.
    pub floor: Way,
    /// The median of what an operation cost by that one then.
    pub floor_us: f32,
}

/// The two loops.
#[derive(Debug, Default)]
pub struct Policy {
    classes: BTreeMap<Class, State>,
    /// The table that all ranks have.
    agreed: Table,
    /// The table that all ranks should have.
    wanted: Table,
    /// The reason why those differ.
    reasons: Vec<String>,
    /// The wish that is being decided.
    open: Option<Wish>,
    /// No wish before.
    not_before: Duration,
    /// The time between the last change and the next one.
    pause: Duration,
    is_urgent: bool,
    /// The power of two by which more times than [`STRIKES`] something has to be over the usual to be stress,
    /// and the time since which that is so.
    patience: (u32, Duration),
    /// The floor counts until then.
    until: Duration,
    /// It counts since then.
    stressed_since: Duration,
    hold: Duration,
    /// The moment since when what was learned counts again.
    calm_since: Option<Duration>,
}

/// A table that ranks decide about.
#[derive(Debug)]
struct Wish {
    table: Table,
    reasons: Vec<String>,
    is_urgent: bool,
}

/// The knowledge about a class of calls.
#[derive(Debug, Default)]
struct State {
    ways: Vec<Known>,
    /// The way that runs if nothing is tried.
    usual: Option<Way>,
    /// The costs of the last operations that were for no trial.
    before: VecDeque<f32>,
    /// The trial that is going on.
    window: Vec<f32>,
    /// Operations in a row that were far over their usual times.
    strikes: u32,
    late: Times,
    /// The rank that was late beyond the usual, and how often in a row.
    latecomer: (u32, u32),
}

/// The times of a way.
#[derive(Debug)]
struct Known {
    way: Way,
    /// Times while it was the usual way, in microseconds.
    recent: Times,
    /// The costs of those operations.
    costs: Times,
    /// The cost of an operation in each trial, as a share of what those just before it cost: a machine may be
    /// slower for a while.
    tried: Times,
    /// The verdict before was that it is better: a second one decides.
    was_better: bool,
}

impl State {
    fn of(&mut self, way: Way) -> &mut Known {
        let at = self.ways.iter().position(|known| known.way == way).unwrap_or_else(|| {
            let [recent, costs, tried] = Default::default();
            self.ways.push(Known { way, recent, costs, tried, was_better: false });
            self.ways.len() - 1
        });
        &mut self.ways[at]
    }

    /// The times of a way that has been usual for long enough.
    fn known(&self, way: Way) -> Option<&Known> {
        self.ways.iter().find(|known| known.way == way).filter(|known| known.recent.count() >= ENOUGH)
    }
}

impl Policy {
    /// Notes the time that an operation of a class took by a way, and its cost to the job, in microseconds;
    /// `late` is the rank that began last, and by how much. Returns a line about a trial that is over.
    pub fn measured(
        &mut self,
        (class, way, is_trial): (Class, Way, bool),
        (us, cost): (f32, f32),
        late: Option<(u32, f32)>,
        now: Duration,
    ) -> Option<String> {
        let state = self.classes.entry(class).or_default();
        if is_trial && state.usual != Some(way) {
            let share = state.tried(way, cost)?;
            match self.wanted.is_floor {
                true => self.judge_suspended(class, way, now),
                false => self.judge(class, way, now),
            }
            return Some(format!("{class}: a trial of {way} costs {share:.2} of what was usual before it"));
        }
        state.window.clear();
        if !is_trial {
            if state.usual != Some(way) {
                state.before.clear();
            }
            state.usual = Some(way);
            state.before.push_back(cost);
            if state.before.len() > WINDOW as usize {
                state.before.pop_front();
            }
        }
        if self.patience.0 > 0 && now >= self.patience.1 + FORGOTTEN_AFTER {
            self.patience = (self.patience.0 - 1, now);
        }
        let strikes = (STRIKES << self.patience.0).min(MOST_STRIKES);
        let stress = state.stress(class, way, (us, late.filter(|_| !is_trial)), strikes);
        let known = state.of(way);
        known.recent.push(us);
        known.costs.push(cost);
        // Where nothing was learned, the floor counts anyway.
        if let Some(what) = stress.filter(|_| !self.wanted.learned.is_empty()) {
            self.stressed(&what, now);
        }
        None
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
            self.stressed_since = now;
            // What windows show from now on is said under this stress.
            for known in self.classes.values_mut().flat_map(|state| &mut state.ways) {
                (known.tried, known.was_better) = (Times::default(), false);
            }
        }
        self.until = now + self.hold;
    }

    /// The table that all ranks should agree on now, and the reason; it is open until [`Policy::settled`].
    pub fn wish(&mut self, now: Duration) -> Option<(Table, String)> {
        if self.open.is_some() {
            return None;
        }
        if self.wanted.is_floor && now >= self.until {
            self.calm(now, &format!("it has been calm for {} s", self.hold.as_secs()));
        } else if self.wanted.is_floor && now >= self.stressed_since + MOST_HOLD {
            let text = "what was learned has not been better than the floor for so long that it is forgotten";
            self.wanted.learned.clear();
            self.calm(now, text);
        }
        if now < self.not_before && !self.is_urgent {
            return None;
        }
        self.wanted.avoided.retain(|(_, _, until)| now < *until);
        if self.wanted == self.agreed {
            self.reasons.clear();
            return None;
        }
        let is_urgent = std::mem::take(&mut self.is_urgent);
        if self.reasons.is_empty() {
            self.reasons.push("what was hopeless is tried again".to_owned());
        }
        let (why, table) = (self.reasons.join("; "), self.wanted.clone());
        let reasons = std::mem::take(&mut self.reasons);
        self.open = Some(Wish { table: table.clone(), reasons, is_urgent });
        Some((table, why))
    }

    /// The stress is over: what was learned counts again.
    fn calm(&mut self, now: Duration, why: &str) {
        self.wanted.is_floor = false;
        self.is_urgent = true;
        self.calm_since = Some(now);
        // What was measured before has to prove itself again.
        self.classes.clear();
        self.reasons.push(why.to_owned());
    }

    /// Notes the outcome of the wish: all ranks have it, or nothing has changed.
    pub fn settled(&mut self, is_agreed: bool, now: Duration) {
        let Some(Wish { table, mut reasons, is_urgent }) = self.open.take() else { return };
        if is_agreed {
            self.agreed = table;
            if !is_urgent {
                self.pause = (self.pause * 2).clamp(FIRST_PAUSE, MOST_PAUSE);
            }
            self.not_before = now + self.pause;
        } else {
            // It comes again, for the same reasons and those that came meanwhile.
            reasons.append(&mut self.reasons);
            self.reasons = reasons;
            self.not_before = now + self.pause.max(FIRST_PAUSE) * 4;
        }
    }

    /// A trial: is the way better than what usually runs, or hopeless?
    fn judge(&mut self, class: Class, way: Way, now: Duration) {
        let Some(state) = self.classes.get_mut(&class) else { return };
        let Some(usual) = state.usual.and_then(|usual| state.known(usual)) else { return };
        let Some(known) = state.ways.iter().find(|known| known.way == way) else { return };
        let own = &known.tried;
        let (other, other_us, share) = (usual.way, usual.costs.median(), own.median());
        let us = share * other_us;
        let learned = self.wanted.learned.get(&class).copied();
        let is_floor = learned.is_some_and(|learned| learned.floor == way);
        let least = own.quantile(0.0);
        if let Some(learned) = learned.filter(|_| is_floor) {
            let is_clear = own.count() >= FEW && own.quantile(1.0) < GAIN;
            if is_clear || own.count() >= ENOUGH && share <= 1.0 {
                // The floor does not wait for what is slower.
                self.is_urgent |= is_clear || share <= GAIN;
                let text = format!("is not better than {way} any more: {other_us:.1} and {us:.1} µs");
                return self.give_up(class, learned, &text);
            }
        }
        let is_hopeless = own.count() >= FEW && least > HOPELESS || own.count() + 1 >= FEW && least > FAR;
        if is_hopeless && !is_floor {
            if !self.wanted.avoided.iter().any(|(c, w, _)| (*c, *w) == (class, way)) {
                self.wanted.avoided.push((class, way, now + AVOIDED_FOR));
                self.reasons.push(format!("{class}: {way} is hopeless: {us:.1} µs, {other} {other_us:.1}"));
            }
            return;
        }
        if own.count() < ENOUGH {
            return;
        }
        let is_better = share <= GAIN && own.quantile(MOST) < 1.0;
        let [is_clear, was_better] = [own.quantile(1.0) < CLEAR, known.was_better];
        match learned {
            before
                if is_better
                    && (is_clear || was_better)
                    && !is_floor
                    && before.is_none_or(|learned| learned.way != way) =>
            {
                let [least, most] = [1.0 - MOST, MOST].map(|part| own.quantile(part) * other_us);
                self.reasons.push(format!(
                    "{class}: {way} instead of {other}: {us:.1} µs ({least:.1} to {most:.1}) against \
                     {other_us:.1} µs in the operations before"
                ));
                let floor = before.map_or((other, other_us), |learned| (learned.floor, learned.floor_us));
                let learned = Learned { way, us, floor: floor.0, floor_us: floor.1 };
                self.wanted.learned.insert(class, learned);
                return state.ways.clear();
            }
            _ => {}
        }
        // Each verdict has windows of its own: whoever looks often enough sees chance.
        let known = state.of(way);
        (known.tried, known.was_better) = (Times::default(), is_better);
    }

    /// A trial of what is suspended, under stress: as long as it costs more than the floor, the stress goes
    /// on; if it costs less in all of some windows, the stress makes no difference, or is over.
    fn judge_suspended(&mut self, class: Class, way: Way, now: Duration) {
        if self.wanted.learned.get(&class).is_none_or(|learned| learned.way != way) {
            return;
        }
        let Some(state) = self.classes.get_mut(&class) else { return };
        let own = &mut state.of(way).tried;
        if own.count() < PROOF {
            return;
        }
        let (share, most) = (own.median(), own.quantile(1.0));
        *own = Times::default();
        if share <= GAIN && most < 1.0 {
            let (times, _) = self.patience;
            self.patience = ((times + 1).min((MOST_STRIKES / STRIKES).ilog2()), now);
            let why = format!("{class}: {way} costs {share:.2} of what the floor does under the same stress");
            self.calm(now, &why);
        } else if share > 1.0 {
            self.until = self.until.max(now + self.hold);
        }
    }

    fn give_up(&mut self, class: Class, learned: Learned, text: &str) {
        self.wanted.learned.remove(&class);
        self.classes.remove(&class);
        self.reasons.push(format!("{class}: {} {text}", learned.way));
    }
}

impl State {
    /// One more operation of a trial. When the trial is over: what an operation of it cost as a share of what
    /// those just before it cost. The first one does not count: it has what the usual way has left.
    fn tried(&mut self, way: Way, cost: f32) -> Option<f32> {
        self.window.push(cost);
        if self.window.len() < WINDOW as usize {
            return None;
        }
        let own = median(self.window.iter().skip(1))?;
        self.window.clear();
        let usual = self.usual?;
        self.known(usual)?;
        let before = median(self.before.iter()).filter(|before| *before > 0.0)?;
        let share = own / before;
        self.of(way).tried.push(share);
        Some(share)
    }

    /// Notes an operation that was no trial, and answers what is wrong, if anything has been so many times in
    /// a row.
    fn stress(
        &mut self,
        class: Class,
        way: Way,
        (us, late): (f32, Option<(u32, f32)>),
        strikes: u32,
    ) -> Option<String> {
        let recent = self.known(way).map(|known| &known.recent)?;
        let (median, upper) = (recent.median(), recent.upper());
        self.strikes = if us > OVER * upper { self.strikes + 1 } else { 0 };
        if self.strikes >= strikes {
            self.strikes = 0;
            return Some(format!("{class} by {way} takes {us:.1} µs, usually {median:.1}"));
        }
        let (rank, behind) = late?;
        let is_usual = self.late.count() < ENOUGH || behind <= OVER * (self.late.upper() + median);
        self.late.push(behind);
        self.latecomer = match self.latecomer {
            _ if is_usual => (rank, 0),
            (before, times) if before == rank => (rank, times + 1),
            _ => (rank, 1),
        };
        (self.latecomer.1 >= strikes).then(|| {
            self.latecomer.1 = 0;
            format!("rank {rank} begins {class} {behind:.1} µs after all others")
        })
    }
}

/// The median, between two of an even number; None without any.
fn median<'a>(all: impl Iterator<Item = &'a f32>) -> Option<f32> {
    let mut sorted: Vec<f32> = all.copied().collect();
    sorted.sort_by(f32::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + upper) / 2.0 } else { upper })
}

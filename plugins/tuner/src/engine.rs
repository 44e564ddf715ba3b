//! Applies rules: gives the answer to a question, without allocating, and says why it is so.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use hawser_plugin::tuner::{
    Agreement, Algorithm, Answer, Candidate, Decision, Executor, Function, Question, TunerConfig,
    TunerContext, rule_id,
};
use hawser_plugin::{Log, Result, Subsys};

use crate::adaptive::{self, Adaptive};
use crate::rule::{self, Action, GUARD, Job, Rule, RunBy, Way};

/// One more than the largest number of a function.
const FUNCTIONS: usize = Function::Gather as usize + 1;

/// The rules that count for a communicator.
pub struct Engine {
    rules: Vec<Armed>,
    /// For each function the rules that may fit, in the order in which they are looked at.
    of: [Vec<Entry>; FUNCTIONS],
    /// The text about the files: how many rules count.
    source: String,
    adaptive: Option<Adaptive>,
    /// The rules that name what is not tried.
    avoid: Vec<Rule>,
    programs: Vec<String>,
    log: Log,
}

/// A rule in the list of a function, with what most rules differ in.
struct Entry {
    /// No other sizes fit.
    bytes: (u64, u64),
    /// Place of the rule.
    at: usize,
}

struct Armed {
    rule: Rule,
    /// The [`rule_id`] of its name.
    id: Option<u64>,
    /// It was said that nothing of it is possible, or that the host tells too little.
    said: AtomicBool,
}

/// The time that a candidate was predicted to take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// The time in microseconds.
    pub us: f32,
    /// True if it was compared with measured times.
    pub is_measured: bool,
}

impl Price {
    fn of(candidate: &Candidate<'_>) -> Self {
        Self { us: candidate.us, is_measured: candidate.is_measured() }
    }

    /// True if this looks slower than `floor`, by more than [`GUARD`].
    fn is_over(self, floor: Self) -> bool {
        floor.is_measured && !self.is_measured || self.us > floor.us * GUARD
    }
}

impl std::fmt::Display for Price {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let never = if self.is_measured { "" } else { ", never measured," };
        write!(f, "{:.1} µs predicted{never}", self.us)
    }
}

/// The outcome of a rule for a question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome<'a> {
    /// Another call is meant: the key of the condition that fails.
    Other(&'static str),
    /// The host does not tell what the condition with this key asks for.
    Unknown(&'static str),
    /// An action is impossible here.
    Impossible(&'a Action),
    /// Nothing of the rule is possible here.
    Nothing,
    /// An action of a `never_worse` rule looks slower than the cost model's own choice: the prices of both.
    Slower(&'a Action, Price, Price),
    /// The rule leaves it to the cost model.
    Default,
    /// An action was taken, with this decision at this price.
    Taken(&'a Action, Decision, Price),
}

/// The choice of a trial.
enum Trial {
    /// The candidate at this place.
    Way(usize),
    /// The choice of the user's rules and the cost model.
    Floor,
}

/// The rule that decided, and what it takes.
struct Verdict<'a> {
    rule: &'a Rule,
    action: &'a Action,
    /// The place of the candidate.
    at: usize,
}

impl Verdict<'_> {
    /// The answer of a user's rule.
    fn answer(&self) -> Answer {
        let answer = if self.action.names_a_way() { Answer::ordered(self.at) } else { Answer::default() };
        answer.with_channels(self.action.channels).with_class(self.action.class)
    }
}

/// The communicator that a tuner's configuration describes, as rules see it.
impl From<&TunerConfig> for Job {
    fn from(config: &TunerConfig) -> Self {
        let (_, fewest, most) = config.domains;
        let (ranks, hosts) = (config.ranks, config.nodes);
        let (name, programs) = (config.name.clone(), config.programs.clone());
        Self { ranks, hosts, per_host: (fewest, most), name, programs }
    }
}

impl Engine {
    /// Picks the rules for a communicator. `files` is what logs call their source.
    pub fn new(rules: &[Rule], files: &str, job: &Job, log: Log) -> Self {
        let fitting = rule::in_order(rules.iter().filter(|rule| rule.when.fits_job(job).is_ok()));
        let source = match rules.is_empty() {
            true => "no rules".to_owned(),
            false => format!("{} of {} rules in {files}", fitting.len(), rules.len()),
        };
        let entry = |(at, rule): (usize, &&Rule)| {
            let ranges = &rule.when.bytes.0;
            let first = ranges.iter().map(|range| *range.start()).min().unwrap_or(0);
            let last = ranges.iter().map(|range| *range.end()).max().unwrap_or(u64::MAX);
            Entry { bytes: (first, last), at }
        };
        let of = std::array::from_fn(|number| {
            let mask = |rule: &Rule| rule.when.collectives == 0 || rule.when.collectives >> number & 1 != 0;
            fitting.iter().enumerate().filter(|(_, rule)| mask(rule)).map(entry).collect()
        });
        let armed = |rule: &Rule| Armed {
            rule: resolved(rule, &job.programs),
            id: rule.name.as_deref().map(rule_id),
            said: AtomicBool::new(false),
        };
        Self {
            rules: fitting.into_iter().map(armed).collect(),
            of,
            source,
            adaptive: None,
            avoid: Vec::new(),
            programs: job.programs.clone(),
            log,
        }
    }

    /// With adaptive mode, if it is asked for, and what it does not try.
    pub fn adaptive(mut self, adaptive: Option<Adaptive>, avoid: &[Rule]) -> Self {
        self.adaptive = adaptive;
        self.avoid = avoid.iter().map(|rule| resolved(rule, &self.programs)).collect();
        if let Some(adaptive) = adaptive {
            let _ = write!(self.source, ", {}", adaptive::describe(adaptive));
        }
        self
    }

    /// The number of rules that count here, and the files that they are from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Tells what became of every rule that was looked at, in order, until one decided.
    pub fn trace<'a>(
        &'a self,
        question: &Question,
        candidates: &[Candidate<'_>],
        see: impl FnMut(&'a Rule, Outcome<'a>),
    ) {
        let see = std::cell::RefCell::new(see);
        let other = |entry: &Entry| see.borrow_mut()(&self.rules[entry.at].rule, Outcome::Other("bytes"));
        let passed = |entries: &[Entry]| entries.iter().for_each(other);
        let seen = |armed: &'a Armed, outcome| see.borrow_mut()(&armed.rule, outcome);
        self.decide_by(|rule| !adaptive::is_suspended(rule), question, candidates, passed, seen);
    }

    /// The decision, and what became of the rules that are for such sizes.
    fn decide<'a>(
        &'a self,
        question: &Question,
        candidates: &[Candidate<'_>],
        see: impl FnMut(&'a Armed, Outcome<'a>),
    ) -> Option<Verdict<'a>> {
        self.decide_by(|rule| !adaptive::is_suspended(rule), question, candidates, |_| {}, see)
    }

    /// The word of the user's rules about a candidate that something else has chosen: the first action that
    /// means it, which may name channels and a chunk. Trials and what is learned from them run as the floor
    /// would, so that only ways are compared.
    fn details(&self, question: &Question, chosen: &Candidate<'_>) -> Option<&Action> {
        let is_users = |rule: &Rule| !adaptive::is_learned(rule);
        let verdict = self.decide_by(is_users, question, std::slice::from_ref(chosen), |_| {}, |_, _| {});
        verdict.map(|verdict| verdict.action)
    }

    /// The answer that takes this candidate, with the channels and the class that the user's rules have for
    /// it.
    fn as_the_floor_would(&self, question: &Question, candidates: &[Candidate<'_>], at: usize) -> Answer {
        let details = self.details(question, &candidates[at]);
        let (channels, class) = details.map_or((None, None), |action| (action.channels, action.class));
        Answer::ordered(at).with_channels(channels).with_class(class)
    }

    /// The decision by the rules that count; `passed` gets those for other sizes.
    fn decide_by<'a>(
        &'a self,
        counts: impl Fn(&Rule) -> bool,
        question: &Question,
        candidates: &[Candidate<'_>],
        passed: impl Fn(&'a [Entry]),
        mut see: impl FnMut(&'a Armed, Outcome<'a>),
    ) -> Option<Verdict<'a>> {
        let mut floor = None;
        let mut left = &self.of.get(question.function as usize)?[..];
        loop {
            let (others, rest) = left.split_at(of_other_sizes(left, question.bytes));
            passed(others);
            let (entry, rest) = rest.split_first()?;
            left = rest;
            let armed = &self.rules[entry.at];
            let rule = &armed.rule;
            if !counts(rule) {
                continue;
            }
            if question.rule.is_some() && question.rule != armed.id {
                see(armed, Outcome::Other("name"));
                continue;
            }
            if let Err(key) = rule.when.fits_call(question) {
                see(armed, unmet(key, question));
                continue;
            }
            let mut possible = false;
            for action in &rule.chain {
                if *action == Action::DEFAULT {
                    see(armed, Outcome::Default);
                    return None;
                }
                let Some(at) = meant(action, candidates) else {
                    see(armed, Outcome::Impossible(action));
                    continue;
                };
                possible = true;
                let price = Price::of(&candidates[at]);
                if rule.never_worse {
                    let own = || cheapest(candidates, |_| true).unwrap_or(at);
                    let floor = *floor.get_or_insert_with(|| Price::of(&candidates[own()]));
                    if price.is_over(floor) {
                        see(armed, Outcome::Slower(action, price, floor));
                        continue;
                    }
                }
                see(armed, Outcome::Taken(action, candidates[at].decision, price));
                return Some(Verdict { rule, action, at });
            }
            if !possible {
                see(armed, Outcome::Nothing);
            }
        }
    }

    /// The choice that an operation tries, if it is for a trial. Where something was learned, every second
    /// trial is for the other side: the floor, or what is suspended; while that is suspended, nothing else is
    /// tried.
    fn tried(&self, question: &Question, candidates: &[Candidate<'_>]) -> Option<Trial> {
        let trial = question.trial.filter(|_| self.adaptive.is_some())?;
        let learned = self.decide_by(adaptive::is_learned, question, candidates, |_| {}, |_, _| {});
        let pick = |trial| adaptive::pick(trial, question, candidates, &self.avoid).map(Trial::Way);
        match learned {
            None => pick(trial),
            Some(verdict) if adaptive::is_suspended(verdict.rule) => {
                trial.is_multiple_of(2).then_some(Trial::Way(verdict.at))
            }
            Some(_) if trial.is_multiple_of(2) => Some(Trial::Floor),
            Some(_) => pick(trial / 2),
        }
    }

    /// The decision of the user's rules alone.
    fn floor(&self, question: &Question, candidates: &[Candidate<'_>]) -> Option<Verdict<'_>> {
        self.decide_by(|rule| !adaptive::is_learned(rule), question, candidates, |_| {}, |_, _| {})
    }

    /// Says once per rule that nothing of it was possible, or that it can never match here.
    fn complain(&self, question: &Question, candidates: &[Candidate<'_>]) {
        let (name, bytes) = (question.function.name(), question.bytes);
        self.decide(question, candidates, |armed, outcome| {
            let text = match outcome {
                Outcome::Nothing => format!("asks for what is impossible for {name} of {bytes} bytes here"),
                Outcome::Unknown(key) => {
                    format!("has the condition {key}, which this library does not tell: it is passed over")
                }
                _ => return,
            };
            if !armed.said.swap(true, Ordering::Relaxed) {
                let rule = &armed.rule;
                let text = format!("rules: {} ({rule}) {text}. Said once", rule.title());
                // One for any collective cannot be possible for all of them.
                match rule.when.collectives {
                    0 if outcome == Outcome::Nothing => self.log.info(Subsys::TUNING, text),
                    _ => self.log.warn(text),
                }
            }
        });
    }
}

impl TunerContext for Engine {
    fn tune(&self, question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
        match self.tried(question, candidates) {
            Some(Trial::Way(at)) => return Ok(self.as_the_floor_would(question, candidates, at)),
            Some(Trial::Floor) => {
                let verdict = self.floor(question, candidates);
                return Ok(verdict.map(|verdict| verdict.answer()).unwrap_or_default());
            }
            None => {}
        }
        let mut odd = false;
        let verdict = self.decide(question, candidates, |armed, outcome| {
            let is_odd = matches!(outcome, Outcome::Nothing | Outcome::Unknown(_));
            odd |= is_odd && !armed.said.load(Ordering::Relaxed);
        });
        let answer = verdict.map(|verdict| match adaptive::is_learned(verdict.rule) {
            true => self.as_the_floor_would(question, candidates, verdict.at),
            false => verdict.answer(),
        });
        if odd {
            self.complain(question, candidates);
        }
        Ok(answer.unwrap_or_default())
    }

    fn chunk_bytes(&self, question: &Question, chosen: &Candidate<'_>) -> Result<Option<u64>> {
        Ok(self.details(question, chosen).and_then(|action| action.chunk))
    }

    fn agreement(&self) -> Option<Agreement> {
        // FNV-1a, equal on all hosts and builds.
        let mut digest = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |line: String| {
            for byte in line.bytes() {
                digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        self.rules.iter().for_each(|armed| add(format!("{}\n", armed.rule)));
        // A call may ask for a rule by its name.
        self.rules
            .iter()
            .filter_map(|armed| armed.rule.name.as_ref())
            .for_each(|name| add(format!("{name:?}\n")));
        if let Some(adaptive) = self.adaptive {
            add(format!("{}\n", adaptive::describe(adaptive)));
            self.avoid.iter().for_each(|rule| add(format!("avoid {rule}\n")));
        }
        Some(Agreement { digest, source: self.source.clone() })
    }

    fn wants_every_collective(&self) -> bool {
        true
    }

    fn wants_copy_engines(&self) -> bool {
        let copied = Some(RunBy::Only(Executor::CopyEngine));
        let asks = |action: &Action| action.way.takes_held && action.way.executor == copied;
        self.rules.iter().any(|armed| armed.rule.chain.iter().any(asks))
    }

    fn wants_in_graph(&self) -> bool {
        self.rules.iter().any(|armed| armed.rule.when.in_graph.is_some())
    }

    fn trial(&self, operation: u64) -> Option<u32> {
        self.adaptive.and_then(|adaptive| adaptive.trial(operation))
    }

    fn wants_times(&self) -> bool {
        self.adaptive.is_some()
    }

    fn why(&self, question: &Question, candidates: &[Candidate<'_>]) -> Result<String> {
        match self.tried(question, candidates) {
            Some(Trial::Way(at)) => {
                let (decision, price) = (candidates[at].decision, Price::of(&candidates[at]));
                return Ok(format!("a trial of adaptive mode: takes {decision}, {price}"));
            }
            Some(Trial::Floor) => return Ok("a trial of adaptive mode: takes the floor".to_owned()),
            None => {}
        }
        let (mut first, mut lines, mut others) = (None, String::new(), 0);
        self.trace(question, candidates, |rule, outcome| {
            if matches!(outcome, Outcome::Taken(..) | Outcome::Default) {
                first = Some(rule.title());
            }
            match outcome {
                Outcome::Other(_) => others += 1,
                Outcome::Nothing => {}
                _ => drop(write!(lines, "\n{}: {}", rule.title(), describe(outcome))),
            }
        });
        let Some(first) = first else {
            let nothing = self.rules.is_empty() && lines.is_empty();
            let text = format!("no rule decided ({}){lines}", self.source);
            return Ok(if nothing { String::new() } else { text });
        };
        Ok(format!("{first}{lines}\n{} counted here; {others} before it are for other calls", self.source))
    }
}

/// The number of rules for other sizes before one that may be for this. Apart from its caller it stays a
/// tight loop, however the crate is compiled.
#[inline(never)]
fn of_other_sizes(entries: &[Entry], bytes: u64) -> usize {
    let mut count = 0;
    for Entry { bytes: (first, last), .. } in entries {
        if (*first..=*last).contains(&bytes) {
            break;
        }
        count += 1;
    }
    count
}

/// A rule whose programs have their numbers.
fn resolved(rule: &Rule, programs: &[String]) -> Rule {
    let mut rule = rule.clone();
    rule.chain.iter_mut().for_each(|action| resolve(action, programs));
    rule
}

/// Finds the number of an action's program. One that is not there is impossible.
fn resolve(action: &mut Action, programs: &[String]) {
    let Some(wanted) = &action.program else { return };
    let place = (0..).zip(programs).find(|(_, name)| *name == wanted).map(|(place, _)| place);
    action.way.algorithm = Some(place.map_or(Way::MISSING, Algorithm::program));
}

/// The place of the candidate that an action means.
#[inline]
fn meant(action: &Action, candidates: &[Candidate<'_>]) -> Option<usize> {
    let is_meant = |candidate: &Candidate<'_>| action.way.takes(candidate);
    match action.program {
        // A program's candidates begin with the protocol that its author meant.
        Some(_) => candidates.iter().position(|c| c.is_possible() && is_meant(c)),
        None => cheapest(candidates, is_meant),
    }
}

/// The place of the cheapest possible candidate that is meant.
#[inline]
fn cheapest(candidates: &[Candidate<'_>], is_meant: impl Fn(&Candidate<'_>) -> bool) -> Option<usize> {
    let mut best: Option<(usize, &Candidate<'_>)> = None;
    for (at, candidate) in candidates.iter().enumerate() {
        // A time that is no number is none.
        let is_possible = candidate.is_possible() && !candidate.us.is_nan();
        if is_possible && best.is_none_or(|(_, best)| candidate.is_before(best)) && is_meant(candidate) {
            best = Some((at, candidate));
        }
    }
    best.map(|(at, _)| at)
}

/// A condition fails because the call is another one, or because the host does not tell.
#[inline]
fn unmet<'a>(key: &'static str, question: &Question) -> Outcome<'a> {
    let is_unknown = match key {
        "data_type" => question.data_type.is_none(),
        "in_graph" => question.in_graph.is_none(),
        // Where nothing is reduced, there is no reduction to tell.
        "op" => question.op.is_none() && question.data_type.is_none(),
        _ => false,
    };
    if is_unknown { Outcome::Unknown(key) } else { Outcome::Other(key) }
}

/// An outcome for people.
pub fn describe(outcome: Outcome<'_>) -> String {
    match outcome {
        Outcome::Other(key) => format!("another call is meant ({key})"),
        Outcome::Unknown(key) => format!("passed over: this library does not tell {key}"),
        Outcome::Impossible(action) => match action.way.algorithm {
            Some(Way::MISSING) => format!("{action}: there is no such program"),
            _ => format!("{action}: impossible here"),
        },
        Outcome::Slower(action, price, floor) => {
            format!("{action}: passed over, {price} and {:.1} µs without it (never_worse)", floor.us)
        }
        Outcome::Nothing => "nothing of it is possible here".to_owned(),
        Outcome::Default => "leaves it to the cost model".to_owned(),
        Outcome::Taken(action, ..) if !action.names_a_way() => format!("{action}: for what is chosen anyway"),
        Outcome::Taken(action, decision, price) => format!("{action}: takes {decision}, {price}"),
    }
}

#[cfg(test)]
mod tests;

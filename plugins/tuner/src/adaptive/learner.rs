//! The policy between the host and rule files: what all ranks agree on is a text, the files of the user and
//! one more.

use std::time::Duration;

use hawser_plugin::learner::{Learner, Measured, Proposal};
use hawser_plugin::tuner::{SettingsFile, TunerConfig};
use hawser_plugin::{Level, Log, Subsys};

use super::policy::{Class, Learned, Policy, Table, Way};
use super::{Adaptive, is_tried};
use crate::contents::Contents;
use crate::files::RuleFile;
use crate::rule::{Action, Match, Place, Ranges, Rule, RunBy};
use crate::write;

/// The name by which messages know the file that this makes.
const NAME: &str = "adaptive mode";
/// Names of learned rules begin with one of these.
const LEARNED: &str = "learned";
const SUSPENDED: &str = "suspended";
/// Learned rules come before all others.
const FIRST: i64 = i32::MAX as i64;

/// True if a rule was learned.
pub fn is_learned(rule: &Rule) -> bool {
    &*rule.place.file == NAME
}

/// True if a rule was learned and does not count now, but in trials: there is stress.
pub fn is_suspended(rule: &Rule) -> bool {
    is_learned(rule) && rule.name.as_deref().is_some_and(|name| name.starts_with(SUSPENDED))
}

/// Learns for one communicator, on its rank 0.
pub struct Learning {
    log: Log,
    communicator: String,
    programs: Vec<String>,
    /// The user's files.
    base: Vec<SettingsFile>,
    /// The adaptive mode that those files ask for; None if they do not.
    adaptive: Option<Adaptive>,
    policy: Policy,
    /// The reason for the proposal.
    why: String,
}

impl Learning {
    /// Begins with these files.
    pub fn new(config: &TunerConfig, base: Vec<SettingsFile>) -> Self {
        let mut learning = Self {
            log: config.log.clone(),
            communicator: config.name.clone(),
            programs: config.programs.clone(),
            base: Vec::new(),
            adaptive: None,
            policy: Policy::default(),
            why: String::new(),
        };
        learning.rebase(&base, Duration::ZERO);
        learning
    }

    fn say(&self, text: &str) {
        let name = if self.communicator.is_empty() { "world" } else { &self.communicator };
        self.log.info(Subsys::TUNING, format!("adaptive mode of communicator {name}: {text}"));
    }
}

impl Learner for Learning {
    fn rebase(&mut self, files: &[SettingsFile], _: Duration) {
        self.base = files.iter().filter(|file| file.name != NAME).cloned().collect();
        let read = |file: &SettingsFile| RuleFile::named(&file.name).contents(&file.text).ok();
        let all: Vec<Contents> = self.base.iter().filter_map(read).collect();
        self.adaptive = Contents::join(all).adaptive();
        self.policy = Policy::default();
    }

    fn measured(&mut self, measured: &Measured, now: Duration) {
        let &Measured { function, bytes, decision, trial, us, cost_us, late } = measured;
        if self.adaptive.is_some() && is_tried(function) {
            let what = (Class::of(function, bytes), Way::from(decision), trial);
            if let Some(text) = self.policy.measured(what, (us, cost_us), late, now) {
                self.log.line(Level::Trace, Subsys::TUNING, &text);
            }
        }
    }

    fn stressed(&mut self, what: &str, now: Duration) {
        if self.adaptive.is_some() {
            self.policy.stressed(what, now);
        }
    }

    fn propose(&mut self, now: Duration) -> Option<Proposal> {
        // Without trials nothing is learned, so there is no floor to go back to.
        self.adaptive.filter(|adaptive| adaptive.period > 0)?;
        let (table, why) = self.policy.wish(now)?;
        let mut files = self.base.clone();
        files.push(SettingsFile { name: NAME.into(), text: text(&table, &self.programs) });
        self.why.clone_from(&why);
        Some(Proposal { why, files })
    }

    fn settled(&mut self, outcome: Result<u64, String>, now: Duration) {
        self.policy.settled(outcome.is_ok(), now);
        match outcome {
            Ok(at) => self.say(&format!("from collective {at} on: {}", self.why)),
            Err(why) => self.say(&format!("nothing changes now ({}): {why}", self.why)),
        }
    }
}

/// The table as a rule file.
fn text(table: &Table, programs: &[String]) -> String {
    let mut text = "# Written by adaptive mode; counts after all other files.\n".to_owned();
    if table.is_floor && table.learned.is_empty() {
        // No trials, and nothing but the floor.
        text.push_str("mode = \"adaptive\"\nbudget = 0\n");
        return text;
    }
    let state = if table.is_floor { SUSPENDED } else { LEARNED };
    for (class, learned) in &table.learned {
        let Learned { way, us, floor, floor_us } = learned;
        let name = format!("{state}: {way} {us:.1} µs, {floor} took {floor_us:.1}");
        text.push_str(&write::toml(&rule(*class, *way, Some(name), programs)));
    }
    for (class, way, _) in &table.avoided {
        text.push_str(&write::toml(&rule(*class, *way, None, programs)).replacen("[[rule]]", "[[avoid]]", 1));
    }
    text
}

/// The rule that takes one way for one class.
fn rule(class: Class, way: Way, name: Option<String>, programs: &[String]) -> Rule {
    let when = Match {
        collectives: 1 << class.function() as u32,
        bytes: Ranges(vec![class.bytes()]),
        ..Match::default()
    };
    let mut action = Action::DEFAULT;
    action.way.executor = Some(RunBy::Only(way.executor));
    action.way.protocol = Some(way.protocol);
    match way.algorithm.place() {
        Some(place) => action.program = programs.get(place).cloned(),
        None => action.way.algorithm = Some(way.algorithm),
    }
    let place = Place { file: NAME.into(), line: 0, column: 0 };
    let priority = if name.is_some() { FIRST } else { 0 };
    Rule { place, name, priority, when, chain: vec![action], never_worse: false }
}

/// A file's adaptive mode in words for people.
pub fn describe(adaptive: Adaptive) -> String {
    match adaptive.period {
        0 => "adaptive mode without trials".to_owned(),
        period => format!("adaptive mode, one trial in {period} operations"),
    }
}

#[cfg(test)]
mod tests {
    use hawser_plugin::tuner::{
        Algorithm, Candidate, Decision, Executor, Function, Protocol, Question, Status, TunerContext,
    };

    use super::*;
    use crate::engine::Engine;
    use crate::rule::Job;

    /// All kinds of ways come back from the text as what they were.
    #[test]
    fn the_table_is_read_as_it_is_written() {
        use Executor::{CopyEngine, Fused, Host, Interpreter};
        let candidate = |algorithm, executor, protocol, us| {
            Candidate::predicted(Decision::new(algorithm, executor, protocol), us)
        };
        let mut list = [
            candidate(Algorithm::RING, Interpreter, Protocol::Simple, 1.0),
            candidate(Algorithm::RING, Host, Protocol::Ll, 2.0),
            candidate(Algorithm::ALL_PAIRS, Interpreter, Protocol::Ll128, 3.0),
            candidate(Algorithm::ALL_PAIRS, Fused, Protocol::Ll128, 4.0),
            candidate(Algorithm::ONE_SHOT, Fused, Protocol::Ll, 5.0),
            candidate(Algorithm::RING, CopyEngine, Protocol::Simple, 6.0),
            candidate(Algorithm::program(1), Interpreter, Protocol::Ll128, 7.0),
            candidate(Algorithm::program(1), Interpreter, Protocol::Simple, 8.0),
            candidate(Algorithm::KNOMIAL, Interpreter, Protocol::Simple, 9.0),
            candidate(Algorithm::DIRECT, CopyEngine, Protocol::Simple, 1.0),
        ];
        list[9].status = Status::HeldBack { why: "a setting", is_measured: true };
        let programs = ["a".to_owned(), "my \"own\" one".to_owned()];
        let job =
            Job { ranks: 8, hosts: 1, per_host: (8, 8), name: String::new(), programs: programs.to_vec() };
        let class = Class::of(Function::AllToAll, 100_000);
        // Miri takes several seconds for each.
        let step = if cfg!(miri) { 4 } else { 1 };
        for (at, candidate) in list.iter().enumerate().take(9).step_by(step) {
            let way = Way::from(candidate.decision);
            let learned = Learned { way, us: 1.0, floor: way, floor_us: 2.0 };
            let mut table = Table::default();
            table.learned.insert(class, learned);
            table.avoided.push((class, way, Duration::ZERO));
            let written = text(&table, &programs);
            let read = RuleFile::named(NAME).contents(&written).unwrap_or_else(|e| panic!("{e}: {written}"));
            let engine = Engine::new(&read.rules, NAME, &job, Log::silent());
            let engine = engine.adaptive(Some(Adaptive { period: 10 }), &read.avoid);
            let taken = |bytes, trial| {
                let mut asked = list;
                let mut question = Question::new(Function::AllToAll, bytes);
                question.trial = trial;
                engine.tune(&question, &mut asked).unwrap().order
            };
            assert_eq!(taken(100_000, None), Some(at), "{written}");
            assert_eq!((taken(65_535, None), taken(131_072, None)), (None, None), "{written}");
            let tried = |bytes| (0..16).any(|trial| taken(bytes, Some(trial)) == Some(at));
            // What the cost model takes for more than 4 times slower is not tried anyway.
            assert_eq!((tried(100_000), tried(131_072)), (false, at < 4), "{written}");
        }
        let floor = text(&Table { is_floor: true, ..Table::default() }, &programs);
        let read = RuleFile::named(NAME).contents(&floor).unwrap();
        assert_eq!((read.rules.len(), read.adaptive()), (0, Some(Adaptive { period: 0 })));
    }
}

//! Adaptive mode as a whole, with a simulated clock: candidates with true times, noise, and all ranks as one.

use std::time::Duration;

use hawser_plugin::Log;
use hawser_plugin::learner::{Learner, Measured};
use hawser_plugin::tuner::{
    Algorithm, Candidate, Decision, Executor, Function, Protocol, Question, SettingsFile, Status, Tuner,
    TunerConfig, TunerContext,
};
use proptest::prelude::*;

use super::{Adaptive, Learning, pick};
use crate::RuleTuner;

/// The times that the cost model predicts for the candidates.
const PREDICTED: [f32; 5] = [900.0, 700.0, 800.0, 1500.0, 2500.0];
const ALGORITHMS: [Algorithm; 5] =
    [Algorithm::RING, Algorithm::TREE, Algorithm::ALL_PAIRS, Algorithm::ONE_SHOT, Algorithm::KNOMIAL];
/// The floor: the first candidate, by a rule.
const BASE: &str = "mode = \"adaptive\"\n[[rule]]\nuse = { algorithm = \"ring\" }\n";
const BYTES: u64 = 100_000;

/// The decision of the candidate at this place.
fn decision(at: usize) -> Decision {
    Decision::new(ALGORITHMS[at], Executor::Interpreter, Protocol::Simple).with_channels(at as u32 + 1)
}

struct World {
    tuner: RuleTuner,
    config: TunerConfig,
    context: Box<dyn TunerContext>,
    learning: Learning,
    /// The settings that all ranks take next, and the operation at which they do.
    coming: Option<(u64, Box<dyn TunerContext>)>,
    now: Duration,
    number: u64,
    /// True times of the candidates in microseconds.
    us: [f32; 5],
    /// All times are longer by up to this share, and one of a hundred is ten times as long.
    noise: f32,
    /// The cost of operations to the job, as a multiple of the time that they take once all ranks have begun.
    leaves: [f32; 5],
    random: u64,
    /// The candidates that were taken, by operation.
    taken: Vec<u8>,
    trials: u64,
    spent: f64,
    /// The time that the floor would have taken.
    floor: f64,
    proposals: Vec<String>,
    /// The last operation has this rank late.
    late: Option<(u32, f32)>,
    refuse: bool,
}

impl World {
    fn new(us: [f32; 5], noise: f32, seed: u64) -> Self {
        let tuner = RuleTuner::new(Vec::new());
        let config = TunerConfig::new(1, 8, 1, Log::silent());
        let base = vec![SettingsFile { name: "base.toml".into(), text: BASE.into() }];
        Self {
            context: tuner.open_with(&config, &base).unwrap(),
            learning: Learning::new(&config, base),
            tuner,
            config,
            coming: None,
            now: Duration::ZERO,
            number: 0,
            us,
            noise,
            leaves: [1.0; 5],
            random: seed,
            taken: Vec::new(),
            trials: 0,
            spent: 0.0,
            floor: 0.0,
            proposals: Vec::new(),
            late: Some((3, 1.0)),
            refuse: false,
        }
    }

    /// 0 to 1.
    fn draw(&mut self) -> f32 {
        self.random = self.random.wrapping_add(1);
        (super::scramble(self.random) >> 40) as f32 / (1 << 24) as f32
    }

    /// The factor by which noise makes an operation longer, by whatever way.
    fn longer(&mut self) -> f32 {
        let long = if self.draw() < 0.01 { 10.0 } else { 1.0 };
        long * (1.0 + self.noise * self.draw())
    }

    /// So many operations.
    fn run(&mut self, operations: u64) {
        (0..operations).for_each(|_| self.step());
    }

    fn step(&mut self) {
        let at = self.number;
        if let Some((_, context)) = self.coming.take_if(|(from, _)| *from <= at) {
            self.context = context;
            self.learning.settled(Ok(at), self.now);
        }
        let mut question = Question::new(Function::AllReduce, BYTES);
        question.trial = self.context.trial(at);
        let mut list = std::array::from_fn::<_, 5, _>(|at| Candidate::predicted(decision(at), PREDICTED[at]));
        let taken = self.context.tune(&question, &mut list).unwrap().order.expect("a rule decides");
        let trial = question.trial.is_some();
        let longer = self.longer();
        let (us, floor) = (self.us[taken] * longer, self.us[0] * self.leaves[0] * longer);
        let cost_us = us * self.leaves[taken];
        self.spent += f64::from(cost_us);
        self.floor += f64::from(floor);
        self.trials += u64::from(trial);
        self.taken.push(taken as u8);
        self.now += Duration::from_secs_f32(cost_us / 1e6);
        let is_before = self.context.trial(at + super::WINDOW).is_some();
        if self.context.wants_times() && (trial || is_before || at.is_multiple_of(16)) {
            let (function, bytes, late) = (Function::AllReduce, BYTES, self.late);
            let measured = Measured { function, bytes, decision: decision(taken), trial, us, cost_us, late };
            self.learning.measured(&measured, self.now);
        }
        self.number += 1;
        if self.coming.is_none()
            && let Some(proposal) = self.learning.propose(self.now)
        {
            self.proposals.push(proposal.why);
            if self.refuse {
                return self.learning.settled(Err("no".into()), self.now);
            }
            let context = self.tuner.open_with(&self.config, &proposal.files).unwrap();
            self.coming = Some((self.number + 16, context));
        }
    }

    /// The share of the last operations that ran a candidate.
    fn share(&self, candidate: u8, of: usize) -> f64 {
        let last = &self.taken[self.taken.len() - of..];
        last.iter().filter(|taken| **taken == candidate).count() as f64 / of as f64
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Of every period of operations one is for a trial, never more, in windows that have as many others
    /// before them; calls that repeat all have their turn.
    #[test]
    fn the_budget_is_kept(budget in 0.0005f64..0.1, first in 0u64..1 << 50, pattern in 1u64..12) {
        let adaptive = Adaptive::with_budget(budget);
        let length = adaptive.period * super::WINDOW;
        let first = first - first % length;
        let trials = |round: u64| {
            let all = first + round * length..first + (round + 1) * length;
            all.filter(|operation| adaptive.trial(*operation).is_some()).collect::<Vec<_>>()
        };
        let mut met = std::collections::BTreeSet::new();
        for round in 0..200 {
            let trials = trials(round);
            prop_assert_eq!(trials.len() as u64, super::WINDOW);
            prop_assert_eq!(trials[3], trials[0] + 3);
            prop_assert!((1..=4).all(|back| adaptive.trial(trials[0] - back).is_none()));
            met.insert(trials[0] % pattern);
        }
        prop_assert_eq!(met.len() as u64, pattern);
        prop_assert!(1.0 / adaptive.period as f64 <= budget);
    }

    /// Whatever the truth is: never worse than the floor within what trials may cost, and in the end what is
    /// clearly better runs.
    #[test]
    #[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
    fn the_floor_holds_and_what_is_better_is_found(
        factors in proptest::array::uniform4(0.2f32..20.0), noise in 0.0f32..0.3, seed: u64,
    ) {
        let mut us = [1000.0; 5];
        us.iter_mut().skip(1).zip(factors).for_each(|(us, factor)| *us *= factor);
        let mut world = World::new(us, noise, seed);
        world.run(60_000);
        prop_assert!(world.trials <= 600, "{}", world.trials);
        let (spent, floor) = (world.spent, world.floor);
        prop_assert!(spent <= floor * 1.02, "{spent} over {floor}: {:?}", world.proposals);
        let best = (0..5u8).min_by(|a, b| us[*a as usize].total_cmp(&us[*b as usize])).unwrap();
        if us[best as usize] < 700.0 {
            let (spent, floor) = (world.spent, world.floor);
            world.run(10_000);
            let gain = (world.spent - spent) / (world.floor - floor);
            prop_assert!(gain < 0.85, "{gain}: {:?} {us:?}", world.proposals);
        }
        if us.iter().skip(1).all(|us| *us > 1050.0) {
            prop_assert!(world.share(0, 60_000) > 0.989, "{:?} {us:?}", world.proposals);
        }
    }
}

/// A job this short is simulated under Miri too: nothing but trials leaves the floor.
#[test]
fn the_first_operations_are_the_floors_but_for_trials() {
    let mut world = World::new([1000.0, 1010.0, 1020.0, 1030.0, 1040.0], 0.1, 14);
    world.run(super::WINDOW * 2 * 100);
    assert_eq!(world.trials, super::WINDOW * 2, "one of a hundred");
    let others = world.taken.iter().filter(|taken| **taken != 0).count() as u64;
    assert!((1..=world.trials).contains(&others), "{others} of {} trials", world.trials);
}

#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn a_better_way_is_taken_and_a_hopeless_one_is_left_alone() {
    let mut world = World::new([1000.0, 400.0, 900.0, 8000.0, 1000.0], 0.1, 1);
    world.run(30_000);
    assert!(world.share(1, 10_000) > 0.98, "{:?}", world.proposals);
    let tried = world.taken.iter().filter(|taken| **taken == 3).count();
    assert!((8..40).contains(&tried), "{tried} trials of what is hopeless: {:?}", world.proposals);
    let text = world.proposals.join("\n");
    for part in [
        "all_reduce of 64K..128K: tree/interpreter/simple instead of ",
        ": 4",
        "one_shot/interpreter/simple is hopeless: 8",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // Ten minutes later it is asked again.
    let before = world.taken.len();
    world.run(2_000_000);
    let again = world.taken[before..].iter().filter(|taken| **taken == 3).count();
    assert!((8..80).contains(&again), "{again}");
}

/// A way that leaves its work to the next operation looks short by itself; what the job pays decides.
#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn what_looks_short_and_costs_more_is_not_taken() {
    let mut world = World::new([1000.0, 400.0, 850.0, 5000.0, 5000.0], 0.1, 9);
    world.leaves = [1.0, 3.0, 1.0, 1.0, 1.0];
    world.run(60_000);
    assert!(world.share(1, 60_000) < 0.01, "{:?}", world.proposals);
    assert!(world.share(2, 5_000) > 0.98, "{:?}", world.proposals);
}

/// Ways that are alike give chance nothing to do: at rest there are three changes in an hour at most.
#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn at_rest_little_changes() {
    let mut world = World::new([1000.0, 990.0, 1010.0, 1000.0, 1000.0], 0.5, 10);
    let hour = Duration::from_secs(3600);
    let mut run = |until: Duration| {
        while world.now < until {
            world.step();
        }
        // Noise may look like stress.
        world.proposals.iter().filter(|why| !why.contains("calm")).count()
    };
    let first = run(hour);
    let second = run(hour * 2) - first;
    assert!(first <= 14 && second <= 3, "{first} and {second}: {:#?}", world.proposals);
    assert!(world.spent <= world.floor * 1.02, "{} over {}", world.spent, world.floor);
}

#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn what_is_not_better_any_more_goes() {
    let mut world = World::new([1000.0, 400.0, 5000.0, 5000.0, 5000.0], 0.1, 2);
    world.run(30_000);
    assert!(world.share(1, 10_000) > 0.98);
    // Slower than the floor was, but not so much that it is stress.
    world.us[1] = 1150.0;
    world.run(3_500);
    assert!(world.share(0, 300) > 0.97, "{:?}", world.proposals);
    let last = world.proposals.last().unwrap();
    assert!(last.contains("is not better than ring/interpreter/simple any more"), "{:?}", world.proposals);
    // The floor has become as fast as what replaced it, which trials show.
    let mut world = World::new([1000.0, 400.0, 5000.0, 5000.0, 5000.0], 0.1, 3);
    world.run(30_000);
    world.us[0] = 300.0;
    world.run(30_000);
    assert!(world.share(0, 5_000) > 0.97, "{:?}", world.proposals);
}

#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn stress_brings_the_floor_at_once_until_what_was_learned_is_better_again() {
    let calm = [1000.0, 400.0, 5000.0, 5000.0, 5000.0];
    let mut world = World::new(calm, 0.1, 4);
    world.run(30_000);
    assert!(world.share(1, 10_000) > 0.98);
    // What hits the way that was learned, and not the floor.
    world.us[1] = 2000.0;
    let before = world.proposals.len();
    // Three measured operations, and the margin of the change.
    world.run(16 * 3 + 17 + 16);
    let all = world.proposals[before..].join("\n");
    assert!(all.contains("by tree/interpreter/simple takes 2") && all.contains("calm for 10 s"), "{all}");
    // Longer than it would have to be calm: trials of what is suspended say that it is not, and no other way
    // is tried.
    world.run(60_000);
    assert!(world.share(0, 59_900) > 0.99, "{:?}", world.proposals);
    let last = &world.taken[world.taken.len() - 59_900..];
    assert!(last.contains(&1) && last.iter().all(|taken| *taken < 2), "{:?}", world.proposals);
    // The stress is over, which some windows tell before it has been calm for long.
    world.us = calm;
    world.run(5_000);
    assert!(world.share(1, 500) > 0.9, "{:?}", world.proposals);
    assert!(world.proposals.last().unwrap().contains("under the same stress"), "{:?}", world.proposals);
    // What does not pass is forgotten.
    let mut world = World::new(calm, 0.1, 4);
    world.run(30_000);
    world.us[1] = 2000.0;
    world.run(700_000);
    let all = world.proposals.join("\n");
    assert!(all.contains("so long that it is forgotten") && world.share(0, 5_000) > 0.98, "{all}");
}

/// Bursts that hit all ways alike, as where ranks outnumber processors, are ordinary for the job after a
/// while; what is better runs on.
#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn what_hits_all_ways_alike_is_ordinary() {
    let calm = [1000.0, 700.0, 5000.0, 5000.0, 5000.0];
    let mut world = World::new(calm, 0.3, 12);
    world.run(30_000);
    assert!(world.share(1, 10_000) > 0.98, "{:?}", world.proposals);
    let mut bursts = |count: usize| {
        let before = world.proposals.len();
        for at in 0..count {
            world.us = calm.map(|us| us * 8.0);
            world.run(150 + at as u64 % 100);
            world.us = calm;
            world.run(2_000);
        }
        (world.proposals[before..].to_vec(), world.share(1, count * 2_000))
    };
    let (first, _) = bursts(100);
    assert!(first.iter().any(|why| why.contains("under the same stress")), "{first:#?}");
    let (second, share) = bursts(100);
    assert!(second.len() < 5 && share > 0.97, "{share}: {second:#?}");
    assert!(world.spent < world.floor, "{} over {}", world.spent, world.floor);
}

/// The time for which it has to be calm doubles when stress returns within it, and halves when it does not.
#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn the_time_of_calm_doubles_and_decays() {
    let mut world = World::new([1000.0; 5], 0.1, 13);
    let stress = |world: &mut World, operations: u64| {
        let trials = world.trials;
        world.learning.stressed("a rail is lost", world.now);
        world.run(8_000);
        assert!(world.trials <= trials + 4, "no trials while nothing was learned");
        let last = world.proposals.last().unwrap().clone();
        world.run(operations);
        last
    };
    assert!(stress(&mut world, 5_000).contains("calm for 10 s"));
    assert!(stress(&mut world, 15_000).contains("calm for 20 s"), "again so soon");
    assert!(stress(&mut world, 100_000).contains("calm for 40 s"), "{:?}", world.proposals);
    assert!(stress(&mut world, 0).contains("calm for 20 s"), "decayed");
}

#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn a_late_rank_and_what_the_host_tells_are_stress_too() {
    let mut world = World::new([1000.0, 400.0, 5000.0, 5000.0, 5000.0], 0.1, 5);
    world.run(30_000);
    world.late = Some((6, 9_000.0));
    world.run(16 * 3 + 17 + 16);
    let last = world.proposals.last().unwrap();
    assert!(last.contains("rank 6 begins all_reduce of 64K..128K 9000.0 µs after all others"), "{last}");
    assert_eq!(world.taken.last(), Some(&0));
    world.late = Some((3, 1.0));
    world.run(40_000);
    assert!(world.share(1, 1_000) > 0.9, "{:?}", world.proposals);
    world.learning.stressed("rank 2: rail mlx5_3 is stopped", world.now);
    world.run(30);
    assert!(world.proposals.last().unwrap().starts_with("rank 2: rail mlx5_3 is stopped: the floor counts"));
    assert_eq!(world.taken.last(), Some(&0));
}

/// A machine that is slower for a while is so for all ways: trials count as shares of what is usual then.
#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn what_is_slow_for_a_while_says_nothing_of_ways() {
    let calm = [1000.0; 5];
    let mut world = World::new(calm, 0.1, 8);
    for phase in 0..40 {
        world.us = calm.map(|us| if phase % 2 == 0 { us } else { us * 2.2 });
        world.run(3_000);
    }
    assert!(world.share(0, 120_000) > 0.985, "{:?}", world.proposals);
    assert!(!world.proposals.iter().any(|why| why.contains("hopeless")), "{:?}", world.proposals);
}

#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn what_is_refused_changes_nothing_and_comes_again() {
    let mut world = World::new([1000.0, 400.0, 900.0, 900.0, 900.0], 0.1, 6);
    world.refuse = true;
    world.run(40_000);
    assert!(world.share(0, 40_000) > 0.98 && world.proposals.len() > 1, "{:?}", world.proposals);
    // A reason stays one until it has led to something.
    let reason = world.proposals[0].as_str();
    assert!(world.proposals.iter().all(|why| why.contains(reason)), "{:?}", world.proposals);
    world.refuse = false;
    world.run(30_000);
    assert!(world.share(1, 1_000) > 0.98, "{:?}", world.proposals);
}

#[test]
#[cfg_attr(miri, ignore = "simulates tens of thousands of operations, which takes minutes")]
fn a_user_begins_anew_or_ends_it() {
    let mut world = World::new([1000.0, 400.0, 900.0, 900.0, 900.0], 0.1, 7);
    world.run(30_000);
    let rebase = |world: &mut World, text: &str| {
        let files = [SettingsFile { name: "new.toml".into(), text: text.into() }];
        world.context = world.tuner.open_with(&world.config, &files).unwrap();
        world.learning.rebase(&files, world.now);
        world.coming = None;
    };
    rebase(&mut world, "[[rule]]\nuse = { algorithm = \"all_pairs\" }\n");
    let before = (world.trials, world.proposals.len());
    world.run(10_000);
    assert_eq!((world.share(2, 10_000), (world.trials, world.proposals.len())), (1.0, before));
    rebase(&mut world, "mode = \"adaptive\"\nbudget = 0.05\n[[rule]]\nuse = { algorithm = \"all_pairs\" }\n");
    world.run(20_000);
    assert!(world.share(1, 1_000) > 0.94 && world.trials - before.0 == 1_000, "{:?}", world.proposals);
    // Without trials there is nothing to go back from, whatever happens.
    rebase(&mut world, "mode = \"adaptive\"\nbudget = 0\n[[rule]]\nuse = { algorithm = \"ring\" }\n");
    let before = (world.trials, world.proposals.len());
    world.run(1_000);
    world.learning.stressed("rank 2: rail mlx5_3 is stopped", world.now);
    world.run(1_000);
    assert_eq!((world.trials, world.proposals.len()), before);
}

#[test]
fn only_what_may_be_tried_is() {
    use Executor::{CopyEngine, Fused, Interpreter};
    let with = |algorithm, executor, protocol, us, status| Candidate {
        decision: Decision::new(algorithm, executor, protocol),
        us,
        status,
    };
    let (refused, held) = (Status::Refused { why: "" }, Status::HeldBack { why: "", is_measured: true });
    let list = [
        with(Algorithm::RING, Interpreter, Protocol::Simple, 10.0, Status::Predicted),
        with(Algorithm::TREE, Interpreter, Protocol::Simple, 0.0, refused),
        with(Algorithm::RING, CopyEngine, Protocol::Simple, 1.0, held),
        with(Algorithm::KNOMIAL, Interpreter, Protocol::Simple, 39.0, Status::Unmeasured),
        with(Algorithm::BRUCK, Interpreter, Protocol::Simple, 41.0, Status::Unmeasured),
        with(Algorithm::ALL_PAIRS, Interpreter, Protocol::Ll, 12.0, Status::Predicted),
        with(Algorithm::ALL_PAIRS, Fused, Protocol::Ll, 11.0, Status::Predicted),
    ];
    let picked = |text: &str, function| {
        let avoid = crate::schema::contents("a", text).unwrap().avoid;
        let question = Question::new(function, 5_000);
        let all: std::collections::BTreeSet<_> =
            (0..16).filter_map(|trial| pick(trial, &question, &list, &avoid)).collect();
        all.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(picked("", Function::AllGather), [0, 3, 5, 6]);
    assert_eq!(picked("", Function::Broadcast), [0; 0], "ranks may leave it early");
    let avoid = "[[avoid]]\nmatch = { bytes = \"4K..8K\" }\n\
                 use = [{ algorithm = \"ring\" }, { protocol = \"symll\" }]\n";
    assert_eq!(picked(avoid, Function::AllReduce), [3, 5]);
    assert_eq!(
        picked("[[avoid]]\nmatch.bytes = \"8K..\"\nuse = { algorithm = \"ring\" }\n", Function::AllReduce),
        [0, 3, 5, 6]
    );
    assert_eq!(pick(3, &Question::new(Function::AllReduce, 1), &[], &[]), None);
    // There are more than turns: those that look slowest are left out.
    let one = |at: u32| {
        let decision = Decision::new(Algorithm(at), Interpreter, Protocol::Simple);
        Candidate::predicted(decision, 30.0 - (at % 18) as f32)
    };
    let many: Vec<Candidate<'_>> = (0..20).map(one).collect();
    let question = Question::new(Function::AllReduce, 1);
    let mut all: Vec<_> = (0..16).filter_map(|trial| pick(trial, &question, &many, &[])).collect();
    assert_eq!((all[0], all[15]), (17, 2), "the cheapest first");
    all.sort_unstable();
    assert_eq!(all, (2..18).collect::<Vec<_>>());
}

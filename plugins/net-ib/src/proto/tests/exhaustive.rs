//! All schedules of small cases: from a connection that is up, every order of landings, completions, fences,
//! errors and messages of the control channel. Each state is looked at once. Every state from which nothing
//! but the clock moves must be finished or become so by the clock.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::specs;
use super::world::{Move, RECEIVER, World};
use crate::proto::Rules;
use crate::proto::rail::Rail;

/// A case: how many breaks of queue pairs the network may do, and whether fences may lose completions.
struct Case {
    rails: usize,
    plan: Vec<Vec<u64>>,
    breaks: usize,
    lossy: bool,
    doubles: usize,
    recovery: bool,
    control: bool,
}

fn rules(recovery: bool) -> Rules {
    let pause = if recovery { 1 } else { 1 << 50 };
    Rules {
        least_chunk: 16,
        most_chunk: 16,
        probes: 1,
        pause,
        longest_pause: pause,
        damped_pause: pause,
        deadline: if recovery { 10_000_000 } else { 5_000_000 },
        ..Rules::default()
    }
}

fn fingerprint(world: &World, budget: (usize, usize)) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, world, budget).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

fn explore(case: &Case) -> usize {
    let mut world = World::new(&specs(case.rails), &rules(case.recovery), Vec::new(), 4);
    world.turn();
    world.drain();
    assert!(world.tx.rails.all.iter().chain(&world.rx.rails.all).all(Rail::is_up));
    world.control_lost = !case.control;
    world.plan = case.plan.clone();
    world.turn();
    let mut seen = HashSet::new();
    let mut open = vec![(world, (case.breaks, case.doubles))];
    while let Some((world, budget)) = open.pop() {
        if !seen.insert(fingerprint(&world, budget)) {
            continue;
        }
        let progress = world.progress();
        if progress.is_empty() {
            settle(world.clone());
        }
        // Completions of the receiver's own control messages commute with everything: they go first.
        if let Some(&step) = progress.iter().find(|step| matches!(step, Move::Ack(_, _, RECEIVER))) {
            let mut after = world.clone();
            after.step(step);
            open.push((after, budget));
            continue;
        }
        let (breaks, doubles) = budget;
        let mut next: Vec<(Move, (usize, usize))> = progress.into_iter().map(|step| (step, budget)).collect();
        for step in world.faults_now(doubles > 0) {
            match step {
                Move::Break(..) if breaks > 0 => next.push((step, (breaks - 1, doubles))),
                Move::Double(..) if doubles > 0 => next.push((step, (breaks, doubles - 1))),
                Move::Fenced(..) if case.lossy => next.push((step, budget)),
                _ => {}
            }
        }
        next.extend(world.drops().into_iter().map(|step| (step, budget)));
        for (step, budget) in next {
            let mut after = world.clone();
            after.step(step);
            open.push((after, budget));
        }
    }
    seen.len()
}

/// Nothing moves but the clock: it must end well, or with an error at the deadline if all rails are gone.
fn settle(mut world: World) {
    for _ in 0..400 {
        world.drain();
        if world.is_over() {
            return;
        }
        if world.faults() != [None, None] {
            let gone = |rails: &[Rail]| !rails.iter().any(Rail::is_up);
            assert!(gone(&world.tx.rails.all) || gone(&world.rx.rails.all), "{:?}", world.faults());
            return;
        }
        assert!(world.wait(), "nothing will ever happen: {}", world.summary());
    }
    panic!("no end in sight: {}", world.summary());
}

#[test]
fn one_chunk_on_two_rails_and_one_break() {
    let (plan, breaks) = (vec![vec![16]], 1);
    let states =
        explore(&Case { rails: 2, plan, breaks, lossy: true, doubles: 0, recovery: false, control: false });
    assert!(states > 1000, "{states} states");
}

#[test]
fn one_rail_breaks_and_comes_back() {
    let (plan, breaks) = (vec![vec![16], vec![16]], 1);
    let states =
        explore(&Case { rails: 1, plan, breaks, lossy: true, doubles: 1, recovery: true, control: true });
    assert!(states > 1000, "{states} states");
}

#[test]
fn both_rails_of_two_break() {
    let (plan, breaks) = (vec![vec![16]], 2);
    let states =
        explore(&Case { rails: 2, plan, breaks, lossy: false, doubles: 0, recovery: false, control: false });
    assert!(states > 1000, "{states} states");
}

#[test]
fn two_chunks_on_two_rails_and_one_break() {
    let (plan, breaks) = (vec![vec![32]], 1);
    let states =
        explore(&Case { rails: 2, plan, breaks, lossy: true, doubles: 0, recovery: false, control: false });
    assert!(states > 1000, "{states} states");
}

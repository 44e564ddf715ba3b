//! Random schedules with faults of all kinds. `HAWSER_IB_SCHEDULES` sets how many; each has its seed in the
//! message.

use super::specs;
use super::world::{Move, RECEIVER, SENDER, World};
use crate::proto::rails::Fault;
use crate::proto::{Rules, Time};

/// A small generator of good enough numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, most: usize) -> usize {
        (self.word() % most.max(1) as u64) as usize
    }

    fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

fn schedules() -> u64 {
    // Enough for every day; the millions of the documentation are run by setting it.
    std::env::var("HAWSER_IB_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(4000)
}

fn rules() -> Rules {
    Rules { least_chunk: 16, most_chunk: 64, window: 12, control_window: 6, ..Rules::default() }
}

fn plan(dice: &mut Dice) -> Vec<Vec<u64>> {
    let groups = 1 + dice.below(12);
    let size = |dice: &mut Dice| [0, 1, 15, 64, 100, 333, 1000][dice.below(7)];
    (0..groups)
        .map(|_| {
            let many = if dice.chance(4) { 1 + dice.below(4) } else { 1 };
            (0..many).map(|_| size(dice)).collect()
        })
        .collect()
}

/// Faults while `budget` lasts, then a network that works again.
fn run(seed: u64) -> World {
    let mut dice = Dice(seed);
    let rails = 1 + dice.below(4);
    let plan = plan(&mut dice);
    let in_flight = 1 + dice.below(8);
    let mut rules = rules();
    if !seed.is_multiple_of(4) {
        rules.deadline = 0;
    }
    let mut world = World::new(&specs(rails), &rules, plan, in_flight);
    world.turn();
    let mut budget = dice.below(40);
    for _ in 0..4000 {
        if world.is_over() || world.faults() != [None, None] || budget == 0 && dice.chance(50) {
            break;
        }
        if budget > 0 && dice.chance(6) {
            budget -= 1;
            fault(&mut world, &mut dice, rails);
            continue;
        }
        let moves = world.progress();
        match moves.get(dice.below(moves.len())) {
            Some(&step) => world.step(step),
            None if !world.wait() => break,
            None => {}
        }
    }
    heal(&mut world, rails);
    world
}

fn fault(world: &mut World, dice: &mut Dice, rails: usize) {
    let (rail, end) = (dice.below(rails), dice.below(2));
    match dice.below(8) {
        0 => world.step(Move::Port(rail as u8, end, false)),
        1 | 2 => world.step(Move::Port(rail as u8, end, true)),
        3 => world.mute[end][rail] = !world.mute[end][rail],
        4 => {
            world.wait();
        }
        5 => {
            let drops = world.drops();
            if let Some(&step) = drops.get(dice.below(drops.len())) {
                world.step(step);
            }
        }
        _ => {
            let faults = world.faults_now(true);
            if let Some(&step) = faults.get(dice.below(faults.len())) {
                world.step(step);
            }
        }
    }
}

fn heal(world: &mut World, rails: usize) {
    for end in [SENDER, RECEIVER] {
        for rail in 0..rails {
            world.mute[end][rail] = false;
            if !world.ports[end][rail] {
                world.step(Move::Port(rail as u8, end, true));
            }
        }
    }
}

/// Runs a healthy network to the end: in bounded time.
fn finish(world: &mut World, limit: Time, seed: u64) {
    let end = world.now + limit;
    loop {
        world.drain();
        if world.is_over() || world.faults() != [None, None] {
            break;
        }
        assert!(world.now < end, "seed {seed}: stuck: {}", world.summary());
        assert!(world.wait(), "seed {seed}: nothing will ever happen: {}", world.summary());
    }
    world.check_numbers();
}

#[test]
fn everything_arrives_once_and_in_time_whatever_happens() {
    let (mut dark, mut resent) = (0, 0);
    for seed in 0..schedules() {
        let mut world = run(seed);
        finish(&mut world, 120_000_000, seed);
        resent += world.tx.rails.all.iter().map(|rail| rail.lost).sum::<u64>();
        match world.faults() {
            [None, None] => assert!(world.is_over()),
            // Faults may well last longer than the deadline, if there is one.
            faults => {
                let fine = |fault: &Option<&Fault>| fault.is_none_or(|fault| *fault == Fault::NoRail);
                assert!(faults.iter().all(fine), "seed {seed}: {faults:?}");
                dark += 1;
            }
        }
    }
    assert!(resent > 0 && dark < schedules() / 8, "{resent} chunks were written again, {dark} gave up");
}

#[test]
fn without_any_rail_both_ends_give_up_at_the_deadline() {
    for seed in 0..200 {
        let mut dice = Dice(seed);
        let rails = 1 + dice.below(3);
        let rules = rules();
        let mut world = World::new(&specs(rails), &rules, vec![vec![5000]; 20], 4);
        world.turn();
        for _ in 0..60 + dice.below(200) {
            let moves = world.progress();
            match moves.get(dice.below(moves.len())) {
                Some(&step) => world.step(step),
                None => break,
            }
        }
        if world.is_over() {
            continue;
        }
        let start = world.now;
        for rail in 0..rails {
            world.mute[SENDER][rail] = true;
            world.mute[RECEIVER][rail] = true;
        }
        while world.faults().contains(&None) {
            world.drain();
            let limit = start + rules.deadline + 2 * rules.silence + rules.attempt;
            assert!(world.now <= limit, "seed {seed}: no error in time");
            assert!(world.wait());
        }
        assert_eq!(world.faults(), [Some(&Fault::NoRail); 2], "seed {seed}");
    }
}

#[test]
fn n_failures_leave_one_rail_that_carries_all() {
    for (seed, rails) in [(1, 2), (2, 4), (3, 8)] {
        let mut dice = Dice(seed);
        let mut world = World::new(&specs(rails), &rules(), vec![vec![3000]; 30], 8);
        world.turn();
        let mut dead = 0;
        for turn in 0..20_000 {
            if world.is_over() {
                break;
            }
            if turn % 40 == 39 && dead < rails - 1 {
                // Loudly at either end, or silently.
                match dead % 3 {
                    2 => {
                        world.mute = world.mute.map(|mut ends| {
                            ends[dead] = true;
                            ends
                        })
                    }
                    end => world.step(Move::Port(dead as u8, end, false)),
                }
                dead += 1;
            }
            let moves = world.progress();
            match moves.get(dice.below(moves.len())) {
                Some(&step) => world.step(step),
                None => assert!(world.wait()),
            }
            assert_eq!(world.faults(), [None, None]);
        }
        assert!(dead > 0 && world.is_over(), "{}", world.summary());
    }
}

#[test]
fn an_offer_waits_for_the_receivers_port() {
    let mut world = World::new(&specs(1), &rules(), vec![vec![1000]; 10], 8);
    world.turn();
    world.drain();
    world.step(Move::Port(0, RECEIVER, false));
    world.drain();
    let epoch = world.tx.rails.all[0].epoch;
    world.plan.extend(vec![vec![1000]; 2]);
    while world.tx.rails.all[0].epoch == epoch {
        assert!(world.wait());
        world.drain();
    }
    // The sender has offered and waits for an answer for `attempt`: no further offer is needed.
    world.step(Move::Port(0, RECEIVER, true));
    world.drain();
    assert!(world.is_over() && world.tx.rails.all[0].epoch == epoch + 1, "{}", world.summary());
}

#[test]
fn a_rail_that_returns_is_used_again() {
    let mut world = World::new(&specs(2), &rules(), vec![vec![1000]; 10], 8);
    world.turn();
    world.drain();
    for flap in 0..3 {
        world.step(Move::Port(0, flap % 2, false));
        let more = |world: &mut World| {
            world.plan.extend(vec![vec![1000]; 2]);
            world.turn();
            world.drain();
            world.pass(50_000);
        };
        for _ in 0..100 {
            more(&mut world);
        }
        assert!(!world.tx.rails.all[0].is_up());
        world.step(Move::Port(0, flap % 2, true));
        let back = world.now;
        while !world.tx.rails.all[0].is_up() || !world.rx.rails.all[0].is_up() {
            more(&mut world);
            assert!(world.now - back < 5_000_000, "not back in 5 s: {}", world.summary());
        }
        world.drain();
        assert!(world.is_over());
    }
}

#[test]
fn the_last_rail_is_never_damped() {
    let mut world = World::new(&specs(1), &rules(), vec![vec![1000]; 4], 8);
    world.turn();
    world.drain();
    for flap in 0..20 {
        world.step(Move::Port(0, flap % 2, false));
        world.drain();
        world.plan.push(vec![1000]);
        world.pass(300_000);
        world.drain();
        world.step(Move::Port(0, flap % 2, true));
        let back = world.now;
        while !world.is_over() {
            world.drain();
            assert!(world.now - back < 3_000_000, "flap {flap}: {}", world.summary());
            world.pass(20_000);
        }
    }
}

#[test]
fn without_failover_the_first_loss_is_the_end() {
    let rules = Rules { failover: false, ..rules() };
    let mut world = World::new(&specs(2), &rules, vec![vec![1000]; 30], 8);
    world.turn();
    while !world.tx.rails.all[1].is_up() {
        let step = world.progress()[0];
        world.step(step);
    }
    world.step(Move::Port(1, SENDER, false));
    assert_eq!(world.tx.rails.fault, Some(Fault::Rail(1)));
}

#[test]
fn without_recovery_a_rail_that_failed_stays_away() {
    let rules = Rules { recovery: false, ..rules() };
    let mut world = World::new(&specs(2), &rules, vec![vec![1000]; 4], 8);
    world.turn();
    world.drain();
    assert!(world.tx.rails.all.iter().all(|rail| rail.is_up()));
    world.step(Move::Port(0, SENDER, false));
    world.drain();
    world.step(Move::Port(0, SENDER, true));
    for _ in 0..200 {
        world.plan.push(vec![1000]);
        world.pass(300_000);
        world.drain();
    }
    assert!(world.is_over(), "{}", world.summary());
    let up: Vec<bool> = world.tx.rails.all.iter().map(|rail| rail.is_up()).collect();
    assert_eq!(up, [false, true]);
}

#[test]
fn a_rail_that_loses_acknowledgements_does_not_come_back() {
    for end in [SENDER, RECEIVER] {
        let mut world = World::new(&specs(2), &rules(), vec![vec![1000]; 4], 8);
        world.turn();
        world.drain();
        world.step(Move::Port(0, end, false));
        world.drain();
        world.step(Move::Port(0, end, true));
        let is_up = |world: &World| world.tx.rails.all[0].is_up() && world.rx.rails.all[0].is_up();
        for _ in 0..200 {
            let fits = |step: &&Move| !matches!(step, Move::Ack(0, _, from) if *from == end);
            while let Some(&step) = world.progress().iter().find(fits) {
                world.step(step);
                assert!(!is_up(&world), "end {end}: {}", world.summary());
            }
            world.pass(50_000);
        }
        for _ in 0..200 {
            world.drain();
            world.pass(50_000);
        }
        assert!(is_up(&world), "end {end}: {}", world.summary());
    }
}

/// A rail breaks with the first chunk of each epoch, as with memory that the device does not reach: probes go
/// both ways, so the rail comes up again and again.
#[test]
fn faults_that_only_data_meets_end_at_the_deadline() {
    for rails in [1, 2] {
        let rules = rules();
        let mut world = World::new(&specs(rails), &rules, vec![vec![1000]; 4], 8);
        world.turn();
        let mut ups = 0;
        while world.faults() == [None, None] {
            let was_up = world.tx.rails.any_up();
            let moves = world.progress();
            match moves.first() {
                Some(&Move::Land(rail, epoch, SENDER)) if world.carries_data(rail, epoch) => {
                    world.step(Move::Break(rail, epoch, SENDER));
                    world.drops().into_iter().for_each(|step| world.step(step));
                }
                Some(&step) => world.step(step),
                None => assert!(world.wait()),
            }
            ups += u32::from(!was_up && world.tx.rails.any_up());
            assert!(world.now < 3 * rules.deadline, "retried without end: {}", world.summary());
        }
        assert_eq!(world.faults()[SENDER], Some(&Fault::NoRail));
        assert!(ups > 3, "it came up {ups} times");
    }
}

#[test]
fn rails_go_on_after_two_to_the_thirty_two_chunks() {
    let mut world = World::new(&specs(2), &rules(), vec![vec![1000]; 4], 8);
    world.turn();
    world.drain();
    let near = u32::MAX - 5;
    for rail in 0..2 {
        let (tx, rx) = (&mut world.tx.rails.all[rail], &mut world.rx.rails.all[rail]);
        (tx.written, tx.taken, rx.taken, rx.told) = (near, near, near, near);
    }
    world.plan.extend(vec![vec![1000]; 20]);
    for _ in 0..20 {
        world.pass(1000);
        world.drain();
    }
    assert!(world.is_over(), "{}", world.summary());
    let all = &world.tx.rails.all;
    assert!(all.iter().all(|rail| rail.epoch == 1 && rail.written < near && rail.taken < near));
}

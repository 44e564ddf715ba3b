//! The worlds that seeds draw: hosts, a program in acts, faults, and the conditions of the network.
//!
//! An **act** is what happens on one communicator; between two acts its members go over to the next one. All
//! steps and faults are **parts** with numbers, in the order in which they are drawn, and a world can be had
//! without some of them: so a failing one is made small.

use std::collections::BTreeSet;
use std::time::Duration;

use hawser_net_sim::{Conditions, Cut, Draws};
use hawser_types::{Collective, DataType, ReduceOp};

/// The longest time for which a step stops a rank.
pub const LONGEST_STOP: Duration = Duration::from_secs(8);

/// The number of the draws for [`Step::Groups`]. By it no world that a test names by its seed has any.
const GROUPS: u64 = 21;

/// The number of a part of a world.
pub type Part = usize;

/// All that a seed draws.
#[derive(Debug, Clone)]
pub struct World {
    /// The seed.
    pub seed: u64,
    /// The host of each rank, as a letter.
    pub hosts: String,
    /// The network.
    pub conditions: Conditions,
    /// Copy engines do what they can (`NCCL_PASS_SM`).
    pub sm_free: bool,
    /// Most CTAs of an operation.
    pub max_ctas: Option<u32>,
    /// The behaviour of a rank that has got an error.
    pub on_error: OnError,
    /// The acts.
    pub acts: Vec<Act>,
    /// Each rank is a process of its own. Otherwise those of a host are one.
    pub is_apart: bool,
    /// The end of a process, a host or a switch.
    pub death: Option<Death>,
    /// A rank that is stopped between two acts.
    pub pause: Option<Pause>,
    /// The number of parts that were drawn.
    pub parts: usize,
}

/// The behaviour of a rank that has got an error, before it meets the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum OnError {
    Nothing,
    Revoke,
}

/// The part of a world that happens on one communicator.
#[derive(Debug, Clone)]
pub struct Act {
    /// The steps of all its ranks.
    pub steps: Vec<Step>,
    /// A rank that leaves in the middle.
    pub leave: Option<Leave>,
    /// The way to the next communicator, if nothing failed before.
    pub then: Then,
}

/// The end of some ranks, or of what joins some hosts to others, in the middle of whatever they do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// The act in which it happens.
    pub act: usize,
    /// The moment from which the time is counted.
    pub from: From,
    /// Microseconds after that moment.
    pub after: u64,
    /// Those that it is about.
    pub victims: Victims,
    /// The thing that ends.
    pub manner: Manner,
}

/// The moments of an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The first rank has come to it.
    Begin,
    /// A rank goes over to the next communicator.
    GoingOver,
}

/// The ranks that a death is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Victims {
    /// All of these hosts.
    Hosts(Vec<String>),
    /// One, which is a process of its own.
    Rank(usize),
    /// The one that joins after the act. It is a process of its own.
    Joiner,
}

/// A rank is stopped while it goes over from an act to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// The act.
    pub act: usize,
    /// The place of the rank among the members, modulo their number.
    pub who: usize,
    /// Microseconds from the beginning of its way.
    pub after: u64,
    /// Milliseconds for which it is stopped.
    pub time: u64,
}

/// The things that end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// The processes, as by `kill -9`: the kernel closes their connections. The ranks of a host are one
    /// process, unless each is [one of its own](World::is_apart).
    Process,
    /// The hosts: nothing goes there any more, and nobody is told.
    Host,
    /// The switch by which the net of these hosts reaches the others. Control connections go another way.
    Switch(Cut),
}

/// A rank that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// The place of the rank among the members, modulo their number.
    pub who: usize,
    /// The number of steps that it does.
    pub after: usize,
    /// The way in which it leaves.
    pub how: How,
}

/// The ways to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Abort between two steps.
    Abort,
    /// Destroy, while others may still wait for it.
    Destroy,
    /// Abort by another thread, so many microseconds after the beginning of the last step.
    AbortDuring(u64),
}

/// The way from a communicator to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// A new one by a new id.
    Fresh,
    /// Without a rank: the one that has left, or the one at this place.
    Shrink(usize),
    /// The same ranks, by a split after a revoke.
    Regroup,
    /// With one rank more.
    Grow,
}

/// A step of a program, which all ranks of a communicator do.
#[derive(Debug, Clone)]
pub enum Step {
    /// A collective.
    Collective(Drawn),
    /// Collectives and messages in one group.
    Group(Vec<Drawn>, Vec<Message>),
    /// Groups of messages one after the other.
    Groups(Vec<Vec<Message>>),
    /// A split by colors, and collectives in the children.
    Split(Vec<i32>, Vec<Drawn>),
    /// The rank at a place, modulo the ranks, changes the rules to those of a number.
    Rules(usize, u64),
    /// Collectives on this communicator and, by another thread, on one of the same ranks.
    SideBySide(Vec<Drawn>, Vec<Drawn>),
    /// Every rank puts so many bytes to every rank, some times.
    Put(usize, usize),
    /// Collectives whose parts differ in length.
    Vectors,
    /// A small collective so many times, as many as a change of rules needs to count.
    Often(Drawn, usize),
    /// The memory is given back, and taken again.
    Suspend,
    /// The rank at a place does nothing for so many microseconds.
    Nap(usize, u64),
    /// All threads of the rank at a place stop, after so many microseconds, for so many milliseconds, while
    /// all call a collective.
    Stop(usize, u64, u64, Drawn),
}

/// A collective, for whatever number of ranks.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the names say it
pub struct Drawn {
    pub collective: Collective,
    pub dtype: DataType,
    pub op: ReduceOp,
    pub root: u32,
    pub count: usize,
    pub in_place: bool,
    pub shift: usize,
}

/// A message between places, modulo the ranks.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the names say it
pub struct Message {
    pub from: u32,
    pub to: u32,
    pub bytes: usize,
}

/// Counts parts while they are drawn, and leaves out those that are not wanted.
struct Parts<'a> {
    next: Part,
    without: &'a BTreeSet<Part>,
}

impl Parts<'_> {
    /// The drawn part, if it is wanted.
    fn keep<T>(&mut self, part: T) -> Option<T> {
        self.next += 1;
        (!self.without.contains(&(self.next - 1))).then_some(part)
    }
}

impl World {
    /// The world of a seed, without some of its parts.
    pub fn draw(seed: u64, without: &BTreeSet<Part>) -> Self {
        let (mut draws, mut parts) = (Draws::new(seed, 0), Parts { next: 0, without });
        let hosts = draw_hosts(&mut draws);
        let conditions = draw_conditions(seed, &mut draws, &mut parts);
        let sm_free = draws.percent(15);
        let max_ctas = draws.percent(30).then(|| 1 + draws.below(4) as u32);
        let on_error = if draws.percent(50) { OnError::Nothing } else { OnError::Revoke };
        let mut acts: Vec<Act> = (0..1 + draws.below(3)).map(|_| draw_act(&mut draws, &mut parts)).collect();
        let death = draw_death(seed, &hosts, acts.len());
        let (of_one, pause) =
            if death.is_none() { draw_death_of_one(seed, &hosts, &acts) } else { (None, None) };
        let is_apart = of_one.is_some();
        let death = death.or(of_one).filter(|_| !conditions.may_fail());
        let (death, pause) = (parts.keep(death).flatten(), parts.keep(pause).flatten());
        if let Some((act, at, groups)) = parts.keep(draw_groups(seed, acts.len())).flatten() {
            let steps = &mut acts[act].steps;
            steps.insert(at.min(steps.len()), groups);
        }
        let parts = parts.next;
        Self { seed, hosts, conditions, sm_free, max_ctas, on_error, acts, is_apart, death, pause, parts }
    }

    /// The number of ranks that begin.
    pub fn ranks(&self) -> usize {
        self.hosts.len()
    }

    /// The ranks that there are at most: growth adds one for each act.
    pub fn most_ranks(&self) -> usize {
        self.ranks() + self.acts.len()
    }

    /// The host of a rank; those that join later go round.
    pub fn host(&self, rank: usize) -> String {
        let letters = self.hosts.as_bytes();
        char::from(letters[rank % letters.len()]).to_string()
    }
}

/// Few hosts of any shape; a third of the worlds has one.
fn draw_hosts(draws: &mut Draws) -> String {
    let most = if draws.percent(25) { 7 } else { 3 };
    let ranks = 2 + draws.below(most);
    let hosts = if draws.percent(33) { 1 } else { 2 + draws.below(3) };
    (0..ranks).map(|_| char::from(b'a' + draws.below(hosts) as u8)).collect()
}

fn draw_conditions(seed: u64, draws: &mut Draws, parts: &mut Parts) -> Conditions {
    let mut conditions = Conditions { seed, latency_us: draws.below(60), ..Conditions::default() };
    conditions.mbytes = [100, 1_000, 10_000][draws.below(3) as usize];
    conditions.within = 1 + draws.below(300);
    let jitter = draws.below(200);
    conditions.jitter_us = parts.keep(jitter).unwrap_or(0);
    let not_now = [0, 10, 40][draws.below(3) as usize];
    conditions.not_now = parts.keep(not_now).unwrap_or(0);
    let queue = [1, 2, 8, 32][draws.below(4) as usize];
    conditions.queue = parts.keep(queue).unwrap_or(32);
    let stalls = [0, 0, 3][draws.below(3) as usize];
    conditions.stalls = parts.keep(stalls).unwrap_or(0);
    conditions.stall_us = 1 + draws.below(5_000);
    // One fault of the network at most, so that what is found has one cause.
    let fault = draws.below(12);
    let chance = 1 + draws.below(20);
    match parts.keep(fault) {
        Some(0 | 1) => conditions.deaths = chance,
        Some(2) => conditions.nic_deaths = chance,
        Some(3) => conditions.refusals = chance,
        Some(4) => conditions.silences = chance,
        _ => {}
    }
    conditions
}

/// A quarter of the worlds with several hosts has one, with draws of their own.
fn draw_death(seed: u64, hosts: &str, acts: usize) -> Option<Death> {
    let mut draws = Draws::new(seed, 2);
    let names: BTreeSet<char> = hosts.chars().collect();
    if names.len() < 2 || !draws.percent(25) {
        return None;
    }
    let act = draws.below(acts as u64) as usize;
    let longest = [300, 5_000, 50_000, 400_000][draws.below(4) as usize];
    let after = draws.below(longest);
    let manner = match draws.below(10) {
        0..5 => Manner::Process,
        5..8 => Manner::Host,
        8 => Manner::Switch(Cut::Told),
        _ => Manner::Switch(Cut::Silent),
    };
    let mut names: Vec<char> = names.into_iter().collect();
    let most = if draws.percent(25) { names.len() as u64 - 1 } else { 1 };
    let victims = 1 + draws.below(most) as usize;
    let draw = |_| names.swap_remove(draws.below(names.len() as u64) as usize).to_string();
    let victims = Victims::Hosts((0..victims).map(draw).collect());
    Some(Death { act, from: From::Begin, after, victims, manner })
}

/// Some worlds without another death have that of one rank, whose host goes on, more of those in which
/// communicators grow; and in half of them a rank is stopped on the way to another communicator. New ranks
/// are the favourites, since only they die while the others agree on what came of it.
fn draw_death_of_one(seed: u64, hosts: &str, acts: &[Act]) -> (Option<Death>, Option<Pause>) {
    let mut draws = Draws::new(seed, 3);
    let grows = acts.iter().position(|act| act.then == Then::Grow).filter(|at| at + 1 < acts.len());
    if !draws.percent(if grows.is_some() { 40 } else { 15 }) {
        return (None, None);
    }
    let act = draws.below(acts.len() as u64) as usize;
    let rank = draws.below(hosts.len() as u64) as usize;
    let grows = grows.filter(|_| draws.percent(75));
    let (act, from) = match grows {
        Some(act) => (act, From::GoingOver),
        None => (act, if draws.percent(30) { From::GoingOver } else { From::Begin }),
    };
    let is_joiner = draws.percent(70) && grows.is_some();
    let victims = if is_joiner { Victims::Joiner } else { Victims::Rank(rank) };
    // A growth takes a tenth of a millisecond, or some.
    let longest = [100, 2_000, 50_000, 400_000][draws.below(if grows.is_some() { 3 } else { 4 }) as usize];
    let death = Death { act, from, after: draws.below(longest), victims, manner: Manner::Process };
    let longest = [100, 300, 2_000][draws.below(3) as usize];
    let (after, time) = (draws.below(longest), 1 + draws.below(900));
    let pause = Pause { act, who: draws.below(8) as usize, after, time };
    (Some(death), draws.percent(50).then_some(pause))
}

/// A quarter of the worlds have groups of messages in one of their acts, at some place among its steps. They
/// have draws of their own, so that all else is as it was drawn before.
fn draw_groups(seed: u64, acts: usize) -> Option<(usize, usize, Step)> {
    let mut draws = Draws::new(seed, GROUPS);
    if !draws.percent(25) {
        return None;
    }
    let (act, at) = (draws.below(acts as u64) as usize, draws.below(6) as usize);
    let mut group = || -> Vec<Message> {
        let messages = draws.below(7);
        (0..messages).map(|_| draw_message(&mut draws)).collect()
    };
    let groups = [group(), group(), group(), group(), group()];
    let number = 2 + draws.below(4) as usize;
    Some((act, at, Step::Groups(groups[..number].to_vec())))
}

fn draw_message(draws: &mut Draws) -> Message {
    Message { from: draws.below(64) as u32, to: draws.below(64) as u32, bytes: draw_size(draws) }
}

fn draw_act(draws: &mut Draws, parts: &mut Parts) -> Act {
    let drawn: Vec<Step> = (0..1 + draws.below(8)).map(|_| draw_step(draws)).collect();
    let who = draws.below(8) as usize;
    let after = draws.below(drawn.len() as u64 + 1) as usize;
    let longest = if draws.percent(50) { 300 } else { 5_000 };
    let how = match draws.below(4) {
        0 => How::Abort,
        1 => How::Destroy,
        _ => How::AbortDuring(draws.below(longest)),
    };
    let leave = draws.percent(30).then_some(Leave { who, after, how });
    let then = match draws.below(4) {
        0 => Then::Fresh,
        1 => Then::Shrink(draws.below(8) as usize),
        2 => Then::Regroup,
        _ => Then::Grow,
    };
    let steps = drawn.into_iter().filter_map(|step| parts.keep(step)).collect();
    Act { steps, leave: parts.keep(leave).flatten(), then }
}

fn draw_step(draws: &mut Draws) -> Step {
    match draws.below(24) {
        0..9 => Step::Collective(draw_collective(draws)),
        9..13 => {
            let collectives = (0..draws.below(4)).map(|_| draw_collective(draws)).collect();
            Step::Group(collectives, (0..draws.below(9)).map(|_| draw_message(draws)).collect())
        }
        13..15 => {
            let colors = (0..16).map(|_| draws.below(4) as i32 - 1).collect();
            Step::Split(colors, (0..1 + draws.below(3)).map(|_| draw_collective(draws)).collect())
        }
        15..18 => Step::Rules(draws.below(8) as usize, draws.below(96)),
        // Each rank copies its heap then, which takes ten times as long as all else of a world.
        18 if draws.percent(2) => Step::Suspend,
        20..23 => {
            let drawn = draw_collective(draws);
            let few = Drawn { count: drawn.count % 200, ..drawn };
            Step::Often(few, 17 + draws.below(24) as usize)
        }
        19 => match draws.below(3) {
            0 => Step::Put(draw_size(draws), 1 + draws.below(3) as usize),
            1 => Step::Vectors,
            _ => {
                let some = |draws: &mut Draws| -> Vec<Drawn> {
                    (0..1 + draws.below(4)).map(|_| draw_collective(draws)).collect()
                };
                Step::SideBySide(some(draws), some(draws))
            }
        },
        18 => {
            let longest = if draws.percent(10) { LONGEST_STOP.as_millis() as u64 } else { 300 };
            let (after, time) = (draws.below(2_000), 1 + draws.below(longest));
            Step::Stop(draws.below(8) as usize, after, time, draw_collective(draws))
        }
        _ => Step::Nap(draws.below(8) as usize, draws.below(4_000)),
    }
}

fn draw_collective(draws: &mut Draws) -> Drawn {
    let collective = Collective::ALL[draws.below(8) as usize];
    Drawn {
        collective,
        dtype: DataType::ALL[draws.below(DataType::ALL.len() as u64) as usize],
        op: ReduceOp::ALL[draws.below(6) as usize],
        root: draws.below(64) as u32,
        count: draw_size(draws) / 4,
        in_place: draws.percent(30) && collective != Collective::AllToAll,
        shift: draws.below(3) as usize,
    }
}

/// Mostly little: a few bytes, a tile, some tiles.
fn draw_size(draws: &mut Draws) -> usize {
    let most = [16, 600, 5_000, 40_000, 300_000][[0, 1, 1, 2, 2, 3, 3, 4][draws.below(8) as usize]];
    draws.below(most) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_world_again_and_parts_can_be_left_out() {
        for seed in 0..200 {
            let world = World::draw(seed, &BTreeSet::new());
            assert_eq!(format!("{world:?}"), format!("{:?}", World::draw(seed, &BTreeSet::new())));
            let all: BTreeSet<Part> = (0..world.parts).collect();
            let bare = World::draw(seed, &all);
            assert!(bare.acts.iter().all(|act| act.steps.is_empty() && act.leave.is_none()));
            assert!(!bare.conditions.may_fail() && bare.death.is_none() && bare.pause.is_none());
        }
    }

    /// A part that is left out changes no other part.
    #[test]
    fn without_one_step_the_others_stay() {
        let whole = World::draw(5, &BTreeSet::new());
        let steps =
            |world: &World| world.acts.iter().map(|act| format!("{:?}", act.steps)).collect::<String>();
        for part in 0..whole.parts {
            let less = World::draw(5, &BTreeSet::from([part]));
            assert_eq!(less.parts, whole.parts);
            assert!(steps(&less).len() <= steps(&whole).len());
        }
    }
}

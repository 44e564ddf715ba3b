//! A world from init to its end: threads that are ranks, and what was wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use hawser_runtime::rules_update::Switch;
use hawser_runtime::{Comm, Config, Error, ErrorKind, Result, Shrink, UniqueId, unique_id};

use crate::holdings::Holdings;
use crate::step::{WRONG, carry_out};
use crate::turns;
use crate::world::{Act, How, Leave, OnError, Then, World};

/// The time after which a world hangs. Operations have deadlines that are far shorter.
const LIMIT: Duration = Duration::from_secs(120);

/// Nothing that a rank does may take so long: it would be a deadline that ended it.
const LONG: Duration = Duration::from_secs(12);

/// The doing of a rank while it waits for those of its own world, outside of the library.
const MEETS: &str = "meets the others";

/// Numbers of what a rank does in an act: init, steps, then the way to the next communicator.
const GOING_OVER: usize = 100;

/// The outcome of a world.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Sentences about broken invariants; none if the world is as it must be.
    pub findings: Vec<String>,
    /// Lines about what the ranks did, in order of rank and step.
    pub trace: Vec<String>,
    /// Steps that ranks did.
    pub steps: usize,
    /// Steps and ways to another communicator that ended with an error, as faults let them.
    pub errors: usize,
    /// The world is still running: the process is of no further use.
    pub hangs: bool,
}

/// Makes a communicator once, so that what a process holds for all of them is there.
///
/// # Errors
/// The library's.
pub fn warm_up() -> Result<()> {
    hawser_net_sim::set_conditions(Default::default(), None);
    let id = unique_id()?;
    let rank = |rank: u32| {
        let host = Some(["a", "a", "b"][rank as usize].to_owned());
        let config = Config { host, net: Some("Sim".to_owned()), sm_free: true, ..Config::default() };
        let comm = Comm::init(&[id], 3, rank, rank, config)?;
        hawser_tests::world::all_reduce(&comm, 500_000)?;
        comm.destroy()
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|number| scope.spawn(move || rank(number))).collect();
        let ends =
            ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err(Error::internal("panic"))));
        ends.collect()
    })
}

/// Runs a world.
pub fn run(world: &World) -> Outcome {
    let before = Holdings::now();
    hawser_net_sim::set_conditions(world.conditions.clone(), None);
    let stage = Arc::new(Stage::new(world.clone()));
    let (over, end) = mpsc::channel();
    let director = {
        let stage = stage.clone();
        std::thread::spawn(move || {
            stage.play();
            let _ = over.send(());
        })
    };
    let hangs = end.recv_timeout(LIMIT).is_err() && !director.is_finished();
    if !hangs {
        let _ = director.join();
    }
    let mut outcome = stage.outcome();
    if hangs {
        outcome.findings.push(format!("a wait has no end: {:?}", stage.doing()));
        outcome.hangs = true;
        return outcome;
    }
    drop(stage);
    outcome.findings.extend(Holdings::given_back(&before).err());
    outcome.findings.extend(hawser_net_sim::take_violations());
    outcome
}

/// The state that all ranks of a world share.
struct Stage {
    world: World,
    notes: Mutex<Notes>,
    /// The id by which the next communicator is made, for each act.
    ids: Vec<Mutex<Option<UniqueId>>>,
}

#[derive(Default)]
struct Notes {
    findings: Vec<String>,
    /// By act, rank and number.
    trace: BTreeMap<(usize, usize, usize), String>,
    /// A sentence about what each rank does, and since when.
    doing: BTreeMap<usize, (String, Instant)>,
    steps: usize,
    errors: usize,
    begin: Option<Instant>,
    /// Acts in which a rank failed.
    failed: BTreeSet<usize>,
    /// For each member of an act, whether it got the communicator.
    arrived: BTreeMap<usize, Vec<bool>>,
    /// Records of changes of rules, by act.
    switches: BTreeMap<usize, Vec<Vec<Switch>>>,
}

/// An act as it is played: its members are the same for all ranks.
struct Scene {
    number: usize,
    members: Vec<usize>,
    leaver: Option<usize>,
    /// Members meet here thrice: when the act is over, when ids are made, and when all have gone over.
    meeting: Barrier,
    /// Those of the next communicator.
    next: Vec<usize>,
}

impl Stage {
    fn new(world: World) -> Self {
        let ids = (0..=world.acts.len()).map(|_| Mutex::default()).collect();
        Self { world, notes: Mutex::default(), ids }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcome(&self) -> Outcome {
        let mut notes = self.notes();
        let line = |act, rank, text: &str| format!("{act}.{rank} {}", without_numbers_of_the_kernel(text));
        Outcome {
            findings: std::mem::take(&mut notes.findings),
            trace: notes.trace.iter().map(|((act, rank, _), text)| line(act, rank, text)).collect(),
            steps: notes.steps,
            errors: notes.errors,
            hangs: false,
        }
    }

    fn doing(&self) -> Vec<String> {
        self.notes().doing.iter().map(|(rank, (text, _))| format!("rank {rank}: {text}")).collect()
    }

    /// The scenes follow from the world alone: who has left, who is excluded, who joins.
    fn scenes(&self) -> Vec<Scene> {
        let (mut members, mut ever): (Vec<usize>, usize) =
            ((0..self.world.ranks()).collect(), self.world.ranks());
        let mut scenes = Vec::new();
        for (number, act) in self.world.acts.iter().enumerate() {
            let leaver = act.leave.map(|leave| members[leave.who % members.len()]);
            let mut next: Vec<usize> = members.iter().copied().filter(|m| Some(*m) != leaver).collect();
            match act.then {
                Then::Shrink(who) if leaver.is_none() && members.len() > 1 => {
                    next.remove(who % members.len());
                }
                Then::Grow if leaver.is_none() && number + 1 < self.world.acts.len() => {
                    next.push(ever);
                    ever += 1;
                }
                _ => {}
            }
            // Who joins meets the members when ids are made and when all have gone over.
            let meeting = Barrier::new(members.len().max(next.len()));
            let is_empty = next.is_empty();
            scenes.push(Scene { number, members, leaver, meeting, next: next.clone() });
            members = next;
            if is_empty {
                break;
            }
        }
        scenes
    }

    fn play(&self) {
        let scenes = self.scenes();
        let Ok(id) = unique_id() else { return self.find("no unique id".into()) };
        *self.ids[0].lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
        std::thread::scope(|scope| {
            for rank in 0..self.world.most_ranks() {
                let scenes = &scenes;
                let player = Player { stage: self, rank };
                let spawned = std::thread::Builder::new().name(format!("rank {rank}"));
                let run = move || {
                    turns::part();
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| player.play(scenes))) {
                        let text = panic.downcast_ref::<String>().cloned();
                        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned()));
                        player.stage.find(format!("rank {rank} panicked: {}", text.unwrap_or_default()));
                        // The others wait for this one.
                        println!("{}", player.stage.outcome().findings.join("\n"));
                        std::process::exit(1);
                    }
                };
                drop(spawned.spawn_scoped(scope, run));
            }
        });
        self.compare_switches();
    }

    fn find(&self, text: String) {
        self.notes().findings.push(text);
    }

    /// No operation under two sets of rules: what several ranks took, they took at the same collective.
    fn compare_switches(&self) {
        let notes = self.notes();
        let mut findings = Vec::new();
        for (act, records) in &notes.switches {
            let mut known: BTreeMap<u64, &Switch> = BTreeMap::new();
            for switch in records.iter().flatten() {
                let first = known.entry(switch.change).or_insert(switch);
                if *first != switch || switch.begun != switch.at {
                    findings.push(format!("act {act}: a change of rules differs: {first:?}, {switch:?}"));
                }
            }
        }
        drop(notes);
        findings.into_iter().for_each(|text| self.find(text));
    }
}

/// A line of a trace without the numbers of processes and ports, which are all in it that does not follow
/// from the seed.
fn without_numbers_of_the_kernel(text: &str) -> String {
    let mut parts = text.split("127.0.0.1:");
    let mut line = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        line += "127.0.0.1:PORT";
        line += part.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    line.replace(&format!("process {} ", std::process::id()), "process PID ")
}

/// A rank of the world.
struct Player<'a> {
    stage: &'a Stage,
    rank: usize,
}

impl Player<'_> {
    /// Plays all scenes that this rank is a member of.
    fn play(&self, scenes: &[Scene]) {
        let mut comm = None;
        for (scene, act) in scenes.iter().zip(&self.stage.world.acts) {
            let is_member = scene.members.contains(&self.rank);
            if !is_member && !scene.next.contains(&self.rank) {
                continue;
            }
            if is_member && scene.number == 0 {
                comm = self.note_result(scene, 0, "init", self.join(&scene.members, 0));
                self.stage.notes().arrived.entry(0).or_default().push(comm.is_some());
            }
            if is_member && let Some(comm) = &comm {
                self.act(scene, act, comm);
            }
            self.meet(scene);
            comm = self.go_over(scene, act, comm);
        }
        if let (Some(comm), Some(scene)) = (comm, scenes.last()) {
            self.end(scene, &comm);
        }
    }

    fn config(&self) -> Config {
        let world = &self.stage.world;
        Config {
            host: Some(world.host(self.rank)),
            net: Some("Sim".to_owned()),
            sm_free: world.sm_free,
            max_ctas: world.max_ctas,
            ..Config::default()
        }
    }

    /// Makes a communicator of members by the id of an act.
    fn join(&self, members: &[usize], act: usize) -> Result<Comm> {
        let id = *self.stage.ids[act].lock().unwrap_or_else(PoisonError::into_inner);
        let id = id.ok_or_else(|| Error::internal("nobody has made an id"))?;
        let place = members.iter().position(|m| *m == self.rank).unwrap_or(0) as u32;
        Comm::init(&[id], members.len() as u32, place, place, self.config())
    }

    /// Does the steps, until one fails or it is time to leave.
    fn act(&self, scene: &Scene, act: &Act, comm: &Comm) {
        let leave = act.leave.filter(|_| scene.leaver == Some(self.rank));
        for (number, step) in act.steps.iter().enumerate() {
            let is_last = leave.is_some_and(|leave| leave.after == number);
            let during = match leave {
                Some(Leave { how: How::AbortDuring(time), .. }) if is_last => Some(time),
                _ if is_last => break,
                _ => None,
            };
            let what = format!("{step:?}");
            self.doing(scene, &what);
            let result = std::thread::scope(|scope| {
                if let Some(time) = during {
                    let comm = comm.clone();
                    scope.spawn(move || {
                        std::thread::sleep(Duration::from_micros(time));
                        let _ = comm.abort();
                    });
                }
                carry_out(comm, number, step)
            });
            self.stage.notes().steps += 1;
            // Where a rank leaves, a change of rules is refused, and all else goes on.
            let is_refusal =
                |error: &Error| scene.leaver.is_some() && error.text.contains("the rules stay as they are");
            let result = match result {
                Err(error) if is_refusal(&error) => Ok(()),
                result => result,
            };
            if during.is_some() {
                let _ = result.inspect_err(|error| self.check_kind(scene, &what, error));
                break;
            }
            if self.note_result(scene, number + 1, &what, result).is_none() {
                // An error that leaves the communicator as it is says nothing to the others.
                if self.stage.world.on_error == OnError::Revoke || comm.async_error().is_none() {
                    let _ = comm.revoke();
                }
                break;
            }
        }
        self.doing(scene, "has done all steps");
        match leave.map(|leave| leave.how) {
            Some(How::Destroy) => drop(comm.destroy()),
            Some(_) => drop(comm.abort()),
            None => self.stage.notes().switches.entry(scene.number).or_default().push(comm.rule_changes()),
        }
    }

    /// Goes over to the communicator of the next act. All that meet take the same way: whether anybody has
    /// failed is known to all.
    fn go_over(&self, scene: &Scene, act: &Act, old: Option<Comm>) -> Option<Comm> {
        let is_next = scene.next.contains(&self.rank);
        let way = self.way(scene, act);
        if scene.next.first() == Some(&self.rank)
            && let Some(way @ (Then::Fresh | Then::Grow)) = way
        {
            let made = match (&old, way) {
                (Some(old), Then::Grow) => old.grow_id(),
                _ => unique_id(),
            };
            let id = self.note_result(scene, GOING_OVER, "an id for the next communicator", made);
            *self.stage.ids[scene.number + 1].lock().unwrap_or_else(PoisonError::into_inner) = id;
        }
        self.meet(scene);
        let next = way.filter(|_| is_next).and_then(|way| {
            self.doing(scene, &format!("goes over by {way:?}"));
            let made = self.next_comm(scene, way, old.as_ref());
            let made = made.and_then(|comm| match comm.ranks() as usize == scene.next.len() {
                true => Ok(comm),
                false => Err(Error::internal(format!("{WRONG}: {} ranks", comm.ranks()))),
            });
            let made = self.note_result(scene, GOING_OVER + 1, &format!("{way:?}"), made);
            self.stage.notes().arrived.entry(scene.number + 1).or_default().push(made.is_some());
            made
        });
        if let Some(old) = old {
            self.end(scene, &old);
        }
        self.meet(scene);
        self.check_agreement(scene);
        next
    }

    /// The way over, which is the same for all that meet; None after the last act.
    fn way(&self, scene: &Scene, act: &Act) -> Option<Then> {
        let notes = self.stage.notes();
        if scene.number + 1 == self.stage.world.acts.len() {
            return None;
        }
        // Who did not get a communicator cannot go on from it, so nobody does.
        let all_are_in = !notes.arrived.get(&scene.number).is_some_and(|all| all.contains(&false));
        let is_whole = scene.leaver.is_none() && !notes.failed.contains(&scene.number);
        Some(match act.then {
            Then::Shrink(_) if all_are_in && scene.next.len() < scene.members.len() => {
                if is_whole || scene.leaver.is_some() { act.then } else { Then::Fresh }
            }
            Then::Regroup if all_are_in && scene.leaver.is_none() => Then::Regroup,
            Then::Grow if all_are_in && is_whole => Then::Grow,
            _ => Then::Fresh,
        })
    }

    fn next_comm(&self, scene: &Scene, way: Then, old: Option<&Comm>) -> Result<Comm> {
        let Some(old) = old else { return self.join(&scene.next, scene.number + 1) };
        match way {
            Then::Fresh => {
                self.end(scene, old);
                self.join(&scene.next, scene.number + 1)
            }
            Then::Shrink(_) => {
                let gone = scene.members.iter().position(|member| !scene.next.contains(member));
                let mode = if scene.leaver.is_some() { Shrink::Abort } else { Shrink::Keep };
                old.shrink(&[gone.unwrap_or(0) as i32], None, mode)
            }
            Then::Regroup => {
                old.revoke()?;
                old.split(0, 0, None)?.ok_or_else(|| Error::internal("a split gave no communicator"))
            }
            Then::Grow => {
                let id = *self.stage.ids[scene.number + 1].lock().unwrap_or_else(PoisonError::into_inner);
                let own = id.filter(|_| scene.next.first() == Some(&self.rank));
                old.grow(scene.next.len() as u32, own, None)
            }
        }
    }

    /// Survivors agree: all are in the next communicator, or nobody is, unless the network may fail.
    fn check_agreement(&self, scene: &Scene) {
        if scene.next.first() != Some(&self.rank) || self.stage.world.conditions.may_fail() {
            return;
        }
        let arrived = self.stage.notes().arrived.get(&(scene.number + 1)).cloned().unwrap_or_default();
        if arrived.contains(&true) && arrived.contains(&false) {
            self.stage
                .find(format!("act {}: some went over to the next communicator, some did not", scene.number));
        }
    }

    /// Destroys a communicator, which may have been ended before.
    fn end(&self, scene: &Scene, comm: &Comm) {
        self.doing(scene, "destroys the communicator");
        let _ = comm.destroy();
        self.doing(scene, "has destroyed the communicator");
    }

    /// Notes what this rank does from now on. What it did before must not have taken as long as a deadline.
    fn doing(&self, scene: &Scene, text: &str) {
        let mut notes = self.stage.notes();
        let before = notes.doing.insert(self.rank, (format!("act {}: {text}", scene.number), Instant::now()));
        if let Some((text, since)) = before
            && since.elapsed() >= LONG
            && !text.ends_with(MEETS)
        {
            let time = since.elapsed().as_secs();
            notes.findings.push(format!("rank {}, {text}: took {time} s, as long as a deadline", self.rank));
        }
    }

    /// Waits for the other ranks of a scene.
    fn meet(&self, scene: &Scene) {
        self.doing(scene, MEETS);
        scene.meeting.wait();
        self.doing(scene, "has met the others");
    }

    /// Writes down how something went, and whether it may go so.
    fn note_result<T>(&self, scene: &Scene, number: usize, what: &str, result: Result<T>) -> Option<T> {
        let text = match &result {
            Ok(_) => format!("{what}: done"),
            Err(error) => format!("{what}: {:?}: {error}", error.kind),
        };
        if let Err(error) = &result {
            self.check_kind(scene, what, error);
            let may_fail =
                self.stage.world.conditions.may_fail() || (scene.leaver.is_some() && number < GOING_OVER);
            if !may_fail {
                self.stage
                    .find(format!("rank {}, act {}, {text}: nothing was to fail", self.rank, scene.number));
            }
        }
        let mut notes = self.stage.notes();
        let time = notes.begin.get_or_insert_with(Instant::now).elapsed().as_micros();
        notes.trace.insert((scene.number, self.rank, number), format!("[{time} us] {text}"));
        if result.is_err() {
            notes.errors += 1;
            if number < GOING_OVER {
                notes.failed.insert(scene.number);
            }
        }
        result.ok()
    }

    /// No fault of the world excuses a wrong result, a bug, or a wait that only its deadline ended.
    fn check_kind(&self, scene: &Scene, what: &str, error: &Error) {
        let is_excused = !matches!(error.kind, ErrorKind::Internal | ErrorKind::Timeout);
        if error.text.contains(WRONG) || !is_excused {
            let text = format!("rank {}, act {}, {what}: {:?}: {error}", self.rank, scene.number, error.kind);
            self.stage.find(text);
        }
    }
}

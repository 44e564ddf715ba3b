//! A world from init to its end: threads that are ranks (`player.rs`), and what was wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use hawser_runtime::rules_update::Switch;
use hawser_runtime::{Comm, Config, Error, Result, UniqueId, unique_id};

use crate::fates::{Fates, Known};
use crate::holdings::Holdings;
use crate::player::Player;
use crate::turns;
use crate::world::{Death, Then, Victims, World};

/// The time after which a world hangs. Operations have deadlines that are far shorter.
const LIMIT: Duration = Duration::from_secs(120);

/// The number of the line of a trace that says who died.
const LAST_WORDS: usize = 200;

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
    hawser_net_sim::set_place(|| turns::group() as u64);
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
pub(crate) struct Stage {
    pub world: World,
    notes: Mutex<Notes>,
    pub fates: Fates,
    /// The id by which the next communicator is made, for each act.
    pub ids: Vec<Mutex<Option<UniqueId>>>,
}

#[derive(Default)]
pub(crate) struct Notes {
    pub findings: Vec<String>,
    /// By act, rank and number.
    pub trace: BTreeMap<(usize, usize, usize), String>,
    /// A sentence about what each rank does, and since when.
    pub doing: BTreeMap<usize, (String, Instant)>,
    pub steps: usize,
    pub errors: usize,
    pub begin: Option<Instant>,
    /// Acts in which a rank failed.
    pub failed: BTreeSet<usize>,
    /// By act and member, whether it got the communicator.
    pub arrived: BTreeMap<usize, BTreeMap<usize, bool>>,
    /// Records of changes of rules, by act.
    pub switches: BTreeMap<usize, Vec<Vec<Switch>>>,
}

/// An act as it is played: its members are the same for all ranks.
pub(crate) struct Scene {
    pub number: usize,
    pub members: Vec<usize>,
    pub leaver: Option<usize>,
    /// Those of the next communicator.
    pub next: Vec<usize>,
}

/// A scene without the dead, as the ranks of a communicator know it when they go over to the next one.
pub(crate) struct Cast {
    pub members: Vec<usize>,
    pub next: Vec<usize>,
    pub known: Known,
}

impl Stage {
    fn new(world: World) -> Self {
        let ids = (0..=world.acts.len()).map(|_| Mutex::default()).collect();
        Self { world, notes: Mutex::default(), fates: Fates::default(), ids }
    }

    pub fn notes(&self) -> MutexGuard<'_, Notes> {
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
            let is_empty = next.is_empty();
            scenes.push(Scene { number, members, leaver, next: next.clone() });
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
                    player.stage.fates.enter(rank);
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| player.play(scenes))) {
                        let text = panic.downcast_ref::<String>().cloned();
                        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned()));
                        player.stage.find(format!("rank {rank} panicked: {}", text.unwrap_or_default()));
                        // The others wait for this one.
                        println!("{}", player.stage.outcome().findings.join("\n"));
                        std::process::exit(1);
                    }
                    player.stage.fates.finish(rank);
                };
                drop(spawned.spawn_scoped(scope, run));
            }
            if let Some(death) = &self.world.death {
                scope.spawn(|| self.bring(death, &scenes));
            }
            self.fates.wait_for_survivors(&self.world);
        });
        if self.fates.known() != Known::default() {
            // Ids that the dead have made and nobody uses.
            hawser_runtime::bootstrap::stop_all_roots();
        }
        self.compare_switches();
    }

    /// Brings a death when its moment comes, and writes it down.
    fn bring(&self, death: &Death, scenes: &[Scene]) {
        let is_joiner = |rank: &usize| {
            let scene = scenes.get(death.act);
            scene.is_some_and(|scene| scene.next.contains(rank) && !scene.members.contains(rank))
        };
        let is_victim = |rank: &usize| match &death.victims {
            Victims::Hosts(hosts) => hosts.contains(&self.world.host(*rank)),
            Victims::Rank(one) => rank == one,
            Victims::Joiner => is_joiner(rank),
        };
        let victims: Vec<usize> = (0..self.world.most_ranks()).filter(is_victim).collect();
        if !victims.is_empty() && self.fates.bring(&self.world, death, &victims) {
            let text = format!("{:?} ends: ranks {victims:?}", death.manner);
            self.notes().trace.insert((death.act, victims[0], LAST_WORDS), text);
        }
    }

    /// The members of a scene that were not dead when its communicator was made.
    pub fn members(&self, scene: &Scene) -> Vec<usize> {
        let before = scene.number.checked_sub(1).map(|act| self.fates.decided(act));
        let is_there = |rank: &usize| before.as_ref().is_none_or(|known| !known.dead.contains(rank));
        scene.members.iter().copied().filter(is_there).collect()
    }

    /// The ranks that go on from a scene, as all its members see them.
    pub fn cast(&self, scene: &Scene) -> Cast {
        let known = self.fates.decided(scene.number);
        let lives = |rank: &usize| !known.dead.contains(rank);
        let next = scene.next.iter().copied().filter(lives).collect();
        Cast { members: self.members(scene), next, known }
    }

    pub fn find(&self, text: String) {
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

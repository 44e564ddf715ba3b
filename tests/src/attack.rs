//! Ranks that are killed at random moments, by seed: does every survivor end, how soon, whom does it blame,
//! and can the survivors go on without it?

use std::time::{Duration, Instant};

use hawser_plan::Collective;
use hawser_runtime::{UniqueId, unique_id};

use crate::process::{Process, id_from_hex};

/// The time after which survivors count as hanging.
const HANGS: Duration = Duration::from_secs(30);

/// Nothing says when ranks are at the meeting point, or have met: they are when they have had nothing to do
/// for so long.
const AT_THE_MEETING: Duration = Duration::from_millis(400);

/// The work of ranks when one of them is killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Some have joined and wait for one that never comes.
    Meeting,
    /// All have met, and the victim has no connection to another one yet.
    Met,
    /// Bring-up: the victim has just begun the step of this name.
    Init(&'static str),
    /// Calls, by the name of the step of the test rank.
    Calls(String),
    /// Communicators are split.
    Splits,
    /// Communicators without one rank are made.
    Shrinks,
    /// Communicators with one rank more are made.
    Grows,
    /// New ranks join by `ncclCommGrow`, and one of them dies. It has just begun the step of bring-up of this
    /// name, or waits at the meeting point.
    Joins {
        /// Number of new ranks.
        newcomers: u32,
        /// The step; [`MEETING`] where a new rank never comes.
        step: &'static str,
    },
    /// The others destroy the communicator; the victim does not.
    Destroy,
}

/// One kill.
#[derive(Debug, Clone)]
pub struct Kill {
    /// Number of ranks, without those that join.
    pub ranks: u32,
    /// The rank that is killed; of those that join, the number after the others.
    pub victim: u32,
    /// Number of "hosts".
    pub hosts: u32,
    /// The work of the ranks meanwhile.
    pub phase: Phase,
    /// The time of the kill, after the phase began.
    pub after: Duration,
    /// Every rank, without those that join, has forked a child that lives longer than it, and holds what it
    /// inherited.
    pub has_children: bool,
}

/// The ends of the survivors of a kill.
#[derive(Debug, Default)]
pub struct Outcome {
    /// From the kill to the end of the last survivor.
    pub last: Duration,
    /// Texts of survivors that did not end.
    pub hangs: Vec<String>,
    /// Texts of survivors whose errors do not name the killed rank, or that cannot go on without it.
    pub wrong: Vec<String>,
}

/// The steps of bring-up after whose begin a rank is killed, as the log names them.
const STEPS: [&str; 5] = ["agreement", "links", "tuners", "transport", "ready"];

/// The step of a rank that waits for others at the meeting point, as the log names it.
pub const MEETING: &str = "bootstrap";

/// Numbers below a limit by a seed, the same ones each time (xorshift64). `kind` tells one use of a seed from
/// another.
pub(crate) fn dice(seed: u64, kind: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ kind;
    move |limit| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % limit
    }
}

impl Kill {
    /// The kill of a seed.
    pub fn of(seed: u64) -> Self {
        let mut below = dice(seed, 0x5851_f42d_4c95_7f2d);
        let ranks = 2 + below(7) as u32;
        let hosts = if below(2) == 0 { 1 } else { 2 + below(u64::from(ranks) - 1) as u32 };
        let phase = match below(15) {
            0 if ranks > 2 => Phase::Meeting,
            13 => Phase::Met,
            0 | 1 => Phase::Init(STEPS[below(STEPS.len() as u64) as usize]),
            2 | 3 => Phase::Splits,
            4 => Phase::Destroy,
            5 => Phase::Calls("ring".into()),
            6 => Phase::Shrinks,
            7 => Phase::Grows,
            14 => return Self::of_a_newcomer(seed),
            _ => {
                let collective = Collective::ALL[below(Collective::ALL.len() as u64) as usize];
                Phase::Calls(format!("loop={}", collective.name()))
            }
        };
        // The rank that never comes to a meeting is the last one.
        let victims = if phase == Phase::Meeting { ranks - 1 } else { ranks };
        let victim = below(u64::from(victims)) as u32;
        let after = Duration::from_micros(below(40_000));
        Self { ranks, victim, hosts, phase, after, has_children: below(4) == 0 }
    }

    /// The kill of a new rank, of a seed.
    pub fn of_a_newcomer(seed: u64) -> Self {
        let mut below = dice(seed, 0x2545_f491_4f6c_dd1d);
        let (ranks, newcomers) = (1 + below(4) as u32, 1 + below(3) as u32);
        let hosts = if below(2) == 0 { 1 } else { ranks + newcomers };
        let steps = STEPS.len() as u64;
        let (step, victims) = match below(steps + 1) as usize {
            // The last one never comes.
            at if at == STEPS.len() && newcomers > 1 => (MEETING, newcomers - 1),
            at => (STEPS[at % STEPS.len()], newcomers),
        };
        let victim = ranks + below(u64::from(victims)) as u32;
        let after = Duration::from_micros(below(40_000));
        let phase = Phase::Joins { newcomers, step };
        Self { ranks, victim, hosts, phase, after, has_children: below(4) == 0 }
    }

    /// In words, for tables.
    pub fn words(&self) -> String {
        let Kill { ranks, victim, hosts, phase, has_children, .. } = self;
        let children = if *has_children { ", with children" } else { "" };
        format!("rank {victim} of {ranks} on {hosts} hosts in {phase:?}{children}")
    }

    /// Carries it out with ranks that run `binary`.
    pub fn carry_out(&self, binary: &str) -> Outcome {
        let id = unique_id().expect("a unique id");
        let late = (self.phase == Phase::Met).then_some((self.victim + 1) % self.ranks);
        let come = if self.phase == Phase::Meeting { self.ranks - 1 } else { self.ranks };
        let start = |rank: u32| self.start(binary, &id, rank);
        let mut all: Vec<Process> = (0..come).filter(|rank| Some(*rank) != late).map(start).collect();
        if let Phase::Joins { newcomers, step } = self.phase {
            self.let_join(binary, &mut all, newcomers - u32::from(step == MEETING));
        }
        let victim = self.victim - u32::from(late == Some(0) && self.victim > 0);
        self.wait(&mut all, victim as usize);
        if let Some(late) = late {
            // It has handed in its address, and cannot use those of the others.
            all[victim as usize].signal("STOP");
            all.insert(late as usize, start(late));
            all[late as usize].wait_until_idle(AT_THE_MEETING);
        }
        std::thread::sleep(self.after);
        let mut victim = all.remove(self.victim as usize);
        let pid = victim.id();
        victim.kill();
        let begin = Instant::now();
        let mut outcome = Outcome::default();
        let mut open: Vec<&mut Process> = all.iter_mut().collect();
        while !open.is_empty() && begin.elapsed() < HANGS {
            std::thread::sleep(Duration::from_millis(2));
            open.retain_mut(|process| !process.has_ended());
        }
        outcome.last = begin.elapsed();
        outcome.hangs = open.into_iter().map(|process| process.written().to_owned()).collect();
        for process in all.into_iter().filter(|_| outcome.hangs.is_empty()) {
            let ended = process.end();
            if !self.is_right(&ended.output, ended.status.success(), pid) {
                outcome.wrong.push(ended.output);
            }
        }
        outcome
    }

    /// Starts so many new ranks with the id that rank 0 writes.
    fn let_join(&self, binary: &str, all: &mut Vec<Process>, come: u32) {
        all.iter_mut().for_each(|process| process.wait_for("mark"));
        all[0].wait_for_part("growth by id ");
        let id = all[0].written().lines().find_map(|line| line.strip_prefix("growth by id "));
        let id = id.and_then(id_from_hex).expect("rank 0 writes the id of the growth");
        all.extend((self.ranks..self.ranks + come).map(|rank| self.start(binary, &id, rank)));
    }

    fn start(&self, binary: &str, id: &UniqueId, rank: u32) -> Process {
        let host = format!("host {}", rank % self.hosts);
        let mut settings = vec![];
        if self.hosts > 1 {
            settings.push(("NCCL_HOSTID", host.as_str()));
        }
        let is_watched =
            matches!(self.phase, Phase::Init(_) | Phase::Meeting | Phase::Met | Phase::Joins { .. });
        if is_watched && rank == self.victim {
            settings.push(("NCCL_DEBUG", "INFO"));
        }
        let mut steps = if self.has_children && rank < self.ranks { vec!["fork"] } else { vec![] };
        let failing = match &self.phase {
            Phase::Calls(step) => format!("?{step}"),
            Phase::Shrinks => "?shrinks".into(),
            Phase::Grows => "?grows".into(),
            _ => "?splits".into(),
        };
        let survive = format!("survive={}", self.victim);
        let take_in;
        match &self.phase {
            Phase::Meeting | Phase::Met | Phase::Init(_) => steps.push("loop=all_reduce"),
            Phase::Calls(_) | Phase::Splits | Phase::Shrinks | Phase::Grows => {
                steps.extend(["mark", &failing, &survive]);
            }
            Phase::Joins { .. } if rank >= self.ranks => steps.push("loop=all_reduce"),
            Phase::Joins { newcomers, .. } => {
                take_in = format!("?take-in={newcomers}");
                steps.extend(["mark", &take_in, "all_reduce", "grow-once"]);
            }
            Phase::Destroy if rank == self.victim => steps.extend(["all_reduce", "mark", "sleep"]),
            Phase::Destroy => steps.extend(["all_reduce", "mark", "destroy"]),
        }
        let ranks = if rank < self.ranks { self.ranks } else { self.all_ranks() };
        Process::rank(binary, id, (rank, ranks), &steps, &settings)
    }

    /// Number of ranks, with those that join.
    fn all_ranks(&self) -> u32 {
        match self.phase {
            Phase::Joins { newcomers, .. } => self.ranks + newcomers,
            _ => self.ranks,
        }
    }

    /// Waits until the phase has begun; the victim is number `victim` of those that were started.
    fn wait(&self, all: &mut [Process], victim: usize) {
        match self.phase {
            Phase::Meeting | Phase::Met | Phase::Joins { step: MEETING, .. } => {
                all[victim].wait_for_part(MEETING);
                all.iter().for_each(|process| process.wait_until_idle(AT_THE_MEETING));
            }
            Phase::Init(step) | Phase::Joins { step, .. } => {
                let step = format!(": {step}");
                all[victim].wait_for_end_of_line(&step, "all_reduce");
            }
            _ => all.iter_mut().for_each(|process| process.wait_for("mark")),
        }
    }

    /// Returns true if a survivor's output is what it should be.
    fn is_right(&self, output: &str, has_succeeded: bool, pid: u32) -> bool {
        let errors: Vec<&str> = output.lines().filter(|line| line.starts_with("error ")).collect();
        let names = |line: &str| match self.phase {
            // The others were told where it listens only after the meeting.
            Phase::Meeting | Phase::Joins { step: MEETING, .. } => {
                line.contains(&format!("rank {} left", self.victim))
            }
            _ => line.contains(&format!("process {pid} ")),
        };
        match self.phase {
            Phase::Calls(_) | Phase::Splits | Phase::Shrinks | Phase::Grows => {
                let is_named = !errors.is_empty() && errors.iter().all(|line| names(line));
                is_named && has_succeeded && output.lines().any(|line| line == "survived")
            }
            // New ranks do not go on.
            Phase::Joins { .. } if output.lines().any(|line| line == "mark") => {
                errors.len() == 1 && names(errors[0]) && has_succeeded && output.contains("has grown")
            }
            Phase::Destroy => has_succeeded || errors.iter().all(|line| names(line)),
            _ => !errors.is_empty() && errors.iter().all(|line| names(line)),
        }
    }
}

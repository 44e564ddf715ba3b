//! The state machine of rank 0 as coordinator, which takes proposals one after the other and leads all ranks
//! through each.

use std::collections::{BTreeMap, VecDeque};

use std::sync::Arc;
use std::time::Duration;

use super::{Body, Limits, MARGIN, MOST_QUEUED, Message, Outcome, Todo, ranks};

/// The state machine of rank 0.
#[derive(Debug)]
pub struct Coordinator {
    size: u32,
    limits: Limits,
    /// The number of the last change.
    last: u64,
    queue: VecDeque<Proposal>,
    phase: Phase,
    /// The ranks that left in peace or ended, with words for which of the two.
    gone: BTreeMap<u32, &'static str>,
}

#[derive(Debug)]
struct Proposal {
    rank: u32,
    number: u64,
    content: Arc<[u8]>,
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// All ranks read the content; the answers by rank are digests.
    Staging(Open, Answers),
    /// All ranks put up a fence; the answers by rank are where.
    Asking(Open, Answers),
    /// The change is decided for a collective; the answers by rank say that they heard of it.
    Telling(Open, Answers, u64),
}

type Answers = BTreeMap<u32, u64>;

/// The change that is open.
#[derive(Debug, Clone, Copy)]
struct Open {
    proposer: (u32, u64),
    until: Duration,
}

impl Coordinator {
    /// The coordinator of a communicator of `size` ranks.
    pub fn new(size: u32, limits: Limits) -> Self {
        Self { size, limits, last: 0, queue: VecDeque::new(), phase: Phase::Idle, gone: BTreeMap::new() }
    }

    /// True if time matters: a change is open.
    pub fn is_busy(&self) -> bool {
        !matches!(self.phase, Phase::Idle)
    }

    /// Takes a message of a rank.
    pub fn hear(&mut self, from: u32, message: Message, now: Duration, todo: &mut Todo) {
        let is_open = message.number == self.last;
        match message.body {
            Body::Propose(content) => self.propose(from, message.number, content, now, todo),
            Body::Refused(why) if is_open => self.refused(from, &why, now, todo),
            Body::Staged(digest) if is_open => self.staged(from, digest, now, todo),
            Body::Promised(fence) if is_open => self.promised(from, fence, now, todo),
            Body::Heard if is_open => self.heard(from, now, todo),
            Body::Farewell => {
                self.gone.insert(from, "has left the communicator");
                self.refused(from, "it leaves the communicator", now, todo);
                // What it has promised it keeps: it begins nothing any more.
                self.heard(from, now, todo);
            }
            // A late message of a change that is over, or none for rank 0.
            _ => {}
        }
    }

    /// Ends what has taken too long by now.
    pub fn tick(&mut self, now: Duration, todo: &mut Todo) {
        let (open, answers, decided) = match &self.phase {
            Phase::Idle => return,
            Phase::Staging(open, answers) | Phase::Asking(open, answers) => (open, answers, false),
            Phase::Telling(open, answers, _) => (open, answers, true),
        };
        if now < open.until {
            return;
        }
        let silent = ranks((0..self.size).filter(|rank| !answers.contains_key(rank)));
        let limit = self.limits.step.as_secs_f64();
        match decided {
            false => self.drop(&format!("no answer of {silent} within {limit} s"), now, todo),
            true => {
                todo.notes.push(format!(
                    "change {} of the rules: {silent} has not confirmed within {limit} s",
                    self.last
                ));
                self.told(now, todo);
            }
        }
    }

    /// Notes that a rank has ended without a farewell, or cannot be reached.
    pub fn lost(&mut self, rank: u32, now: Duration, todo: &mut Todo) {
        if self.gone.contains_key(&rank) {
            return;
        }
        self.gone.insert(rank, "has ended or left the communicator");
        let was_there = match &self.phase {
            Phase::Idle => return,
            Phase::Staging(_, answers) => answers.contains_key(&rank),
            // Whoever is asked has answered before.
            Phase::Asking(..) | Phase::Telling(..) => true,
        };
        let why = format!("rank {rank} ended in the middle of change {} of the rules", self.last);
        if was_there {
            for other in (1..self.size).filter(|other| !self.gone.contains_key(other)) {
                todo.send(other, self.last, Body::Broken(why.clone()));
            }
            todo.fail = Some(why);
        }
        self.refused(rank, "it has ended or left the communicator", now, todo);
        self.heard(rank, now, todo);
    }

    /// Leaves, and adds what the other ranks are told of that.
    pub fn leave(&mut self, todo: &mut Todo) {
        let now = Duration::ZERO;
        if matches!(self.phase, Phase::Staging(..) | Phase::Asking(..)) {
            self.queue.clear();
            self.drop("rank 0 leaves the communicator", now, todo);
        }
        for rank in (1..self.size).filter(|rank| !self.gone.contains_key(rank)) {
            todo.send(rank, 0, Body::Farewell);
        }
    }

    fn propose(&mut self, rank: u32, number: u64, content: Arc<[u8]>, now: Duration, todo: &mut Todo) {
        if self.queue.len() >= MOST_QUEUED {
            let why = "too many changes are proposed at once: try again later".to_owned();
            return todo.send(rank, number, Body::Outcome(Outcome::Unchanged(why)));
        }
        self.queue.push_back(Proposal { rank, number, content });
        self.next(now, todo);
    }

    /// Begins with the next proposal, if none is open.
    fn next(&mut self, now: Duration, todo: &mut Todo) {
        while matches!(self.phase, Phase::Idle)
            && let Some(Proposal { rank, number, content }) = self.queue.pop_front()
        {
            if let Some((gone, how)) = self.gone.first_key_value() {
                let why = format!("rank {gone} {how}");
                todo.send(rank, number, Body::Outcome(Outcome::Unchanged(why)));
                continue;
            }
            self.last += 1;
            let open = Open { proposer: (rank, number), until: now + self.limits.step };
            self.phase = Phase::Staging(open, Answers::new());
            self.tell_all(&Body::Stage(content), todo);
        }
    }

    fn refused(&mut self, from: u32, why: &str, now: Duration, todo: &mut Todo) {
        if matches!(self.phase, Phase::Staging(..) | Phase::Asking(..)) {
            self.drop(&format!("rank {from}: {why}"), now, todo);
        }
    }

    fn staged(&mut self, from: u32, digest: u64, now: Duration, todo: &mut Todo) {
        let Phase::Staging(open, answers) = &mut self.phase else { return };
        answers.insert(from, digest);
        if answers.len() < self.size as usize {
            return;
        }
        let own = answers.get(&0).copied().unwrap_or_default();
        let others = ranks(answers.iter().filter(|(_, other)| **other != own).map(|(rank, _)| *rank));
        if answers.values().any(|other| *other != own) {
            let why = format!("{others} would choose otherwise than rank 0 by these rules: other versions?");
            return self.drop(&why, now, todo);
        }
        let open = Open { until: now + self.limits.step, ..*open };
        self.phase = Phase::Asking(open, Answers::new());
        self.tell_all(&Body::Ask(MARGIN), todo);
    }

    fn promised(&mut self, from: u32, fence: u64, now: Duration, todo: &mut Todo) {
        let Phase::Asking(open, answers) = &mut self.phase else { return };
        answers.insert(from, fence);
        if answers.len() < self.size as usize {
            return;
        }
        // From here on there is no way back.
        let at = answers.values().copied().max().unwrap_or_default();
        let open = Open { until: now + self.limits.step, ..*open };
        self.phase = Phase::Telling(open, Answers::new(), at);
        self.tell_all(&Body::Commit(at), todo);
    }

    fn heard(&mut self, from: u32, now: Duration, todo: &mut Todo) {
        let Phase::Telling(_, answers, _) = &mut self.phase else { return };
        answers.insert(from, 0);
        if answers.len() >= self.size as usize {
            self.told(now, todo);
        }
    }

    /// Ends the open change, which has happened.
    fn told(&mut self, now: Duration, todo: &mut Todo) {
        if let Phase::Telling(open, _, at) = std::mem::replace(&mut self.phase, Phase::Idle) {
            let (rank, number) = open.proposer;
            todo.send(rank, number, Body::Outcome(Outcome::Changed(at)));
        }
        self.next(now, todo);
    }

    /// Ends the open change, which has not happened.
    fn drop(&mut self, why: &str, now: Duration, todo: &mut Todo) {
        if let Phase::Staging(open, _) | Phase::Asking(open, _) =
            std::mem::replace(&mut self.phase, Phase::Idle)
        {
            self.tell_all(&Body::Drop(why.to_owned()), todo);
            let (rank, number) = open.proposer;
            todo.send(rank, number, Body::Outcome(Outcome::Unchanged(why.to_owned())));
        }
        self.next(now, todo);
    }

    fn tell_all(&self, body: &Body, todo: &mut Todo) {
        for rank in (0..self.size).filter(|rank| !self.gone.contains_key(rank)) {
            todo.send(rank, self.last, body.clone());
        }
    }
}

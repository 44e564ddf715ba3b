//! A rank's part in changes of rules: its state machines of the protocol, its connections to the other ranks,
//! and what it has proposed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_base::error::{Error, ErrorKind};
use hawser_base::log::{self, Subsys};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_plugin::tuner::{SettingsFile, TunerConfig};
use rustc_hash::FxHashMap;

use super::epoch::Epoch;
use super::files::Known;
use super::learn::{self, Learning};
use super::protocol::{Barrier, Body, Coordinator, Limits, Member, Message, Outcome, Todo};
use super::{service, wire};
use crate::bootstrap::{Bootstrap, Tag};
use crate::lsa::Lsa;
use crate::transport::control::Control;
use crate::tuning::{OpTimings, Tuners};

/// The most texts about what makes operations slow on this rank that wait to be passed on.
const MOST_STRESS: usize = 16;
/// The time that handing one message to a rank may take, and for which a rank that did not take it is left
/// alone.
const TELL: Duration = Duration::from_secs(2);
/// The time in which the last words of a rank arrive that takes no more messages: it may have said farewell
/// on a connection that nobody has read yet.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The most changes that are remembered for [`Participant::switches`].
const MOST_REMEMBERED: usize = 8192;

/// The content of a change that was read and checked.
pub enum Staged {
    /// Other rules.
    Rules {
        /// The tuners with the new rules.
        tuners: Box<Tuners>,
        /// The digest of the rules, equal on all ranks.
        digest: u64,
    },
    /// Calls are chosen as if their buffers were registered.
    Registered,
}

/// A change that has happened on a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Its number, the same on all ranks.
    pub change: u64,
    /// The first collective with the new rules, as decided.
    pub at: u64,
    /// The collective before which this rank took them.
    pub begun: u64,
    /// The digest of the rules.
    pub digest: u64,
}

/// The parts of a communicator that a participant is made of.
pub struct Place {
    /// Number of the communicator.
    pub comm_id: u64,
    /// Its name.
    pub name: String,
    /// Control connections to the other ranks.
    pub bootstrap: Arc<Bootstrap>,
    /// Ends operations when the communicator cannot go on.
    pub control: Arc<Control>,
    /// The abort flag of the communicator, which ends waits for other ranks.
    pub abort: AbortFlag,
    /// The tuners that the communicator began with.
    pub tuners: Arc<Tuners>,
    /// The settings that tuners are opened with.
    pub config: TunerConfig,
    /// The epoch that the communicator's calls pass.
    pub epoch: Arc<Epoch<Staged>>,
    /// The times of its operations, if rules want to know them.
    pub times: Arc<OpTimings>,
    /// Maps buffers that ranks register each for itself.
    pub lsa: Arc<Lsa>,
    /// The time that ranks may take for each step.
    pub limit: Duration,
}

/// A rank of a communicator as it takes part in changes of rules.
pub struct Participant {
    /// Number of the communicator.
    pub comm_id: u64,
    /// Its name.
    pub name: String,
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The number of hosts that the ranks run on.
    pub hosts: u32,
    epoch: Arc<Epoch<Staged>>,
    times: Arc<OpTimings>,
    known: Mutex<Known>,
    work: Mutex<Option<Work>>,
    /// Proposals that the thread has not looked at yet.
    fresh: Mutex<VecDeque<Proposal>>,
    /// The events that make operations slow on this rank, for those who learn from times.
    stress: Mutex<VecDeque<String>>,
    switches: Mutex<VecDeque<Switch>>,
}

struct Proposal {
    content: Arc<[u8]>,
    done: Done,
}

/// The function that is told what became of a proposal.
pub type Done = Box<dyn FnOnce(Outcome) + Send>;

struct Work {
    place: Place,
    member: Member<Staged>,
    coordinator: Option<Coordinator>,
    proposals: FxHashMap<u64, (Done, Duration)>,
    last_proposal: u64,
    /// True if this rank ever took part in a change: only then the others have to hear that it leaves.
    has_met: bool,
    /// This rank leaves: whatever it is asked for, it refuses.
    is_leaving: bool,
    gone: Vec<bool>,
    /// The ranks that take no more messages, and until when what they said last is waited for.
    unreachable: FxHashMap<u32, Duration>,
    /// The messages that ranks have not taken yet, in order: they are slow, not gone.
    unsent: Vec<(u32, Message)>,
    /// The time at which sending to each rank goes on.
    next: Vec<Duration>,
    limit: Duration,
    /// The learner from times, which rank 0 has.
    learning: Option<Learning>,
    /// The change that rank 0 has staged, and its content.
    staged: (u64, Arc<[u8]>),
    /// This rank has proposed that registered buffers are used, and that was not in vain, or is open.
    has_proposed_registered: Arc<AtomicBool>,
}

impl Participant {
    /// A participant that nobody serves yet. `known` are the versions of the watched files that it begins
    /// with.
    pub fn new(place: Place, known: Known) -> Self {
        let (rank, ranks, limit) = (place.bootstrap.rank(), place.bootstrap.nranks(), place.limit);
        place.bootstrap.on_message(&[Tag::RulesUpdate, Tag::Registered].map(Tag::word), service::ring);
        let limits = Limits { step: limit };
        let learner = (rank == 0).then(|| place.tuners.learner(&place.config)).flatten();
        Self {
            comm_id: place.comm_id,
            name: place.name.clone(),
            rank,
            ranks,
            hosts: place.config.nodes,
            epoch: place.epoch.clone(),
            times: place.times.clone(),
            known: Mutex::new(known),
            fresh: Mutex::default(),
            stress: Mutex::default(),
            switches: Mutex::default(),
            work: Mutex::new(Some(Work {
                place,
                member: Member::new(limits),
                coordinator: (rank == 0).then(|| Coordinator::new(ranks, limits)),
                proposals: FxHashMap::default(),
                last_proposal: 0,
                has_met: false,
                is_leaving: false,
                gone: vec![false; ranks as usize],
                unreachable: FxHashMap::default(),
                unsent: Vec::new(),
                next: vec![Duration::ZERO; ranks as usize],
                limit,
                learning: learner.map(|learner| Learning::new(learner, ranks)),
                staged: (0, Arc::from([])),
                has_proposed_registered: Arc::default(),
            })),
        }
    }

    /// Proposes other rules for all ranks. `done` is told the outcome by the thread that serves
    /// participants; it must not wait.
    pub fn propose(&self, files: &[SettingsFile], done: Done) {
        let content = wire::pack(files);
        let most = wire::MOST_RULES.min(crate::bootstrap::MAX_MESSAGE / 2);
        if content.len() > most {
            let why =
                format!("{} bytes of rules are more than the {most} that a change may have", content.len());
            return done(Outcome::Unchanged(why));
        }
        lock(&self.fresh).push_back(Proposal { content, done });
        service::ring();
    }

    /// The versions of the watched files that the communicator has.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// Collectives that this rank has begun.
    pub fn begun(&self) -> u64 {
        self.epoch.begun()
    }

    /// The changes that have happened on this rank, the latest of them.
    pub fn switches(&self) -> Vec<Switch> {
        lock(&self.switches).iter().copied().collect()
    }

    /// Remembers a change that has happened, for [`Participant::switches`].
    pub fn remember(&self, switch: Switch) {
        let mut switches = lock(&self.switches);
        if switches.len() >= MOST_REMEMBERED {
            switches.pop_front();
        }
        switches.push_back(switch);
    }

    /// Does what can be done now. Returns whether something is open, so that it has to be called again soon.
    pub fn step(&self, now: Duration) -> bool {
        let mut work = lock(&self.work);
        let Some(work) = work.as_mut() else { return false };
        let fresh: Vec<Proposal> = lock(&self.fresh).drain(..).collect();
        // Also while it leaves: others want to have their buffers back.
        let (has_more_registered, has_retired) = work.serve_registered();
        if work.is_leaving {
            fresh.into_iter().for_each(|proposal| (proposal.done)(left()));
            work.listen(now);
            work.flush(now);
            return has_retired || !work.unsent.is_empty();
        }
        let mut todo = Todo::default();
        for Proposal { content, done } in fresh {
            work.propose(content, done, now, &mut todo);
        }
        if has_more_registered {
            work.propose_registered(now, &mut todo);
        }
        let stress = lock(&self.stress).drain(..).collect();
        work.learn(stress, now, &mut todo);
        work.carry_out(todo, now);
        work.listen(now);
        work.tick(now);
        work.flush(now);
        has_retired
            || !work.unsent.is_empty()
            || !work.unreachable.is_empty()
            || work.member.is_busy()
            || work.coordinator.as_ref().is_some_and(Coordinator::is_busy)
    }

    /// Notes what makes operations slow on this rank, for those who learn from times.
    pub fn stressed(&self, text: &str) {
        let mut all = lock(&self.stress);
        if all.len() < MOST_STRESS {
            all.push_back(text.to_owned());
        }
    }

    /// True if [`Participant::step`] has to be called now and then, since rules want to know times.
    pub fn is_timed(&self) -> bool {
        self.times.is_wanted()
    }

    /// This rank will be there for a while after [`Participant::close`], so the others do not learn by its
    /// end that it takes part in nothing any more: they are told, even where ranks have not met yet.
    pub fn stays(&self) {
        if let Some(work) = lock(&self.work).as_mut() {
            work.has_met = true;
        }
    }

    /// This rank is about to leave, but may have to wait for others, which may be about to change their
    /// rules. Where ranks have not met yet, it answers until [`Participant::close`] that it takes no part:
    /// nobody has to be told beforehand.
    pub fn leave(&self) {
        let mut work = lock(&self.work);
        if let Some(work) = work.as_mut().filter(|work| !work.has_met && work.proposals.is_empty()) {
            work.is_leaving = true;
            return;
        }
        drop(work);
        self.close();
    }

    /// Leaves the protocol: tells the other ranks, and answers every open proposal.
    pub fn close(&self) {
        let Some(mut work) = lock(&self.work).take() else { return };
        let mut todo = Todo::default();
        match &mut work.coordinator {
            Some(coordinator) if work.has_met => coordinator.leave(&mut todo),
            None if work.has_met => work.member.leave(&mut todo),
            _ => {}
        }
        // Nobody would hear what this rank tells itself.
        todo.send.retain(|(to, _)| *to != self.rank);
        if !work.place.control.is_aborted() {
            work.carry_out(todo, Duration::ZERO);
        }
        let fresh: Vec<Proposal> = lock(&self.fresh).drain(..).collect();
        let open = work.proposals.into_values().map(|(done, _)| done);
        for done in open.chain(fresh.into_iter().map(|proposal| proposal.done)) {
            done(left());
        }
    }
}

impl Work {
    fn propose(&mut self, content: Arc<[u8]>, done: Done, now: Duration, todo: &mut Todo) {
        self.last_proposal += 1;
        let until = now + self.limit * 8;
        self.proposals.insert(self.last_proposal, (done, until));
        self.member.propose(self.last_proposal, content, todo);
    }

    /// Maps what other ranks have registered, and unmaps what they took back. True in the first place if all
    /// ranks have mapped another buffer of this one, in the second if something cannot be unmapped yet.
    fn serve_registered(&self) -> (bool, bool) {
        let has_more = self.place.lsa.serve_registered();
        (has_more, self.place.lsa.free_retired(self.place.epoch.begun()))
    }

    /// Proposes that calls use registered buffers, now that all have mapped one of this rank: the last rank
    /// that has such a buffer is the one whose proposal all accept.
    fn propose_registered(&mut self, now: Duration, todo: &mut Todo) {
        if self.place.lsa.calls_reach_buffers() || self.has_proposed_registered.swap(true, Ordering::AcqRel) {
            return;
        }
        let has_proposed = self.has_proposed_registered.clone();
        let done =
            move |outcome| has_proposed.store(matches!(outcome, Outcome::Changed(_)), Ordering::Release);
        self.propose(Arc::from(wire::REGISTERED), Box::new(done), now, todo);
    }

    /// Tells rank 0 the times of operations; there, lets the learner make something of them.
    fn learn(&mut self, stress: Vec<String>, now: Duration, todo: &mut Todo) {
        let (taken, own) = (self.place.times.take(), self.place.bootstrap.rank());
        let Some(learning) = &mut self.learning else {
            let times = (!taken.is_empty()).then(|| (Tag::OpTimes.word(), learn::encode(&taken)));
            let stress = stress.into_iter().map(|text| (Tag::Stress.word(), text.into_bytes()));
            for (tag, bytes) in times.into_iter().chain(stress) {
                if self.gone[0] || self.place.bootstrap.has_left(0) {
                    return;
                }
                let wait = Wait::new(AbortFlag::new(), Some(TELL));
                // What is lost is not learned from.
                let _ = self.place.bootstrap.send(0, tag, &bytes, &wait);
            }
            return;
        };
        let heard = std::iter::from_fn(|| self.place.bootstrap.take_any(Tag::Stress.word()));
        let heard: Vec<_> =
            heard.map(|(from, bytes)| (from, String::from_utf8_lossy(&bytes).into_owned())).collect();
        for (from, text) in stress.into_iter().map(|text| (own, text)).chain(heard) {
            learning.stressed(&format!("rank {from}: {text}"), now);
        }
        while let Some((from, bytes)) = self.place.bootstrap.take_any(Tag::OpTimes.word()) {
            if let Some(times) = learn::decode(&bytes) {
                learning.hear(from, &times, now);
            }
        }
        learning.take(own, &taken, now);
        if let Some(proposal) = learning.propose(now) {
            let who = &self.place.name;
            log::info(Subsys::Tuning, || {
                format!("communicator {who}: adaptive mode proposes: {}", proposal.why)
            });
            let content = wire::pack(&proposal.files);
            learning.proposed(self.last_proposal + 1, content.clone());
            self.propose(content, Box::new(|_| ()), now, todo);
        }
    }

    /// Takes what other ranks say, then notices who is gone.
    fn listen(&mut self, now: Duration) {
        let (rank, ranks) = (self.place.bootstrap.rank(), self.place.bootstrap.nranks());
        // Whoever is gone now has sent all that is taken below.
        let watched = match (&self.coordinator, self.has_met) {
            (_, false) => 0..0,
            (Some(_), true) => 1..ranks,
            (None, true) => 0..1,
        };
        let is_news = |other: &u32| !self.gone[*other as usize] && self.place.bootstrap.has_left(*other);
        let mut gone: Vec<u32> = watched.filter(|other| *other != rank).filter(is_news).collect();
        self.unreachable.retain(|other, until| {
            let is_over = now >= *until;
            gone.extend(is_over.then_some(*other));
            !is_over
        });
        while let Some((from, bytes)) = self.place.bootstrap.take_any(Tag::RulesUpdate.word()) {
            match wire::decode(&bytes) {
                Some(message) => self.hear(from, message, now),
                None => {
                    log::warn(&format!("{}: rank {from} sent a malformed message about rules", self.who()))
                }
            }
        }
        for other in gone {
            self.lost(other, now);
        }
    }

    fn hear(&mut self, from: u32, message: Message, now: Duration) {
        self.has_met = true;
        let mut todo = Todo::default();
        if self.is_leaving {
            let why = || "it leaves the communicator".to_owned();
            let answer = match message.body {
                Body::Propose(_) => Some(Body::Outcome(Outcome::Unchanged(format!("rank 0: {}", why())))),
                Body::Stage(_) | Body::Ask(_) => Some(Body::Refused(why())),
                _ => None,
            };
            answer.into_iter().for_each(|body| todo.send(from, message.number, body));
            return self.carry_out(todo, now);
        }
        let is_for_coordinator = wire::is_for_coordinator(&message.body)
            || message.body == Body::Farewell && self.coordinator.is_some();
        match &mut self.coordinator {
            Some(coordinator) if is_for_coordinator => coordinator.hear(from, message, now, &mut todo),
            _ if from == 0 => {
                let Place { tuners, config, epoch, lsa, .. } = &self.place;
                let learning = self.learning.as_ref();
                let check = |content: &[u8]| {
                    if content == wire::REGISTERED {
                        let why = lsa.why_not_registered().map(str::to_owned);
                        return why.map_or(Ok((Staged::Registered, 0)), Err);
                    }
                    if let Some(why) = learning.and_then(|learning| learning.refuses(content)) {
                        return Err(why);
                    }
                    let files = wire::unpack(content).ok_or("the rules came damaged")?;
                    let staged = tuners.with_settings(config, &files).map_err(|error| error.into_text())?;
                    Ok((Staged::Rules { tuners: Box::new(staged.0), digest: staged.1 }, staged.1))
                };
                let (change, is_commit) = (message.number, matches!(message.body, Body::Commit(_)));
                if let Body::Stage(content) = &message.body {
                    self.staged = (change, content.clone());
                }
                self.member.hear(message, now, &mut &**epoch, &check, &mut todo);
                if let Some(learning) =
                    self.learning.as_mut().filter(|_| is_commit && self.staged.0 == change)
                {
                    learning.decided(&self.staged.1, now);
                }
            }
            _ => log::warn(&format!("{}: rank {from} sent rank 0's part of a change", self.who())),
        }
        self.carry_out(todo, now);
    }

    fn tick(&mut self, now: Duration) {
        let mut todo = Todo::default();
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.tick(now, &mut todo);
        }
        let epoch = self.place.epoch.clone();
        self.member.tick(now, &mut &*epoch, &mut todo);
        self.carry_out(todo, now);
        let late: Vec<u64> = self
            .proposals
            .iter()
            .filter(|(_, (_, until))| now >= *until)
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            let outcome = Outcome::Unknown("rank 0 has not answered in time".to_owned());
            if let Some(learning) = &mut self.learning {
                learning.settled(number, &outcome, now);
            }
            self.tell(number, outcome);
        }
    }

    fn lost(&mut self, rank: u32, now: Duration) {
        if std::mem::replace(&mut self.gone[rank as usize], true) {
            return;
        }
        let mut todo = Todo::default();
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.lost(rank, now, &mut todo);
        } else if rank == 0 {
            let epoch = self.place.epoch.clone();
            self.member.lost(&mut &*epoch, &mut todo);
        }
        self.carry_out(todo, now);
    }

    fn carry_out(&mut self, todo: Todo, now: Duration) {
        for note in todo.notes {
            log::info(Subsys::Tuning, || format!("{}: {note}", self.who()));
        }
        if let Some(why) = todo.fail {
            let text = format!("{}: {why}: the communicator is of no use any more", self.who());
            log::warn(&text);
            // The others may wait for this rank in a split, say, which it is refused from now on; and it may
            // itself wait for one that is.
            // Who ended may not be known to be dead yet; without a name others would blame this rank.
            let error = self.place.bootstrap.blame(Error::remote(text));
            self.place.abort.doom(error.clone());
            self.place.control.fail(error);
        }
        for (number, outcome) in todo.outcomes {
            if let Some(learning) = &mut self.learning {
                learning.settled(number, &outcome, now);
            }
            self.tell(number, outcome);
        }
        let own = self.place.bootstrap.rank();
        for (to, message) in todo.send {
            if to == own {
                self.hear(own, message, now);
            } else if !self.gone[to as usize] {
                self.has_met = true;
                self.unsent.push((to, message));
            }
        }
        self.flush(now);
    }

    /// Sends what ranks have not got yet.
    fn flush(&mut self, now: Duration) {
        let mut kept = Vec::new();
        for (to, message) in std::mem::take(&mut self.unsent) {
            let next = &mut self.next[to as usize];
            if self.gone[to as usize] || self.unreachable.contains_key(&to) {
                continue;
            }
            if now >= *next {
                let wait = Wait::new(AbortFlag::new(), Some(TELL));
                let sent =
                    self.place.bootstrap.send(to, Tag::RulesUpdate.word(), &wire::encode(&message), &wait);
                let Err(error) = sent else { continue };
                log::info(Subsys::Tuning, || format!("communicator {}: {error}", self.place.name));
                if error.kind != ErrorKind::Timeout {
                    self.unreachable.insert(to, now + LAST_WORDS);
                    continue;
                }
                *next = now + TELL * 2;
            }
            kept.push((to, message));
        }
        self.unsent = kept;
    }

    fn tell(&mut self, number: u64, outcome: Outcome) {
        if let Some((done, _)) = self.proposals.remove(&number) {
            done(outcome);
        }
    }

    fn who(&self) -> String {
        format!("communicator {}, rank {}", self.place.name, self.place.bootstrap.rank())
    }
}

/// The outcome of proposals of a rank that leaves.
fn left() -> Outcome {
    Outcome::Unknown("this rank has left the communicator".to_owned())
}

impl super::protocol::Fences<Staged> for &Epoch<Staged> {
    fn fence(&mut self, margin: u64) -> u64 {
        Epoch::fence(self, margin)
    }

    fn release(&mut self) {
        self.with(Barrier::release);
    }

    fn commit(&mut self, change: u64, at: u64, staged: Staged) {
        self.with(|barrier| barrier.commit(change, at, staged));
    }

    fn doubt(&mut self, why: String) {
        self.with(|barrier| barrier.doubt(why));
    }

    fn is_full(&self) -> bool {
        self.with(|barrier| barrier.is_full())
    }
}

/// The lock, also after a panic of another holder.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

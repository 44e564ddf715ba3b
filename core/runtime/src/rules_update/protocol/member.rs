//! The state machine of a rank that takes part in changes, as a member.

use std::time::Duration;

use super::{Body, DOUBT, Limits, Message, Outcome, Todo};

/// The access of a member to its [`super::Barrier`], which calls of other threads pass meanwhile.
pub trait Fences<S> {
    /// See [`super::Barrier::fence`].
    fn fence(&mut self, margin: u64) -> u64;
    /// See [`super::Barrier::release`].
    fn release(&mut self);
    /// See [`super::Barrier::commit`].
    fn commit(&mut self, change: u64, at: u64, staged: S);
    /// See [`super::Barrier::doubt`].
    fn doubt(&mut self, why: String);
    /// See [`super::Barrier::is_full`].
    fn is_full(&self) -> bool;
}

/// The function that reads and checks the content of a change. It returns what the change brings, and a
/// digest that is equal on ranks that will choose alike.
pub type Check<'a, S> = &'a dyn Fn(&[u8]) -> Result<(S, u64), String>;

/// The state machine of a rank.
#[derive(Debug)]
pub struct Member<S> {
    limits: Limits,
    /// The number of the last change that is over for this rank.
    last: u64,
    state: State<S>,
    /// The numbers of this rank's own proposals that have no outcome yet.
    proposed: Vec<u64>,
    /// True once rank 0 has said farewell or ended.
    is_alone: bool,
}

#[derive(Debug)]
enum State<S> {
    Idle,
    Staged { change: u64, staged: S, until: Duration },
    Promised { change: u64, staged: S, until: Duration },
}

impl<S> Member<S> {
    /// A member with no change open.
    pub fn new(limits: Limits) -> Self {
        Self { limits, last: 0, state: State::Idle, proposed: Vec::new(), is_alone: false }
    }

    /// True if time matters: a change or a proposal is open.
    pub fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle) || !self.proposed.is_empty()
    }

    /// Proposes a change under a number of this rank's own.
    pub fn propose(&mut self, number: u64, content: std::sync::Arc<[u8]>, todo: &mut Todo) {
        if self.is_alone {
            let why = "rank 0, which coordinates changes, has left the communicator".to_owned();
            todo.outcomes.push((number, Outcome::Unchanged(why)));
            return;
        }
        self.proposed.push(number);
        todo.send(0, number, Body::Propose(content));
    }

    /// Takes a message of rank 0.
    pub fn hear(
        &mut self,
        message: Message,
        now: Duration,
        fences: &mut impl Fences<S>,
        check: Check<'_, S>,
        todo: &mut Todo,
    ) {
        let change = message.number;
        match message.body {
            Body::Stage(content) if change > self.last => {
                self.stage(change, &content, now, fences, check, todo)
            }
            Body::Ask(margin) if change > self.last => self.promise(change, margin, now, fences, todo),
            Body::Commit(at) => {
                if let Some(staged) = self.take(change) {
                    fences.commit(change, at, staged);
                    todo.notes.push(format!("change {change} of the rules: counts from collective {at} on"));
                    todo.send(0, change, Body::Heard);
                }
            }
            Body::Drop(why) => self.give_up(change, &why, fences, todo),
            Body::Outcome(outcome) => {
                if let Some(at) = self.proposed.iter().position(|number| *number == change) {
                    self.proposed.swap_remove(at);
                    todo.outcomes.push((change, outcome));
                }
            }
            Body::Broken(why) => todo.fail = Some(why),
            Body::Farewell => self.alone("rank 0 has left the communicator", fences, todo),
            // A late message of a change that is over here, or none for members.
            _ => {}
        }
    }

    /// Ends what has taken too long by now.
    pub fn tick(&mut self, now: Duration, fences: &mut impl Fences<S>, todo: &mut Todo) {
        match &self.state {
            State::Staged { change, until, .. } if now >= *until => {
                let change = *change;
                self.give_up(change, "rank 0 has not gone on with it in time", fences, todo);
            }
            State::Promised { change, until, .. } if now >= *until => fences.doubt(format!(
                "this rank waits at its fence for the decision of rank 0 on change {change} of the rules, \
                 which has not \
                 come within {} times HAWSER_RULES_TIMEOUT",
                DOUBT
            )),
            _ => {}
        }
    }

    /// Notes that rank 0 has ended without a farewell.
    pub fn lost(&mut self, fences: &mut impl Fences<S>, todo: &mut Todo) {
        if self.is_alone {
            return;
        }
        if let State::Staged { change, .. } | State::Promised { change, .. } = &self.state {
            let why = format!("rank 0 ended in the middle of change {change} of the rules");
            fences.doubt(why.clone());
            todo.fail = Some(why);
        }
        self.alone("rank 0 has ended", fences, todo);
    }

    /// Leaves, and adds what rank 0 is told of that.
    pub fn leave(&mut self, todo: &mut Todo) {
        todo.send(0, 0, Body::Farewell);
    }

    fn stage(
        &mut self,
        change: u64,
        content: &[u8],
        now: Duration,
        fences: &mut impl Fences<S>,
        check: Check<'_, S>,
        todo: &mut Todo,
    ) {
        let refusal = match &self.state {
            State::Promised { change, .. } => Some(format!("change {change} is not decided yet")),
            _ => {
                fences.is_full().then(|| "too many changes wait for this rank's next collectives".to_owned())
            }
        };
        // What is wrong with the rules is worth more than that there is no room for them.
        let checked = check(content).and_then(|staged| refusal.map_or(Ok(staged), Err));
        match checked {
            Ok((staged, digest)) => {
                let until = now + self.limits.step * DOUBT;
                self.state = State::Staged { change, staged, until };
                todo.send(0, change, Body::Staged(digest));
            }
            Err(why) => {
                self.last = change;
                todo.send(0, change, Body::Refused(why));
            }
        }
    }

    fn promise(
        &mut self,
        change: u64,
        margin: u64,
        now: Duration,
        fences: &mut impl Fences<S>,
        todo: &mut Todo,
    ) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Staged { change: own, staged, .. } if own == change => {
                let until = now + self.limits.step * DOUBT;
                self.state = State::Promised { change, staged, until };
                todo.send(0, change, Body::Promised(fences.fence(margin)));
            }
            other => {
                self.state = other;
                let open = matches!(&self.state, State::Promised { change: own, .. } if *own == change);
                if !open {
                    todo.send(0, change, Body::Refused("it is not staged there any more".to_owned()));
                }
            }
        }
    }

    /// Takes what a change brings out of the promise; the change is over then.
    fn take(&mut self, change: u64) -> Option<S> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Promised { change: own, staged, .. } if own == change => {
                self.last = change;
                Some(staged)
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    fn give_up(&mut self, change: u64, why: &str, fences: &mut impl Fences<S>, todo: &mut Todo) {
        self.last = self.last.max(change);
        match &self.state {
            State::Staged { change: own, .. } | State::Promised { change: own, .. } if *own == change => {
                self.state = State::Idle;
                fences.release();
                todo.notes.push(format!("change {change} of the rules: nothing changes: {why}"));
            }
            _ => {}
        }
    }

    /// Ends everything that is open, since nobody coordinates any more.
    fn alone(&mut self, why: &str, fences: &mut impl Fences<S>, todo: &mut Todo) {
        self.is_alone = true;
        if let State::Staged { change, .. } = &self.state {
            let change = *change;
            self.give_up(change, why, fences, todo);
        }
        for number in self.proposed.drain(..) {
            todo.outcomes.push((number, Outcome::Unknown(why.to_owned())));
        }
    }
}

//! A rank of a world: what it does in each act, and whether it may go so.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use hawser_runtime::{Comm, Config, Error, ErrorKind, Result, Shrink, unique_id};

use crate::fates::Known;
use crate::run::{Cast, Scene, Stage};
use crate::step::{WRONG, carry_out};
use crate::turns;
use crate::world::{Act, How, Leave, OnError, Pause, Step, Then};

/// Nothing that a rank does may take so long where no rank is stopped. A host that is silent is missed after
/// half of it, and a destroy that waits in vain ends later.
const LONG: Duration = Duration::from_secs(9);

/// The deadline of an operation in all worlds, `HAWSER_OP_TIMEOUT`.
const DEADLINE: Duration = Duration::from_secs(20);

/// The doing of a rank while it waits for those of its own world, outside of the library.
const MEETS: &str = "meets the others";

/// Numbers of what a rank does in an act: init, steps, then the way to the next communicator.
const GOING_OVER: usize = 100;

/// A rank of the world.
pub(crate) struct Player<'a> {
    pub stage: &'a Stage,
    pub rank: usize,
}

impl Player<'_> {
    /// Plays all scenes that this rank is a member of.
    pub fn play(&self, scenes: &[Scene]) {
        let mut comm = None;
        for (scene, act) in scenes.iter().zip(&self.stage.world.acts) {
            self.stage.fates.begin(scene.number);
            let is_member = scene.members.contains(&self.rank);
            if !is_member && !scene.next.contains(&self.rank) {
                continue;
            }
            if is_member && scene.number == 0 {
                comm = self.note_result(scene, 0, "init", self.join(&scene.members, 0));
                self.arrive(0, comm.is_some());
            }
            if is_member && let Some(comm) = &comm {
                self.act(scene, act, comm);
            }
            self.meet(scene, 0);
            comm = self.go_over(scene, act, comm);
        }
        if let (Some(comm), Some(scene)) = (comm, scenes.last()) {
            self.end(scene, &comm);
        }
    }

    /// True if this rank is dead, and its threads clean up.
    fn is_dead(&self) -> bool {
        self.stage.fates.is_dead(self.rank)
    }

    /// Writes down whether this rank is in the communicator of an act.
    fn arrive(&self, act: usize, is_in: bool) {
        if !self.is_dead() {
            self.stage.notes().arrived.entry(act).or_default().insert(self.rank, is_in);
        }
    }

    fn config(&self) -> Config {
        let world = &self.stage.world;
        Config {
            host: Some(world.host(self.rank)),
            process: world.is_apart.then_some(self.rank as u64),
            net: Some("Sim".to_owned()),
            sm_free: world.sm_free,
            max_ctas: world.max_ctas,
            ..Config::default()
        }
    }

    /// Makes a communicator of members by the id of an act.
    fn join(&self, members: &[usize], act: usize) -> Result<Comm> {
        let id = *self.stage.ids[act].lock().unwrap_or_else(PoisonError::into_inner);
        let id = id.ok_or_else(|| match self.stage.fates.known() == Known::default() {
            true => Error::internal("nobody has made an id"),
            false => Error::remote("who makes the id is dead"),
        })?;
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
            if self.is_dead() {
                return drop(comm.abort());
            }
            self.stage.notes().steps += 1;
            // Where a rank leaves, a change of rules is refused, and all else goes on.
            let is_left = scene.leaver.is_some() || self.stage.fates.known() != Known::default();
            let is_refusal = |error: &Error| is_left && error.text.contains("the rules stay as they are");
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
        let cast = self.stage.cast(scene);
        let is_next = cast.next.contains(&self.rank);
        let way = self.way(scene, act, &cast);
        if cast.next.first() == Some(&self.rank)
            && let Some(way @ (Then::Fresh | Then::Grow)) = way
        {
            let made = match (&old, way) {
                (Some(old), Then::Grow) => old.grow_id(),
                _ => unique_id(),
            };
            let id = self.note_result(scene, GOING_OVER, "an id for the next communicator", made);
            *self.stage.ids[scene.number + 1].lock().unwrap_or_else(PoisonError::into_inner) = id;
        }
        self.meet(scene, 1);
        let next = way.filter(|_| is_next).and_then(|way| {
            self.doing(scene, &format!("goes over by {way:?}"));
            self.pause(scene);
            let made = self.next_comm(scene, way, &cast, old.as_ref());
            let made = made.and_then(|comm| match comm.ranks() as usize == cast.next.len() {
                true => Ok(comm),
                // A split is one of those that are there.
                false if way == Then::Regroup && self.some_died_since(&cast) => {
                    Err(Error::remote("ranks died on the way over"))
                }
                false => Err(Error::internal(format!("{WRONG}: {} ranks", comm.ranks()))),
            });
            let made = self.note_result(scene, GOING_OVER + 1, &format!("{way:?}"), made);
            self.arrive(scene.number + 1, made.is_some());
            made
        });
        if let Some(old) = old {
            if way == Some(Then::Grow) && next.is_none() {
                self.go_on_with(&old, scene, &cast);
            }
            self.end(scene, &old);
        }
        self.meet(scene, 2);
        self.check_agreement(scene, way, &cast);
        next
    }

    /// Stops this rank for a while at some moment of its way to the next communicator, if it is the one.
    fn pause(&self, scene: &Scene) {
        let pause = self.stage.world.pause.filter(|pause| pause.act == scene.number);
        if let Some(Pause { who, after, time, .. }) = pause
            && scene.members[who % scene.members.len()] == self.rank
        {
            turns::freeze(Duration::from_micros(after), Duration::from_millis(time));
        }
    }

    /// The old ranks of a growth that failed since a new one has died go on with what they have.
    fn go_on_with(&self, old: &Comm, scene: &Scene, cast: &Cast) {
        let known = self.stage.fates.known();
        let some_died = known.dead.iter().any(|rank| cast.next.contains(rank));
        let is_old = |rank: &usize| cast.members.contains(rank);
        if !some_died || known.dead.iter().any(is_old) || known.is_cut || self.is_dead() {
            return;
        }
        self.doing(scene, "goes on with the old communicator");
        if let Err(error) = carry_out(old, GOING_OVER, &Step::Vectors) {
            let text =
                format!("rank {}, act {}, after a growth that failed: {error}", self.rank, scene.number);
            self.stage.find(text);
        }
    }

    /// True if ranks of the next communicator have died since its members were decided.
    fn some_died_since(&self, cast: &Cast) -> bool {
        let known = self.stage.fates.known();
        cast.next.iter().any(|rank| known.dead.contains(rank))
    }

    /// The way over, which is the same for all that meet; None after the last act.
    fn way(&self, scene: &Scene, act: &Act, cast: &Cast) -> Option<Then> {
        let notes = self.stage.notes();
        if scene.number + 1 == self.stage.world.acts.len() {
            return None;
        }
        // Who did not get a communicator cannot go on from it, so nobody does.
        let all_are_in =
            !notes.arrived.get(&scene.number).is_some_and(|all| all.values().any(|is_in| !is_in));
        let someone_died = cast.members.iter().any(|rank| cast.known.dead.contains(rank));
        let is_whole = scene.leaver.is_none() && !notes.failed.contains(&scene.number) && !someone_died;
        Some(match act.then {
            Then::Shrink(_) if all_are_in && cast.next.len() < cast.members.len() => {
                if is_whole || scene.leaver.is_some() || someone_died { act.then } else { Then::Fresh }
            }
            Then::Regroup if all_are_in && scene.leaver.is_none() => Then::Regroup,
            Then::Grow if all_are_in && is_whole && cast.next.len() > cast.members.len() => Then::Grow,
            Then::Fresh if all_are_in && someone_died => Then::Shrink(0),
            _ => Then::Fresh,
        })
    }

    fn next_comm(&self, scene: &Scene, way: Then, cast: &Cast, old: Option<&Comm>) -> Result<Comm> {
        let Some(old) = old else { return self.join(&cast.next, scene.number + 1) };
        match way {
            Then::Fresh => {
                self.end(scene, old);
                self.doing(scene, "goes over by Fresh");
                self.join(&cast.next, scene.number + 1)
            }
            Then::Shrink(_) => {
                let places = (0..).zip(&cast.members);
                let gone: Vec<i32> =
                    places.filter(|(_, rank)| !cast.next.contains(rank)).map(|(place, _)| place).collect();
                let is_whole = scene.leaver.is_none() && cast.known.dead.is_empty();
                old.shrink(&gone, None, if is_whole { Shrink::Keep } else { Shrink::Abort })
            }
            Then::Regroup => {
                old.revoke()?;
                old.split(0, 0, None)?.ok_or_else(|| Error::internal("a split gave no communicator"))
            }
            Then::Grow => {
                let id = *self.stage.ids[scene.number + 1].lock().unwrap_or_else(PoisonError::into_inner);
                let own = id.filter(|_| cast.next.first() == Some(&self.rank));
                old.grow(cast.next.len() as u32, own, None)
            }
        }
    }

    /// Survivors agree: all are in the next communicator, or nobody is, unless the network may fail.
    /// A rank that dies on the way over may have been there for some of them. The old ranks of a growth agree
    /// whatever becomes of the network and of the new one.
    fn check_agreement(&self, scene: &Scene, way: Option<Then>, cast: &Cast) {
        let known = self.stage.fates.known();
        let have_died = |ranks: &[usize]| ranks.iter().any(|rank| known.dead.contains(rank));
        let is_known = known == cast.known && !known.is_cut && !self.stage.world.conditions.may_fail();
        let who = match way {
            _ if is_known => &cast.next,
            Some(Then::Grow) if !have_died(&cast.members) => &cast.members,
            _ => return,
        };
        if who.first() != Some(&self.rank) {
            return;
        }
        let arrived = self.stage.notes().arrived.get(&(scene.number + 1)).cloned().unwrap_or_default();
        let (over, left): (Vec<usize>, Vec<usize>) =
            who.iter().filter(|rank| arrived.contains_key(rank)).partition(|rank| arrived[rank]);
        if !over.is_empty() && !left.is_empty() {
            let text = format!("ranks {over:?} went over to the next communicator, ranks {left:?} did not");
            self.stage.find(format!("act {}: {text}", scene.number));
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
        if self.is_dead() {
            return;
        }
        // Under the lock nobody looks at a clock, since a thread may lose its turn there, and die.
        let now = Instant::now();
        let doing = (format!("act {}: {text}", scene.number), now);
        let before = self.stage.notes().doing.insert(self.rank, doing);
        if let Some((text, since)) = before
            && now - since >= longest(&self.stage.world.acts[scene.number.saturating_sub(1)..=scene.number])
            && !text.ends_with(MEETS)
            && !self.may_take_long(&text)
        {
            let time = (now - since).as_secs();
            self.stage.find(format!("rank {}, {text}: took {time} s, as long as a deadline", self.rank));
        }
    }

    /// Deadlines end waits where nobody can know that a rank is gone: for one that was to join by an id, and
    /// for messages that a switch or a connection no longer carries, without a word.
    fn may_take_long(&self, text: &str) -> bool {
        if self.stage.world.conditions.silences > 0 {
            return true;
        }
        let known = self.stage.fates.known();
        let joins =
            ["Fresh", "Grow", "destroys"].iter().any(|word| text.contains(word)) || text.ends_with("init");
        known.is_cut || !known.dead.is_empty() && joins
    }

    /// Waits for the other ranks of a scene: when the act is over, when ids are made, and when all have gone
    /// over. Who joins meets the members each time.
    fn meet(&self, scene: &Scene, number: usize) {
        self.doing(scene, MEETS);
        let all = scene.members.iter().chain(&scene.next).copied().collect();
        self.stage.fates.meet((scene.number, number), self.rank, &all);
        self.doing(scene, "has met the others");
    }

    /// Writes down how something went, and whether it may go so.
    fn note_result<T>(&self, scene: &Scene, number: usize, what: &str, result: Result<T>) -> Option<T> {
        if self.is_dead() {
            return None;
        }
        let text = match &result {
            Ok(_) => format!("{what}: done"),
            Err(error) => format!("{what}: {:?}: {error}", error.kind),
        };
        if let Err(error) = &result {
            self.check_kind(scene, what, error);
            if !self.may_fail(scene, number) {
                self.stage
                    .find(format!("rank {}, act {}, {text}: nothing was to fail", self.rank, scene.number));
            }
            if number < GOING_OVER && !what.starts_with("Split") {
                self.check_blame(scene, &self.stage.members(scene), &text, error);
            } else if what == "Grow" && scene.members.contains(&self.rank) {
                self.check_blame(scene, &scene.next, &text, error);
            }
        }
        let now = Instant::now();
        let mut notes = self.stage.notes();
        let time = now.saturating_duration_since(*notes.begin.get_or_insert(now)).as_micros();
        notes.trace.insert((scene.number, self.rank, number), format!("[{time} us] {text}"));
        if result.is_err() {
            notes.errors += 1;
            if number < GOING_OVER {
                notes.failed.insert(scene.number);
            }
        }
        result.ok()
    }

    /// An error names one of the ranks that have died, where nothing else is wrong.
    fn check_blame(&self, scene: &Scene, members: &[usize], text: &str, error: &Error) {
        let known = self.stage.fates.known();
        if scene.leaver.is_some() || known.is_cut || self.stage.world.conditions.may_fail() {
            return;
        }
        let is_told = error.text.contains("growth has failed on rank");
        let blamed = error.peer.map(|place| members.get(place as usize));
        let is_named = (0..).zip(members).any(|(place, rank)| {
            // Ranks that did not notice it themselves blame the one that told them, too.
            let is_in_text = (error.peer.is_none() || is_told) && names(&error.text, place);
            known.dead.contains(rank) && (error.peer == Some(place) || is_in_text)
        });
        if !is_named {
            let text = format!(
                "rank {}, act {}, {text}: blames {blamed:?}, dead are {:?}",
                self.rank, scene.number, known.dead
            );
            self.stage.find(text);
        }
    }

    /// True if something in the world explains an error.
    fn may_fail(&self, scene: &Scene, number: usize) -> bool {
        if self.stage.world.conditions.may_fail() {
            return true;
        }
        let now = self.stage.fates.known();
        if number >= GOING_OVER {
            // The dead of before are left out by then.
            return now.is_cut || now != self.stage.fates.decided(scene.number);
        }
        let is_dead = |rank: &usize| now.dead.contains(rank);
        scene.leaver.is_some() || now.is_cut || self.stage.members(scene).iter().any(is_dead)
    }

    /// No fault of the world excuses a wrong result, a bug, or a wait that only its deadline ended.
    fn check_kind(&self, scene: &Scene, what: &str, error: &Error) {
        let is_excused = match error.kind {
            ErrorKind::Internal => false,
            ErrorKind::Timeout => self.may_take_long(what),
            _ => true,
        };
        if error.text.contains(WRONG) || !is_excused {
            let text = format!("rank {}, act {}, {what}: {:?}: {error}", self.rank, scene.number, error.kind);
            self.stage.find(text);
        }
    }
}

/// Nothing that a rank does in the last of some acts may take so long: ranks may wait for all that are
/// stopped, one after the other, also for one that was stopped in the act before. A wait that its deadline
/// ends is always longer.
fn longest(acts: &[Act]) -> Duration {
    let stop = |step: &Step| if let Step::Stop(_, _, time, _) = step { *time } else { 0 };
    let stops = Duration::from_millis(acts.iter().flat_map(|act| &act.steps).map(stop).sum());
    (LONG + stops).min(DEADLINE - Duration::from_secs(1))
}

/// True if a text names a rank, alone or in a list.
fn names(text: &str, rank: u32) -> bool {
    let is_in = |list: &str| {
        let end = list.find(|c: char| !c.is_ascii_digit() && !", ".contains(c)).unwrap_or(list.len());
        list[..end].split(',').any(|number| number.trim() == rank.to_string())
    };
    text.contains(&format!("rank {rank} ")) || text.split("ranks ").skip(1).any(is_in)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{DEADLINE, LONG, longest, names};
    use crate::world::{Act, Drawn, Step, Then};
    use hawser_types::{Collective, DataType, ReduceOp};

    /// Two that follow each other make a third rank wait for both; no number of them hides a deadline.
    #[test]
    fn stops_may_follow_each_other() {
        let drawn = Drawn {
            collective: Collective::AllReduce,
            dtype: DataType::Int32,
            op: ReduceOp::Sum,
            root: 0,
            count: 1,
            in_place: false,
            shift: 0,
        };
        let of = |stops: &[u64]| {
            let steps = stops.iter().map(|time| Step::Stop(0, 0, *time, drawn)).collect();
            longest(&[Act { steps, leave: None, then: Then::Fresh }])
        };
        assert_eq!((of(&[]), of(&[7_999])), (LONG, LONG + Duration::from_millis(7_999)));
        let two = of(&[5_084, 7_792]);
        assert!(two > Duration::from_millis(5_084 + 7_792) && two < DEADLINE);
        assert!(of(&[8_000; 5]) < DEADLINE);
    }

    #[test]
    fn a_rank_is_named_alone_or_in_a_list() {
        let text = "rank 2 of 4: rank 2 waits for ranks 0, 1, 13 to join";
        assert!([0, 1, 2, 13].iter().all(|rank| names(text, *rank)));
        assert!(![3, 4].iter().any(|rank| names(text, *rank)));
    }
}

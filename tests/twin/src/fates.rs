//! The dead of a world, and the places where ranks meet: those that are dead are not waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hawser_net_sim as net;

use crate::turns;
use crate::world::{Death, From, Manner, World};

/// The silence after which a host counts as gone: `HAWSER_HEARTBEAT` of all worlds.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// The knowledge of a world about its ranks. Nothing that gives turns away is done under its lock, so a
/// thread that dies never holds it.
#[derive(Default)]
pub struct Fates {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// By rank: the group of its threads.
    groups: BTreeMap<usize, usize>,
    /// Acts that a rank has come to.
    begun: BTreeSet<usize>,
    dead: BTreeSet<usize>,
    /// The switch between two sets of hosts has broken.
    is_cut: bool,
    /// Ranks that have played all their scenes.
    finished: BTreeSet<usize>,
    /// By act and number of the meeting: the ranks that have come to it.
    met: BTreeMap<(usize, usize), BTreeSet<usize>>,
    /// By act: who was dead, and whether there was a cut, when its members decided how to go on.
    decided: BTreeMap<usize, Known>,
    is_over: bool,
}

/// The state of a world that all members of an act go by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// The ranks that were dead.
    pub dead: BTreeSet<usize>,
    /// Hosts were cut from each other.
    pub is_cut: bool,
}

impl Inner {
    /// True if a rank has to wait for others of some ranks at a meeting that it has come to.
    fn must_wait(&self, meeting: (usize, usize), rank: usize, ranks: &BTreeSet<usize>) -> bool {
        let come = &self.met[&meeting];
        let is_awaited = |rank: &usize| !come.contains(rank) && !self.dead.contains(rank);
        if self.dead.contains(&rank) { !self.is_over } else { ranks.iter().any(is_awaited) }
    }
}

impl Fates {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let changed = change(&mut self.inner());
        self.changed.notify_all();
        changed
    }

    fn wait_while(&self, is_early: impl Fn(&Inner) -> bool) -> MutexGuard<'_, Inner> {
        let waited = self.changed.wait_while(self.inner(), |inner| is_early(inner));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread, and all that it begins, are a rank.
    pub fn enter(&self, rank: usize) {
        let group = turns::part();
        self.change(|inner| inner.groups.insert(rank, group));
    }

    /// A rank comes to an act.
    pub fn begin(&self, act: usize) {
        self.change(|inner| inner.begun.insert(act));
    }

    /// A rank has played all its scenes, or is dead.
    pub fn finish(&self, rank: usize) {
        self.change(|inner| inner.finished.insert(rank));
    }

    /// True if a rank is dead.
    pub fn is_dead(&self, rank: usize) -> bool {
        self.inner().dead.contains(&rank)
    }

    /// The state of this moment.
    pub fn known(&self) -> Known {
        let inner = self.inner();
        Known { dead: inner.dead.clone(), is_cut: inner.is_cut }
    }

    /// The state that the members of an act go by when they go over to the next one: it is the same for all.
    pub fn decided(&self, act: usize) -> Known {
        let mut inner = self.inner();
        let known = Known { dead: inner.dead.clone(), is_cut: inner.is_cut };
        inner.decided.entry(act).or_insert(known).clone()
    }

    /// Waits until all of some ranks that are not dead have come to a meeting of an act. Who dies meanwhile
    /// stays until the world is over: it would take its leave of the others otherwise.
    pub fn meet(&self, (act, number): (usize, usize), rank: usize, ranks: &BTreeSet<usize>) {
        self.change(|inner| inner.met.entry((act, number)).or_default().insert(rank));
        drop(self.wait_while(|inner| inner.must_wait((act, number), rank, ranks)));
    }

    /// Waits until all ranks that are not dead have played all their scenes. The threads of those that are
    /// dead go on then, to clean up.
    pub fn wait_for_survivors(&self, world: &World) {
        let all = 0..world.most_ranks();
        let is_awaited =
            |inner: &Inner, rank: usize| !inner.finished.contains(&rank) && !inner.dead.contains(&rank);
        drop(self.wait_while(|inner| all.clone().any(|rank| is_awaited(inner, rank))));
        self.change(|inner| {
            inner.is_over = true;
            let dead: Vec<usize> = inner.dead.iter().map(|rank| inner.groups[rank]).collect();
            turns::cut_sockets(&dead);
            net::let_go();
            turns::go_on();
        });
    }

    /// Brings a death to some ranks when its moment comes. Returns whether it came to that.
    pub fn bring(&self, world: &World, death: &Death, victims: &[usize]) -> bool {
        let has_come = |inner: &Inner| match death.from {
            From::Begin => inner.begun.contains(&death.act),
            From::GoingOver => inner.decided.contains_key(&death.act),
        };
        drop(self.wait_while(|inner| !inner.is_over && !has_come(inner)));
        self.rest(Duration::from_micros(death.after));
        let groups = self.change(|inner| {
            // Without turns threads have no groups, and cannot be stopped.
            let has_groups =
                inner.groups.len() == world.most_ranks() && !inner.groups.values().any(|g| *g == 0);
            if inner.is_over || !has_groups {
                return None;
            }
            let group = |rank: &usize| inner.groups[rank];
            let groups: Vec<usize> = victims.iter().map(group).collect();
            let others: Vec<usize> =
                (0..world.most_ranks()).filter(|r| !victims.contains(r)).map(|r| group(&r)).collect();
            let places = |groups: &[usize]| groups.iter().map(|group| *group as u64).collect::<Vec<_>>();
            if let Manner::Switch(cut) = death.manner {
                net::cut([&places(&groups), &places(&others)], cut);
                inner.is_cut = true;
                return Some(groups);
            }
            if !turns::stop(&groups) {
                return None;
            }
            let fate = match death.manner {
                Manner::Host => net::Fate::Silent,
                _ => net::Fate::Ended,
            };
            net::end(&places(&groups), fate);
            if fate == net::Fate::Ended {
                turns::cut_sockets(&groups);
            }
            inner.dead.extend(victims.iter().copied().filter(|rank| !inner.finished.contains(rank)));
            Some(groups)
        });
        if death.manner == Manner::Host
            && let Some(groups) = &groups
        {
            // The kernels of the others ask it for a sign of life, and close what it had with them.
            self.rest(HEARTBEAT);
            turns::cut_sockets(groups);
        }
        groups.is_some()
    }

    /// Waits for a time, or until the world is over.
    fn rest(&self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let inner = self.inner();
            if inner.is_over || left.is_zero() {
                break;
            }
            drop(self.changed.wait_timeout(inner, left));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_are_not_awaited_and_do_nothing_until_the_world_is_over() {
        let (meeting, ranks) = ((0, 0), BTreeSet::from([0, 1]));
        let mut inner = Inner::default();
        inner.met.insert(meeting, BTreeSet::from([0]));
        assert!(inner.must_wait(meeting, 0, &ranks));
        inner.dead.insert(1);
        assert!(!inner.must_wait(meeting, 0, &ranks));
        inner.dead.insert(0);
        assert!(inner.must_wait(meeting, 0, &ranks));
        inner.is_over = true;
        assert!(!inner.must_wait(meeting, 0, &ranks));
    }
}

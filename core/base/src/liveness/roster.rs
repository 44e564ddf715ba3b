//! The state of a communicator's ranks as far as it is known, and its consequences for those who wait.
//!
//! A rank **leaves** when it destroys its communicator or its process ends in order, it **dies** when its
//! process or its host ends otherwise, and it **fails** when an operation or bring-up ends with an error that
//! it reports. One that is **out of reach** has left or died, and nobody knows which: who learns it tells it.
//! Guilty is who died or failed and did not blame another rank before: neighbours that end in consequence say
//! whom they blame, so that everybody names the same rank.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use std::collections::{BTreeMap, BTreeSet};

use super::Identity;
use crate::error::{Error, Result};

/// The time after the first bad news at which the ranks to blame are named: what others know has come by
/// then.
pub const SETTLE: Duration = Duration::from_millis(150);

/// The time without movement after which a wait for a rank that has gone ends: what it sent last has come by
/// then.
const IN_VAIN: Duration = Duration::from_millis(300);

/// The same for a wait for a rank that lives, in a message between two ranks, after a third has died.
const IN_VAIN_FOR_OTHERS: Duration = Duration::from_millis(1200);

/// The time after the first end within which another one may be to blame: errors of waits take longer than
/// that.
const TOGETHER: Duration = Duration::from_millis(100);

/// The time that an error waits for the news that explain it.
const NEWS: Duration = Duration::from_millis(500);

/// The ends of a rank's part in a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// In peace: it destroyed the communicator, or its process ended in order.
    Left(String),
    /// Its process or host ended; the text says how that was noticed.
    Died(String),
    /// Nothing is there any more where it listened, for the reason in the text, and it has said nothing: it
    /// may have left at the same time as the rank that passes news on, or may have died.
    OutOfReach(String),
    /// It reported an error.
    Failed {
        /// The error's text.
        text: String,
        /// The rank that it blames.
        because_of: Option<u32>,
    },
}

/// The roster of a communicator: the knowledge of every rank.
#[derive(Debug)]
pub struct Roster {
    rank: u32,
    members: Vec<Identity>,
    /// Nothing has become of anybody.
    is_quiet: AtomicBool,
    fates: Mutex<BTreeMap<u32, Fate>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Fate {
    /// The end of the rank, and the time at which this rank learned of it.
    gone: Option<(End, Instant)>,
    /// The failure that the rank reported.
    failed: Option<(String, Option<u32>, Instant)>,
}

impl Roster {
    /// All ranks are alive.
    pub fn new(rank: u32, members: Vec<Identity>) -> Self {
        Self { rank, members, is_quiet: true.into(), fates: Mutex::default(), changed: Condvar::new() }
    }

    /// The process of each rank.
    pub fn members(&self) -> &[Identity] {
        &self.members
    }

    /// The first rank of a process.
    pub fn rank_of(&self, process: &Identity) -> Option<u32> {
        let at = self.members.iter().position(|member| member.is_same_process(process))?;
        u32::try_from(at).ok()
    }

    /// True if nothing has become of anybody.
    pub fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Acquire)
    }

    /// Notes what became of a rank, `age` ago. Returns whether that is news.
    pub fn note(&self, rank: u32, end: &End, age: Duration) -> bool {
        if rank as usize >= self.members.len() {
            return false;
        }
        let mut fates = self.lock();
        let fate = fates.entry(rank).or_default();
        let now = Instant::now();
        let since = now.checked_sub(age).unwrap_or(now);
        let is_news = match (end, &fate.gone, &fate.failed) {
            (End::Failed { text, because_of }, _, None) => {
                fate.failed = Some((text.clone(), *because_of, since));
                true
            }
            // Who left in peace may be taken for dead before the word comes, and who is out of reach has
            // done one or the other.
            (End::Left(_), None | Some((End::Died(_) | End::OutOfReach(_), _)), _)
            | (End::Died(_), None | Some((End::OutOfReach(_), _)), _)
            | (End::OutOfReach(_), None, _) => {
                fate.gone = Some((end.clone(), since));
                true
            }
            _ => false,
        };
        // Another rank may have learned of a death earlier, above all if this one was stopped meanwhile.
        if let (End::Died(_), Some((End::Died(_), at))) = (end, &mut fate.gone) {
            *at = since.min(*at);
        }
        drop(fates);
        self.is_quiet.store(false, Ordering::Release);
        self.changed.notify_all();
        is_news
    }

    /// All that is known, and how long ago it was learned.
    pub fn all(&self) -> Vec<(u32, End, Duration)> {
        if self.is_quiet() {
            return Vec::new();
        }
        let fates = self.lock();
        let failed = fates.iter().filter_map(|(rank, fate)| {
            let (text, because_of, at) = fate.failed.clone()?;
            Some((*rank, End::Failed { text, because_of }, at.elapsed()))
        });
        let gone = fates.iter().filter_map(|(rank, fate)| {
            let (end, at) = fate.gone.clone()?;
            Some((*rank, end, at.elapsed()))
        });
        // First what explains a failure.
        gone.chain(failed).collect()
    }

    /// True if a rank has left, died or failed.
    pub fn has_gone(&self, rank: u32) -> bool {
        !self.is_quiet()
            && self.lock().get(&rank).is_some_and(|fate| fate.gone.is_some() || fate.failed.is_some())
    }

    /// True if a rank has died: what it sent last has arrived, or never will.
    pub fn has_died(&self, rank: u32) -> bool {
        let has_died = |fate: &Fate| matches!(fate.gone, Some((End::Died(_), _)));
        !self.is_quiet() && self.lock().get(&rank).is_some_and(has_died)
    }

    /// The rank whose death this one learned of first; where none is known to have died, the one that was out
    /// of reach first.
    pub fn first_missed(&self) -> Option<u32> {
        if self.is_quiet() {
            return None;
        }
        let fates = self.lock();
        let missed = fates.iter().filter_map(|(rank, fate)| match &fate.gone {
            Some((End::Died(_), at)) => Some((false, *at, *rank)),
            Some((End::OutOfReach(_), at)) => Some((true, *at, *rank)),
            _ => None,
        });
        missed.min().map(|(.., rank)| rank)
    }

    /// The end of a rank that has left, died or come out of reach, as an error; none while it is there,
    /// whatever has failed on it.
    pub fn absence(&self, rank: u32) -> Option<Error> {
        if self.is_quiet() {
            return None;
        }
        let sentence = self.gone_sentence(rank, self.lock().get(&rank)?.gone.as_ref()?);
        Some(Error::remote(sentence).with_peer(rank).remedy("see what that process wrote last"))
    }

    /// The lowest rank that has not gone.
    pub fn first_present(&self) -> u32 {
        let fates = self.lock();
        let is_present = |rank: &u32| fates.get(rank).is_none_or(|fate| fate.gone.is_none());
        (0..self.members.len() as u32).find(is_present).unwrap_or(self.rank)
    }

    /// The ranks that have left in peace or are out of reach: only waits for them are in vain.
    pub fn gone_without_trouble(&self) -> Vec<u32> {
        let has_gone = |fate: &Fate| matches!(fate.gone, Some((End::Left(_) | End::OutOfReach(_), _)));
        self.lock().iter().filter(|(_, fate)| has_gone(fate)).map(|(rank, _)| *rank).collect()
    }

    /// The rank to blame, as an error; none while nobody is, or the news are too fresh.
    pub fn verdict(&self) -> Option<Error> {
        if self.is_quiet() {
            return None;
        }
        let fates = self.lock();
        let first = first_trouble(&fates)?;
        if first.elapsed() < SETTLE { None } else { self.blame(&fates, &self.guilty(&fates)) }
    }

    /// The time at which [`Roster::verdict`] may have something to say.
    pub fn verdict_at(&self) -> Option<Instant> {
        if self.is_quiet() { None } else { Some(first_trouble(&self.lock())? + SETTLE) }
    }

    /// Fails if a wait for `peer`, in which nothing has moved since a moment, is in vain. `of_all`: all ranks
    /// take part in what is waited for.
    ///
    /// # Errors
    /// `Remote`: it is; the text names who is to blame.
    pub fn check(&self, peer: u32, since: Instant, of_all: bool) -> Result<()> {
        if self.is_quiet() || since.elapsed() < IN_VAIN {
            return Ok(());
        }
        let verdict = self.verdict();
        let fates = self.lock();
        let Some(fate) = fates.get(&peer) else {
            let is_in_vain = of_all || since.elapsed() >= IN_VAIN_FOR_OTHERS;
            return verdict.filter(|_| is_in_vain).map_or(Ok(()), Err);
        };
        if let Some(error) = verdict {
            return Err(error);
        }
        match &fate.gone {
            Some((End::Left(_) | End::OutOfReach(_), at)) if at.elapsed() >= IN_VAIN => {
                self.blame(&fates, &[peer]).map_or(Ok(()), Err)
            }
            _ => Ok(()),
        }
    }

    /// The rank to blame for an error that may be a consequence: waits for the news that explain it, for a
    /// short time.
    pub fn explain(&self) -> Option<Error> {
        let end = Instant::now() + NEWS;
        let mut fates = self.lock();
        loop {
            let now = Instant::now();
            match first_trouble(&fates) {
                Some(first) if first.elapsed() >= SETTLE => return self.blame(&fates, &self.guilty(&fates)),
                Some(first) => fates = self.rest(fates, SETTLE.saturating_sub(now - first)),
                None if now >= end => return None,
                None => fates = self.rest(fates, end - now),
            }
        }
    }

    fn rest<'a>(
        &self,
        fates: MutexGuard<'a, BTreeMap<u32, Fate>>,
        limit: Duration,
    ) -> MutexGuard<'a, BTreeMap<u32, Fate>> {
        let limit = limit.max(Duration::from_millis(1));
        self.changed.wait_timeout(fates, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The ranks that failed or died and blame nobody, and those who are blamed.
    fn guilty(&self, fates: &BTreeMap<u32, Fate>) -> Vec<u32> {
        let mut blamed = BTreeSet::new();
        let first = first_trouble(fates).unwrap_or_else(Instant::now);
        for (rank, fate) in fates {
            match (&fate.failed, &fate.gone) {
                (Some((_, because_of, _)), _) => drop(blamed.insert(because_of.unwrap_or(*rank))),
                (None, Some((End::Died(_), at))) if *at <= first + TOGETHER => drop(blamed.insert(*rank)),
                _ => {}
            }
        }
        let is_consequence =
            |rank: &u32| fates.get(rank).is_some_and(|f| f.failed.as_ref().is_some_and(|f| f.1.is_some()));
        let others = || blamed.iter().copied().filter(|rank| *rank != self.rank);
        let causes: Vec<u32> = others().filter(|rank| !is_consequence(rank)).collect();
        if !causes.is_empty() {
            return causes;
        }
        let blamed: Vec<u32> = others().collect();
        if !blamed.is_empty() {
            return blamed;
        }
        // All blame this rank, which knows of nothing; but they have ended, and do not come any more.
        let has_failed =
            |(rank, fate): (&u32, &Fate)| (*rank != self.rank && fate.failed.is_some()).then_some(*rank);
        fates.iter().filter_map(has_failed).collect()
    }

    fn blame(&self, fates: &BTreeMap<u32, Fate>, guilty: &[u32]) -> Option<Error> {
        // Who has failed and blames nobody may not have heard yet of one that has died.
        let has_died = |rank: &&u32| {
            matches!(fates.get(rank), Some(Fate { failed: None, gone: Some((End::Died(_), _)), .. }))
        };
        let first = *guilty.iter().find(has_died).or(guilty.first())?;
        let texts: Vec<String> = guilty.iter().take(4).map(|rank| self.sentence(fates, *rank)).collect();
        let more = guilty.len().saturating_sub(4);
        let tail = if more > 0 { format!(", and {more} more") } else { String::new() };
        let error = Error::remote(format!("{}{tail}", texts.join("; "))).with_peer(first);
        Some(error.remedy("see what that process wrote last"))
    }

    /// The sentence about one rank.
    fn sentence(&self, fates: &BTreeMap<u32, Fate>, rank: u32) -> String {
        match fates.get(&rank) {
            Some(Fate { failed: Some((text, ..)), .. }) => format!("{} reports: {text}", self.name(rank)),
            Some(Fate { gone: Some(gone), .. }) => self.gone_sentence(rank, gone),
            _ => format!("{} is blamed by other ranks", self.name(rank)),
        }
    }

    fn gone_sentence(&self, rank: u32, (end, at): &(End, Instant)) -> String {
        let (who, ago) = (self.name(rank), format!("{:.1} s ago", at.elapsed().as_secs_f32()));
        match end {
            End::Died(how) => format!("{who} has died {ago}: {how}"),
            End::Left(how) => format!("{who} has left the communicator {ago}: {how}"),
            End::OutOfReach(how) => format!("{who} was found out of reach {ago}: {how}"),
            End::Failed { text, .. } => format!("{who} reports: {text}"),
        }
    }

    /// A rank in words: `rank 1 (rank 5 of the first communicator, process 4711 on alpha)`.
    pub fn name(&self, rank: u32) -> String {
        let Some(member) = self.members.get(rank as usize) else { return format!("rank {rank}") };
        let world = match member.world {
            world if world == rank => String::new(),
            world => format!("rank {world} of the first communicator, "),
        };
        format!("rank {rank} ({world}process {} on host {})", member.pid, member.host())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Fate>> {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time at which this rank learned that somebody died or failed.
fn first_trouble(fates: &BTreeMap<u32, Fate>) -> Option<Instant> {
    let died = |fate: &Fate| match &fate.gone {
        Some((End::Died(_), at)) => Some(*at),
        _ => None,
    };
    fates.values().flat_map(|fate| [died(fate), fate.failed.as_ref().map(|f| f.2)]).flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster(rank: u32) -> Roster {
        Roster::new(rank, (0..8).map(|world| Identity::own(world, None)).collect())
    }

    fn died() -> End {
        End::Died("its process ended".into())
    }

    fn failed(because_of: Option<u32>) -> End {
        End::Failed { text: "no".into(), because_of }
    }

    const LONG: Duration = Duration::from_secs(5);

    fn long_ago() -> Instant {
        Instant::now().checked_sub(LONG).unwrap_or_else(Instant::now)
    }

    #[test]
    fn who_blames_another_is_not_to_blame() {
        let roster = roster(0);
        assert_eq!((roster.verdict(), roster.first_missed()), (None, None));
        assert!(roster.note(1, &died(), LONG) && !roster.note(1, &died(), LONG));
        assert_eq!(roster.verdict().unwrap().peer, Some(1));
        assert!(roster.note(1, &failed(Some(2)), LONG));
        assert_eq!(roster.verdict().unwrap().peer, Some(2), "also while nothing else is known of it");
        assert!(roster.note(2, &died(), LONG));
        let error = roster.verdict().unwrap();
        assert!(error.text.contains("rank 2 (process") && error.text.contains("has died 5"), "{error}");
        assert!(!error.text.contains("rank 1"), "{error}");
    }

    /// One whose connection to the dead rank failed has not heard of the death, since who passes news on was
    /// stopped.
    #[test]
    fn who_died_is_blamed_before_who_failed_without_a_reason() {
        let roster = roster(0);
        roster.note(1, &failed(None), LONG);
        assert_eq!(roster.verdict().unwrap().peer, Some(1));
        roster.note(3, &died(), LONG);
        let error = roster.verdict().unwrap();
        assert!(error.peer == Some(3) && error.text.contains("rank 1"), "{error}");
    }

    /// Those who blame it do not come any more, so who waits for them is told by whom.
    #[test]
    fn a_rank_that_all_others_blame_names_them() {
        let roster = roster(2);
        roster.note(1, &failed(Some(2)), LONG);
        roster.note(3, &failed(Some(2)), LONG);
        assert_eq!(roster.verdict().unwrap().peer, Some(1));
        assert_eq!(roster.check(3, long_ago(), false).unwrap_err().peer, Some(1));
        roster.note(4, &failed(None), LONG);
        assert_eq!(roster.verdict().unwrap().peer, Some(4));
    }

    #[test]
    fn fresh_news_wait_for_their_explanation() {
        let roster = roster(0);
        roster.note(1, &died(), Duration::ZERO);
        assert!(roster.verdict_at().is_some());
        let explained = std::thread::scope(|scope| {
            let asked = scope.spawn(|| roster.explain());
            roster.note(1, &failed(Some(3)), Duration::ZERO);
            asked.join().unwrap()
        });
        assert_eq!(explained.unwrap().peer, Some(3));
    }

    #[test]
    fn leaving_in_peace_ends_only_waits_for_that_rank() {
        let roster = roster(0);
        roster.note(2, &died(), LONG);
        assert!(roster.note(2, &End::Left("it destroyed it".into()), LONG), "the word came late");
        assert!(!roster.note(2, &died(), LONG));
        assert_eq!(roster.verdict(), None);
        assert_eq!((roster.gone_without_trouble(), roster.first_present()), (vec![2], 0));
        roster.check(1, long_ago(), true).unwrap();
        roster.check(2, Instant::now(), true).unwrap();
        let error = roster.check(2, long_ago(), false).unwrap_err();
        assert!(error.text.contains("has left the communicator") && error.peer == Some(2), "{error}");
        // A rank that waited for it says so, and then it is to blame for all that wait for that rank.
        roster.note(1, &failed(Some(2)), LONG);
        assert_eq!(roster.check(1, long_ago(), false).unwrap_err().peer, Some(2));
        let moments_ago = Instant::now().checked_sub(IN_VAIN * 2).unwrap();
        roster.check(3, moments_ago, false).unwrap();
        assert_eq!(roster.check(3, moments_ago, true).unwrap_err().peer, Some(2));
        assert_eq!(roster.check(3, long_ago(), false).unwrap_err().peer, Some(2));
    }

    /// A rank out of reach ends the waits for it, and whoever knows more is believed, in whatever order.
    #[test]
    fn one_that_is_out_of_reach_has_died_or_left_as_others_tell() {
        let (out, left) = (End::OutOfReach("no way".into()), End::Left("it destroyed it".into()));
        let of = |news: &[&End]| {
            let roster = roster(0);
            news.iter().for_each(|end| _ = roster.note(2, end, LONG));
            roster
        };
        let only = of(&[&out]);
        assert!(!only.note(2, &out, LONG) && only.verdict().is_none() && !only.has_died(2));
        assert_eq!((only.gone_without_trouble(), only.first_missed()), (vec![2], Some(2)));
        only.check(1, long_ago(), true).unwrap();
        let error = only.check(2, long_ago(), false).unwrap_err();
        assert!(error.text.contains("was found out of reach") && error.peer == Some(2), "{error}");
        for news in [[&out, &died()], [&died(), &out]] {
            let roster = of(&news);
            assert!(roster.has_died(2) && roster.first_missed() == Some(2));
            assert!(roster.verdict().unwrap().text.contains("has died"));
        }
        for news in [[&out, &left], [&left, &out]] {
            assert_eq!(of(&news).first_missed(), None);
        }
    }

    /// A rank that was stopped notices the end of another one when it goes on, and hears then who failed
    /// before.
    #[test]
    fn the_moment_of_a_death_is_that_at_which_the_first_rank_learned_of_it() {
        let roster = roster(1);
        roster.note(0, &died(), Duration::ZERO);
        roster.note(3, &failed(None), LONG);
        assert_eq!(roster.verdict().unwrap().peer, Some(3));
        assert!(!roster.note(0, &died(), LONG), "it is known");
        assert_eq!(roster.verdict().unwrap().peer, Some(0));
        let told: Vec<u32> = roster.all().into_iter().map(|(rank, ..)| rank).collect();
        assert_eq!(told, [0, 3], "the cause comes first");
    }

    #[test]
    fn who_ends_later_is_not_to_blame() {
        let roster = roster(0);
        roster.note(3, &died(), LONG);
        roster.note(1, &died(), LONG - TOGETHER * 2);
        assert_eq!((roster.verdict().unwrap().peer, roster.first_missed()), (Some(3), Some(3)));
        assert!(!roster.verdict().unwrap().text.contains("rank 1"));
    }

    #[test]
    fn a_split_names_the_first_communicator_too() {
        let mut members: Vec<Identity> = (0..2).map(|world| Identity::own(world, None)).collect();
        members[1].world = 5;
        let roster = Roster::new(0, members);
        assert!(roster.name(1).starts_with("rank 1 (rank 5 of the first communicator, process "));
        assert!(!roster.note(7, &died(), LONG), "no rank of it");
        assert_eq!(roster.explain(), None);
    }
}

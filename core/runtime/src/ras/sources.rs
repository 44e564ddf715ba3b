//! The communicators of this process, and asking the processes of their ranks.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hawser_base::env;

use super::census::{ProcessCensus, ProcessKey, RankCensus};
use super::job::{Evidence, Job, RosterOf};
use super::server;

/// The time that processes may take to answer one question where the client wants to wait longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same where it wants to wait for ever.
const LONG_PATIENCE: Duration = Duration::from_secs(10);
/// An answer that is younger than this serves the next client too.
const FRESH: Duration = Duration::from_millis(100);

/// A rank of a communicator in this process.
pub trait Source: Send + Sync {
    /// Counts what the rank has called; `None` when the communicator has gone.
    fn census(&self) -> Option<RankCensus>;

    /// Names the processes of all ranks, and those that have gone.
    fn roster(&self) -> Option<RosterOf>;

    /// Asks the processes of all ranks, and returns the answers that come in time.
    fn ask(&self, limit: Duration) -> Vec<ProcessCensus>;
}

static SOURCES: Mutex<Vec<Weak<dyn Source>>> = Mutex::new(Vec::new());

/// A rank that clients hear of until this is dropped.
pub struct Registered(Arc<dyn Source>);

impl Registered {
    /// Lets clients hear of a rank; the first one of the process opens the port.
    pub fn new(source: Arc<dyn Source>) -> Self {
        lock().push(Arc::downgrade(&source));
        server::start(env::settings());
        Self(source)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let is_last = {
            let mut sources = lock();
            sources.retain(|source| !std::ptr::addr_eq(source.as_ptr(), Arc::as_ptr(&self.0)));
            sources.is_empty()
        };
        if is_last {
            server::stop();
        }
    }
}

fn all() -> Vec<Arc<dyn Source>> {
    lock().iter().filter_map(Weak::upgrade).collect()
}

fn lock() -> MutexGuard<'static, Vec<Weak<dyn Source>>> {
    SOURCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ranks of this process, those of one communicator first.
pub fn own_ranks(first: u64) -> Vec<RankCensus> {
    let mut ranks: Vec<RankCensus> = all().iter().filter_map(|source| source.census()).collect();
    ranks.sort_by_key(|rank| (rank.comm_id != first, rank.comm_id, rank.rank));
    ranks
}

/// The known processes of all communicators here, one for each communicator.
pub fn rosters() -> Vec<RosterOf> {
    let mut rosters: Vec<RosterOf> = all().iter().filter_map(|source| source.roster()).collect();
    rosters.sort_by_key(|roster| roster.comm_id);
    rosters.dedup_by_key(|roster| roster.comm_id);
    rosters
}

/// The state of the job, of which processes tell within a time. Waits for another client that asks.
pub fn look(limit: Option<Duration>) -> Arc<Job> {
    static LAST: Mutex<Option<(Instant, Arc<Job>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, job)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
        return job.clone();
    }
    let job = Arc::new(Job::of(gather(limit)));
    *last = Some((Instant::now(), job.clone()));
    job
}

/// Asks the largest communicators first: where all have answered for them, the rest is known too.
fn gather(limit: Option<Duration>) -> Evidence {
    let began = Instant::now();
    let mut sources: Vec<(Arc<dyn Source>, RosterOf)> = all()
        .into_iter()
        .filter_map(|source| Some((source.roster()?, source)))
        .map(|(r, s)| (s, r))
        .collect();
    sources.sort_by_key(|(_, roster)| (std::cmp::Reverse(roster.members.len()), roster.comm_id));
    sources.dedup_by_key(|(_, roster)| roster.comm_id);
    let mut evidence = Evidence::default();
    let (mut heard, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for (source, roster) in sources {
        let of = |(rank, (key, _)): (u32, &(ProcessKey, String))| {
            (!roster.left.contains(&rank) && !roster.died.contains(&rank)).then_some(*key)
        };
        let present: BTreeSet<ProcessKey> = (0..).zip(&roster.members).filter_map(of).collect();
        let left = limit.map_or(LONG_PATIENCE, |limit| limit.saturating_sub(began.elapsed()).min(PATIENCE));
        if present.iter().any(|key| !heard.contains(key) && !silent.contains(key)) && !left.is_zero() {
            for answer in source.ask(left) {
                if heard.insert(answer.process) {
                    evidence.answers.push(answer);
                }
            }
            let missing: Vec<ProcessKey> = present.difference(&heard).copied().collect();
            evidence.timeouts += u32::from(!missing.is_empty());
            silent.extend(missing);
        }
        evidence.rosters.push(roster);
    }
    evidence.took = began.elapsed();
    evidence
}

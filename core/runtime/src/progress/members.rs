//! The communicators of this process that can be asked how they are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hawser_base::error::Result;

use super::decision;
use super::hang_watch;
use super::report::CommReport;
use super::verdict::Verdict;

/// A rank of a communicator in this process.
pub trait Member: Send + Sync {
    /// The communicator's number, the same on all ranks.
    fn comm_id(&self) -> u64;

    /// The rank.
    fn rank(&self) -> u32;

    /// Reads its journal; None when the communicator has gone.
    fn report(&self) -> Option<CommReport>;

    /// The same with what launches on a GPU wait for, which are asked; that takes up to 0.7 s.
    fn full_report(&self) -> Option<CommReport>;

    /// The sequence number of the oldest open operation, and for how long it has been open. A GPU is asked
    /// whether it is idle, nothing is waited for.
    fn open(&self) -> Option<(u64, Duration)>;

    /// Asks all ranks, and judges. Takes about as long as `limit` if somebody does not answer.
    fn judge(&self, limit: Duration) -> Option<Verdict>;

    /// The decisions that it would take now, or why there are none; None when the communicator has gone.
    /// Nothing runs for that and nothing changes.
    fn decide(&self, asked: &decision::Asked) -> Option<Result<decision::Told>>;

    /// Tells the other ranks the sentence of a verdict that has been found.
    fn notify(&self, sentence: &str);
}

static MEMBERS: Mutex<Vec<Weak<dyn Member>>> = Mutex::new(Vec::new());

/// A member that can be asked until this is dropped.
pub struct Registered(Arc<dyn Member>);

impl Registered {
    /// Lets a member be asked.
    pub fn new(member: Arc<dyn Member>) -> Self {
        lock().push(Arc::downgrade(&member));
        hang_watch::start();
        Self(member)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let is_last = {
            let mut members = lock();
            members.retain(|member| !std::ptr::addr_eq(member.as_ptr(), Arc::as_ptr(&self.0)));
            members.is_empty()
        };
        if is_last {
            hang_watch::stop();
        }
    }
}

/// All members of this process.
pub fn all() -> Vec<Arc<dyn Member>> {
    lock().iter().filter_map(Weak::upgrade).collect()
}

/// The members of this process, one for each communicator: the lowest rank.
pub fn lowest() -> Vec<Arc<dyn Member>> {
    let mut members = all();
    members.sort_by_key(|member| (member.comm_id(), member.rank()));
    members.dedup_by_key(|member| member.comm_id());
    members
}

fn lock() -> MutexGuard<'static, Vec<Weak<dyn Member>>> {
    MEMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

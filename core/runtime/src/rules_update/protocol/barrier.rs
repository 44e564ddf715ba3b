//! The barrier that the calls of a rank pass: the fence that it promised, and changes that are decided for
//! collectives to come.

use std::collections::VecDeque;

use super::MOST_WAITING;

/// The barrier between the calls of a rank and its [`super::Member`]. `S` is what a change brings.
#[derive(Debug)]
pub struct Barrier<S> {
    /// The collective that must not begin before the decision.
    fence: Option<u64>,
    /// The reason why the decision may never come.
    doubt: Option<String>,
    /// The changes to come: the number of each, its first collective, and what it brings.
    decided: VecDeque<(u64, u64, S)>,
}

/// The ways in which a collective passes the barrier.
#[derive(Debug)]
pub enum Pass<S> {
    /// It may begin.
    Go,
    /// Take this change, which counts from the collective in the second place on; then ask again.
    Take(u64, u64, S),
    /// Wait for the decision.
    Hold,
    /// The decision may never come, and why.
    Never(String),
}

impl<S> Default for Barrier<S> {
    fn default() -> Self {
        Self { fence: None, doubt: None, decided: VecDeque::new() }
    }
}

impl<S> Barrier<S> {
    /// Puts up a fence for a rank that has begun collectives 0 to `begun - 1`, and returns where it stands:
    /// behind everything that is decided, so that changes come one after the other.
    pub fn fence(&mut self, begun: u64, margin: u64) -> u64 {
        let after = self.decided.back().map_or(0, |(_, at, _)| at + 1);
        let fence = begun.saturating_add(margin).max(after);
        self.fence = Some(fence);
        fence
    }

    /// Takes the fence away, since nothing changes.
    pub fn release(&mut self) {
        (self.fence, self.doubt) = (None, None);
    }

    /// Keeps a change that is decided for collective `at`, and takes the fence away.
    pub fn commit(&mut self, change: u64, at: u64, staged: S) {
        self.release();
        self.decided.push_back((change, at, staged));
    }

    /// Notes that the decision may never come, which calls that wait at the fence are told.
    pub fn doubt(&mut self, why: String) {
        self.doubt = self.fence.map(|_| why);
    }

    /// True if no further change can be waited for.
    pub fn is_full(&self) -> bool {
        self.decided.len() >= MOST_WAITING
    }

    /// The first collective that has to ask here; all before it need not.
    pub fn epoch(&self) -> u64 {
        let next = self.decided.front().map_or(u64::MAX, |(_, at, _)| *at);
        self.fence.map_or(next, |fence| fence.min(next))
    }

    /// Returns the way in which collective number `number` passes. Asked in the order of calls.
    pub fn pass(&mut self, number: u64) -> Pass<S> {
        if self.decided.front().is_some_and(|(_, at, _)| *at <= number)
            && let Some((change, at, staged)) = self.decided.pop_front()
        {
            return Pass::Take(change, at, staged);
        }
        match (self.fence, &self.doubt) {
            (Some(fence), Some(why)) if fence <= number => Pass::Never(why.clone()),
            (Some(fence), None) if fence <= number => Pass::Hold,
            _ => Pass::Go,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stands_in_the_way_of_a_rank_without_changes() {
        let mut barrier = Barrier::<()>::default();
        assert_eq!(barrier.epoch(), u64::MAX);
        assert!(matches!(barrier.pass(u64::MAX), Pass::Go));
    }

    #[test]
    fn a_fence_holds_from_its_number_on_until_the_decision() {
        let mut barrier = Barrier::default();
        assert_eq!((barrier.fence(5, 3), barrier.epoch()), (8, 8));
        assert!(matches!((barrier.pass(7), barrier.pass(8)), (Pass::Go, Pass::Hold)));
        barrier.commit(1, 10, 'a');
        assert_eq!(barrier.epoch(), 10);
        assert!(matches!((barrier.pass(8), barrier.pass(9)), (Pass::Go, Pass::Go)));
        assert!(matches!(barrier.pass(10), Pass::Take(1, 10, 'a')));
        assert!(matches!(barrier.pass(10), Pass::Go));
        barrier.fence(11, 0);
        barrier.release();
        assert!(matches!(barrier.pass(11), Pass::Go));
    }

    #[test]
    fn changes_come_one_after_the_other() {
        let mut barrier = Barrier::default();
        barrier.fence(0, 4);
        barrier.commit(1, 100, 'a');
        assert_eq!((barrier.fence(5, 4), barrier.epoch()), (101, 100), "behind what is decided");
        barrier.commit(2, 103, 'b');
        assert!(matches!(barrier.pass(100), Pass::Take(1, 100, 'a')));
        assert!(matches!((barrier.pass(102), barrier.pass(103)), (Pass::Go, Pass::Take(2, 103, 'b'))));
    }

    #[test]
    fn who_waits_in_doubt_is_told() {
        let mut barrier = Barrier::<()>::default();
        barrier.doubt("no fence, no doubt".into());
        barrier.fence(0, 1);
        assert!(matches!((barrier.pass(0), barrier.pass(1)), (Pass::Go, Pass::Hold)));
        barrier.doubt("why".into());
        assert!(matches!(barrier.pass(1), Pass::Never(why) if why == "why"));
        barrier.release();
        assert!(matches!(barrier.pass(1), Pass::Go));
    }
}

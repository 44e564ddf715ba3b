//! The events of a collective that copy engines run, as profilers see them.
//!
//! As in NCCL a collective has three parts that follow each other: the ranks get ready for each other,
//! batches of copies run, and the ranks tell each other that they are through. On a GPU an event lasts while
//! its part is put on the streams (a plugin that records an event of CUDA at both ends gets the time on the
//! device); on the host device it lasts while the part runs.

use std::sync::Arc;

use hawser_plan::executor::copy_engine::What as Action;
use hawser_plugin::profiler::What;

use crate::profiling::Span;

/// The running events of a collective. The last one stops when this is dropped, then the collective's.
pub struct CopyEvents {
    coll: Arc<Span>,
    ranks: u32,
    part: Option<Arc<Span>>,
}

impl CopyEvents {
    /// The events of a collective of so many ranks, whose own event has begun: its ranks get ready.
    pub fn start(coll: Arc<Span>, ranks: u32) -> Self {
        let mut events = Self { coll, ranks, part: None };
        events.sync(false);
        events
    }

    /// A batch of copies begins, and what was before is over. `intra_sync`: ranks wait for each other within.
    pub fn batch(&mut self, ops: u32, bytes: u64, intra_sync: bool) {
        self.next(&What::CeBatch { ops, bytes, intra_sync });
    }

    /// The copies are over, and the ranks tell each other so.
    pub fn complete(&mut self) {
        self.sync(true);
    }

    fn sync(&mut self, complete: bool) {
        let ranks = self.ranks;
        self.next(&What::CeSync { complete, ranks });
    }

    fn next(&mut self, what: &What<'_>) {
        // Parts follow each other: one stops before the next begins.
        self.part = None;
        self.part = self.coll.child(what);
    }
}

/// The operations that move or combine data among commands, and the bytes that they do it with.
pub fn batch_of<'a>(commands: impl Iterator<Item = &'a Action>) -> (u32, u64) {
    commands.fold((0, 0), |(ops, sum), action| match action {
        Action::Copy { bytes, .. } => (ops + 1, sum + bytes),
        Action::Reduce(reduce) => (ops + 1, sum + reduce.args.bytes),
        Action::Await { .. } | Action::Set { .. } | Action::Tell { .. } => (ops, sum),
    })
}

/// Returns whether a command moves or combines data.
pub fn is_copy(action: &Action) -> bool {
    matches!(action, Action::Copy { .. } | Action::Reduce(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_counts_what_moves_data() {
        let copy = |bytes| Action::Copy { dst: 64, src: 128, bytes, of: None };
        let commands = [Action::Await { addr: 8, peer: 1 }, copy(100), Action::Set { addr: 8 }, copy(28)];
        assert_eq!(batch_of(commands.iter()), (2, 128));
        assert_eq!(commands.each_ref().map(is_copy), [false, true, false, true]);
        assert_eq!(batch_of([].iter()), (0, 0));
    }
}

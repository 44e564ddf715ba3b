//! The latch of a rank's buffers towards one peer that copies straight from or to them.
//!
//! A peer copies when it comes to it, not when the owner of the buffer waits for it. An owner whose operation
//! fails, or that aborts, gives its buffers back to its program, which may free them at once. So it shuts its
//! latches first, and waits for the copies that are under way; a peer lifts the latch for each piece of a
//! copy, and moves nothing once it is shut.
//!
//! **Why that is enough.** One word has both: bit 0 says *shut*, the rest counts copies under way. It is
//! changed by read-modify-writes only, and those of one word have one order for all threads and processes; so
//! no fence between two words is needed, and no SeqCst. Either the peer's [`Latch::lift`] comes first: then
//! the owner finds a count that is not 0, and goes on only when it has read the one that [`Latch::lower`]
//! left; that is a Release which the owner's Acquire reads (or a later read-modify-write, which carries it
//! on), so the copy has happened before the buffer goes. Or the owner's [`Latch::shut`] comes first: then the
//! peer reads *shut* in the value that it replaces, and touches nothing.
//!
//! The owner's patience has an end, since a peer can be stopped in the middle of a copy. So a copy during
//! which the latch was shut is never taken for a good one: [`Latch::lower`] says so.
//!
//! The tests of `loom` try every order of both sides (CONTRIBUTING.md, Models).

use std::sync::atomic::Ordering;

use crate::model::AtomicU32;

/// The owner has given its buffers back.
const SHUT: u32 = 1;
/// A copy that is under way.
const COPY: u32 = 2;

/// A word in memory that both processes map; ready for use when it is zero.
#[repr(C, align(64))]
pub struct Latch(AtomicU32);

impl Latch {
    /// The peer begins a piece of a copy. False: the owner has given its buffers back, nothing may be moved.
    pub fn lift(&self) -> bool {
        let is_open = self.0.fetch_add(COPY, Ordering::AcqRel) & SHUT == 0;
        if !is_open {
            self.0.fetch_sub(COPY, Ordering::Release);
        }
        is_open
    }

    /// The peer has moved the piece. False: the owner may not have waited for that, so it counts for nothing.
    pub fn lower(&self) -> bool {
        self.0.fetch_sub(COPY, Ordering::Release) & SHUT == 0
    }

    /// The owner gives its buffers back, as soon as [`Latch::is_lifted`] says that no copy is under way.
    pub fn shut(&self) {
        self.0.fetch_or(SHUT, Ordering::AcqRel);
    }

    /// True while a copy is under way.
    pub fn is_lifted(&self) -> bool {
        self.0.load(Ordering::Acquire) >= COPY
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use crate::model::UnsafeCell;
    use loom::sync::Arc;

    /// Whatever the order: no piece is read while the owner's program writes or frees, what counts was read
    /// before that, and the owner gets its buffer back.
    #[test]
    fn loom_a_buffer_goes_back_when_no_copy_is_under_way() {
        loom::model(|| {
            let both = Arc::new((Latch(AtomicU32::new(0)), UnsafeCell::new(7)));
            let theirs = both.clone();
            let peer = loom::thread::spawn(move || {
                for _ in 0..2 {
                    if !theirs.0.lift() {
                        return;
                    }
                    // SAFETY: the latch is lifted; loom reports whoever writes meanwhile.
                    let read = theirs.1.with(|buffer| unsafe { *buffer });
                    assert_eq!(read, 7);
                    if !theirs.0.lower() {
                        return;
                    }
                }
            });
            both.0.shut();
            while both.0.is_lifted() {
                loom::thread::yield_now();
            }
            // SAFETY: no copy is under way; loom reports whoever reads meanwhile.
            both.1.with_mut(|buffer| unsafe { *buffer = 0 });
            peer.join().unwrap();
        });
    }
}

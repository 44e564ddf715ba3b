//! A ring of transfers between two sides, in memory that both map.
//!
//! Its n-th slot is for their n-th transfer, whichever side comes first. The first leaves its descriptor in
//! the slot and goes on; the second takes it. Who is first is decided by one compare-and-exchange of the
//! slot's `claim`. A slot is used again one ring later, when both sides have counted past it.
//!
//! The tests of `loom` try every order in which two sides can come (CONTRIBUTING.md, Models).

use std::sync::atomic::Ordering;

use hawser_base::error::{Error, Result};

use crate::model::{AtomicU64, IS_MODEL, UnsafeCell, spin};

/// Slots of a ring. A model has fewer, so that they are used again within it.
pub const RING: u64 = if IS_MODEL { 2 } else { 2048 };

/// One transfer. Its generation `g` counts how often the slot was used: `claim` is 3 g when both sides are
/// still to come, 3 g + 1 when side 0 was first, 3 g + 2 when side 1 was.
#[repr(C, align(64))]
struct Slot<D> {
    claim: AtomicU64,
    /// By side.
    descriptors: [UnsafeCell<D>; 2],
}

/// The ring; all of it is valid for any bytes, and ready for use when all are zero.
#[repr(C, align(64))]
pub struct Ring<D> {
    /// By side: transfers that it has come to.
    counts: [Padded; 2],
    slots: [Slot<D>; RING as usize],
}

#[repr(C, align(64))]
struct Padded(AtomicU64);

// SAFETY: descriptors are owned by one side at a time, as `claim` and `counts` say.
unsafe impl<D: Copy + Send> Sync for Ring<D> {}

impl<D: Copy> Ring<D> {
    /// True if side `side` may come to its next transfer: it is not a whole ring ahead of the other.
    pub fn has_room(&self, side: usize) -> bool {
        let number = self.counts[side].0.load(Ordering::Relaxed);
        number - self.counts[1 - side].0.load(Ordering::Acquire).min(number) < RING
    }

    /// Side `side` comes to its next transfer, for which there is room: leaves its descriptor, or takes the
    /// other side's, if that has come before. While that has not, and as long as `lingers` says so, it waits.
    ///
    /// # Errors
    /// The two sides are out of step.
    pub fn come(&self, side: usize, own: D, lingers: impl Fn() -> bool) -> Result<Option<D>> {
        let number = self.counts[side].0.load(Ordering::Relaxed);
        let slot = &self.slots[(number % RING) as usize];
        let empty = number / RING * 3;
        while slot.claim.load(Ordering::Relaxed) == empty && lingers() {
            spin();
        }
        // SAFETY: until this side has claimed the slot, or found it claimed, nobody else touches its
        // descriptor of this generation; the other was through with the last generation's when it counted it.
        slot.descriptors[side].with_mut(|descriptor| unsafe { descriptor.write(own) });
        let claim =
            slot.claim.compare_exchange(empty, empty + 1 + side as u64, Ordering::AcqRel, Ordering::Acquire);
        let found = match claim {
            Ok(_) => None,
            Err(found) if found == empty + 2 - side as u64 => {
                // SAFETY: the other side wrote it before its claim and leaves it alone until this one has
                // counted.
                let theirs = slot.descriptors[1 - side].with(|descriptor| unsafe { descriptor.read() });
                slot.claim.store(empty + 3, Ordering::Release);
                Some(theirs)
            }
            Err(found) => {
                let text = format!("the two ends are out of step: transfer {number} was claimed as {found}");
                return Err(Error::internal(text));
            }
        };
        self.counts[side].0.store(number + 1, Ordering::Release);
        Ok(found)
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    fn ring() -> Ring<u64> {
        let slot =
            || Slot { claim: AtomicU64::new(0), descriptors: [UnsafeCell::new(0), UnsafeCell::new(0)] };
        Ring {
            counts: [Padded(AtomicU64::new(0)), Padded(AtomicU64::new(0))],
            slots: std::array::from_fn(|_| slot()),
        }
    }

    /// The transfers that a side was second to, with what it found.
    fn side(ring: &Ring<u64>, side: usize, transfers: u64) -> Vec<u64> {
        let mut seconds = Vec::new();
        for number in 0..transfers {
            while !ring.has_room(side) {
                loom::thread::yield_now();
            }
            if let Some(theirs) = ring.come(side, number * 2 + side as u64, || false).unwrap() {
                assert_eq!(theirs, number * 2 + 1 - side as u64);
                seconds.push(number);
            }
        }
        seconds
    }

    /// Whatever the order: of two ends one is second and finds the other's descriptor of the same transfer,
    /// and no descriptor is read while it is written, also where slots are used again.
    #[test]
    fn loom_of_two_ends_one_is_second() {
        const TRANSFERS: u64 = RING + 1;
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let ring = Arc::new(ring());
            let theirs = ring.clone();
            let other = loom::thread::spawn(move || side(&theirs, 1, TRANSFERS));
            let mut all = side(&ring, 0, TRANSFERS);
            all.extend(other.join().unwrap());
            all.sort_unstable();
            assert!(all.into_iter().eq(0..TRANSFERS));
        });
    }
}

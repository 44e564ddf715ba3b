//! The host device's copy engines: the streams of a launch, polled.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use hawser_plan::executor::copy_engine::reduce_kernel::{DIVIDE, SCALE};
use hawser_plan::executor::copy_engine::{ReduceKernel, What};

use hawser_device::host::reduce::{Operand, Rule, reduce};

use super::events::{CopyEvents, batch_of, is_copy};
use super::latch::Latch;
use super::rendezvous::Latches;
use crate::classes;

/// A launch on its way.
pub struct Copies {
    streams: Vec<VecDeque<What>>,
    /// The latches of buffers that are copied from or to, which peers may give up; None where all copies are
    /// staged.
    latches: Option<Latches>,
    /// The events that profilers see, if one watches.
    watched: Option<Watched>,
}

/// A launch that profilers watch.
struct Watched {
    events: CopyEvents,
    /// The copies that have not run yet.
    left: u32,
    /// All copies.
    total: u32,
    /// The bytes of all copies.
    bytes: u64,
}

impl Copies {
    /// A launch that has these commands, by stream.
    pub fn new<const N: usize>(
        streams: [Vec<What>; N],
        latches: Option<Latches>,
        events: Option<CopyEvents>,
    ) -> Self {
        let watched = events.map(|events| {
            let (total, bytes) = batch_of(streams.iter().flatten());
            Watched { events, left: total, total, bytes }
        });
        Self { streams: streams.into_iter().map(VecDeque::from).collect(), latches, watched }
    }

    /// True if all streams are through.
    pub fn is_over(&self) -> bool {
        self.streams.iter().all(VecDeque::is_empty)
    }

    /// Runs every stream until it has to wait; says whether anything moved. One that gives way comes back
    /// after a command, or a piece of a long copy, if more urgent work moves.
    ///
    /// # Safety
    /// The addresses are those of a communicator's live staging and of user buffers of the promised lengths;
    /// buffers of other ranks' users have that length for as long as their latches are not shut.
    pub unsafe fn poll(&mut self, gives_way: bool) -> bool {
        let mut moved = false;
        for stream in &mut self.streams {
            while let Some(what) = stream.front_mut() {
                let is_copy = is_copy(what);
                if let Some(watched) = self.watched.as_mut().filter(|_| is_copy) {
                    watched.before_copy();
                }
                let piece = first_piece(what, gives_way);
                // SAFETY: passed on to the caller.
                if !unsafe { run(piece.as_ref().unwrap_or(what), self.latches.as_ref()) } {
                    break;
                }
                moved = true;
                let has_to_yield = gives_way && classes::is_urgent();
                if piece.is_some() {
                    if has_to_yield {
                        return true;
                    }
                    continue;
                }
                if let Some(watched) = self.watched.as_mut().filter(|_| is_copy) {
                    watched.after_copy();
                }
                stream.pop_front();
                if has_to_yield {
                    return true;
                }
            }
        }
        moved
    }

    /// The rank that the first waiting stream waits for.
    pub fn awaited(&self) -> Option<u32> {
        self.streams.iter().find_map(|stream| match stream.front() {
            Some(What::Await { peer, .. } | What::Copy { of: Some(peer), .. }) => Some(*peer),
            _ => None,
        })
    }
}

impl Watched {
    /// Begins the profiler's event of all copies with the first of them.
    fn before_copy(&mut self) {
        if self.left == self.total {
            self.events.batch(self.total, self.bytes, true);
        }
    }

    /// Ends that event after the last copy.
    fn after_copy(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.events.complete();
        }
    }
}

/// The bytes of a piece of a copy that gives way.
const PIECE: u64 = 256 << 10;
/// The bytes of a piece of a copy from or to a buffer of another rank, which may wait for its end to give the
/// buffer up: some milliseconds.
const PIECE_OF_PEER: u64 = 16 << 20;

/// Takes the first piece off a long copy, whose rest it leaves; None for all else, and where the two ranges
/// overlap.
fn first_piece(what: &mut What, gives_way: bool) -> Option<What> {
    let What::Copy { dst, src, bytes, of } = what else { return None };
    let most = match (gives_way, &of) {
        (true, _) => PIECE,
        (false, Some(_)) => PIECE_OF_PEER,
        (false, None) => return None,
    };
    if *bytes <= most || dst.abs_diff(*src) < *bytes {
        return None;
    }
    let piece = What::Copy { dst: *dst, src: *src, bytes: most, of: *of };
    (*dst, *src, *bytes) = (*dst + most, *src + most, *bytes - most);
    Some(piece)
}

/// Runs one command; false if it has to wait.
///
/// # Safety
/// As [`Copies::poll`].
unsafe fn run(what: &What, latches: Option<&Latches>) -> bool {
    // SAFETY: words are aligned, live as long as the communicator, and are only touched as atomics, here and
    // in other processes.
    let word = |addr: u64| unsafe { &*(addr as *const AtomicU32) };
    match *what {
        What::Await { addr, .. } => {
            // Set by the peer, taken here: nobody writes it in between.
            let ready = word(addr).load(Ordering::Acquire) != 0;
            if ready {
                word(addr).store(0, Ordering::Relaxed);
            }
            ready
        }
        What::Set { addr } => {
            word(addr).store(1, Ordering::Release);
            true
        }
        What::Tell { addr, value } => {
            word(addr).store(value, Ordering::Release);
            true
        }
        What::Copy { dst, src, bytes, of } => {
            let latch = of.zip(latches).and_then(|(peer, latches)| latches.of(peer));
            if latch.is_some_and(|latch| !latch.lift()) {
                // The peer has given its buffer up: the launch waits for it until it learns why.
                return false;
            }
            // SAFETY: the caller's promise; ranges of one buffer may overlap.
            unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, bytes as usize) };
            latch.is_none_or(Latch::lower)
        }
        What::Reduce(reduce) => {
            // SAFETY: as above; the value goes to a place of its own, or to that of an operand.
            unsafe { combine(&reduce) };
            true
        }
    }
}

/// Combines what a reduction reads.
///
/// # Safety
/// As [`Copies::poll`].
unsafe fn combine(what: &ReduceKernel) {
    let (args, dtype) = (&what.args, what.kernel.dtype);
    let len = args.bytes as usize / dtype.size();
    let scaled = args.form & SCALE != 0;
    let from = &args.from[..usize::from(args.n)];
    let operands: Vec<Operand> = from.iter().map(|&addr| Operand { addr, len, scaled }).collect();
    let divisor = if args.form & DIVIDE != 0 { args.divisor } else { 1 };
    let (op, scalar) = (what.kernel.op, args.scalar);
    let rule = Rule { op, scalar, scalar_is_address: false, divisor, is_nested: false };
    // SAFETY: passed on to the caller.
    unsafe { reduce(dtype, &rule, &operands, &[(args.to, len)]) };
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use hawser_plan::Class;

    use super::*;
    use crate::classes::Working;

    /// A reader that is in the middle of a buffer of rank 1 when that rank gives it up moves nothing more,
    /// never says that it is through, and waits for rank 1.
    #[test]
    fn a_buffer_that_is_given_up_is_not_read_any_more() {
        let latches = Latches::of_one_peer();
        let (mut from, mut to) = (vec![1u8; 3 * PIECE as usize], vec![0u8; 3 * PIECE as usize]);
        let done = AtomicU32::new(0);
        let (src, dst, bytes) = (from.as_mut_ptr() as u64, to.as_mut_ptr() as u64, 3 * PIECE);
        let copy = What::Copy { dst, src, bytes, of: Some(1) };
        let done_at = What::Set { addr: (&raw const done) as u64 };
        let mut copies = Copies::new([vec![copy, done_at]], Some(latches.clone()), None);
        // More urgent work moves, so the reader comes back after a piece.
        let urgent = Working::begin(Class::Urgent);
        urgent.iter().for_each(Working::moved);
        // SAFETY: both buffers and the word are alive.
        assert!(unsafe { copies.poll(true) });
        drop(urgent);
        latches.turned_round().shut();
        from.fill(9);
        // SAFETY: as above.
        assert!((0..3).all(|_| !unsafe { copies.poll(false) }));
        let moved = to.iter().take_while(|byte| **byte == 1).count();
        assert_eq!(moved, PIECE as usize);
        assert!(to[moved..].iter().all(|byte| *byte == 0), "the buffer was the program's again");
        assert_eq!((done.into_inner(), copies.awaited(), copies.is_over()), (0, Some(1), false));
    }

    /// The rank waits for a piece that is being moved, and that piece counts for nothing.
    #[test]
    fn who_gives_buffers_up_waits_for_what_is_being_moved() {
        use std::sync::atomic::AtomicBool;
        let latches = Latches::of_one_peer();
        let (latch, owner) = (latches.of(1).unwrap(), latches.turned_round());
        assert!(latch.lift() && latch.lower() && latch.lift());
        let is_back = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                owner.shut();
                is_back.store(true, Ordering::SeqCst);
            });
            while latch.lift() {
                assert!(!is_back.load(Ordering::SeqCst), "a piece is being moved");
                _ = latch.lower();
                std::thread::yield_now();
            }
            assert!(!is_back.load(Ordering::SeqCst), "a piece is being moved");
            assert!(!latch.lower(), "the owner may not have waited");
        });
        assert!(is_back.into_inner() && !latch.is_lifted() && !latch.lift());
    }
}

//! The host device's copy engines: the streams of a launch, polled.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use hawser_plan::executor::copy_engine::reduce_kernel::{DIVIDE, SCALE};
use hawser_plan::executor::copy_engine::{ReduceKernel, What};

use hawser_device::host::reduce::{Operand, Rule, reduce};

use super::events::{CopyEvents, batch_of, is_copy};
use crate::classes;

/// A launch on its way.
pub struct Copies {
    streams: Vec<VecDeque<What>>,
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
    /// With these commands by stream.
    pub fn new<const N: usize>(streams: [Vec<What>; N], events: Option<CopyEvents>) -> Self {
        let watched = events.map(|events| {
            let (total, bytes) = batch_of(streams.iter().flatten());
            Watched { events, left: total, total, bytes }
        });
        Self { streams: streams.into_iter().map(VecDeque::from).collect(), watched }
    }

    /// True if all streams are through.
    pub fn is_over(&self) -> bool {
        self.streams.iter().all(VecDeque::is_empty)
    }

    /// Runs every stream until it has to wait; says whether anything moved. One that gives way comes back
    /// after a command, or a piece of a long copy, if more urgent work moves.
    ///
    /// # Safety
    /// The addresses are those of a communicator's live staging and of user buffers of the promised lengths.
    pub unsafe fn poll(&mut self, gives_way: bool) -> bool {
        let mut moved = false;
        for stream in &mut self.streams {
            while let Some(what) = stream.front_mut() {
                let is_copy = is_copy(what);
                if let Some(watched) = self.watched.as_mut().filter(|_| is_copy) {
                    watched.before_copy();
                }
                let piece = if gives_way { first_piece(what) } else { None };
                // SAFETY: passed on to the caller.
                if !unsafe { run(piece.as_ref().unwrap_or(what)) } {
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
            Some(What::Await { peer, .. }) => Some(*peer),
            _ => None,
        })
    }
}

impl Watched {
    /// The first copy begins the batch that all of them are.
    fn before_copy(&mut self) {
        if self.left == self.total {
            self.events.batch(self.total, self.bytes, true);
        }
    }

    /// After the last copy there is only the end to be told.
    fn after_copy(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.events.complete();
        }
    }
}

/// The bytes of a piece of a copy that gives way.
const PIECE: u64 = 256 << 10;

/// Takes the first piece off a long copy, whose rest it leaves; None for all else, and where the two ranges
/// overlap.
fn first_piece(what: &mut What) -> Option<What> {
    let What::Copy { dst, src, bytes } = what else { return None };
    if *bytes <= PIECE || dst.abs_diff(*src) < *bytes {
        return None;
    }
    let piece = What::Copy { dst: *dst, src: *src, bytes: PIECE };
    (*dst, *src, *bytes) = (*dst + PIECE, *src + PIECE, *bytes - PIECE);
    Some(piece)
}

/// Runs one command; false if it has to wait.
///
/// # Safety
/// As [`Copies::poll`].
unsafe fn run(what: &What) -> bool {
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
        What::Copy { dst, src, bytes } => {
            // SAFETY: the caller's promise; ranges of one buffer may overlap.
            unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, bytes as usize) };
            true
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
    let rule = Rule { op: what.kernel.op, scalar: args.scalar, scalar_is_address: false, divisor };
    // SAFETY: passed on to the caller.
    unsafe { reduce(dtype, &rule, &operands, &[(args.to, len)]) };
}

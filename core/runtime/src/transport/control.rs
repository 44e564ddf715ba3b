//! What ends the work of a communicator on this rank: the abort word that its launches poll, what a launch
//! reported, and why the network gave up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use hawser_base::error::{Error, Result};
use hawser_kernels_abi::Report;

use hawser_device::{Device, HostWords};

/// Offset of the report in the host words; the abort flag is at 0.
const REPORT_AT: usize = 64;
/// Offsets of the counters of copy engines' operations.
const MARKS_AT: [usize; 2] = [16, 32];
/// Offset of the word of replays.
const REPLAY_AT: usize = 48;

/// Shared by the communicator and its proxy.
pub struct Control {
    words: HostWords,
    fault: OnceLock<Error>,
    /// The function that wakes whoever else has to know of an abort.
    wakes: OnceLock<fn()>,
}

/// See [`Control::see_replay`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// No replay is under way.
    None,
    /// One that was not seen before.
    New,
    /// The one that was seen last.
    Same,
}

impl Control {
    /// Nothing has happened yet.
    pub fn new(device: &dyn Device) -> Result<Self> {
        Ok(Self { words: device.host_words(128)?, fault: OnceLock::new(), wakes: OnceLock::new() })
    }

    /// Device addresses of the abort word and of the report.
    pub fn addresses(&self) -> (u64, u64) {
        (self.words.memory.addr, self.words.memory.addr + REPORT_AT as u64)
    }

    /// Device addresses of two counters that streams write: operations of copy engines that have begun, and
    /// that are over.
    pub fn marks(&self) -> [u64; 2] {
        MARKS_AT.map(|at| self.words.memory.addr + at as u64)
    }

    /// The counters at [`Control::marks`].
    pub fn marked(&self) -> [u32; 2] {
        // SAFETY: as in `word`; aligned to 4 bytes.
        MARKS_AT.map(|at| unsafe { &*self.words.host.add(at).cast::<AtomicU32>() }.load(Ordering::Acquire))
    }

    /// Device address of a word that captured operations of copy engines set to 1 at their begin and to 0 at
    /// their end.
    pub fn replay(&self) -> u64 {
        self.words.memory.addr + REPLAY_AT as u64
    }

    /// What the word says: no replay is under way, one that was not seen before, or still that one.
    pub fn see_replay(&self) -> Replay {
        // SAFETY: as in `word`; aligned to 4 bytes.
        let word = unsafe { &*self.words.host.add(REPLAY_AT).cast::<AtomicU32>() };
        match word.compare_exchange(1, 2, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Replay::New,
            Err(0) => Replay::None,
            Err(_) => Replay::Same,
        }
    }

    /// Makes every wait of this communicator's launches end.
    pub fn abort(&self) {
        self.word().store(1, Ordering::Release);
        if let Some(wake) = self.wakes.get() {
            wake();
        }
    }

    /// Calls this at every abort, from whatever thread. The first one counts.
    pub fn on_abort(&self, wake: fn()) {
        let _ = self.wakes.set(wake);
    }

    /// True if [`Control::abort`] was called.
    pub fn is_aborted(&self) -> bool {
        self.word().load(Ordering::Acquire) != 0
    }

    /// The network failed: remembers the first reason and makes launches end. Says whether this was the
    /// first.
    pub fn fail(&self, error: Error) -> bool {
        let first = self.fault.set(error).is_ok();
        self.abort();
        first
    }

    /// Why the network failed, if it did.
    pub fn fault(&self) -> Option<&Error> {
        self.fault.get()
    }

    /// The report that a launch wrote when it gave up; `code` is 0 when none did.
    pub fn report(&self) -> Report {
        // SAFETY: as in `word`; `code` comes first and is aligned to 4 bytes.
        let code = unsafe { &*self.words.host.add(REPORT_AT).cast::<AtomicU32>() }.load(Ordering::Acquire);
        if code == 0 || code == Report::BEING_WRITTEN {
            return Report::default();
        }
        // SAFETY: the words are 128 bytes and live as long as `self`; a report is plain integers, written
        // once, `code` last.
        unsafe { self.words.host.add(REPORT_AT).cast::<Report>().read_volatile() }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the words are at least 128 bytes, aligned, and live as long as `self`.
        unsafe { &*(self.words.host as *const AtomicU32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_device::host::HostDevice;

    #[test]
    fn replays_are_told_apart() {
        let device = HostDevice::beside().unwrap();
        let control = Control::new(&device).unwrap();
        let set = |value| {
            // SAFETY: the address of the word, which lies in memory of the host.
            unsafe { &*(control.replay() as *const AtomicU32) }.store(value, Ordering::Release);
        };
        assert_eq!(control.see_replay(), Replay::None);
        for _ in 0..2 {
            set(1);
            assert_eq!(
                [control.see_replay(), control.see_replay(), control.see_replay()],
                [Replay::New, Replay::Same, Replay::Same]
            );
        }
        set(0);
        assert_eq!(control.see_replay(), Replay::None);
        assert_eq!(control.marked(), [0, 0], "nothing else was touched");
        assert!(!control.is_aborted());
    }
}

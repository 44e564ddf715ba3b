//! The words that end the work of a communicator on this rank: the abort word that its launches poll, what a
//! launch reported, and why the network gave up. The same word asks launches whom they wait for.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hawser_base::error::{Error, Result};
use hawser_kernels_abi::{Report, abort_word};

use hawser_device::{Device, HostWords};

/// Offset of the word that ends kernels of the program.
const LEAVE_AT: usize = 8;
/// Offset of the report in the host words; the abort word is at 0.
const REPORT_AT: usize = 64;
/// Offset of the answer to a question. Kernels find it behind the report.
const ANSWER_AT: usize = REPORT_AT + size_of::<Report>();
/// Offsets of the counters of copy engines' operations.
const MARKS_AT: [usize; 2] = [16, 32];
/// Bytes of the host words.
const BYTES: usize = 128;
/// Offset of the word of replays.
const REPLAY_AT: usize = 48;

/// The time after a failure for which launches on a GPU wait until the program has read the error: watchdogs
/// look about ten times a second.
const UNTIL_KNOWN: Duration = Duration::from_millis(250);
/// The time for which they wait for an abort by a program that has. PyTorch takes a minute to write down what
/// it was doing.
const ONCE_KNOWN: Duration = Duration::from_secs(120);

/// Shared by the communicator and its proxy.
pub struct Control {
    words: HostWords,
    /// False on the host device, whose launches end with the error.
    leaves_garbage: bool,
    is_failure_known: AtomicBool,
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
        Ok(Self {
            words: device.host_words(BYTES as u64)?,
            leaves_garbage: device.kernels().is_some(),
            is_failure_known: AtomicBool::new(false),
            fault: OnceLock::new(),
            wakes: OnceLock::new(),
        })
    }

    /// Device addresses of the abort word and of the report.
    pub fn addresses(&self) -> (u64, u64) {
        (self.words.memory.addr, self.words.memory.addr + REPORT_AT as u64)
    }

    /// Device address of a word that is 0 until the abort, for kernels of the program: the abort word asks as
    /// well.
    pub fn leave_word(&self) -> u64 {
        self.words.memory.addr + LEAVE_AT as u64
    }

    /// Device addresses of two counters that streams write: operations of copy engines that have begun, and
    /// that are over.
    pub fn marks(&self) -> [u64; 2] {
        MARKS_AT.map(|at| self.words.memory.addr + at as u64)
    }

    /// The counters at [`Control::marks`].
    pub fn marked(&self) -> [u32; 2] {
        MARKS_AT.map(|at| self.word_at(at).load(Ordering::Acquire))
    }

    /// Device address of a word that captured operations of copy engines set to 1 at their begin and to 0 at
    /// their end.
    pub fn replay(&self) -> u64 {
        self.words.memory.addr + REPLAY_AT as u64
    }

    /// The state of replays by the word: none is under way, one that was not seen before, or still that one.
    pub fn see_replay(&self) -> Replay {
        match self.word_at(REPLAY_AT).compare_exchange(1, 2, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Replay::New,
            Err(0) => Replay::None,
            Err(_) => Replay::Same,
        }
    }

    /// Makes every wait of this communicator's launches end.
    pub fn abort(&self) {
        self.word_at(LEAVE_AT).store(1, Ordering::Release);
        self.word_at(0).store(abort_word::LEAVE, Ordering::Release);
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
        self.word_at(0).load(Ordering::Acquire) == abort_word::LEAVE
    }

    /// Remembers the first reason why operations fail, and makes launches end. Says whether this was the
    /// first.
    pub fn fail(&self, error: Error) -> bool {
        let first = self.fault.set(error).is_ok();
        self.abort();
        first
    }

    /// The same for what no call of the program returns. Launches that end so leave garbage behind, and a
    /// program that only waits for its stream takes that for results. One with a watchdog, as PyTorch is,
    /// polls `ncclCommGetAsyncError` and ends launches by an abort: they wait for that once it knows. Without
    /// one they end some time after the error could be read, since the program would wait for ever.
    pub fn fail_soon(self: &Arc<Self>, error: Error) -> bool {
        if !self.leaves_garbage {
            return self.fail(error);
        }
        let first = self.fault.set(error).is_ok();
        let (weak, begin) = (Arc::downgrade(self), Instant::now());
        let end = move || {
            while let Some(control) = weak.upgrade().filter(|control| !control.is_aborted()) {
                let patience = if control.is_failure_known() { ONCE_KNOWN } else { UNTIL_KNOWN };
                if begin.elapsed() >= patience {
                    return control.abort();
                }
                drop(control);
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        if std::thread::Builder::new().name("hawser-abort".into()).spawn(end).is_err() {
            self.abort();
        }
        first
    }

    /// The program has been told of the failure by `ncclCommGetAsyncError`.
    pub fn note_failure_known(&self) {
        self.is_failure_known.store(true, Ordering::Release);
    }

    fn is_failure_known(&self) -> bool {
        self.is_failure_known.load(Ordering::Acquire)
    }

    /// Ends the launches of a communicator that has failed, without more patience. The program is in a call
    /// that returns the error, or wants no result any more.
    pub fn abort_if_failed(&self) {
        if self.fault.get().is_some() {
            self.abort();
        }
    }

    /// The reason why the network failed, if it did.
    pub fn fault(&self) -> Option<&Error> {
        self.fault.get()
    }

    /// The report that a launch wrote when it gave up; `code` is 0 when none did.
    pub fn report(&self) -> Report {
        self.read(REPORT_AT).unwrap_or_default()
    }

    /// Asks the launches under way on a GPU whether a block waits for `peer`, for at most `patience`. Returns
    /// what the first such block said; that block goes on waiting.
    pub fn ask_who_waits_for(&self, peer: u32, patience: Duration) -> Option<Report> {
        let end = Instant::now() + patience;
        let pause = || std::thread::sleep(Duration::from_millis(1));
        let code = self.word_at(ANSWER_AT);
        // The last answer, if it came after its question was withdrawn.
        while code.load(Ordering::Acquire) == Report::BEING_WRITTEN && Instant::now() < end {
            pause();
        }
        code.store(0, Ordering::Release);
        let (word, question) = (self.word_at(0), abort_word::ASK + peer);
        if word.compare_exchange(0, question, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return None;
        }
        let answer = loop {
            match self.read(ANSWER_AT) {
                Some(answer) => break Some(answer),
                None if self.is_aborted() || Instant::now() >= end => break None,
                None => pause(),
            }
        };
        // An abort meanwhile stays.
        let _ = word.compare_exchange(question, 0, Ordering::AcqRel, Ordering::Acquire);
        answer.filter(|answer| answer.peer == peer)
    }

    /// Reads the report that a block has written at this offset, if it is whole.
    fn read(&self, at: usize) -> Option<Report> {
        let code = self.word_at(at).load(Ordering::Acquire);
        if code == 0 || code == Report::BEING_WRITTEN {
            return None;
        }
        // SAFETY: the words are `BYTES` bytes and live as long as `self`; a report is plain integers, whose
        // `code` was written last.
        Some(unsafe { self.words.host.add(at).cast::<Report>().read_volatile() })
    }

    /// The word at this offset.
    fn word_at(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + 4 <= BYTES && at.is_multiple_of(4));
        // SAFETY: the words are `BYTES` bytes, aligned to 16, and live as long as `self`.
        unsafe { &*self.words.host.add(at).cast::<AtomicU32>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_device::host::HostDevice;

    /// A device that launches kernels, as far as failures go.
    fn of_a_gpu() -> Arc<Control> {
        let control = Control::new(&HostDevice::beside().unwrap()).unwrap();
        Arc::new(Control { leaves_garbage: true, ..control })
    }

    #[test]
    fn a_failure_can_be_read_before_launches_leave_garbage_behind() {
        let control = of_a_gpu();
        control.note_failure_known();
        assert!(control.fail_soon(Error::remote("first")) && !control.fail_soon(Error::remote("second")));
        // The program knows: it has two minutes to end them.
        assert!(!control.is_aborted() && control.fault().is_some_and(|error| error.text.contains("first")));
        control.abort_if_failed();
        assert!(control.is_aborted());

        let control = of_a_gpu();
        control.abort_if_failed();
        assert!(!control.is_aborted(), "nothing has failed");
        control.fail_soon(Error::remote("nobody polls"));
        while !control.is_aborted() {
            std::thread::yield_now();
        }

        let host = Arc::new(Control::new(&HostDevice::beside().unwrap()).unwrap());
        host.fail_soon(Error::remote("at once"));
        assert!(host.is_aborted());
    }

    #[test]
    fn a_block_that_waits_answers_and_an_abort_ends_questions() {
        let device = HostDevice::beside().unwrap();
        let control = Control::new(&device).unwrap();
        let patience = Duration::from_secs(20);
        let waits = Report { code: Report::WAITING, peer: 5, op_number: 7, ..Report::default() };
        let answer = std::thread::scope(|scope| {
            // What a block does that waits for rank 5.
            scope.spawn(|| {
                while control.word_at(0).load(Ordering::Acquire) != abort_word::ASK + 5 {
                    std::thread::yield_now();
                }
                control.word_at(ANSWER_AT).store(Report::BEING_WRITTEN, Ordering::Relaxed);
                let (from, to) = (&raw const waits, control.addresses().1 as usize + size_of::<Report>());
                let behind_code = size_of::<u32>();
                // SAFETY: the place of the answer; nobody reads what lies behind its code before that is
                // written.
                unsafe {
                    let (from, to) = (from.byte_add(behind_code), (to as *mut Report).byte_add(behind_code));
                    std::ptr::copy_nonoverlapping(
                        from.cast::<u8>(),
                        to.cast(),
                        size_of::<Report>() - behind_code,
                    );
                }
                control.word_at(ANSWER_AT).store(Report::WAITING, Ordering::Release);
            });
            control.ask_who_waits_for(5, patience)
        });
        assert_eq!(answer, Some(waits));
        assert_eq!(control.word_at(0).load(Ordering::Acquire), 0, "the question is withdrawn");
        assert_eq!(control.ask_who_waits_for(4, Duration::ZERO), None, "the old answer is gone");
        assert!(!control.is_aborted() && control.report().code == 0);
        control.abort();
        assert_eq!(control.ask_who_waits_for(5, patience), None);
        assert!(control.is_aborted());
    }

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

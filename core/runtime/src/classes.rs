//! Classes of operations: best-effort ones give way to more urgent ones of this process (ADR 35).
//!
//! Who runs a more urgent operation says so ([`Working`]), and notes every time that it moves. Who runs a
//! best-effort one looks before each piece of its work ([`Turns`]). It holds back while more urgent work has
//! moved within the last millisecond, but not for more than [`MOST_HELD`] looks in succession: then it runs
//! a piece, whatever others do. So nothing that waits for it waits without end, whoever else holds back; and
//! more urgent work that waits for a rank that is late holds nobody back.
//!
//! Where all operations of the process are normal, they say nothing.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hawser_plan::Class;

/// The looks in succession at which a best-effort operation holds back; at the next one it goes on.
pub const MOST_HELD: u32 = 16;

/// The time after its last movement for which a more urgent operation holds best-effort ones back.
const FRESH: Duration = Duration::from_millis(1);

/// The longest pause of a thread all of whose work holds back.
pub const PAUSE: Duration = Duration::from_micros(50);

/// Threads that rest ([`rest`]), and what wakes them when nothing more urgent is under way.
static RESTING: AtomicU32 = AtomicU32::new(0);
static LOCK: Mutex<()> = Mutex::new(());
static WAKE_UP: Condvar = Condvar::new();

/// An operation of this process was urgent or best-effort.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// More urgent operations under way.
static WORKING: AtomicU32 = AtomicU32::new(0);

/// The moment at which one of them moved last, in microseconds of [`now`]; 0 if none is under way.
static MOVED: AtomicU64 = AtomicU64::new(0);

/// See [`Counts`].
static PREEMPTED: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicU64 = AtomicU64::new(0);
static FORCED: AtomicU64 = AtomicU64::new(0);

/// The looks of the best-effort operations of this process, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Times that one began to hold back.
    pub preempted: u64,
    /// Looks at which one held back.
    pub held: u64,
    /// Looks at which one went on though more urgent work moved, since it had held back long enough.
    pub forced: u64,
}

/// Returns what was counted so far.
pub fn counts() -> Counts {
    let [preempted, held, forced] = [&PREEMPTED, &HELD, &FORCED].map(|count| count.load(Ordering::Relaxed));
    Counts { preempted, held, forced }
}

/// Notes that there will be operations of a class. If it is not the usual one, those of the usual one hold
/// best-effort ones back from then on.
pub fn expect(class: Class) {
    if class != Class::Normal && !IS_USED.load(Ordering::Relaxed) {
        IS_USED.store(true, Ordering::Relaxed);
    }
}

/// True if classes make a difference in this process: an operation was urgent or best-effort.
pub fn are_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Work of this class has moved, whose end nobody will tell ([`Working`] is for all else).
pub fn moved(class: Class) {
    if class == Class::Urgent || class == Class::Normal && are_used() {
        MOVED.store(now(), Ordering::Relaxed);
    }
}

/// True if best-effort work has to hold back: more urgent work of this process moves.
pub fn is_urgent() -> bool {
    let moved = MOVED.load(Ordering::Relaxed);
    moved != 0 && now().saturating_sub(moved) < FRESH.as_micros() as u64
}

/// Lets a thread rest all of whose work holds back, until the end of more urgent work at most.
pub fn rest() {
    let held = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    RESTING.fetch_add(1, Ordering::AcqRel);
    // A wake-up that comes too early is lost, which costs a pause.
    let _held = WAKE_UP.wait_timeout(held, PAUSE);
    RESTING.fetch_sub(1, Ordering::AcqRel);
}

/// Microseconds of a clock of this process, never 0.
fn now() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_micros() as u64 + 1
}

/// More urgent work that is under way, from its beginning to its end.
pub struct Working(());

impl Working {
    /// Work of this class begins; None if it holds nobody back.
    pub fn begin(class: Class) -> Option<Self> {
        let holds_back = match class {
            Class::Urgent => true,
            Class::Normal => are_used(),
            Class::BestEffort => false,
        };
        holds_back.then(|| {
            WORKING.fetch_add(1, Ordering::AcqRel);
            MOVED.store(now(), Ordering::Relaxed);
            Self(())
        })
    }

    /// It has moved.
    pub fn moved(&self) {
        MOVED.store(now(), Ordering::Relaxed);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        // Another one that begins right now notes its next movement.
        if WORKING.fetch_sub(1, Ordering::AcqRel) == 1 {
            MOVED.store(0, Ordering::Relaxed);
            if RESTING.load(Ordering::Acquire) > 0 {
                WAKE_UP.notify_all();
            }
        }
    }
}

/// The turns of best-effort work: who runs it, one thread at a time, asks before each look at it.
#[derive(Debug, Default)]
pub struct Turns {
    /// Looks in succession at which it held back.
    held: AtomicU32,
}

impl Turns {
    /// True if the work holds back at this look.
    pub fn hold_back(&self) -> bool {
        self.next(is_urgent())
    }

    /// The same, where it is known whether more urgent work moves.
    fn next(&self, is_urgent: bool) -> bool {
        let held = self.held.load(Ordering::Relaxed);
        let holds = is_urgent && held < MOST_HELD;
        if is_urgent {
            let count = if holds { &HELD } else { &FORCED };
            count.fetch_add(1, Ordering::Relaxed);
            PREEMPTED.fetch_add(u64::from(holds && held == 0), Ordering::Relaxed);
        }
        self.held.store(if holds { held + 1 } else { 0 }, Ordering::Relaxed);
        holds
    }
}

/// The class of a communicator's operations: as its configuration, the environment, or a call of the program
/// has said; perhaps nobody did.
#[derive(Debug)]
pub struct Setting(AtomicU8);

impl Setting {
    /// Nobody has said a class.
    const UNSAID: u8 = u8::MAX;

    /// The class that was said.
    pub fn new(class: Option<Class>) -> Self {
        let setting = Self(AtomicU8::new(Self::UNSAID));
        if let Some(class) = class {
            setting.set(class);
        }
        setting
    }

    /// Operations that are called from now on have this class.
    pub fn set(&self, class: Class) {
        expect(class);
        self.0.store(class as u8, Ordering::Relaxed);
    }

    /// The class; None if nobody said one.
    pub fn get(&self) -> Option<Class> {
        Class::numbered(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holding_back_has_a_bound_and_begins_anew() {
        let turns = Turns::default();
        assert!(!turns.next(false));
        for _ in 0..3 {
            let held = (0..MOST_HELD).all(|_| turns.next(true));
            assert!(held && !turns.next(true), "every {MOST_HELD} looks one goes on");
        }
        assert!(turns.next(true));
        assert!(!turns.next(false), "nobody is urgent any more");
        assert!((0..MOST_HELD).all(|_| turns.next(true)));
    }

    #[test]
    fn a_setting_may_be_unsaid_and_changes() {
        let setting = Setting::new(None);
        assert_eq!(setting.get(), None);
        setting.set(Class::Urgent);
        assert_eq!(setting.get(), Some(Class::Urgent));
        assert_eq!(Setting::new(Some(Class::Normal)).get(), Some(Class::Normal));
    }
}

//! The thread that looks after operations that stay open: after `HAWSER_HANG_AFTER` the ranks are compared,
//! and the verdict is written at every level of `NCCL_DEBUG`. Before half of that time has passed they are
//! compared for the first time, and one line warns. It ends nothing.
//!
//! A signal (`HAWSER_HANG_SIGNAL`) asks it too. There is one per process, as long as it has a communicator of
//! more than one rank.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_base::{env, log};
use rustc_hash::FxHashMap;

use super::ask_signal;
use super::members::{self, Member};
use super::verdict::Verdict;

/// The time that ranks have to answer.
pub const LIMIT: Duration = Duration::from_millis(1500);
/// The shortest and longest pause between two looks.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(10)];
/// The longest pause where a signal may ask.
const PAUSE_FOR_SIGNALS: Duration = Duration::from_millis(250);
/// The beginning of a sentence that other ranks are told with a warning.
const AT_FIRST_SIGHT: &str = "at first sight: ";
/// The time that every rank but 0 waits longer, since rank 0 asks for all if it waits too, and how much more
/// each.
const LATER: [Duration; 2] = [Duration::from_millis(2500), Duration::from_millis(50)];
/// The most that a rank waits longer than rank 0.
const LATEST: Duration = Duration::from_secs(30);
/// The shortest time for which a process is said to have stood still.
const LEAST_STANDSTILL: Duration = Duration::from_millis(500);
/// An operation that is open for so many times `HAWSER_HANG_AFTER` is told of, however often the process
/// stood.
const MOST_EXCUSED: u32 = 4;

/// The two messages about an operation that stays open, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    /// One line that warns.
    Warning,
    /// The verdict with the state of all ranks.
    Report,
}

impl Stage {
    /// The age that an operation has when this message is written. A warning is there before half of the time
    /// has passed, also where ranks wait for others to tell it.
    fn age(self, after: Duration) -> Duration {
        match self {
            Stage::Warning => after * 3 / 8,
            Stage::Report => after,
        }
    }
}

/// By communicator, rank and stage: the operation that was told of, and when.
type Told = FxHashMap<(u64, u32, Stage), (u64, Instant)>;

static WATCH: Mutex<Option<Watch>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();
/// The verdicts that have been told.
static TOLD: Mutex<Option<Told>> = Mutex::new(None);

/// The thread, and the state that it shares with whoever ends it.
struct Watch {
    thread: JoinHandle<()>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// True while the thread waits for answers of other ranks, so that nobody waits for its end.
    is_judging: AtomicBool,
}

/// Starts the thread, if it is wanted and not there.
pub(super) fn start() {
    let (after, signal) = (env::settings().hang_after, env::settings().hang_signal);
    if after.is_none() && signal.is_none() {
        return;
    }
    let mut watch = lock();
    if watch.is_some() {
        return;
    }
    if let Some(signal) = signal {
        ask_signal::listen(signal);
    }
    let shared = Arc::new(Shared::default());
    let told = shared.clone();
    let run = move || {
        let work = std::panic::AssertUnwindSafe(|| look_after((after, signal.is_some()), &told));
        if std::panic::catch_unwind(work).is_err() {
            log::warn("the thread that looks after hangs panicked: a bug in this library");
        }
    };
    match std::thread::Builder::new().name("hawser-hangs".into()).spawn(run) {
        Ok(thread) => *watch = Some(Watch { thread, shared }),
        Err(error) => log::warn(&format!("nobody looks after hangs: no thread: {error}")),
    }
}

/// Ends the thread. One that waits for answers ends a little later by itself.
pub(super) fn stop() {
    let Some(Watch { thread, shared }) = lock().take() else { return };
    shared.is_over.store(true, Ordering::Release);
    CHANGED.notify_all();
    let is_own = thread.thread().id() == std::thread::current().id();
    if !is_own && !shared.is_judging.load(Ordering::Acquire) {
        let _ = thread.join();
    }
}

/// The times at which this process stood: a machine that sleeps, a signal that stops, a debugger, or
/// processors that others had. Nobody can tell then whether anything would have moved.
#[derive(Default)]
struct Standstill {
    ended: Option<Instant>,
}

impl Standstill {
    /// Notes that a pause took so long. The watch does nothing in a pause: one that is far too long means
    /// that it could not go on.
    fn note(&mut self, pause: Duration, took: Duration, now: Instant) {
        if took > pause + pause.max(LEAST_STANDSTILL) {
            self.ended = Some(now);
        }
    }

    /// The part of an age that counts: what came before the last standstill does not, unless the age is
    /// beyond what any standstill excuses.
    fn counted(&self, age: Duration, after: Duration, now: Instant) -> Duration {
        let since = self.ended.map(|ended| now.saturating_duration_since(ended));
        since.filter(|_| age < after * MOST_EXCUSED).map_or(age, |since| age.min(since))
    }
}

fn look_after((after, hears_signals): (Option<Duration>, bool), shared: &Shared) {
    let longest = if hears_signals { PAUSE_FOR_SIGNALS } else { PAUSES[1] };
    let pause = after.map_or(longest, |after| (after / 16).clamp(PAUSES[0], longest));
    let is_over = || shared.is_over.load(Ordering::Acquire);
    let mut standstill = Standstill::default();
    loop {
        let began = Instant::now();
        let waited = CHANGED.wait_timeout_while(lock(), pause, |_| !is_over());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        if is_over() {
            return;
        }
        standstill.note(pause, began.elapsed(), Instant::now());
        let members = members::all();
        forget_the_gone(&members);
        shared.is_judging.store(true, Ordering::Release);
        if ask_signal::take() {
            tell_all(&members);
        }
        for (member, after) in members.iter().zip(after.into_iter().cycle()).filter(|_| !is_over()) {
            look_at(&**member, after, Stage::Warning, &standstill);
            look_at(&**member, after, Stage::Report, &standstill);
        }
        drop(members);
        shared.is_judging.store(false, Ordering::Release);
    }
}

/// Judges the communicators on which something is open, else the first one, and writes what was found: a
/// signal asked for it.
fn tell_all(members: &[Arc<dyn Member>]) {
    let is_stuck = |member: &&Arc<dyn Member>| member.open().is_some();
    let mut stuck: Vec<&Arc<dyn Member>> = members.iter().filter(is_stuck).collect();
    if stuck.is_empty() {
        stuck.extend(members.first());
    }
    let verdicts = stuck.into_iter().filter_map(|member| member.judge(LIMIT));
    let text: String = verdicts.map(|verdict: Verdict| verdict.text()).collect();
    log::dump(&format!("asked by a signal why nothing moves\n{text}"), env::settings().debug_file.as_deref());
}

/// Judges a communicator whose operation has been open for long, once per operation and then now and then.
fn look_at(member: &dyn Member, after: Duration, stage: Stage, standstill: &Standstill) {
    let rank = member.rank();
    let later = if rank == 0 { Duration::ZERO } else { (LATER[0] + LATER[1] * rank).min(LATEST) };
    let Some((sequence, age)) = member.open() else { return };
    let counted = standstill.counted(age, after, Instant::now());
    if counted < stage.age(after) + later.min(after.max(LATER[0])) || was_told(member, sequence, after, stage)
    {
        return;
    }
    let Some(verdict) = member.judge(LIMIT) else { return };
    // It may have gone on meanwhile.
    if member.open().is_none_or(|(now, _)| now != sequence) {
        return;
    }
    remember(member, sequence, stage);
    match stage {
        Stage::Warning => {
            let (name, seconds) = (&verdict.name, age.as_secs());
            log::alarm(&format!(
                "communicator {name}: nothing has moved for {seconds} s: {}; all ranks are shown after {} s \
                 (HAWSER_HANG_AFTER)",
                verdict.sentence,
                after.as_secs()
            ));
            member.notify(&format!("{AT_FIRST_SIGHT}{}", verdict.sentence));
        }
        Stage::Report => {
            let text = format!("nothing has moved for {} s\n{}", age.as_secs(), verdict.text());
            log::dump(&text, env::settings().debug_file.as_deref());
            member.notify(&verdict.sentence);
        }
    }
}

/// Notes that another rank of a communicator has told a verdict, which holds for what is open on this one.
pub fn note_notice(member: &dyn Member, sentence: &str) {
    if let Some((sequence, _)) = member.open() {
        remember(member, sequence, Stage::Warning);
        if !sentence.starts_with(AT_FIRST_SIGHT) {
            remember(member, sequence, Stage::Report);
        }
    }
}

fn was_told(member: &dyn Member, sequence: u64, after: Duration, stage: Stage) -> bool {
    let told = lock_told();
    let told = told.as_ref().and_then(|told| told.get(&(member.comm_id(), member.rank(), stage)));
    told.is_some_and(|(of, at)| *of == sequence && at.elapsed() < after * 10)
}

fn remember(member: &dyn Member, sequence: u64, stage: Stage) {
    let of = (member.comm_id(), member.rank(), stage);
    lock_told().get_or_insert_default().insert(of, (sequence, Instant::now()));
}

fn forget_the_gone(members: &[Arc<dyn Member>]) {
    if let Some(told) = &mut *lock_told() {
        told.retain(|(comm_id, rank, _), _| {
            members.iter().any(|member| (member.comm_id(), member.rank()) == (*comm_id, *rank))
        });
    }
}

fn lock() -> MutexGuard<'static, Option<Watch>> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock_told() -> MutexGuard<'static, Option<Told>> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn time_in_which_the_process_stood_does_not_count() {
        let (begin, pause, after) = (Instant::now(), SECOND / 4, 4 * SECOND);
        let mut standstill = Standstill::default();
        standstill.note(pause, pause + SECOND / 4, begin);
        assert_eq!(standstill.counted(5 * SECOND, after, begin), 5 * SECOND, "a little late is nothing");
        // Stopped for six seconds, in which an operation was open.
        standstill.note(pause, 6 * SECOND, begin + 6 * SECOND);
        assert_eq!(standstill.counted(7 * SECOND, after, begin + 6 * SECOND), Duration::ZERO);
        assert_eq!(standstill.counted(10 * SECOND, after, begin + 9 * SECOND), 3 * SECOND);
        // What was called since counts as it is.
        assert_eq!(standstill.counted(SECOND, after, begin + 9 * SECOND), SECOND);
        // Four times the limit is told of, and be it that the process stands again and again.
        assert_eq!(standstill.counted(16 * SECOND, after, begin + 9 * SECOND), 16 * SECOND);
    }
}

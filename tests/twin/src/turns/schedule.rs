//! The order of turns: a clock that nobody waits for, and the threads that wait for something.
//!
//! This part knows no thread of the kernel; [`super::replaced`] feeds it.

use std::time::Duration;

use hawser_net_sim::Draws;

/// A thread, by the order in which threads began.
pub type Thread = usize;

/// A moment, as the time since the clock began.
pub type Moment = Duration;

/// The time at which the clock begins.
const BEGIN: Moment = Duration::from_secs(1_000);

/// A thread that goes on after it has given way goes on so much later at most.
const STEP_US: u64 = 20;

/// The clock goes on by so much whenever it is read.
const LOOK: Duration = Duration::from_nanos(30);

/// A thread that reads the clock so often without giving way loses its turn.
const LOOKS: u32 = 100;

/// Sockets are asked whether something has come after at most so many turns.
const TURNS_UNTIL_ASKED: u64 = 16;

/// Once nobody but sleepers has had a turn for so many times, sleepers oversleep, as on a busy machine: who
/// waits for a deadline of seconds then needs few turns.
const QUIET: u32 = 100;
/// The longest time that one oversleeps.
const LATE: Duration = Duration::from_millis(5);

/// A thread that is stopped and does not come to wait for anything goes on for so many turns.
const MOST_INTERRUPTIONS: u32 = 200;

/// Before the clock goes on by so much without anybody's doing, at once or in small steps, the kernel is
/// given time to bring what is on its way between sockets: on a busy machine it may come later than all have
/// looked.
const FAR: Duration = Duration::from_millis(300);

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It has its turn, or may have one.
    Ready,
    /// It waits on the futex of an address.
    Futex(usize),
    /// It waits in poll(2), with the array of an address.
    Poll(usize, u64),
    /// It sleeps.
    Sleep,
    /// It waits for the end of another thread.
    Join(Thread),
    /// It has ended.
    Over,
}

/// The reason why a thread has its turn again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It waited for something that is there.
    There,
    /// Its time is over.
    Timeout,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    state: State,
    /// It waits no longer than that.
    until: Option<Moment>,
    reason: Reason,
    group: usize,
    /// It has lost its turn where it may hold something that others need, so often.
    interrupted: u32,
}

/// The threads, the clock, and the draws that say who is next.
#[derive(Debug)]
pub struct Schedule {
    draws: Draws,
    clock: Moment,
    threads: Vec<Place>,
    /// The threads that have not ended, in order.
    living: Vec<Thread>,
    /// The threads among which the last turn was drawn.
    ready: Vec<Thread>,
    /// Groups of threads that have no turn for a time.
    frozen: Vec<Frozen>,
    /// Groups whose threads have no turn any more.
    stopped: Vec<usize>,
    /// Turns so far.
    turns: u64,
    looks: u32,
    quiet: u32,
    ask_at: u64,
    /// The time at which all that the kernel had on its way had come.
    settled: Moment,
    /// Waits until what the kernel has on its way has come.
    settle: fn(),
}

/// A time in which a group of threads has no turn.
#[derive(Debug, Clone, Copy)]
struct Frozen {
    group: usize,
    from: Moment,
    until: Moment,
}

impl Schedule {
    /// A schedule of one thread, which has its turn. `settle` waits, in real time, until what the kernel has
    /// on its way has come.
    pub fn new(seed: u64, settle: fn()) -> Self {
        let mut schedule = Self {
            draws: Draws::new(seed, 1),
            clock: BEGIN,
            threads: Vec::new(),
            living: Vec::new(),
            ready: Vec::new(),
            frozen: Vec::new(),
            stopped: Vec::new(),
            turns: 0,
            looks: 0,
            quiet: 0,
            ask_at: 0,
            settled: BEGIN,
            settle,
        };
        schedule.add(None);
        schedule
    }

    /// From now on all draws follow from this seed. The clock goes on to the next multiple of its first
    /// value, where all sleeps end: threads that outlive a world, and go on in the next one, begin it alike.
    pub fn reseed(&mut self, seed: u64) {
        self.draws = Draws::new(seed, 1);
        (self.looks, self.quiet, self.ask_at) = (0, 0, self.turns);
        let rounds = (self.clock.as_nanos() / BEGIN.as_nanos()) as u32;
        self.clock = BEGIN * (rounds + 1);
        self.settled = self.clock;
    }

    /// A new thread, of the group of the one that makes it. It waits for nothing: if its group is stopped
    /// before it has had a turn, it goes on to its first wait, since it may serve the whole process.
    pub fn add(&mut self, maker: Option<Thread>) -> Thread {
        let group = maker.map_or(0, |maker| self.threads[maker].group);
        let place = Place { state: State::Ready, until: None, reason: Reason::There, group, interrupted: 1 };
        self.threads.push(place);
        let thread = self.threads.len() - 1;
        self.living.push(thread);
        thread
    }

    /// Makes a thread the first of a group of its own, whose number is returned.
    pub fn part(&mut self, thread: Thread) -> usize {
        let group = 1 + self.threads.iter().map(|place| place.group).max().unwrap_or(0);
        self.threads[thread].group = group;
        group
    }

    /// A thread belongs to nobody: it serves the whole process.
    pub fn leave(&mut self, thread: Thread) {
        self.threads[thread].group = 0;
    }

    /// The group of a thread.
    pub fn group(&self, thread: Thread) -> usize {
        self.threads[thread].group
    }

    /// The threads of some groups have no turn any more, until [`Schedule::go_on`]. One that is not waiting
    /// first goes on to where it does: it may hold a lock that threads of other groups need, which would be
    /// other processes.
    pub fn stop(&mut self, groups: &[usize]) {
        self.stopped.extend(groups);
    }

    /// All that were stopped have turns again.
    pub fn go_on(&mut self) {
        self.stopped.clear();
    }

    /// All threads of a thread's group have no turn for a time that begins after a while.
    pub fn freeze(&mut self, thread: Thread, after: Duration, time: Duration) {
        let (group, from) = (self.threads[thread].group, self.clock + after);
        self.frozen.push(Frozen { group, from, until: from + time });
    }

    /// The turns so far.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// A number that follows from the seed.
    pub fn draw(&mut self) -> u64 {
        self.draws.next()
    }

    /// The state of each thread that has not ended.
    pub fn states(&self) -> Vec<(Thread, State, Option<Moment>)> {
        let all = self.living.iter().map(|number| (*number, &self.threads[*number]));
        all.map(|(number, place)| (number, place.state, place.until)).collect()
    }

    /// The time, and whether the thread that asks has asked so often that others should have a turn.
    pub fn look(&mut self) -> (Moment, bool) {
        self.clock += LOOK;
        self.looks += 1;
        (self.clock, self.looks >= LOOKS)
    }

    /// The time.
    pub fn now(&self) -> Moment {
        self.clock
    }

    /// A thread gives way; `interrupted`: where it does not wait for anything.
    pub fn yield_turn(&mut self, thread: Thread, interrupted: bool) {
        let place = &mut self.threads[thread];
        place.interrupted = if interrupted { place.interrupted + 1 } else { 0 };
        self.clock += Duration::from_nanos(1 + self.draws.below(1_000 * STEP_US));
        self.quiet = 0;
    }

    /// A thread waits from now on.
    pub fn wait(&mut self, thread: Thread, state: State, until: Option<Moment>) {
        let place = &mut self.threads[thread];
        (place.state, place.until, place.reason) = (state, until, Reason::Timeout);
        // Who waits for another thread or for a lock may hold another one.
        let is_for_threads = matches!(state, State::Join(_) | State::Futex(_)) && until.is_none();
        place.interrupted = u32::from(is_for_threads);
    }

    /// The reason why a thread has its turn.
    pub fn reason(&self, thread: Thread) -> Reason {
        self.threads[thread].reason
    }

    /// True if a thread has ended.
    pub fn is_over(&self, thread: Thread) -> bool {
        self.threads[thread].state == State::Over
    }

    /// A thread ends: those that wait for that may go on.
    pub fn end(&mut self, thread: Thread) {
        self.threads[thread].state = State::Over;
        self.living.retain(|living| *living != thread);
        for living in &self.living {
            if self.threads[*living].state == State::Join(thread) {
                self.threads[*living].make_ready();
            }
        }
        self.quiet = 0;
    }

    /// Wakes as many threads as are wanted of those that wait on a futex, and says how many there were.
    pub fn wake(&mut self, futex: usize, most: u64) -> u64 {
        let waits = |number: &Thread| self.threads[*number].state == State::Futex(futex);
        let mut waiting: Vec<Thread> = self.living.iter().copied().filter(waits).collect();
        let mut woken = 0;
        while woken < most && !waiting.is_empty() {
            let chosen = waiting.swap_remove(self.draws.below(waiting.len() as u64) as usize);
            self.threads[chosen].make_ready();
            woken += 1;
        }
        if woken > 0 {
            self.quiet = 0;
        }
        woken
    }

    /// True with the chance with which a thread that could go on gives way.
    pub fn gives_way(&mut self) -> bool {
        self.draws.percent(10)
    }

    /// The thread that has the next turn; None if nobody can ever go on. `is_there` says whether poll(2)
    /// would return for the array of an address.
    pub fn next(&mut self, mut is_there: impl FnMut(usize, u64) -> bool) -> Option<Thread> {
        self.turns += 1;
        self.looks = 0;
        loop {
            self.end_waits();
            let mut ready = std::mem::take(&mut self.ready);
            ready.clear();
            let may_go = |number: &Thread| self.threads[*number].state == State::Ready;
            ready.extend(self.living.iter().copied().filter(|n| may_go(n) && !self.is_frozen(*n)));
            if ready.is_empty() || self.turns >= self.ask_at {
                self.ask_at = self.turns + 1 + self.draws.below(TURNS_UNTIL_ASKED);
                self.ask_sockets(&mut ready, &mut is_there);
            }
            let drawn = ready.get(self.draws.below(ready.len() as u64) as usize).copied();
            self.ready = ready;
            if drawn.is_some() {
                return drawn;
            }
            let next = self.next_moment();
            let is_near = next.is_some_and(|next| next < self.settled + FAR);
            if is_near || self.settled == self.clock {
                self.pass_time(next?);
            } else {
                (self.settle)();
                self.settled = self.clock;
            }
        }
    }

    /// Adds the threads whose poll(2) would return.
    fn ask_sockets(&mut self, ready: &mut Vec<Thread>, is_there: &mut impl FnMut(usize, u64) -> bool) {
        for number in &self.living {
            if let State::Poll(array, count) = self.threads[*number].state
                && !self.is_frozen(*number)
                && is_there(array, count)
            {
                self.threads[*number].make_ready();
                self.quiet = 0;
                ready.push(*number);
            }
        }
    }

    /// The next moment at which anything happens by itself; None if nothing will.
    fn next_moment(&self) -> Option<Moment> {
        let waits = self.living.iter().filter(|number| !self.is_frozen(**number));
        let ends = waits.filter_map(|number| self.threads[*number].until);
        let thaws = self.frozen.iter().map(|frozen| frozen.until).filter(|until| *until > self.clock);
        ends.chain(thaws).min()
    }

    /// Lets the clock go on to a moment, or a little further.
    fn pass_time(&mut self, next: Moment) {
        self.quiet += 1;
        let late = (next.saturating_sub(self.clock)) * (self.quiet / QUIET).min(1_000);
        self.clock = self.clock.max(next) + late.min(LATE);
    }

    /// Makes those ready whose time is over.
    fn end_waits(&mut self) {
        let clock = self.clock;
        self.frozen.retain(|frozen| frozen.until > clock);
        for number in &self.living {
            let place = &mut self.threads[*number];
            if place.state != State::Ready && place.until.is_some_and(|until| until <= clock) {
                (place.state, place.until) = (State::Ready, None);
            }
        }
    }

    fn is_frozen(&self, thread: Thread) -> bool {
        if self.frozen.is_empty() && self.stopped.is_empty() {
            return false;
        }
        let Place { group, interrupted, .. } = self.threads[thread];
        if self.stopped.contains(&group) && !(1..=MOST_INTERRUPTIONS).contains(&interrupted) {
            return true;
        }
        let now = self.clock;
        self.frozen.iter().any(|f| f.group == group && f.from <= now && now < f.until)
    }
}

impl Place {
    fn make_ready(&mut self) {
        (self.state, self.until, self.reason) = (State::Ready, None, Reason::There);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn never(_: usize, _: u64) -> bool {
        false
    }

    fn at_once() {}

    #[test]
    fn time_passes_when_all_wait_and_the_first_to_end_is_next() {
        let mut schedule = Schedule::new(1, at_once);
        let other = schedule.add(Some(0));
        let begin = schedule.now();
        schedule.wait(0, State::Sleep, Some(begin + Duration::from_secs(7)));
        schedule.wait(other, State::Futex(8), Some(begin + Duration::from_secs(3)));
        assert_eq!(schedule.next(never), Some(other));
        assert_eq!(
            (schedule.reason(other), schedule.now()),
            (Reason::Timeout, begin + Duration::from_secs(3))
        );
        schedule.wait(other, State::Futex(8), None);
        assert_eq!(schedule.next(never), Some(0));
        assert_eq!((schedule.wake(8, 5), schedule.reason(other)), (1, Reason::There));
    }

    #[test]
    fn waits_without_an_end_are_found() {
        let mut schedule = Schedule::new(1, at_once);
        schedule.wait(0, State::Futex(8), None);
        assert_eq!(schedule.next(never), None);
        schedule.wait(0, State::Poll(16, 1), None);
        assert_eq!(schedule.next(|array, _| array == 16), Some(0));
    }

    #[test]
    fn one_who_joins_goes_on_at_the_end() {
        let mut schedule = Schedule::new(1, at_once);
        let other = schedule.add(Some(0));
        schedule.wait(0, State::Join(other), None);
        assert_eq!(schedule.next(never), Some(other));
        schedule.end(other);
        assert_eq!(schedule.next(never), Some(0));
    }

    #[test]
    fn a_frozen_group_has_no_turn_until_it_thaws() {
        let mut schedule = Schedule::new(1, at_once);
        let other = schedule.add(Some(0));
        schedule.part(other);
        let child = schedule.add(Some(other));
        schedule.freeze(child, Duration::ZERO, Duration::from_secs(5));
        let begin = schedule.now();
        assert!((0..50).all(|_| schedule.next(never) == Some(0)));
        schedule.wait(0, State::Sleep, Some(begin + Duration::from_secs(60)));
        assert!(schedule.next(never).is_some_and(|next| next == other || next == child));
        assert!(schedule.now() >= begin + Duration::from_secs(5));
    }

    #[test]
    fn a_stopped_group_has_no_turn_once_it_waits() {
        let mut schedule = Schedule::new(1, at_once);
        let other = schedule.add(Some(0));
        let group = schedule.part(other);
        assert_eq!((schedule.group(other), schedule.group(0)), (group, 0));
        schedule.yield_turn(other, true);
        schedule.stop(&[group]);
        // It was interrupted, perhaps with a lock in its hands.
        assert!((0..50).any(|_| schedule.next(never) == Some(other)));
        schedule.yield_turn(other, false);
        assert!((0..50).all(|_| schedule.next(never) == Some(0)));
        schedule.wait(0, State::Futex(8), None);
        assert_eq!(schedule.next(never), None);
        schedule.go_on();
        assert_eq!(schedule.next(never), Some(other));
    }

    /// It may be the one that serves the whole process, which leaves the group first of all.
    #[test]
    fn a_new_thread_of_a_stopped_group_goes_on_to_its_first_wait() {
        let mut schedule = Schedule::new(1, at_once);
        let other = schedule.add(Some(0));
        let group = schedule.part(other);
        let child = schedule.add(Some(other));
        schedule.wait(other, State::Sleep, None);
        schedule.stop(&[group]);
        assert!((0..50).any(|_| schedule.next(never) == Some(child)));
        schedule.leave(child);
        schedule.wait(child, State::Futex(8), Some(schedule.now()));
        assert!((0..50).any(|_| schedule.next(never) == Some(child)));
    }

    #[test]
    fn what_the_kernel_brings_late_comes_before_a_deadline() {
        static HAS_COME: AtomicBool = AtomicBool::new(false);
        let mut schedule = Schedule::new(1, || HAS_COME.store(true, Ordering::Relaxed));
        let is_there = |_: usize, _: u64| HAS_COME.load(Ordering::Relaxed);
        let begin = schedule.now();
        let soon = begin + FAR / 2;
        schedule.wait(0, State::Poll(16, 1), Some(soon));
        assert_eq!((schedule.next(is_there), schedule.now()), (Some(0), soon));
        assert_eq!(schedule.reason(0), Reason::Timeout);
        schedule.wait(0, State::Poll(16, 1), Some(begin + 20 * FAR));
        assert_eq!((schedule.next(is_there), schedule.now()), (Some(0), soon));
        assert_eq!(schedule.reason(0), Reason::There);
    }

    /// Threads that look now and then keep the clock from going far at once, and it gets to a deadline as
    /// well.
    #[test]
    fn what_the_kernel_brings_late_comes_before_many_small_steps() {
        static HAS_COME: AtomicBool = AtomicBool::new(false);
        let mut schedule = Schedule::new(1, || HAS_COME.store(true, Ordering::Relaxed));
        let deadline = schedule.now() + 4 * FAR;
        schedule.wait(0, State::Poll(16, 1), Some(deadline));
        let other = schedule.add(None);
        loop {
            let until = schedule.now() + FAR / 10;
            schedule.wait(other, State::Sleep, Some(until));
            if schedule.next(|_, _| HAS_COME.load(Ordering::Relaxed)) == Some(0) {
                break;
            }
        }
        assert_eq!(schedule.reason(0), Reason::There);
        assert!(schedule.now() < deadline);
    }

    #[test]
    fn the_same_seed_draws_the_same_turns() {
        let turns = |seed| {
            let mut schedule = Schedule::new(seed, at_once);
            (0..5).for_each(|_| _ = schedule.add(Some(0)));
            (0..100).map(|_| schedule.next(never)).collect::<Vec<_>>()
        };
        assert_eq!(turns(3), turns(3));
        assert_ne!(turns(3), turns(4));
    }
}

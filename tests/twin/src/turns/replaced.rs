//! The functions of the C library that wait or read a clock, in the words of the [`Schedule`].
//!
//! They do as the manual says (futex(2), poll(2), clock_gettime(2), nanosleep(2), and so
//! on). They stand aside for threads that began before [`begin`], or if it was never called.

use std::cell::{Cell, UnsafeCell};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_long, c_ulong, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libc::{nfds_t, pollfd, pthread_attr_t, pthread_t, sigset_t, sockaddr, socklen_t, ssize_t, timespec};

use super::backlog;
use super::schedule::{Reason, Schedule, State, Thread};
use super::sockets::{accept4, socket};

/// The real functions.
pub(super) struct Real {
    syscall: unsafe extern "C" fn(c_long, ...) -> c_long,
    poll: unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int,
    ppoll: unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int,
    clock_gettime: unsafe extern "C" fn(c_int, *mut timespec) -> c_int,
    nanosleep: unsafe extern "C" fn(*const timespec, *mut timespec) -> c_int,
    clock_nanosleep: unsafe extern "C" fn(c_int, c_int, *const timespec, *mut timespec) -> c_int,
    sched_yield: unsafe extern "C" fn() -> c_int,
    pthread_create: unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int,
    pthread_join: unsafe extern "C" fn(pthread_t, *mut *mut c_void) -> c_int,
    pthread_setname_np: unsafe extern "C" fn(pthread_t, *const c_char) -> c_int,
    pub(super) socket: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int,
    pub(super) accept4: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int,
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

pub(super) fn real() -> &'static Real {
    static REAL: OnceLock<Real> = OnceLock::new();
    fn find<F: Copy>(name: &std::ffi::CStr) -> F {
        // SAFETY: the name is a string with an end.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
        assert!(!found.is_null() && size_of::<F>() == size_of_val(&found), "no function {name:?}");
        // SAFETY: `F` is the type of the function in the C library, and a pointer.
        unsafe { std::mem::transmute_copy(&found) }
    }
    REAL.get_or_init(|| Real {
        syscall: find(c"syscall"),
        poll: find(c"poll"),
        ppoll: find(c"ppoll"),
        clock_gettime: find(c"clock_gettime"),
        nanosleep: find(c"nanosleep"),
        clock_nanosleep: find(c"clock_nanosleep"),
        sched_yield: find(c"sched_yield"),
        pthread_create: find(c"pthread_create"),
        pthread_join: find(c"pthread_join"),
        pthread_setname_np: find(c"pthread_setname_np"),
        socket: find(c"socket"),
        accept4: find(c"accept4"),
    })
}

/// The state that belongs to the thread whose turn it is.
pub(super) struct Turns {
    pub(super) schedule: Schedule,
    /// By thread: 1 when its turn comes, and the handle by which others join it.
    places: Vec<(&'static AtomicU32, Option<pthread_t>)>,
    /// By descriptor: the group whose thread made the last socket of that number.
    pub(super) sockets: BTreeMap<c_int, usize>,
}

struct Shared(UnsafeCell<Option<Turns>>);

// SAFETY: only the thread that has the turn touches it, and turns are handed over by atomics (`hand_over`).
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared(UnsafeCell::new(None));

thread_local! {
    /// The number of this thread, if it takes turns.
    static ME: Cell<Option<Thread>> = const { Cell::new(None) };
}

/// Passes the state to a function, if this thread takes turns.
pub(super) fn with<T>(act: impl FnOnce(&mut Turns, Thread) -> T) -> Option<T> {
    let me = ME.try_with(Cell::get).ok().flatten()?;
    // SAFETY: this thread takes turns and runs, so it has the turn, and `act` does not come back here.
    let turns = unsafe { &mut *SHARED.0.get() }.as_mut()?;
    Some(act(turns, me))
}

/// From now on this thread and all that it begins take turns, in an order that follows from the seed. They
/// stay on one processor, by its number among those that they may use, since only one of them runs at a time.
///
/// # Panics
/// There is another thread already, or the key that tells of ends of threads cannot be made.
pub fn begin(seed: u64, processor: usize) {
    // The linker takes these from here, not from the C library.
    let replaced: [*const (); 12] = [
        syscall as *const (),
        poll as *const (),
        ppoll as *const (),
        clock_gettime as *const (),
        nanosleep as *const (),
        clock_nanosleep as *const (),
        sched_yield as *const (),
        pthread_create as *const (),
        pthread_join as *const (),
        pthread_setname_np as *const (),
        socket as *const (),
        accept4 as *const (),
    ];
    std::hint::black_box(replaced);
    real();
    end_key();
    stay_on(processor);
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    assert_eq!(threads, 1, "turns begin before any other thread does");
    let places = vec![(new_place(), None)];
    let turns = Turns { schedule: Schedule::new(seed, settle), places, sockets: BTreeMap::new() };
    // SAFETY: there is no other thread.
    unsafe { *SHARED.0.get() = Some(turns) };
    ME.set(Some(0));
}

/// Keeps this thread and those that it begins on one of the processors that they may use: handing over a turn
/// costs a tenth then.
fn stay_on(processor: usize) {
    // SAFETY: the sets are plain numbers, and are passed with their size. A refusal costs time only.
    unsafe {
        let (mut all, mut one): (libc::cpu_set_t, libc::cpu_set_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sched_getaffinity(0, size_of_val(&all), &raw mut all);
        let may_use: Vec<usize> =
            (0..libc::CPU_SETSIZE as usize).filter(|number| libc::CPU_ISSET(*number, &all)).collect();
        if let Some(chosen) = may_use.get(processor % may_use.len().max(1)) {
            libc::CPU_SET(*chosen, &mut one);
            libc::sched_setaffinity(0, size_of_val(&one), &raw const one);
        }
    }
}

/// The time after which threads with nothing to do have come to rest.
const REST: Duration = Duration::from_secs(5);

/// From now on all draws follow from this seed, once what came before has come to rest.
pub fn reseed(seed: u64) {
    let Some(now) = with(|turns, _| turns.schedule.now()) else { return };
    wait(State::Sleep, Some(now + REST));
    with(|turns, _| turns.schedule.reseed(seed));
}

/// This thread and all that it begins from now on are a group that [`freeze`] and [`stop`] stop together.
/// Returns its number, or 0 if no turns are taken.
pub fn part() -> usize {
    with(|turns, me| turns.schedule.part(me)).unwrap_or(0)
}

/// The group of this thread; 0 if it has none of its own.
pub fn group() -> usize {
    with(|turns, me| turns.schedule.group(me)).unwrap_or(0)
}

/// The threads of some groups never run again, until [`go_on`]. Returns false if no turns are taken.
pub fn stop(groups: &[usize]) -> bool {
    with(|turns, _| turns.schedule.stop(groups)).is_some()
}

/// All threads that were stopped run again.
pub fn go_on() {
    with(|turns, _| turns.schedule.go_on());
}

/// The group of this thread has no turn for a time that begins after a while, as if it got a SIGSTOP. Returns
/// false if no turns are taken.
pub fn freeze(after: Duration, time: Duration) -> bool {
    with(|turns, me| turns.schedule.freeze(me, after, time)).is_some()
}

/// The turns so far, or 0 if none are taken.
pub fn turns() -> u64 {
    with(|turns, _| turns.schedule.turns()).unwrap_or(0)
}

fn new_place() -> &'static AtomicU32 {
    Box::leak(Box::new(AtomicU32::new(0)))
}

/// This thread waits in a state until it has its turn again, and gets the reason.
fn wait(state: State, until: Option<Duration>) -> Reason {
    with(|turns, me| turns.schedule.wait(me, state, until));
    hand_over();
    with(|turns, me| turns.schedule.reason(me)).unwrap_or(Reason::There)
}

/// Lets whoever is next go on, and waits until this thread's turn comes.
fn hand_over() {
    let next = with(|turns, me| {
        let next = turns.next();
        (next != me).then(|| (turns.places[next].0, turns.places[me].0))
    });
    if let Some((next, me)) = next.flatten() {
        give_turn(next);
        await_turn(me);
    }
}

/// Gives the turn away.
fn give_turn(to: &AtomicU32) {
    to.store(1, Ordering::Release);
    futex(to, libc::FUTEX_WAKE, 1);
}

/// Sleeps until the turn has been given to this thread.
fn await_turn(me: &AtomicU32) {
    while me.swap(0, Ordering::Acquire) == 0 {
        futex(me, libc::FUTEX_WAIT, 0);
    }
}

/// The kernel's futex.
fn futex(word: &AtomicU32, operation: c_int, value: u32) {
    let none = std::ptr::null::<timespec>();
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives for ever, and there is no timeout.
    unsafe { (real().syscall)(libc::SYS_futex, std::ptr::from_ref(word), operation, value, none) };
}

/// Waits, in real time, until what was sent between sockets has come.
fn settle() {
    let pause = || {
        let moment = timespec { tv_sec: 0, tv_nsec: 100_000 };
        // SAFETY: the time is this thread's own, and nobody wants to know what is left of it.
        unsafe { (real().nanosleep)(&raw const moment, std::ptr::null_mut()) };
    };
    backlog::wait(pause);
}

impl Turns {
    fn next(&mut self) -> Thread {
        let is_there = |array: usize, count: u64| {
            // SAFETY: the thread that waits in poll(2) keeps its array until its turn comes.
            unsafe { (real().poll)(array as *mut pollfd, count, 0) != 0 }
        };
        self.schedule.next(is_there).unwrap_or_else(|| self.no_way_on())
    }

    /// Says that all threads wait for each other, and ends the process.
    fn no_way_on(&self) -> ! {
        let text = format!("FINDING nobody can ever go on: {:?}\n", self.schedule.states());
        // SAFETY: the bytes are there. Nothing that locks may be used here.
        unsafe {
            libc::write(1, text.as_ptr().cast(), text.len());
            libc::_exit(1)
        }
    }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: the address is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The time that a timespec stands for.
///
/// # Safety
/// It is one, or null.
unsafe fn duration(time: *const timespec) -> Option<Duration> {
    // SAFETY: the caller promises it.
    let time = unsafe { time.as_ref() }?;
    Some(Duration::new(time.tv_sec.max(0).cast_unsigned(), time.tv_nsec.clamp(0, 999_999_999) as u32))
}

/// See clock_gettime(2). Both clocks of walls and of time since the start are the schedule's.
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut timespec) -> c_int {
    let is_ours =
        [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC_COARSE, libc::CLOCK_BOOTTIME]
            .contains(&clock);
    let Some((now, is_long)) = with(|turns, _| turns.schedule.look()).filter(|_| is_ours) else {
        // SAFETY: as of the function.
        return unsafe { (real().clock_gettime)(clock, time) };
    };
    if is_long {
        give_way(true);
    }
    // The day on which time began for the twin is as good as any.
    let since = if clock == libc::CLOCK_REALTIME { 1_700_000_000 } else { 0 };
    // SAFETY: the caller passes a place for it.
    unsafe { *time = timespec { tv_sec: now.as_secs() as i64 + since, tv_nsec: now.subsec_nanos().into() } };
    0
}

/// Others have a turn, if they want; `interrupted`: this thread does not wait for anything.
fn give_way(interrupted: bool) {
    with(|turns, me| turns.schedule.yield_turn(me, interrupted));
    hand_over();
}

/// See sched_yield(2).
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_yield() -> c_int {
    if with(|_, _| ()).is_none() {
        // SAFETY: it needs nothing.
        return unsafe { (real().sched_yield)() };
    }
    give_way(false);
    0
}

/// See nanosleep(2).
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    let Some(now) = with(|turns, _| turns.schedule.now()) else {
        // SAFETY: as of the function.
        return unsafe { (real().nanosleep)(time, left) };
    };
    // SAFETY: as of the function.
    wait(State::Sleep, Some(now + unsafe { duration(time) }.unwrap_or_default()));
    0
}

/// See clock_nanosleep(2).
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: c_int,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    let Some(now) = with(|turns, _| turns.schedule.now()) else {
        // SAFETY: as of the function.
        return unsafe { (real().clock_nanosleep)(clock, flags, time, left) };
    };
    // SAFETY: as of the function.
    let time = unsafe { duration(time) }.unwrap_or_default();
    wait(State::Sleep, Some(if flags & libc::TIMER_ABSTIME != 0 { time } else { now + time }));
    0
}

/// See poll(2).
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    // SAFETY: as of the function.
    let found = with(|_, _| ()).map(|()| unsafe { poll_in_turn(fds, count, limit) });
    // SAFETY: as of the function.
    found.unwrap_or_else(|| unsafe { (real().poll)(fds, count, timeout) })
}

/// See ppoll(2).
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as of the function.
    let found = with(|_, _| ()).map(|()| unsafe { poll_in_turn(fds, count, duration(timeout)) });
    // SAFETY: as of the function.
    found.unwrap_or_else(|| unsafe { (real().ppoll)(fds, count, timeout, mask) })
}

/// # Safety
/// As of poll(2).
unsafe fn poll_in_turn(fds: *mut pollfd, count: nfds_t, limit: Option<Duration>) -> c_int {
    // SAFETY: the caller keeps the array, and 0 waits for nothing.
    let look = || unsafe { (real().poll)(fds, count, 0) };
    let found = look();
    if found != 0 || limit == Some(Duration::ZERO) {
        if with(|turns, _| turns.schedule.gives_way()) == Some(true) {
            give_way(true);
        }
        return found;
    }
    let until = with(|turns, _| limit.map(|limit| turns.schedule.now() + limit)).flatten();
    wait(State::Poll(fds as usize, count), until);
    look()
}

/// See syscall(2): futexes and random numbers are ours, all else is the kernel's.
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
    e: c_ulong,
    f: c_ulong,
) -> c_long {
    if with(|_, _| ()).is_some() {
        if number == libc::SYS_futex {
            let operation = b as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
            match operation {
                // SAFETY: as of futex(2).
                libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => unsafe {
                    let limit = duration(d as *const timespec);
                    let is_absolute = operation == libc::FUTEX_WAIT_BITSET;
                    return futex_wait(a as *const AtomicU32, c as u32, limit, is_absolute).into();
                },
                libc::FUTEX_WAKE => return futex_wake(a as usize, c),
                _ => {}
            }
        }
        if number == libc::SYS_getrandom {
            // SAFETY: as of getrandom(2).
            return unsafe { getrandom(a as *mut c_void, b as usize, c as u32) } as c_long;
        }
    }
    // SAFETY: as of the function; what has fewer arguments ignores the others.
    unsafe { (real().syscall)(number, a, b, c, d, e, f) }
}

/// # Safety
/// As of futex(2).
unsafe fn futex_wait(
    word: *const AtomicU32,
    expected: u32,
    limit: Option<Duration>,
    is_absolute: bool,
) -> c_int {
    // SAFETY: as of futex(2).
    if unsafe { &*word }.load(Ordering::SeqCst) != expected {
        return fail(libc::EAGAIN);
    }
    let now = with(|turns, _| turns.schedule.now()).unwrap_or_default();
    let until = limit.map(|limit| if is_absolute { limit } else { now + limit });
    match wait(State::Futex(word as usize), until) {
        Reason::There => 0,
        Reason::Timeout => fail(libc::ETIMEDOUT),
    }
}

fn futex_wake(futex: usize, most: c_ulong) -> c_long {
    let woken = with(|turns, _| turns.schedule.wake(futex, most)).unwrap_or(0);
    if with(|turns, _| turns.schedule.gives_way()) == Some(true) {
        give_way(true);
    }
    woken.cast_signed()
}

/// See getrandom(2). The bytes follow from the seed and the process, since names of sockets are made of them.
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, bytes: usize, flags: u32) -> ssize_t {
    let drawn = with(|turns, _| {
        // SAFETY: as of the function.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes) };
        buffer.chunks_mut(8).for_each(|part| {
            let drawn = (turns.schedule.draw() ^ u64::from(std::process::id())).to_le_bytes();
            part.copy_from_slice(&drawn[..part.len()]);
        });
        bytes.cast_signed()
    });
    // SAFETY: as of the function.
    drawn.unwrap_or_else(|| unsafe { (real().syscall)(libc::SYS_getrandom, buffer, bytes, flags) as ssize_t })
}

/// A thread on its way into life.
struct Beginning {
    me: Thread,
    place: &'static AtomicU32,
    start: Start,
    argument: *mut c_void,
}

/// See pthread_create(3).
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    handle: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let added = with(|turns, me| {
        let place = new_place();
        turns.places.push((place, None));
        (turns.schedule.add(Some(me)), place)
    });
    let Some((me, place)) = added else {
        // SAFETY: as of the function.
        return unsafe { (real().pthread_create)(handle, attributes, start, argument) };
    };
    let beginning = Box::into_raw(Box::new(Beginning { me, place, start, argument }));
    // SAFETY: as of the function; the new thread takes the box.
    let failure = unsafe { (real().pthread_create)(handle, attributes, run_in_turn, beginning.cast()) };
    if failure != 0 {
        // SAFETY: no thread has taken the box.
        drop(unsafe { Box::from_raw(beginning) });
        with(|turns, _| turns.schedule.end(me));
        return failure;
    }
    // SAFETY: the function has written it.
    let handle = unsafe { *handle };
    with(|turns, _| turns.places[me].1 = Some(handle));
    failure
}

extern "C" fn run_in_turn(beginning: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` above made it for this thread.
    let beginning = unsafe { Box::from_raw(beginning.cast::<Beginning>()) };
    await_turn(beginning.place);
    ME.set(Some(beginning.me));
    // The end of the thread comes after that of all its variables, which keys are told of.
    // SAFETY: the key is there, and any value but null will do.
    unsafe { libc::pthread_setspecific(end_key(), std::ptr::dangling::<c_void>()) };
    let Beginning { start, argument, .. } = *beginning;
    start(argument)
}

/// The key whose destructor ends the turns of a thread.
fn end_key() -> libc::pthread_key_t {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: there is a place for the key.
        let failure = unsafe { libc::pthread_key_create(&raw mut key, Some(end_in_turn)) };
        assert_eq!(failure, 0, "pthread_key_create");
        key
    })
}

/// Gives this thread's turn away for ever.
extern "C" fn end_in_turn(_: *mut c_void) {
    let next = with(|turns, me| {
        turns.schedule.end(me);
        let next = turns.next();
        turns.places[next].0
    });
    ME.set(None);
    if let Some(next) = next {
        give_turn(next);
    }
}

/// See pthread_join(3).
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_join(handle: pthread_t, value: *mut *mut c_void) -> c_int {
    let other = with(|turns, _| {
        let other = turns.places.iter().rposition(|(_, own)| *own == Some(handle));
        other.filter(|other| !turns.schedule.is_over(*other))
    });
    if let Some(other) = other.flatten() {
        wait(State::Join(other), None);
    }
    // SAFETY: as of the function; the thread has given its last turn away.
    unsafe { (real().pthread_join)(handle, value) }
}

/// The thread of a process that serves all communicators: ranks of several simulated processes share it.
const OF_THE_PROCESS: &std::ffi::CStr = c"hawser-rules";

/// See pthread_setname_np(3).
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setname_np(thread: pthread_t, name: *const c_char) -> c_int {
    // SAFETY: as of the function.
    if unsafe { std::ffi::CStr::from_ptr(name) } == OF_THE_PROCESS {
        with(|turns, me| turns.schedule.leave(me));
    }
    // SAFETY: as of the function.
    unsafe { (real().pthread_setname_np)(thread, name) }
}

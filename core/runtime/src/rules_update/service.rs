//! The thread of a process that serves the participants of its communicators, answers other programs and
//! watches rule files.
//!
//! It sleeps until a message comes, somebody asks or proposes, or a change is open. It is there as long as
//! the process has a communicator of more than one rank.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_oob::wait::poll;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::control_socket::ControlSocket;
use super::files::Watched;
use super::participant::Participant;

/// The time after which the clock is looked at again while a change is open.
const PAUSE_WHILE_OPEN: Duration = Duration::from_millis(20);
/// The time after which times of operations are looked at again where rules want to know them.
const PAUSE_WHILE_TIMED: Duration = Duration::from_millis(50);
/// The stack of the thread in bytes; it reads rules, so it needs more than others.
const STACK: usize = 1 << 20;

#[derive(Default)]
struct Service {
    participants: Vec<Arc<Participant>>,
    thread: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

static SERVICE: Mutex<Option<Service>> = Mutex::new(None);
/// Held while the thread starts or ends.
static CHANGING: Mutex<()> = Mutex::new(());

/// A participant that the thread serves until this is dropped.
pub struct ServedParticipant(Arc<Participant>);

impl ServedParticipant {
    /// Begins to serve a participant.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub fn new(participant: Participant) -> Result<Self> {
        let _changing = lock(&CHANGING);
        bell()?;
        log::on_stress(stressed);
        let participant = Arc::new(participant);
        let mut service = lock(&SERVICE);
        let service = service.get_or_insert_default();
        service.participants.push(participant.clone());
        if service.thread.is_none() {
            let stop = Arc::new(AtomicBool::new(false));
            let told = stop.clone();
            let run = move || {
                let work = std::panic::AssertUnwindSafe(|| serve(&told));
                if std::panic::catch_unwind(work).is_err() {
                    log::warn(
                        "the thread for changes of rules panicked: a bug in this library; rules stay as they \
                         are",
                    );
                }
            };
            let thread = std::thread::Builder::new().name("hawser-rules".into()).stack_size(STACK).spawn(run);
            match thread {
                Ok(thread) => service.thread = Some((stop, thread)),
                Err(error) => {
                    service.participants.pop();
                    return Err(Error::system("starting the thread for changes of rules", error));
                }
            }
        }
        ring();
        Ok(Self(participant))
    }

    /// Wakes the thread after other rules have come to count, so that it looks whether they want times.
    pub fn wake(&self) {
        ring();
    }

    /// The participant that is served.
    pub fn participant(&self) -> &Arc<Participant> {
        &self.0
    }
}

impl Drop for ServedParticipant {
    fn drop(&mut self) {
        self.0.close();
        let _changing = lock(&CHANGING);
        let ended = {
            let mut service = lock(&SERVICE);
            let Some(service) = service.as_mut() else { return };
            service.participants.retain(|participant| !Arc::ptr_eq(participant, &self.0));
            if service.participants.is_empty() { service.thread.take() } else { None }
        };
        if let Some((stop, thread)) = ended {
            stop.store(true, Ordering::Release);
            ring();
            // A communicator may end in a callback that this thread runs.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// True if a communicator of this process can change its rules.
pub fn process_has_participants() -> bool {
    !participants().is_empty()
}

/// Tells those who learn from times that a net has lost something and goes on with the rest. Does not wait.
pub fn stressed(text: &str) {
    let is_meant = |participant: &Arc<Participant>| participant.hosts > 1 && participant.is_timed();
    let timed: Vec<Arc<Participant>> = participants().into_iter().filter(is_meant).collect();
    timed.iter().for_each(|participant| participant.stressed(text));
    if !timed.is_empty() {
        ring();
    }
}

/// Wakes the thread. Does not wait.
pub(super) fn ring() {
    if let Ok(bell) = bell() {
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

/// The participants of this process.
pub(super) fn participants() -> Vec<Arc<Participant>> {
    lock(&SERVICE).as_ref().map_or_else(Vec::new, |service| service.participants.clone())
}

fn bell() -> Result<&'static OwnedFd> {
    static BELL: OnceLock<std::result::Result<OwnedFd, Error>> = OnceLock::new();
    let make = || {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map_err(|errno| Error::system("eventfd for changes of rules", errno))
    };
    BELL.get_or_init(make).as_ref().map_err(Clone::clone)
}

fn serve(stop: &AtomicBool) {
    let Ok(bell) = bell() else { return };
    let settings = env::settings();
    let mut control_socket = ControlSocket::open(settings).unwrap_or_else(|error| {
        log::info(Subsys::Init, || format!("other programs cannot change rules of this process: {error}"));
        None
    });
    let mut watched = Watched::new(settings);
    let began = Instant::now();
    let mut pause: Option<Duration> = Some(Duration::ZERO);
    while !stop.load(Ordering::Acquire) {
        let waits = wait_for_events(bell, control_socket.as_ref(), pause);
        if let Err(error) = waits {
            log::warn(&format!("changes of rules: {error}"));
            std::thread::sleep(PAUSE_WHILE_OPEN);
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(bell, &mut count);
        let now = began.elapsed();
        let participants = participants();
        let busy = participants.iter().filter(|participant| participant.step(now)).count();
        let answering =
            control_socket.as_mut().is_some_and(|control_socket| control_socket.serve(&participants));
        let next = watched.as_mut().map(|watched| watched.look(&participants, now));
        let timed =
            participants.iter().any(|participant| participant.is_timed()).then_some(PAUSE_WHILE_TIMED);
        pause =
            if busy > 0 || answering { Some(PAUSE_WHILE_OPEN) } else { next.into_iter().chain(timed).min() };
    }
}

fn wait_for_events(
    bell: &OwnedFd,
    control_socket: Option<&ControlSocket>,
    pause: Option<Duration>,
) -> Result<()> {
    let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
    let readable = control_socket.into_iter().flat_map(ControlSocket::readable);
    fds.extend(readable.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    Ok(poll(&mut fds, pause).map(drop)?)
}

/// The lock, also after a panic of another holder.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! A thread per context that keeps connections going while their hosts are busy elsewhere: it reads the
//! devices' events, moves what is under way, sets rails up again and says goodbye for closed ends.
//!
//! A connection is moved by whoever holds its lock: the host in its calls, the progress thread when nobody
//! else does.

use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::conn::Conn;
use crate::machine::Machine;
use crate::port::{Port, lock};
use crate::verbs::Event;

/// Pause between two rounds while something is under way.
const BUSY: Duration = Duration::from_millis(3);
/// Pause otherwise.
const IDLE: Duration = Duration::from_millis(30);
/// Ports are looked at this often without an event.
const LOOK: Duration = Duration::from_secs(1);
/// And their links this often.
const GLANCE: Duration = Duration::from_millis(20);
/// Closed ends get this long to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// And this long when the whole context closes.
const HURRY: Duration = Duration::from_millis(300);

/// A connection as the progress thread sees it.
pub(crate) trait Tended: Send + Sync {
    /// Moves it, unless somebody else does. Whether it is busy.
    fn tend(&self) -> bool;
    /// Tells whether a closed end is done.
    fn is_finished(&self) -> bool;
}

impl<M: Machine + Send> Tended for Mutex<Conn<M>> {
    fn tend(&self) -> bool {
        let Ok(mut conn) = self.try_lock() else { return true };
        let _ = conn.progress();
        conn.is_busy()
    }

    fn is_finished(&self) -> bool {
        lock(self).is_finished()
    }
}

/// The handle of the thread; dropping it ends the thread.
pub(crate) struct ProgressThread {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    tended: Vec<Weak<dyn Tended>>,
    closing: Vec<(Arc<dyn Tended>, Instant)>,
    stop: bool,
}

impl ProgressThread {
    /// Starts the thread.
    pub fn start(ports: Vec<Arc<Port>>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let body = move || run(&theirs, &ports);
        let thread = std::thread::Builder::new().name("hawser-ib".into()).spawn(body)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Keeps a connection going from now on.
    pub fn tend(&self, connection: Weak<dyn Tended>) {
        lock(&self.shared.state).tended.push(connection);
        self.shared.wake.notify_one();
    }

    /// Takes over an end that its host has dropped, until it has said goodbye.
    pub fn close(&self, connection: Arc<dyn Tended>) {
        lock(&self.shared.state).closing.push((connection, Instant::now() + GOODBYE));
        self.shared.wake.notify_one();
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let end = Instant::now() + HURRY;
        let mut closing = std::mem::take(&mut lock(&self.shared.state).closing);
        while !closing.is_empty() && Instant::now() < end {
            closing.retain(|(connection, _)| !connection.is_finished());
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn run(shared: &Shared, ports: &[Arc<Port>]) {
    let (mut looked, mut glanced) = (Instant::now(), Instant::now());
    loop {
        let (tended, closing) = {
            let mut state = lock(&shared.state);
            if state.stop {
                return;
            }
            state.tended.retain(|one| one.strong_count() > 0);
            (state.tended.clone(), !state.closing.is_empty())
        };
        watch(ports);
        if glanced.elapsed() >= GLANCE {
            glanced = Instant::now();
            for port in ports.iter().filter(|port| port.is_stale()) {
                port.refresh(None);
            }
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            for port in ports {
                port.refresh(None);
            }
        }
        let mut busy = closing;
        for one in tended.iter().filter_map(Weak::upgrade) {
            busy |= one.tend();
        }
        say_goodbye(shared);
        let state = lock(&shared.state);
        if !state.stop {
            drop(shared.wake.wait_timeout(state, if busy { BUSY } else { IDLE }));
        }
    }
}

/// Ports of one device share its events.
fn watch(ports: &[Arc<Port>]) {
    for (at, port) in ports.iter().enumerate() {
        let is_first = ports[..at].iter().all(|other| !Arc::ptr_eq(&other.device, &port.device));
        let events = if is_first { port.device.events() } else { Vec::new() };
        let of_device: Vec<&Arc<Port>> =
            ports.iter().filter(|other| Arc::ptr_eq(&other.device, &port.device)).collect();
        for event in events {
            for port in &of_device {
                let touched = match event {
                    Event::PortDown(number) | Event::PortUp(number) | Event::Gid(number) => {
                        number == port.number
                    }
                    Event::Fatal => true,
                };
                if touched {
                    port.refresh(Some(event));
                }
            }
        }
    }
}

fn say_goodbye(shared: &Shared) {
    let closing = std::mem::take(&mut lock(&shared.state).closing);
    let now = Instant::now();
    let open: Vec<_> =
        closing.into_iter().filter(|(connection, until)| now < *until && !connection.is_finished()).collect();
    lock(&shared.state).closing.extend(open);
}

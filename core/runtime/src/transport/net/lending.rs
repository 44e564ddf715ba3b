//! Users' buffers that the network reads and writes without slots: who may be lent, and when they come back.

use std::sync::atomic::{AtomicBool, Ordering};

use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_base::log::{self, Subsys};
use hawser_plan::executor::copy_engine::Leg;
use hawser_plugin::net::MemoryKinds;
use rustc_hash::FxHashMap;

use super::Net;
use super::end::{ConnectionKey, End};
use super::link::Lends;
use super::links::Links;
use super::task::NetTask;
use super::user_buffers::{UserBuffer, UserBuffers};

/// Least bytes of a transfer that goes without slots: a smaller one is copied in the time that an end would
/// wait for the other.
const LEAST: u64 = 64 << 10;

/// The buffers that were offered to connections, by their numbers: whether the plugin took them.
pub type Offered = FxHashMap<(ConnectionKey, u64), bool>;

/// The buffers that a communicator may lend the network.
#[derive(Default)]
pub struct Lending {
    /// The program's registered buffers.
    buffers: UserBuffers,
    /// The network has had one of them.
    has_lent: AtomicBool,
}

impl Net {
    /// The program has registered a buffer, which the network may use from now on.
    pub fn register_buffer(&self, addr: u64, bytes: u64) {
        self.lending.buffers.add(addr, bytes);
    }

    /// The program takes a registration back. Requests in flight end first; operations that come to the
    /// buffer later fail.
    pub fn deregister_buffer(&self, addr: u64, bytes: u64) {
        let Some(buffer) = self.lending.buffers.remove(addr, bytes) else { return };
        let was_offered = lock(&self.connections).is_ok_and(|mut connections| {
            let before = connections.offered.len();
            connections.offered.retain(|(_, number), _| *number != buffer.number);
            connections.offered.len() < before
        });
        if was_offered {
            self.task.forget(buffer);
        }
    }

    /// True if the bytes of a transfer with another host can go without slots: they lie in a buffer that is
    /// registered, and all connections of the direction that are up take it.
    ///
    /// # Errors
    /// A lock is poisoned.
    pub fn lends(&self, leg: &Leg) -> Result<bool> {
        let Some(stage) = self.stage.as_ref().filter(|stage| stage.asks() && leg.bytes >= LEAST) else {
            return Ok(false);
        };
        let Some(buffer) = self.lending.buffers.find(leg.addr, leg.bytes) else { return Ok(false) };
        let mut connections = lock(&self.connections)?;
        let kind = if self.device.kernels().is_some() { MemoryKinds::CUDA } else { MemoryKinds::HOST };
        for key in stage.keys(leg.peer, leg.send) {
            if !connections.keys.contains(&key) {
                continue;
            }
            let taken = match connections.offered.get(&(key, buffer.number)) {
                Some(taken) => *taken,
                None => match self.task.lend(key, buffer, kind) {
                    None => return Ok(false),
                    Some(taken) => {
                        let taken =
                            taken.inspect_err(|error| self.tell_refusal(buffer, leg.peer, error)).is_ok();
                        connections.offered.insert((key, buffer.number), taken);
                        taken
                    }
                },
            };
            if !taken {
                return Ok(false);
            }
        }
        self.lending.has_lent.store(true, Ordering::Release);
        Ok(true)
    }

    /// The program gets its buffers back, since the communicator has failed or is aborted: connections that
    /// have one in hand end.
    pub fn give_up_buffers(&self) {
        // A sweep that is stuck in the plugin holds nobody up who has lent nothing.
        if self.lending.has_lent.load(Ordering::Acquire) {
            self.task.lock().give_up_buffers();
        }
    }

    fn tell_refusal(&self, buffer: UserBuffer, peer: u32, error: &Error) {
        log::info(Subsys::Reg, || {
            let (name, rank) = (&self.name, self.task.rank());
            let UserBuffer { addr, bytes, .. } = buffer;
            let which = format!("{bytes} bytes at {addr:#x}");
            format!("net {name}: rank {rank}: {which} are staged between hosts, rank {peer}: {}", error.text)
        });
    }
}

impl NetTask {
    /// Registers a buffer at a connection. None: it is not up yet.
    fn lend(&self, key: ConnectionKey, buffer: UserBuffer, kind: MemoryKinds) -> Option<Result<()>> {
        let mut links = self.lock();
        let lent = with(&mut links, key, |link| link.lend(buffer, kind))?;
        lent.map(|is_up| is_up.then_some(())).transpose()
    }

    /// Takes the registrations of a buffer back.
    fn forget(&self, buffer: UserBuffer) {
        let mut links = self.lock();
        links.sends.iter_mut().for_each(|link| link.forget(buffer));
        links.recvs.iter_mut().for_each(|link| link.forget(buffer));
    }
}

impl Links {
    /// Ends all connections whose plugin may have a user's buffer in hand.
    pub fn give_up_buffers(&mut self) {
        self.sends.extract_if(.., |link| link.uses_buffer()).for_each(|mut link| link.close());
        self.recvs.extract_if(.., |link| link.uses_buffer()).for_each(|mut link| link.close());
    }
}

/// Does something with the link that has a key.
fn with<R>(links: &mut Links, key: ConnectionKey, act: impl FnOnce(&mut dyn Lends) -> R) -> Option<R> {
    let Links { sends, recvs, .. } = links;
    match key.send {
        true => sends.iter_mut().find(|link| link.key() == key).map(|link| act(link)),
        false => recvs.iter_mut().find(|link| link.key() == key).map(|link| act(link)),
    }
}

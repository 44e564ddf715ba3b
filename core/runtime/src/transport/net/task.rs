//! What the proxy does for a communicator: sweeps over its links, and deals with what goes wrong.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hawser_plugin::net::NetContext;

use super::coll::CollLink;
use super::link::{Around, Need, RecvLink, SendLink};
use crate::bootstrap::Bootstrap;
use crate::comm::Span;
use crate::error::{Error, ErrorKind, Result};
use crate::log::{self, Subsys};
use crate::proxy::Task;
use crate::transport::control::Control;
use crate::wait::{AbortFlag, Wait};

/// Tags of messages over the bootstrap: a rank's network failed; a rank goes in peace.
const FAULT_TAG: u64 = 0x4e45_5401_0000;
const GOODBYE_TAG: u64 = 0x4e45_5402_0000;
/// Sweeps between two looks at messages of other ranks.
const LOOK_EVERY: u32 = 64;
/// How long a lost connection waits for its peer's goodbye, which travels another way.
const GRACE: Duration = Duration::from_secs(1);
/// How long telling one rank of a failure may take.
const TELL: Duration = Duration::from_secs(2);

/// The proxy's part of a communicator.
pub struct NetTask {
    context: Box<dyn NetContext>,
    bootstrap: Arc<Bootstrap>,
    control: Arc<Control>,
    flush: bool,
    links: Mutex<Links>,
    sweeps: AtomicU32,
    ended: AbortFlag,
}

#[derive(Default)]
struct Links {
    sends: Vec<SendLink>,
    recvs: Vec<RecvLink>,
    colls: Vec<CollLink>,
    lost: Vec<Lost>,
    /// Ranks that said goodbye.
    parted: HashSet<u32>,
}

/// A connection that failed.
struct Lost {
    need: Need,
    error: Error,
    since: Instant,
}

impl NetTask {
    /// Without links.
    pub fn new(
        context: Box<dyn NetContext>,
        bootstrap: Arc<Bootstrap>,
        control: Arc<Control>,
        flush: bool,
    ) -> Self {
        Self {
            context,
            bootstrap,
            control,
            flush,
            links: Mutex::default(),
            sweeps: AtomicU32::new(0),
            ended: AbortFlag::new(),
        }
    }

    /// What links need.
    pub fn around(&self) -> Around<'_> {
        Around { context: self.context.as_ref(), bootstrap: &self.bootstrap, flush: self.flush }
    }

    /// A flag that is raised when the network has failed.
    pub fn abort_flag(&self) -> AbortFlag {
        self.ended.clone()
    }

    /// Sweeps over this link too.
    pub fn add_send(&self, link: SendLink) {
        self.lock().sends.push(link);
    }

    /// Sweeps over this link too.
    pub fn add_recv(&self, link: RecvLink) {
        self.lock().recvs.push(link);
    }

    /// Sweeps over this link too.
    pub fn add_coll(&self, link: CollLink) {
        self.lock().colls.push(link);
    }

    /// The next `slots` slots of a link belong to an operation that is watched.
    pub fn expect(&self, need: Need, slots: u64, parent: &Arc<Span>) {
        let mut links = self.lock();
        if let Some(link) = links.sends.iter_mut().find(|l| l.need() == need) {
            link.expect(slots, parent);
        }
        if let Some(link) = links.recvs.iter_mut().find(|l| l.need() == need) {
            link.expect(slots, parent);
        }
    }

    /// Whether nothing will move any more: the communicator was aborted or the network failed.
    pub fn is_over(&self) -> bool {
        self.control.is_aborted()
    }

    /// Whether everything that the device wrote has been sent.
    pub fn is_drained(&self) -> bool {
        let links = self.lock();
        links.sends.iter().all(SendLink::is_drained) && links.colls.iter().all(CollLink::is_drained)
    }

    /// Tells the ranks with which there are connections that their end is no failure.
    pub fn say_goodbye(&self, limit: Duration) {
        let links = self.lock();
        let ends = links.sends.iter().map(SendLink::need).chain(links.recvs.iter().map(RecvLink::need));
        let rails = links.colls.iter().flat_map(|l| l.ranks().to_vec());
        let peers: HashSet<u32> = ends.map(|need| need.peer).chain(rails).collect();
        let parted = links.parted.clone();
        drop(links);
        for peer in peers.into_iter().filter(|p| !parted.contains(p) && *p != self.bootstrap.rank()) {
            // One that is gone already does not mind.
            let _ = self.bootstrap.send(peer, GOODBYE_TAG, &[], &Wait::new(AbortFlag::new(), Some(limit)));
        }
    }

    /// Closes all connections. Not while the proxy sweeps.
    pub fn close(&self) {
        self.ended.raise();
        let mut links = self.lock();
        links.sends.iter_mut().for_each(SendLink::close);
        links.recvs.iter_mut().for_each(RecvLink::close);
        links.colls.iter_mut().for_each(CollLink::close);
        (links.sends, links.recvs, links.colls) = (Vec::new(), Vec::new(), Vec::new());
    }

    /// Sweeps over all links; those that fail are lost.
    fn carry(&self, links: &mut Links) -> bool {
        let around = self.around();
        let (mut moved, mut lost) = (false, Vec::new());
        let mut keep = |need: Need, outcome: Result<bool>| match outcome {
            Ok(has_moved) => {
                moved |= has_moved;
                true
            }
            Err(error) => {
                lost.push(Lost { need, error, since: Instant::now() });
                false
            }
        };
        links.sends.retain_mut(|link| {
            let kept = keep(link.need(), link.sweep(&around));
            if !kept {
                link.close();
            }
            kept
        });
        links.recvs.retain_mut(|link| {
            let kept = keep(link.need(), link.sweep(&around));
            if !kept {
                link.close();
            }
            kept
        });
        links.colls.retain_mut(|link| {
            let kept = keep(link.need(), link.sweep(&around));
            if !kept {
                link.close();
            }
            kept
        });
        links.lost.extend(lost);
        moved
    }

    /// Looks at what other ranks say.
    fn listen(&self, links: &mut Links) {
        while let Some((peer, _)) = self.bootstrap.take_any(GOODBYE_TAG) {
            links.parted.insert(peer);
        }
        if let Some((peer, text)) = self.bootstrap.take_any(FAULT_TAG) {
            let text = format!("rank {peer} reports: {}", String::from_utf8_lossy(&text));
            self.control.fail(Error::remote(text));
            self.ended.raise();
        }
    }

    /// A lost connection is a failure unless its peer went in peace.
    fn judge(&self, links: &mut Links) {
        let parted = &links.parted;
        links.lost.retain(|lost| {
            let peaceful = parted.contains(&lost.need.peer);
            if peaceful {
                log::info(Subsys::Net, || format!("rank {} has closed its connections", lost.need.peer));
            }
            !peaceful
        });
        let sure = |lost: &Lost| lost.error.kind != ErrorKind::Remote && lost.error.kind != ErrorKind::System;
        let fatal = links.lost.iter().find(|lost| sure(lost) || lost.since.elapsed() > GRACE);
        if let Some(lost) = fatal {
            let rank = self.bootstrap.rank();
            let verb = if lost.need.send { "sending to" } else { "receiving from" };
            let text = format!("rank {rank} failed {verb} rank {}: {}", lost.need.peer, lost.error.text);
            self.fail(Error::new(lost.error.kind, text));
        }
    }

    /// After an error outside the sweeps, ends the communicator unless that was the reason. Returns the reason.
    pub fn give_up(&self, error: Error) -> Error {
        if let Some(fault) = self.control.fault() {
            return fault.clone();
        }
        if error.kind != ErrorKind::Aborted {
            self.fail(error.clone());
        }
        error
    }

    /// Ends the communicator on this rank and tells the others.
    fn fail(&self, error: Error) {
        log::warn(&error.text);
        let text = error.text.clone();
        let first = self.control.fail(error);
        self.ended.raise();
        if !first {
            return;
        }
        let bootstrap = self.bootstrap.clone();
        let tell = move || {
            let text = &text.as_bytes()[..text.len().min(1024)];
            for peer in (0..bootstrap.nranks()).filter(|&p| p != bootstrap.rank()) {
                let _ = bootstrap.send(peer, FAULT_TAG, text, &Wait::new(AbortFlag::new(), Some(TELL)));
            }
        };
        // Without a thread the others find out by themselves.
        let _ = std::thread::Builder::new().name("hawser-fault".into()).spawn(tell);
    }

    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task for NetTask {
    fn sweep(&self) -> bool {
        if self.is_over() {
            self.ended.raise();
            return false;
        }
        let mut links = self.lock();
        let moved = self.carry(&mut links);
        if !moved && self.sweeps.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY)
            || !links.lost.is_empty()
        {
            self.listen(&mut links);
            self.judge(&mut links);
        }
        moved
    }
}

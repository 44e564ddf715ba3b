//! The ways of what is put to ranks elsewhere: into windows that are mapped here by a copy, to other hosts
//! over the net plugin, all else as messages over the control connections.
//!
//! What goes over the net is cut into pieces. Each is announced over the control connection, so that the peer
//! posts a receive for it and carries out what it is told afterwards when the piece has come. A put is over
//! when the plugin has sent all of its pieces.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::figures::{self, Counter};
use hawser_base::wait::{Backoff, LONGEST_PAUSE, Wait};

use super::CommState;
use crate::rma::{Header, Piece, Put};
use crate::transport::net::{Announced, Area, EventRecorder, Helper, Net, Outgoing, PutWay, Ticket, outcome};

/// Looks of a thread between two at whether it may go on.
const LOOKS: u32 = 64;

/// A way of bytes that are put.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    /// A copy into memory that is mapped here.
    Memory,
    /// The net plugin.
    Net,
    /// Messages over the control connection.
    Messages,
}

impl Way {
    /// Counts bytes that go this way.
    pub(super) fn count(self, bytes: u64) {
        static BYTES: OnceLock<[Counter; 3]> = OnceLock::new();
        let of = |way| figures::sum("put_bytes_total", &[("way", way)]);
        BYTES.get_or_init(|| ["memory", "net", "messages"].map(of))[self as usize].add(bytes);
    }
}

/// A put over the net, under way.
struct Sending<'a> {
    comm: &'a CommState,
    way: &'a PutWay,
    peer: u32,
    began: Instant,
    /// The calling thread moves the net meanwhile.
    helper: Option<Helper<'a>>,
    /// Pieces that are not over, with their slots.
    pieces: Vec<(Arc<Ticket>, Option<u64>)>,
}

impl CommState {
    /// A window was taken back: the net has its memory registered no more.
    pub fn forget_window(&self, area: Option<Area>) {
        if let (Some(net), Some(area)) = (&self.net, area) {
            net.put_way().forget(area, || self.has_ended());
        }
    }

    /// Gives all windows back to the program.
    pub fn close_windows(&self) {
        self.rma.exposed().close();
        if let Some(net) = &self.net {
            net.put_way().end(None, &Error::new(ErrorKind::Aborted, "windows were given up"));
        }
    }

    /// Puts into a window of a rank that is not in this process. Over when the bytes may change.
    pub(super) fn put_elsewhere(&self, peer: u32, put: &Put, wait: &Wait) -> Result<()> {
        // A window for the host alone is mapped nowhere; the peer refuses what does not fit it.
        let mapped = self.lsa.row((put.window, put.offset, put.bytes), peer).ok().flatten();
        match mapped {
            Some(there) => {
                Way::Memory.count(put.bytes);
                self.rma.exposed().copy(there, put.from, put.bytes)
            }
            None => self.put_to_host(peer, put, wait),
        }
    }

    /// Puts into a window of a rank whose memory is not mapped here.
    pub(super) fn put_to_host(&self, peer: u32, put: &Put, wait: &Wait) -> Result<()> {
        let is_far = self.topology.ranks[peer as usize].host != self.topology.ranks[self.rank as usize].host;
        let net = self.net.as_ref().filter(|net| is_far && net.put_way().takes(put.bytes));
        match net.zip(self.rma.exposed().area_of(put.from, put.bytes)) {
            Some((net, area)) => {
                Way::Net.count(put.bytes);
                self.put_over_net(net, (peer, put), area, wait)
            }
            None => {
                Way::Messages.count(put.bytes);
                self.rma.send_put(&self.bootstrap, (peer, put), wait)
            }
        }
    }

    fn put_over_net(&self, net: &Net, (peer, put): (u32, &Put), area: Area, wait: &Wait) -> Result<()> {
        let way = net.put_way();
        // Where a profiler wants to hear of slots the proxy moves them, since plugins count by thread.
        let helps = self.device.kernels().is_none() && !self.profiling.wants(EventRecorder::KINDS);
        let helper = helps.then(|| net.help());
        let mut sending =
            Sending { comm: self, way, peer, began: Instant::now(), helper, pieces: Vec::new() };
        let outcome = sending.run(put, area, wait);
        if let Err(error) = &outcome {
            // The buffer is the program's again.
            way.end(Some(peer), error);
        }
        outcome
    }
}

impl Sending<'_> {
    fn run(&mut self, put: &Put, area: Area, wait: &Wait) -> Result<()> {
        let mut at = 0;
        while at < put.bytes {
            let bytes = self.way.most_bytes().min(put.bytes - at);
            let from = put.from + at;
            let (area, addr, slot) = match self.way.is_staged() {
                false => (area, from, None),
                true => {
                    let (area, slot) = self.slot()?;
                    self.comm.rma.exposed().copy(slot, from, bytes)?;
                    (area, slot, Some(slot))
                }
            };
            let ticket = Arc::<Ticket>::default();
            self.pieces.push((ticket.clone(), slot));
            let Announced { rail, number, record } =
                self.way.send(self.peer, Outgoing { addr, bytes, area, ticket });
            let piece =
                Piece { window: put.window, offset: put.offset + at, bytes, place: (rail, number), record };
            self.comm.rma.tell(&self.comm.bootstrap, (self.peer, &Header::Come(piece)), wait)?;
            at += bytes;
        }
        self.wait_for(|own| own.pieces.is_empty().then_some(()))
    }

    /// A slot for a piece, which is freed by the end of an earlier one if there is none.
    fn slot(&mut self) -> Result<(Area, u64)> {
        let mut found = None;
        self.wait_for(|own| {
            found = own.way.take_slot();
            found.map(drop)
        })?;
        found.ok_or_else(|| Error::internal("a slot vanished"))
    }

    /// Waits until something is there; what is over meanwhile is forgotten.
    fn wait_for(&mut self, mut is_there: impl FnMut(&Self) -> Option<()>) -> Result<()> {
        let mut backoff = Backoff::new();
        for look in 1u32.. {
            let before = self.pieces.len();
            self.forget_ended()?;
            if is_there(self).is_some() {
                break;
            }
            if self.helper.as_ref().is_some_and(Helper::sweep) || self.pieces.len() < before {
                backoff.reset();
            }
            if look % LOOKS == 0 {
                let what = || format!("rank {} puts to rank {}", self.comm.rank, self.peer);
                self.comm.may_wait(self.peer, self.began, what)?;
            }
            backoff.rest(LONGEST_PAUSE);
        }
        Ok(())
    }

    fn forget_ended(&mut self) -> Result<()> {
        let mut failed = Ok(());
        self.pieces.retain(|(ticket, slot)| {
            let Some(ended) = outcome(ticket) else { return true };
            slot.iter().for_each(|slot| self.way.give_slot(*slot));
            if let Err(error) = ended {
                failed = Err(error);
            }
            false
        });
        failed
    }
}

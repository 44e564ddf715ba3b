//! The links of a communicator: those that are up, those that are lost, and what it takes to part.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use hawser_base::error::Error;
use hawser_base::stages::Trace;
use rustc_hash::FxHashSet;

use super::coll::CollLink;
use super::drain::{self, Drain};
use super::end::{Around, ConnectionKey, End};
use super::link::{RecvLink, SendLink};
use super::loss::{Lost, Told};
use super::puts::PutEnd;
use crate::progress::stall::{NetRequest, Stall};

/// The time that the last messages of a rank have to come once it has gone. Its word that it has gone travels
/// another way.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// The links of a communicator, and what is known of those that ended.
#[derive(Default)]
pub(super) struct Links {
    pub sends: Vec<SendLink>,
    pub recvs: Vec<RecvLink>,
    pub colls: Vec<CollLink>,
    /// Connections for puts, and those of them that have ended.
    pub puts: Vec<PutEnd>,
    pub have_ended: FxHashSet<ConnectionKey>,
    pub lost: Vec<Lost>,
    /// The failure that another rank has told of, until it is known who is to blame.
    pub told: Option<Told>,
    /// The peers of lost connections that were looked for.
    pub looked_for: FxHashSet<u32>,
    pub drain: Drain,
    pub trace: RefCell<Trace>,
}

impl Links {
    /// The requests that the plugin, which has this name, has not carried out.
    pub fn stalls(&mut self, net: &str) -> Vec<Stall> {
        let mut all = stalls(&mut self.sends, net);
        all.extend(stalls(&mut self.recvs, net));
        // A rank that has asked for one message of a peer has no other one in mind.
        let has_asked = |peer| self.recvs.iter().any(|link| link.key().peer == peer && link.has_asked());
        all.retain(|stall| stall.request != NetRequest::NoRoom || !stall.peer.is_some_and(has_asked));
        all.extend(stalls(&mut self.colls, net));
        all.extend(stalls(&mut self.puts, net));
        all
    }

    /// Takes what a rank told when it left, or when this rank does.
    pub fn part(&mut self, peer: u32, text: &[u8]) {
        for (key, slots) in drain::told(peer, text) {
            if let Some(link) = self.sends.iter_mut().find(|link| link.key() == key) {
                link.fill(slots);
            }
            if let Some(link) = self.recvs.iter_mut().find(|link| link.key() == key) {
                link.end_at(slots);
            }
        }
    }

    /// Gives up the links whose other ends are gone, as `peer` tells: no receive is filled over them any
    /// more.
    pub fn forget(&mut self, peer: u32, text: &[u8]) {
        for (key, _) in drain::told(peer, text) {
            self.end_puts(|end| end.key() == key, None);
            self.sends.extract_if(.., |link| link.key() == key).for_each(|mut link| link.close());
            self.recvs.extract_if(.., |link| link.key() == key).for_each(|mut link| link.close());
        }
    }

    /// Closes connections for puts, which are not made again.
    pub fn end_puts(&mut self, which: impl Fn(&PutEnd) -> bool, why: Option<&Error>) {
        for mut end in self.puts.extract_if(.., |end| which(end)) {
            end.end_with(why);
            self.have_ended.insert(end.key());
        }
    }

    /// True if something has failed, here or on another rank, and it is not known yet who is to blame.
    pub fn have_trouble(&self) -> bool {
        !self.lost.is_empty() || self.told.is_some()
    }

    /// The next peer of a lost connection of whose end nobody tells.
    pub fn next_to_look_for(&mut self) -> Option<u32> {
        let is_next = |lost: &&Lost| lost.is_unexplained() && !self.looked_for.contains(&lost.key.peer);
        let peer = self.lost.iter().find(is_next)?.key.peer;
        self.looked_for.insert(peer);
        Some(peer)
    }

    /// True if the ranks that were `told` need this rank no more, and no receive is in flight between it and
    /// those that know of its end. One that has gone takes no message that would fill a receive; the last
    /// that it sent itself have some time to come, from `gone_since` on.
    pub fn are_content(
        &self,
        told: &[u32],
        has_gone: impl Fn(u32) -> bool,
        gone_since: &mut Option<Instant>,
    ) -> bool {
        let knows = |peer: u32| told.contains(&peer) || self.drain.has_parted(peer);
        let awaits_send = |peer: u32| knows(peer) && !has_gone(peer);
        let has_sent = told.iter().all(|peer| self.drain.is_content(*peer))
            && self.sends.iter().all(|link| link.has_filled() || !awaits_send(link.key().peer));
        let busy = self.recvs.iter().filter(|link| !link.is_idle()).map(End::key);
        let puts = self.puts.iter().filter(|end| !end.is_idle()).map(End::key).filter(|key| !key.send);
        let busy: Vec<u32> = busy.chain(puts).map(|key| key.peer).filter(|peer| knows(*peer)).collect();
        match has_sent && busy.iter().all(|peer| has_gone(*peer)) {
            true => busy.is_empty() || gone_since.get_or_insert_with(Instant::now).elapsed() > ON_ITS_WAY,
            false => false,
        }
    }
}

/// Moves ends of one kind on; those that fail are closed and lost. Says whether anything moved.
pub(super) fn carry_on<E: End>(ends: &mut Vec<E>, around: &Around<'_>, lost: &mut Vec<Lost>) -> bool {
    let mut has_moved = false;
    ends.retain_mut(|end| match end.sweep(around) {
        Ok(moved) => {
            has_moved |= moved;
            true
        }
        Err(error) => {
            let (key, come, is_unsent) = (end.key(), end.come(), end.is_unsent());
            lost.push(Lost { key, error, since: Instant::now(), come, is_unsent });
            end.close();
            false
        }
    });
    has_moved
}

/// The requests of ends of one kind that the plugin has not carried out.
fn stalls<E: End>(ends: &mut [E], net: &str) -> Vec<Stall> {
    let stall = |end: &mut E| {
        let (request, count, age_ms) = end.stalled()?;
        Some(Stall { net: net.to_owned(), peer: Some(end.key().peer), request, count, age_ms })
    };
    ends.iter_mut().filter_map(stall).collect()
}

//! The proxy's task for a communicator: it sweeps over links, and deals with what goes wrong.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_base::error::{Error, ErrorKind};
use hawser_base::log::{self, Subsys};
use hawser_base::stages::{self, Trace};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_plan::Class;
use hawser_plugin::net::NetContext;
use rustc_hash::FxHashSet;

use super::LOOK;
use super::checksum::Mismatch;
use super::coll::CollLink;
use super::drain;
use super::end::{Around, ConnectionKey, End};
use super::link::{RecvLink, SendLink};
use super::links::{self, Links};
use super::loss::{self, Lost, Told};
use super::put_way::Inbox;
use super::teller::Teller;
use crate::bootstrap::{Bootstrap, Tag};
use crate::classes::{self, Turns};
use crate::planted::{Bug, is_planted};
use crate::profiling::Span;
use crate::progress::stall::{NetRequest, Stall};
use crate::proxy::Task;
use crate::transport::control::Control;

/// The interval at which messages of other ranks are looked at while nothing moves.
const LISTEN_EVERY: Duration = Duration::from_micros(200);
/// The pause between two looks whether a sweep is over.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The sends of a connection that the plugin has at a time while all operations are best-effort: what it has,
/// more urgent ones have to wait for.
const WINDOW: u64 = 2;
/// The time that telling one rank of a failure may take.
const TELL: Duration = Duration::from_secs(2);

/// The proxy's part of a communicator.
pub struct NetTask {
    context: Box<dyn NetContext>,
    bootstrap: Arc<Bootstrap>,
    control: Arc<Control>,
    flush: bool,
    links: Mutex<Links>,
    begin: Instant,
    /// Microseconds after `begin` at which messages of other ranks were looked at last.
    listened: AtomicU64,
    /// Threads that sweep while they wait for an operation.
    helpers: AtomicU32,
    /// Operations may be launched that the host does not see: replays of graphs.
    is_unannounced: AtomicBool,
    /// The number of the class of the operations under way: the most urgent one.
    class: AtomicU8,
    /// Its looks while all of them are best-effort.
    turns: Turns,
    /// The communicator's flag.
    abort: AbortFlag,
    ended: AbortFlag,
    teller: Teller,
    /// Puts that wait for the proxy.
    pub(super) inbox: Arc<Inbox>,
    /// The thread that tells the other ranks of a failure.
    telling: Mutex<Option<JoinHandle<()>>>,
    /// The threads that look for ranks.
    looking: Mutex<Vec<JoinHandle<()>>>,
}

impl NetTask {
    /// Without links.
    pub fn new(
        context: Box<dyn NetContext>,
        bootstrap: Arc<Bootstrap>,
        control: Arc<Control>,
        (flush, inbox): (bool, Arc<Inbox>),
        abort: &AbortFlag,
    ) -> Self {
        let ended = abort.child();
        Self {
            context,
            teller: Teller::new(bootstrap.clone(), ended.clone()),
            bootstrap,
            control,
            flush,
            inbox,
            links: Mutex::default(),
            begin: Instant::now(),
            listened: AtomicU64::new(0),
            helpers: AtomicU32::new(0),
            is_unannounced: AtomicBool::new(false),
            class: AtomicU8::new(Class::Normal as u8),
            turns: Turns::default(),
            abort: abort.clone(),
            ended,
            telling: Mutex::default(),
            looking: Mutex::default(),
        }
    }

    /// The parts of the communicator that links need.
    pub fn around<'a>(&'a self, trace: &'a RefCell<Trace>) -> Around<'a> {
        let (context, bootstrap) = (self.context.as_ref(), &*self.bootstrap);
        let window = if self.class() == Class::BestEffort { WINDOW } else { u64::MAX };
        Around { context, bootstrap, flush: self.flush, teller: &self.teller, trace, window }
    }

    /// An operation of this class is launched. The class of the task rises at once, and falls when all that
    /// was written before has been sent.
    pub fn expect_class(&self, class: Class) {
        let before = self.class.load(Ordering::Relaxed);
        if before != class as u8 && (before < class as u8 || self.is_drained()) {
            self.class.store(class as u8, Ordering::Relaxed);
        }
    }

    /// Operations were launched.
    pub fn launched(&self) {
        if stages::now().is_some() {
            self.lock().trace.get_mut().launched();
        }
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.bootstrap.rank()
    }

    /// A flag that is raised when the network has failed or the communicator is aborted.
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
    pub fn expect(&self, key: ConnectionKey, slots: u64, parent: &Arc<Span>) {
        let mut links = self.lock();
        if let Some(link) = links.sends.iter_mut().find(|l| l.key() == key) {
            link.expect(slots, parent);
        }
        if let Some(link) = links.recvs.iter_mut().find(|l| l.key() == key) {
            link.expect(slots, parent);
        }
    }

    /// The calling thread sweeps from now on, until [`NetTask::leave`].
    pub fn help(&self) {
        self.helpers.fetch_add(1, Ordering::AcqRel);
    }

    /// The calling thread does not sweep any more. True: nobody does, and something is left for the proxy.
    pub fn leave(&self) -> bool {
        let is_last = self.helpers.fetch_sub(1, Ordering::AcqRel) == 1;
        is_last && !self.is_over() && !(self.is_drained() && self.are_puts_over())
    }

    /// From now on operations may be launched that the host does not see.
    pub fn expect_replays(&self) {
        self.is_unannounced.store(true, Ordering::Release);
    }

    /// True if nothing will move any more: the communicator was aborted or the network failed.
    pub fn is_over(&self) -> bool {
        self.control.is_aborted()
    }

    /// The requests that the plugin, which has this name, has not carried out. A sweep that is not over
    /// within the limit is in a call of the plugin that does not return.
    pub fn stalls(&self, net: &str, limit: Duration) -> Vec<Stall> {
        let until = Instant::now() + limit;
        let mut links = loop {
            match self.links.try_lock() {
                Ok(links) => break links,
                Err(TryLockError::Poisoned(links)) => break links.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                Err(TryLockError::WouldBlock) => {
                    let age_ms = limit.as_millis() as u64;
                    let (net, request) = (net.to_owned(), NetRequest::Call);
                    return vec![Stall { net, peer: None, request, count: 1, age_ms }];
                }
            }
        };
        links.stalls(net)
    }

    /// True if everything that the device wrote has been sent.
    pub fn is_drained(&self) -> bool {
        let links = self.lock();
        links.sends.iter().all(SendLink::is_drained) && links.colls.iter().all(CollLink::is_drained)
    }

    /// True if everything that the device wrote has been sent to those of its peers that are still there.
    pub fn has_sent_all(&self) -> bool {
        let (links, roster) = (self.lock(), self.bootstrap.roster());
        let has_gone = |peer: u32| roster.has_gone(peer) && !is_planted(Bug::WaitsForGone);
        let is_done = |link: &SendLink| link.is_drained() || has_gone(link.key().peer);
        // What a lost connection had to send is lost, and a failure, unless the peer turns out to have left.
        let is_open = |lost: &Lost| lost.is_unsent && !has_gone(lost.key.peer);
        links.sends.iter().all(is_done)
            && links.colls.iter().all(CollLink::is_drained)
            && !links.lost.iter().any(is_open)
    }

    /// Looks whether those ranks are there which have not taken everything, beginning with another one in
    /// each round.
    pub fn look_for_receivers(&self, round: usize, wait: &Wait) {
        let roster = self.bootstrap.roster();
        let is_late = |link: &&SendLink| !link.is_drained() && !roster.has_gone(link.key().peer);
        let late: BTreeSet<u32> = self.lock().sends.iter().filter(is_late).map(|l| l.key().peer).collect();
        self.bootstrap.look_for(&Vec::from_iter(late), round, wait, LOOK);
    }

    /// Tells the ranks with which there are connections that their end is no failure, each within `limit`,
    /// and stays, for at most `patience`, until all that this rank sent has come and no receive is in flight.
    pub fn say_goodbye(&self, limit: Duration, patience: Duration) {
        let mut told = Vec::new();
        for (peer, text) in self.farewells() {
            // One that is gone already does not mind.
            let wait = Wait::new(AbortFlag::new(), Some(limit));
            if self.bootstrap.send(peer, Tag::Goodbye.word(), &text, &wait).is_ok() && !text.is_empty() {
                told.push(peer);
            }
        }
        let wait = Wait::new(self.abort_flag(), Some(patience));
        let (mut next_look, mut looks, mut gone_since) = (Instant::now() + LOOK, 0, None);
        let roster = self.bootstrap.roster();
        let content = || {
            told.retain(|peer| !roster.has_gone(*peer));
            let is_over = self.is_over()
                || self.lock().are_content(&told, |peer| roster.has_gone(peer), &mut gone_since);
            if !is_over && Instant::now() >= next_look {
                self.bootstrap.look_for(&told, looks, &wait, LOOK);
                (next_look, looks) = (Instant::now() + LOOK, looks + 1);
            }
            is_over.then_some(())
        };
        if let Err(error) = wait.until(content, || "the last data come to where they were sent".to_owned()) {
            log::info(Subsys::Net, || format!("connections are closed early: {error}"));
        }
    }

    /// The farewells of this rank: the peers, and the texts for them.
    fn farewells(&self) -> Vec<(u32, Vec<u8>)> {
        let mut links = self.lock();
        let Links { sends, recvs, colls, puts, drain, .. } = &mut *links;
        drain.is_leaving = true;
        recvs.iter_mut().for_each(|link| link.end_at(link.come()));
        let ends = sends.iter().map(End::key).chain(recvs.iter().map(End::key));
        let ends = ends.chain(puts.iter().map(End::key));
        let rails = colls.iter().flat_map(|l| l.ranks().to_vec());
        let peers: FxHashSet<u32> = ends.map(|key| key.peer).chain(rails).collect();
        let roster = self.bootstrap.roster();
        let stay = |peer: &u32| {
            *peer != self.bootstrap.rank() && !drain.has_parted(*peer) && !roster.has_gone(*peer)
        };
        let farewell = |peer: u32| {
            let sent = sends.iter().map(|link| (link.key(), link.sent()));
            let put = puts.iter().filter(|end| end.key().send).map(|end| (end.key(), end.sent()));
            let sent = sent.chain(put);
            let posted = recvs.iter().map(|link| (link.key(), link.posted()));
            (peer, drain::tell(sent.chain(posted).filter(|(key, _)| key.peer == peer)))
        };
        peers.into_iter().filter(stay).map(farewell).collect()
    }

    /// Closes all connections. Not while the proxy sweeps.
    pub fn close(&self) {
        self.ended.raise();
        self.teller.close();
        self.wait_until_told();
        let looking = std::mem::take(&mut *self.looking.lock().unwrap_or_else(PoisonError::into_inner));
        looking.into_iter().for_each(|thread| drop(thread.join()));
        let mut links = self.lock();
        links.sends.iter_mut().for_each(End::close);
        links.recvs.iter_mut().for_each(End::close);
        links.colls.iter_mut().for_each(End::close);
        (links.sends, links.recvs, links.colls) = (Vec::new(), Vec::new(), Vec::new());
        links.end_puts(|_| true, None);
    }

    /// Moves all links on; those that fail are lost.
    fn carry(&self, links: &mut Links) -> bool {
        let Links { sends, recvs, colls, puts, have_ended, trace, .. } = links;
        let around = self.around(trace);
        let mut lost = Vec::new();
        for (key, error) in self.inbox.hand_out((puts, have_ended), &around) {
            lost.push(Lost { key, error, since: Instant::now(), come: 0, is_unsent: false });
        }
        let mut has_moved = links::carry_on(puts, &around, &mut lost);
        have_ended.extend(lost.iter().map(|lost| lost.key));
        has_moved |= links::carry_on(sends, &around, &mut lost);
        has_moved |= links::carry_on(recvs, &around, &mut lost);
        has_moved |= links::carry_on(colls, &around, &mut lost);
        links.lost.extend(lost);
        has_moved
    }

    /// Looks at what other ranks say.
    fn listen(&self, links: &mut Links) {
        while let Some((peer, text)) = self.bootstrap.take_any(Tag::Goodbye.word()) {
            links.drain.hear(peer, &text);
            links.part(peer, &text);
        }
        while let Some((peer, text)) = self.bootstrap.take_any(Tag::Thanks.word()) {
            links.drain.thank(peer);
            links.part(peer, &text);
        }
        while let Some((peer, text)) = self.bootstrap.take_any(Tag::EndLost.word()) {
            links.forget(peer, &text);
        }
        if let Some((peer, words)) = self.bootstrap.take_any(Tag::NetFault.word()) {
            match links.lost.iter().find(|lost| lost.key.peer == peer && lost.is_cause()) {
                // What the peer saw is that this rank's connection to it failed: the cause is here.
                Some(lost) => self.fail(self.failure(lost)),
                None if links.told.is_none() => {
                    links.told = Told::new(peer, &words, self.bootstrap.rank());
                }
                None => {}
            }
        }
    }

    /// A lost connection is a failure unless its peer went in peace, and all that it sent has come.
    fn judge(&self, links: &mut Links) {
        let (drain, roster) = (&links.drain, self.bootstrap.roster());
        links.lost.retain(|lost| {
            let is_done = drain.is_leaving && drain.is_content(lost.key.peer);
            let has_parted = is_done || drain.has_parted(lost.key.peer);
            let peaceful = has_parted && !lost.is_short(drain) && !Mismatch::is_behind(&lost.error);
            if peaceful {
                let _span = log::enter_connection(self.bootstrap.rank(), lost.key.peer);
                log::info(Subsys::Net, || format!("rank {} has closed its connections", lost.key.peer));
                // It may not know that this end is gone, and wait for receives that are in flight.
                if lost.is_cause() && drain.has_parted(lost.key.peer) && !roster.has_gone(lost.key.peer) {
                    let text = drain::tell(std::iter::once((lost.key, 0)));
                    let wait = Wait::new(self.abort_flag(), Some(LOOK));
                    let _ = self.bootstrap.send(lost.key.peer, Tag::EndLost.word(), &text, &wait);
                }
            }
            !peaceful
        });
        if let Some(peer) = links.next_to_look_for() {
            self.look_for(peer);
        }
        let sure = |lost: &Lost| {
            let may_pass = matches!(lost.error.kind, ErrorKind::Remote | ErrorKind::System);
            !may_pass || Mismatch::is_behind(&lost.error)
        };
        let fatal = links.lost.iter().find(|lost| sure(lost) || lost.is_short(&links.drain) || lost.is_due());
        // Nobody waits for the words of a peer that has gone, once it is known who is to blame.
        let gone = || links.lost.iter().find(|lost| roster.has_gone(lost.key.peer));
        let verdict = links.lost.first().and_then(|_| roster.verdict());
        match (fatal.or_else(gone), fatal, verdict) {
            (Some(lost), _, Some(why)) => {
                let text = format!("{}; it showed as: {}", why.text, self.failure(lost).text);
                self.fail(why.with_text(text));
            }
            (_, Some(lost), None) => self.fail(self.failure(lost)),
            _ => {}
        }
        if let Some(error) = links.told.as_ref().and_then(|told| told.outcome(roster.verdict())) {
            links.told = None;
            self.control.fail_soon(error);
            self.ended.raise();
        }
    }

    /// The communicator's error after the loss of a connection.
    fn failure(&self, lost: &Lost) -> Error {
        let rank = self.bootstrap.rank();
        let verb = if lost.key.send { "sending to" } else { "receiving from" };
        let text = format!("rank {rank} failed {verb} rank {}: {}", lost.key.peer, lost.error.text);
        lost.error.clone().with_text(text).with_peer(lost.key.peer)
    }

    /// Tells ranks that leave when all that they sent has come.
    fn thank(&self, links: &mut Links) {
        let Links { recvs, puts, lost, drain, .. } = links;
        let come = |key: ConnectionKey| {
            let open = recvs.iter().find(|link| link.key() == key).map(End::come);
            let put = || puts.iter().find(|end| end.key() == key).map(End::come);
            let open = open.or_else(put);
            let lost = || lost.iter().find(|lost| lost.key == key).map(|lost| lost.come);
            open.or_else(lost).unwrap_or(u64::MAX)
        };
        for peer in drain.complete(come) {
            let posted = recvs.iter().filter(|link| link.key().peer == peer);
            let text = drain::tell(posted.map(|link| (link.key(), link.posted())));
            // One that did not stay does not mind.
            let _ = self.bootstrap.send(
                peer,
                Tag::Thanks.word(),
                &text,
                &Wait::new(self.abort_flag(), Some(TELL)),
            );
        }
    }

    /// After an error outside the sweeps, ends the communicator unless that was the reason. Returns the
    /// reason.
    pub fn give_up(&self, error: Error) -> Error {
        if let Some(fault) = self.control.fault() {
            return fault.clone();
        }
        if error.kind == ErrorKind::Aborted {
            return error;
        }
        let error = self.bootstrap.blame(error);
        self.fail(error.clone());
        error
    }

    /// Ends the communicator on this rank and tells the others. They will not come to a split in which this
    /// rank waits for them.
    fn fail(&self, error: Error) {
        log::error(&error);
        let words = loss::tell(&error);
        if is_planted(Bug::UntoldFailure) {
            self.control.fail(error);
            return self.ended.raise();
        }
        self.bootstrap.report(&error);
        self.abort.doom(error.clone());
        let first = self.control.fail_soon(error);
        self.ended.raise();
        // The bootstrap tells who is dead.
        if !first || self.bootstrap.roster().verdict().is_some() {
            return;
        }
        let bootstrap = self.bootstrap.clone();
        let tell = move || {
            let is_there = |peer: &u32| *peer != bootstrap.rank() && !bootstrap.roster().has_gone(*peer);
            for peer in (0..bootstrap.nranks()).filter(is_there) {
                let _ = bootstrap.send(
                    peer,
                    Tag::NetFault.word(),
                    &words,
                    &Wait::new(AbortFlag::new(), Some(TELL)),
                );
            }
        };
        // Without a thread the others find out by themselves.
        let thread = std::thread::Builder::new().name("hawser-fault".into()).spawn(tell);
        *self.telling.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok();
    }

    /// Looks in a thread whether a rank is there: who passes news on may be stopped.
    fn look_for(&self, peer: u32) {
        let (bootstrap, wait) = (self.bootstrap.clone(), Wait::new(self.abort_flag(), Some(LOOK)));
        let look = move || bootstrap.look_for(&[peer], 0, &wait, LOOK);
        // Without a thread it stays unknown.
        let thread = std::thread::Builder::new().name("hawser-look".into()).spawn(look);
        self.looking.lock().unwrap_or_else(PoisonError::into_inner).extend(thread);
    }

    /// Waits, for a limited time, until the other ranks know of a failure: connections that close before look
    /// to them as if this rank were the cause.
    fn wait_until_told(&self) {
        let thread = self.telling.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_over = || thread.as_ref().is_none_or(JoinHandle::is_finished).then_some(());
        // One that cannot be told in time finds out by itself.
        let _ = Wait::new(AbortFlag::new(), Some(TELL)).until(is_over, || "other ranks are told".to_owned());
    }

    fn is_time_to_listen(&self) -> bool {
        let now = self.begin.elapsed().as_micros() as u64;
        let is_time =
            u128::from(now - self.listened.load(Ordering::Relaxed).min(now)) >= LISTEN_EVERY.as_micros();
        if is_time {
            self.listened.store(now, Ordering::Relaxed);
        }
        is_time
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task for NetTask {
    fn is_helped(&self) -> bool {
        self.helpers.load(Ordering::Acquire) > 0
    }

    fn is_announced(&self) -> bool {
        !self.is_unannounced.load(Ordering::Acquire)
    }

    fn class(&self) -> Class {
        Class::numbered(self.class.load(Ordering::Relaxed)).unwrap_or_default()
    }

    fn holds_back(&self) -> bool {
        self.class() == Class::BestEffort && self.turns.hold_back()
    }

    fn end_after_panic(&self) {
        let rank = self.bootstrap.rank();
        let text = format!("rank {rank}: the proxy panicked: a bug in this library or in a net plugin");
        self.fail(Error::internal(text));
    }

    fn sweep(&self) -> bool {
        if self.is_over() {
            self.ended.raise();
            if let Ok(mut links) = self.links.try_lock() {
                links.give_up_buffers();
            }
            return false;
        }
        // Whoever holds them is sweeping, or adds a link and wakes the proxy.
        let Ok(mut links) = self.links.try_lock() else { return false };
        let moved = self.carry(&mut links);
        if moved {
            classes::moved(self.class());
        }
        if !moved && self.is_time_to_listen() || links.have_trouble() || links.drain.is_going_on() {
            self.listen(&mut links);
            self.judge(&mut links);
            self.thank(&mut links);
        }
        moved
    }
}

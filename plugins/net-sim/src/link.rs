//! A connection of the made-up network: what both ends share, under one lock.
//!
//! A message passes three moments: it **departs**, when its bytes are read from the sender's memory and the
//! send is over; it **arrives**, when the second half is written to the posted receive; and it is **there**,
//! when the first half is written too and the receive is over. Either end brings the connection forward
//! whenever the host asks it for anything.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hawser_plugin::net::Segment;
use hawser_plugin::{Error, ErrorKind, Result};

use crate::conditions::{Conditions, Draws};
use crate::places::{Cut, Fate, Site};

/// The ends of a connection, as indices.
pub const SENDER: usize = 0;
pub const RECEIVER: usize = 1;

/// A device of a context, which may die.
#[derive(Debug)]
pub struct Nic {
    /// Messages until the device dies; `u64::MAX` = it does not.
    pub left: AtomicU64,
}

impl Nic {
    pub fn is_dead(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    fn count(&self) {
        let count = |left: u64| (left != u64::MAX && left > 0).then(|| left - 1);
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
    }
}

/// The end that is told of a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Ends([bool; 2]),
    Nobody,
}

/// A message on its way.
struct Message {
    bytes: Vec<u8>,
    arrives: Duration,
    there: Duration,
    /// The second half has been written.
    is_half: bool,
}

/// A send or receive that the host has begun.
struct Posted {
    request: u64,
    segment: Segment,
    /// For a send, the moment from which on it may depart.
    departs: Duration,
}

/// A connection.
pub struct Link {
    conditions: Arc<Conditions>,
    draws: Draws,
    sends: VecDeque<Posted>,
    wire: VecDeque<Message>,
    receives: VecDeque<Posted>,
    /// Requests that are over and not told yet, with their bytes.
    over: [Vec<(u64, usize)>; 2],
    next_request: u64,
    /// The wire is occupied until then.
    busy_until: Duration,
    /// Messages until it dies.
    left: u64,
    told: Told,
    is_dead: bool,
    pub nics: [Option<Arc<Nic>>; 2],
    /// The places of the ends.
    pub sites: [Option<Arc<Site>>; 2],
    pub is_accepted: bool,
    pub is_connected: bool,
    closed: [bool; 2],
    /// A receive was too short: both ends fail.
    mismatch: Option<String>,
}

impl Link {
    pub fn new(conditions: Arc<Conditions>, number: u64) -> Self {
        let mut draws = Draws::new(conditions.seed, number);
        let dies = draws.percent(conditions.deaths);
        let is_silent = draws.percent(conditions.silences);
        let left = 1 + draws.below(conditions.within);
        let ends = [[true, false], [false, true], [true, true]][draws.below(3) as usize];
        Self {
            conditions,
            draws,
            sends: VecDeque::new(),
            wire: VecDeque::new(),
            receives: VecDeque::new(),
            over: Default::default(),
            next_request: 1,
            busy_until: Duration::ZERO,
            left: if dies || is_silent { left } else { u64::MAX },
            told: if dies { Told::Ends(ends) } else { Told::Nobody },
            is_dead: false,
            nics: [None, None],
            sites: [None, None],
            is_accepted: false,
            is_connected: false,
            closed: [false; 2],
            mismatch: None,
        }
    }

    /// True with the chance that a call is answered "not now".
    pub fn not_now(&mut self) -> bool {
        let percent = self.conditions.not_now;
        percent > 0 && self.draws.percent(percent)
    }

    /// True if an end gets no answer: whoever is there has come to an end.
    ///
    /// # Errors
    /// It has, and may clean up by now.
    pub fn is_held_back(&mut self, end: usize) -> Result<bool> {
        self.follow_fates();
        let Some(site) = self.sites[end].as_deref() else { return Ok(false) };
        let has_ended = site.fate().is_some();
        if has_ended && site.lets_go() {
            return Err(Error::remote("this end of the simulated net has come to its end"));
        }
        // Who is silent hears nothing from others either.
        let other = self.sites[1 - end].as_deref();
        Ok(has_ended || other.is_some_and(|other| other.fate() == Some(Fate::Silent)))
    }

    /// The fate of the places of the ends becomes that of the connection.
    fn follow_fates(&mut self) {
        let fates = [SENDER, RECEIVER].map(|end| self.sites[end].as_ref().and_then(|site| site.fate()));
        for end in [SENDER, RECEIVER] {
            if fates[end] == Some(Fate::Ended) && !self.closed[end] {
                self.close(end);
            }
        }
        let between = match &self.sites {
            [Some(one), Some(other)] => one.cut_from(other),
            _ => None,
        };
        if self.is_dead {
            return;
        }
        if fates.contains(&Some(Fate::Silent)) || between == Some(Cut::Silent) {
            (self.is_dead, self.told) = (true, Told::Nobody);
        } else if between == Some(Cut::Told) {
            (self.is_dead, self.told) = (true, Told::Ends([true, true]));
        }
    }

    /// The error that an end gets now, if any.
    fn failure(&self, end: usize) -> Result<()> {
        if self.nics[end].as_deref().is_some_and(Nic::is_dead) {
            return Err(Error::system("using the device of the simulated net, which died", os(19)));
        }
        if self.is_dead && matches!(self.told, Told::Ends(ends) if ends[end]) {
            return Err(Error::system("using a connection of the simulated net, which died", os(110)));
        }
        match &self.mismatch {
            Some(text) => Err(Error::new(ErrorKind::InvalidUsage, text.clone())),
            None => Ok(()),
        }
    }

    /// Begins a send.
    pub fn post_send(&mut self, segment: &Segment, now: Duration) -> Result<Option<u64>> {
        if self.is_held_back(SENDER)? {
            return Ok(None);
        }
        self.advance(now);
        self.failure(SENDER)?;
        if self.closed[RECEIVER] {
            return Err(Error::remote("the receiver of the simulated net has closed the connection"));
        }
        if self.sends.len() as u64 >= self.conditions.queue || self.not_now() {
            return Ok(None);
        }
        let mut departs = now.max(self.busy_until) + self.conditions.on_the_wire(segment.bytes);
        if self.draws.percent(self.conditions.stalls) {
            departs += Duration::from_micros(self.draws.below(self.conditions.stall_us));
        }
        self.busy_until = departs;
        let request = self.number();
        self.sends.push_back(Posted { request, segment: *segment, departs });
        Ok(Some(request))
    }

    /// Begins a receive.
    pub fn post_receive(&mut self, segment: &Segment, now: Duration) -> Result<Option<u64>> {
        if self.is_held_back(RECEIVER)? {
            return Ok(None);
        }
        self.advance(now);
        self.failure(RECEIVER)?;
        if self.not_now() {
            return Ok(None);
        }
        let request = self.number();
        self.receives.push_back(Posted { request, segment: *segment, departs: now });
        self.advance(now);
        Ok(Some(request))
    }

    fn number(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request - 1
    }

    /// The bytes of a request of an end that is over, which is forgotten with that.
    pub fn test(&mut self, end: usize, request: u64, now: Duration) -> Result<Option<usize>> {
        if self.is_held_back(end)? {
            return Ok(None);
        }
        self.advance(now);
        if let Some(at) = self.over[end].iter().position(|(over, _)| *over == request) {
            return if self.not_now() { Ok(None) } else { Ok(Some(self.over[end].swap_remove(at).1)) };
        }
        self.failure(end)?;
        let queue = if end == SENDER { &self.sends } else { &self.receives };
        if queue.iter().all(|posted| posted.request != request) {
            return Err(Error::internal(format!("request {request} is over, or was never made")));
        }
        let is_all = self.wire.is_empty() || end == SENDER;
        if self.closed[1 - end] && is_all && !self.is_dead {
            return Err(Error::remote("the peer has closed the connection of the simulated net"));
        }
        Ok(None)
    }

    /// True if a request of an end is in flight that uses memory of a region.
    pub fn uses(&self, end: usize, addr: u64, bytes: usize) -> bool {
        let queue = if end == SENDER { &self.sends } else { &self.receives };
        let inside = |posted: &Posted| (addr..addr + bytes as u64).contains(&posted.segment.addr);
        queue.iter().any(|posted| posted.segment.bytes > 0 && inside(posted))
    }

    pub fn is_closed(&mut self, end: usize) -> bool {
        self.follow_fates();
        self.closed[end]
    }

    /// Closes an end: its memory is not touched any more.
    pub fn close(&mut self, end: usize) {
        self.closed[end] = true;
        if end == SENDER { self.sends.clear() } else { self.receives.clear() }
    }

    /// Does all that is due.
    fn advance(&mut self, now: Duration) {
        self.depart(now);
        self.arrive(now);
    }

    fn depart(&mut self, now: Duration) {
        while let Some(send) = self.sends.front()
            && !self.is_dead
            && send.departs <= now
            && (self.wire.len() as u64) < self.conditions.queue
        {
            if self.nics.iter().flatten().any(|nic| nic.is_dead()) || self.left == 0 {
                self.is_dead = true;
                return;
            }
            if self.left != u64::MAX {
                self.left -= 1;
            }
            self.nics.iter().flatten().for_each(|nic| nic.count());
            let Posted { request, segment, departs } = self.sends.pop_front().expect("it is there");
            // SAFETY: the host keeps a segment valid and unchanged until its send is over, and takes the end
            // away, which empties the queue, before it frees the memory.
            let bytes = unsafe { std::slice::from_raw_parts(segment.addr as *const u8, segment.bytes) };
            let late = |draws: &mut Draws, most| Duration::from_micros(draws.below(most + 1));
            let last = self.wire.back().map_or(Duration::ZERO, |message| message.there);
            let way = Duration::from_micros(self.conditions.latency_us);
            let arrives = last.max(departs + way + late(&mut self.draws, self.conditions.jitter_us));
            let there = arrives + late(&mut self.draws, self.conditions.jitter_us / 4);
            self.wire.push_back(Message { bytes: bytes.to_vec(), arrives, there, is_half: false });
            self.over[SENDER].push((request, segment.bytes));
        }
    }

    fn arrive(&mut self, now: Duration) {
        while let (Some(message), Some(receive)) = (self.wire.front_mut(), self.receives.front()) {
            let (bytes, room) = (message.bytes.len(), receive.segment.bytes);
            if self.is_dead || message.arrives > now {
                return;
            }
            if bytes > room {
                let text = format!("a message of {bytes} bytes for a receive of {room} in the simulated net");
                self.mismatch = Some(text);
                return;
            }
            let half = bytes / 2;
            let to = receive.segment.addr as *mut u8;
            if !message.is_half {
                message.is_half = true;
                // SAFETY: the host keeps the segment valid, and to us, until the receive is over or the end
                // is closed, which empties the queue; the message fits.
                unsafe {
                    to.add(half).copy_from_nonoverlapping(message.bytes[half..].as_ptr(), bytes - half)
                };
            }
            if message.there > now {
                return;
            }
            // SAFETY: as above.
            unsafe { to.copy_from_nonoverlapping(message.bytes.as_ptr(), half) };
            self.over[RECEIVER].push((receive.request, bytes));
            self.wire.pop_front();
            self.receives.pop_front();
        }
    }
}

fn os(code: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(code)
}

//! Buffers that a rank registers for itself (`ncclCommRegister`): the other processes of its host map them,
//! so that calls on them need no staging there.
//!
//! Nobody waits for anybody. A rank offers its buffer to the others. Each asks for the descriptors of one
//! buffer after the other, so that few are on their way, maps it and answers with the place where it finds
//! it; `serve_registered` does that, on a thread of its own. When all have answered, this rank's kernels tell
//! others those places, as of windows. Until then, and where one cannot map it, calls on it are staged.
//!
//! ```text
//! its rank ─Offer─► another one ─Wanted─► its rank ─descriptors, Sent─► the other one ─Mapped─► its rank
//! ```
//!
//! The memory is of CUDA's VMM, which stays as long as somebody maps it. That of `cudaMalloc` would be gone
//! with its owner's `cudaFree`, and nobody waits for the others there either.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_device::{Memory, Row, size_text};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::Lsa;
use super::exchange::{Offer, Purpose, Share, offer};
use crate::bootstrap::Tag;
use crate::record;
use crate::transport::bytes_of;

/// The time that handing one message to a rank may take.
const TELL: Duration = Duration::from_secs(2);

/// The messages about a buffer, which its rank knows by a number.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    /// From its rank: it can be mapped.
    Offer(u64, Offer),
    /// To its rank: the sender takes its descriptors now.
    Wanted(u64),
    /// From its rank: so many descriptors were passed.
    Sent(u64, u32),
    /// To its rank: this is where the sender finds it.
    Mapped(u64, u64),
    /// To its rank: the sender cannot map it, and why.
    Refused(u64, String),
    /// From its rank: it is taken back; collectives from this number on do not use it.
    TakenBack(u64, u64),
}

/// The registered buffers of a communicator that other processes map, or that this one maps for others.
#[derive(Default)]
pub struct RegisteredBuffers {
    table: Mutex<Table>,
    /// Calls are chosen as if their buffers were registered, on all ranks from the same call on.
    are_used: AtomicBool,
    /// Some buffer was mapped here for another rank, or by another rank for this one.
    are_mapped: AtomicBool,
}

#[derive(Default)]
struct Table {
    own: Vec<Own>,
    /// The buffers of other ranks, by the rank and its number for the buffer.
    mapped: FxHashMap<(u32, u64), Memory>,
    /// Those that this rank has not mapped yet, in the order in which they were offered. The descriptors of
    /// the first one are on their way if `is_asked`.
    offers: VecDeque<((u32, u64), Offer)>,
    is_asked: bool,
    /// The buffers that this rank has offered so far.
    offered: u64,
}

/// A buffer of this rank.
struct Own {
    number: u64,
    addr: u64,
    bytes: u64,
    /// By rank of the team: the address at which it finds the buffer.
    places: Vec<Option<u64>>,
    /// These addresses as kernels read them, once all are known.
    numbers: Option<Memory>,
}

impl Own {
    fn holds(&self, addr: u64, bytes: u64) -> bool {
        addr.checked_sub(self.addr).is_some_and(|at| at <= self.bytes && bytes <= self.bytes - at)
    }
}

impl Table {
    fn own(&mut self, number: u64) -> Option<&mut Own> {
        self.own.iter_mut().find(|own| own.number == number)
    }

    /// Takes the buffer out whose descriptors are on their way, if it is this one.
    fn asked(&mut self, of: (u32, u64)) -> Option<Offer> {
        let is_this = self.is_asked && self.offers.front().is_some_and(|(offered, _)| *offered == of);
        self.is_asked &= !is_this;
        if is_this { self.offers.pop_front().map(|(_, offer)| offer) } else { None }
    }
}

impl RegisteredBuffers {
    /// The address of the numbers by which other ranks find these bytes, if all have mapped a buffer that
    /// holds them.
    pub fn seen(&self, addr: u64, bytes: u64) -> Option<u64> {
        let table = self.table();
        let own = table.own.iter().filter(|own| own.holds(addr, bytes));
        own.filter_map(|own| own.numbers.as_ref()).map(|numbers| numbers.addr).next()
    }

    /// The address at which a rank of the team finds these bytes, if it has mapped a buffer that holds them.
    pub fn address_seen_by(&self, team_rank: u32, addr: u64, bytes: u64) -> Option<u64> {
        let table = self.table();
        let own = table.own.iter().filter(|own| own.holds(addr, bytes));
        own.filter_map(|own| Some(own.places.get(team_rank as usize).copied()?? + (addr - own.addr))).next()
    }

    /// Device memory that this rank allocated for them.
    pub fn bytes(&self) -> u64 {
        self.table().own.iter().filter_map(|own| own.numbers.as_ref()).map(|numbers| numbers.bytes).sum()
    }

    /// Takes all memory out: it lives as long as the answer.
    pub fn take(&self) -> impl Send + use<> {
        let mut table = self.table();
        (std::mem::take(&mut table.own), std::mem::take(&mut table.mapped))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lsa {
    /// True from the moment on at which calls are chosen as if their buffers lay in windows or were
    /// registered: the same on all ranks at each collective.
    pub fn calls_reach_buffers(&self) -> bool {
        self.has_lent_windows() || self.registered.are_used.load(Ordering::Acquire)
    }

    /// Calls are chosen so from now on: ranks have agreed on this collective. False if they were before.
    pub fn use_registered(&self) -> bool {
        !self.registered.are_used.swap(true, Ordering::AcqRel)
    }

    /// True once any registered buffer was mapped, so that messages may go straight to where they belong.
    /// Ends need not agree on it.
    pub fn maps_registered(&self) -> bool {
        self.registered.are_mapped.load(Ordering::Acquire)
    }

    /// The reason why this rank would gain nothing from it, if so.
    pub fn why_not_registered(&self) -> Option<&'static str> {
        if self.registered.are_used.load(Ordering::Acquire) {
            return Some("it uses registered buffers already");
        }
        let has_some = self.registered.table().own.iter().any(|own| own.numbers.is_some());
        (!has_some).then_some("it has no registered buffer that all ranks of its host have mapped")
    }

    /// Offers a buffer that this rank registers to the others of its host. Does not wait for them.
    pub fn lend_registered(&self, (addr, bytes): (u64, u64)) {
        if !self.lends.registered {
            return;
        }
        if let Err(error) = self.offer_registered((addr, bytes)) {
            self.tell_why_staged(bytes, &error);
        }
    }

    fn offer_registered(&self, (addr, bytes): (u64, u64)) -> Result<()> {
        let share = Share::Pieces(self.maps()?.pieces(addr, bytes)?);
        let (offer, _) = offer(Purpose::Registered, (addr, bytes), Ok(Some(share)));
        let offer = offer.map_err(Error::invalid_usage)?;
        let mut places = vec![None; self.team.ranks() as usize];
        places[self.team.rank as usize] = Some(addr);
        let number = {
            let mut table = self.registered.table();
            table.offered += 1;
            let number = table.offered;
            table.own.push(Own { number, addr, bytes, places, numbers: None });
            number
        };
        for peer in self.team.others().map(|peer| self.team.first + peer) {
            self.send(peer, &Message::Offer(number, offer.clone()))?;
        }
        Ok(())
    }

    /// Takes a buffer back that this rank has registered. It has begun so many collectives, which may use it.
    pub fn take_back_registered(&self, (addr, bytes): (u64, u64), begun: u64) {
        let own = {
            let mut table = self.registered.table();
            let at = table.own.iter().position(|own| (own.addr, own.bytes) == (addr, bytes));
            at.map(|at| table.own.swap_remove(at))
        };
        let Some(Own { number, numbers, .. }) = own else { return };
        if let Some(numbers) = numbers {
            self.retired.keep(0, numbers);
        }
        for peer in self.team.others().map(|peer| self.team.first + peer) {
            if !self.bootstrap.has_left(peer)
                && let Err(error) = self.send(peer, &Message::TakenBack(number, begun))
            {
                log::info(Subsys::Reg, || format!("rank {}: {error}", self.bootstrap.rank()));
            }
        }
    }

    /// Takes what other ranks say about such buffers, and answers. True if a buffer of this rank is one that
    /// all have mapped since.
    pub fn serve_registered(&self) -> bool {
        let mut has_more = false;
        while let Some((from, bytes)) = self.bootstrap.take_any(Tag::Registered.word()) {
            let Some(message) = record::decode(&bytes) else {
                log::warn(&format!(
                    "rank {}: rank {from} sent a malformed message about a registered buffer",
                    self.bootstrap.rank()
                ));
                continue;
            };
            match self.hear(from, message) {
                Ok(is_reached) => has_more |= is_reached,
                Err(error) => log::info(Subsys::Reg, || {
                    format!(
                        "rank {}: about a buffer that rank {from} registered: {error}",
                        self.bootstrap.rank()
                    )
                }),
            }
        }
        if let Err(error) = self.ask_next() {
            log::info(Subsys::Reg, || format!("rank {}: {error}", self.bootstrap.rank()));
        }
        has_more
    }

    /// True if the message makes a buffer of this rank one that all have mapped.
    fn hear(&self, from: u32, message: Message) -> Result<bool> {
        let team_rank = from.checked_sub(self.team.first).filter(|rank| *rank < self.team.ranks());
        let Some(team_rank) = team_rank else {
            return Err(Error::remote("it does not share memory with this rank"));
        };
        match message {
            Message::Offer(number, _) if !self.lends.registered => {
                let why = "it maps no registered buffers (NCCL_LOCAL_REGISTER=0, NCCL_P2P_DIRECT_DISABLE=1, \
                           or not all ranks are processes of one host)";
                self.send(from, &Message::Refused(number, why.to_owned())).map(|()| false)
            }
            Message::Offer(number, offer) => {
                self.registered.table().offers.push_back(((from, number), offer));
                Ok(false)
            }
            Message::Wanted(number) => self.pass_descriptors(from, number).map(|()| false),
            Message::Sent(number, count) => self.answer((from, number), count).map(|()| false),
            Message::Mapped(number, place) => self.reached(team_rank, number, place),
            Message::Refused(number, why) => {
                if let Some(own) = self.registered.table().own(number) {
                    self.tell_why_staged(own.bytes, &Error::remote(why).context(format!("rank {from}")));
                }
                Ok(false)
            }
            Message::TakenBack(number, begun) => {
                let mut table = self.registered.table();
                // If its descriptors are on their way, they are dropped when they come.
                table.asked((from, number));
                table.offers.retain(|(of, _)| *of != (from, number));
                let memory = table.mapped.remove(&(from, number));
                drop(table);
                if let Some(memory) = memory {
                    self.retired.keep(begun, memory);
                }
                Ok(false)
            }
        }
    }

    /// Asks for the descriptors of the next buffer that other ranks offer, if no others are on their way.
    fn ask_next(&self) -> Result<()> {
        let next = {
            let mut table = self.registered.table();
            if table.is_asked
                && table.offers.front().is_some_and(|((from, _), _)| self.bootstrap.has_left(*from))
            {
                table.is_asked = false;
            }
            table.offers.retain(|((from, _), _)| !self.bootstrap.has_left(*from));
            let next = table.offers.front().map(|(of, _)| *of).filter(|_| !table.is_asked);
            table.is_asked |= next.is_some();
            next
        };
        next.map_or(Ok(()), |(from, number)| self.send(from, &Message::Wanted(number)))
    }

    /// Passes the descriptors of a buffer of this rank to another one. They are made for it, and closed at
    /// once: a program may register more pieces than it may have files open.
    fn pass_descriptors(&self, to: u32, number: u64) -> Result<()> {
        let buffer = self.registered.table().own(number).map(|own| (own.addr, own.bytes));
        let Some((addr, bytes)) = buffer else { return Ok(()) };
        let (mut count, mut outcome) = (0, Ok(()));
        match self.maps()?.pieces(addr, bytes) {
            Ok(pieces) => {
                for (_, descriptor) in pieces.pieces {
                    outcome = self.bootstrap.send_fd(to, lane(number), descriptor.as_fd(), &tell());
                    if outcome.is_err() {
                        break;
                    }
                    count += 1;
                }
            }
            Err(error) => outcome = Err(error),
        }
        // Also if they are too few: the other one waits for this.
        self.send(to, &Message::Sent(number, count))?;
        outcome
    }

    /// Maps a buffer of another rank, whose descriptors have come, and tells it how that went.
    fn answer(&self, (from, number): (u32, u64), count: u32) -> Result<()> {
        let take = |_| self.bootstrap.recv_fd(from, lane(number), &tell());
        let descriptors = (0..count).map(take).collect::<Result<Vec<OwnedFd>>>();
        let Some(offer) = self.registered.table().asked((from, number)) else { return Ok(()) };
        let mapped = descriptors.and_then(|descriptors| self.map_registered(&offer, &descriptors));
        let answer = match mapped {
            Ok((memory, place)) => {
                self.registered.table().mapped.insert((from, number), memory);
                self.registered.are_mapped.store(true, Ordering::Release);
                Message::Mapped(number, place)
            }
            Err(error) => Message::Refused(number, error.to_string()),
        };
        self.send(from, &answer)
    }

    /// The memory of a buffer of another rank, mapped here, and the place of the buffer.
    fn map_registered(&self, offer: &Offer, descriptors: &[OwnedFd]) -> Result<(Memory, u64)> {
        let length = offer.pieces.iter().try_fold(0u64, |sum, length| sum.checked_add(*length));
        let is_whole = |length: &u64| offer.before < *length && offer.pieces.len() == descriptors.len();
        let length = length.filter(is_whole).ok_or_else(|| Error::remote("it offers no memory"))?;
        let pieces = offer.pieces.iter().copied().zip(descriptors.iter().map(AsFd::as_fd));
        let row = Row { at: 0, pieces: pieces.collect() };
        let memory = self.maps()?.lay_out(length, &[row])?;
        let place = memory.addr + offer.before;
        Ok((memory, place))
    }

    /// Notes where a rank of the team finds a buffer of this one. True if that was the last one.
    fn reached(&self, team_rank: u32, number: u64, place: u64) -> Result<bool> {
        let mut table = self.registered.table();
        let Some(own) = table.own(number).filter(|own| own.numbers.is_none()) else { return Ok(false) };
        own.places[team_rank as usize] = Some(place);
        self.registered.are_mapped.store(true, Ordering::Release);
        let Some(places) = own.places.iter().copied().collect::<Option<Vec<u64>>>() else { return Ok(false) };
        let (addr, bytes) = (own.addr, own.bytes);
        // Calls look into the table meanwhile.
        drop(table);
        let shifts: Vec<u64> = places.iter().map(|there| there.wrapping_sub(addr)).collect();
        let numbers = self.device.alloc(size_of_val(&*shifts) as u64)?;
        self.device.upload(numbers.addr, bytes_of(&shifts))?;
        let mut table = self.registered.table();
        let Some(own) = table.own(number) else { return Ok(false) };
        own.numbers = Some(numbers);
        log::info(Subsys::Reg, || {
            let (rank, ranks) = (self.bootstrap.rank(), self.team.ranks());
            format!("rank {rank}: {} that it has registered are mapped by {ranks} ranks", size_text(bytes))
        });
        Ok(true)
    }

    fn send(&self, peer: u32, message: &Message) -> Result<()> {
        self.bootstrap.send(peer, Tag::Registered.word(), &record::encode(message), &tell())
    }

    fn tell_why_staged(&self, bytes: u64, why: &Error) {
        log::info(Subsys::Reg, || {
            format!(
                "rank {}: {} that it has registered are staged within the host: {why}",
                self.bootstrap.rank(),
                size_text(bytes)
            )
        });
    }
}

/// The tag of the descriptors of a buffer.
fn lane(number: u64) -> u64 {
    Tag::Registered.on_lane(number as u32)
}

/// The wait for a message to be taken.
fn tell() -> Wait {
    Wait::new(AbortFlag::new(), Some(TELL))
}

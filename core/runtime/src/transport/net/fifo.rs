//! Memory between the device and the proxy: slots, and how each tells the other that they are full or empty.
//!
//! FIFOs of kernels count: tails and credits only grow, and a page says how many bytes each slot has. LL's
//! have no tails: their words carry flags (`flags.rs`). Slots of copy engines
//! ([`hawser_plan::executor::copy_engine::inter_node`]) are FIFOs of one slot with two words, since a stream
//! can only wait for a value and write one: the words are turned into the same counts here, so links know one
//! kind of FIFO.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hawser_base::error::Result;
use hawser_kernels_abi::{Conn, FAR_WORDS, TAG_SHIFT};
use hawser_plan::Protocol;
use hawser_plan::executor::copy_engine::inter_node::{STRAIGHT, STRAIGHT_AT, TOLD, WORDS};
use hawser_plan::layout::HeapLayout;
use hawser_plugin::net::{MemoryKinds, Region, Registration, Segment};

use super::arena::Piece;
use super::checksum::{Checksum, RECORD};
use super::flags::Flags;

/// Offsets in the page in front of the slots: one counter per 64 bytes and protocol, then the bytes of slots.
const TAILS: u64 = 0;
const CREDITS: u64 = 256;
const SIZES: u64 = 512;
/// Bytes of that page.
pub const PAGE: u64 = 4096;

/// Bytes in front of Simple's slots: the page, and LL's FIFO where there is one.
pub fn page_bytes(layout: &HeapLayout) -> u64 {
    let slots = u64::from(layout.slot_stride[Protocol::Ll as usize]) * u64::from(layout.depth);
    if slots > 0 { FAR_WORDS + slots } else { PAGE }
}

/// Most slots of a FIFO: what the page has room to tell the bytes of.
pub const MOST_SLOTS: u32 = ((PAGE - SIZES) / 4) as u32;

/// Memory of one FIFO.
pub struct Fifo {
    piece: Piece,
    depth: u64,
    stride: u64,
    slot_bytes: usize,
    /// Bytes in front of each slot, for records of checksums; none without them.
    lead: u64,
    signals: Signals,
}

/// The signs by which the device and the proxy know what is full and what is empty.
enum Signals {
    /// Tails and credits of protocol Simple.
    Counters,
    /// Flags in LL's words, and credits.
    Flags(Flags),
    /// Words that streams wait for.
    Words(Words),
}

/// The use of a slot with words so far.
struct Words {
    /// Offset of its words in the page.
    at: u64,
    /// At the sender: times that it was sent. At the receiver: times that it was emptied, or asked for.
    passed: AtomicU64,
    /// At the receiver: times that it was filled.
    filled: AtomicU64,
    /// A receiver whose stream asks for every message.
    asks: bool,
    /// Address and bytes of where the message lands that was asked for last; 0 bytes: in the slot.
    place: [AtomicU64; 2],
}

/// The end of a slot with words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordsOf {
    /// It sends.
    Sender,
    /// It receives whenever the slot is empty.
    Receiver,
    /// It receives when the stream asks for it.
    AskingReceiver,
}

impl Fifo {
    /// The FIFO of protocol Simple in a piece of memory.
    pub fn new(piece: Piece, layout: &HeapLayout) -> Self {
        let p = Protocol::Simple as usize;
        Self {
            piece,
            depth: u64::from(layout.depth),
            stride: u64::from(layout.slot_stride[p]),
            slot_bytes: layout.slot_bytes[p] as usize,
            lead: u64::from(layout.slot_lead),
            signals: Signals::Counters,
        }
    }

    /// The FIFO of protocol LL in the same piece. Its slots are in host memory, where flags can be seen.
    pub fn of_ll(piece: Piece, layout: &HeapLayout) -> Self {
        let stride = u64::from(layout.slot_stride[Protocol::Ll as usize]);
        let depth = u64::from(layout.depth);
        let flags = Flags::new(piece.page, depth, stride);
        let piece = Piece { slots_for_net: piece.page as u64 + FAR_WORDS, in_device: false, ..piece };
        let slot_bytes = stride as usize;
        Self { piece, depth, stride, slot_bytes, lead: 0, signals: Signals::Flags(flags) }
    }

    /// Slot `slot` of a piece of slots with words, with `lead` bytes in front of each. The sender's is free
    /// at first.
    pub fn of_words(piece: Piece, slot: u32, (bytes, lead): (u64, u64), of: WordsOf) -> Self {
        let stride = bytes + lead;
        let slots_for_net = piece.slots_for_net + u64::from(slot) * stride;
        let at = u64::from(slot) * WORDS;
        let asks = of == WordsOf::AskingReceiver;
        let words = Words {
            at,
            passed: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            asks,
            place: Default::default(),
        };
        let piece = Piece { slots_for_net, ..piece };
        let signals = Signals::Words(words);
        let fifo = Self { piece, depth: 1, stride, slot_bytes: bytes as usize, lead, signals };
        if of == WordsOf::Sender {
            fifo.set_ready(at);
        }
        fifo
    }

    /// Enters the FIFOs of a piece of memory into the device's table.
    pub fn enter(piece: &Piece, conn: &mut Conn, send: bool, layout: &HeapLayout) {
        // Devices add the offset of Simple, and find LL's slots behind the tails.
        let offset = u64::from(layout.fifo_offset[Protocol::Simple as usize]);
        let fifo = (piece.slots + u64::from(layout.slot_lead)).wrapping_sub(offset);
        let (tail, credit) = (piece.page_addr + TAILS, piece.page_addr + CREDITS);
        let sizes = piece.page_addr + SIZES;
        if send {
            (conn.send_fifo, conn.send_tail, conn.send_credit) = (fifo, tail, credit);
            conn.send_bytes = sizes;
        } else {
            (conn.recv_fifo, conn.recv_tail, conn.recv_credit) = (fifo, tail, credit);
            // It says that the peer is on another host.
            if conn.send_bytes == 0 {
                conn.send_bytes = sizes;
            }
        }
    }

    /// Slots that the device has filled, of which the caller has seen `seen` already.
    pub fn filled(&self, seen: u64) -> u64 {
        match &self.signals {
            Signals::Counters => self.counter(TAILS).load(Ordering::Acquire),
            Signals::Flags(flags) => flags.filled(seen),
            // The word stays until the slot has been sent.
            Signals::Words(words) => {
                let is_full = self.word(words.at + TOLD).load(Ordering::Acquire) != 0;
                words.passed.load(Ordering::Relaxed) + u64::from(is_full)
            }
        }
    }

    /// Slots into which messages may be received, of those that there were.
    pub fn receivable(&self) -> u64 {
        let Signals::Words(words) = &self.signals else {
            return self.counter(CREDITS).load(Ordering::Acquire) + self.depth;
        };
        let told = self.word(words.at + TOLD);
        let value = told.load(Ordering::Acquire);
        if value != 0 {
            if words.asks {
                let [addr, bytes] =
                    self.told_place(words, value).map_or([0; 2], |(addr, bytes)| [addr, bytes]);
                words.place[0].store(addr, Ordering::Relaxed);
                words.place[1].store(bytes, Ordering::Relaxed);
            }
            let passed = if words.asks { &words.passed } else { &words.filled };
            let passed = passed.load(Ordering::Relaxed) + u64::from(words.asks);
            told.store(0, Ordering::Relaxed);
            words.passed.store(passed, Ordering::Relaxed);
        }
        words.passed.load(Ordering::Relaxed) + u64::from(!words.asks) * self.depth
    }

    /// True if the stream asks for every message that is received.
    pub fn asks(&self) -> bool {
        matches!(&self.signals, Signals::Words(words) if words.asks)
    }

    /// Address and bytes in a user's buffer of the message that is to be sent now; None if it lies in its
    /// slot.
    pub fn place_to_send(&self) -> Option<(u64, usize)> {
        let Signals::Words(words) = &self.signals else { return None };
        let (addr, bytes) = self.told_place(words, self.word(words.at + TOLD).load(Ordering::Acquire))?;
        Some((addr, bytes as usize))
    }

    /// Address and bytes in a user's buffer of the message that was asked for last; None if it goes to its
    /// slot.
    pub fn place_to_fill(&self) -> Option<(u64, usize)> {
        let Signals::Words(words) = &self.signals else { return None };
        let [addr, bytes] = [0, 1].map(|half: usize| words.place[half].load(Ordering::Relaxed));
        (bytes > 0).then_some((addr, bytes as usize))
    }

    /// The place in a user's buffer that a value of the word `told` means.
    fn told_place(&self, words: &Words, value: u32) -> Option<(u64, u64)> {
        if value & STRAIGHT == 0 {
            return None;
        }
        let half = |at| u64::from(self.word(words.at + TOLD + STRAIGHT_AT + at).load(Ordering::Relaxed));
        Some((half(0) | half(4) << 32, u64::from(value & !STRAIGHT).saturating_sub(1)))
    }

    /// The first `done` slots may be written again by the device.
    pub fn publish_credit(&self, done: u64) {
        let Signals::Words(words) = &self.signals else {
            return self.counter(CREDITS).store(done, Ordering::Release);
        };
        self.word(words.at + TOLD).store(0, Ordering::Relaxed);
        words.passed.store(done, Ordering::Relaxed);
        self.set_ready(words.at);
    }

    /// The first `done` slots may be read by the device, which has seen it already where words carry flags.
    pub fn publish_tail(&self, done: u64) {
        match &self.signals {
            Signals::Counters => self.counter(TAILS).store(done, Ordering::Release),
            Signals::Flags(_) => {}
            Signals::Words(words) => {
                words.filled.store(done, Ordering::Relaxed);
                self.set_ready(words.at);
            }
        }
    }

    /// Number of slots.
    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// True if the slots lie in device memory.
    pub fn in_device(&self) -> bool {
        self.piece.in_device
    }

    /// Address of a slot for the plugin.
    pub fn slot_address(&self, number: u64) -> u64 {
        self.piece.slots_for_net + self.lead + number % self.depth * self.stride
    }

    /// The bytes that the device put into a slot, and the tag of the work. Only where tails are counted.
    pub fn told(&self, number: u64) -> u32 {
        self.word(SIZES + 4 * (number % self.depth)).load(Ordering::Relaxed)
    }

    /// The bytes that the device put into a slot.
    pub fn bytes_of(&self, number: u64) -> usize {
        match &self.signals {
            Signals::Counters => (self.told(number) & ((1 << TAG_SHIFT) - 1)) as usize,
            Signals::Flags(flags) => flags.bytes_of(number),
            Signals::Words(words) => {
                (self.word(words.at + TOLD).load(Ordering::Acquire) & !STRAIGHT).saturating_sub(1) as usize
            }
        }
    }

    /// Bytes of a record in front of the data of a slot; 0 without checksums.
    pub fn record_bytes(&self) -> usize {
        if self.lead > 0 { RECORD } else { 0 }
    }

    /// A slot as the plugin knows it: its record, if slots have one, and `bytes` bytes of data.
    pub fn slot(&self, number: u64, bytes: usize, registration: Registration, tag: u32) -> Segment {
        let record = self.record_bytes();
        let addr = self.slot_address(number) - record as u64;
        Segment { addr, bytes: record + bytes, registration, tag: tag as i32, profile: 0 }
    }

    /// Writes the record of a slot that the device has filled with `bytes` bytes.
    pub fn write_record(&self, checksum: &Checksum, number: u64, bytes: usize) {
        let slot = self.slot_address(number) as *mut u8;
        // SAFETY: slots with records lie in host memory (`Net::start`) and have `lead` bytes in front; the
        // device has filled this one and leaves it alone until it gets the credit, and `bytes` is at most the
        // bytes of a slot (`SendLink::carry`).
        unsafe {
            let record = checksum.record(number, std::slice::from_raw_parts(slot, bytes));
            slot.sub(RECORD).cast::<[u8; RECORD]>().write(record);
        }
    }

    /// Compares a slot that the plugin has filled with its record.
    ///
    /// # Errors
    /// As [`Checksum::check`].
    pub fn check_record(&self, checksum: &Checksum, number: u64, rail: &str) -> Result<()> {
        let slot = self.slot_address(number) as *const u8;
        // SAFETY: as in `write_record`; the plugin is done with the slot, and the device reads it only after
        // the tail was published.
        unsafe {
            let record = slot.sub(RECORD).cast::<[u8; RECORD]>().read();
            checksum.check(number, &record, std::slice::from_raw_parts(slot, self.slot_bytes), rail)
        }
    }

    /// All slots, to be registered.
    pub fn region(&self) -> Region {
        let kind = if self.piece.in_device { MemoryKinds::CUDA } else { MemoryKinds::HOST };
        let bytes = (self.depth * self.stride) as usize;
        Region { addr: self.piece.slots_for_net, bytes, kind, dmabuf: None }
    }

    /// The device may use the slot whose words are there.
    fn set_ready(&self, at: u64) {
        self.word(at).store(1, Ordering::Release);
    }

    fn counter(&self, at: u64) -> &AtomicU64 {
        let protocol = if let Signals::Flags(_) = self.signals { Protocol::Ll } else { Protocol::Simple };
        let at = self.piece.page as u64 + at + 64 * protocol as u64;
        // SAFETY: the page is zeroed, 64-byte aligned host memory that lives as long as `self`; only atomics
        // touch it.
        unsafe { &*(at as *const AtomicU64) }
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: as in `counter`; `at` is a multiple of 4 within the page: there are at most `MOST_SLOTS`
        // sizes, and few slots have words.
        unsafe { &*((self.piece.page as u64 + at) as *const AtomicU32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::net::arena::Arena;
    use hawser_device::host::HostDevice;
    use hawser_plan::executor::copy_engine::What;
    use hawser_plan::executor::copy_engine::inter_node::End;

    /// The words that a stream sets at both ends of a slot are counts to a link.
    #[test]
    fn words_are_turned_into_counts() {
        let device = HostDevice::beside().unwrap();
        let mut arena = Arena::new(&device, (PAGE, 3 * 8192), false).unwrap();
        let (out, into) = (arena.take(&device).unwrap(), arena.take(&device).unwrap());
        let (send, recv) = (
            Fifo::of_words(out, 2, (8192, 0), WordsOf::Sender),
            Fifo::of_words(into, 2, (8192, 0), WordsOf::Receiver),
        );
        // SAFETY: the pieces live as long as the arena.
        let word = |piece: &Piece, at: u64| unsafe { &*(piece.page.add(at as usize).cast::<AtomicU32>()) };
        let take = |piece: &Piece| word(piece, 2 * WORDS).swap(0, Ordering::AcqRel);
        let tell = |piece: &Piece, value: u32| word(piece, 2 * WORDS + TOLD).store(value, Ordering::Release);
        assert_eq!(send.slot_address(7), out.slots_for_net + 2 * 8192);
        assert_eq!((send.filled(0), recv.receivable(), recv.region().bytes), (0, 1, 8192));
        for round in 0..5u64 {
            assert_eq!(take(&out), 1, "free");
            tell(&out, 1 + 4096);
            assert_eq!((send.filled(round), send.bytes_of(round)), (round + 1, 4096));
            assert_eq!(send.filled(round), round + 1, "told once however often one looks");
            send.publish_credit(round + 1);
            assert_eq!(send.filled(round), round + 1);
            assert_eq!(take(&into), 0, "nothing has come");
            recv.publish_tail(round + 1);
            assert_eq!((recv.receivable(), take(&into)), (round + 1, 1));
            tell(&into, 1);
            assert_eq!((recv.receivable(), recv.receivable()), (round + 2, round + 2));
        }
    }

    /// A receiver that asks has no room before, and hears where each message is to land.
    #[test]
    fn messages_are_asked_for_and_sent_from_and_to_users_buffers() {
        let device = HostDevice::beside().unwrap();
        let mut arena = Arena::new(&device, (PAGE, 3 * 8192), false).unwrap();
        let (out, into) = (arena.take(&device).unwrap(), arena.take(&device).unwrap());
        let send = Fifo::of_words(out, 0, (8192, 0), WordsOf::Sender);
        let recv = Fifo::of_words(into, 0, (8192, 0), WordsOf::AskingReceiver);
        let end = |piece: &Piece| End { words: piece.page as u64, slots: piece.slots, stride: 8192 };
        let obey = |what: What| {
            let What::Tell { addr, value } = what else { panic!("{what:?}") };
            // SAFETY: a word of a page that lives as long as the arena.
            unsafe { &*(addr as *const AtomicU32) }.store(value, Ordering::Release);
        };
        let place = (0x7fff_1234_5678_9abc, 4096);
        for round in 0..4 {
            assert_eq!(recv.receivable(), round, "nothing is asked for");
            let lands = round % 2 == 1;
            end(&into).ask(0, lands.then_some(place)).into_iter().for_each(obey);
            assert_eq!((recv.receivable(), recv.receivable()), (round + 1, round + 1));
            assert_eq!(recv.place_to_fill(), lands.then_some((place.0, 4096)));
            recv.publish_tail(round + 1);
            assert_eq!(send.place_to_send(), None);
            end(&out).straight(0, place.0, place.1).into_iter().for_each(obey);
            assert_eq!((send.filled(round), send.bytes_of(round)), (round + 1, 4096));
            assert_eq!(send.place_to_send(), Some((place.0, 4096)));
            send.publish_credit(round + 1);
            assert_eq!((send.filled(round + 1), send.place_to_send()), (round + 1, None));
        }
    }
}

//! The two ends of a FIFO as the interpreter of the host device uses them: counters of slots that one side
//! fills and the other takes (`hawser_kernels_abi::Conn` has the rules).
//!
//! The tests of `loom` try every order in which a sender and a receiver can come (CONTRIBUTING.md, Models).

use std::sync::atomic::Ordering;

use hawser_kernels_abi::Conn;
use hawser_plan::Protocol;

use crate::model::{AtomicU32, AtomicU64};

/// One FIFO pair of (lane, peer) as the interpreter uses it (protocol Simple).
pub struct Fifo {
    /// The addresses of both ends.
    pub conn: Conn,
    /// The place of the protocol's slots in a FIFO's memory.
    pub offset: u64,
    /// Bytes from slot to slot.
    pub stride: u64,
    /// The number of slots.
    pub depth: u64,
}

impl Fifo {
    /// The end at which slots of the peer come.
    pub fn receiver(&self) -> Receiver<'_> {
        Receiver {
            tail: word(self.conn.recv_tail, 64),
            taken: word(self.conn.counters + 24, 8),
            peer_credit: word(self.conn.recv_credit, 64),
        }
    }

    /// The end at which slots go to the peer.
    pub fn sender(&self) -> Sender<'_> {
        Sender {
            credit: word(self.conn.send_credit, 64),
            sent: word(self.conn.counters, 8),
            peer_tail: word(self.conn.send_tail, 64),
            depth: self.depth,
        }
    }

    /// The address of the slot that is to be taken next.
    pub fn slot_to_take(&self) -> u64 {
        self.conn.recv_fifo + self.offset + self.receiver().next() % self.depth * self.stride
    }

    /// The address of the slot that is to be filled next.
    pub fn slot_to_fill(&self) -> u64 {
        self.conn.send_fifo + self.offset + self.sender().next() % self.depth * self.stride
    }

    /// Hands the slot that was filled to the peer, and tells how many bytes it holds if anybody asks.
    pub fn hand_over(&self, bytes: u32) {
        let sender = self.sender();
        let at = self.conn.send_bytes + 4 * (sender.next() % self.depth);
        // SAFETY: the transport gave `depth` 4-byte words there, or 0; they are touched as atomics only.
        let size = (self.conn.send_bytes != 0).then(|| unsafe { &*(at as *const AtomicU32) });
        sender.hand_over(size, bytes);
    }
}

/// The counter of protocol Simple in a table with one counter per `spacing` bytes.
fn word<'a>(base: u64, spacing: u64) -> &'a AtomicU64 {
    // SAFETY: the transport filled the table with addresses of live, 8-byte aligned counters of mapped heaps;
    // they are only touched as atomics, here and in other processes.
    unsafe { &*((base + spacing * Protocol::Simple as u64) as *const AtomicU64) }
}

/// The counters of the end that takes slots.
pub struct Receiver<'a> {
    tail: &'a AtomicU64,
    taken: &'a AtomicU64,
    peer_credit: &'a AtomicU64,
}

impl Receiver<'_> {
    /// The number of the slot that is to be taken next.
    fn next(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// True if that slot has come: its bytes may be read.
    pub fn has_data(&self) -> bool {
        self.tail.load(Ordering::Acquire) > self.next()
    }

    /// Gives the slot back to the peer, once its bytes have been read.
    pub fn give_back(&self) {
        let taken = self.next() + 1;
        self.taken.store(taken, Ordering::Relaxed);
        self.peer_credit.store(taken, Ordering::Release);
    }
}

/// The counters of the end that fills slots.
pub struct Sender<'a> {
    credit: &'a AtomicU64,
    sent: &'a AtomicU64,
    peer_tail: &'a AtomicU64,
    depth: u64,
}

impl Sender<'_> {
    /// The number of the slot that is to be filled next.
    fn next(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// True if that slot is free: it may be written.
    pub fn has_room(&self) -> bool {
        self.next() < self.credit.load(Ordering::Acquire) + self.depth
    }

    /// Hands the slot to the peer, once its bytes have been written; `size` is the word for their number.
    fn hand_over(&self, size: Option<&AtomicU32>, bytes: u32) {
        if let Some(size) = size {
            size.store(bytes, Ordering::Relaxed);
        }
        let sent = self.next() + 1;
        self.sent.store(sent, Ordering::Relaxed);
        self.peer_tail.store(sent, Ordering::Release);
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use crate::model::UnsafeCell;
    use loom::sync::Arc;

    const DEPTH: u64 = 2;
    /// Every slot is used again.
    const SLOTS: u64 = DEPTH + 1;

    /// A FIFO with the counters of both ends, and slots whose accesses loom watches.
    struct Both {
        tail: AtomicU64,
        taken: AtomicU64,
        credit: AtomicU64,
        sent: AtomicU64,
        slots: [UnsafeCell<u64>; DEPTH as usize],
        sizes: [AtomicU32; DEPTH as usize],
    }

    impl Both {
        fn new() -> Self {
            let zero = || AtomicU64::new(0);
            Both {
                tail: zero(),
                taken: zero(),
                credit: zero(),
                sent: zero(),
                slots: std::array::from_fn(|_| UnsafeCell::new(0)),
                sizes: std::array::from_fn(|_| AtomicU32::new(0)),
            }
        }

        fn receiver(&self) -> Receiver<'_> {
            Receiver { tail: &self.tail, taken: &self.taken, peer_credit: &self.credit }
        }

        fn sender(&self) -> Sender<'_> {
            Sender { credit: &self.credit, sent: &self.sent, peer_tail: &self.tail, depth: DEPTH }
        }
    }

    fn send_all(both: &Both) {
        let sender = both.sender();
        for number in 0..SLOTS {
            while !sender.has_room() {
                loom::thread::yield_now();
            }
            assert_eq!(sender.next(), number);
            let at = (number % DEPTH) as usize;
            // SAFETY: the slot is free; loom reports whoever reads it meanwhile.
            both.slots[at].with_mut(|slot| unsafe { *slot = 100 + number });
            sender.hand_over(Some(&both.sizes[at]), number as u32 + 1);
        }
    }

    /// Whatever the order: slots come in order with the bytes and the size that were put into them, and no
    /// slot is written while it is read.
    #[test]
    fn loom_slots_of_a_fifo_come_whole_and_in_order() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let both = Arc::new(Both::new());
            let theirs = both.clone();
            let sender = loom::thread::spawn(move || send_all(&theirs));
            let receiver = both.receiver();
            for number in 0..SLOTS {
                while !receiver.has_data() {
                    loom::thread::yield_now();
                }
                let at = (number % DEPTH) as usize;
                // SAFETY: the slot has come; loom reports whoever writes it meanwhile.
                both.slots[at].with(|slot| assert_eq!(unsafe { *slot }, 100 + number));
                assert_eq!(both.sizes[at].load(Ordering::Relaxed), number as u32 + 1);
                receiver.give_back();
            }
            sender.join().unwrap();
        });
    }
}

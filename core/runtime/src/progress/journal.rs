//! The journal of a rank: its last operations, and what it waits for, in words that other processes may
//! read while they are written.
//!
//! Words of a slot: the head (`Head`), then [`ENTRIES`] entries of 16 words each, of which the one of
//! operation `s` is number `s % ENTRIES`. The first word of an entry is the operation's sequence number; it
//! is 0 while the rest is being written, so a reader takes an entry only if that word was the same before
//! and after.

use hawser_base::readable_memory::{SLOT_WORDS, Slot};

use std::sync::atomic::{AtomicU64, Ordering, fence};

use hawser_plan::p2p::Message;
use hawser_plan::{Call, Collective};

use super::operation::{Awaited, KEPT_MESSAGES, OneMessage, Operation, Stage, Waits, What};

/// The number of operations that are kept.
pub const ENTRIES: usize = (SLOT_WORDS - HEAD_WORDS) / ENTRY_WORDS;

const HEAD_WORDS: usize = 64;
const ENTRY_WORDS: usize = 16;
const NAME_WORDS: usize = 8;
/// False in a build that shows what writing costs, by leaving it out (`bench/watching.c`).
const IS_WRITTEN: bool = !cfg!(feature = "unwatched");
/// The number of collectives that are counted.
pub const COLLECTIVES: usize = Collective::ALL.len();

/// The words of the head.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Head {
    /// 1 if the slot holds a journal.
    InUse = 0,
    CommId = 1,
    /// Rank, and the number of ranks above it.
    RankOfRanks = 2,
    /// Sequence number of the last operation that was called.
    Called = 3,
    /// The sequence number of the last operation that was submitted.
    Submitted = 4,
    /// The sequence number of the last operation that is known to be over.
    Done = 5,
    /// 1 if the end of an operation is noted at once; else somebody has to ask the GPU.
    IsExact = 6,
    /// The number of the operation that waits.
    WaitNumber = 7,
    /// Awaited's code, peer (24 bits), block (16) and step (16).
    WaitFor = 8,
    /// Milliseconds of the coarse clock.
    WaitSince = 9,
    /// Calls that are queued in an open group.
    Queued = 10,
    /// The time at which the first of them was queued, in milliseconds of the coarse clock.
    QueuedSince = 11,
    /// The number of collectives that were called.
    Collectives = 12,
    /// The rank in the job's first communicator.
    World = 13,
    /// 1 if `ncclCommFinalize` was called.
    Finalized = 14,
    /// The communicator's name, in eight words.
    Name = 16,
    /// The number of calls of each collective, by the number of its variant, in eight words.
    Counts = 24,
}

/// The words of an entry.
mod entry {
    pub const SEQUENCE: usize = 0;
    pub const NUMBER: usize = 1;
    pub const CALLED_AT: usize = 2;
    /// 1: collective, 2: messages; then the collective, the type and the reduction, a byte each; the root,
    /// or the number of messages, in the upper half.
    pub const KIND: usize = 3;
    pub const COUNT: usize = 4;
    /// Collectives: the time that the planner predicts, in nanoseconds; 0 before it has.
    pub const PREDICTED: usize = 5;
    /// Collectives: the number that the program gave the call; 0 for none.
    pub const TAG: usize = 6;
    /// Messages: length, peer (24 bits) and 1 for a send, from the lowest bit on 39, 24 and 1.
    pub const MESSAGES: usize = 5;
}

const _: () = assert!(entry::MESSAGES + KEPT_MESSAGES <= ENTRY_WORDS);

/// An entry: of known length, so that no place in it is checked when it is written.
type Entry = [AtomicU64; ENTRY_WORDS];

/// A rank among the ranks of a communicator.
#[derive(Clone, Copy)]
pub struct Place {
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The rank in the job's first communicator.
    pub world: u32,
}

/// The journal of a rank of a communicator.
pub struct Journal {
    slot: Slot,
    /// See [`Journal::new`].
    is_exact: bool,
    /// The time of the launch under way, in milliseconds of the coarse clock.
    launched_ms: AtomicU64,
}

impl Journal {
    /// An empty journal. `is_exact`: the end of operations will be noted ([`Journal::done`]).
    pub fn new(comm_id: u64, name: &str, place: Place, is_exact: bool) -> Self {
        let Place { rank, ranks, world } = place;
        let journal = Self { slot: Slot::new(), is_exact, launched_ms: AtomicU64::new(now_ms()) };
        let words = journal.slot.words();
        let mut bytes = [0; 8 * NAME_WORDS];
        let length = name.floor_char_boundary(bytes.len());
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        for (word, part) in words[Head::Name as usize..].iter().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(part);
            word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        journal.set(Head::CommId, comm_id);
        journal.set(Head::RankOfRanks, u64::from(rank) | u64::from(ranks) << 32);
        journal.set(Head::World, world.into());
        journal.set(Head::IsExact, u64::from(is_exact));
        journal.head(Head::InUse).store(1, Ordering::Release);
        journal
    }

    /// Notes that what is called from now on is called at this time of the coarse clock: the clock is read
    /// once for all communicators of a group.
    #[inline]
    pub fn launch_at(&self, now_ms: u64) {
        if !IS_WRITTEN {
            return;
        }
        self.launched_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Notes the call of a collective, with the number that the program gave it; its sequence number.
    #[inline]
    pub fn call(&self, number: u64, call: &Call, tag: u64) -> u64 {
        if !IS_WRITTEN {
            return 1;
        }
        let sequence = self.next();
        let entry = self.begin_entry(sequence);
        let What::Collective { collective, dtype, op, count, root } = What::of_call(call) else {
            return sequence;
        };
        let bytes = [1, collective, dtype, op];
        let kind = u64::from(u32::from_le_bytes(bytes)) | u64::from(root) << 32;
        entry[entry::KIND].store(kind, Ordering::Relaxed);
        entry[entry::COUNT].store(count, Ordering::Relaxed);
        entry[entry::PREDICTED].store(0, Ordering::Relaxed);
        entry[entry::TAG].store(tag, Ordering::Relaxed);
        self.end_entry(entry, sequence, number);
        self.set(Head::Collectives, number + 1);
        if let Some(count) = self.counters().get(usize::from(collective)) {
            add_alone(count, 1);
        }
        sequence
    }

    /// Notes the call of messages that run together; their sequence number.
    #[inline]
    pub fn call_messages(&self, number: u64, messages: &[Message]) -> u64 {
        if !IS_WRITTEN {
            return 1;
        }
        let sequence = self.next();
        let entry = self.begin_entry(sequence);
        entry[entry::KIND].store(2 | (messages.len() as u64) << 32, Ordering::Relaxed);
        for (word, message) in entry[entry::MESSAGES..].iter().zip(messages.iter().take(KEPT_MESSAGES)) {
            let bytes = message.bytes.min((1 << 39) - 1);
            let packed = bytes | u64::from(message.peer & 0xff_ffff) << 39 | u64::from(message.send) << 63;
            word.store(packed, Ordering::Relaxed);
        }
        self.end_entry(entry, sequence, number);
        sequence
    }

    /// Notes how long a collective should take, in nanoseconds, if no other has taken its place meanwhile.
    #[inline]
    pub fn planned(&self, sequence: u64, predicted_ns: u64) {
        if !IS_WRITTEN {
            return;
        }
        let entry = self.entry(sequence);
        if entry[entry::SEQUENCE].load(Ordering::Relaxed) == sequence {
            entry[entry::PREDICTED].store(predicted_ns, Ordering::Relaxed);
        }
    }

    /// Notes that an operation, and all before it, have been submitted.
    #[inline]
    pub fn submitted(&self, sequence: u64) {
        if !IS_WRITTEN {
            return;
        }
        let submitted = self.head(Head::Submitted);
        if submitted.load(Ordering::Relaxed) < sequence {
            submitted.store(sequence, Ordering::Relaxed);
        }
    }

    /// Notes that an operation, and all before it, are over.
    #[inline]
    pub fn done(&self, sequence: u64) {
        if !IS_WRITTEN {
            return;
        }
        let done = self.head(Head::Done);
        if !self.is_exact {
            // Whoever asks a GPU notes what is over as well.
            done.fetch_max(sequence, Ordering::Release);
        } else if done.load(Ordering::Relaxed) < sequence {
            // The thread that calls runs the operation too, and nobody else writes here.
            done.store(sequence, Ordering::Release);
        }
    }

    /// The sequence number of what was submitted last.
    pub fn last_submitted(&self) -> u64 {
        self.head(Head::Submitted).load(Ordering::Acquire)
    }

    /// The sequence number of what is known to be over.
    pub fn last_done(&self) -> u64 {
        self.head(Head::Done).load(Ordering::Acquire)
    }

    /// Notes what an operation waits for since now.
    pub fn waits(&self, number: u64, peer: u32, awaited: Awaited, (block, step): (u32, u32)) {
        let code = u64::from(awaited.code()) << 56 | u64::from(peer & 0xff_ffff) << 32;
        let place = u64::from(block.min(0xffff)) << 16 | u64::from(step.min(0xffff));
        let packed = code | place;
        let is_same = self.get(Head::WaitNumber) == number && self.get(Head::WaitFor) == packed;
        if !is_same {
            self.set(Head::WaitFor, 0);
            self.set(Head::WaitNumber, number);
            self.set(Head::WaitSince, now_ms());
            self.head(Head::WaitFor).store(packed, Ordering::Release);
        }
    }

    /// Notes a call that waits for the end of its group, whose first call was made at that time of the coarse
    /// clock.
    #[inline]
    pub fn queue(&self, since_ms: u64) {
        if !IS_WRITTEN {
            return;
        }
        if add_alone(self.head(Head::Queued), 1) == 1 {
            self.set(Head::QueuedSince, since_ms);
        }
    }

    /// Notes that so many queued calls have been taken up, or dropped.
    #[inline]
    pub fn unqueue(&self, count: u64) {
        if !IS_WRITTEN {
            return;
        }
        let queued = self.get(Head::Queued);
        self.set(Head::Queued, queued.saturating_sub(count));
    }

    /// Notes that the communicator was finalized.
    pub fn finalize(&self) {
        self.set(Head::Finalized, 1);
    }

    /// True if the communicator was finalized.
    pub fn is_finalized(&self) -> bool {
        self.get(Head::Finalized) == 1
    }

    /// The number of calls of each collective, by the number of its variant.
    pub fn counts(&self) -> [u64; COLLECTIVES] {
        let counters = self.counters();
        std::array::from_fn(|at| counters[at].load(Ordering::Relaxed))
    }

    fn counters(&self) -> &[AtomicU64] {
        &self.slot.words()[Head::Counts as usize..][..COLLECTIVES]
    }

    /// Reads what the journal says now.
    pub fn view(&self) -> Option<View> {
        let copy = || self.slot.words().each_ref().map(|word| word.load(Ordering::Relaxed));
        let mut before = Box::new(copy());
        fence(Ordering::Acquire);
        let after = copy();
        keep_equal(&mut before, &after);
        View::new(&before[..], now_ms())
    }

    fn next(&self) -> u64 {
        add_alone(self.head(Head::Called), 1)
    }

    fn entry(&self, sequence: u64) -> &'static Entry {
        let (entries, _) = self.slot.words()[HEAD_WORDS..].as_chunks();
        &entries[sequence as usize % ENTRIES]
    }

    fn begin_entry(&self, sequence: u64) -> &'static Entry {
        let entry = self.entry(sequence);
        entry[entry::SEQUENCE].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry
    }

    fn end_entry(&self, entry: &Entry, sequence: u64, number: u64) {
        entry[entry::NUMBER].store(number, Ordering::Relaxed);
        entry[entry::CALLED_AT].store(self.launched_ms.load(Ordering::Relaxed), Ordering::Relaxed);
        entry[entry::SEQUENCE].store(sequence, Ordering::Release);
    }

    fn head(&self, word: Head) -> &AtomicU64 {
        &self.slot.words()[word as usize]
    }

    fn get(&self, word: Head) -> u64 {
        self.head(word).load(Ordering::Relaxed)
    }

    fn set(&self, word: Head, value: u64) {
        self.head(word).store(value, Ordering::Relaxed);
    }
}

/// Adds to a word that only the calling thread changes at a time; the sum. Calls on a communicator follow
/// each other: a program that makes several at once, against NCCL's contract, gets a journal with gaps. A
/// locked instruction for each word would cost as much as the rest of an entry.
#[inline]
fn add_alone(word: &AtomicU64, by: u64) -> u64 {
    let sum = word.load(Ordering::Relaxed).wrapping_add(by);
    word.store(sum, Ordering::Relaxed);
    sum
}

/// Drops the entries that changed between two copies of a slot.
pub fn keep_equal(before: &mut [u64; SLOT_WORDS], after: &[u64; SLOT_WORDS]) {
    for at in (HEAD_WORDS..SLOT_WORDS).step_by(ENTRY_WORDS) {
        if before[at] != after[at] {
            before[at] = 0;
        }
    }
}

/// The content of a journal at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The communicator's number, the same on all ranks.
    pub comm_id: u64,
    /// Its name.
    pub name: String,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// True if the end of operations is noted at once.
    pub is_exact: bool,
    /// The rank in the job's first communicator.
    pub world: u32,
    /// The time at which it was read, in milliseconds of the coarse clock.
    pub taken_ms: u64,
    /// The number of operations that were called.
    pub called: u64,
    /// The number of collectives among them: the number of the next one.
    pub collectives: u64,
    /// Calls that wait for the end of their group, and for how many milliseconds.
    pub queued: Option<(u64, u64)>,
    /// The wait of the rank, if it said so and has not said that the operation is over.
    pub waits: Option<Waits>,
    /// The operations that are kept, the oldest first.
    pub operations: Vec<Operation>,
}

impl View {
    /// Reads the words of a slot at a time of the coarse clock; None for a slot without a journal.
    pub fn new(words: &[u64], now_ms: u64) -> Option<Self> {
        let head = |word: Head| words[word as usize];
        if words.len() != SLOT_WORDS || head(Head::InUse) != 1 {
            return None;
        }
        let progress = (head(Head::Submitted), head(Head::Done));
        let entries = words[HEAD_WORDS..].chunks_exact(ENTRY_WORDS);
        let mut operations: Vec<Operation> =
            entries.filter_map(|entry| read_entry(entry, progress, now_ms)).collect();
        operations.sort_by_key(|operation| operation.sequence);
        let bytes: Vec<u8> =
            words[Head::Name as usize..][..NAME_WORDS].iter().flat_map(|word| word.to_le_bytes()).collect();
        let name = String::from_utf8_lossy(&bytes);
        let queued = head(Head::Queued);
        let since = now_ms.saturating_sub(head(Head::QueuedSince));
        Some(Self {
            comm_id: head(Head::CommId),
            name: name.trim_end_matches('\0').chars().filter(|letter| !letter.is_control()).collect(),
            rank: head(Head::RankOfRanks) as u32,
            ranks: (head(Head::RankOfRanks) >> 32) as u32,
            is_exact: head(Head::IsExact) == 1,
            world: head(Head::World) as u32,
            taken_ms: now_ms,
            called: head(Head::Called),
            collectives: head(Head::Collectives),
            queued: (queued > 0 && queued < u64::MAX / 2).then_some((queued, since)),
            waits: read_wait(words, now_ms, &operations),
            operations,
        })
    }
}

fn read_entry(entry: &[u64], (submitted, done): (u64, u64), now_ms: u64) -> Option<Operation> {
    let sequence = entry[entry::SEQUENCE];
    if sequence == 0 {
        return None;
    }
    let kind = entry[entry::KIND];
    let [form, collective, dtype, op] = (kind as u32).to_le_bytes();
    let upper = (kind >> 32) as u32;
    let what = match form {
        1 => What::Collective { collective, dtype, op, count: entry[entry::COUNT], root: upper },
        2 => {
            let one = |word: &u64| OneMessage {
                bytes: word & ((1 << 39) - 1),
                peer: (word >> 39) as u32 & 0xff_ffff,
                is_send: word >> 63 == 1,
            };
            let kept = (upper as usize).min(KEPT_MESSAGES);
            let first = entry[entry::MESSAGES..][..kept].iter().map(one).collect();
            What::Messages { total: upper, first }
        }
        _ => return None,
    };
    let stage = match sequence {
        _ if sequence <= done => Stage::Done,
        // A collective without elements has nothing to run.
        _ if form == 1 && entry[entry::COUNT] == 0 => Stage::Done,
        _ if sequence <= submitted => Stage::Submitted,
        _ => Stage::Called,
    };
    let age_ms = now_ms.saturating_sub(entry[entry::CALLED_AT]);
    let (predicted_ns, tag) = if form == 1 { (entry[entry::PREDICTED], entry[entry::TAG]) } else { (0, 0) };
    Some(Operation { sequence, number: entry[entry::NUMBER], what, stage, age_ms, predicted_ns, tag })
}

/// The wait in the head, if its operation is not over.
fn read_wait(words: &[u64], now_ms: u64, operations: &[Operation]) -> Option<Waits> {
    let (number, packed) = (words[Head::WaitNumber as usize], words[Head::WaitFor as usize]);
    let awaited = Awaited::from_code((packed >> 56) as u8)?;
    let is_open = |operation: &&Operation| operation.number == number && operation.stage != Stage::Done;
    operations.iter().find(is_open)?;
    Some(Waits {
        number,
        peer: (packed >> 32) as u32 & 0xff_ffff,
        awaited,
        block: (packed >> 16) as u32 & 0xffff,
        step: packed as u32 & 0xffff,
        since_ms: now_ms.saturating_sub(words[Head::WaitSince as usize]),
    })
}

/// The time at which something is called, as journals have it.
#[inline]
pub fn call_ms() -> u64 {
    if IS_WRITTEN { now_ms() } else { 0 }
}

/// Milliseconds of the kernel's coarse clock, which all processes of a host share. Reading it costs a few
/// nanoseconds.
pub fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_number::MESSAGES;
    use hawser_plan::{DataType, ReduceOp, Scalar};
    use proptest::prelude::*;

    const PLACE: Place = Place { rank: 0, ranks: 2, world: 0 };

    fn call(count: u64) -> Call {
        let (collective, dtype) = (Collective::AllReduce, DataType::Float32);
        let (op, scalar) = (ReduceOp::Max, Scalar::Immediate(0));
        Call { collective, count, dtype, op, scalar, root: 0, input: 64, output: 64, gap: 0 }
    }

    #[test]
    fn a_journal_says_what_was_written() {
        let journal = Journal::new(0xabc, "dp_group", Place { rank: 3, ranks: 8, world: 11 }, true);
        assert_eq!(journal.call(0, &call(1024), 12), 1);
        let message = |peer, send| Message { peer, send, addr: 64, bytes: 4096 };
        let both = [message(1, true), message(2, false)];
        assert_eq!(journal.call_messages(MESSAGES, &both), 2);
        journal.planned(1, 7_500);
        journal.planned(2 + ENTRIES as u64, 1); // its place is not taken yet
        journal.submitted(2);
        journal.done(1);
        journal.waits(MESSAGES, 2, Awaited::Data, (4, 1));
        journal.queue(now_ms());
        assert_eq!(
            (journal.counts()[Collective::AllReduce as usize], journal.counts().iter().sum::<u64>()),
            (1, 1)
        );
        assert!(!journal.is_finalized());
        journal.finalize();
        assert!(journal.is_finalized());
        journal.queue(now_ms());
        let view = journal.view().unwrap();
        assert_eq!((view.comm_id, &*view.name, view.rank, view.ranks), (0xabc, "dp_group", 3, 8));
        assert_eq!((view.called, view.is_exact, view.queued.map(|(count, _)| count)), (2, true, Some(2)));
        let stages: Vec<Stage> = view.operations.iter().map(|operation| operation.stage).collect();
        assert_eq!(stages, [Stage::Done, Stage::Submitted]);
        let predicted: Vec<u64> = view.operations.iter().map(|operation| operation.predicted_ns).collect();
        assert_eq!(predicted, [7_500, 0]);
        assert_eq!(view.operations[0].text(), "operation 0 (tag 12), all_reduce(1024 x float, max)");
        assert_eq!(view.operations[1].text(), "messages 0, send to 1 (4096 B), receive from 2 (4096 B)");
        let waits = view.waits.unwrap();
        assert_eq!((waits.peer, waits.awaited, waits.block, waits.step), (2, Awaited::Data, 4, 1));
        journal.done(2);
        journal.unqueue(2);
        let view = journal.view().unwrap();
        assert_eq!((view.waits, view.queued), (None, None), "nothing is open any more");
    }

    #[test]
    fn the_last_operations_are_kept() {
        let journal = Journal::new(1, "", PLACE, false);
        let many = 3 * ENTRIES as u64 + 5;
        (0..many).for_each(|number| {
            let _ = journal.call(number, &call(number), 0);
        });
        let view = journal.view().unwrap();
        assert_eq!((view.called, view.operations.len()), (many, ENTRIES));
        let numbers: Vec<u64> = view.operations.iter().map(|operation| operation.number).collect();
        assert_eq!(numbers, (many - ENTRIES as u64..many).collect::<Vec<_>>());
    }

    #[test]
    fn a_slot_is_clean_when_it_is_used_again() {
        for round in 0..64 {
            let journal = Journal::new(round, "a", PLACE, true);
            let view = journal.view().unwrap();
            assert_eq!((view.comm_id, view.called, view.operations.len()), (round, 0, 0));
            journal.call(0, &call(1), 0);
        }
    }

    #[test]
    fn an_entry_that_is_being_written_is_not_shown() {
        let journal = Journal::new(1, "", PLACE, false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                (0..200_000).for_each(|n| {
                    let _ = journal.call(n, &call(n), 0);
                })
            });
            while !writer.is_finished() {
                for operation in journal.view().unwrap().operations {
                    let What::Collective { count, .. } = operation.what else { panic!() };
                    assert_eq!(
                        (count, operation.sequence),
                        (operation.number, operation.number + 1),
                        "parts of two operations"
                    );
                }
            }
        });
    }

    proptest! {
        #[test]
        fn any_words_are_read_without_harm(words in proptest::collection::vec(any::<u64>(), SLOT_WORDS)) {
            let mut words = words;
            words[0] = 1;
            let _ = View::new(&words, 5);
        }
    }
}

//! The sending end. See the rules of [`proto`](super).

use std::collections::{BTreeMap, VecDeque};

use super::imm::Imm;
use super::rail::{Spec, Work};
use super::rails::{Fault, Rails, Role};
use super::wire::{Entry, Message, Partial, Receipt, Record, State};
use super::{Action, Epoch, MAX_CHUNKS, MAX_SLOTS, Path, Rules, Time, Write};

/// Chunks start at multiples of this.
const GRAIN: u64 = 4096;

/// The place where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Chunk {
    Waiting,
    /// Written, last on this rail and epoch.
    On(u8, Epoch),
    /// In the receiver's record.
    Arrived,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sending {
    bytes: u64,
    chunk_bytes: u64,
    full: bool,
    chunks: Vec<Chunk>,
    /// Chunks that are not `Arrived`.
    left: usize,
    /// Work requests that may still read the memory.
    reading: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Group {
    first: u64,
    entries: Vec<Option<Entry>>,
    single: bool,
}

/// The receive that a send goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The number of the receive.
    pub slot: u64,
    /// The memory of the receive.
    pub entry: Entry,
}

/// The state machine of a sending end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Tx {
    /// The rails of this end.
    pub rails: Rails,
    groups: VecDeque<Group>,
    /// Groups that overtook others.
    early: BTreeMap<u64, Vec<Entry>>,
    /// The first slot that the receiver did not tell of yet.
    frontier: u64,
    sends: BTreeMap<u64, Sending>,
    waiting: VecDeque<(u64, u8)>,
    record: Record,
    /// The peer said goodbye.
    pub left: bool,
    /// Somebody waits for the connection to come up.
    pub opening: bool,
}

impl Tx {
    pub fn new(specs: &[Spec], rules: Rules, now: Time) -> Self {
        Self {
            rails: Rails::new(Role::Sender, specs, rules, now),
            groups: VecDeque::new(),
            early: BTreeMap::new(),
            frontier: 0,
            sends: BTreeMap::new(),
            waiting: VecDeque::new(),
            record: Record::default(),
            left: false,
            opening: true,
        }
    }

    /// The receive that a message with this tag would go to.
    pub fn target(&self, tag: i32) -> Option<(u64, u64)> {
        let group = self.groups.front()?;
        let at = group.find(tag)?;
        let bytes = group.entries[at].as_ref()?.bytes;
        Some((group.first + at as u64, bytes))
    }

    /// Begins a message of at most as many bytes as its receive has.
    pub fn begin(&mut self, tag: i32, bytes: u64, now: Time) -> Option<Target> {
        let group = self.groups.front_mut()?;
        let at = group.find(tag)?;
        let entry = group.entries[at].take()?;
        let slot = group.first + at as u64;
        if group.entries.iter().all(Option::is_none) {
            self.groups.pop_front();
        }
        let chunk_bytes = self.chunk_bytes(bytes);
        let count = bytes.div_ceil(chunk_bytes).max(1);
        let sending = Sending {
            bytes,
            chunk_bytes,
            full: bytes == entry.bytes,
            chunks: vec![Chunk::Waiting; count as usize],
            left: count as usize,
            reading: 0,
        };
        self.sends.insert(slot, sending);
        self.waiting.extend((0..count as u8).map(|chunk| (slot, chunk)));
        self.pump(now);
        Some(Target { slot, entry })
    }

    /// The size of a message that is over, once.
    pub fn finish(&mut self, slot: u64) -> Option<u64> {
        let sending = self.sends.get(&slot)?;
        if sending.left > 0 || sending.reading > 0 {
            return None;
        }
        self.sends.remove(&slot).map(|sending| sending.bytes)
    }

    /// Tells whether a send goes to this slot.
    pub fn is_known(&self, slot: u64) -> bool {
        self.sends.contains_key(&slot)
    }

    /// Messages that are not over.
    pub fn open(&self) -> usize {
        self.sends.len()
    }

    /// A rail is fenced: nothing of this epoch is read any more.
    pub fn fenced(&mut self, rail: u8, epoch: Epoch, now: Time) {
        let works = self.rails.fenced(rail, epoch, now);
        self.release(&works);
        self.settle(now);
    }

    /// Work requests up to this one are over.
    pub fn completed(&mut self, rail: u8, epoch: Epoch, wr: u64, now: Time) {
        let works = self.rails.completed(rail, epoch, wr, now);
        if works.iter().any(|work| matches!(work, Work::Chunk(_))) {
            self.rails.progress();
        }
        self.release(&works);
    }

    /// Takes in a control message.
    pub fn message(&mut self, path: Path, message: Message, now: Time) {
        match message {
            Message::Post { first, entries } => self.on_post(first, entries),
            Message::Done { record, taken } => {
                self.on_record(&record);
                self.on_taken(&taken);
                self.pump(now);
            }
            Message::State(state) => self.on_state(&state, now),
            Message::Bye => {
                self.left = true;
                self.rails.retire(now);
            }
            Message::Fail(text) => {
                self.rails.fault.get_or_insert(Fault::Peer(text));
            }
            setup => self.rails.on_setup(path, setup, now),
        }
    }

    /// Looks at the clock, sends what there is to send.
    pub fn tick(&mut self, now: Time) {
        let busy = self.opening || self.sends.values().any(|sending| sending.left > 0 || sending.reading > 0);
        self.rails.tick(busy, now);
        if self.left && self.sends.values().any(|sending| sending.left > 0) {
            self.rails.fault.get_or_insert(Fault::Left);
        }
        self.settle(now);
    }

    /// After events: data first, then what the peer has to know.
    pub fn settle(&mut self, now: Time) {
        self.pump(now);
        let wants = self.is_stuck();
        for path in self.rails.state_paths(wants, now) {
            let state = State { want: wants, frontier: Some(self.frontier), ..self.rails.state() };
            self.rails.send(path, Message::State(state), now);
        }
    }

    /// A chunk waits for the receiver's word about an epoch that is fenced here.
    fn is_stuck(&self) -> bool {
        let all = &self.rails.all;
        let is_fenced = |rail: u8, epoch: Epoch| all[usize::from(rail)].fenced >= epoch;
        let stuck = |chunk: &Chunk| matches!(*chunk, Chunk::On(rail, epoch) if is_fenced(rail, epoch));
        all.iter().any(|rail| rail.fenced > 0) && self.sends.values().any(|one| one.chunks.iter().any(stuck))
    }

    fn chunk_bytes(&self, bytes: u64) -> u64 {
        let rules = &self.rails.rules;
        let up = self.rails.all.iter().filter(|rail| rail.is_up()).count().max(1) as u64;
        let even = bytes.div_ceil(up).clamp(rules.least_chunk, rules.most_chunk.max(rules.least_chunk));
        even.max(bytes.div_ceil(MAX_CHUNKS)).next_multiple_of(GRAIN.min(rules.least_chunk))
    }

    fn on_post(&mut self, first: u64, entries: Vec<Entry>) {
        if first > self.frontier + 4 * MAX_SLOTS {
            self.rails.fault.get_or_insert(Fault::Protocol("it posts more receives than allowed"));
            return;
        }
        if first >= self.frontier {
            self.early.insert(first, entries);
        }
        while let Some(entries) = self.early.remove(&self.frontier) {
            let first = self.frontier;
            self.frontier += entries.len() as u64;
            let single = entries.len() == 1;
            self.groups.push_back(Group { first, entries: entries.into_iter().map(Some).collect(), single });
        }
    }

    fn on_record(&mut self, record: &Record) {
        if record.base < self.record.base {
            return;
        }
        self.record = *record;
        for (slot, sending) in &mut self.sends {
            if sending.left > 0 && record.has(*slot) {
                for at in 0..sending.chunks.len() {
                    arrive(sending, at);
                }
            }
        }
        let sends = &self.sends;
        self.waiting.retain(|(slot, _)| sends.get(slot).is_some_and(|sending| sending.left > 0));
    }

    fn on_taken(&mut self, taken: &[(Epoch, u32)]) {
        for (rail, &(epoch, chunks)) in self.rails.all.iter_mut().zip(taken) {
            // Neither late news, which is behind, nor more than was written.
            let news = chunks.wrapping_sub(rail.taken);
            if rail.epoch == epoch && news <= rail.written.wrapping_sub(rail.taken) {
                rail.taken = chunks;
            }
        }
    }

    fn on_state(&mut self, state: &State, now: Time) {
        self.rails.on_state(state, now);
        if self.rails.fault.is_some() {
            return;
        }
        if let Some(Receipt { record, taken, partial }) = &state.receipt {
            self.on_record(record);
            self.on_taken(taken);
            self.on_partial(&state.fenced, partial, now);
        }
        self.settle(now);
    }

    /// Rule 3: what the receiver lacks of epochs that it has fenced is written again.
    fn on_partial(&mut self, fenced: &[Epoch], partial: &Partial, now: Time) {
        let mut again = Vec::new();
        for (&slot, sending) in &mut self.sends {
            let Some(bits) = partial.of(slot).filter(|_| sending.left > 0) else { continue };
            for at in 0..sending.chunks.len() {
                let Chunk::On(rail, epoch) = sending.chunks[at] else { continue };
                if bits >> at & 1 == 1 {
                    arrive(sending, at);
                } else if fenced[usize::from(rail)] >= epoch {
                    sending.chunks[at] = Chunk::Waiting;
                    self.rails.all[usize::from(rail)].lost += 1;
                    again.push((slot, at as u8));
                }
            }
        }
        for chunk in again.into_iter().rev() {
            self.waiting.push_front(chunk);
        }
        self.pump(now);
    }

    /// Gives waiting chunks to rails with room.
    fn pump(&mut self, now: Time) {
        while let Some(&(slot, chunk)) = self.waiting.front() {
            let Some(rail) = self.choose() else { return };
            self.waiting.pop_front();
            self.write(slot, chunk, rail, now);
        }
    }

    /// Among the rails of the lowest tier that is up, the one that would be idle first.
    fn choose(&self) -> Option<u8> {
        let all = &self.rails.all;
        let tier = all.iter().filter(|rail| rail.is_up()).map(|rail| rail.tier).min()?;
        let window = self.rails.rules.window;
        let fits = |number: &usize| {
            let rail = &all[*number];
            rail.is_up() && rail.tier == tier && rail.written.wrapping_sub(rail.taken) < window
        };
        let idle = |number: &usize| (u128::from(all[*number].bytes) << 20) / u128::from(all[*number].weight);
        (0..all.len()).filter(fits).min_by_key(idle).map(|rail| rail as u8)
    }

    fn write(&mut self, slot: u64, chunk: u8, rail: u8, now: Time) {
        let Some(sending) = self.sends.get_mut(&slot) else { return };
        let offset = u64::from(chunk) * sending.chunk_bytes;
        let len = sending.chunk_bytes.min(sending.bytes - offset);
        let epoch = self.rails.all[usize::from(rail)].epoch;
        sending.chunks[usize::from(chunk)] = Chunk::On(rail, epoch);
        sending.reading += 1;
        let imm = Imm { slot, chunk, count: sending.chunks.len() as u8, full: sending.full }.pack();
        let wr = self.rails.post(rail, Work::Chunk(slot), len, now);
        self.rails.act(Action::Write(Write { rail, epoch, wr, slot, offset, len, imm }));
    }

    fn release(&mut self, works: &[Work]) {
        for work in works {
            if let Work::Chunk(slot) = work
                && let Some(sending) = self.sends.get_mut(slot)
            {
                sending.reading -= 1;
            }
        }
    }
}

impl Group {
    /// The first free entry with the tag; the tag picks among several only.
    fn find(&self, tag: i32) -> Option<usize> {
        self.entries.iter().position(|entry| entry.as_ref().is_some_and(|e| self.single || e.tag == tag))
    }
}

fn arrive(sending: &mut Sending, at: usize) {
    if sending.chunks[at] != Chunk::Arrived {
        sending.chunks[at] = Chunk::Arrived;
        sending.left -= 1;
    }
}

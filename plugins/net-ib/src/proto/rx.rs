//! The receiving end. See the rules of [`proto`](super).

use std::collections::VecDeque;

use super::imm::Imm;
use super::rail::{Phase, Spec};
use super::rails::{Fault, Rails, Role};
use super::wire::{Entry, MAX_PARTIAL, Message, Partial, Receipt, Record, State, Taken};
use super::{Epoch, MAX_SLOTS, Path, Rules, Time};

/// Receives that the host may hold.
const MOST_RECEIVES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Slot {
    capacity: u64,
    /// Chunks that arrived.
    bits: u64,
    /// All chunks; 0 = no chunk came yet.
    all: u64,
    bytes: u64,
    /// Tells the bytes if the chunks' completions do not.
    full: bool,
}

impl Slot {
    fn is_done(&self) -> bool {
        self.all != 0 && self.bits == self.all
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Receive {
    first: u64,
    entries: Vec<Entry>,
    sizes: Vec<u64>,
    left: usize,
    told: bool,
}

/// The state machine of a receiving end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rx {
    /// The rails of this end.
    pub rails: Rails,
    /// Number of the first receive in `receives`.
    first: u64,
    receives: VecDeque<Receive>,
    /// Slots from `base` on.
    slots: VecDeque<Slot>,
    base: u64,
    /// The first receive that the sender was not told of.
    untold: u64,
    /// Slots became done since the last record.
    news: bool,
    /// The sender has said goodbye.
    pub left: bool,
    /// The host still waits for the connection to come up.
    pub opening: bool,
    /// Arrivals that were none: doubled completions.
    pub ignored: u64,
}

impl Rx {
    pub fn new(specs: &[Spec], rules: Rules, now: Time) -> Self {
        Self {
            rails: Rails::new(Role::Receiver, specs, rules, now),
            first: 0,
            receives: VecDeque::new(),
            slots: VecDeque::new(),
            base: 0,
            untold: 0,
            news: false,
            left: false,
            opening: true,
            ignored: 0,
        }
    }

    /// Posts a group; None: no room now. Returns the receive's number.
    pub fn post(&mut self, entries: Vec<Entry>, now: Time) -> Option<u64> {
        let many = self.slots.len() + entries.len() > MAX_SLOTS as usize;
        if many || self.receives.len() >= MOST_RECEIVES {
            return None;
        }
        let first = self.base + self.slots.len() as u64;
        for entry in &entries {
            self.slots.push_back(Slot { capacity: entry.bytes, bits: 0, all: 0, bytes: 0, full: false });
        }
        let (sizes, left) = (vec![0; entries.len()], entries.len());
        self.receives.push_back(Receive { first, entries, sizes, left, told: false });
        let number = self.first + self.receives.len() as u64 - 1;
        self.settle(now);
        Some(number)
    }

    /// Tells whether a receive is over and gives its sizes, once. None: there is no such receive.
    pub fn finish(&mut self, number: u64) -> Option<Option<Vec<u64>>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let receive = self.receives.get_mut(at).filter(|receive| !receive.told)?;
        if receive.left > 0 {
            return Some(None);
        }
        receive.told = true;
        let sizes = receive.sizes.clone();
        while self.receives.front().is_some_and(|receive| receive.told) {
            self.receives.pop_front();
            self.first += 1;
        }
        Some(Some(sizes))
    }

    /// Slots that wait for data.
    pub fn open(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.is_done()).count()
    }

    /// A rail is fenced: nothing of this epoch lands any more.
    pub fn fenced(&mut self, rail: u8, epoch: Epoch, now: Time) {
        self.rails.fenced(rail, epoch, now);
        self.settle(now);
    }

    /// Work requests up to this one are over.
    pub fn completed(&mut self, rail: u8, epoch: Epoch, wr: u64, now: Time) {
        self.rails.completed(rail, epoch, wr, now);
    }

    /// A write with this immediate is over. Not known again after its epoch is fenced here.
    pub fn arrived(&mut self, rail: u8, epoch: Epoch, word: u32, bytes: u64, now: Time) {
        let Some(known) = self.rails.all.get_mut(usize::from(rail)) else { return };
        if known.epoch != epoch || !matches!(known.phase, Phase::Up | Phase::Fencing) {
            self.ignored += 1;
            return;
        }
        known.moved = known.moved.max(now);
        let imm = Imm::unpack(word);
        let number = imm.whole(self.base);
        let at = (number - self.base) as usize;
        let Some(slot) = self.slots.get_mut(at) else {
            self.ignored += 1;
            return;
        };
        let all = u64::MAX >> (64 - u32::from(imm.count));
        if slot.is_done() || slot.bits >> imm.chunk & 1 == 1 {
            self.ignored += 1;
            return;
        }
        if imm.chunk >= imm.count || slot.all != 0 && slot.all != all || slot.bytes + bytes > slot.capacity {
            self.rails.fault.get_or_insert(Fault::Protocol("a chunk does not fit its receive"));
            return;
        }
        slot.all = all;
        slot.bits |= 1 << imm.chunk;
        slot.bytes += bytes;
        slot.full |= imm.full;
        known.taken = known.taken.wrapping_add(1);
        self.news |= known.taken.wrapping_sub(known.told) >= (self.rails.rules.window / 4).max(1);
        self.rails.progress();
        if slot.is_done() {
            self.done(number);
        }
    }

    fn done(&mut self, number: u64) {
        self.news = true;
        let slot = &self.slots[(number - self.base) as usize];
        let bytes = if slot.full { slot.capacity } else { slot.bytes };
        let after = self.receives.partition_point(|receive| receive.first <= number);
        if let Some(receive) = after.checked_sub(1).and_then(|at| self.receives.get_mut(at)) {
            receive.sizes[(number - receive.first) as usize] = bytes;
            receive.left -= 1;
        }
        while self.slots.front().is_some_and(Slot::is_done) {
            self.slots.pop_front();
            self.base += 1;
        }
    }

    /// Takes in a control message.
    pub fn message(&mut self, path: Path, message: Message, now: Time) {
        match message {
            Message::State(state) => self.on_state(&state, now),
            Message::Bye => {
                self.left = true;
                self.rails.retire(now);
            }
            Message::Fail(text) => {
                self.rails.fault.get_or_insert(Fault::Peer(text));
            }
            Message::Post { .. } | Message::Done { .. } => {
                self.rails.fault.get_or_insert(Fault::Protocol("the sender spoke as a receiver"));
            }
            setup => self.rails.on_setup(path, setup, now),
        }
    }

    fn on_state(&mut self, state: &State, now: Time) {
        self.rails.on_state(state, now);
        if let Some(frontier) = state.frontier {
            let known = self.receives.iter().take_while(|receive| receive.first < frontier).count() as u64;
            self.untold = self.untold.min(self.first + known);
        }
        self.settle(now);
    }

    /// Looks at the clock, sends what there is to send.
    pub fn tick(&mut self, now: Time) {
        let busy = self.opening || self.open() > 0;
        self.rails.tick(busy, now);
        if self.left && self.open() > 0 {
            self.rails.fault.get_or_insert(Fault::Left);
        }
        self.settle(now);
    }

    /// After events: tells the sender what is new.
    pub fn settle(&mut self, now: Time) {
        self.untold = self.untold.max(self.first);
        while let Some(receive) = self.receives.get((self.untold - self.first) as usize) {
            let Some(path) = self.rails.control_path() else { break };
            let message = Message::Post { first: receive.first, entries: receive.entries.clone() };
            self.rails.send(path, message, now);
            self.untold += 1;
        }
        if self.news
            && let Some(path) = self.rails.control_path()
        {
            self.news = false;
            let done = self.last_words();
            self.rails.all.iter_mut().for_each(|rail| rail.told = rail.taken);
            self.rails.send(path, done, now);
        }
        let paths = self.rails.state_paths(false, now);
        if !paths.is_empty() {
            for state in self.states() {
                for &path in &paths {
                    self.rails.send(path, Message::State(state.clone()), now);
                }
            }
        }
    }

    /// The message that tells which receives are done and which chunks are taken.
    pub fn last_words(&self) -> Message {
        Message::Done { record: self.record(), taken: self.taken() }
    }

    fn taken(&self) -> Taken {
        self.rails.all.iter().map(|rail| (rail.epoch, rail.taken)).collect()
    }

    fn record(&self) -> Record {
        let mut record = Record { base: self.base, mask: [0; 4] };
        let done = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_done());
        done.for_each(|(at, _)| record.set(self.base + at as u64));
        record
    }

    /// This end's state: several if many slots have arrived in part.
    fn states(&self) -> Vec<State> {
        let partly = self.slots.iter().enumerate().filter(|(_, slot)| slot.bits != 0 && !slot.is_done());
        let partly: Vec<(u64, u64)> = partly.map(|(at, slot)| (self.base + at as u64, slot.bits)).collect();
        let mut parts: Vec<Vec<(u64, u64)>> = partly.chunks(MAX_PARTIAL).map(<[_]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let last = parts.len() - 1;
        let starts: Vec<u64> = parts.iter().map(|bits| bits.first().map_or(self.base, |bit| bit.0)).collect();
        let states = parts.into_iter().enumerate().map(|(at, bits)| {
            let first = if at == 0 { self.base } else { starts[at] };
            let end = if at == last { u64::MAX } else { starts[at + 1] };
            let partial = Partial { first, end, bits };
            let receipt = Receipt { record: self.record(), taken: self.taken(), partial };
            State { receipt: Some(receipt), ..self.rails.state() }
        });
        states.collect()
    }
}

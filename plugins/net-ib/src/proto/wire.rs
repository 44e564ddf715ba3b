//! Control messages and their bytes. Parsing believes nothing: any bytes give a message or an error.

use super::{Epoch, MAX_RAILS, MAX_SLOTS};

/// Longest message in bytes.
pub(crate) const MAX_MESSAGE: usize = 1024;
/// Partly arrived slots in a state.
pub(crate) const MAX_PARTIAL: usize = 24;
/// Keys of an entry: one per device of the receiver.
pub(crate) const MAX_KEYS: usize = 9;
/// Entries of a group.
pub(crate) const MAX_ENTRIES: usize = 8;
/// Bytes of an endpoint.
pub(crate) const MAX_BLOB: usize = 64;

/// A posted segment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    /// The tag that sends are matched by.
    pub tag: i32,
    /// The address of the memory at the receiver.
    pub addr: u64,
    /// The length of the memory in bytes.
    pub bytes: u64,
    /// Remote keys, one per device of the receiver.
    pub keys: Vec<u32>,
}

/// The finished slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Record {
    /// All slots before are done.
    pub base: u64,
    /// Bit i: slot base + i is done.
    pub mask: [u64; 4],
}

impl Record {
    pub fn has(&self, slot: u64) -> bool {
        match slot.checked_sub(self.base) {
            None => true,
            Some(at) if at < MAX_SLOTS => self.mask[at as usize / 64] >> (at % 64) & 1 == 1,
            Some(_) => false,
        }
    }

    pub fn set(&mut self, slot: u64) {
        if let Some(at) = slot.checked_sub(self.base).filter(|&at| at < MAX_SLOTS) {
            self.mask[at as usize / 64] |= 1 << (at % 64);
        }
    }
}

/// The chunks that arrived, for all slots from `first` to before `end`; a slot that is not listed has none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Partial {
    pub first: u64,
    pub end: u64,
    pub bits: Vec<(u64, u64)>,
}

impl Partial {
    /// None: this says nothing about the slot.
    pub fn of(&self, slot: u64) -> Option<u64> {
        if !(self.first..self.end).contains(&slot) {
            return None;
        }
        Some(self.bits.iter().find(|(listed, _)| *listed == slot).map_or(0, |(_, bits)| *bits))
    }
}

/// The state of an end: the rails that it has fenced, what it knows of the other, and where resending begins.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// Per rail: all epochs up to this one are fenced here.
    pub fenced: Vec<Epoch>,
    /// Per rail: what the peer last said of the same.
    pub heard: Vec<Epoch>,
    /// Per rail: why it was stopped ([`Why::code`](super::Why::code)).
    pub why: Vec<u8>,
    /// The peer shall answer with its state.
    pub want: bool,
    /// Sender: the first slot that it was not told of.
    pub frontier: Option<u64>,
    /// Receiver: what it has.
    pub receipt: Option<Receipt>,
}

/// Per rail the epoch, and how many of its chunks the receiver has taken off its queue.
pub(crate) type Taken = Vec<(Epoch, u32)>;

/// All that a receiver has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Receipt {
    /// The receives that are done.
    pub record: Record,
    /// The chunks that were taken off the queue of each rail.
    pub taken: Taken,
    /// The chunks that are there of messages that are not whole.
    pub partial: Partial,
}

/// A control message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    /// Receiver: a group of segments is posted; they take the slots from `first` on.
    Post { first: u64, entries: Vec<Entry> },
    /// Receiver: slots are done, chunks were taken.
    Done { record: Record, taken: Taken },
    /// Either: see [`State`].
    State(State),
    /// Sender: a rail can be set up with this end.
    Offer { rail: u8, epoch: Epoch, blob: Vec<u8> },
    /// Receiver: its end of it.
    Answer { rail: u8, epoch: Epoch, blob: Vec<u8> },
    /// Sender, on the new rail.
    Probe { rail: u8, epoch: Epoch, number: u8 },
    /// Receiver, on the new rail.
    Echo { rail: u8, epoch: Epoch, number: u8 },
    /// Either, by the control channel: the end is dropped.
    Bye,
    /// Either, by the control channel: the connection has failed; a sentence.
    Fail(String),
}

impl Message {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Message::Post { first, entries } => {
                out.push(1);
                put64(&mut out, *first);
                out.push(entries.len() as u8);
                out.push(entries.first().map_or(0, |entry| entry.keys.len()) as u8);
                for entry in entries {
                    put32(&mut out, entry.tag as u32);
                    put64(&mut out, entry.addr);
                    put64(&mut out, entry.bytes);
                    entry.keys.iter().for_each(|&key| put32(&mut out, key));
                }
            }
            Message::Done { record, taken } => {
                out.push(2);
                put_record(&mut out, record, taken);
            }
            Message::State(state) => {
                out.push(3);
                put_state(&mut out, state);
            }
            Message::Offer { rail, epoch, blob } => put_end(&mut out, 4, *rail, *epoch, blob),
            Message::Answer { rail, epoch, blob } => put_end(&mut out, 5, *rail, *epoch, blob),
            Message::Probe { rail, epoch, number } => put_end(&mut out, 6, *rail, *epoch, &[*number]),
            Message::Echo { rail, epoch, number } => put_end(&mut out, 7, *rail, *epoch, &[*number]),
            Message::Bye => out.push(8),
            Message::Fail(text) => {
                out.push(9);
                let fits =
                    (0..=text.len().min(MAX_MESSAGE - 1)).rev().find(|&end| text.is_char_boundary(end));
                out.extend_from_slice(&text.as_bytes()[..fits.unwrap_or(0)]);
            }
        }
        out
    }

    /// # Errors
    /// The fault of the bytes, if they have one.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() > MAX_MESSAGE {
            return Err("a control message that is too long");
        }
        let mut from = Reader(bytes);
        let message = match from.byte()? {
            1 => read_post(&mut from)?,
            2 => read_done(&mut from)?,
            3 => Message::State(read_state(&mut from)?),
            4 => from.end(|rail, epoch, blob| Message::Offer { rail, epoch, blob })?,
            5 => from.end(|rail, epoch, blob| Message::Answer { rail, epoch, blob })?,
            6 => from.end(|rail, epoch, blob| Message::Probe { rail, epoch, number: number(&blob) })?,
            7 => from.end(|rail, epoch, blob| Message::Echo { rail, epoch, number: number(&blob) })?,
            8 => Message::Bye,
            9 => Message::Fail(String::from_utf8_lossy(std::mem::take(&mut from.0)).into_owned()),
            _ => return Err("a control message of an unknown kind"),
        };
        if from.0.is_empty() { Ok(message) } else { Err("a control message with bytes left over") }
    }
}

fn number(blob: &[u8]) -> u8 {
    blob.first().copied().unwrap_or(0)
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_end(out: &mut Vec<u8>, kind: u8, rail: u8, epoch: Epoch, blob: &[u8]) {
    out.extend_from_slice(&[kind, rail]);
    put32(out, epoch);
    out.push(blob.len() as u8);
    out.extend_from_slice(blob);
}

fn put_record(out: &mut Vec<u8>, record: &Record, taken: &[(Epoch, u32)]) {
    put64(out, record.base);
    record.mask.iter().for_each(|&word| put64(out, word));
    out.push(taken.len() as u8);
    for (epoch, chunks) in taken {
        put32(out, *epoch);
        put32(out, *chunks);
    }
}

fn put_state(out: &mut Vec<u8>, state: &State) {
    out.push(state.fenced.len() as u8);
    for i in 0..state.fenced.len() {
        put32(out, state.fenced[i]);
        put32(out, state.heard[i]);
        out.push(state.why[i]);
    }
    let has = u8::from(state.want)
        | u8::from(state.frontier.is_some()) << 1
        | u8::from(state.receipt.is_some()) << 2;
    out.push(has);
    if let Some(frontier) = state.frontier {
        put64(out, frontier);
    }
    if let Some(Receipt { record, taken, partial }) = &state.receipt {
        put_record(out, record, taken);
        put64(out, partial.first);
        put64(out, partial.end);
        out.push(partial.bits.len() as u8);
        for (slot, bits) in &partial.bits {
            put64(out, *slot);
            put64(out, *bits);
        }
    }
}

fn read_post(from: &mut Reader) -> Result<Message, &'static str> {
    let first = from.word()?;
    let (count, keys) = (usize::from(from.byte()?), usize::from(from.byte()?));
    if count == 0 || count > MAX_ENTRIES || keys == 0 || keys > MAX_KEYS {
        return Err("a posted group of an impossible size");
    }
    if first.checked_add(MAX_SLOTS).is_none() {
        return Err("a slot number that is too high");
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let (tag, addr, bytes) = (from.half()? as i32, from.word()?, from.word()?);
        if addr.checked_add(bytes).is_none() {
            return Err("a posted segment beyond the address space");
        }
        let keys = (0..keys).map(|_| from.half()).collect::<Result<_, _>>()?;
        entries.push(Entry { tag, addr, bytes, keys });
    }
    Ok(Message::Post { first, entries })
}

fn read_done(from: &mut Reader) -> Result<Message, &'static str> {
    let (record, taken) = from.record()?;
    Ok(Message::Done { record, taken })
}

fn read_state(from: &mut Reader) -> Result<State, &'static str> {
    let rails = usize::from(from.byte()?);
    if rails == 0 || rails > MAX_RAILS {
        return Err("a state of an impossible number of rails");
    }
    let mut state =
        State { fenced: vec![], heard: vec![], why: vec![], want: false, frontier: None, receipt: None };
    for _ in 0..rails {
        state.fenced.push(from.half()?);
        state.heard.push(from.half()?);
        state.why.push(from.byte()?);
    }
    let has = from.byte()?;
    if has > 7 {
        return Err("a state with unknown parts");
    }
    state.want = has & 1 != 0;
    if has & 2 != 0 {
        state.frontier = Some(from.word()?);
    }
    if has & 4 != 0 {
        let (record, taken) = from.record()?;
        let (first, end, count) = (from.word()?, from.word()?, usize::from(from.byte()?));
        if count > MAX_PARTIAL {
            return Err("a state with too many slots");
        }
        let bits =
            (0..count).map(|_| Ok((from.word()?, from.word()?))).collect::<Result<_, &'static str>>()?;
        state.receipt = Some(Receipt { record, taken, partial: Partial { first, end, bits } });
    }
    Ok(state)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or("a control message that is cut off")?;
        self.0 = rest;
        Ok(*head)
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        Ok(self.take::<1>()?[0])
    }

    fn half(&mut self) -> Result<u32, &'static str> {
        self.take().map(u32::from_le_bytes)
    }

    fn word(&mut self) -> Result<u64, &'static str> {
        self.take().map(u64::from_le_bytes)
    }

    fn record(&mut self) -> Result<(Record, Taken), &'static str> {
        let base = self.word()?;
        let mut mask = [0; 4];
        for word in &mut mask {
            *word = self.word()?;
        }
        let rails = usize::from(self.byte()?);
        if rails > MAX_RAILS {
            return Err("a record of an impossible number of rails");
        }
        let mut taken = Vec::with_capacity(rails);
        for _ in 0..rails {
            taken.push((self.half()?, self.half()?));
        }
        Ok((Record { base, mask }, taken))
    }

    fn end(&mut self, make: impl FnOnce(u8, Epoch, Vec<u8>) -> Message) -> Result<Message, &'static str> {
        let (rail, epoch, len) = (self.byte()?, self.half()?, usize::from(self.byte()?));
        if usize::from(rail) >= MAX_RAILS || len > MAX_BLOB || len > self.0.len() {
            return Err("an offer that is cut off or impossible");
        }
        let (blob, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(make(rail, epoch, blob.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state(rails: usize, partial: usize) -> State {
        let record = Record { base: 7, mask: [1, 2, 3, u64::MAX] };
        let bits = (0..partial as u64).map(|n| (n, n * 77)).collect();
        State {
            fenced: (0..rails as u32).collect(),
            heard: vec![9; rails],
            why: vec![0x4c; rails],
            want: true,
            frontier: Some(3),
            receipt: Some(Receipt {
                record,
                taken: vec![(3, 9); rails],
                partial: Partial { first: 0, end: u64::MAX, bits },
            }),
        }
    }

    #[test]
    fn messages_come_back_and_fit() {
        let entry = Entry { tag: -3, addr: 1 << 60, bytes: 12, keys: vec![5; MAX_KEYS] };
        let all = [
            Message::Post { first: 9, entries: vec![entry; MAX_ENTRIES] },
            Message::Done { record: Record { base: 1, mask: [7; 4] }, taken: vec![(1, 2); MAX_RAILS] },
            Message::State(state(MAX_RAILS, MAX_PARTIAL)),
            Message::State(State { frontier: None, receipt: None, ..state(1, 0) }),
            Message::Offer { rail: 3, epoch: 8, blob: vec![1; MAX_BLOB] },
            Message::Answer { rail: 0, epoch: u32::MAX, blob: vec![] },
            Message::Probe { rail: 1, epoch: 2, number: 3 },
            Message::Echo { rail: 1, epoch: 2, number: 4 },
            Message::Bye,
            Message::Fail("why".into()),
            Message::Fail("–".repeat((MAX_MESSAGE - 1) / 3)),
        ];
        for message in all {
            let bytes = message.encode();
            assert!(bytes.len() <= MAX_MESSAGE, "{}", bytes.len());
            assert_eq!(Message::decode(&bytes), Ok(message));
            for cut in 1..bytes.len().min(40) {
                let text = Message::decode(&bytes[..bytes.len() - cut]);
                assert!(text.is_err() || bytes[0] == 9);
            }
        }
    }

    #[test]
    fn long_sentences_are_cut() {
        let bytes = Message::Fail("–".repeat(MAX_MESSAGE)).encode();
        assert!(bytes.len() <= MAX_MESSAGE && bytes.len() > MAX_MESSAGE - 4);
        assert!(Message::decode(&bytes).is_ok_and(|message| message != Message::Fail(String::new())));
    }

    #[test]
    fn a_record_says_what_is_done() {
        let mut record = Record { base: 100, mask: [0; 4] };
        record.set(100 + 70);
        record.set(100 + 255);
        record.set(100 + 256);
        let done: Vec<u64> = (95..400).filter(|&slot| record.has(slot)).collect();
        assert_eq!(done, [95, 96, 97, 98, 99, 170, 355]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(kind in 0u8..12, rest in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = vec![kind];
            bytes.extend(rest);
            if let Ok(message) = Message::decode(&bytes) {
                let again = message.encode();
                prop_assert!(kind == 9 || Message::decode(&again) == Ok(message));
            }
        }
    }
}

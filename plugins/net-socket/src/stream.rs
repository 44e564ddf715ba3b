//! A byte stream that survives its socket: the control connection's two directions.
//!
//! 1. Bytes are numbered from 0 over the whole life of the connection, whatever socket carries them.
//! 2. [`Outgoing`] keeps every byte until the peer has confirmed it; [`Incoming`] counts a byte as consumed
//!    when the record that holds it was understood as a whole.
//! 3. On a new socket both ends first tell how far they have consumed the other's stream. The writer then
//!    goes on exactly there ([`Outgoing::resume`]); the reader forgets the half record that it may hold
//!    ([`Incoming::restart`]).
//! 4. So each record is handled exactly once and in order, however often the socket is lost.

use std::collections::VecDeque;

use crate::frame::{MAX_RECORD, Record};

/// Bytes that are read in one call at first; more when records are longer.
const READ_AHEAD: usize = 32 << 10;
/// Room for the longest record.
const MOST_READ_AHEAD: usize = MAX_RECORD.next_power_of_two();

/// The stream of records that this end sends.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// From `start` on.
    kept: VecDeque<u8>,
    /// Number of the first byte that is kept: all before it are confirmed.
    start: u64,
    /// Number of the next byte for the socket.
    next: u64,
    /// Bytes before this number are to be sent as soon as the socket takes them.
    urgent: u64,
}

impl Outgoing {
    /// Appends a record that is to be sent at once.
    pub fn push(&mut self, record: &Record<'_>) {
        self.push_later(record);
        self.urgent = self.end();
    }

    /// Appends a record that may wait for the next one that is sent at once.
    pub fn push_later(&mut self, record: &Record<'_>) {
        record.encode(|piece| self.kept.extend(piece));
    }

    /// Tells whether the socket has not seen all that is to be sent at once.
    pub fn is_urgent(&self) -> bool {
        self.next < self.urgent
    }

    /// Bytes that the current socket has not seen, in two pieces.
    pub fn unsent(&self) -> (&[u8], &[u8]) {
        let skip = (self.next - self.start) as usize;
        let (first, second) = self.kept.as_slices();
        match first.get(skip..) {
            Some(rest) => (rest, second),
            None => (&second[skip - first.len()..], &[]),
        }
    }

    /// Tells whether the current socket has seen everything.
    pub fn is_sent(&self) -> bool {
        self.next == self.end()
    }

    /// The socket took `bytes` of [`Outgoing::unsent`].
    pub fn sent(&mut self, bytes: usize) {
        self.next = (self.next + bytes as u64).min(self.end());
    }

    /// Bytes that the peer has not confirmed.
    pub fn unconfirmed(&self) -> usize {
        self.kept.len()
    }

    /// The peer has understood everything before `consumed`.
    ///
    /// # Errors
    /// A sentence when that cannot be.
    pub fn confirm(&mut self, consumed: u64) -> Result<(), String> {
        if consumed > self.next {
            return Err(format!("it confirms {consumed} bytes, {} were sent", self.next));
        }
        // An older confirmation may arrive after a newer one told at a reconnection.
        let forget = consumed.saturating_sub(self.start);
        self.kept.drain(..forget as usize);
        self.start += forget;
        Ok(())
    }

    /// A new socket; the peer has consumed this much.
    ///
    /// # Errors
    /// A sentence when that cannot be.
    pub fn resume(&mut self, consumed: u64) -> Result<(), String> {
        if consumed < self.start {
            return Err(format!("it wants byte {consumed} again after it confirmed {}", self.start));
        }
        self.confirm(consumed)?;
        (self.next, self.urgent) = (self.start, self.end());
        Ok(())
    }

    fn end(&self) -> u64 {
        self.start + self.kept.len() as u64
    }
}

/// The stream of records that the peer sends.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    buffer: Vec<u8>,
    /// Valid bytes of the buffer.
    have: usize,
    consumed: u64,
    /// Told to the peer last.
    confirmed: u64,
}

impl Incoming {
    /// The place for the socket's next bytes; tell [`Incoming::filled`] how many there were.
    pub fn space(&mut self) -> &mut [u8] {
        if self.have == self.buffer.len() {
            let more = (self.buffer.len() * 2).clamp(READ_AHEAD, MOST_READ_AHEAD);
            self.buffer.resize(more, 0);
        }
        &mut self.buffer[self.have..]
    }

    /// `bytes` of [`Incoming::space`] are now valid. Hands every whole record to `take`.
    ///
    /// # Errors
    /// What `take` said, or a sentence about bytes that are no record. The stream is useless afterwards.
    pub fn filled<E: From<String>>(
        &mut self,
        bytes: usize,
        mut take: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.have = (self.have + bytes).min(self.buffer.len());
        let mut at = 0;
        while let Some((record, len)) = Record::parse(&self.buffer[at..self.have]).map_err(E::from)? {
            take(record)?;
            at += len;
            self.consumed += len as u64;
        }
        self.buffer.copy_within(at..self.have, 0);
        self.have -= at;
        Ok(())
    }

    /// Number of the first byte that was not understood yet.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// The number to confirm, if the peer has to keep at least `threshold` bytes because it does not know it.
    pub fn take_confirmation(&mut self, threshold: u64) -> Option<u64> {
        if self.consumed - self.confirmed < threshold.max(1) {
            return None;
        }
        self.confirmed = self.consumed;
        Some(self.consumed)
    }

    /// A new socket, on which the peer goes on at [`Incoming::consumed`].
    pub fn restart(&mut self) {
        self.have = 0;
        self.confirmed = self.consumed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Moves up to `bytes` bytes, of which the reader gets only `arrive`, and returns the slots it saw.
    fn carry(out: &mut Outgoing, inc: &mut Incoming, bytes: usize, arrive: usize) -> Vec<u64> {
        let (first, second) = out.unsent();
        let data: Vec<u8> = first.iter().chain(second).copied().take(bytes).collect();
        out.sent(data.len());
        let data = &data[..data.len().min(arrive)];
        inc.space()[..data.len()].copy_from_slice(data);
        let mut slots = Vec::new();
        let take = |record: Record<'_>| {
            let Record::Done { slot } = record else { return Err(format!("{record:?}")) };
            slots.push(slot);
            Ok(())
        };
        inc.filled::<String>(data.len(), take).unwrap();
        slots
    }

    #[test]
    fn a_confirmation_frees_memory_and_lies_are_noticed() {
        let (mut out, mut inc) = (Outgoing::default(), Incoming::default());
        for slot in 0..4 {
            out.push(&Record::Done { slot });
        }
        assert_eq!(carry(&mut out, &mut inc, 40, 40), [0, 1]);
        assert_eq!(inc.take_confirmation(33), None);
        assert_eq!(inc.take_confirmation(32), Some(32));
        assert_eq!(inc.take_confirmation(1), None);
        out.confirm(32).unwrap();
        assert_eq!(out.unconfirmed(), 32);
        out.confirm(16).unwrap();
        assert!(out.confirm(41).is_err());
        assert!(out.resume(31).is_err());
        assert!(!out.is_sent());
    }

    #[test]
    fn the_longest_record_fits() {
        let (mut out, mut inc) = (Outgoing::default(), Incoming::default());
        let data = vec![7; crate::frame::MAX_INLINE];
        out.push(&Record::Inline { slot: 5, data: &data });
        let mut seen = 0;
        while !out.is_sent() {
            let space = inc.space();
            let (first, second) = out.unsent();
            let bytes = if first.is_empty() { second } else { first };
            let count = bytes.len().min(space.len());
            assert!(count > 0);
            space[..count].copy_from_slice(&bytes[..count]);
            out.sent(count);
            inc.filled::<String>(count, |record| {
                seen += usize::from(record == Record::Inline { slot: 5, data: &data });
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(seen, 1);
    }

    #[test]
    fn garbage_is_an_error() {
        let mut inc = Incoming::default();
        inc.space()[..8].fill(0xff);
        assert!(inc.filled::<String>(8, |_| Ok(())).is_err());
    }

    proptest! {
        #[test]
        fn every_record_arrives_once_however_often_the_socket_is_lost(
            steps in prop::collection::vec((0usize..90, 0usize..90, 0u8..4, any::<bool>()), 1..80)
        ) {
            let (mut out, mut inc) = (Outgoing::default(), Incoming::default());
            let (mut written, mut seen) = (0, Vec::new());
            for (bytes, lost, records, confirm) in steps {
                for _ in 0..records {
                    out.push(&Record::Done { slot: written });
                    written += 1;
                }
                let arrive = bytes.saturating_sub(lost);
                seen.extend(carry(&mut out, &mut inc, bytes, arrive));
                if confirm && let Some(consumed) = inc.take_confirmation(1) {
                    out.confirm(consumed).unwrap();
                }
                // What did not arrive is only ever lost together with the socket.
                if lost > 0 {
                    inc.restart();
                    out.resume(inc.consumed()).unwrap();
                }
            }
            seen.extend(carry(&mut out, &mut inc, usize::MAX, usize::MAX));
            prop_assert_eq!(seen, (0..written).collect::<Vec<_>>());
            out.confirm(inc.consumed()).unwrap();
            prop_assert_eq!(out.unconfirmed(), 0);
        }
    }
}

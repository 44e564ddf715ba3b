//! A data socket at the receiver: reads chunks straight into the posted buffers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use hawser_oob::seal::{self, Forged, Opener, SessionKeys, TAG};
use hawser_oob::socket::{self, Moved};

use crate::control::Loss;
use crate::frame::{CHUNK_HEADER, ChunkHeader};
use crate::pool::{Ticket, lock, try_lock};
use crate::ready::{Flag, Reported};
use crate::service::Watch;
use crate::sys::{self, Span};
use crate::table::Table;

/// One data socket of a connection, whichever socket that is at the time.
pub(crate) struct RxPipe {
    lane: Mutex<Lane>,
    readable: Arc<Flag>,
}

/// The threads that hear of a socket: its own, of its end the service thread, and without a thread the
/// host's.
#[derive(Default)]
pub(crate) struct Joined {
    /// The socket's place in the pool of threads.
    pub ticket: Option<Ticket>,
    /// The watch that reports the socket's end.
    pub _watch: Option<Watch>,
    /// The report of what comes, for the host's threads.
    pub _reported: Option<Reported>,
}

/// The part of a data socket that its driver owns.
pub(crate) struct Lane {
    socket: Option<OwnedFd>,
    joined: Joined,
    /// Of the socket, or of the last one: it will not be used again.
    generation: u32,
    /// Whole chunks that this socket brought.
    chunks: u64,
    /// The bytes between payloads: where chunks are sealed, the tag of the one before; then the header, and
    /// its tag.
    between: [u8; TAG + CHUNK_HEADER + TAG],
    /// Bytes of that which are there.
    have: usize,
    /// Looks at the seals of chunks, if they have any.
    opener: Option<Opener>,
    current: Option<Current>,
    /// No socket comes any more: the host's memory is its own again.
    is_barred: bool,
}

struct Current {
    slot: u64,
    addr: u64,
    len: usize,
    /// Bytes that are still to come.
    left: usize,
}

/// The outcome of driving a data socket.
pub(crate) enum Driven {
    /// Nothing more has arrived.
    Wait,
    /// Its share of bytes is moved.
    Again,
    /// The socket is closed.
    Lost { last: Final, loss: Loss },
    /// The peer speaks nonsense.
    Nonsense(String),
}

/// The number of whole chunks that a closed socket brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Final {
    /// The number of the socket that was closed.
    pub generation: u32,
    /// The number of whole chunks that it brought.
    pub chunks: u64,
}

impl RxPipe {
    pub fn new() -> Self {
        let lane = Mutex::new(Lane {
            socket: None,
            joined: Joined::default(),
            generation: 0,
            chunks: 0,
            between: [0; TAG + CHUNK_HEADER + TAG],
            have: 0,
            opener: None,
            current: None,
            is_barred: false,
        });
        Self { lane, readable: Arc::default() }
    }

    /// The flag that says whether something may have come that only the host's thread reads.
    pub fn readable(&self) -> &Arc<Flag> {
        &self.readable
    }

    fn lane(&self) -> MutexGuard<'_, Lane> {
        lock(&self.lane)
    }

    /// Reads until nothing more has arrived or `share` bytes are moved. Adds the slots that are complete to
    /// `complete`. A read that brings less than it could has emptied the socket; only `to_the_end` looks for
    /// an end of stream behind it.
    pub fn drive(
        &self,
        table: &Mutex<Table>,
        share: usize,
        to_the_end: bool,
        complete: &mut Vec<u64>,
    ) -> Driven {
        drive_lane(self.lane(), table, share, to_the_end, complete)
    }

    /// As [`RxPipe::drive`], unless somebody else drives it now.
    pub fn try_drive(&self, table: &Mutex<Table>, share: usize, complete: &mut Vec<u64>) -> Option<Driven> {
        Some(drive_lane(try_lock(&self.lane)?, table, share, false, complete))
    }

    /// A new socket, sealed if there are keys, unless a younger one was here or `join` finds nobody to read
    /// it; `welcome` says the last words of the handshake on it. If an old one was still here it is closed
    /// now, and the result says how far it came.
    pub fn attach(
        &self,
        (socket, keys): (OwnedFd, Option<SessionKeys>),
        generation: u32,
        join: impl FnOnce(BorrowedFd<'_>) -> Option<Joined>,
        welcome: impl FnOnce(BorrowedFd<'_>) -> bool,
    ) -> Option<Option<Final>> {
        let mut lane = self.lane();
        if generation <= lane.generation || lane.is_barred {
            return None;
        }
        let last = lane.close();
        lane.generation = generation;
        let Some(joined) = join(socket.as_fd()) else { return Some(last) };
        if !welcome(socket.as_fd()) {
            return Some(last);
        }
        (lane.chunks, lane.have, lane.current) = (0, 0, None);
        lane.opener = keys.map(|keys| keys.into_ends().1);
        lane.joined = joined;
        lane.socket = Some(socket);
        // Data may have come before the threads knew the socket.
        if let Some(ticket) = &lane.joined.ticket {
            ticket.wake();
        }
        Some(last)
    }

    /// The sender has lost the socket of this generation. Some: how far it came, to be told once.
    pub fn settle(&self, generation: u32) -> Option<Final> {
        let mut lane = self.lane();
        if generation > lane.generation {
            // It never came here, and will not be let in any more.
            let _ = lane.close();
            lane.generation = generation;
            return Some(Final { generation, chunks: 0 });
        }
        (generation == lane.generation).then(|| lane.close()).flatten()
    }

    /// Lets go of the socket for good. Afterwards nothing writes to memory of the host.
    pub fn close(&self) {
        let mut lane = self.lane();
        lane.is_barred = true;
        let _ = lane.close();
    }

    /// Ends the socket as a failing network would.
    pub fn cut(&self) -> bool {
        let lane = self.lane();
        lane.socket.as_ref().inspect(|socket| socket::cut(socket.as_fd())).is_some()
    }
}

fn drive_lane(
    mut lane: MutexGuard<'_, Lane>,
    table: &Mutex<Table>,
    share: usize,
    to_the_end: bool,
    complete: &mut Vec<u64>,
) -> Driven {
    let mut moved = 0;
    loop {
        match lane.read(table, complete) {
            Ok(Read::Full(count)) => moved += count,
            Ok(Read::Short(count)) if to_the_end && count > 0 => moved += count,
            Ok(Read::Short(_)) => return Driven::Wait,
            Ok(Read::End(loss)) => {
                let last = lane.close();
                return last.map_or(Driven::Wait, |last| Driven::Lost { last, loss });
            }
            Err(text) => {
                lane.close();
                return Driven::Nonsense(text);
            }
        }
        if moved >= share {
            return Driven::Again;
        }
    }
}

enum Read {
    /// As much as was asked for; there may be more.
    Full(usize),
    /// Less: the socket is empty.
    Short(usize),
    End(Loss),
}

impl Lane {
    /// One call of the kernel: the rest of the current chunk and the next header.
    fn read(&mut self, table: &Mutex<Table>, complete: &mut Vec<u64>) -> Result<Read, String> {
        let Some(socket) = &self.socket else { return Ok(Read::Short(0)) };
        let payload = match &self.current {
            Some(current) => {
                Span { addr: current.addr + (current.len - current.left) as u64, len: current.left }
            }
            None => Span { addr: self.between.as_ptr() as u64, len: 0 },
        };
        let wanted = self.between_len();
        let between = Span::of_mut(&mut self.between[self.have..wanted]);
        let asked = payload.len + between.len;
        // SAFETY: what comes between payloads is this lane's own. The payload lies in a posted segment, as
        // `Table::place` has checked; the host leaves it alone until the receive is over, and that needs
        // these bytes; `close` ends the writing for good.
        let count = match unsafe { sys::receive_spans(socket.as_fd(), [payload, between]) } {
            Ok(Moved::Bytes(count)) => count,
            Ok(Moved::Nothing) => return Ok(Read::Short(0)),
            Ok(Moved::Closed) => return Ok(Read::End(Loss::end_of_stream())),
            Err(errno) => return Ok(Read::End(Loss::of(errno))),
        };
        let of_payload = count.min(payload.len);
        self.have += count - of_payload;
        if let Some(current) = &mut self.current {
            current.left -= of_payload;
            if current.left == 0 && (self.opener.is_none() || self.have >= TAG) {
                self.finish(table, complete)?;
            }
        }
        if self.current.is_none() && self.have == self.between_len() {
            self.begin(table)?;
        }
        Ok(if count == asked { Read::Full(count) } else { Read::Short(count) })
    }

    /// Bytes that come before the next payload.
    fn between_len(&self) -> usize {
        match (&self.opener, &self.current) {
            (None, _) => CHUNK_HEADER,
            (Some(_), None) => CHUNK_HEADER + TAG,
            (Some(_), Some(_)) => TAG + CHUNK_HEADER + TAG,
        }
    }

    /// The payload of the current chunk is there, and its tag if it has one.
    fn finish(&mut self, table: &Mutex<Table>, complete: &mut Vec<u64>) -> Result<(), String> {
        let Some(Current { slot, addr, len, .. }) = self.current.take() else { return Ok(()) };
        if let Some(opener) = &mut self.opener {
            // SAFETY: as in `read`: the payload is still this lane's.
            let payload = unsafe { std::slice::from_raw_parts_mut(addr as *mut u8, len) };
            let tag = self.between.first_chunk::<TAG>().ok_or("no tag")?;
            opener.open(&[], payload, tag).map_err(|Forged| seal::reason(seal::FORGED))?;
            self.between.copy_within(TAG..self.have, 0);
            self.have -= TAG;
        }
        if lock(table).arrived(slot, len as u64)? {
            complete.push(slot);
        }
        self.chunks += 1;
        Ok(())
    }

    /// The header of the next chunk is there, and its tag if it has one. Nothing of it is believed before.
    fn begin(&mut self, table: &Mutex<Table>) -> Result<(), String> {
        let (header, rest) = self.between.split_at_mut(CHUNK_HEADER);
        if let (Some(opener), Some(tag)) = (&mut self.opener, rest.first_chunk::<TAG>()) {
            opener.open(&[], header, tag).map_err(|Forged| seal::reason(seal::FORGED))?;
        }
        let header = header.first_chunk::<CHUNK_HEADER>().ok_or("no header")?;
        let chunk = ChunkHeader::parse(header)?;
        let addr = lock(table).place(&chunk)?;
        let len = chunk.len as usize;
        self.current = Some(Current { slot: chunk.slot, addr, len, left: len });
        self.have = 0;
        Ok(())
    }

    /// Drops the socket. Some: there was one.
    fn close(&mut self) -> Option<Final> {
        let last = Final { generation: self.generation, chunks: self.chunks };
        self.joined = Joined::default();
        (self.current, self.have, self.opener) = (None, 0, None);
        self.socket.take().map(|_| last)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use hawser_oob::handshake::{Connector, Key, Protocol, Responder};
    use hawser_oob::seal::Sealer;
    use hawser_plugin::net::{Registration, Segment};
    use proptest::prelude::*;

    use super::*;

    /// The keys of both ends of a connection.
    fn keys() -> (SessionKeys, SessionKeys) {
        let protocol = Protocol { magic: *b"HAWStest", version: 1, greeting: 0, answer: 0, welcome: 0 };
        let key = Key::derive(&[5; 32], "test");
        let mut near = Connector::new(protocol, &key, [1; 32], &[]);
        let (mut far, challenge) = Responder::new(protocol, &key, near.greeting(), [2; 32]);
        far.check(&near.answer(&challenge, &[]).unwrap()).unwrap();
        (near.session().unwrap().clone(), far.session())
    }

    /// A sealed chunk of `data` as the only one of its message, for slot `slot`.
    fn chunk(sealer: &mut Sealer, slot: u64, data: &[u8]) -> Vec<u8> {
        let length = data.len();
        let mut header = ChunkHeader { slot, total: length as u64, offset: 0, len: length as u32 }.encode();
        let mut payload = data.to_vec();
        let tags = [sealer.seal(&[], &mut header), sealer.seal(&[], &mut payload)];
        [&header[..], &tags[0], &payload, &tags[1]].concat()
    }

    /// The slots that a pipe takes for complete when `wire` comes, in pieces of `piece` bytes, and whether it
    /// says that the peer speaks nonsense. `memory` is what is posted, one segment each.
    fn taken(memory: &mut [[u8; 300]], wire: &[u8], piece: usize, keys: SessionKeys) -> (Vec<u64>, bool) {
        let table = Mutex::new(Table::default());
        for segment in memory {
            let segment = Segment {
                addr: segment.as_mut_ptr() as u64,
                bytes: segment.len(),
                registration: Registration(0),
                tag: 0,
                profile: 0,
            };
            lock(&table).post(&[segment]).unwrap();
        }
        let (here, mut there) = UnixStream::pair().unwrap();
        let (pipe, mut complete) = (RxPipe::new(), Vec::new());
        pipe.attach((here.into(), Some(keys)), 1, |_| Some(Joined::default()), |_| true).unwrap();
        for part in wire.chunks(piece) {
            there.write_all(part).unwrap();
            if let Driven::Nonsense(text) = pipe.drive(&table, usize::MAX, false, &mut complete) {
                assert!(text.contains("wrong seal"), "{text}");
                return (complete, true);
            }
        }
        (complete, false)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Chunks that somebody changes, repeats, swaps or leaves out are not taken, nor any behind them.
        #[test]
        fn sealed_chunks_are_taken_as_they_were_sent(
            sizes in prop::collection::vec(1usize..300, 2..5), piece in 1usize..400, kind in 0u8..5,
            at: prop::sample::Index, other: prop::sample::Index, bit in 0u8..8
        ) {
            let (near, far) = keys();
            let mut sealer = near.into_ends().0;
            let data: Vec<Vec<u8>> =
                sizes.iter().enumerate().map(|(i, size)| vec![i as u8 + 1; *size]).collect();
            let mut sent: Vec<Vec<u8>> =
                (0..).zip(&data).map(|(slot, data)| chunk(&mut sealer, slot, data)).collect();
            let (i, j) = (at.index(sent.len()), other.index(sent.len()));
            let good = match kind {
                0 => {
                    let byte = other.index(sent[i].len());
                    sent[i][byte] ^= 1 << bit;
                    Some(i)
                }
                1 => {
                    let copy = sent[i.min(j)].clone();
                    sent.insert(i.max(j) + 1, copy);
                    Some(i.max(j) + 1)
                }
                2 if i != j => {
                    sent.swap(i, j);
                    Some(i.min(j))
                }
                3 if i + 1 < sent.len() => {
                    sent.remove(i);
                    Some(i)
                }
                _ => None,
            };
            let mut memory = vec![[0; 300]; data.len()];
            let (complete, is_nonsense) = taken(&mut memory, &sent.concat(), piece, far);
            let whole = good.unwrap_or(data.len());
            prop_assert_eq!(complete, (0..whole as u64).collect::<Vec<_>>());
            prop_assert_eq!(is_nonsense, good.is_some());
            for (memory, data) in memory.iter().zip(&data[..whole]) {
                prop_assert_eq!(&memory[..data.len()], &data[..]);
            }
        }
    }

    #[test]
    fn a_closed_pipe_welcomes_nobody() {
        let pipe = RxPipe::new();
        let mut welcomed = 0;
        let mut come = |generation, has_reader: bool| {
            let (here, _there) = UnixStream::pair().unwrap();
            let last = pipe.attach(
                (here.into(), None),
                generation,
                |_| has_reader.then(Joined::default),
                |_| {
                    welcomed += 1;
                    true
                },
            );
            (last, welcomed)
        };
        assert_eq!(come(1, true), (Some(None), 1));
        assert_eq!(come(1, true), (None, 1), "once");
        let last = Some(Some(Final { generation: 1, chunks: 0 }));
        assert_eq!(come(2, false), (last, 1), "no thread would read it");
        assert_eq!(come(2, true), (None, 1), "the sender dials with a number of its own each time");
        assert_eq!(come(3, true), (Some(None), 2));
        pipe.close();
        assert_eq!(come(4, true), (None, 2));
    }
}

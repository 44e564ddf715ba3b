//! A data socket at the receiver: reads chunks straight into the posted buffers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

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

/// Who hears of a socket: its thread, of its end the service thread, and without a thread the host's.
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
    header: [u8; CHUNK_HEADER],
    /// Bytes of the header that are there.
    have: usize,
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
            header: [0; CHUNK_HEADER],
            have: 0,
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

    /// A new socket, unless a younger one was here or `join` finds nobody to read it; `welcome` says the last
    /// words of the handshake on it. If an old one was still here it is closed now, and the result says how
    /// far it came.
    pub fn attach(
        &self,
        socket: OwnedFd,
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
            None => Span { addr: self.header.as_ptr() as u64, len: 0 },
        };
        let header = Span::of_mut(&mut self.header[self.have..]);
        let asked = payload.len + header.len;
        // SAFETY: the header is this lane's own. The payload lies in a posted segment, as `Table::place` has
        // checked; the host leaves it alone until the receive is over, and that needs these bytes; `close`
        // ends the writing for good.
        let count = match unsafe { sys::receive_spans(socket.as_fd(), [payload, header]) } {
            Ok(Moved::Bytes(count)) => count,
            Ok(Moved::Nothing) => return Ok(Read::Short(0)),
            Ok(Moved::Closed) => return Ok(Read::End(Loss::end_of_stream())),
            Err(errno) => return Ok(Read::End(Loss::of(errno))),
        };
        let of_payload = count.min(payload.len);
        if let Some(current) = &mut self.current {
            current.left -= of_payload;
            if current.left == 0 {
                if lock(table).arrived(current.slot, current.len as u64)? {
                    complete.push(current.slot);
                }
                self.chunks += 1;
                self.current = None;
            }
        }
        self.have += count - of_payload;
        if self.have == CHUNK_HEADER {
            let chunk = ChunkHeader::parse(&self.header)?;
            let addr = lock(table).place(&chunk)?;
            let len = chunk.len as usize;
            self.current = Some(Current { slot: chunk.slot, addr, len, left: len });
            self.have = 0;
        }
        Ok(if count == asked { Read::Full(count) } else { Read::Short(count) })
    }

    /// Drops the socket. Some: there was one.
    fn close(&mut self) -> Option<Final> {
        let last = Final { generation: self.generation, chunks: self.chunks };
        self.joined = Joined::default();
        (self.current, self.have) = (None, 0);
        self.socket.take().map(|_| last)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_closed_pipe_welcomes_nobody() {
        let pipe = RxPipe::new();
        let mut welcomed = 0;
        let mut come = |generation, has_reader: bool| {
            let (here, _there) = UnixStream::pair().unwrap();
            let last = pipe.attach(
                here.into(),
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

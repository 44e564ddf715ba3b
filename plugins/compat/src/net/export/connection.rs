//! Connections of an exported plugin: what `listenComm`, `sendComm`, `recvComm` and requests point to.

use std::sync::{Arc, Mutex, MutexGuard};

use hawser_plugin::net::{Listener, MAX_RECVS, Receiver, Region, Registration, Request, Segment, Sender};
use hawser_plugin::{Error, Result};

use super::context::Context;

/// A `listenComm`.
pub struct ListenComm {
    listener: Mutex<Box<dyn Listener>>,
    context: Arc<Context>,
}

impl ListenComm {
    pub fn new(listener: Box<dyn Listener>, context: Arc<Context>) -> Self {
        Self { listener: Mutex::new(listener), context }
    }

    /// One attempt to accept.
    pub fn accept(&self) -> Result<Option<Box<Comm>>> {
        let receiver = self.listener.lock().map_err(|_| after_panic())?.accept()?;
        Ok(receiver.map(|receiver| Comm::new(End::Receiver(receiver), self.context.clone())))
    }
}

/// A `sendComm` or `recvComm`: functions such as `regMr` take both.
pub struct Comm {
    inner: Mutex<Inner>,
    /// Declared after the end, so dropped after it.
    _context: Arc<Context>,
}

/// The end of a connection.
pub enum End {
    Sender(Box<dyn Sender>),
    Receiver(Box<dyn Receiver>),
}

struct Inner {
    end: End,
    slots: Vec<Slot>,
    /// Indices of slots without a request.
    free: Vec<usize>,
}

struct Slot {
    /// The object that C holds. It is boxed, as it must stay where it is.
    ticket: *mut Ticket,
    /// None: free.
    flight: Option<Flight>,
}

#[derive(Clone, Copy)]
struct Flight {
    request: Request,
    /// Segments of a receive; 0 of a flush.
    segments: usize,
}

/// A request as C sees it: the way to its connection and its slot there.
pub struct Ticket {
    pub comm: *const Comm,
    slot: usize,
}

// SAFETY: the tickets of a connection are its own; they are written when they are made and read after that.
unsafe impl Send for Inner {}

impl Comm {
    pub fn new(end: End, context: Arc<Context>) -> Box<Self> {
        let inner = Inner { end, slots: Vec::new(), free: Vec::new() };
        Box::new(Self { inner: Mutex::new(inner), _context: context })
    }

    /// # Safety
    /// As [`Sender::register`].
    pub unsafe fn register(&self, region: &Region) -> Result<Registration> {
        // SAFETY: the caller's promise.
        unsafe {
            match &mut self.inner()?.end {
                End::Sender(sender) => sender.register(region),
                End::Receiver(receiver) => receiver.register(region),
            }
        }
    }

    pub fn deregister(&self, registration: Registration) -> Result<()> {
        match &mut self.inner()?.end {
            End::Sender(sender) => sender.deregister(registration),
            End::Receiver(receiver) => receiver.deregister(registration),
        }
    }

    /// # Safety
    /// As [`Sender::isend`].
    pub unsafe fn isend(&self, segment: &Segment) -> Result<*mut Ticket> {
        let mut inner = self.inner()?;
        let End::Sender(sender) = &mut inner.end else { return Err(wrong_end("isend")) };
        // SAFETY: the caller's promise.
        let request = unsafe { sender.isend(segment) }?;
        Ok(self.ticket(&mut inner, request, 1))
    }

    /// # Safety
    /// As [`Receiver::irecv`].
    pub unsafe fn irecv(&self, segments: &[Segment], optional_completion: bool) -> Result<*mut Ticket> {
        let mut inner = self.inner()?;
        let End::Receiver(receiver) = &mut inner.end else { return Err(wrong_end("irecv")) };
        // SAFETY: the caller's promise.
        let request = unsafe { receiver.irecv(segments, optional_completion) }?;
        Ok(self.ticket(&mut inner, request, segments.len()))
    }

    /// # Safety
    /// As [`Receiver::flush`].
    pub unsafe fn flush(&self, segments: &[Segment]) -> Result<*mut Ticket> {
        let mut inner = self.inner()?;
        let End::Receiver(receiver) = &mut inner.end else { return Err(wrong_end("iflush")) };
        // SAFETY: the caller's promise.
        let request = unsafe { receiver.flush(segments) }?;
        Ok(self.ticket(&mut inner, request, 0))
    }

    /// Asks whether the request of a ticket is over, and then answers how many of `sizes` count. They come in
    /// as what the host assumes if the plugin does not know.
    pub fn test(&self, ticket: &Ticket, sizes: &mut [usize; MAX_RECVS]) -> Result<Option<usize>> {
        let mut inner = self.inner()?;
        let flight = inner.flight(ticket)?;
        let done = match &mut inner.end {
            End::Sender(sender) => sender.test(flight.request)?.map(|bytes| sizes[0] = bytes).is_some(),
            End::Receiver(receiver) => receiver.test(flight.request, &mut sizes[..flight.segments])?,
        };
        if !done {
            return Ok(None);
        }
        inner.slots[ticket.slot].flight = None;
        inner.free.push(ticket.slot);
        Ok(Some(flight.segments))
    }

    /// The pointer that C gets for a request; NULL for none.
    fn ticket(&self, inner: &mut Inner, request: Option<Request>, segments: usize) -> *mut Ticket {
        let Some(request) = request else { return std::ptr::null_mut() };
        let at = inner.free.pop().unwrap_or_else(|| {
            let slot = inner.slots.len();
            let ticket = Box::into_raw(Box::new(Ticket { comm: self, slot }));
            inner.slots.push(Slot { ticket, flight: None });
            slot
        });
        let slot = &mut inner.slots[at];
        slot.flight = Some(Flight { request, segments });
        slot.ticket
    }

    fn inner(&self) -> Result<MutexGuard<'_, Inner>> {
        self.inner.lock().map_err(|_| after_panic())
    }
}

impl Inner {
    fn flight(&self, ticket: &Ticket) -> Result<Flight> {
        let flight = self.slots.get(ticket.slot).and_then(|slot| slot.flight);
        flight.ok_or_else(|| Error::internal("this request is over already"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for slot in &self.slots {
            // SAFETY: it was made by `Box::into_raw`; NCCL tests no request of a connection that it has
            // closed.
            drop(unsafe { Box::from_raw(slot.ticket) });
        }
    }
}

fn after_panic() -> Error {
    Error::internal("an earlier call panicked, the connection is not used any further")
}

fn wrong_end(call: &str) -> Error {
    Error::internal(format!("{call} on the wrong end of a connection"))
}

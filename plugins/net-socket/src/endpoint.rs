//! Both ends of a connection as the host holds them: arguments are checked here.

use std::sync::Arc;

use hawser_plugin::net::{MAX_RECVS, Receiver, Region, Registration, Request, Segment, Sender};
use hawser_plugin::{Error, Result};

use crate::region::Regions;
use crate::rx::RxConn;
use crate::tx::TxConn;

/// The sending end.
pub(crate) struct SocketSender {
    connection: Arc<TxConn>,
    regions: Regions,
}

impl SocketSender {
    pub fn new(connection: Arc<TxConn>) -> Self {
        Self { connection, regions: Regions::default() }
    }
}

impl Sender for SocketSender {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        self.regions.register(region)
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.regions.deregister(registration)
    }

    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>> {
        self.regions.check(segment)?;
        // SAFETY: the caller vouches for the segment; the region says that it is memory of this process.
        Ok(unsafe { self.connection.isend(segment) }?.map(Request))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        self.connection.test(request.0)
    }
}

impl Drop for SocketSender {
    fn drop(&mut self) {
        self.connection.close();
    }
}

/// The receiving end.
pub(crate) struct SocketReceiver {
    connection: Arc<RxConn>,
    regions: Regions,
}

impl SocketReceiver {
    pub fn new(connection: Arc<RxConn>) -> Self {
        Self { connection, regions: Regions::default() }
    }
}

impl Receiver for SocketReceiver {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        self.regions.register(region)
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.regions.deregister(registration)
    }

    unsafe fn irecv(&mut self, segments: &[Segment], _optional_completion: bool) -> Result<Option<Request>> {
        if segments.is_empty() || segments.len() > MAX_RECVS {
            let text = format!("a receive of {} segments; 1 to {MAX_RECVS} can be", segments.len());
            return Err(Error::internal(text));
        }
        segments.iter().try_for_each(|segment| self.regions.check(segment))?;
        // SAFETY: the caller vouches for the segments; the regions say that they are memory of this process.
        Ok(unsafe { self.connection.irecv(segments) }?.map(Request))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool> {
        self.connection.test(request.0, sizes)
    }
}

impl Drop for SocketReceiver {
    fn drop(&mut self) {
        self.connection.close();
    }
}

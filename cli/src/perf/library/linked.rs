//! The runtime that this program is linked with, called without the C interface between.

use anyhow::{Context, Result};
use hawser_plan::Call;
use hawser_runtime::{Comm, Config, Error, Stream, UniqueId, group, unique_id};

use super::{About, Communicator, Decided, Explained, Id, Joining, Library, Stop};

/// The linked runtime.
pub struct Linked {
    about: About,
}

impl Linked {
    /// It is always there.
    pub fn new() -> Self {
        Self { about: About { path: None, version: format!("hawser {}", env!("CARGO_PKG_VERSION")) } }
    }
}

impl Library for Linked {
    fn about(&self) -> &About {
        &self.about
    }

    fn unique_id(&self) -> Result<Id> {
        Ok(unique_id()?.to_bytes())
    }

    fn join(&self, joining: &Joining) -> Result<Box<dyn Communicator>> {
        let (host, name) = (joining.host.clone(), joining.name.clone());
        let config = Config { host, name, ..Config::default() };
        let id = UniqueId::from_bytes(joining.id)?;
        let comm = Comm::init(&[id], joining.ranks, joining.rank, joining.device.caps().ordinal, config)
            .map_err(|error| of_rank(error, joining.rank))?;
        Ok(Box::new(Rank(comm)))
    }

    fn group_start(&self) -> Result<()> {
        Ok(group::start()?)
    }

    fn group_end(&self) -> Result<()> {
        Ok(group::end()?)
    }
}

/// An error with its rank in front, unless it names that already.
fn of_rank(error: Error, rank: u32) -> Error {
    error.on_rank(rank, format_args!("rank {rank}"))
}

struct Rank(Comm);

impl Communicator for Rank {
    fn collective(&self, call: &Call, stream: Stream) -> Result<()> {
        Ok(self.0.collective(*call, stream)?)
    }

    fn send(&self, addr: u64, bytes: u64, peer: u32, stream: Stream) -> Result<()> {
        Ok(self.0.send(addr, bytes, peer, stream)?)
    }

    fn recv(&self, addr: u64, bytes: u64, peer: u32, stream: Stream) -> Result<()> {
        Ok(self.0.recv(addr, bytes, peer, stream)?)
    }

    fn register(&self, addr: u64, bytes: u64) -> Result<()> {
        Ok(self.0.register_buffer(addr, bytes)?)
    }

    fn ctas(&self) -> Option<u32> {
        let last = self.0.last_decision().ok()??;
        let reduces = ["all_reduce", "reduce_scatter", "reduce"].contains(&&*last.collective);
        Some(if last.route.is_copied() && !reduces { 0 } else { last.channels })
    }

    fn healthy(&self) -> Result<()> {
        match self.0.async_error() {
            Some(error) => Err(of_rank(error, self.0.rank()).into()),
            None => Ok(()),
        }
    }

    fn stop(&self) -> Stop {
        let comm = self.0.clone();
        Box::new(move || {
            // The communicator is lost either way; the cause is already recorded.
            let _ = comm.abort();
        })
    }

    fn explain(&self, call: &Call) -> Result<Option<Explained>> {
        let decision = self.0.explain(call)?;
        Ok(Some(Explained { decision: Decided::from(&decision), text: decision.why.to_string() }))
    }

    fn destroy(&self) -> Result<()> {
        self.0.destroy().with_context(|| format!("rank {}: destroying the communicator", self.0.rank()))
    }

    fn abort(&self) {
        // Fails, as it should, after `destroy`.
        let _ = self.0.abort();
    }
}

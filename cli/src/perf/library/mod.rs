//! The library that is measured: the linked runtime, or a `libnccl.so.2` that is loaded by its path.
//!
//! Buffers, streams, graphs, loops and checks are the same for both; only the calls of a communicator differ.

mod api;
mod linked;
mod loaded;

use std::fmt;
use std::path::Path;

use anyhow::Result;
use hawser_device::{Device, Memory};
use hawser_plan::{Algorithm, Call, Decision, Route};
use hawser_runtime::Stream;
use serde::{Deserialize, Serialize};

/// Bytes of a unique id.
pub const ID_BYTES: usize = 128;

/// A unique id as it travels between processes.
pub type Id = [u8; ID_BYTES];

/// Makes one communicator's calls return with an error soon; may be called from any thread, at any time.
pub type Stop = Box<dyn Fn() + Send>;

/// The name and version of the library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct About {
    /// Its path; None for the linked runtime.
    pub path: Option<String>,
    /// The NCCL version that it claims to be, or that of this program.
    pub version: String,
}

/// The place of a rank to be.
pub struct Joining<'a> {
    /// The unique id that all ranks share.
    pub id: &'a Id,
    /// Number of ranks.
    pub ranks: u32,
    /// This one.
    pub rank: u32,
    /// Its device.
    pub device: &'a dyn Device,
    /// The host that it counts as, if not the real one.
    pub host: Option<String>,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// With the zero-CTA policy, which needs [`Communicator::window`]s.
    pub zero_ctas: bool,
}

/// The decision of a library for a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// The decision.
    pub decision: Decided,
    /// The candidates and what decided, for people.
    pub text: String,
}

/// A decision in the library's own words: algorithm, executor, protocol and channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    /// The name of the algorithm or program.
    pub algorithm: String,
    /// The name of the executor.
    pub executor: String,
    /// The name of the protocol.
    pub protocol: String,
    /// True if data go straight between the buffers of one process.
    pub zero_copy: bool,
    /// The number of blocks.
    pub channels: u32,
    /// The predicted time in µs.
    pub predicted_us: f32,
    /// The tuner and its rule, if one decided.
    pub rule: Option<String>,
}

impl Decided {
    /// True if it is this algorithm by this route.
    pub fn is(&self, algorithm: Algorithm, route: Route) -> bool {
        let of_route = (route.executor.name(), route.protocol.name(), route.zero_copy);
        self.algorithm == algorithm.name() && (&*self.executor, &*self.protocol, self.zero_copy) == of_route
    }
}

/// `AllPairs/fused/LL x 8`.
impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { algorithm, executor, protocol, channels, .. } = self;
        let strategy = if self.zero_copy { "/zero_copy" } else { "" };
        write!(f, "{algorithm}/{executor}/{protocol}{strategy} x {channels}")
    }
}

impl From<&Decision> for Decided {
    fn from(decision: &Decision) -> Self {
        let route = decision.route;
        Self {
            algorithm: decision.key.algorithm.name().into(),
            executor: route.executor.name().into(),
            protocol: route.protocol.name().into(),
            zero_copy: route.zero_copy,
            channels: decision.channels,
            predicted_us: decision.predicted_us,
            rule: decision.why.rule.clone(),
        }
    }
}

/// A library that makes communicators.
pub trait Library: Send + Sync {
    /// The name and version of the library.
    fn about(&self) -> &About;

    /// A new unique id; its meeting point, if any, is in this process.
    fn unique_id(&self) -> Result<Id>;

    /// Creates a communicator; inside a group it is of use only after the group's end.
    fn join(&self, joining: &Joining) -> Result<Box<dyn Communicator>>;

    /// Opens a group on this thread.
    fn group_start(&self) -> Result<()>;

    /// Closes it: everything called since then is put on its streams.
    fn group_end(&self) -> Result<()>;
}

/// One rank. Only its own thread uses it; [`Communicator::stop`] is for the others.
pub trait Communicator {
    /// Puts a collective on a stream, or into the open group.
    fn collective(&self, call: &Call, stream: Stream) -> Result<()>;

    /// Sends bytes to a peer, or puts that into the open group.
    fn send(&self, addr: u64, bytes: u64, peer: u32, stream: Stream) -> Result<()>;

    /// Receives bytes from a peer, or puts that into the open group.
    fn recv(&self, addr: u64, bytes: u64, peer: u32, stream: Stream) -> Result<()>;

    /// Memory for buffers that the communicator knows, where it was made with [`Joining::zero_ctas`].
    /// Collective.
    fn window(&self, _bytes: u64) -> Result<Option<Memory>> {
        Ok(None)
    }

    /// Registers a buffer, which lives until the communicator is gone.
    ///
    /// # Errors
    /// The library cannot, or reports a failure.
    fn register(&self, addr: u64, bytes: u64) -> Result<()>;

    /// CTAs of the operation that was put on a stream last, if the library tells.
    fn ctas(&self) -> Option<u32> {
        None
    }

    /// Fails if something went wrong in the background, or after [`Communicator::stop`].
    fn healthy(&self) -> Result<()>;

    /// Returns a function with which another thread stops the communicator.
    fn stop(&self) -> Stop;

    /// The decision for a call; None if the library does not tell.
    ///
    /// # Errors
    /// Nothing is left to choose from.
    fn explain(&self, call: &Call) -> Result<Option<Explained>>;

    /// Frees it after its last operation.
    fn destroy(&self) -> Result<()>;

    /// Frees it whatever still runs; does nothing after [`Communicator::destroy`].
    fn abort(&self);
}

/// The library at `path`, or the linked runtime.
///
/// # Errors
/// The file is no library, needs something that is missing, or lacks one of NCCL's functions.
pub fn open(path: Option<&Path>) -> Result<Box<dyn Library>> {
    Ok(match path {
        None => Box::new(linked::Linked::new()),
        Some(path) => Box::new(loaded::Loaded::open(path)?),
    })
}

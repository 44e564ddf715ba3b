//! The types that cross the library boundary. They are frozen: see the rules in [`crate::abi`].

pub mod collnet;
pub mod env;
pub mod learner;
pub mod manifest;
pub mod net;
pub mod profiler;
pub mod tuner;

use abi_stable::std_types::{RBox, RErr, ROk, RResult, RStr, RString};
use abi_stable::{StableAbi, sabi_trait};

use crate::error::{Error, ErrorKind, Result};
use crate::host::{Level, Listener, Log, Subsys};

pub use manifest::{RawComponent, RawManifest, RawManifest_Ref};

/// [`Error`].
#[repr(C)]
#[derive(StableAbi)]
pub struct RawError {
    pub kind: u32,
    pub text: RString,
    pub room: [u64; 2],
}

impl From<Error> for RawError {
    fn from(error: Error) -> Self {
        Self { kind: error.kind as u32, text: error.into_text().into(), room: [0; 2] }
    }
}

impl From<RawError> for Error {
    fn from(raw: RawError) -> Self {
        let kind = match raw.kind {
            1 => ErrorKind::Cuda,
            2 => ErrorKind::System,
            4 => ErrorKind::InvalidArgument,
            5 => ErrorKind::InvalidUsage,
            6 => ErrorKind::Remote,
            16 => ErrorKind::Unsupported,
            _ => ErrorKind::Internal,
        };
        Self::new(kind, raw.text)
    }
}

/// The plain result of a raw call, its value turned by `From`.
pub fn plain<R, T: From<R>>(raw: RResult<R, RawError>) -> Result<T> {
    match raw {
        ROk(value) => Ok(value.into()),
        RErr(error) => Err(error.into()),
    }
}

/// [`Listener`]. It grows by methods.
#[sabi_trait]
pub trait RawHost: Send + Sync {
    fn line(&self, level: u32, subsys: u64, text: RStr<'_>);
    #[sabi(last_prefix_field)]
    fn stress(&self, what: RStr<'_>);
}

pub type RawHostBox = RawHost_TO<'static, RBox<()>>;

/// The log of a host that was handed over.
pub fn plain_log(host: RawHostBox) -> Log {
    Log::to(Host(host))
}

/// A host on the other side of the boundary.
struct Host(RawHostBox);

impl Listener for Host {
    fn line(&self, level: Level, subsys: Subsys, text: &str) {
        self.0.line(level as u32, subsys.0, text.into());
    }

    fn stress(&self, what: &str) {
        self.0.stress(what.into());
    }
}

/// Level and subsystem of a line that crossed. Levels of newer plugins are traces.
pub fn plain_level(level: u32) -> Level {
    match level {
        1 => Level::Version,
        2 => Level::Warn,
        3 => Level::Info,
        4 => Level::Abort,
        _ => Level::Trace,
    }
}

/// As the name says.
pub fn plain_subsys(subsys: u64) -> Subsys {
    Subsys(subsys)
}

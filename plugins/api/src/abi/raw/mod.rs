//! The types that cross the library boundary. They are frozen: see the rules in [`crate::abi`].

pub mod collnet;
pub mod env;
pub mod learner;
pub mod manifest;
pub mod net;
pub mod profiler;
pub mod tuner;

use abi_stable::std_types::{RBox, RErr, ROk, RResult, RStr, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};

use crate::error::{Error, ErrorKind, Result};
use crate::host::{Figure, Level, Listener, Log, Subsys};

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
    fn count(&self, net: RStr<'_>, rail: RStr<'_>, what: RStr<'_>, by: u64) {
        let _ = (net, rail, what, by);
    }
    fn figures(&self) -> RVec<RawFigure> {
        RVec::new()
    }
}

/// [`Figure`]. Bits of `kind`: 0 a sum. Labels are keys and values in turn.
#[repr(C)]
#[derive(StableAbi)]
pub struct RawFigure {
    pub name: RString,
    pub labels: RVec<RString>,
    pub value: u64,
    pub kind: u64,
    pub room: [u64; 2],
}

impl From<Figure> for RawFigure {
    fn from(Figure { name, labels, value, is_sum }: Figure) -> Self {
        let labels = labels.into_iter().flat_map(|(key, value)| [key.into(), value.into()]).collect();
        Self { name: name.into(), labels, value, kind: u64::from(is_sum), room: [0; 2] }
    }
}

impl From<RawFigure> for Figure {
    fn from(raw: RawFigure) -> Self {
        let mut parts = raw.labels.into_iter().map(String::from);
        let mut labels = Vec::new();
        while let (Some(key), Some(value)) = (parts.next(), parts.next()) {
            labels.push((key, value));
        }
        Self::new(raw.name.into(), labels, raw.value, raw.kind & 1 != 0)
    }
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

    fn count(&self, net: &str, rail: &str, what: &str, by: u64) {
        self.0.count(net.into(), rail.into(), what.into(), by);
    }

    fn figures(&self) -> Vec<Figure> {
        self.0.figures().into_iter().map(Figure::from).collect()
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

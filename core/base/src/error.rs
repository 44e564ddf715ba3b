//! The library's error: who is at fault, whom and what it concerns, the system's code, and a text for people.
//!
//! Programs read the fields of a [`Report`]; nobody reads the text to decide something. The text says what
//! failed, who is concerned (rank, peer), the operating system's or driver's reason, and what to do. It ends
//! up in `ncclGetLastError`, so it must read well without any log around it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The result of every fallible function of devices and of the runtime.
pub type Result<T> = std::result::Result<T, Error>;

/// The party at fault, one to one with the NCCL result codes the C interface returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A call of the CUDA driver failed (`ncclUnhandledCudaError`).
    UnhandledCuda,
    /// The operating system refused something: sockets, memory, files (`ncclSystemError`).
    System,
    /// A bug of this library (`ncclInternalError`).
    Internal,
    /// One argument is wrong by itself (`ncclInvalidArgument`).
    InvalidArgument,
    /// The call does not fit the state, the other calls or the other ranks (`ncclInvalidUsage`).
    InvalidUsage,
    /// Another rank failed, left or spoke nonsense (`ncclRemoteError`).
    Remote,
    /// A non-blocking operation still runs (`ncclInProgress`).
    InProgress,
    /// A deadline expired; the text says who waits for whom (`ncclSystemError` at the C boundary).
    Timeout,
    /// The communicator was aborted while the call waited (`ncclInternalError` or success of the abort, as
    /// the caller decides).
    Aborted,
}

impl ErrorKind {
    /// Every kind, in the order of their wire codes.
    pub const ALL: [ErrorKind; 9] = [
        ErrorKind::UnhandledCuda,
        ErrorKind::System,
        ErrorKind::Internal,
        ErrorKind::InvalidArgument,
        ErrorKind::InvalidUsage,
        ErrorKind::Remote,
        ErrorKind::InProgress,
        ErrorKind::Timeout,
        ErrorKind::Aborted,
    ];
}

/// The code that the system gave when it refused something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SystemCode {
    /// The operating system's `errno`.
    Errno(i32),
    /// The CUDA driver's `CUresult`.
    Cuda(i32),
}

impl fmt::Display for SystemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(code) => write!(f, "errno {code}"),
            Self::Cuda(code) => write!(f, "CUresult {code}"),
        }
    }
}

/// The error behind an error.
pub type Source = Arc<dyn std::error::Error + Send + Sync>;

/// An error of the library. It is one word, so that results stay small, and reads as its [`Report`].
#[derive(Clone)]
pub struct Error(Box<Report>);

/// Everything that an [`Error`] knows. Only functions of `Error` change it, so that the text goes with the
/// fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The kind of the error: it says who is at fault.
    pub kind: ErrorKind,
    /// The whole text for people: what failed, who is concerned, why, and the remedy.
    pub text: String,
    /// The function of the interface that failed.
    pub operation: Option<String>,
    /// The rank that the error occurred on, where it is known.
    pub rank: Option<u32>,
    /// The other rank that is concerned.
    pub peer: Option<u32>,
    /// The file, device, address or other thing that could not be used.
    pub resource: Option<String>,
    /// The system's code.
    pub code: Option<SystemCode>,
    /// An advice to the user.
    pub remedy: Option<String>,
    /// The error behind this one. Its text is part of `text`, so it is not the `source` of
    /// `std::error::Error`, which would show it twice.
    pub source: Option<Source>,
    /// True once the log has the error. All clones of the error share it.
    is_logged: Arc<AtomicBool>,
}

impl Error {
    /// An error of the given kind.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self::of(kind, text.into())
    }

    #[cold]
    #[inline(never)]
    fn of(kind: ErrorKind, text: String) -> Self {
        Error(Box::new(Report {
            kind,
            text,
            operation: None,
            rank: None,
            peer: None,
            resource: None,
            code: None,
            remedy: None,
            source: None,
            is_logged: Arc::default(),
        }))
    }

    /// The text alone.
    pub fn into_text(self) -> String {
        self.0.text
    }

    /// An error of another crate, whose text is complete.
    pub fn because(kind: ErrorKind, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        let mut error = Self::of(kind, source.to_string());
        error.0.source = Some(Arc::new(source));
        error
    }

    /// The operating system refused `what`; the text gets the reason and the errno behind it.
    pub fn system(what: impl fmt::Display, reason: impl Into<std::io::Error>) -> Self {
        let reason = reason.into();
        let text = match reason.raw_os_error() {
            // std already prints "(os error N)" behind the message.
            Some(_) => format!("{what} failed: {reason}"),
            None => format!("{what} failed: {reason} ({:?})", reason.kind()),
        };
        let mut error = Self::of(ErrorKind::System, text);
        error.0.code = reason.raw_os_error().map(SystemCode::Errno);
        error.0.resource = Some(what.to_string());
        error.0.source = Some(Arc::new(reason));
        error
    }

    /// One argument is wrong by itself.
    pub fn invalid_argument(text: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidArgument, text)
    }

    /// The call does not fit the state or the other ranks.
    pub fn invalid_usage(text: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidUsage, text)
    }

    /// A bug of this library.
    pub fn internal(text: impl Into<String>) -> Self {
        Error::new(ErrorKind::Internal, text)
    }

    /// Another rank failed, left or spoke nonsense.
    pub fn remote(text: impl Into<String>) -> Self {
        Error::new(ErrorKind::Remote, text)
    }

    /// Puts who or where in front: `error.context("rank 3")` gives `rank 3: …`.
    #[must_use]
    pub fn context(mut self, prefix: impl fmt::Display) -> Self {
        self.0.text = format!("{prefix}: {}", self.text);
        self
    }

    /// Says which function of the interface failed, and puts it in front of the text, unless the error has it
    /// already.
    #[must_use]
    pub fn in_call(mut self, api: &str) -> Self {
        if self.operation.as_deref() == Some(api) {
            return self;
        }
        self.0.operation = Some(api.to_owned());
        self.context(api)
    }

    /// Says on which rank it occurred, and puts `name` ("rank 3 of 8") in front of the text, unless the error
    /// has a rank already.
    #[must_use]
    pub fn on_rank(mut self, rank: u32, name: impl fmt::Display) -> Self {
        if self.rank.is_some() {
            return self;
        }
        self.0.rank = Some(rank);
        self.context(name)
    }

    /// Says what could not be used, and puts it in front of the text, unless the error has that already.
    #[must_use]
    pub fn on_resource(mut self, resource: &str) -> Self {
        if self.resource.as_deref() == Some(resource) {
            return self;
        }
        self.0.resource = Some(resource.to_owned());
        self.context(resource)
    }

    /// Says which other rank is concerned. The text has it already.
    #[must_use]
    pub fn with_peer(mut self, peer: u32) -> Self {
        self.0.peer = Some(peer);
        self
    }

    /// Says which other rank the failed operation was with, unless the error names one already: who is to
    /// blame is not always the one at the other end.
    #[must_use]
    pub fn or_peer(mut self, peer: u32) -> Self {
        self.0.peer.get_or_insert(peer);
        self
    }

    /// Says what could not be used. The text has it already.
    #[must_use]
    pub fn with_resource(mut self, resource: impl fmt::Display) -> Self {
        self.0.resource = Some(resource.to_string());
        self
    }

    /// Says which code the system gave. The text has it already.
    #[must_use]
    pub fn with_code(mut self, code: SystemCode) -> Self {
        self.0.code = Some(code);
        self
    }

    /// Replaces the text by one that says more.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.0.text = text.into();
        self
    }

    /// Says what the user can do about it, at the end of the text.
    #[must_use]
    pub fn remedy(mut self, advice: impl fmt::Display) -> Self {
        self.0.text = format!("{}; {advice}", self.text);
        self.0.remedy = Some(match self.0.remedy.take() {
            Some(before) => format!("{before}; {advice}"),
            None => advice.to_string(),
        });
        self
    }

    /// Notes that the log has the error now.
    pub(crate) fn note_logged(&self) {
        self.is_logged.store(true, Ordering::Relaxed);
    }

    /// Returns whether the log has this error or a clone of it.
    pub fn is_logged(&self) -> bool {
        self.is_logged.load(Ordering::Relaxed)
    }
}

impl Deref for Error {
    type Target = Report;

    fn deref(&self) -> &Report {
        &self.0
    }
}

/// Errors are equal if they say the same.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.text) == (other.kind, &other.text)
    }
}

impl Eq for Error {}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl From<hawser_types::PlanError> for Error {
    fn from(error: hawser_types::PlanError) -> Self {
        use hawser_types::PlanErrorKind;
        let kind = match error.kind {
            PlanErrorKind::InvalidArgument => ErrorKind::InvalidArgument,
            PlanErrorKind::InvalidUsage => ErrorKind::InvalidUsage,
            PlanErrorKind::BadProgram => ErrorKind::Internal,
        };
        Self::because(kind, error)
    }
}

impl From<hawser_plugin::Error> for Error {
    fn from(error: hawser_plugin::Error) -> Self {
        use hawser_plugin::ErrorKind as Theirs;
        let kind = match error.kind {
            Theirs::Cuda => ErrorKind::UnhandledCuda,
            Theirs::System => ErrorKind::System,
            Theirs::Internal => ErrorKind::Internal,
            Theirs::InvalidArgument => ErrorKind::InvalidArgument,
            Theirs::InvalidUsage | Theirs::Unsupported => ErrorKind::InvalidUsage,
            Theirs::Remote => ErrorKind::Remote,
        };
        Self::because(kind, error)
    }
}

impl From<hawser_oob::Error> for Error {
    fn from(error: hawser_oob::Error) -> Self {
        use hawser_oob::ErrorKind as Oob;
        let kind = match error.kind {
            Oob::Usage => ErrorKind::InvalidUsage,
            Oob::System => ErrorKind::System,
            Oob::Peer => ErrorKind::Remote,
            Oob::Timeout => ErrorKind::Timeout,
            Oob::Aborted => ErrorKind::Aborted,
        };
        let code = error.errno.map(SystemCode::Errno);
        let error = Error::because(kind, error);
        match code {
            Some(code) => error.with_code(code),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_connections_keep_the_code() {
        let refused = hawser_oob::Error::system("connect", rustix::io::Errno::MFILE);
        assert_eq!(Error::from(refused).code, Some(SystemCode::Errno(24)));
        assert_eq!(Error::from(hawser_oob::Error::peer("gone")).code, None);
    }

    #[test]
    fn texts_carry_prefix_reason_and_remedy() {
        let refused = std::io::Error::from_raw_os_error(111);
        let error =
            Error::system("connect to 10.0.0.1:7", refused).context("rank 3").remedy("start rank 0 first");
        assert_eq!(error.kind, ErrorKind::System);
        assert!(error.text.starts_with("rank 3: connect to 10.0.0.1:7 failed: "), "{error}");
        assert!(error.text.contains("os error 111"), "{error}");
        assert!(error.text.ends_with("; start rank 0 first"), "{error}");
    }

    #[test]
    fn fields_go_with_the_text() {
        let error = Error::new(ErrorKind::UnhandledCuda, "cuMemCreate failed").with_code(SystemCode::Cuda(2));
        let error = error.with_peer(5).on_rank(3, "rank 3 of 8").on_rank(3, "rank 3").remedy("free memory");
        let error = error.in_call("ncclX").in_call("ncclX");
        assert_eq!(error.text, "ncclX: rank 3 of 8: cuMemCreate failed; free memory");
        assert_eq!((error.operation.as_deref(), error.rank, error.peer), (Some("ncclX"), Some(3), Some(5)));
        assert_eq!((error.code, error.remedy.as_deref()), (Some(SystemCode::Cuda(2)), Some("free memory")));
        assert_eq!(
            error.clone().on_resource("device 0").on_resource("device 0").text,
            format!("device 0: {error}")
        );
        let refused = Error::system("binding 10.0.0.1:7", std::io::Error::from_raw_os_error(98));
        assert_eq!(refused.code, Some(SystemCode::Errno(98)));
        assert_eq!(refused.resource.as_deref(), Some("binding 10.0.0.1:7"));
        assert!(refused.source.as_ref().is_some_and(|source| refused.text.contains(&source.to_string())));
        let clone = refused.clone();
        refused.note_logged();
        assert!(clone.is_logged() && !error.is_logged());
    }

    #[test]
    fn all_kinds_are_listed_once() {
        let distinct: std::collections::HashSet<_> = ErrorKind::ALL.iter().collect();
        assert_eq!(distinct.len(), ErrorKind::ALL.len());
    }
}

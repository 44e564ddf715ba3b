//! The runtime's error: a kind that maps to one NCCL result code and a text for people.
//!
//! The text says what failed, who is concerned (rank, peer), the operating system's or driver's reason, and
//! what to do. It ends up in `ncclGetLastError`, so it must read well without any log around it.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// What every fallible function of the runtime returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Who is at fault, one to one with the NCCL result codes the C interface returns.
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

/// An error with its kind and a complete sentence for the user. One word, so that results stay small; it
/// reads as its [`Report`].
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Report>);

/// What an [`Error`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Who is at fault.
    pub kind: ErrorKind,
    /// What failed, who is concerned, why, and the remedy.
    pub text: String,
}

impl Error {
    /// An error of the given kind.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self::of(kind, text.into())
    }

    #[cold]
    #[inline(never)]
    fn of(kind: ErrorKind, text: String) -> Self {
        Error(Box::new(Report { kind, text }))
    }

    /// The text alone.
    pub fn into_text(self) -> String {
        self.0.text
    }

    /// The operating system refused `what`; the text gets the reason and the errno behind it.
    pub fn system(what: impl fmt::Display, reason: impl Into<std::io::Error>) -> Self {
        let reason = reason.into();
        let text = match reason.raw_os_error() {
            // std already prints "(os error N)" behind the message.
            Some(_) => format!("{what} failed: {reason}"),
            None => format!("{what} failed: {reason} ({:?})", reason.kind()),
        };
        Error::new(ErrorKind::System, text)
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
        self.text = format!("{prefix}: {}", self.text);
        self
    }

    /// Appends what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, advice: impl fmt::Display) -> Self {
        self.text = format!("{}; {advice}", self.text);
        self
    }
}

impl Deref for Error {
    type Target = Report;

    fn deref(&self) -> &Report {
        &self.0
    }
}

impl DerefMut for Error {
    fn deref_mut(&mut self) -> &mut Report {
        &mut self.0
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn all_kinds_are_listed_once() {
        let distinct: std::collections::HashSet<_> = ErrorKind::ALL.iter().collect();
        assert_eq!(distinct.len(), ErrorKind::ALL.len());
    }
}

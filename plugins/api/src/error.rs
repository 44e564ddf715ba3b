//! The one error type of the plugin interface.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// The result of every method that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error: who is at fault. The numbers are those of `ncclResult_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorKind {
    /// A call of the CUDA driver failed.
    Cuda = 1,
    /// The operating system or the hardware refused something.
    System = 2,
    /// The caller broke the contract of this interface, or the plugin has a bug.
    Internal = 3,
    /// The user set or passed something wrong.
    InvalidArgument = 4,
    /// The user did something that does not fit the state, a size that the receiver did not expect included.
    InvalidUsage = 5,
    /// The other rank failed, left or spoke nonsense.
    Remote = 6,
    /// The plugin does not offer this. The host goes on without it.
    Unsupported = 16,
}

/// An error with a complete sentence for the user: what failed, for which peer, errno, and the remedy. One
/// word, so that results stay small; it reads as its [`Report`].
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Report>);

/// The contents of an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The kind of the error: who is at fault.
    pub kind: ErrorKind,
    /// The sentence.
    pub text: String,
}

impl Error {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self::of(kind, text.into())
    }

    #[cold]
    #[inline(never)]
    fn of(kind: ErrorKind, text: String) -> Self {
        Self(Box::new(Report { kind, text }))
    }

    /// The text alone.
    pub fn into_text(self) -> String {
        self.0.text
    }

    /// The operating system refused `what`.
    pub fn system(what: impl fmt::Display, reason: impl Into<std::io::Error>) -> Self {
        let reason: std::io::Error = reason.into();
        Self::new(ErrorKind::System, format!("{what} failed: {reason}"))
    }

    /// A bug of the caller or of the plugin.
    pub fn internal(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, text)
    }

    /// The plugin does not offer `what`.
    pub fn unsupported(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Unsupported, format!("{what} is not offered by this plugin"))
    }

    /// The peer failed, left or spoke nonsense.
    pub fn remote(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Remote, text)
    }

    /// Puts who or where in front.
    #[must_use]
    pub fn context(mut self, prefix: impl fmt::Display) -> Self {
        self.text = format!("{prefix}: {}", self.text);
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

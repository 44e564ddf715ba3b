//! The error that all functions of this crate return.

use std::fmt;
use std::io;

/// The result of every fallible function of this crate, unless it says otherwise.
pub type Result<T> = std::result::Result<T, Error>;

/// The kinds of errors, by who is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A setting does not fit this host, or the two ends were not given the same secret.
    Usage,
    /// The operating system refused something.
    System,
    /// The other end closed the connection, or sent what no peer of this version sends.
    Peer,
    /// The caller's deadline has passed.
    Timeout,
    /// Somebody ended the wait.
    Aborted,
}

/// An error with a complete sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of the error, which says who is at fault.
    pub kind: ErrorKind,
    /// The failure, the system's reason with its errno, and the remedy.
    pub text: String,
    /// The system's error number, where it has one.
    pub errno: Option<i32>,
}

impl Error {
    /// An error of the given kind.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), errno: None }
    }

    /// A setting does not fit this host, or the two ends were not given the same secret.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, text)
    }

    /// The operating system refused `what`; the text gets its reason and the errno behind it.
    pub fn system(what: impl fmt::Display, reason: impl Into<io::Error>) -> Self {
        let reason = reason.into();
        let errno = reason.raw_os_error();
        Self { errno, ..Self::new(ErrorKind::System, format!("{what} failed: {reason}")) }
    }

    /// The other end closed the connection, or sent what no peer of this version sends.
    pub fn peer(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Peer, text)
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
    fn texts_carry_reason_and_remedy() {
        let refused = io::Error::from_raw_os_error(111);
        let error = Error::system("connect to 10.0.0.1:7", refused).remedy("start rank 0 first");
        let error = error.context("rank 3");
        assert_eq!((error.kind, error.errno), (ErrorKind::System, Some(111)));
        assert!(error.text.starts_with("rank 3: connect to 10.0.0.1:7 failed: "), "{error}");
        assert!(error.text.ends_with("(os error 111); start rank 0 first"), "{error}");
    }
}

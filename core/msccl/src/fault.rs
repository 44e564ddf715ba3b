//! The faults of a file, with the place in it.

use std::fmt;

use super::xml::Pos;

/// Classes of faults of a program file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The text is no XML, or its elements are not those of an algorithm.
    Syntax,
    /// An attribute is missing, misspelled or has a value that it cannot have.
    Attribute,
    /// The collective is none that calls ask for.
    Collective,
    /// The operation is none that programs have.
    Operation,
    /// Ranks are missing or come twice.
    Ranks,
    /// Blocks or steps are not numbered 0, 1, 2, …
    Numbering,
    /// A block talks to a rank that it cannot talk to, or a step has no peer.
    Peer,
    /// A connection lacks an end or has two blocks at one end.
    Connection,
    /// Sends and receives of a connection do not match.
    Mismatch,
    /// A step leaves its buffer, or the counts of chunks contradict each other.
    Bounds,
    /// A step waits for what is no step that can be waited for.
    Dependency,
    /// Some blocks wait for each other for ever.
    Deadlock,
    /// A step reads what nobody wrote.
    Undefined,
    /// Two blocks use a chunk and nothing orders them.
    Race,
    /// A result contains a contribution more than once.
    DoubleCount,
    /// A result lacks a contribution, or has one that does not belong there.
    WrongResult,
    /// The program is right in place or out of place only.
    InPlace,
    /// More than a device can run.
    Limit,
}

impl Class {
    /// Name in messages and in the documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::Attribute => "attribute",
            Self::Collective => "collective",
            Self::Operation => "operation",
            Self::Ranks => "ranks",
            Self::Numbering => "numbering",
            Self::Peer => "peer",
            Self::Connection => "connection",
            Self::Mismatch => "mismatch",
            Self::Bounds => "bounds",
            Self::Dependency => "dependency",
            Self::Deadlock => "deadlock",
            Self::Undefined => "undefined read",
            Self::Race => "race",
            Self::DoubleCount => "double count",
            Self::WrongResult => "wrong result",
            Self::InPlace => "in place",
            Self::Limit => "limit",
        }
    }
}

/// The reason why a file is refused: prints as `line:column: class: what is wrong`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportError {
    /// The kind of the fault.
    pub class: Class,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// The fault in the terms of the algorithm.
    pub text: String,
}

impl ImportError {
    pub(super) fn new(class: Class, at: Pos, text: impl Into<String>) -> Self {
        Self { class, line: at.line, column: at.column, text: text.into() }
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.line, self.column, self.class.name(), self.text)
    }
}

impl std::error::Error for ImportError {}

/// Something in a file that was read as something else than it says: prints as `line:column: what`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// The old and the new form, and the reason.
    pub text: String,
}

impl Change {
    pub(super) fn new(at: Pos, text: impl Into<String>) -> Self {
        Self { line: at.line, column: at.column, text: text.into() }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.text)
    }
}

pub(super) type Result<T> = std::result::Result<T, ImportError>;

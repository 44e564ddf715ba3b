//! The error with which the planner refuses a call, a setting or a program.

use std::fmt;

/// The result of a planning step.
pub type Result<T> = std::result::Result<T, PlanError>;

/// A refusal: what was asked, why it cannot be, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// The kind of the error, which says who is at fault.
    pub kind: PlanErrorKind,
    /// One sentence that names the cause and the remedy.
    pub text: String,
}

/// The kinds of a [`PlanError`], by who is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanErrorKind {
    /// An argument of the call is out of range (`ncclInvalidArgument`).
    InvalidArgument,
    /// Arguments are fine one by one but not together, or settings forbid the call (`ncclInvalidUsage`).
    InvalidUsage,
    /// A program is wrong: the verifier or the parser refused it.
    BadProgram,
}

impl PlanError {
    /// The error of an argument that is out of range.
    pub fn argument(text: impl Into<String>) -> Self {
        Self { kind: PlanErrorKind::InvalidArgument, text: text.into() }
    }

    /// The error of arguments or settings that do not go together.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { kind: PlanErrorKind::InvalidUsage, text: text.into() }
    }

    /// The error of a program that is wrong.
    pub fn program(text: impl Into<String>) -> Self {
        Self { kind: PlanErrorKind::BadProgram, text: text.into() }
    }

    /// The text alone.
    pub fn into_text(self) -> String {
        self.text
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for PlanError {}

//! What the planner can refuse.

use std::fmt;

/// Result of a planning step.
pub type Result<T> = std::result::Result<T, PlanError>;

/// A refusal: what was asked, why it cannot be, what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// Who is at fault.
    pub kind: PlanErrorKind,
    /// One sentence with cause and remedy.
    pub text: String,
}

/// Who is at fault for a [`PlanError`].
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
    /// An argument out of range.
    pub fn argument(text: impl Into<String>) -> Self {
        Self { kind: PlanErrorKind::InvalidArgument, text: text.into() }
    }

    /// Arguments or settings that do not go together.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { kind: PlanErrorKind::InvalidUsage, text: text.into() }
    }

    /// A program that is wrong.
    pub fn program(text: impl Into<String>) -> Self {
        Self { kind: PlanErrorKind::BadProgram, text: text.into() }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for PlanError {}

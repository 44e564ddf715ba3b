//! What the planner can refuse.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Result of a planning step.
pub type Result<T> = std::result::Result<T, PlanError>;

/// A refusal: what was asked, why it cannot be, what to do about it. One word, so that results stay small; it reads as its
/// [`Refusal`].
#[derive(Clone, PartialEq, Eq)]
pub struct PlanError(Box<Refusal>);

/// What a [`PlanError`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
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
        Self::of(PlanErrorKind::InvalidArgument, text.into())
    }

    /// Arguments or settings that do not go together.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::of(PlanErrorKind::InvalidUsage, text.into())
    }

    #[cold]
    #[inline(never)]
    fn of(kind: PlanErrorKind, text: String) -> Self {
        Self(Box::new(Refusal { kind, text }))
    }

    /// The text alone.
    pub fn into_text(self) -> String {
        self.0.text
    }

    /// A program that is wrong.
    pub fn program(text: impl Into<String>) -> Self {
        Self::of(PlanErrorKind::BadProgram, text.into())
    }
}

impl Deref for PlanError {
    type Target = Refusal;

    fn deref(&self) -> &Refusal {
        &self.0
    }
}

impl DerefMut for PlanError {
    fn deref_mut(&mut self) -> &mut Refusal {
        &mut self.0
    }
}

impl fmt::Debug for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for PlanError {}

//! Mirror of [`crate::learner`]. Times are nanoseconds; files are names and texts in turns.

use abi_stable::std_types::{RBox, ROption, RResult, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};

use super::RawError;
use super::tuner::RawDecision;
use crate::error::{Error, Result};
use crate::learner::{Measured, Proposal};
use crate::tuner::{Function, SettingsFile};

#[sabi_trait]
pub trait RawLearner: Send {
    fn rebase(&mut self, files: RVec<RString>, now: u64) -> RResult<(), RawError>;
    fn measured(&mut self, measured: RawMeasured, now: u64) -> RResult<(), RawError>;
    fn stressed(&mut self, what: RString, now: u64) -> RResult<(), RawError>;
    fn propose(&mut self, now: u64) -> RResult<ROption<RawProposal>, RawError>;
    /// `why` counts where there is no operation.
    #[sabi(last_prefix_field)]
    fn settled(&mut self, operation: ROption<u64>, why: RString, now: u64) -> RResult<(), RawError>;
}

pub type RawLearnerBox = RawLearner_TO<'static, RBox<()>>;

/// [`Measured`]. Bits of `flags`: 0 a trial, 1 the last rank is known, 2 the cost is known (else it is the
/// time). `room[0]`: the bits of the cost.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawMeasured {
    pub function: i32,
    pub flags: u32,
    pub bytes: u64,
    pub decision: RawDecision,
    pub us: f32,
    pub late_us: f32,
    pub late_rank: u32,
    pub spare: u32,
    pub room: [u64; 4],
}

impl From<&Measured> for RawMeasured {
    fn from(m: &Measured) -> Self {
        let (late_rank, late_us) = m.late.unwrap_or_default();
        Self {
            function: m.function as i32,
            flags: u32::from(m.trial) | u32::from(m.late.is_some()) << 1 | 4,
            bytes: m.bytes,
            decision: (&m.decision).into(),
            us: m.us,
            late_us,
            late_rank,
            spare: 0,
            room: [u64::from(m.cost_us.to_bits()), 0, 0, 0],
        }
    }
}

impl RawMeasured {
    /// # Errors
    /// A newer host may tell of what this side does not know.
    pub fn plain(&self) -> Result<Measured> {
        let unknown = || Error::unsupported("times of a collective or decision that is not known here");
        Ok(Measured {
            function: Function::EVERY.into_iter().find(|f| *f as i32 == self.function).ok_or_else(unknown)?,
            bytes: self.bytes,
            decision: self.decision.plain().ok_or_else(unknown)?,
            trial: self.flags & 1 != 0,
            us: self.us,
            cost_us: if self.flags & 4 != 0 { f32::from_bits(self.room[0] as u32) } else { self.us },
            late: (self.flags & 2 != 0).then_some((self.late_rank, self.late_us)),
        })
    }
}

/// [`Proposal`].
#[repr(C)]
#[derive(StableAbi)]
pub struct RawProposal {
    pub why: RString,
    pub files: RVec<RString>,
    pub room: [u64; 4],
}

impl From<Proposal> for RawProposal {
    fn from(proposal: Proposal) -> Self {
        Self { why: proposal.why.into(), files: raw_files(&proposal.files), room: [0; 4] }
    }
}

impl From<RawProposal> for Proposal {
    fn from(raw: RawProposal) -> Self {
        Self { why: raw.why.into(), files: plain_files(&raw.files) }
    }
}

/// Names and texts in turns.
pub fn raw_files(files: &[SettingsFile]) -> RVec<RString> {
    files.iter().flat_map(|file| [file.name.as_str().into(), file.text.as_str().into()]).collect()
}

/// Inverse of [`raw_files`].
pub fn plain_files(files: &[RString]) -> Vec<SettingsFile> {
    let file = |pair: &[RString]| SettingsFile { name: pair[0].to_string(), text: pair[1].to_string() };
    files.chunks_exact(2).map(file).collect()
}

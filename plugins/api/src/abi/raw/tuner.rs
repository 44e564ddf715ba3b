//! Mirror of [`crate::tuner`].

use abi_stable::std_types::{RBox, ROption, RResult, RSliceMut, RString};
use abi_stable::{StableAbi, sabi_trait};

use super::{RawError, RawHostBox};
use crate::error::{Error, Result};
use crate::tuner::{Algorithm, Answer, Candidate, Function, Protocol, Question};

#[sabi_trait]
pub trait RawTuner: Send + Sync {
    fn name(&self) -> RResult<RString, RawError>;
    #[sabi(last_prefix_field)]
    fn open(&self, config: RawTunerConfig) -> RResult<RawTunerContextBox, RawError>;
}

#[sabi_trait]
pub trait RawTunerContext: Send + Sync {
    fn tune(
        &self,
        question: RawQuestion,
        candidates: RSliceMut<'_, RawCandidate>,
    ) -> RResult<RawAnswer, RawError>;
    #[sabi(last_prefix_field)]
    fn chunk_bytes(
        &self,
        question: RawQuestion,
        chosen: RawCandidate,
        channels: u32,
    ) -> RResult<ROption<u64>, RawError>;
}

pub type RawTunerBox = RawTuner_TO<'static, RBox<()>>;
pub type RawTunerContextBox = RawTunerContext_TO<'static, RBox<()>>;

/// [`crate::tuner::TunerConfig`].
#[repr(C)]
#[derive(StableAbi)]
pub struct RawTunerConfig {
    pub comm_id: u64,
    pub ranks: u32,
    pub nodes: u32,
    pub domains: [u32; 3],
    pub spare: u32,
    pub host: RawHostBox,
    pub room: [u64; 8],
}

/// [`Question`]. Bit 0 of `flags`: registered.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawQuestion {
    pub function: i32,
    pub pipelined: u32,
    pub bytes: u64,
    pub flags: u64,
    pub room: [u64; 5],
}

impl From<&Question> for RawQuestion {
    fn from(q: &Question) -> Self {
        Self {
            function: q.function as i32,
            pipelined: q.pipelined,
            bytes: q.bytes,
            flags: u64::from(q.registered),
            room: [0; 5],
        }
    }
}

impl RawQuestion {
    /// # Errors
    /// A newer host may ask about functions that this side does not know.
    pub fn plain(&self) -> Result<Question> {
        let function = Function::ALL.into_iter().find(|f| *f as i32 == self.function);
        let function =
            function.ok_or_else(|| Error::unsupported(format!("tuning of function {}", self.function)))?;
        Ok(Question {
            function,
            bytes: self.bytes,
            pipelined: self.pipelined,
            registered: self.flags & 1 != 0,
        })
    }
}

/// [`Candidate`].
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawCandidate {
    pub algorithm: u32,
    pub protocol: u32,
    pub us: f32,
    pub spare: u32,
}

impl From<&Candidate> for RawCandidate {
    fn from(c: &Candidate) -> Self {
        Self { algorithm: c.algorithm.0, protocol: c.protocol as u32, us: c.us, spare: 0 }
    }
}

impl RawCandidate {
    /// None for a protocol that this side does not know.
    pub fn plain(&self) -> Option<Candidate> {
        let all = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];
        let protocol = all.into_iter().find(|p| *p as u32 == self.protocol)?;
        Some(Candidate { algorithm: Algorithm(self.algorithm), protocol, us: self.us })
    }
}

/// [`Answer`].
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawAnswer {
    pub channels: ROption<u32>,
    pub room: [u64; 4],
}

impl From<Answer> for RawAnswer {
    fn from(answer: Answer) -> Self {
        Self { channels: answer.channels.into(), room: [0; 4] }
    }
}

impl From<RawAnswer> for Answer {
    fn from(raw: RawAnswer) -> Self {
        Self { channels: raw.channels.into_option() }
    }
}

//! Mirror of [`crate::tuner`].

use abi_stable::std_types::{RBox, RErr, ROk, ROption, RResult, RSlice, RSliceMut, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};

use super::learner::RawLearnerBox;
use super::{RawError, RawHostBox};
use crate::collnet::DataType;
use crate::error::{Error, Result};
use crate::tuner::{Agreement, Algorithm, Answer, Candidate, Function, Protocol, Question, Reduction};

#[sabi_trait]
pub trait RawTuner: Send + Sync {
    fn name(&self) -> RResult<RString, RawError>;
    #[sabi(last_prefix_field)]
    fn open(&self, config: RawTunerConfig) -> RResult<RawTunerContextBox, RawError>;
    /// `open` with names: of the communicator, then of programs.
    fn open_named(
        &self,
        config: RawTunerConfig,
        _names: RVec<RString>,
    ) -> RResult<RawTunerContextBox, RawError> {
        self.open(config)
    }
    /// `open_named` with settings: names and texts of files in turns.
    fn open_with(
        &self,
        _config: RawTunerConfig,
        _names: RVec<RString>,
        _files: RVec<RString>,
    ) -> RResult<RawTunerContextBox, RawError> {
        RErr(Error::unsupported("settings that change while a communicator works").into())
    }
    /// Names as for `open_named`.
    fn learner(
        &self,
        _config: RawTunerConfig,
        _names: RVec<RString>,
    ) -> RResult<ROption<RawLearnerBox>, RawError> {
        ROk(ROption::RNone)
    }
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
    fn agreement(&self) -> RResult<RawAgreement, RawError> {
        ROk(RawAgreement::from(None))
    }
    fn wants_every_collective(&self) -> bool {
        false
    }
    fn why(
        &self,
        _question: RawQuestion,
        _candidates: RSlice<'_, RawCandidate>,
    ) -> RResult<RString, RawError> {
        ROk(RString::new())
    }
    fn wants_copy_engines(&self) -> bool {
        false
    }
    fn wants_in_graph(&self) -> bool {
        false
    }
    fn trial(&self, _operation: u64) -> ROption<u32> {
        ROption::RNone
    }
    fn wants_times(&self) -> bool {
        false
    }
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

/// [`Question`]. Bits of `flags`: 0 registered, 1 whether in a graph is known, 2 it is. `room[0]`: one more than the number of
/// the data type, and from bit 32 on one more than that of the reduction; 0 = not given. `room[1]`: one more than the trial.
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
            flags: u64::from(q.registered) | q.in_graph.map_or(0, |graph| 2 | u64::from(graph) << 2),
            room: [
                q.data_type.map_or(0, |t| t as u64 + 1) | q.op.map_or(0, |op| (op as u64 + 1) << 32),
                q.trial.map_or(0, |trial| u64::from(trial) + 1),
                0,
                0,
                0,
            ],
        }
    }
}

impl RawQuestion {
    /// # Errors
    /// A newer host may ask about functions that this side does not know.
    pub fn plain(&self) -> Result<Question> {
        let function = Function::EVERY.into_iter().find(|f| *f as i32 == self.function);
        let function =
            function.ok_or_else(|| Error::unsupported(format!("tuning of function {}", self.function)))?;
        Ok(Question {
            function,
            bytes: self.bytes,
            pipelined: self.pipelined,
            registered: self.flags & 1 != 0,
            data_type: nth(&DataType::ALL, self.room[0] & 0xffff_ffff),
            op: nth(&Reduction::ALL, self.room[0] >> 32),
            in_graph: (self.flags & 2 != 0).then_some(self.flags & 4 != 0),
            trial: self.room[1].checked_sub(1).and_then(|trial| u32::try_from(trial).ok()),
        })
    }
}

/// The thing with a number that was sent as one more; None for 0 and for what this side does not know.
fn nth<T: Copy>(all: &[T], number: u64) -> Option<T> {
    all.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
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

/// [`Agreement`]. `present` is 0 where there is none.
#[repr(C)]
#[derive(StableAbi)]
pub struct RawAgreement {
    pub present: u64,
    pub digest: u64,
    pub source: RString,
    pub room: [u64; 4],
}

impl From<Option<Agreement>> for RawAgreement {
    fn from(agreement: Option<Agreement>) -> Self {
        let present = u64::from(agreement.is_some());
        let (digest, source) = agreement.map_or((0, String::new()), |a| (a.digest, a.source));
        Self { present, digest, source: source.into(), room: [0; 4] }
    }
}

impl From<RawAgreement> for Option<Agreement> {
    fn from(raw: RawAgreement) -> Self {
        (raw.present != 0).then(|| Agreement { digest: raw.digest, source: raw.source.into() })
    }
}

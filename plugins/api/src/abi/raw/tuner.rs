//! Mirror of [`crate::tuner`].

use abi_stable::std_types::{RBox, ROption, RResult, RSlice, RSliceMut, RStr, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};

use super::learner::RawLearnerBox;
use super::{RawError, RawHostBox};
use crate::collnet::DataType;
use crate::error::{Error, Result};
use crate::tuner::{
    Agreement, Algorithm, Answer, Candidate, Class, Decision, Executor, Function, Protocol, Question,
    Reduction, Status,
};

#[sabi_trait]
pub trait RawTuner: Send + Sync {
    fn name(&self) -> RResult<RString, RawError>;
    /// The names are that of the communicator, then those of programs.
    fn open(&self, config: RawTunerConfig, names: RVec<RString>) -> RResult<RawTunerContextBox, RawError>;
    /// The files are names and texts in turns.
    fn open_with(
        &self,
        config: RawTunerConfig,
        names: RVec<RString>,
        files: RVec<RString>,
    ) -> RResult<RawTunerContextBox, RawError>;
    #[sabi(last_prefix_field)]
    fn learner(
        &self,
        config: RawTunerConfig,
        names: RVec<RString>,
    ) -> RResult<ROption<RawLearnerBox>, RawError>;
}

#[sabi_trait]
pub trait RawTunerContext: Send + Sync {
    fn tune(
        &self,
        question: RawQuestion,
        candidates: RSliceMut<'_, RawCandidate<'_>>,
    ) -> RResult<RawAnswer, RawError>;
    fn chunk_bytes(&self, question: RawQuestion, chosen: RawCandidate<'_>)
    -> RResult<ROption<u64>, RawError>;
    fn agreement(&self) -> RResult<RawAgreement, RawError>;
    fn wants_every_collective(&self) -> bool;
    fn why(
        &self,
        question: RawQuestion,
        candidates: RSlice<'_, RawCandidate<'_>>,
    ) -> RResult<RString, RawError>;
    fn wants_copy_engines(&self) -> bool;
    fn wants_in_graph(&self) -> bool;
    fn trial(&self, operation: u64) -> ROption<u32>;
    #[sabi(last_prefix_field)]
    fn wants_times(&self) -> bool;
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

/// [`Question`]. Bits of `flags`: 0 registered, 1 whether in a graph is known, 2 it is. `room[0]`: one more
/// than the number of the data type, and from bit 32 on one more than that of the reduction; 0 = not given.
/// `room[1]`: one more than the trial. `room[2]`: the rule.
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
                q.rule.unwrap_or(0),
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
            rule: (self.room[2] != 0).then_some(self.room[2]),
        })
    }
}

/// The thing with a number that was sent as one more; None for 0 and for what this side does not know.
fn nth<T: Copy>(all: &[T], number: u64) -> Option<T> {
    all.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
}

/// [`Decision`].
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawDecision {
    pub algorithm: u32,
    pub executor: u32,
    pub protocol: u32,
    pub channels: u32,
}

impl From<&Decision> for RawDecision {
    fn from(d: &Decision) -> Self {
        let (executor, protocol) = (d.executor as u32, d.protocol as u32);
        Self { algorithm: d.algorithm.0, executor, protocol, channels: d.channels }
    }
}

impl RawDecision {
    /// The decision; None for an executor or a protocol that this side does not know.
    pub fn plain(&self) -> Option<Decision> {
        let executor = Executor::ALL.into_iter().find(|e| *e as u32 == self.executor)?;
        let protocol = Protocol::ALL.into_iter().find(|p| *p as u32 == self.protocol)?;
        Some(Decision { algorithm: Algorithm(self.algorithm), executor, protocol, channels: self.channels })
    }
}

/// Numbers of [`Status`].
const PREDICTED: u32 = 0;
const UNMEASURED: u32 = 1;
const HELD_BACK: u32 = 2;
const HELD_BACK_UNMEASURED: u32 = 3;
const REFUSED: u32 = 4;

/// [`Candidate`]. `why` is empty for states without a reason. The plugin changes `us` and `status` only.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawCandidate<'a> {
    pub decision: RawDecision,
    pub us: f32,
    pub status: u32,
    pub why: RStr<'a>,
    pub room: [u64; 2],
}

impl<'a> From<&Candidate<'a>> for RawCandidate<'a> {
    fn from(c: &Candidate<'a>) -> Self {
        let why = match c.status {
            Status::Predicted | Status::Unmeasured => "",
            Status::HeldBack { why, .. } | Status::Refused { why } => why,
        };
        Self {
            decision: (&c.decision).into(),
            us: c.us,
            status: status_number(&c.status),
            why: why.into(),
            room: [0; 2],
        }
    }
}

impl<'a> RawCandidate<'a> {
    /// The candidate; None for one that has something which this side does not know.
    pub fn plain(&self) -> Option<Candidate<'a>> {
        let why = self.why.as_str();
        let status = match self.status {
            PREDICTED => Status::Predicted,
            UNMEASURED => Status::Unmeasured,
            HELD_BACK => Status::HeldBack { why, is_measured: true },
            HELD_BACK_UNMEASURED => Status::HeldBack { why, is_measured: false },
            REFUSED => Status::Refused { why },
            _ => return None,
        };
        Some(Candidate { decision: self.decision.plain()?, us: self.us, status })
    }

    /// Takes over what a tuner may change of a candidate, on the plugin's side.
    pub fn set(&mut self, candidate: &Candidate<'_>) {
        (self.us, self.status) = (candidate.us, status_number(&candidate.status));
    }

    /// Takes over what a plugin may change of a candidate, on the host's side.
    pub fn give(&self, candidate: &mut Candidate<'_>) {
        match (self.status, candidate.status) {
            (_, Status::Refused { .. }) => {}
            (REFUSED, _) => candidate.leave_out(),
            (PREDICTED, Status::Unmeasured) => candidate.estimate(self.us),
            _ => candidate.us = self.us,
        }
    }
}

fn status_number(status: &Status<'_>) -> u32 {
    match status {
        Status::Predicted => PREDICTED,
        Status::Unmeasured => UNMEASURED,
        Status::HeldBack { is_measured: true, .. } => HELD_BACK,
        Status::HeldBack { is_measured: false, .. } => HELD_BACK_UNMEASURED,
        Status::Refused { .. } => REFUSED,
    }
}

/// [`Answer`]. `room[0]`: one more than the number of the class; 0 = not given.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawAnswer {
    pub order: ROption<u64>,
    pub channels: ROption<u32>,
    pub room: [u64; 4],
}

impl From<Answer> for RawAnswer {
    fn from(answer: Answer) -> Self {
        let order = answer.order.map(|place| place as u64);
        let class = answer.class.map_or(0, |class| class as u64 + 1);
        Self { order: order.into(), channels: answer.channels.into(), room: [class, 0, 0, 0] }
    }
}

impl From<RawAnswer> for Answer {
    fn from(raw: RawAnswer) -> Self {
        let place = |place| usize::try_from(place).unwrap_or(usize::MAX);
        let class = nth(&Class::ALL, raw.room[0]);
        Self { order: raw.order.into_option().map(place), channels: raw.channels.into_option(), class }
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

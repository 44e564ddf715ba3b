//! Tuner plugins.

use std::sync::Arc;

use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RString, RVec};
use abi_stable::type_level::downcasting::TD_Opaque;

use super::Shield;
use crate::abi::raw::learner::{RawLearner_TO, RawLearnerBox, plain_files};
use crate::abi::raw::tuner::{
    RawAgreement, RawAnswer, RawCandidate, RawQuestion, RawTuner, RawTunerConfig, RawTunerContext,
    RawTunerContext_TO, RawTunerContextBox,
};
use crate::abi::raw::{RawError, plain_log};
use crate::error::Error;
use crate::tuner::{Candidate, Tuner, TunerConfig, TunerContext};

impl RawTuner for Shield<Arc<dyn Tuner>> {
    fn name(&self) -> RResult<RString, RawError> {
        self.call(|tuner| Ok(tuner.name().into()))
    }

    fn open(&self, raw: RawTunerConfig, names: RVec<RString>) -> RResult<RawTunerContextBox, RawError> {
        let config = self.plain_config(raw, names);
        self.call(|tuner| {
            let context = self.child(tuner.open(&config)?);
            Ok(RawTunerContext_TO::from_value(context, TD_Opaque))
        })
    }

    fn open_with(
        &self,
        raw: RawTunerConfig,
        names: RVec<RString>,
        files: RVec<RString>,
    ) -> RResult<RawTunerContextBox, RawError> {
        let (config, files) = (self.plain_config(raw, names), plain_files(&files));
        self.call(|tuner| {
            let context = self.child(tuner.open_with(&config, &files)?);
            Ok(RawTunerContext_TO::from_value(context, TD_Opaque))
        })
    }

    fn learner(
        &self,
        raw: RawTunerConfig,
        names: RVec<RString>,
    ) -> RResult<ROption<RawLearnerBox>, RawError> {
        let config = self.plain_config(raw, names);
        self.call(|tuner| {
            let raw = |learner| RawLearner_TO::from_value(self.child(learner), TD_Opaque);
            Ok(tuner.learner(&config)?.map(raw).into())
        })
    }
}

impl Shield<Arc<dyn Tuner>> {
    fn plain_config(&self, raw: RawTunerConfig, names: RVec<RString>) -> TunerConfig {
        let mut names = names.into_iter().map(String::from);
        let log = plain_log(raw.host);
        self.guard.log_to(&log);
        let [domains, fewest, most] = raw.domains;
        TunerConfig {
            comm_id: raw.comm_id,
            ranks: raw.ranks,
            nodes: raw.nodes,
            domains: (domains, fewest, most),
            name: names.next().unwrap_or_default(),
            programs: names.collect(),
            log,
        }
    }
}

impl RawTunerContext for Shield<Box<dyn TunerContext>> {
    fn tune(
        &self,
        question: RawQuestion,
        mut raw: RSliceMut<'_, RawCandidate<'_>>,
    ) -> RResult<RawAnswer, RawError> {
        self.call(|context| {
            // What this side does not know stays as it is.
            let mut places = Vec::with_capacity(raw.len());
            let mut plain: Vec<Candidate<'_>> = Vec::with_capacity(raw.len());
            for (at, candidate) in raw.iter().enumerate() {
                if let Some(candidate) = candidate.plain() {
                    places.push(at);
                    plain.push(candidate);
                }
            }
            let mut answer = context.tune(&question.plain()?, &mut plain)?;
            places.iter().zip(&plain).for_each(|(at, plain)| raw[*at].set(plain));
            // A place that is none stays one: the host says so.
            answer.order = answer.order.map(|place| places.get(place).copied().unwrap_or(usize::MAX));
            Ok(answer.into())
        })
    }

    fn chunk_bytes(
        &self,
        question: RawQuestion,
        chosen: RawCandidate<'_>,
    ) -> RResult<ROption<u64>, RawError> {
        self.call(|context| {
            let chosen = chosen.plain().ok_or_else(|| Error::unsupported("a chunk size of this decision"))?;
            Ok(context.chunk_bytes(&question.plain()?, &chosen)?.into())
        })
    }

    fn agreement(&self) -> RResult<RawAgreement, RawError> {
        self.call(|context| Ok(context.agreement().into()))
    }

    fn wants_every_collective(&self) -> bool {
        self.call_or(false, |context| Some(context.wants_every_collective()))
    }

    fn wants_copy_engines(&self) -> bool {
        self.call_or(false, |context| Some(context.wants_copy_engines()))
    }

    fn wants_in_graph(&self) -> bool {
        self.call_or(false, |context| Some(context.wants_in_graph()))
    }

    fn trial(&self, operation: u64) -> ROption<u32> {
        self.call_or(None, |context| Some(context.trial(operation))).into()
    }

    fn wants_times(&self) -> bool {
        self.call_or(false, |context| Some(context.wants_times()))
    }

    fn why(&self, question: RawQuestion, raw: RSlice<'_, RawCandidate<'_>>) -> RResult<RString, RawError> {
        self.call(|context| {
            let plain: Vec<Candidate<'_>> = raw.iter().filter_map(RawCandidate::plain).collect();
            Ok(context.why(&question.plain()?, &plain)?.into())
        })
    }
}

//! Tuner plugins of libraries.

use std::time::Duration;

use abi_stable::std_types::{ROption, RSlice, RSliceMut, RString, RVec};

use super::raw_host;
use crate::abi::raw::learner::{RawLearnerBox, raw_files};
use crate::abi::raw::plain;
use crate::abi::raw::tuner::{
    RawAgreement, RawAnswer, RawCandidate, RawTunerBox, RawTunerConfig, RawTunerContextBox,
};
use crate::error::Result;
use crate::host::Log;
use crate::learner::{Learner, Measured, Proposal};
use crate::tuner::{Agreement, Answer, Candidate, Question, SettingsFile, Tuner, TunerConfig, TunerContext};

pub struct LoadedTuner {
    pub name: String,
    pub raw: RawTunerBox,
}

impl Tuner for LoadedTuner {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, config: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        Ok(Box::new(LoadedContext(plain(self.raw.open(raw_config(config), names(config)))?)))
    }

    fn open_with(&self, config: &TunerConfig, files: &[SettingsFile]) -> Result<Box<dyn TunerContext>> {
        let opened = self.raw.open_with(raw_config(config), names(config), raw_files(files));
        Ok(Box::new(LoadedContext(plain(opened)?)))
    }

    fn learner(&self, config: &TunerConfig) -> Result<Option<Box<dyn Learner>>> {
        let raw: ROption<RawLearnerBox> = plain(self.raw.learner(raw_config(config), names(config)))?;
        let loaded = |raw| -> Box<dyn Learner> {
            Box::new(LoadedLearner {
                name: self.name.clone(),
                raw,
                log: config.log.clone(),
                has_failed: false,
            })
        };
        Ok(raw.into_option().map(loaded))
    }
}

fn raw_config(config: &TunerConfig) -> RawTunerConfig {
    let (domains, fewest, most) = config.domains;
    RawTunerConfig {
        comm_id: config.comm_id,
        ranks: config.ranks,
        nodes: config.nodes,
        domains: [domains, fewest, most],
        spare: 0,
        host: raw_host(&config.log),
        room: [0; 8],
    }
}

/// Of the communicator, then of programs.
fn names(config: &TunerConfig) -> RVec<RString> {
    let names = std::iter::once(&config.name).chain(&config.programs);
    names.map(|name| RString::from(name.as_str())).collect()
}

struct LoadedContext(RawTunerContextBox);

impl TunerContext for LoadedContext {
    fn tune(&self, question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
        let mut raw: Vec<RawCandidate<'_>> = candidates.iter().map(RawCandidate::from).collect();
        let answer: RawAnswer = plain(self.0.tune(question.into(), RSliceMut::from_mut_slice(&mut raw)))?;
        candidates.iter_mut().zip(&raw).for_each(|(candidate, raw)| raw.give(candidate));
        Ok(answer.into())
    }

    fn chunk_bytes(&self, question: &Question, chosen: &Candidate<'_>) -> Result<Option<u64>> {
        plain(self.0.chunk_bytes(question.into(), chosen.into()))
    }

    fn agreement(&self) -> Option<Agreement> {
        // A plugin that panics here has nothing to agree on any more: it is not asked again.
        let raw: RawAgreement = plain(self.0.agreement()).ok()?;
        raw.into()
    }

    fn wants_every_collective(&self) -> bool {
        self.0.wants_every_collective()
    }

    fn wants_copy_engines(&self) -> bool {
        self.0.wants_copy_engines()
    }

    fn wants_in_graph(&self) -> bool {
        self.0.wants_in_graph()
    }

    fn trial(&self, operation: u64) -> Option<u32> {
        self.0.trial(operation).into_option()
    }

    fn wants_times(&self) -> bool {
        self.0.wants_times()
    }

    fn why(&self, question: &Question, candidates: &[Candidate<'_>]) -> Result<String> {
        let raw: Vec<RawCandidate<'_>> = candidates.iter().map(RawCandidate::from).collect();
        plain(self.0.why(question.into(), RSlice::from_slice(&raw)))
    }
}

struct LoadedLearner {
    name: String,
    raw: RawLearnerBox,
    log: Log,
    has_failed: bool,
}

impl LoadedLearner {
    /// The answer of the learner; None after an error, which is logged once.
    fn answer<T>(&mut self, answer: Result<T>) -> Option<T> {
        let complain = |error: &crate::Error| {
            if !std::mem::replace(&mut self.has_failed, true) {
                self.log.warn(format!("tuner {} does not learn any more: {error}", self.name));
            }
        };
        answer.inspect_err(complain).ok()
    }
}

impl Learner for LoadedLearner {
    fn rebase(&mut self, files: &[SettingsFile], now: Duration) {
        let answer = plain(self.raw.rebase(raw_files(files), nanos(now)));
        self.answer::<()>(answer);
    }

    fn measured(&mut self, measured: &Measured, now: Duration) {
        let answer = plain(self.raw.measured(measured.into(), nanos(now)));
        self.answer::<()>(answer);
    }

    fn stressed(&mut self, what: &str, now: Duration) {
        let answer = plain(self.raw.stressed(what.into(), nanos(now)));
        self.answer::<()>(answer);
    }

    fn propose(&mut self, now: Duration) -> Option<Proposal> {
        let answer = plain(self.raw.propose(nanos(now)));
        let proposal: ROption<_> = self.answer(answer)?;
        proposal.into_option().map(Proposal::from)
    }

    fn settled(&mut self, outcome: std::result::Result<u64, String>, now: Duration) {
        let (operation, why) = match outcome {
            Ok(operation) => (Some(operation), String::new()),
            Err(why) => (None, why),
        };
        let answer = plain(self.raw.settled(operation.into(), why.into(), nanos(now)));
        self.answer::<()>(answer);
    }
}

fn nanos(now: Duration) -> u64 {
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

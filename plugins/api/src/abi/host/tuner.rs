//! Tuner plugins of libraries.

use abi_stable::std_types::{RSlice, RSliceMut, RString, RVec};

use super::raw_host;
use crate::abi::raw::plain;
use crate::abi::raw::tuner::{
    RawAgreement, RawAnswer, RawCandidate, RawTunerBox, RawTunerConfig, RawTunerContextBox,
};
use crate::error::Result;
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
        Ok(Box::new(LoadedContext(plain(self.raw.open_named(raw_config(config), names(config)))?)))
    }

    fn open_with(&self, config: &TunerConfig, files: &[SettingsFile]) -> Result<Box<dyn TunerContext>> {
        let files: RVec<RString> =
            files.iter().flat_map(|file| [file.name.as_str().into(), file.text.as_str().into()]).collect();
        let opened = self.raw.open_with(raw_config(config), names(config), files);
        Ok(Box::new(LoadedContext(plain(opened)?)))
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
    fn tune(&self, question: &Question, candidates: &mut [Candidate]) -> Result<Answer> {
        let mut raw: Vec<RawCandidate> = candidates.iter().map(RawCandidate::from).collect();
        let answer: RawAnswer = plain(self.0.tune(question.into(), RSliceMut::from_mut_slice(&mut raw)))?;
        candidates.iter_mut().zip(&raw).for_each(|(candidate, raw)| candidate.us = raw.us);
        Ok(answer.into())
    }

    fn chunk_bytes(&self, question: &Question, chosen: &Candidate, channels: u32) -> Result<Option<u64>> {
        plain(self.0.chunk_bytes(question.into(), chosen.into(), channels))
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

    fn why(&self, question: &Question, candidates: &[Candidate]) -> Result<String> {
        let raw: Vec<RawCandidate> = candidates.iter().map(RawCandidate::from).collect();
        plain(self.0.why(question.into(), RSlice::from_slice(&raw)))
    }
}

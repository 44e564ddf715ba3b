//! The plugin's side of learners.

use std::time::Duration;

use abi_stable::std_types::{ROption, RResult, RString, RVec};

use super::Shield;
use crate::abi::raw::RawError;
use crate::abi::raw::learner::{RawLearner, RawMeasured, RawProposal, plain_files};
use crate::learner::Learner;

impl RawLearner for Shield<Box<dyn Learner>> {
    fn rebase(&mut self, files: RVec<RString>, now: u64) -> RResult<(), RawError> {
        let files = plain_files(&files);
        self.call_mut(|learner| {
            learner.rebase(&files, Duration::from_nanos(now));
            Ok(())
        })
    }

    fn measured(&mut self, measured: RawMeasured, now: u64) -> RResult<(), RawError> {
        self.call_mut(|learner| {
            learner.measured(&measured.plain()?, Duration::from_nanos(now));
            Ok(())
        })
    }

    fn stressed(&mut self, what: RString, now: u64) -> RResult<(), RawError> {
        self.call_mut(|learner| {
            learner.stressed(&what, Duration::from_nanos(now));
            Ok(())
        })
    }

    fn propose(&mut self, now: u64) -> RResult<ROption<RawProposal>, RawError> {
        self.call_mut(|learner| Ok(learner.propose(Duration::from_nanos(now)).map(RawProposal::from).into()))
    }

    fn settled(&mut self, operation: ROption<u64>, why: RString, now: u64) -> RResult<(), RawError> {
        self.call_mut(|learner| {
            let outcome = operation.into_option().ok_or_else(|| why.to_string());
            learner.settled(outcome, Duration::from_nanos(now));
            Ok(())
        })
    }
}

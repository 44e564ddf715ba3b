//! A library with two Rust nets, and a tuner that is there as a table of NCCL only. The tests of the search
//! load it.

#[path = "../../testkit/src/loopback.rs"]
mod loopback;

use hawser_plugin::net::{Net, NetConfig, NetContext};
use hawser_plugin::tuner::{Answer, Candidate, Question, Tuner, TunerConfig, TunerContext};
use hawser_plugin::{Error, Result};

hawser_plugin::export_plugin! { net: loopback::Loopback::default(), net: Empty }

hawser_compat::export_nccl_tuner!(std::sync::Arc::new(Silent));

/// A net that never works.
struct Empty;

impl Net for Empty {
    fn name(&self) -> &str {
        "empty"
    }

    fn open(&self, _config: &NetConfig) -> Result<Box<dyn NetContext>> {
        Err(Error::unsupported("everything"))
    }
}

/// A tuner that has no opinion.
struct Silent;

impl Tuner for Silent {
    fn name(&self) -> &str {
        "silent"
    }

    fn open(&self, _config: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        Ok(Box::new(Silent))
    }
}

impl TunerContext for Silent {
    fn tune(&self, _question: &Question, _candidates: &mut [Candidate<'_>]) -> Result<Answer> {
        Ok(Answer::default())
    }
}

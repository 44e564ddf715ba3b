//! A tuner that lets every reduction run as a ring with the protocol Simple, whatever its size, so that the
//! order in which ranks are summed never depends on it. What only moves data keeps the host's choice.

use hawser_plugin::tuner::{
    Algorithm, Answer, Candidate, Function, Protocol, Question, Tuner, TunerConfig, TunerContext,
};
use hawser_plugin::{Result, Subsys};

hawser_plugin::export_plugin! { tuner: OneRing }

/// The plugin. It is made once.
struct OneRing;

impl Tuner for OneRing {
    fn name(&self) -> &str {
        "{{crate_name}}"
    }

    fn open(&self, config: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        config.log.info(Subsys::TUNING, format!("{{crate_name}}: reductions of {} ranks go by ring", config.ranks));
        Ok(Box::new(Self))
    }
}

impl TunerContext for OneRing {
    fn tune(&self, question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
        let reduces =
            matches!(question.function, Function::AllReduce | Function::ReduceScatter | Function::Reduce);
        // Where the host offers no such ring, it decides.
        let ring = candidates.iter().position(|candidate| {
            let decision = &candidate.decision;
            let is_ring = decision.algorithm == Algorithm::RING && decision.protocol == Protocol::Simple;
            is_ring && candidate.is_offered()
        });
        Ok(ring.filter(|_| reduces).map_or_else(Answer::default, Answer::ordered))
    }
}

#[cfg(test)]
mod tests {
    hawser_plugin_testkit::tuner_suite!(std::sync::Arc::new(super::OneRing));
}

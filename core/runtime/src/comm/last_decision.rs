//! The decision about the last operation of a communicator, and the reason: the answer of
//! [`Comm::last_decision`].

use hawser_base::error::Result;
use hawser_base::lock::lock;
use hawser_device::Stream;
use hawser_plan::{Decision, Executor, Route};

use super::Comm;
use crate::comm_state::Compiled;
use crate::comm_state::plan_cache::{BatchSummary, Last};

/// The record of the last operation of a communicator: what ran, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct LastDecision {
    /// Number of the operation, from 0 on.
    pub operation: u64,
    /// Snake-case name of the collective; `sendrecv` for messages.
    pub collective: String,
    /// Bytes of the larger of input and output; of all messages.
    pub bytes: u64,
    /// Name of the algorithm or program; empty for messages.
    pub algorithm: String,
    /// The executor, the protocol and the strategy.
    pub route: Route,
    /// Blocks of the launches.
    pub channels: u32,
    /// The threads of each block; 0 where no kernel runs.
    pub threads: u32,
    /// The time that the cost model, or the tuner that decided, predicted: µs; 0 for messages.
    pub predicted_us: f32,
    /// The tuner and its rule, with file and line, if one decided.
    pub rule: Option<String>,
    /// The explanation for people: the candidates, what removed each or what each would cost, and the tuners'
    /// rules.
    pub text: String,
}

impl Comm {
    /// The record of the last operation that was put on a stream. None before the first one, and after
    /// choices were forgotten.
    ///
    /// # Errors
    /// The communicator is not up.
    pub fn last_decision(&self) -> Result<Option<LastDecision>> {
        let state = self.state()?;
        let found = {
            let choices = lock(&state.choices)?;
            let cache = &choices.cache;
            match cache.last() {
                None => return Ok(None),
                Some(Last::Copy(number, call)) => {
                    let (number, call) = (*number, *call);
                    drop(choices);
                    (number, state.compiled(&call, None, Stream::default(), (number, false))?.0)
                }
                Some(Last::Batch(number, batch)) => return Ok(Some(of_batch(*number, *batch))),
                Some(Last::Collective(number, compiled)) => (*number, compiled.clone()),
            }
        };
        Ok(Some(of_choice(found.0, &found.1)))
    }
}

fn of_choice(operation: u64, compiled: &Compiled) -> LastDecision {
    let (chosen, blocks) = compiled.chosen();
    let choice = &chosen.choice;
    LastDecision {
        operation,
        collective: choice.why.collective.name().into(),
        bytes: choice.why.bytes,
        algorithm: choice.key.algorithm.name().into(),
        route: choice.route,
        channels: blocks.into(),
        threads: threads(choice),
        predicted_us: choice.predicted_us,
        rule: choice.why.rule.clone(),
        text: chosen.to_string(),
    }
}

fn of_batch(operation: u64, batch: BatchSummary) -> LastDecision {
    let text = format!(
        "{} messages of {} bytes in all\n  decided: {} in {} blocks by their sizes and by what connects the \
         ranks",
        batch.messages,
        batch.bytes,
        batch.route.name(),
        batch.channels
    );
    LastDecision {
        operation,
        collective: "sendrecv".into(),
        bytes: batch.bytes,
        algorithm: String::new(),
        route: batch.route,
        channels: batch.channels,
        threads: 0,
        predicted_us: 0.0,
        rule: None,
        text,
    }
}

/// The threads of a block; 0 where no kernel runs.
fn threads(choice: &Decision) -> u32 {
    match choice.route.executor {
        Executor::Interpreter | Executor::Fused => choice.threads,
        Executor::CopyEngine | Executor::Host => 0,
    }
}

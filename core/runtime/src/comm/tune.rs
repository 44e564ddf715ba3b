//! What tuner plugins say about a call, put into the planner's terms.

use std::sync::atomic::{AtomicBool, Ordering};

use hawser_plan::choose::{Advice, Candidate, Outcome};
use hawser_plan::{Algorithm, Call, Collective, Protocol, World};
use hawser_plugin::tuner::{self, Function, Question, TunerConfig, TunerContext};

use crate::log::{self, Subsys};
use crate::plugins;

/// The tuners of a communicator, in the order in which they are asked.
#[derive(Default)]
pub struct Tuners {
    open: Vec<Open>,
}

struct Open {
    name: String,
    context: Box<dyn TunerContext>,
    has_failed: AtomicBool,
}

impl Tuners {
    /// Opens all tuners of the process for a communicator. One that fails is left out.
    pub fn open(comm_id: u64, world: &World) -> Self {
        let mut open = Vec::new();
        for candidate in plugins::tuners() {
            let tuner = &candidate.plugin;
            let name = tuner.name().to_owned();
            let config = TunerConfig::new(comm_id, world.size(), world.hosts(), plugins::log());
            match tuner.open(&config) {
                Ok(context) => open.push(Open { name, context, has_failed: AtomicBool::new(false) }),
                Err(error) => log::warn(&format!("tuner {name} is left out: {error}")),
            }
        }
        Self { open }
    }

    /// Their names: equal on all ranks, or ranks would decide differently.
    pub fn names(&self) -> String {
        self.open.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// What the tuners make of the candidates; None if there is no tuner or none has an opinion.
    ///
    /// Each tuner sees the times that the one before it left. One that fails is ignored for this call.
    pub fn advise(&self, call: &Call, world: &World, candidates: &[Candidate]) -> Option<Advice> {
        let function = function(call.collective)?;
        if self.open.is_empty() || world.size() == 1 {
            return None;
        }
        let question = Question::new(function, call.total_bytes(world.size()));
        let mut table: Vec<tuner::Candidate> = candidates.iter().map(in_their_terms).collect();
        let (mut sources, mut blocks) = (Vec::new(), None);
        for tuner in &self.open {
            let before = table.clone();
            match tuner.context.tune(&question, &mut table) {
                Ok(answer) => {
                    if table != before || answer.channels.is_some() {
                        sources.push(tuner.name.as_str());
                    }
                    blocks = answer.channels.or(blocks);
                }
                Err(error) => {
                    table = before;
                    if !tuner.has_failed.swap(true, Ordering::Relaxed) {
                        log::warn(&format!(
                            "tuner {}: {error}; its advice is ignored where it fails",
                            tuner.name
                        ));
                    }
                }
            }
        }
        if sources.is_empty() {
            return None;
        }
        let source = format!("tuner {}", sources.join(", "));
        log::info(Subsys::Tuning, || {
            format!("{} of {} bytes: advice of {source}", function.name(), question.bytes)
        });
        // A time that is no number is no advice.
        let us = |c: &tuner::Candidate| if c.us.is_nan() { -1.0 } else { c.us };
        Some(Advice { source, us: table.iter().map(us).collect(), blocks })
    }
}

fn function(collective: Collective) -> Option<Function> {
    Some(match collective {
        Collective::AllReduce => Function::AllReduce,
        Collective::AllGather => Function::AllGather,
        Collective::ReduceScatter => Function::ReduceScatter,
        Collective::Broadcast => Function::Broadcast,
        Collective::Reduce => Function::Reduce,
        Collective::AllToAll | Collective::Gather | Collective::Scatter | Collective::SendRecv => {
            return None;
        }
    })
}

fn in_their_terms(candidate: &Candidate) -> tuner::Candidate {
    let us = match candidate.outcome {
        Outcome::Predicted { us, .. } => us,
        Outcome::Filtered(_) => -1.0,
    };
    let algorithm = match candidate.algorithm {
        // NCCL's tables know no fused kernels: they are families of their own.
        Algorithm::OneShot if candidate.protocol.is_exchange() => tuner::Algorithm::SYM_ONE_SHOT,
        Algorithm::AllPairs if candidate.protocol.is_exchange() => tuner::Algorithm::SYM_ALL_PAIRS,
        Algorithm::Ring => tuner::Algorithm::RING,
        Algorithm::Tree => tuner::Algorithm::TREE,
        Algorithm::OneShot => tuner::Algorithm::ONE_SHOT,
        Algorithm::AllPairs => tuner::Algorithm::ALL_PAIRS,
        Algorithm::Hierarchical => tuner::Algorithm::HIERARCHICAL,
        Algorithm::Direct => tuner::Algorithm::DIRECT,
        Algorithm::CollNet => tuner::Algorithm::COLLNET_CHAIN,
    };
    let protocol = match candidate.protocol {
        Protocol::Ll | Protocol::SymLl => tuner::Protocol::Ll,
        Protocol::Ll128 | Protocol::SymLl128 => tuner::Protocol::Ll128,
        Protocol::Simple | Protocol::SymSimple | Protocol::Dma => tuner::Protocol::Simple,
    };
    tuner::Candidate { algorithm, protocol, us }
}

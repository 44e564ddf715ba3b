//! Calls, candidates and communicators in the terms of tuner plugins.

use hawser_plan::choose::{Candidate, Choice, Outcome};
use hawser_plan::{Algorithm, Call, Collective, PlanConfig, Protocol, ReduceOp, Topology};
use hawser_plugin::collnet::DataType;
use hawser_plugin::tuner::{self, Function, Question, Reduction, TunerConfig};

use super::call_attributes::CallAttributes;
use crate::plugins;

/// What tuners are asked about a call: the question, and the candidates in their terms. None for what they are not asked about.
pub fn asked(
    call: &Call,
    attributes: CallAttributes,
    topology: &Topology,
    candidates: &[Candidate],
) -> Option<(Question, Vec<tuner::Candidate>)> {
    Some((question(call, attributes, topology)?, candidates.iter().map(in_their_terms).collect()))
}

/// What a choice is for tuners; None for what they are not asked about.
pub fn in_terms(
    collective: Collective,
    choice: &Choice,
) -> Option<(Function, tuner::Algorithm, tuner::Protocol)> {
    let own = (choice.key.algorithm, choice.protocol);
    let taken = choice.why.candidates.iter().find(|c| (c.algorithm, c.protocol) == own)?;
    let taken = in_their_terms(taken);
    Some((function(collective)?, taken.algorithm, taken.protocol))
}

/// What tuners learn of a communicator.
pub fn config(
    comm_id: u64,
    topology: &Topology,
    plan_config: &PlanConfig,
    name: Option<&str>,
) -> TunerConfig {
    let mut per_host = vec![0; topology.hosts() as usize];
    topology.ranks.iter().for_each(|rank| per_host[rank.host as usize] += 1);
    let fewest = per_host.iter().copied().min().unwrap_or(0);
    let most = per_host.iter().copied().max().unwrap_or(0);
    let mut config = TunerConfig::new(comm_id, topology.size(), topology.hosts(), plugins::log());
    config.domains = (topology.hosts(), fewest, most);
    config.name = name.unwrap_or_default().to_owned();
    for program in &plan_config.imports {
        let place = program.place() as usize;
        if config.programs.len() <= place {
            config.programs.resize(place + 1, String::new());
        }
        config.programs[place] = program.name().to_owned();
    }
    config
}

/// A call for tuners; None for what they are not asked about.
pub fn question(call: &Call, attributes: CallAttributes, topology: &Topology) -> Option<Question> {
    let mut question = Question::new(function(call.collective)?, call.total_bytes(topology.size()));
    question.data_type = DataType::ALL.get(call.dtype as usize).copied();
    question.op = call.collective.reduces().then_some(match call.op {
        ReduceOp::Sum => Reduction::Sum,
        ReduceOp::Prod => Reduction::Prod,
        ReduceOp::Max => Reduction::Max,
        ReduceOp::Min => Reduction::Min,
        ReduceOp::Avg => Reduction::Avg,
        ReduceOp::PreMulSum => Reduction::PreMulSum,
    });
    (question.in_graph, question.registered, question.trial) =
        (Some(attributes.in_graph), attributes.registered, attributes.trial);
    Some(question)
}

fn function(collective: Collective) -> Option<Function> {
    Some(match collective {
        Collective::AllReduce => Function::AllReduce,
        Collective::AllGather => Function::AllGather,
        Collective::ReduceScatter => Function::ReduceScatter,
        Collective::Broadcast => Function::Broadcast,
        Collective::Reduce => Function::Reduce,
        Collective::AllToAll => Function::AllToAll,
        Collective::Gather => Function::Gather,
        Collective::Scatter => Function::Scatter,
        Collective::SendRecv => return None,
    })
}

/// A candidate for tuners.
pub fn in_their_terms(candidate: &Candidate) -> tuner::Candidate {
    let us = match candidate.outcome {
        // Prices of what nobody has measured mean little: a tuner has to want it.
        Outcome::Predicted { us, .. } if !candidate.is_measured => us + tuner::UNMEASURED_US,
        Outcome::Predicted { us, .. } => us,
        Outcome::Filtered(_) => -1.0,
    };
    let us = if us >= 0.0 && candidate.held.is_some() { us + tuner::HELD_US } else { us };
    let algorithm = match candidate.algorithm {
        // Nor copy engines.
        Algorithm::Ring if candidate.protocol == Protocol::Dma => tuner::Algorithm::DMA_RING,
        Algorithm::AllPairs if candidate.protocol == Protocol::Dma => tuner::Algorithm::DMA_ALL_PAIRS,
        Algorithm::Direct if candidate.protocol == Protocol::Dma => tuner::Algorithm::DMA_DIRECT,
        // NCCL's tables know no fused kernels: they are families of their own.
        Algorithm::OneShot if candidate.protocol.is_exchange() => tuner::Algorithm::SYM_ONE_SHOT,
        Algorithm::AllPairs if candidate.protocol.is_exchange() => tuner::Algorithm::SYM_ALL_PAIRS,
        Algorithm::Direct if candidate.protocol.is_exchange() => tuner::Algorithm::SYM_DIRECT,
        Algorithm::Ring => tuner::Algorithm::RING,
        Algorithm::Tree => tuner::Algorithm::TREE,
        Algorithm::OneShot => tuner::Algorithm::ONE_SHOT,
        Algorithm::AllPairs => tuner::Algorithm::ALL_PAIRS,
        Algorithm::Hierarchical => tuner::Algorithm::HIERARCHICAL,
        Algorithm::Direct => tuner::Algorithm::DIRECT,
        Algorithm::CollNet => tuner::Algorithm::COLLNET_CHAIN,
        Algorithm::Pat => tuner::Algorithm::PAT,
        Algorithm::RecursiveDoubling => tuner::Algorithm::RECURSIVE_DOUBLING,
        Algorithm::HalvingDoubling => tuner::Algorithm::HALVING_DOUBLING,
        Algorithm::Bruck => tuner::Algorithm::BRUCK,
        Algorithm::Pairwise => tuner::Algorithm::PAIRWISE,
        Algorithm::Knomial => tuner::Algorithm::KNOMIAL,
        Algorithm::Imported(program) => tuner::Algorithm::program(program.place()),
    };
    let protocol = match candidate.protocol {
        Protocol::Ll | Protocol::SymLl => tuner::Protocol::Ll,
        Protocol::Ll128 | Protocol::SymLl128 => tuner::Protocol::Ll128,
        Protocol::Simple | Protocol::SymSimple | Protocol::SymDirect | Protocol::Dma => {
            tuner::Protocol::Simple
        }
    };
    tuner::Candidate { algorithm, protocol, us }
}

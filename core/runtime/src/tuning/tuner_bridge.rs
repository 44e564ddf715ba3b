//! The bridge from the planner to tuner plugins: calls, candidates, choices and communicators in the terms of
//! the plugin API. Nothing else of the runtime knows both.

use hawser_base::log;
use hawser_plan::choose::{Candidate, Choice, Outcome};
use hawser_plan::topology::DeviceKind;
use hawser_plan::{Algorithm, Call, Collective, PlanConfig, Protocol, ReduceOp, Route, Topology};
use hawser_plugin::collnet::DataType;
use hawser_plugin::tuner::{self, Decision, Executor, Function, Question, Reduction, Status, TunerConfig};

use super::call_attributes::CallAttributes;

/// What tuners are asked about a call: the question, and the candidates in their terms. None for a call that
/// tuners are not asked about.
pub fn asked<'c>(
    call: &Call,
    attributes: CallAttributes,
    topology: &Topology,
    candidates: &'c [Candidate],
) -> Option<(Question, Vec<tuner::Candidate<'c>>)> {
    let terms = |candidate| in_their_terms(candidate, topology);
    Some((question(call, attributes, topology)?, candidates.iter().map(terms).collect()))
}

/// A choice in the terms of tuners: the collective and the decision. None for a collective that tuners are
/// not asked about.
pub fn in_terms(
    collective: Collective,
    choice: &Choice,
    topology: &Topology,
) -> Option<(Function, Decision)> {
    Some((function(collective)?, decision_of(choice, topology)))
}

/// The decision of a choice.
pub fn decision_of(choice: &Choice, topology: &Topology) -> Decision {
    let taken = taken(choice).map(|candidate| &candidate.outcome);
    let channels = match taken {
        Some(Outcome::Predicted { channels, .. }) => *channels,
        Some(Outcome::Filtered(_)) | None => 1,
    };
    decision(choice.key.algorithm, choice.route, channels * choice.instances, topology)
}

/// The candidate that a choice took, with the channels that run.
pub fn chosen<'c>(choice: &'c Choice, topology: &Topology) -> Option<tuner::Candidate<'c>> {
    let candidate = in_their_terms(taken(choice)?, topology);
    Some(tuner::Candidate { decision: decision_of(choice, topology), ..candidate })
}

fn taken(choice: &Choice) -> Option<&Candidate> {
    let own = (choice.key.algorithm, choice.route);
    choice.why.candidates.iter().find(|c| (c.algorithm, c.route) == own)
}

/// The attributes about a communicator that tuners are opened with.
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
    let mut config = TunerConfig::new(comm_id, topology.size(), topology.hosts(), log::for_plugins());
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

/// The question to tuners about a call; None for a call that tuners are not asked about.
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
pub fn in_their_terms<'c>(candidate: &'c Candidate, topology: &Topology) -> tuner::Candidate<'c> {
    let Candidate { algorithm, route, outcome, held, is_measured } = candidate;
    let (us, channels) = match outcome {
        Outcome::Predicted { us, instances, channels } => (*us, instances * channels),
        Outcome::Filtered(_) => (0.0, 0),
    };
    let status = match (outcome, held) {
        (Outcome::Filtered(why), _) => Status::Refused { why },
        (_, Some(why)) => Status::HeldBack { why, is_measured: *is_measured },
        _ if *is_measured => Status::Predicted,
        _ => Status::Unmeasured,
    };
    tuner::Candidate { decision: decision(*algorithm, *route, channels, topology), us, status }
}

/// What the planner decides, as tuners have it.
fn decision(algorithm: Algorithm, route: Route, channels: u32, topology: &Topology) -> Decision {
    let executor = match (route.executor, topology.device) {
        (hawser_plan::Executor::Fused, _) => Executor::Fused,
        (hawser_plan::Executor::CopyEngine, _) => Executor::CopyEngine,
        (hawser_plan::Executor::Interpreter, DeviceKind::Host) => Executor::Host,
        (hawser_plan::Executor::Interpreter, DeviceKind::Cuda { .. }) => Executor::Interpreter,
    };
    let protocol = match route.protocol {
        Protocol::Ll => tuner::Protocol::Ll,
        Protocol::Ll128 => tuner::Protocol::Ll128,
        Protocol::Simple => tuner::Protocol::Simple,
    };
    Decision { algorithm: number(algorithm), executor, protocol, channels }
}

/// The number of an algorithm for tuners.
fn number(algorithm: Algorithm) -> tuner::Algorithm {
    match algorithm {
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
        Algorithm::DoubleRing => tuner::Algorithm::DOUBLE_RING,
        Algorithm::Imported(program) => tuner::Algorithm::program(program.place()),
    }
}

//! The bridge from the planner to tuner plugins: calls, candidates, choices and communicators in the terms of
//! the plugin API. The words of both are in [`crate::plugin_types`].

use hawser_base::log;
use hawser_plan::choose::{Candidate, Outcome};
use hawser_plan::{Algorithm, Call, Collective, PlanConfig, Route, Topology};
use hawser_plugin::tuner::{self, Decision, Function, Question, Status, TunerConfig};

use super::call_attributes::CallAttributes;
use crate::plugin_types;

/// The question to tuners about a call, and the candidates in their terms. None for a call that
/// tuners are not asked about.
pub fn asked<'c>(
    call: &Call,
    attributes: CallAttributes,
    topology: &Topology,
    candidates: &'c [Candidate],
) -> Option<(Question, Vec<tuner::Candidate<'c>>)> {
    Some((question(call, attributes, topology)?, candidates.iter().map(in_their_terms).collect()))
}

/// A decision in the terms of tuners: the collective and the decision. None for a collective that tuners are
/// not asked about.
pub fn in_terms(collective: Collective, choice: &hawser_plan::Decision) -> Option<(Function, Decision)> {
    Some((plugin_types::function(collective)?, decision_of(choice)))
}

/// The decision of the planner in the terms of tuners.
pub fn decision_of(choice: &hawser_plan::Decision) -> Decision {
    decision(choice.key.algorithm, choice.route, choice.channels)
}

/// The candidate that a decision took, with the channels that run.
pub fn chosen(choice: &hawser_plan::Decision) -> Option<tuner::Candidate<'_>> {
    let own = (choice.key.algorithm, choice.route);
    let taken = choice.why.candidates.iter().find(|c| (c.algorithm, c.route) == own)?;
    Some(tuner::Candidate { decision: decision_of(choice), ..in_their_terms(taken) })
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
    let mut question =
        Question::new(plugin_types::function(call.collective)?, call.total_bytes(topology.size()));
    question.data_type = Some(plugin_types::data_type(call.dtype));
    question.op = call.collective.reduces().then(|| plugin_types::reduction(call.op));
    (question.in_graph, question.registered, question.trial) =
        (Some(attributes.in_graph), attributes.registered, attributes.trial);
    question.rule = attributes.rule;
    Some(question)
}

/// A candidate for tuners.
pub fn in_their_terms(candidate: &Candidate) -> tuner::Candidate<'_> {
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
    tuner::Candidate { decision: decision(*algorithm, *route, channels), us, status }
}

/// A decision of the planner in the terms of tuners.
fn decision(algorithm: Algorithm, route: Route, channels: u32) -> Decision {
    Decision {
        algorithm: plugin_types::algorithm(algorithm),
        executor: plugin_types::executor(route.executor),
        protocol: plugin_types::protocol(route.protocol),
        channels,
    }
}

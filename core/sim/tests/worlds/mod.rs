//! Clusters, settings and calls that several tests use.
#![allow(dead_code)] // not every test uses all of it

use hawser_plan::config::{NET_SLOT_BYTES, algorithm_bit};
use hawser_plan::{Algorithm, Call, Collective, DataType, Decision, PlanConfig, Route, Topology, choose};
use hawser_sim::{Cluster, File, Options, Prediction, Result, Twin};
use hawser_types::DeviceKind;

/// A cluster from the text of its file.
pub fn cluster(text: &str) -> Cluster {
    let file = if text.contains('=') { File::parse(text) } else { File::sentence(text) };
    Cluster::new(&file.unwrap_or_else(|e| panic!("{text}: {e}")), None).unwrap_or_else(|e| panic!("{e}"))
}

/// The settings that a job on such ranks has, but for what environment and memory say.
pub fn settings(topology: &Topology) -> PlanConfig {
    let mut config = PlanConfig::default();
    if topology.device == DeviceKind::Host {
        config.slot_bytes = [0, 0, 32 << 10];
    }
    if topology.hosts() > 1 {
        config.slot_bytes = [0, 0, NET_SLOT_BYTES];
    }
    config
}

/// A call of so many bytes.
pub fn call(collective: Collective, bytes: u64, topology: &Topology) -> Call {
    Call::of_bytes(collective, bytes, DataType::Float32, 0, topology.size())
}

/// The decision of the real planner, and what the twin makes of it.
pub fn predict(
    cluster: &Cluster,
    collective: Collective,
    bytes: u64,
    options: &Options<'_>,
) -> Result<(Decision, Prediction)> {
    let config = settings(&cluster.topology);
    predict_with(cluster, &config, collective, bytes, options)
}

/// The same under these settings.
pub fn predict_with(
    cluster: &Cluster,
    config: &PlanConfig,
    collective: Collective,
    bytes: u64,
    options: &Options<'_>,
) -> Result<(Decision, Prediction)> {
    let call = call(collective, bytes, &cluster.topology);
    let decision = choose::choose(&call, &cluster.topology, config)?;
    let prediction = Twin::new(cluster).predict(&call, &decision, config, options)?;
    Ok((decision, prediction))
}

/// Settings that leave one algorithm and one route.
pub fn only(topology: &Topology, algorithm: &str, route: Route) -> PlanConfig {
    let mut config = settings(topology);
    let all = |lists: &str| Collective::ALL.map(|c| format!("{}:{lists}", c.name())).join(";");
    // `Ring` in `NCCL_ALGO` would mean rings of rails too.
    let known = Algorithm::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(algorithm));
    config.algorithms = [Some(algorithm_bit(known.expect("a known algorithm"))); 8];
    config.routes = PlanConfig::parse_proto(&format!(";{}", all(route.name()))).expect("a known route");
    config
}

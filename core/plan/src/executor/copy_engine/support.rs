//! The calls that copy engines can do, and the reasons why not others.

use hawser_types::{Algorithm, Call, Collective, DeviceKind, Link, Route};

use super::reduce_kernel;
use crate::algo::{self, ProgramKey};
use crate::config::PlanConfig;
use crate::topology::Topology;

/// Two for a launch, and others go on beside it.
const LEAST_QUEUES: u32 = 4;

/// True if ranks have staging: `NCCL_PASS_SM` or a rule asks for it, and copy engines can do something.
pub fn has_staging(topology: &Topology, config: &PlanConfig) -> bool {
    let wanted = config.routes.iter().any(|some| some.is_none_or(|some| some.contains(Route::COPY_ENGINE)));
    wanted && refused_topology(topology, config).is_none()
}

/// The reason why copy engines can do nothing for a communicator, if so.
pub fn refused_topology(topology: &Topology, config: &PlanConfig) -> Option<String> {
    match topology.link {
        _ if config.pass_sm == 0 && !config.copy_engines => {
            Some("copy engines are used with NCCL_PASS_SM=1, or where a rule asks for them".into())
        }
        _ if topology.size() < 2 => Some("there is one rank only".into()),
        _ if topology.queues < LEAST_QUEUES => Some(format!(
            "streams that wait for a copy hold the GPU's queues, of which CUDA_DEVICE_MAX_CONNECTIONS leaves \
             {}: {LEAST_QUEUES} are needed, 32 are best",
            topology.queues
        )),
        Link::HostMemory if topology.device != DeviceKind::Host && topology.places().1 > 1 => {
            Some("copy engines need peer access between the GPUs of a host".into())
        }
        _ => None,
    }
}

/// The reason why copy engines cannot do the moves of a program, if so.
pub fn refused(call: &Call, key: &ProgramKey, topology: &Topology, config: &PlanConfig) -> Option<String> {
    if let Some(reason) = refused_topology(topology, config) {
        return Some(reason);
    }
    if key.collective.reduces() {
        return reduce_kernel::refused(call, key, topology);
    }
    (!is_known(key.collective, key.algorithm)).then(|| "its channels wait for each other".into())
}

/// True if copy engines can move the data of a family's program for a collective.
pub fn is_known(collective: Collective, algorithm: Algorithm) -> bool {
    algo::generator(collective, algorithm).is_some_and(|generator| generator.by_copies)
}

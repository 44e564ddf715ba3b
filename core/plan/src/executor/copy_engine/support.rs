//! What copy engines can do.

use hawser_types::{Algorithm, Call, Collective, DeviceKind, Link, Protocol};

use super::fold;
use crate::algo::ProgramKey;
use crate::config::{PlanConfig, protocol_bit};
use crate::topology::Topology;

/// Two for a launch, and others go on beside it.
const LEAST_QUEUES: u32 = 4;

/// Whether ranks have staging: `NCCL_PASS_SM` or a rule asks for it, and copy engines can do something.
pub fn has_staging(topology: &Topology, config: &PlanConfig) -> bool {
    let bit = protocol_bit(Protocol::Dma);
    let wanted = config.protocols.iter().any(|mask| mask.is_none_or(|mask| mask & bit != 0));
    wanted && refused_topology(topology, config).is_none()
}

/// Why copy engines can do nothing for a communicator, if so.
pub fn refused_topology(topology: &Topology, config: &PlanConfig) -> Option<String> {
    match topology.link {
        _ if config.pass_sm == 0 && !config.copy_engines => {
            Some("copy engines are used with NCCL_PASS_SM=1, or where a rule asks for them".into())
        }
        _ if topology.size() < 2 => Some("there is one rank only".into()),
        _ if topology.queues < LEAST_QUEUES => Some(format!(
            "streams that wait for a copy hold the GPU's queues, of which CUDA_DEVICE_MAX_CONNECTIONS leaves {}: {LEAST_QUEUES} are needed, 32 are best",
            topology.queues
        )),
        Link::HostMemory if topology.device != DeviceKind::Host && topology.places().1 > 1 => {
            Some("copy engines need peer access between the GPUs of a host".into())
        }
        _ => None,
    }
}

/// Why copy engines cannot do the moves of a program, if so.
pub fn refused(call: &Call, key: &ProgramKey, topology: &Topology, config: &PlanConfig) -> Option<String> {
    if let Some(reason) = refused_topology(topology, config) {
        return Some(reason);
    }
    if key.collective.reduces() {
        return fold::refused(call, key, topology);
    }
    (!is_known(key)).then(|| "its channels wait for each other".into())
}

/// Programs whose channels do not wait for each other.
fn is_known(key: &ProgramKey) -> bool {
    use Collective::{AllGather, AllToAll, Broadcast, Gather, Scatter};
    matches!(
        (key.algorithm, key.collective),
        (Algorithm::Ring, AllGather | Broadcast)
            | (Algorithm::AllPairs, AllGather)
            | (Algorithm::Direct, AllToAll | Gather | Scatter)
    )
}

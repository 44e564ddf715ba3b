//! The strategy zero_copy: exchanges between buffers that all ranks reach, without staging
//! (`kernels/cuda/exchange_direct.cuh`): those of one process, and those in symmetric windows.
//!
//! The ranks' kernels tell each other addresses, then data go straight between the buffers: what is combined
//! is read from all ranks, everything else is written where it belongs or, where one rank has it all or gets
//! it all, read by who gets it. Whether all buffers can be reached is known to the kernels only: where some
//! cannot, they go on as `fused/Simple`, whose arguments and kernel these are.

pub use hawser_kernels_abi::fused::{PULL, READY, TRY};
use hawser_types::{Algorithm, Call, Collective, Link, ReduceOp, Route};

use super::area::refused_topology;
use super::grid::longest_part;
use crate::algo::ProgramKey;
use crate::config::PlanConfig;
use crate::executor::launch::PACK_BYTES;
use crate::topology::Topology;

/// Parts below this do not pay for telling addresses.
const LEAST_PART: u64 = 64 << 10;

/// True if ranks should try to reach each other's memory at bring-up: they share a process and some call may
/// use it.
pub fn is_wanted(topology: &Topology, config: &PlanConfig, processes: &[u64]) -> bool {
    processes.windows(2).all(|pair| pair[0] == pair[1]) && is_possible(topology, config)
}

/// True if some call may use it where ranks reach each other's memory.
pub fn is_possible(topology: &Topology, config: &PlanConfig) -> bool {
    let allowed = config.routes.iter().any(|some| some.is_none_or(|some| some.contains(Route::ZERO_COPY)));
    allowed && topology.link == Link::NvLink && refused_topology(topology).is_none()
}

/// The reason why a call of which fused kernels are capable cannot be done so, if so.
pub(super) fn refused(call: &Call, key: &ProgramKey, topology: &Topology) -> Option<String> {
    let bytes = call.block_bytes();
    let most = longest_part(call.collective, key.algorithm, bytes, topology.size());
    if topology.link != Link::NvLink {
        return Some("zero_copy reads other GPUs' memory: NVLink only".into());
    }
    if !topology.direct {
        return Some(
            "zero_copy is for GPUs of one process that reach each other's memory, and for buffers in windows \
             of all ranks (ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC)"
                .into(),
        );
    }
    if call.collective.reduces() && call.op == ReduceOp::PreMulSum {
        return Some("every rank has a factor of its own, and zero_copy reads other ranks' data".into());
    }
    if (call.collective, key.algorithm) == (Collective::AllReduce, Algorithm::OneShot) {
        return Some("in place, ranks would overwrite what others still read".into());
    }
    let blocks =
        call.collective.input_blocks(topology.size()).max(call.collective.output_blocks(topology.size()));
    if blocks > 1 && !(bytes | call.step_bytes()).is_multiple_of(PACK_BYTES) {
        return Some(format!("parts of {bytes} bytes are no multiple of {PACK_BYTES}"));
    }
    (most < LEAST_PART).then(|| format!("parts of {most} bytes are too small for zero_copy"))
}

/// The flags of a launch: [`TRY`], and the side that moves the data.
pub(super) fn wish(key: &ProgramKey) -> u8 {
    let pulls = key.algorithm != Algorithm::AllPairs
        && matches!(key.collective, Collective::Broadcast | Collective::Gather | Collective::Scatter);
    TRY | if pulls { PULL } else { 0 }
}

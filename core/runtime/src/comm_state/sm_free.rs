//! Lines with the tag `SM_FREE`: what of a communicator runs without multiprocessors, what does not, and why.

use std::sync::Mutex;

use hawser_base::env;
use hawser_base::lock::lock;
use hawser_base::log;
use hawser_device::size_text;
use hawser_plan::choose::{Decision, Outcome};
use hawser_plan::executor::copy_engine::{self, inter_node, reduce_kernel};
use hawser_plan::{Call, Collective, Route};
use rustc_hash::FxHashSet;

use super::CommState;
use crate::op_number::op;

/// The line that says what `NCCL_PASS_SM` comes to for a communicator.
pub fn announcement(state: &CommState) -> String {
    let (name, rank, level) = (&state.name, state.rank, state.plan_config.pass_sm);
    let who = match level {
        0 => format!("SM_FREE {name} rank {rank}: for rules that ask for it"),
        _ => format!("SM_FREE {name} rank {rank}: NCCL_PASS_SM={level}"),
    };
    let Some(staging) = state.layout.staging else {
        let reason = copy_engine::refused_topology(&state.topology, &state.plan_config);
        let reason = reason.unwrap_or_else(|| "left out by NCCL_PROTO".into());
        return format!("{who}: everything by kernels: {reason}");
    };
    let near = match state.layout.local {
        1 => String::new(),
        _ => format!(", staging {} MiB in slots of {} KiB", staging.bytes() >> 20, staging.slot_bytes >> 10),
    };
    let far = match &state.net {
        Some(net) => {
            let slot = inter_node::slot_bytes(&state.topology, &state.plan_config) >> 10;
            format!(", between hosts by net {} from slots of {slot} KiB in host memory", net.name())
        }
        None => String::new(),
    };
    let zero_copy = match env::settings().zero_copy {
        Some(false) if state.layout.local > 1 => "; NCCL_ZERO_COPY=0: all of it through staging",
        _ => "",
    };
    let messages = if level > 0 { "send/recv, " } else { "" };
    let ctas = state.plan_config.reducing_ctas;
    let reductions = match (level, state.net.is_some()) {
        (0, _) => String::new(),
        (_, true) => format!("by kernels of at most {ctas} CTAs, which move what they reduce between hosts"),
        _ => format!(
            "SM-light, with at most {ctas} CTAs, as copy engines do not reduce: they move for calls of {} \
             and more",
            size_text(reduce_kernel::LEAST_BYTES)
        ),
    };
    let reductions = match &*reductions {
        "" => String::new(),
        how => format!("; all_reduce, reduce_scatter and reduce {how}"),
    };
    format!(
        "{who}: {messages}all_gather, all_to_all, broadcast, gather and scatter by copy \
         engines{near}{far}{reductions}{zero_copy}"
    )
}

/// The reports that `NCCL_SM_FREE_VERBOSE` asks a communicator for.
pub struct SmFree {
    level: u8,
    /// Collectives and size classes that had their line.
    told: Mutex<FxHashSet<(Collective, u32)>>,
}

impl SmFree {
    /// 0 = no lines, 1 = one for each collective and power of two of bytes, 2 = one for each operation.
    pub fn new(level: u8) -> Self {
        Self { level, told: Mutex::default() }
    }

    /// A call runs.
    pub fn call(&self, state: &CommState, call: &Call, choice: &Decision, number: u64) {
        if self.level == 0 {
            return;
        }
        let bytes = call.total_bytes(state.topology.size());
        self.tell(state, call.collective, bytes, number, choice.route == Route::COPY_ENGINE, || {
            if state.plan_config.pass_sm == 0 && !state.plan_config.copy_engines {
                return "NCCL_PASS_SM is 0".into();
            }
            if let Some(rule) = &choice.why.rule {
                return rule.clone();
            }
            let candidates = choice.why.candidates.iter();
            let reason =
                candidates.filter(|c| c.route == Route::COPY_ENGINE).find_map(|c| match &c.outcome {
                    Outcome::Filtered(reason) => Some(reason.clone()),
                    Outcome::Predicted { .. } => c.held.map(str::to_owned),
                });
            reason.unwrap_or_else(|| "no program of moves does it".into())
        });
    }

    /// A batch of messages runs, `bytes` in all.
    pub fn messages(&self, state: &CommState, bytes: u64, number: u64, is_free: bool) {
        if self.level > 0 {
            let reason =
                || copy_engine::refused_topology(&state.topology, &state.plan_config).unwrap_or_default();
            self.tell(state, Collective::SendRecv, bytes, number, is_free, reason);
        }
    }

    fn tell(
        &self,
        state: &CommState,
        what: Collective,
        bytes: u64,
        number: u64,
        is_free: bool,
        reason: impl FnOnce() -> String,
    ) {
        let class = bytes.max(1).ilog2();
        if self.level < 2 && !lock(&self.told).is_ok_and(|mut told| told.insert((what, class))) {
            return;
        }
        let how = match (is_free, state.layout.staging) {
            (true, Some(_)) if what.reduces() => {
                format!(
                    "moves by copy engines, sums by kernels of at most {} CTAs",
                    state.plan_config.reducing_ctas
                )
            }
            (true, Some(_)) => {
                let slot = copy_engine::config(&state.plan_config, &state.topology, u64::MAX).slot_bytes[2];
                format!("copy engines, slots of at most {} KiB", slot >> 10)
            }
            _ if what.reduces() && state.plan_config.pass_sm > 0 => {
                format!("kernels of at most {} CTAs: {}", state.plan_config.reducing_ctas, reason())
            }
            _ => format!("kernels: {}", reason()),
        };
        let (name, rank) = (&state.name, state.rank);
        log::monitor(&format!(
            "SM_FREE {name} rank {rank} {}: {} {bytes} bytes: {how}",
            op(number),
            what.name()
        ));
    }
}

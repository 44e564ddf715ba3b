//! The host executor: threads of the CPU follow the steps of a program, where ranks have no GPU.
//!
//! It takes what the interpreter's plans say (`executor/interpreter`) and differs in who runs them. So it has
//! no protocol with flags: threads of a CPU see data and counters in order.

use hawser_kernels_abi::Variant;
use hawser_types::{Algorithm, Collective, DeviceKind, Executor, Result, Route};

use super::interpreter::{Lowered, estimate};
use super::order::{declared, leaves};
use super::query::{Decided, Grid, Load, Plan, PlanExecutor, Query, compile_steps};
use crate::config::PlanConfig;
use crate::decision::Outcome;
use crate::topology::Topology;

/// The executor of ranks that have no GPU.
#[derive(Debug)]
pub struct Host;

impl PlanExecutor for Host {
    fn executor(&self) -> Executor {
        Executor::Host
    }

    fn routes(&self) -> &'static [Route] {
        &[Route::HOST]
    }

    fn offers(&self, _collective: Collective, _algorithm: Algorithm, device: DeviceKind) -> bool {
        device == DeviceKind::Host
    }

    fn supports(&self, query: &Query<'_>) -> std::result::Result<(), String> {
        match query.topology.device {
            DeviceKind::Host => estimate::refused_slots(query).map_or(Ok(()), Err),
            DeviceKind::Cuda { .. } => Err("ranks have GPUs".to_string()),
        }
    }

    fn estimate(&self, query: &Query<'_>) -> Result<Outcome> {
        estimate::cheapest(query)
    }

    fn predict(&self, load: &Load<'_>, grid: Grid, topology: &Topology, config: &PlanConfig) -> f64 {
        estimate::predict(load, grid, topology, config)
    }

    fn advised(&self, query: &Query<'_>, best: Grid, blocks: u32) -> Result<u32> {
        estimate::advised(query, best, blocks)
    }

    /// A block is one thread.
    fn threads(&self, _query: &Query<'_>, _grid: Grid) -> u32 {
        1
    }

    fn compile(&self, decided: &Decided<'_>, program: Option<&Lowered>) -> Result<Plan> {
        let mut plan = compile_steps(decided, program, decided.config)?;
        if let Plan::Steps(plan) = &mut plan
            && is_nested(decided)
        {
            plan.kernel.variant = Variant::Nested;
        }
        Ok(plan)
    }
}

/// True if the operands of each step have to be combined along the nested tree, since the program's own steps
/// are not its nodes.
fn is_nested(decided: &Decided<'_>) -> bool {
    let Decided { call, decision, topology, config, .. } = decided;
    let declared = declared(call, topology.size(), config.reproducible);
    declared.is_some_and(|declared| leaves(&decision.key, &declared).is_some())
}

#[cfg(test)]
mod tests {
    use hawser_types::{Call, DataType, Link};

    use super::*;
    use crate::algo;
    use crate::choose::choose;
    use crate::executor::interpreter::lower;
    use crate::executor::launch::device_op;

    /// The kernel of an all-reduce, if there is one at this level.
    fn variant(ranks: u32, algorithm: &str, reproducible: u8) -> Option<Variant> {
        let topology = Topology::single_host(ranks, DeviceKind::Host, Link::HostMemory);
        let algorithms = PlanConfig::parse_algo(algorithm).unwrap();
        let config = PlanConfig { algorithms, reproducible, ..PlanConfig::for_device(DeviceKind::Host) };
        let call = Call::of_bytes(Collective::AllReduce, 1 << 16, DataType::Float16, 0, ranks);
        let decision = choose(&call, &topology, &config).ok()?;
        let program = algo::rank_program(&decision.key, 1).unwrap();
        let shape = algo::shape(&decision.key).unwrap();
        let program = lower(&shape, &program, device_op(&call)).unwrap();
        let decided =
            Decided { call: &call, decision: &decision, rank: 1, topology: &topology, config: &config };
        match Host.compile(&decided, Some(&program)).unwrap() {
            Plan::Steps(plan) => Some(plan.kernel.variant),
            Plan::Fused(_) => None,
        }
    }

    #[test]
    fn steps_with_operands_of_all_ranks_follow_the_declared_tree() {
        for algorithm in ["oneshot", "allpairs"] {
            let at = |ranks, level| variant(ranks, algorithm, level);
            assert_eq!([at(4, 0), at(4, 1)], [Some(Variant::One); 2]);
            assert_eq!([at(4, 2), at(8, 2)], [Some(Variant::Nested); 2]);
            // A tree of two is their order, and with nine ranks no step has all of them.
            assert_eq!([at(2, 2), at(9, 2)], [Some(Variant::One), None]);
        }
        assert_eq!([variant(4, "ring", 2), variant(4, "nested", 2)], [None, Some(Variant::One)]);
    }
}

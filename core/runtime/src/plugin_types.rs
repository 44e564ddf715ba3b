//! The words of this library in the words of the plugin API: types of data, reductions, collectives,
//! algorithms, executors, protocols.
//!
//! The plugin API is a crate of its own with layouts that never change, so both sides define these words.
//! Each is turned into the other here and nowhere else, by a match that names every variant: a word that is
//! added on one side does not compile until it stands here too. The tests compare names and numbers.

use hawser_plan::{Algorithm, Collective, DataType, Executor, Protocol, ReduceOp};
use hawser_plugin::{collnet, tuner};

/// The type of data of a call.
pub fn data_type(dtype: DataType) -> collnet::DataType {
    match dtype {
        DataType::Int8 => collnet::DataType::Int8,
        DataType::Uint8 => collnet::DataType::Uint8,
        DataType::Int32 => collnet::DataType::Int32,
        DataType::Uint32 => collnet::DataType::Uint32,
        DataType::Int64 => collnet::DataType::Int64,
        DataType::Uint64 => collnet::DataType::Uint64,
        DataType::Float16 => collnet::DataType::Float16,
        DataType::Float32 => collnet::DataType::Float32,
        DataType::Float64 => collnet::DataType::Float64,
        DataType::Bfloat16 => collnet::DataType::Bfloat16,
        DataType::Float8e4m3 => collnet::DataType::Float8e4m3,
        DataType::Float8e5m2 => collnet::DataType::Float8e5m2,
    }
}

/// The reduction of a call.
pub fn reduction(op: ReduceOp) -> tuner::Reduction {
    match op {
        ReduceOp::Sum => tuner::Reduction::Sum,
        ReduceOp::Prod => tuner::Reduction::Prod,
        ReduceOp::Max => tuner::Reduction::Max,
        ReduceOp::Min => tuner::Reduction::Min,
        ReduceOp::Avg => tuner::Reduction::Avg,
        ReduceOp::PreMulSum => tuner::Reduction::PreMulSum,
    }
}

/// The collective of a call; None for messages, which tuners are not asked about.
pub fn function(collective: Collective) -> Option<tuner::Function> {
    Some(match collective {
        Collective::AllReduce => tuner::Function::AllReduce,
        Collective::AllGather => tuner::Function::AllGather,
        Collective::ReduceScatter => tuner::Function::ReduceScatter,
        Collective::Broadcast => tuner::Function::Broadcast,
        Collective::Reduce => tuner::Function::Reduce,
        Collective::AllToAll => tuner::Function::AllToAll,
        Collective::Gather => tuner::Function::Gather,
        Collective::Scatter => tuner::Function::Scatter,
        Collective::SendRecv => return None,
    })
}

/// The executor of a route.
pub fn executor(executor: Executor) -> tuner::Executor {
    match executor {
        Executor::Interpreter => tuner::Executor::Interpreter,
        Executor::Fused => tuner::Executor::Fused,
        Executor::CopyEngine => tuner::Executor::CopyEngine,
        Executor::Host => tuner::Executor::Host,
    }
}

/// The protocol of a route.
pub fn protocol(protocol: Protocol) -> tuner::Protocol {
    match protocol {
        Protocol::Ll => tuner::Protocol::Ll,
        Protocol::Ll128 => tuner::Protocol::Ll128,
        Protocol::Simple => tuner::Protocol::Simple,
    }
}

/// The number of an algorithm.
pub fn algorithm(algorithm: Algorithm) -> tuner::Algorithm {
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
        Algorithm::Nested => tuner::Algorithm::NESTED,
        Algorithm::RailRing => tuner::Algorithm::RAIL_RING,
        Algorithm::RailTree => tuner::Algorithm::RAIL_TREE,
        Algorithm::RailRelay => tuner::Algorithm::RAIL_RELAY,
        Algorithm::Imported(program) => tuner::Algorithm::program(program.place()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name without case and underscores.
    fn plain(name: &str) -> String {
        name.replace('_', "").to_lowercase()
    }

    #[test]
    fn types_and_reductions_have_one_number_and_size() {
        for (at, dtype) in DataType::ALL.into_iter().enumerate() {
            let theirs = data_type(dtype);
            assert_eq!((theirs as i32, theirs.size()), (dtype as i32, dtype.size()), "{dtype:?}");
            assert_eq!(collnet::DataType::ALL[at], theirs);
        }
        assert_eq!(DataType::ALL.len(), collnet::DataType::ALL.len());
        assert_eq!(ReduceOp::ALL.map(reduction), tuner::Reduction::ALL);
        assert!(ReduceOp::ALL.into_iter().all(|op| reduction(op) as i32 == op as i32));
    }

    #[test]
    fn the_words_of_a_decision_have_one_name() {
        assert_eq!(Executor::ALL.map(executor), tuner::Executor::ALL);
        assert_eq!(Executor::ALL.map(Executor::name), tuner::Executor::ALL.map(tuner::Executor::name));
        assert_eq!(Protocol::ALL.map(protocol), tuner::Protocol::ALL);
        assert_eq!(Protocol::ALL.map(|p| plain(p.name())), tuner::Protocol::ALL.map(|p| plain(p.name())));
        for own in Algorithm::ALL.into_iter().filter(|own| *own != Algorithm::CollNet) {
            assert_eq!(plain(algorithm(own).name()), plain(own.name()));
        }
        assert_eq!(algorithm(Algorithm::CollNet).name(), "collnet_chain");
        let mut numbers = Algorithm::ALL.map(|own| algorithm(own).0);
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|two| two[0] != two[1]));
    }

    #[test]
    fn every_collective_has_its_function() {
        let functions: Vec<tuner::Function> = Collective::ALL.into_iter().filter_map(function).collect();
        assert_eq!(functions.len(), tuner::Function::EVERY.len());
        assert!(tuner::Function::EVERY.iter().all(|known| functions.contains(known)));
        for collective in Collective::ALL {
            if let Some(function) = function(collective) {
                assert_eq!(plain(function.name()), plain(collective.name()));
            }
        }
    }
}

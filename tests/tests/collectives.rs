//! Every collective × data type × reduction × number of ranks × size × in and out of place on the host
//! device, one thread driving all ranks through groups (as `-g N`), and one thread per rank.

use std::cell::RefCell;
use std::collections::HashMap;

use hawser_plan::{Collective, DataType, ReduceOp};
use hawser_runtime::{Comm, Stream, group, unique_id};
use hawser_tests::oracle::{Case, RankBuffers};
use hawser_tests::world::{call, on_host};

const RANKS: [u32; 8] = [1, 2, 3, 4, 5, 7, 8, 16];
/// Elements per block: nothing, one, odd, not a multiple of anything, more than one tile.
const COUNTS: [usize; 5] = [0, 1, 7, 129, 1027];

#[test]
fn all_reduce() {
    matrix(Collective::AllReduce);
}

#[test]
fn reduce() {
    matrix(Collective::Reduce);
}

#[test]
fn reduce_scatter() {
    matrix(Collective::ReduceScatter);
}

#[test]
fn broadcast() {
    matrix(Collective::Broadcast);
}

#[test]
fn all_gather() {
    matrix(Collective::AllGather);
}

#[test]
fn all_to_all() {
    matrix(Collective::AllToAll);
}

#[test]
fn gather() {
    matrix(Collective::Gather);
}

#[test]
fn scatter() {
    matrix(Collective::Scatter);
}

/// Sizes that take several tiles and instances, on aligned and unaligned addresses.
#[test]
fn large_and_unaligned() {
    if !on_host() {
        return;
    }
    for ranks in [2, 5, 8] {
        let comms = comms(ranks);
        for collective in Collective::ALL {
            for (dtype, count, shift) in [
                (DataType::Float32, 100_003, 1),
                (DataType::Uint8, 70_001, 3),
                (DataType::Bfloat16, 33_333, 0),
            ] {
                let case = Case { collective, dtype, op: ReduceOp::Sum, ranks, root: ranks - 1, count };
                run_group(comms, &case, false, shift);
                if collective != Collective::AllToAll {
                    run_group(comms, &case, true, shift);
                }
            }
        }
    }
}

/// One thread per rank, each with its own bring-up: the way of MPI programs.
#[test]
fn threads() {
    if !on_host() {
        return;
    }
    for ranks in [1, 2, 5, 8] {
        let id = unique_id().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                scope.spawn(move || {
                    let comm = Comm::init(&[id], ranks, rank, rank, Default::default()).unwrap();
                    for collective in Collective::ALL {
                        for op in [ReduceOp::Sum, ReduceOp::Avg] {
                            let case = Case {
                                collective,
                                dtype: DataType::Float32,
                                op,
                                ranks,
                                root: 0,
                                count: 5_001,
                            };
                            run_rank(&comm, &case);
                        }
                    }
                    comm.destroy().unwrap();
                });
            }
        });
    }
}

/// Several operations of several kinds on one communicator inside one group run in call order.
#[test]
fn a_group_of_many_operations() {
    if !on_host() {
        return;
    }
    let ranks = 4;
    let comms = comms(ranks);
    let cases: Vec<Case> =
        [Collective::AllReduce, Collective::AllGather, Collective::Broadcast, Collective::AllReduce]
            .map(|collective| Case {
                collective,
                dtype: DataType::Int32,
                op: ReduceOp::Sum,
                ranks,
                root: 2,
                count: 4_099,
            })
            .to_vec();
    let buffers: Vec<Vec<RankBuffers>> =
        cases.iter().map(|c| (0..ranks).map(|r| RankBuffers::new(c, r, false, 0)).collect()).collect();
    group::start().unwrap();
    for (case, buffers) in cases.iter().zip(&buffers) {
        for (rank, comm) in (0..ranks).zip(comms) {
            comm.collective(call(case, rank, buffers[rank as usize].addresses(case, rank)), Stream(0))
                .unwrap();
        }
    }
    group::end().unwrap();
    for (case, buffers) in cases.iter().zip(&buffers) {
        for rank in 0..ranks {
            assert_eq!(buffers[rank as usize].fault(case, rank), None);
        }
    }
}

fn matrix(collective: Collective) {
    if !on_host() {
        return;
    }
    for ranks in RANKS {
        let comms = comms(ranks);
        for dtype in DataType::ALL {
            let ops: &[ReduceOp] = if collective.reduces() { &ReduceOp::ALL } else { &[ReduceOp::Sum] };
            for &op in ops {
                for count in COUNTS {
                    let root = if collective.rooted() { ranks / 2 } else { 0 };
                    let case = Case { collective, dtype, op, ranks, root, count };
                    run_group(comms, &case, false, count % 2);
                    if collective != Collective::AllToAll {
                        run_group(comms, &case, true, 0);
                    }
                }
            }
        }
    }
}

/// The communicators of this test's thread, made once per number of ranks.
fn comms(ranks: u32) -> &'static [Comm] {
    thread_local! {
        static ALL: RefCell<HashMap<u32, &'static [Comm]>> = RefCell::default();
    }
    let make = || -> &'static [Comm] { Comm::init_all(&(0..ranks).collect::<Vec<u32>>()).unwrap().leak() };
    ALL.with_borrow_mut(|all| *all.entry(ranks).or_insert_with(make))
}

fn run_group(comms: &[Comm], case: &Case, in_place: bool, shift: usize) {
    let buffers: Vec<RankBuffers> =
        (0..case.ranks).map(|r| RankBuffers::new(case, r, in_place, shift)).collect();
    group::start().unwrap();
    for ((rank, comm), buffers) in (0..case.ranks).zip(comms).zip(&buffers) {
        comm.collective(call(case, rank, buffers.addresses(case, rank)), Stream(0)).unwrap();
    }
    group::end().unwrap();
    for (rank, buffers) in (0..case.ranks).zip(&buffers) {
        assert_eq!(buffers.fault(case, rank), None);
    }
}

fn run_rank(comm: &Comm, case: &Case) {
    let buffers = RankBuffers::new(case, comm.rank(), false, 0);
    comm.collective(call(case, comm.rank(), buffers.addresses(case, comm.rank())), Stream(0)).unwrap();
    assert_eq!(buffers.fault(case, comm.rank()), None);
}

//! Buffers of captured calls, which two processes map for each other as long as their graphs are there.

use hawser_device::{Graph, Stream};
use hawser_kernels_abi::fused::READY;
use hawser_plan::{Call, Collective, DataType, ReduceOp, Scalar};

use super::allocations::of_both_processes;
use super::*;
use crate::comm_state::Compiled;

const BYTES: u64 = 64 << 20;

pub(super) fn sum(input: u64, output: u64, bytes: u64) -> Call {
    let (collective, op, scalar) = (Collective::AllReduce, ReduceOp::Sum, Scalar::Immediate(0));
    Call {
        collective,
        count: bytes / 4,
        dtype: DataType::Float32,
        op,
        scalar,
        root: 0,
        input,
        output,
        gap: 0,
    }
}

/// True for a plan that goes without staging where all ranks reach the buffers.
pub(super) fn reaches(compiled: &Compiled) -> bool {
    matches!(compiled, Compiled::Fused(plan, _) if plan.may_reach())
}

/// Captures what `calls` does on a stream.
fn captured(comm: &Comm, calls: impl FnOnce(Stream)) -> Graph {
    let device = comm.state().unwrap().device.clone();
    let stream = device.stream().unwrap();
    device.needs_graphs().unwrap().begin_capture(stream.stream).unwrap();
    calls(stream.stream);
    device.needs_graphs().unwrap().end_capture(stream.stream).unwrap()
}

/// Waits for the other rank.
pub(super) fn meet(comm: &Comm) {
    let state = comm.state().unwrap();
    state.bootstrap.barrier(&Wait::new(state.abort.clone(), None)).unwrap();
}

/// Writes a word into the own buffer, tells the other rank where that one finds it by its number, and reads
/// the other's word.
pub(super) fn meet_in_buffers(comm: &Comm, (addr, numbers): (u64, u64), rank: u32) {
    let state = comm.state().unwrap();
    let number: u64 = at(numbers + 8 * u64::from(1 - rank));
    word(addr).store(1000 + rank, Ordering::Relaxed);
    let told = addr.wrapping_add(number).to_ne_bytes();
    let places = state.bootstrap.all_gather(&told, &Wait::new(state.abort.clone(), None)).unwrap();
    let there = u64::from_ne_bytes(places[1 - rank as usize].as_slice().try_into().unwrap());
    assert_eq!(at::<u32>(there), 1000 + 1 - rank, "the other rank's buffer");
    meet(comm);
}

/// Lends a buffer to the graph that a stream is captured into.
fn lend(comm: &Comm, stream: Stream, buffer: (u64, u64)) -> Option<u64> {
    let state = comm.state().unwrap();
    let capture = state.device.stream_state(stream).unwrap().capture.unwrap();
    state.lsa.lend_to_graph((stream, capture), Some(buffer), &Wait::new(state.abort.clone(), None)).unwrap()
}

#[test]
fn a_graph_keeps_what_the_ranks_have_mapped_for_it() {
    const NAME: &str = "a_graph_keeps_what_the_ranks_have_mapped_for_it";
    with_fake_kernels(module_path!(), NAME, &ENV, || of_both_processes((module_path!(), NAME), &[], keeps));
}

/// Two buffers in one allocation, and one in another on rank 1 alone.
fn keeps(comm: &Comm, rank: u32) {
    let state = comm.state().unwrap();
    assert!(state.lsa.lends_to_graphs());
    let device = hawser_device::cuda::open(0).unwrap();
    let [one, two] = [0; 2].map(|_| device.alloc_as_user(BYTES).unwrap());
    let (before, opened) = (fake("fake_live"), fake("fake_opened"));
    let graph = captured(comm, |stream| {
        let numbers = lend(comm, stream, (one.addr + 64, 4096)).expect("it is mapped");
        meet_in_buffers(comm, (one.addr + 64, numbers), rank);
        assert_eq!(lend(comm, stream, (one.addr + 1024, 64)), Some(numbers), "in the same allocation");
        assert_eq!(fake("fake_opened") - opened, 1);
        let third = if rank == 0 { one.addr } else { two.addr };
        let there = lend(comm, stream, (third, 64)).expect("it is mapped");
        assert_ne!(there, numbers, "one rank does not know it yet, so all map theirs anew");
        assert_eq!(fake("fake_opened") - opened, 1 + i32::from(rank == 0));
        assert_eq!(lend(comm, stream, (third, 64)), Some(there), "found again, by both");
    });
    assert!(!state.lsa.has_lent_windows() && state.lsa.seen(one.addr, 64).is_none(), "for the graph alone");
    state.lsa.let_go_of_graphs();
    assert_eq!(fake("fake_opened") - opened, 1 + i32::from(rank == 0), "the graph is there");
    drop(graph);
    state.lsa.let_go_of_graphs();
    assert_eq!((fake("fake_live"), fake("fake_opened")), (before, opened), "nothing is left");
    meet(comm);
}

#[test]
fn a_captured_call_uses_the_buffers_where_they_are() {
    const NAME: &str = "a_captured_call_uses_the_buffers_where_they_are";
    with_fake_kernels(module_path!(), NAME, &ENV, || of_both_processes((module_path!(), NAME), &[], uses));
}

fn uses(comm: &Comm, rank: u32) {
    let state = comm.state().unwrap();
    let device = hawser_device::cuda::open(0).unwrap();
    let buffer = device.alloc_as_user(BYTES).unwrap();
    let opened = fake("fake_opened");
    let call = |bytes| sum(buffer.addr, buffer.addr + BYTES / 2, bytes);
    let graph = captured(comm, |stream| {
        let (compiled, _, lent) = state.compiled_for_stream(&call(BYTES / 2), None, stream, 1).unwrap();
        assert!(reaches(&compiled));
        let lent = lent.expect("the graph has the buffers");
        assert_eq!((lent.direct, lent.src_seen), (READY, lent.dst_seen), "both lie in one allocation");
        // One rank has its blocks in place, which an all-to-all without staging cannot have: both stage.
        let apart = if rank == 0 { 0 } else { BYTES / 2 };
        let blocks = Call { collective: Collective::AllToAll, count: BYTES / 16, ..call(0) };
        let blocks = Call { output: buffer.addr + apart, ..blocks };
        assert!(
            reaches(&state.compiled(&blocks, None, stream, (4, true)).unwrap().0),
            "if it were not for that"
        );
        let (compiled, _, lent) = state.compiled_for_stream(&blocks, None, stream, 4).unwrap();
        assert!(lent.is_none() && !reaches(&compiled));
        // Small calls are staged, and nobody asks.
        let small = state.compiled_for_stream(&call(4096), None, stream, 2).unwrap();
        assert!(small.2.is_none());
        // Through the whole way of a call.
        comm.collective(call(BYTES / 2), stream).unwrap();
    });
    assert_eq!(fake("fake_opened") - opened, 1);
    // Outside of the capture the same call is staged as before.
    let stream = device.stream().unwrap();
    let (compiled, _, lent) = state.compiled_for_stream(&call(BYTES / 2), None, stream.stream, 3).unwrap();
    assert!(lent.is_none());
    assert!(!reaches(&compiled));
    drop(graph);
    comm.collective(call(BYTES / 2), stream.stream).unwrap();
    assert_eq!(fake("fake_opened"), opened, "the next call lets go of what the graph had");
    meet(comm);
}

/// Memory of VMM at different places of both ranks, as all-gathers in place have it.
#[test]
fn places_in_pieces_may_differ() {
    const NAME: &str = "places_in_pieces_may_differ";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[], |comm, rank| {
            let memory = mem_alloc(BYTES).unwrap();
            let addr = memory + 4096 * u64::from(rank) + 16;
            let graph = captured(comm, |stream| {
                let numbers = lend(comm, stream, (addr, 4096)).expect("it is mapped");
                meet_in_buffers(comm, (addr, numbers), rank);
                assert_eq!(lend(comm, stream, (memory, BYTES)), Some(numbers), "all of it is mapped");
            });
            drop(graph);
            meet(comm);
            mem_free(memory).unwrap();
        });
    });
}

#[test]
fn one_rank_that_may_not_is_enough_to_stage() {
    const NAME: &str = "one_rank_that_may_not_is_enough_to_stage";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[("NCCL_GRAPH_REGISTER", "0")], |comm, _| {
            let state = comm.state().unwrap();
            assert!(!state.lsa.lends_to_graphs());
            let device = hawser_device::cuda::open(0).unwrap();
            let buffer = device.alloc_as_user(BYTES).unwrap();
            let graph = captured(comm, |stream| {
                let call = sum(buffer.addr, buffer.addr, BYTES);
                assert!(state.compiled_for_stream(&call, None, stream, 1).unwrap().2.is_none());
            });
            drop(graph);
            meet(comm);
        });
    });
}

#[test]
fn memory_that_a_rank_cannot_open_is_staged_on_all() {
    const NAME: &str = "memory_that_a_rank_cannot_open_is_staged_on_all";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[("FAKE_NO_IPC", "1")], |comm, _| {
            let state = comm.state().unwrap();
            let device = hawser_device::cuda::open(0).unwrap();
            let buffer = device.alloc_as_user(BYTES).unwrap();
            let opened = fake("fake_opened");
            let graph = captured(comm, |stream| {
                let call = sum(buffer.addr, buffer.addr, BYTES);
                let (compiled, _, lent) = state.compiled_for_stream(&call, None, stream, 1).unwrap();
                assert!(lent.is_none());
                assert!(!reaches(&compiled));
            });
            drop(graph);
            assert_eq!(fake("fake_opened"), opened);
            meet(comm);
        });
    });
}

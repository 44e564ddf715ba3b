//! Buffers that each rank registers for itself, which another process maps when it hears of them.

use std::time::{Duration, Instant};

use hawser_device::Stream;
use hawser_kernels_abi::fused::READY;
use hawser_plan::Call;

use super::allocations::of_both_processes;
use super::graph::{meet, meet_in_buffers, reaches, sum};
use super::*;
use crate::comm_state::Compiled;
use crate::rules_update::Outcome;

const BYTES: u64 = 64 << 20;

/// Waits for something that another thread or process does. The time is for a machine that is busy.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}: not after a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The numbers by which others find a registered buffer, once all have mapped it.
fn numbers_of(comm: &Comm, (addr, bytes): (u64, u64)) -> u64 {
    let lsa = comm.state().unwrap().lsa.clone();
    until("the buffer is mapped", || lsa.seen(addr, bytes).is_some());
    lsa.seen(addr, bytes).unwrap()
}

/// Changes the rules to what they are, which ends after all proposals before it.
fn agree_on_rules(comm: &Comm) {
    let (sender, receiver) = channel();
    let participant = comm.state().unwrap().participant.as_ref().unwrap().participant().clone();
    participant.propose(&[], Box::new(move |outcome| sender.send(outcome).unwrap()));
    let outcome = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(!matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
}

#[test]
fn another_process_maps_what_a_rank_registers() {
    const NAME: &str = "another_process_maps_what_a_rank_registers";
    with_fake_kernels(module_path!(), NAME, &ENV, || of_both_processes((module_path!(), NAME), &[], maps));
}

/// Buffers at different places and of different lengths on both ranks.
fn maps(comm: &Comm, rank: u32) {
    let lsa = comm.state().unwrap().lsa.clone();
    let before = fake("fake_live");
    for round in 0..3 {
        let memory = mem_alloc(BYTES).unwrap();
        let buffer = (memory + 64 + 4096 * u64::from(rank), BYTES / 2 + u64::from(round * rank));
        comm.register_buffer(buffer.0, buffer.1).unwrap();
        let numbers = numbers_of(comm, buffer);
        assert!(lsa.seen(buffer.0 - 1, 8).is_none() && lsa.seen(buffer.0 + buffer.1, 1).is_none());
        assert_eq!(lsa.seen(buffer.0 + 8, buffer.1 - 8), Some(numbers), "all of it");
        meet_in_buffers(comm, (buffer.0, numbers), rank);
        let other = 1 - rank;
        let there = buffer.0.wrapping_add(at(numbers + 8 * u64::from(other)));
        assert_eq!(lsa.address_seen_by(other, buffer.0 + 24, 8), Some(there + 24), "for messages");
        assert!(lsa.maps_registered() && lsa.address_seen_by(other, buffer.0 + buffer.1 - 7, 8).is_none());
        // Its owner may free it before it is taken back: others have it mapped.
        mem_free(memory).unwrap();
        comm.deregister_buffer(buffer.0, buffer.1);
        assert!(lsa.seen(buffer.0, 8).is_none());
        meet(comm);
    }
    until("the other's are not mapped any more", || fake("fake_live") == before);
    meet(comm);
}

/// Many at once, of which some are taken back before the other rank has come to them.
#[test]
fn buffers_that_come_and_go_at_once_leave_nothing() {
    const NAME: &str = "buffers_that_come_and_go_at_once_leave_nothing";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[], |comm, _| {
            let before = fake("fake_live");
            let memory = mem_alloc(BYTES).unwrap();
            let part = |number: u64| (memory + number * (BYTES / 32), BYTES / 32 - 8);
            for _ in 0..5 {
                (0..32).for_each(|number| comm.register_buffer(part(number).0, part(number).1).unwrap());
                let (short, long): (Vec<u64>, Vec<u64>) = (0..32).partition(|number| number % 3 == 0);
                short.iter().for_each(|number| comm.deregister_buffer(part(*number).0, part(*number).1));
                for number in &long {
                    numbers_of(comm, part(*number));
                }
                let lsa = comm.state().unwrap().lsa.clone();
                assert!(short.iter().all(|number| lsa.seen(part(*number).0, 8).is_none()));
                long.iter().for_each(|number| comm.deregister_buffer(part(*number).0, part(*number).1));
            }
            mem_free(memory).unwrap();
            until("nothing is left", || fake("fake_live") == before);
            meet(comm);
        });
    });
}

/// The driver tells less of such pieces.
#[test]
fn pieces_in_the_memory_of_the_host_are_mapped_too() {
    const NAME: &str = "pieces_in_the_memory_of_the_host_are_mapped_too";
    let env = [&ENV[..], &[("FAKE_HOST_PIECES", "1")]].concat();
    with_fake_kernels(module_path!(), NAME, &env, || of_both_processes((module_path!(), NAME), &[], maps));
}

#[test]
fn memory_that_goes_with_its_owner_is_not_lent() {
    const NAME: &str = "memory_that_goes_with_its_owner_is_not_lent";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[], |comm, _| {
            let device = hawser_device::cuda::open(0).unwrap();
            let buffer = device.alloc_as_user(BYTES).unwrap();
            let (live, opened) = (fake("fake_live"), fake("fake_opened"));
            comm.register_buffer(buffer.addr, BYTES).unwrap();
            agree_on_rules(comm);
            assert!(comm.state().unwrap().lsa.seen(buffer.addr, 8).is_none());
            assert_eq!((fake("fake_live"), fake("fake_opened")), (live, opened));
            comm.deregister_buffer(buffer.addr, BYTES);
        });
    });
}

#[test]
fn all_ranks_begin_to_use_registered_buffers_at_one_call() {
    const NAME: &str = "all_ranks_begin_to_use_registered_buffers_at_one_call";
    with_fake_kernels(module_path!(), NAME, &ENV, || of_both_processes((module_path!(), NAME), &[], begins));
}

fn begins(comm: &Comm, rank: u32) {
    let (state, device) = (comm.state().unwrap(), hawser_device::cuda::open(0).unwrap());
    let buffer = mem_alloc(BYTES).unwrap();
    let stream = device.stream().unwrap();
    let call = sum(buffer, buffer + BYTES / 2, BYTES / 2);
    let chosen = |stream: Stream| state.compiled(&call, None, stream, (0, false)).unwrap().0;
    if rank == 0 {
        comm.register_buffer(buffer, BYTES).unwrap();
        numbers_of(comm, (buffer, BYTES));
        agree_on_rules(comm);
    }
    meet(comm);
    // One rank has none: no rank chooses as if it had.
    call_often(comm, stream.stream);
    assert!(!state.lsa.calls_reach_buffers() && !reaches(&chosen(stream.stream)));
    if rank == 1 {
        comm.register_buffer(buffer, BYTES).unwrap();
        numbers_of(comm, (buffer, BYTES));
        agree_on_rules(comm);
    }
    meet(comm);
    let at = call_often(comm, stream.stream);
    let all = state.bootstrap.all_gather(&at.to_ne_bytes(), &Wait::new(state.abort.clone(), None)).unwrap();
    assert!(at > 0 && all[0] == all[1], "both from the same call on, {at}");
    let compiled = chosen(stream.stream);
    let Compiled::Fused(plan, _) = &*compiled else { panic!("not fused") };
    let reached = state.reach(plan, &call, 1).unwrap();
    assert_eq!((reached.direct, reached.src_seen), (READY, reached.dst_seen), "both lie in one buffer");
    // A call on what is not registered any more is staged, by that rank's own word.
    comm.deregister_buffer(buffer, BYTES);
    assert_eq!(state.reach(plan, &call, 2).unwrap().direct, 0);
    meet(comm);
    mem_free(buffer).unwrap();
}

/// More collectives than a fence has in front of it. Returns after how many registered buffers are used; 0 if
/// they are not.
fn call_often(comm: &Comm, stream: Stream) -> u64 {
    let state = comm.state().unwrap();
    let memory = state.device.alloc(4096).unwrap();
    let mut at = 0;
    for number in 1..=40 {
        let call: Call = sum(memory.addr, memory.addr, 64);
        comm.collective(call, stream).unwrap();
        if at == 0 && state.lsa.calls_reach_buffers() {
            at = number;
        }
    }
    state.device.synchronize(stream).unwrap();
    at
}

#[test]
fn a_rank_that_maps_none_says_so() {
    const NAME: &str = "a_rank_that_maps_none_says_so";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[("NCCL_LOCAL_REGISTER", "0")], |comm, _| {
            let buffer = mem_alloc(BYTES).unwrap();
            comm.register_buffer(buffer, BYTES).unwrap();
            agree_on_rules(comm);
            assert!(comm.state().unwrap().lsa.seen(buffer, 8).is_none());
            comm.deregister_buffer(buffer, BYTES);
            mem_free(buffer).unwrap();
        });
    });
}

//! Communicators whose calls return at once: states, operations in the background, and how they end.

use hawser_plan::Collective;
use hawser_runtime::{Comm, ErrorKind, UniqueId, group, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::mail::{Mail, Parcel};
use hawser_tests::world::{all_reduce, issue, non_blocking, on_host, plain, settled, wait_until_ready};

fn start(id: UniqueId, rank: u32, ranks: u32) -> Comm {
    Comm::init(&[id], ranks, rank, rank, non_blocking()).unwrap()
}

fn in_progress(comm: &Comm) -> bool {
    comm.async_error().is_some_and(|e| e.kind == ErrorKind::InProgress)
}

/// One thread starts all ranks one after the other, without a group: no call may wait for another rank.
#[test]
fn bring_up_and_operations_in_the_background() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    let first = start(id, 0, 3);
    assert!(in_progress(&first), "a rank is up without the others");
    let early = all_reduce(&first, 10).unwrap_err();
    assert_eq!(early.kind, ErrorKind::InvalidUsage);
    assert!(early.text.contains("ncclCommGetAsyncError"), "{early}");
    let comms = [first, start(id, 1, 3), start(id, 2, 3)];
    comms.iter().for_each(wait_until_ready);
    for collective in Collective::ALL {
        let case = plain(collective, 3, 50_021);
        let first = issue(&comms[0], case, false, 0).unwrap();
        assert!(
            in_progress(&comms[0]) || !collective.reduces(),
            "{} is over without the others",
            collective.name()
        );
        let issued =
            [first, issue(&comms[1], case, false, 0).unwrap(), issue(&comms[2], case, false, 0).unwrap()];
        comms.iter().for_each(wait_until_ready);
        assert_eq!(issued.iter().find_map(|one| one.fault()), None);
    }
    for comm in &comms {
        comm.finalize().unwrap();
        wait_until_ready(comm);
        assert_eq!(
            comm.state().err().map(|e| e.kind),
            Some(ErrorKind::InvalidUsage),
            "only destroy is of use"
        );
        comm.destroy().unwrap();
    }
}

/// Operations of a communicator run in the order of their calls, and destroy waits for them.
#[test]
fn many_operations_in_flight() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    let comms = [start(id, 0, 2), start(id, 1, 2)];
    comms.iter().for_each(wait_until_ready);
    let mut issued = Vec::new();
    for count in [1, 30_001, 0, 77, 4_096] {
        for comm in &comms {
            issued.push(issue(comm, plain(Collective::AllReduce, 2, count), true, 0).unwrap());
        }
    }
    comms.iter().for_each(|comm| comm.destroy().unwrap());
    assert_eq!(issued.iter().find_map(|one| one.fault()), None);
}

#[test]
fn groups_of_inits_and_of_operations() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    group::start().unwrap();
    let comms: Vec<Comm> = (0..4).map(|rank| start(id, rank, 4)).collect();
    group::end().unwrap();
    comms.iter().for_each(wait_until_ready);
    let parcels: Vec<Parcel> =
        (0..4).map(|from| Parcel { from, to: (from + 3) % 4, bytes: 70_001 }).collect();
    group::start().unwrap();
    let sums: Vec<_> =
        comms.iter().map(|c| issue(c, plain(Collective::AllReduce, 4, 8_111), false, 0).unwrap()).collect();
    let mail: Vec<Mail> = comms.iter().map(|c| Mail::post(c, &parcels).unwrap()).collect();
    group::end().unwrap();
    comms.iter().for_each(wait_until_ready);
    assert_eq!(sums.iter().find_map(|one| one.fault()), None);
    assert_eq!(mail.iter().find_map(Mail::fault), None);
}

#[test]
fn abort_while_bring_up_is_in_progress() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let comm = start(unique_id().unwrap(), 1, 2);
    assert!(in_progress(&comm));
    comm.abort().unwrap();
    assert_eq!(comm.async_error().map(|e| e.kind), Some(ErrorKind::InvalidArgument));
    let late = comm.abort().unwrap_err();
    assert!(late.text.contains("destroyed or aborted") && late.text.contains("rank 1 of 2"), "{late}");
}

/// A group's error leaves nothing that waits for ever.
#[test]
fn bring_up_in_a_group_that_fails() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    for config in [non_blocking(), Default::default()] {
        group::start().unwrap();
        let comm = Comm::init(&[id], 2, 0, 0, config).unwrap();
        assert_eq!(comm.destroy().unwrap_err().kind, ErrorKind::InvalidUsage, "not before the group's end");
        assert!(Comm::init(&[id], 2, 2, 0, non_blocking()).is_err());
        let error = group::end().unwrap_err();
        assert!(error.text.contains("rank 2"), "{error}");
        assert_eq!(settled(&comm).map(|e| e.kind), Some(ErrorKind::InvalidUsage));
        comm.destroy().unwrap();
    }
}

/// Abort returns when the operation no longer touches the buffers.
#[test]
fn abort_while_an_operation_is_in_progress() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    let comms = [start(id, 0, 2), start(id, 1, 2)];
    comms.iter().for_each(wait_until_ready);
    let issued = issue(&comms[0], plain(Collective::AllReduce, 2, 100_003), false, 0).unwrap();
    assert!(in_progress(&comms[0]));
    comms[0].abort().unwrap();
    assert!(issued.fault().is_some(), "an all-reduce of one rank cannot be right");
    let after = all_reduce(&comms[0], 5).unwrap_err();
    assert!(after.text.contains("destroyed or aborted"), "{after}");
    comms[1].abort().unwrap();
}

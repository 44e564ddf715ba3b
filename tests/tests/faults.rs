//! Faults between ranks: everybody gets an error that names rank, cause and remedy, and nobody hangs.

use std::io::Write;
use std::net::TcpStream;

use hawser_plan::Collective;
use hawser_runtime::{Comm, Config, ErrorKind, Result, Stream, UniqueId, group, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::oracle::RankBuffers;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::{all_reduce, call, in_threads, issue, on_host, plain};

/// A rank in a process of its own.
fn rank(id: &UniqueId, place: (u32, u32), steps: &[&str], settings: &[(&str, &str)]) -> Process {
    Process::rank(env!("CARGO_BIN_EXE_hawser-test-rank"), id, place, steps, settings)
}

/// Brings ranks up in threads: rank, number of ranks and ids of each.
fn init_in_threads(ranks: &[(u32, u32, &[UniqueId])]) -> Vec<Result<Comm>> {
    std::thread::scope(|scope| {
        let init =
            |&(rank, ranks, ids)| scope.spawn(move || Comm::init(ids, ranks, rank, rank, Config::default()));
        let threads: Vec<_> = ranks.iter().map(init).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[track_caller]
fn assert_all_fail(outcomes: &[Result<Comm>], kind: ErrorKind, parts: &[&str]) {
    for outcome in outcomes {
        let error = outcome.as_ref().expect_err("no error");
        assert_eq!(error.kind, kind, "{error}");
        assert!(parts.iter().all(|part| error.text.contains(part)), "{parts:?} not in: {error}");
    }
}

#[test]
fn a_rank_that_never_comes_to_init() {
    let id = unique_id().unwrap();
    let settings = [("HAWSER_INIT_TIMEOUT", "1")];
    let processes = [0, 2].map(|r| rank(&id, (r, 3), &[], &settings));
    let ended = processes.map(Process::end);
    // The first whose deadline passes names the missing rank; then the other may learn that the first has
    // left.
    let first = ended.iter().find(|e| e.output.contains("error Timeout")).expect("nobody timed out");
    first.expect_error("Timeout", &["rank 1"]);
    assert!(ended.iter().all(|e| e.output.contains("rank 1") && !e.status.success()), "{}", ended[0].output);
}

#[test]
fn ranks_with_different_unique_ids() {
    let ids = [unique_id().unwrap(), unique_id().unwrap()];
    let settings = [("HAWSER_INIT_TIMEOUT", "1")];
    let processes = [0, 1].map(|r| rank(&ids[r as usize], (r, 2), &[], &settings));
    for (missing, process) in ["rank 1", "rank 0"].into_iter().zip(processes) {
        process.end().expect_error("Timeout", &[missing]);
    }
}

/// The text that they get depends on where they meet first; nobody waits for the deadline.
#[test]
fn unique_ids_in_another_order() {
    let _deadline = Deadline::start();
    let (a, b) = (unique_id().unwrap(), unique_id().unwrap());
    for outcome in init_in_threads(&[(0, 2, &[a, b]), (1, 2, &[b, a])]) {
        let error = outcome.err().unwrap();
        assert_ne!(error.kind, ErrorKind::Timeout, "{error}");
        assert!(error.text.contains("of 2") && error.text.contains("unique id"), "{error}");
    }
}

#[test]
fn damaged_and_foreign_unique_ids() {
    let good = unique_id().unwrap().to_bytes();
    for at in [9, 14, 40, 127] {
        let mut bytes = good;
        bytes[at] ^= 1;
        let error = UniqueId::from_bytes(&bytes).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        assert!(error.text.contains("damaged") && error.text.contains("ncclGetUniqueId"), "{error}");
    }
    assert!(UniqueId::from_bytes(&[0; 128]).unwrap_err().text.contains("empty"));
    assert!(UniqueId::from_bytes(&[3; 128]).unwrap_err().text.contains("not made by this library"));
    assert_eq!(UniqueId::from_bytes(&good).unwrap().to_bytes(), good);
}

#[test]
fn a_unique_id_used_twice() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    let comms = init_in_threads(&[(0, 2, &[id]), (1, 2, &[id])]);
    assert!(comms.iter().all(Result::is_ok));
    let again = init_in_threads(&[(0, 2, &[id]), (1, 2, &[id])]);
    assert!(again.iter().all(|o| o.as_ref().err().is_some_and(|e| e.text.contains("fresh"))));
}

#[test]
fn different_numbers_of_ranks() {
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    let outcomes = init_in_threads(&[(0, 2, &[id]), (1, 3, &[id])]);
    assert_all_fail(
        &outcomes,
        ErrorKind::InvalidUsage,
        &["rank 0 ", "rank 1 ", "says nranks = ", "same arguments"],
    );
}

#[test]
fn two_with_the_same_rank() {
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    let outcomes = init_in_threads(&[(1, 2, &[id]), (1, 2, &[id])]);
    assert_all_fail(&outcomes, ErrorKind::InvalidUsage, &["rank 1 of 2", "own number"]);
}

#[test]
fn impossible_arguments() {
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    let outcomes = init_in_threads(&[
        (0, 0, &[id]),
        (5, 5, &[id]),
        (0, 1, &[]),
        (0, 1, &[id, id]),
        (0, 4_000_000, &[id]),
    ]);
    assert_all_fail(&outcomes, ErrorKind::InvalidArgument, &[]);
}

/// Strangers at the root: some say nothing, some send garbage, some hang up. The ranks meet all the same.
#[test]
fn strangers_at_the_meeting_point() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    let garbage: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
    let strangers: Vec<TcpStream> = (0..12)
        .map(|number| {
            let mut stream = TcpStream::connect(id.address()).unwrap();
            match number % 3 {
                0 => {}
                // May fail once the root has hung up on it.
                1 => drop(stream.write_all(&garbage)),
                _ => stream.shutdown(std::net::Shutdown::Both).unwrap(),
            }
            stream
        })
        .collect();
    let comms = init_in_threads(&[(0, 3, &[id]), (1, 3, &[id]), (2, 3, &[id])]);
    drop(strangers);
    std::thread::scope(|scope| {
        for comm in &comms {
            scope.spawn(|| all_reduce(comm.as_ref().unwrap(), 1_000).unwrap());
        }
    });
}

#[test]
fn settings_that_differ_between_ranks() {
    let id = unique_id().unwrap();
    let processes =
        [(0, "Ring"), (1, "Tree")].map(|(r, algo)| rank(&id, (r, 2), &[], &[("NCCL_ALGO", algo)]));
    for process in processes {
        process.end().expect_error("InvalidUsage", &["rank 1", "NCCL_ALGO"]);
    }
}

/// The test net joins ranks of one process only: what a net plugin says ends up in the error, with both
/// ranks.
#[test]
fn a_net_that_does_not_reach() {
    let id = unique_id().unwrap();
    let processes = [(0, "left"), (1, "right")]
        .map(|(r, host)| rank(&id, (r, 2), &["all_reduce"], &[("NCCL_HOSTID", host), ("NCCL_NET", "test")]));
    for process in processes {
        process.end().expect_error("Remote", &["rank 0", "rank 1", "nobody of this process listens there"]);
    }
}

#[test]
fn a_net_that_does_not_exist() {
    let id = unique_id().unwrap();
    let settings = [("NCCL_HOSTID", "left"), ("NCCL_NET", "carrier pigeon")];
    let one = rank(&id, (0, 2), &[], &settings);
    let other = rank(&id, (1, 2), &[], &[("NCCL_HOSTID", "right"), ("NCCL_NET", "test")]);
    one.end().expect_error("InvalidUsage", &["carrier pigeon", "found are"]);
    other.end().expect_error("InvalidUsage", &["rank 0", "none", "\"test\"", "NCCL_NET"]);
}

/// Two communicators whose ranks are brought up in crossed order: groups make that possible.
#[test]
fn crossed_inits_in_groups() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let (a, b) = (unique_id().unwrap(), unique_id().unwrap());
    std::thread::scope(|scope| {
        for (rank, ids) in [(0, [a, b]), (1, [b, a])] {
            scope.spawn(move || {
                group::start().unwrap();
                let comms = ids.map(|id| Comm::init(&[id], 2, rank, rank, Config::default()).unwrap());
                group::end().unwrap();
                group::start().unwrap();
                let issued = comms
                    .each_ref()
                    .map(|c| issue(c, plain(Collective::AllReduce, 2, 5_003), false, 0).unwrap());
                group::end().unwrap();
                assert_eq!(issued.iter().find_map(|one| one.fault()), None);
            });
        }
    });
}

/// An abort from another thread releases a rank whose peer never joins the operation.
#[test]
fn abort_releases_an_operation() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let comms = Comm::init_all(&[0, 1]).unwrap();
    std::thread::scope(|scope| {
        let hangs = scope.spawn(|| all_reduce(&comms[0], 60_000));
        // Whether the abort comes before, while or after the operation begins to wait must make no
        // difference.
        comms[0].abort().unwrap();
        let error = hangs.join().unwrap().unwrap_err();
        assert!(error.text.contains("rank 0"), "{error}");
    });
    let again = all_reduce(&comms[0], 1).unwrap_err();
    assert_eq!(again.kind, ErrorKind::InvalidArgument);
    assert!(again.text.contains("rank 0 of 2") && again.text.contains("aborted"), "{again}");
    comms[1].destroy().unwrap();
}

/// One thread drives three communicators in a group: an abort of one leaves the others to their own fate.
#[test]
fn abort_of_one_communicator_of_a_group() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let [first, hanging, last] = [(); 3].map(|()| Comm::init_all(&[0, 1]).unwrap());
    std::thread::scope(|scope| {
        let group = scope.spawn(|| {
            group::start().unwrap();
            let case = plain(Collective::AllReduce, 2, 60_000);
            let issued = [&hanging, &first, &last].map(|comms| issue(&comms[0], case, false, 0).unwrap());
            (group::end(), issued)
        });
        // Once this is through, the group has been launched.
        all_reduce(&first[1], 60_000).unwrap();
        hanging[0].abort().unwrap();
        all_reduce(&last[1], 60_000).unwrap();
        let (end, [_, first, last]) = group.join().unwrap();
        let error = end.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Aborted);
        assert!(error.text.contains("rank 0") && error.text.contains("of rank 1"), "{error}");
        assert_eq!(first.fault().or(last.fault()), None);
    });
    hanging[1].abort().unwrap();
}

#[test]
fn calls_after_destroy_and_finalize() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(2, |parent| {
        let comm = parent.split(0, 0, None).unwrap().unwrap();
        comm.finalize().unwrap();
        let error = all_reduce(&comm, 4).unwrap_err();
        assert!(error.text.contains("finalized") && error.kind == ErrorKind::InvalidUsage, "{error}");
        comm.destroy().unwrap();
        let calls: [Result<()>; 6] = [
            all_reduce(&comm, 4),
            comm.send(8, 8, 0, Stream(0)),
            comm.finalize(),
            comm.destroy(),
            comm.abort(),
            comm.split(0, 0, None).map(drop),
        ];
        for call in calls {
            let error = call.unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            assert!(error.text.contains("destroyed") && error.text.contains("of 2"), "{error}");
        }
    });
}

/// A bad call spoils its group: the end returns its error and launches nothing, and the next group works.
#[test]
fn an_error_inside_a_group() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(2, |comm| {
        let case = plain(Collective::AllReduce, 2, 1_000);
        let buffers = RankBuffers::new(&case, comm.rank(), false, 0);
        group::start().unwrap();
        comm.collective(call(&case, comm.rank(), buffers.addresses(&case, comm.rank())), Stream(0)).unwrap();
        let bad = plain(Collective::Broadcast, 2, 10);
        let bad = hawser_plan::Call { root: 2, ..call(&bad, comm.rank(), (8, 8)) };
        let error = comm.collective(bad, Stream(0)).unwrap_err();
        assert_eq!(group::end().unwrap_err(), error);
        assert!(error.text.contains("root 2") && error.text.contains("broadcast"), "{error}");
        assert!(buffers.fault(&case, comm.rank()).is_some(), "the group was launched");
        all_reduce(comm, 1_000).unwrap();
    });
    assert_eq!(group::end().unwrap_err().kind, ErrorKind::InvalidUsage, "no group is open");
}

/// `HAWSER_OP_TIMEOUT`: the error says who waits for whom, and the communicator refuses further operations
/// with it.
#[test]
fn a_rank_that_never_joins_an_operation() {
    let id = unique_id().unwrap();
    let settings = [("HAWSER_OP_TIMEOUT", "1")];
    let steps = ["all_reduce", "mark", "?all_reduce", "?all_reduce", "destroy"];
    let absent = rank(&id, (1, 2), &["all_reduce", "sleep"], &settings);
    let ended = rank(&id, (0, 2), &steps, &settings).end();
    ended.expect_error("Timeout", &["rank 0", "rank 1", "HAWSER_OP_TIMEOUT"]);
    // The second call must not touch FIFOs in an undefined state: it repeats the first one's error.
    let errors: Vec<&str> = ended.output.lines().filter(|l| l.starts_with("error ")).collect();
    assert!(errors.len() == 2 && errors[0] == errors[1], "{}", ended.output);
    ended.expect_success();
    drop(absent);
}

/// A process dies in mid-operation: the survivors say who it was, with a deadline and without one.
#[test]
fn a_process_that_is_killed() {
    let id = unique_id().unwrap();
    let steps = ["all_reduce", "mark", "again"];
    let mut impatient = rank(&id, (0, 3), &steps, &[("HAWSER_OP_TIMEOUT", "20")]);
    let mut patient = rank(&id, (1, 3), &steps, &[]);
    let mut victim = rank(&id, (2, 3), &steps, &[]);
    [&mut impatient, &mut patient, &mut victim].into_iter().for_each(|p| p.wait_for("mark"));
    victim.kill();
    for (survivor, name) in [(impatient, "rank 0"), (patient, "rank 1")] {
        survivor.end().expect_error("Remote", &[name, "rank 2 (process", "has died", "waited for"]);
    }
}

/// An abort in another thread ends a process whose peers do not come.
#[test]
fn an_abort_releases_a_process() {
    let id = unique_id().unwrap();
    let absent = rank(&id, (1, 2), &["all_reduce", "sleep"], &[]);
    let mut waits = rank(&id, (0, 2), &["all_reduce", "abort-on-stdin", "mark", "again"], &[]);
    waits.wait_for("mark");
    waits.tell("abort");
    let ended: Ended = waits.end();
    assert!(!ended.status.success());
    assert!(ended.output.contains("error ") && ended.output.contains("abort"), "{}", ended.output);
    drop(absent);
}

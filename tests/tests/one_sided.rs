//! One-sided transfers on the host device: puts and signals between threads, processes and hosts, and the
//! ends of waits.

use std::sync::Barrier;
use std::time::Duration;

use hawser_runtime::rma::{Awaited, Limits, Put, RmaOp, Signal, Window};
use hawser_runtime::{Comm, Config, Error, ErrorKind, Stream, group, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::process::Process;
use hawser_tests::puts::{self, FIRST, Windows, signal, wait};
use hawser_tests::world::{
    all_reduce, in_threads, non_blocking, on_host, on_hosts, settled, wait_until_ready,
};

const BINARY: &str = env!("CARGO_BIN_EXE_hawser-test-rank");

#[test]
fn ranks_in_threads() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for ranks in [1, 2, 3, 8] {
        in_threads(ranks, |comm| puts::run_all(comm).unwrap());
    }
}

#[test]
fn ranks_in_processes() {
    if !on_host() {
        return;
    }
    for ranks in [2, 4] {
        let id = unique_id().unwrap();
        let steps = ["puts", "all_reduce", "puts", "destroy"];
        let start = |rank| Process::rank(BINARY, &id, (rank, ranks), &steps, &[]);
        let processes: Vec<Process> = (0..ranks).map(start).collect();
        processes.into_iter().for_each(|process| process.end().expect_success());
    }
}

#[test]
fn ranks_of_several_hosts() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for hosts in ["ab", "aab", "abcab", "abcdefgh"] {
        on_hosts(hosts, &Config::default(), |comm| puts::run_all(comm).unwrap());
    }
}

/// All ranks in one thread: in one group, and in a group for the puts and one for the waits.
#[test]
fn one_thread_for_all_ranks() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let comms = Comm::init_all(&[0, 1, 2, 3]).unwrap();
    let mut windows: Vec<Windows> = comms.iter().map(|comm| Windows::new(comm, 5_000, 0).unwrap()).collect();
    for round in 0..4 {
        let is_one_group = round % 2 == 0;
        group::start().unwrap();
        for (comm, windows) in comms.iter().zip(&mut windows) {
            if is_one_group {
                wait(comm, 0..4, 1, FIRST).unwrap();
            }
            (0..4).try_for_each(|to| windows.put(to, 5_000, round, FIRST)).unwrap();
        }
        group::end().unwrap();
        if !is_one_group {
            group::start().unwrap();
            comms.iter().for_each(|comm| wait(comm, 0..4, 1, FIRST).unwrap());
            group::end().unwrap();
        }
        for from in 0..4 {
            windows.iter().for_each(|windows| windows.check(from, 5_000, round).unwrap());
        }
    }
    drop(windows);
    comms.iter().for_each(|comm| comm.destroy().unwrap());
}

/// Each signal of each context and rank counts for itself, raises that came before the wait count, and a wait
/// takes as many as it says.
#[test]
fn signals_are_counters() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let config = Config { rma: Limits { signals: 3, contexts: 2 }, ..Config::default() };
    let all = || (0..3).flat_map(|index| (0..2).map(move |context| Signal { index, context }));
    for hosts in ["aaa", "abb", "abc"] {
        on_hosts(hosts, &config, |comm| {
            let (rank, ranks) = (comm.rank(), comm.ranks());
            let times =
                |from: u32, to: u32, of: Signal| u64::from(1 + from + 2 * to + 3 * of.index + 5 * of.context);
            for to in 0..ranks {
                for of in all() {
                    (0..times(rank, to, of)).for_each(|_| signal(comm, to, of).unwrap());
                }
            }
            // One at a time, the last ones together.
            let mut awaited = Vec::new();
            for from in 0..ranks {
                for of in all() {
                    let count = times(from, rank, of);
                    (1..count).for_each(|_| wait(comm, std::iter::once(from), 1, of).unwrap());
                    awaited.push(Awaited { peer: from, signal: of, count: 1 });
                }
            }
            comm.one_sided(RmaOp::Wait(awaited), Stream(0)).unwrap();
            all_reduce(comm, 10).unwrap();
        });
    }
}

/// Puts beside collectives in one group, and waits for what other ranks put in theirs.
#[test]
fn puts_beside_collectives() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(3, |comm| {
        let mut windows = Windows::new(comm, 10_000, 0).unwrap();
        let next = (comm.rank() + 1) % 3;
        let before = (comm.rank() + 2) % 3;
        group::start().unwrap();
        windows.put(next, 10_000, 0, FIRST).unwrap();
        let sum = hawser_tests::world::issue(
            comm,
            hawser_tests::world::plain(hawser_plan::Collective::AllReduce, 3, 1_000),
            false,
            0,
        )
        .unwrap();
        wait(comm, std::iter::once(before), 1, FIRST).unwrap();
        group::end().unwrap();
        assert_eq!(sum.fault(), None);
        windows.check(before, 10_000, 0).unwrap();
    });
}

#[test]
fn calls_that_do_not_block() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let comm = Comm::init(&[id], 2, rank, rank, non_blocking()).unwrap();
                wait_until_ready(&comm);
                let mut windows = Windows::new(&comm, 1_000, 0).unwrap();
                // A group: what comes later would wait behind it in the background.
                group::start().unwrap();
                wait(&comm, std::iter::once(1 - rank), 1, FIRST).unwrap();
                windows.put(1 - rank, 1_000, 0, FIRST).unwrap();
                group::end().unwrap();
                assert_eq!(settled(&comm), None);
                windows.check(1 - rank, 1_000, 0).unwrap();
                // Nobody raises this one.
                if rank == 0 {
                    wait(&comm, std::iter::once(1), 1, FIRST).unwrap();
                    assert_eq!(comm.async_error().unwrap().kind, ErrorKind::InProgress);
                    comm.revoke().unwrap();
                    assert_eq!(settled(&comm), None, "the revoke is through");
                    let refused = wait(&comm, std::iter::once(1), 1, FIRST).unwrap_err();
                    assert!(refused.text.contains("revoked"), "{refused}");
                } else {
                    assert!(comm.async_error().is_none());
                }
                drop(windows);
                comm.destroy().unwrap();
            });
        }
    });
}

#[test]
fn what_cannot_be_is_refused() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(2, |comm| {
        let memory = [0u8; 64];
        let addr = memory.as_ptr() as u64;
        comm.expose(0, Window { addr, bytes: 64, is_symmetric: true }).unwrap();
        comm.expose(1, Window { addr, bytes: 64, is_symmetric: false }).unwrap();
        let put = Put { from: addr, bytes: 8, window: 0, offset: 0 };
        let to = |peer, put, signal| RmaOp::Signal { peer, put: Some(put), signal };
        let elsewhere = [0u8; 8];
        let refused: [(RmaOp, &str); 9] = [
            (to(2, put, FIRST), "peer 2"),
            (to(0, put, Signal { index: 1, context: 0 }), "sigIdx 1"),
            (to(0, put, Signal { index: 0, context: 1 }), "ctx 1"),
            (to(0, Put { offset: 57, ..put }, FIRST), "do not fit a window of 64"),
            (to(0, Put { bytes: 65, ..put }, FIRST), "symmetric window"),
            (to(0, Put { window: 1, ..put }, FIRST), "not symmetric"),
            (to(0, Put { window: 2, ..put }, FIRST), "not registered"),
            (to(0, Put { from: elsewhere.as_ptr() as u64, ..put }, FIRST), "symmetric window"),
            (RmaOp::Wait(vec![Awaited { peer: 7, signal: FIRST, count: 1 }]), "signalDescs[0]"),
        ];
        for (op, word) in refused {
            let error = comm.one_sided(op, Stream(0)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
            assert!(error.text.contains(word) && error.text.contains(';'), "{word}: {error}");
        }
        all_reduce(comm, 10).unwrap();
    });
}

/// A rank that waits for a signal for ever, and what ends its wait.
fn end_of_a_wait(hosts: &str, ends: impl Fn(&Comm) + Sync) -> Error {
    let (id, ended) = (unique_id().unwrap(), std::sync::Mutex::new(None));
    let ready = Barrier::new(hosts.len());
    std::thread::scope(|scope| {
        for (rank, host) in (0..).zip(hosts.chars()) {
            let (ended, ready, ends) = (&ended, &ready, &ends);
            scope.spawn(move || {
                let config = Config { host: Some(host.to_string()), ..Config::default() };
                let comm = Comm::init(&[id], hosts.len() as u32, rank, rank, config).unwrap();
                if rank == 0 {
                    let other = comm.clone();
                    ready.wait();
                    std::thread::scope(|inner| {
                        inner.spawn(move || {
                            std::thread::sleep(Duration::from_millis(50));
                            ends(&other);
                        });
                        *ended.lock().unwrap() = Some(wait(&comm, std::iter::once(1), 1, FIRST).unwrap_err());
                    });
                } else {
                    ready.wait();
                    std::thread::sleep(Duration::from_millis(50));
                    ends(&comm);
                    while ended.lock().unwrap().is_none() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
    });
    ended.into_inner().unwrap().unwrap()
}

#[test]
fn abort_revoke_and_a_rank_that_leaves_end_waits() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for hosts in ["aa", "ab"] {
        let aborted = end_of_a_wait(hosts, |comm| {
            if comm.rank() == 0 {
                comm.abort().unwrap()
            }
        });
        assert_eq!(aborted.kind, ErrorKind::Aborted, "{aborted}");
        let revoked = end_of_a_wait(hosts, |comm| {
            if comm.rank() == 0 {
                comm.revoke().unwrap()
            }
        });
        assert!(revoked.text.contains("revoked"), "{revoked}");
        let left = end_of_a_wait(hosts, |comm| {
            if comm.rank() == 1 {
                comm.destroy().unwrap()
            }
        });
        assert_eq!(left.kind, ErrorKind::Remote, "{left}");
        assert!(left.text.contains("rank 1") && left.text.contains("signal 0 of context 0"), "{left}");
    }
}

/// The data and signals of a rank count, also after it has destroyed its communicator.
#[test]
fn what_was_put_before_a_rank_left_is_there() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for hosts in ["aa", "ab"] {
        let left = Barrier::new(2);
        let (id, left) = (unique_id().unwrap(), &left);
        std::thread::scope(|scope| {
            for (rank, host) in (0..).zip(hosts.chars()) {
                scope.spawn(move || {
                    let config = Config { host: Some(host.to_string()), ..Config::default() };
                    let comm = Comm::init(&[id], 2, rank, rank, config).unwrap();
                    let mut windows = Windows::new(&comm, 2_000_000, 0).unwrap();
                    if rank == 1 {
                        windows.put(0, 2_000_000, 0, FIRST).unwrap();
                        drop(windows);
                        comm.destroy().unwrap();
                        left.wait();
                    } else {
                        left.wait();
                        wait(&comm, std::iter::once(1), 1, FIRST).unwrap();
                        windows.check(1, 2_000_000, 0).unwrap();
                        drop(windows);
                        comm.destroy().unwrap();
                    }
                });
            }
        });
    }
}

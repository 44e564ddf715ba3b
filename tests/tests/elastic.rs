//! Communicators that outlive their members: shrink, revoke, grow.

use std::sync::{Barrier, Mutex};
use std::time::Duration;

use hawser_plan::Collective;
use hawser_runtime::{Comm, Config, Error, ErrorKind, Shrink, Stream, UniqueId, group, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::oracle::Buffer;
use hawser_tests::world::{
    all_reduce, in_threads, issue, non_blocking, on_host, plain, settled, wait_until_ready,
};

/// The rank of `rank` when the excluded have gone.
fn place(rank: u32, excluded: &[i32]) -> u32 {
    rank - excluded.iter().filter(|excluded| **excluded < rank as i32).count() as u32
}

/// Runs ranks of one communicator, each in a thread. What they do not destroy is destroyed when all are over.
fn ranks(count: u32, work: impl Fn(&Comm) + Sync) {
    ranks_with(count, &Config::default(), work);
}

fn ranks_with(count: u32, config: &Config, work: impl Fn(&Comm) + Sync) {
    let (id, over) = (unique_id().unwrap(), Barrier::new(count as usize));
    let run = &|rank| {
        let comm = Comm::init(&[id], count, rank, 0, config.clone()).unwrap();
        wait_until_ready(&comm);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&comm)));
        over.wait();
        drop(comm);
        outcome.unwrap();
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn shrinks_work_beside_their_parents() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for excluded in [&[0][..], &[3], &[5, 1], &[0, 1, 2, 3, 4]] {
        in_threads(6, |comm| {
            let rank = comm.rank();
            if !excluded.contains(&(rank as i32)) {
                let child = comm.shrink(excluded, None, Shrink::Keep).unwrap();
                assert_eq!((child.rank(), child.ranks()), (place(rank, excluded), 6 - excluded.len() as u32));
                all_reduce(&child, 2_003).unwrap();
                let again = (child.ranks() > 1 && child.rank() > 0)
                    .then(|| child.shrink(&[0], None, Shrink::Keep).unwrap());
                if let Some(again) = again {
                    assert_eq!((again.rank(), again.ranks()), (child.rank() - 1, child.ranks() - 1));
                    all_reduce(&again, 100).unwrap();
                }
            }
            all_reduce(comm, 3_001).unwrap();
        });
    }
}

#[test]
fn wrong_lists_are_refused() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(3, |comm| {
        for (excluded, word) in [(&[][..], "no rank"), (&[3], "does not exist"), (&[-1], "does not exist")] {
            let error = comm.shrink(excluded, None, Shrink::Keep).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            assert!(error.text.contains(word), "{error}");
        }
        let error = comm.shrink(&[comm.rank() as i32], None, Shrink::Abort).unwrap_err();
        assert!(error.text.contains("excluded itself"), "{error}");
        all_reduce(comm, 100).unwrap();
    });
}

/// A rank that has left is not excluded: the others are told, also those that wait for the leader.
#[test]
fn a_rank_that_left_and_is_not_excluded_is_named() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for left in [0, 2] {
        ranks(4, |comm| {
            if comm.rank() == left {
                comm.destroy().unwrap();
                return;
            }
            if comm.rank() == 3 {
                return;
            }
            let error = comm.shrink(&[3], None, Shrink::Keep).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Remote, "{error}");
            assert!(error.text.contains(&format!("rank {left} ")), "{error}");
        });
    }
}

/// Operations that wait for a rank that does not come are ended, and the ranks that are left go on.
#[test]
fn a_shrink_ends_what_hangs() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    ranks(4, |comm| {
        all_reduce(comm, 1_000).unwrap();
        if comm.rank() == 1 {
            return;
        }
        std::thread::scope(|scope| {
            let hangs = scope.spawn(|| all_reduce(comm, 70_001).unwrap_err());
            std::thread::sleep(Duration::from_millis(20));
            let child = comm.shrink(&[1], None, Shrink::Abort).unwrap();
            hangs.join().unwrap();
            assert_eq!(child.ranks(), 3);
            all_reduce(&child, 70_001).unwrap();
            assert!(all_reduce(comm, 10).is_err());
            comm.destroy().unwrap();
            all_reduce(&child, 70_001).unwrap();
        });
    });
}

/// Programs that do not block poll the parent until the shrink is through: PyTorch does.
#[test]
fn a_shrink_that_aborts_and_does_not_block_is_polled_at_the_parent() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let is_dead = Barrier::new(3);
    ranks_with(4, &non_blocking(), |comm| {
        assert_eq!(all_reduced(comm, 1_000), None);
        if comm.rank() == 1 {
            // It goes without a word, and the others fail.
            comm.abort().unwrap();
            return;
        }
        assert!(all_reduced(comm, 70_001).is_some(), "rank 1 has gone");
        is_dead.wait();
        let child = comm.shrink(&[1], None, Shrink::Abort).unwrap();
        assert_eq!(settled(comm), None, "the parent says that the shrink is through");
        assert_eq!((settled(&child), child.ranks()), (None, 3));
        assert_eq!(all_reduced(&child, 70_001), None);
        assert!(all_reduced(comm, 10).is_some(), "the parent stays as it is");
        comm.destroy().unwrap();
        child.destroy().unwrap();
    });
}

/// Carries out an all-reduce of a communicator that does not block, and returns its error. A wrong result
/// fails the test.
fn all_reduced(comm: &Comm, count: usize) -> Option<Error> {
    let issued = match issue(comm, plain(Collective::AllReduce, comm.ranks(), count), false, 0) {
        Ok(issued) => issued,
        Err(error) => return Some(error),
    };
    let error = settled(comm);
    assert!(error.is_some() || issued.fault().is_none(), "{:?}", issued.fault());
    error
}

#[test]
fn a_revoke_returns_at_once_and_the_others_follow() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let (before, after) = (Barrier::new(4), Barrier::new(4));
    in_threads(4, |comm| {
        before.wait();
        if comm.rank() == 2 {
            comm.revoke().unwrap();
            let error = all_reduce(comm, 10).unwrap_err();
            assert!(error.text.contains("ncclCommRevoke"), "{error}");
            assert_eq!(comm.async_error(), None, "the revoke is through, and no error");
            assert!(comm.finalize().is_err());
        } else {
            let error = all_reduce(comm, 70_001).unwrap_err();
            assert!(error.text.contains("rank 2") && error.text.contains("revoked"), "{error}");
            comm.revoke().unwrap();
        }
        comm.revoke().unwrap();
        let half = comm.split(comm.rank() as i32 / 2, -(comm.rank() as i32), None).unwrap().unwrap();
        assert_eq!((half.rank(), half.ranks()), (1 - comm.rank() % 2, 2));
        all_reduce(&half, 1_001).unwrap();
        let shrunk = (comm.rank() != 0).then(|| comm.shrink(&[0], None, Shrink::Keep).unwrap());
        if let Some(shrunk) = shrunk {
            all_reduce(&shrunk, 1_001).unwrap();
        }
        after.wait();
    });
}

#[test]
fn a_split_after_a_revoke_leaves_out_who_has_gone() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    ranks(5, |comm| {
        comm.revoke().unwrap();
        match comm.rank() {
            0 | 3 => comm.destroy().unwrap(),
            4 => assert!(comm.split(-1, 0, None).unwrap().is_none()),
            rank => {
                let child = comm.split(1, 0, None).unwrap().unwrap();
                assert_eq!((child.rank(), child.ranks()), (rank - 1, 2));
                all_reduce(&child, 2_000).unwrap();
            }
        }
    });
}

#[test]
fn new_ranks_join() {
    let on_all = |_: &Comm, id: UniqueId| Some(id);
    let on_one = |comm: &Comm, id: UniqueId| (comm.rank() == 1).then_some(id);
    // PyTorch passes it nowhere.
    let on_none = |_: &Comm, _: UniqueId| None;
    for passed in [&on_one as &(dyn Fn(&Comm, UniqueId) -> Option<UniqueId> + Sync), &on_none, &on_all] {
        new_ranks_join_by_an_id(passed);
    }
}

/// `passed`: what a rank of the old communicator passes, of the id that rank 1 has made.
fn new_ranks_join_by_an_id(passed: &(dyn Fn(&Comm, UniqueId) -> Option<UniqueId> + Sync)) {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id: Mutex<Option<UniqueId>> = Mutex::new(None);
    let made = Barrier::new(5);
    let new_rank = |rank: u32| {
        made.wait();
        let id = id.lock().unwrap().unwrap();
        let comm = Comm::init(&[id], 5, rank, 0, Config::default()).unwrap();
        all_reduce(&comm, 2_003).unwrap();
        comm.destroy().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| new_rank(4));
        scope.spawn(|| new_rank(3));
        in_threads(3, |comm| {
            if comm.rank() == 1 {
                *id.lock().unwrap() = Some(comm.grow_id().unwrap());
            }
            made.wait();
            let id = id.lock().unwrap().unwrap();
            let grown = comm.grow(5, passed(comm, id), None).unwrap();
            assert_eq!((grown.rank(), grown.ranks()), (comm.rank(), 5));
            all_reduce(&grown, 2_003).unwrap();
            all_reduce(comm, 1_001).unwrap();
        });
    });
}

#[test]
fn wrong_growths_are_refused_by_all() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(3, |comm| {
        assert_eq!(comm.grow(3, None, None).unwrap_err().kind, ErrorKind::InvalidArgument);
        let text = comm.grow(4, None, None).unwrap_err().to_string();
        assert!(text.contains("no rank has made a unique id"), "{text}");
        let id = (comm.rank() < 2).then(|| comm.grow_id().unwrap());
        let text = comm.grow(4, id, None).unwrap_err().to_string();
        assert!(text.contains("have different unique ids"), "{text}");
        let text = comm.grow(4 + comm.rank() / 2, None, None).unwrap_err().to_string();
        assert!(text.contains("grows to"), "{text}");
        all_reduce(comm, 100).unwrap();
    });
}

/// Without blocking and in groups: the new communicator is in progress until it can be used.
#[test]
fn shrinks_do_not_block_where_nothing_does() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(4, |comm| {
        let child = comm.split(0, 0, Some(non_blocking())).unwrap().unwrap();
        wait_until_ready(&child);
        if child.rank() == 3 {
            return;
        }
        let shrunk = child.shrink(&[3], None, Shrink::Abort).unwrap();
        assert_eq!(settled(&shrunk), None);
        let buffer = Buffer::new(64, 0);
        group::start().unwrap();
        let grouped = shrunk.shrink(&[0], None, Shrink::Keep);
        if shrunk.rank() == 0 {
            assert!(grouped.is_err() && group::end().is_err());
        } else {
            group::end().unwrap();
            let grouped = grouped.unwrap();
            assert_eq!(settled(&grouped), None);
            grouped.send(buffer.addr(), 64, grouped.rank(), Stream(0)).unwrap_err();
        }
    });
}

/// Memory goes and comes back while plans, FIFOs and counters stay: what ran before runs after.
#[test]
fn communicators_sleep_and_wake() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(4, |comm| {
        let (own, other) = (comm, comm.split(0, 3 - comm.rank() as i32, None).unwrap().unwrap());
        let stats = own.memory_stats().unwrap();
        assert!(stats.suspendable > 0 && !stats.is_suspended);
        for round in 0..3 {
            for collective in hawser_plan::Collective::ALL {
                for count in [1, 30_011, 300_007] {
                    let case = hawser_tests::world::plain(collective, 4, count);
                    hawser_tests::world::run(own, case, false, round % 2).unwrap();
                }
            }
            own.suspend().unwrap();
            let error = all_reduce(own, 10).unwrap_err();
            assert!(error.text.contains("suspended"), "{error}");
            assert_eq!(own.suspend().unwrap_err().kind, ErrorKind::InvalidUsage);
            assert!(own.memory_stats().unwrap().is_suspended);
            all_reduce(&other, 5_000).unwrap();
            own.resume().unwrap();
            assert_eq!(own.memory_stats().unwrap(), stats);
            assert_eq!(own.resume().unwrap_err().kind, ErrorKind::InvalidUsage);
        }
        // A group that fails runs nothing: nobody sleeps.
        group::start().unwrap();
        own.suspend().unwrap();
        own.send(0, 64, own.rank(), Stream(0)).unwrap_err();
        group::end().unwrap_err();
        assert!(!own.memory_stats().unwrap().is_suspended);
        all_reduce(own, 100).unwrap();
        other.suspend().unwrap();
        other.destroy().unwrap();
    });
}

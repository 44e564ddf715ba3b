//! Messages between ranks: patterns of sends and receives in groups, from one thread per rank and from one
//! thread for all ranks, and what is refused.

use hawser_plan::Collective;
use hawser_runtime::{Comm, ErrorKind, Stream, group};
use hawser_tests::deadline::Deadline;
use hawser_tests::mail::{Mail, Parcel};
use hawser_tests::oracle::Buffer;
use hawser_tests::world::{in_threads, issue, on_host, plain};

/// Runs rounds of parcels, each round in one group: in threads, then from one thread.
fn deliver(ranks: u32, rounds: &[Vec<Parcel>]) {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(ranks, |comm| {
        for parcels in rounds {
            group::start().unwrap();
            let mail = Mail::post(comm, parcels).unwrap();
            group::end().unwrap();
            assert_eq!(mail.fault(), None);
        }
    });
    let comms = one_thread(ranks);
    for parcels in rounds {
        group::start().unwrap();
        let mail: Vec<Mail> = comms.iter().map(|comm| Mail::post(comm, parcels).unwrap()).collect();
        group::end().unwrap();
        assert_eq!(mail.iter().find_map(Mail::fault), None);
    }
    comms.iter().for_each(|comm| comm.destroy().unwrap());
}

fn one_thread(ranks: u32) -> Vec<Comm> {
    Comm::init_all(&(0..ranks).collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_pair_in_both_directions() {
    let rounds = [0, 1, 3, 4_096, 65_537, 3_000_001];
    let round = |bytes| vec![Parcel { from: 0, to: 1, bytes }, Parcel { from: 1, to: 0, bytes: bytes / 2 }];
    deliver(2, &rounds.map(round));
}

#[test]
fn rings() {
    for ranks in [2, 3, 5, 8] {
        let ring =
            |bytes, by: u32| (0..ranks).map(move |from| Parcel { from, to: (from + by) % ranks, bytes });
        deliver(ranks, &[ring(10_001, 1).collect(), ring(77, ranks - 1).collect(), ring(9, 0).collect()]);
    }
}

/// Every pair with a size of its own, among them nothing at all: alltoallv.
#[test]
fn everybody_to_everybody_with_different_sizes() {
    for ranks in [3, 4, 7] {
        let sizes = |from: u32, to: u32| match (from * 5 + to * 3) % 6 {
            0 => 0,
            1 => 1,
            n => (n as usize).pow(6) * 11 + to as usize,
        };
        let parcels = (0..ranks)
            .flat_map(|from| (0..ranks).map(move |to| Parcel { from, to, bytes: sizes(from, to) }))
            .collect();
        deliver(ranks, &[parcels]);
    }
}

/// Messages of one group between the same two ranks match in the order of the calls.
#[test]
fn several_messages_to_the_same_peer() {
    let sizes = [100, 0, 70_000, 1, 300_000, 100, 7];
    let parcels = |from: u32, to: u32| sizes.iter().map(move |&bytes| Parcel { from, to, bytes });
    deliver(3, &[parcels(0, 1).chain(parcels(1, 0)).chain(parcels(2, 2)).chain(parcels(0, 2)).collect()]);
}

/// The plan of a batch that came before is used again, for other buffers; more batches than are kept.
#[test]
fn batches_that_come_again() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let sizes = |n: usize| [(0, 1, 1_000 + n % 70), (0, 0, 0), (0, 0, 300), (1, 0, 65_537)];
    let parcels = |n| sizes(n).map(|(from, to, bytes)| Parcel { from, to, bytes });
    in_threads(2, |comm| {
        // All buffers stay, so none has the address of an earlier one.
        let mut all = Vec::new();
        for n in [0, 0, 1, 0, 1].into_iter().chain(0..140) {
            group::start().unwrap();
            all.push(Mail::post(comm, &parcels(n)).unwrap());
            group::end().unwrap();
        }
        assert_eq!(all.iter().find_map(Mail::fault), None);
    });
}

#[test]
fn hypercube() {
    let ranks = 8;
    let exchange =
        |bit: u32| (0..ranks).map(move |from| Parcel { from, to: from ^ (1 << bit), bytes: 40_000 << bit });
    deliver(ranks, &[0, 1, 2].map(|bit| exchange(bit).collect()));
}

/// The same from one thread: the steps are groups inside of one for all ranks, and send on what the step
/// before received.
#[test]
fn hypercube_in_nested_groups() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let comms = Comm::init_all(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
    for bytes in [5, 40_000, 300_000, 300_000] {
        let block = |rank: usize| (0..bytes).map(move |i| (i * 7 + rank * 31) as u8);
        let mut buffers: Vec<Vec<u8>> = (0..8).map(|_| vec![0xee; 8 * bytes]).collect();
        group::start().unwrap();
        for (rank, (comm, buffer)) in comms.iter().zip(&mut buffers).enumerate() {
            buffer[rank * bytes..][..bytes].iter_mut().zip(block(rank)).for_each(|(to, byte)| *to = byte);
            let at = |block: usize| buffer.as_ptr() as u64 + (block * bytes) as u64;
            for mask in [1, 2, 4] {
                let (own, peer) = (rank & !(mask - 1), (rank ^ mask) as u32);
                group::start().unwrap();
                comm.send(at(own), (mask * bytes) as u64, peer, Stream(0)).unwrap();
                comm.recv(at(own ^ mask), (mask * bytes) as u64, peer, Stream(0)).unwrap();
                group::end().unwrap();
            }
        }
        group::end().unwrap();
        let expected: Vec<u8> = (0..8).flat_map(block).collect();
        assert!(buffers.iter().all(|buffer| *buffer == expected), "{bytes} bytes");
    }
}

/// One rank sends to all others and the other way round.
#[test]
fn stars() {
    let ranks = 6;
    let out = (1..ranks).map(|to| Parcel { from: 0, to, bytes: 5_000 * to as usize }).collect();
    let back = (1..ranks).map(|from| Parcel { from, to: 0, bytes: 30_000 / from as usize }).collect();
    deliver(ranks, &[out, back]);
}

/// Messages outside of a group: the ranks take turns.
#[test]
fn without_a_group() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(2, |comm| {
        for bytes in [1, 4_099, 900_000] {
            for from in [0, 1] {
                let mail = Mail::post(comm, &[Parcel { from, to: 1 - from, bytes }]).unwrap();
                assert_eq!(mail.fault(), None);
            }
        }
    });
}

#[test]
fn collectives_and_messages_in_one_group() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let ranks = 4;
    let parcels: Vec<Parcel> =
        (0..ranks).map(|from| Parcel { from, to: (from + 1) % ranks, bytes: 20_000 }).collect();
    in_threads(ranks, |comm| {
        group::start().unwrap();
        // The order of calls of different kinds may differ from rank to rank.
        let early = (comm.rank() % 2 == 0).then(|| Mail::post(comm, &parcels).unwrap());
        let sum = issue(comm, plain(Collective::AllReduce, ranks, 9_001), false, 0).unwrap();
        let all = issue(comm, plain(Collective::AllGather, ranks, 501), true, 0).unwrap();
        let mail = early.unwrap_or_else(|| Mail::post(comm, &parcels).unwrap());
        group::end().unwrap();
        assert_eq!(mail.fault().or(sum.fault()).or(all.fault()), None);
    });
}

/// A refused message launches nothing of its group, on no rank of the thread, and the next group works.
#[test]
fn bad_messages_are_refused() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let comms = one_thread(2);
    let buffer = Buffer::new(64, 0);
    let attempt = |bad: &dyn Fn(&Comm)| {
        group::start().unwrap();
        let mail: Vec<Mail> = comms.iter().map(|c| Mail::post(c, &[PAIR]).unwrap()).collect();
        bad(&comms[1]);
        let error = group::end().unwrap_err();
        assert!(mail[1].fault().is_some(), "a message of a refused group was delivered");
        assert!(error.text.contains("rank 1"), "{error}");
        error
    };
    const PAIR: Parcel = Parcel { from: 0, to: 1, bytes: 100 };
    let far = attempt(&|comm| assert!(comm.send(buffer.addr(), 64, 2, Stream(0)).is_err()));
    assert_eq!(far.kind, ErrorKind::InvalidArgument);
    assert!(far.text.contains("rank 2") && far.text.contains("0..1"), "{far}");
    let null = attempt(&|comm| assert!(comm.recv(0, 64, 0, Stream(0)).is_err()));
    assert_eq!(null.kind, ErrorKind::InvalidArgument);
    assert!(null.text.contains("NULL"), "{null}");
    let lonely = attempt(&|comm| comm.send(buffer.addr(), 64, 1, Stream(0)).unwrap());
    assert_eq!(lonely.kind, ErrorKind::InvalidUsage);
    let unequal = attempt(&|comm| {
        comm.send(buffer.addr(), 64, 1, Stream(0)).unwrap();
        comm.recv(buffer.addr(), 32, 1, Stream(0)).unwrap();
    });
    assert!(unequal.text.contains("64") && unequal.text.contains("32"), "{unequal}");
    group::start().unwrap();
    let mail: Vec<Mail> = comms.iter().map(|c| Mail::post(c, &[PAIR]).unwrap()).collect();
    group::end().unwrap();
    assert_eq!(mail.iter().find_map(Mail::fault), None);
}

/// One rank sends before a collective; the other has its receive in a group with the collective, or behind
/// it.
#[test]
fn messages_and_collectives_may_come_in_different_order() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let parcels = [Parcel { from: 0, to: 1, bytes: 999 }];
    in_threads(2, |comm| {
        for collective in
            [Collective::Broadcast, Collective::AllReduce, Collective::AllGather, Collective::AllToAll]
        {
            for grouped in [true, false] {
                let case = plain(collective, 2, 301);
                let (mail, issued) = if comm.rank() == 0 {
                    let mail = Mail::post(comm, &parcels).unwrap();
                    (mail, issue(comm, case, false, 0).unwrap())
                } else if grouped {
                    group::start().unwrap();
                    let mail = Mail::post(comm, &parcels).unwrap();
                    let issued = issue(comm, case, false, 0).unwrap();
                    group::end().unwrap();
                    (mail, issued)
                } else {
                    let issued = issue(comm, case, false, 0).unwrap();
                    (Mail::post(comm, &parcels).unwrap(), issued)
                };
                assert_eq!(
                    (mail.fault(), issued.fault()),
                    (None, None),
                    "{collective:?}, grouped: {grouped}"
                );
            }
        }
    });
}

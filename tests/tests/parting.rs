//! Ranks leave over a net plugin whose connections cannot be closed with receives in flight. Nothing else in
//! this program may close a connection early: the plugin counts.

use std::sync::{Barrier, Mutex, PoisonError};

use hawser_runtime::{Comm, Config, Stream, group, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::net;
use hawser_tests::world::{all_reduce, on_host, on_hosts};

/// The counter is the program's.
static ONE_BY_ONE: Mutex<()> = Mutex::new(());

fn checked(work: impl FnOnce()) {
    if !on_host() {
        return;
    }
    let _alone = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _deadline = Deadline::start();
    let before = (net::closed_with_receives(), net::bytes_carried());
    work();
    assert!(net::bytes_carried() > before.1, "nothing went over the net");
    assert_eq!(net::closed_with_receives(), before.0, "connections were closed with receives in flight");
}

fn send(comm: &Comm, data: &[u8], peer: u32) {
    comm.send(data.as_ptr() as u64, data.len() as u64, peer, Stream(0)).unwrap();
}

fn recv(comm: &Comm, data: &mut [u8], peer: u32) {
    comm.recv(data.as_mut_ptr() as u64, data.len() as u64, peer, Stream(0)).unwrap();
}

fn exchange(comm: &Comm, from: &[u8], to: &mut [u8], peer: u32) {
    group::start().unwrap();
    send(comm, from, peer);
    recv(comm, to, peer);
    group::end().unwrap();
}

/// All at once, after collectives whose slots come from both sides.
#[test]
fn all_ranks_leave() {
    checked(|| {
        for hosts in ["ab", "aabb", "abcd"] {
            on_hosts(hosts, &Config::default(), |comm| {
                (0..5).for_each(|_| all_reduce(comm, 70_001).unwrap())
            });
        }
    });
}

/// Without a word from the others: only their proxies know. Ranks that only sent, and that only received.
#[test]
fn ranks_leave_one_after_the_other_in_one_thread() {
    checked(|| {
        let id = unique_id().unwrap();
        group::start().unwrap();
        let init = |rank: u32| {
            let config = Config { host: Some(rank.to_string()), ..Config::default() };
            Comm::init(&[id], 4, rank, rank, config).unwrap()
        };
        let comms: Vec<Comm> = (0..4).map(init).collect();
        group::end().unwrap();
        let (from, mut to) = (vec![7u8; 2_000_003], vec![0u8; 2_000_003]);
        group::start().unwrap();
        send(&comms[0], &from, 1);
        recv(&comms[1], &mut to, 0);
        send(&comms[3], &from[..9], 2);
        let mut short = [0; 9];
        recv(&comms[2], &mut short, 3);
        group::end().unwrap();
        comms.iter().for_each(|comm| comm.destroy().unwrap());
        assert!(to == from && short == [7; 9]);
    });
}

/// One leaves, the others go on with each other.
#[test]
fn others_go_on() {
    checked(|| {
        let (id, after) = (unique_id().unwrap(), Barrier::new(3));
        let run = |rank: u32| {
            let config = Config { host: Some(rank.to_string()), ..Config::default() };
            let comm = Comm::init(&[id], 3, rank, rank, config).unwrap();
            all_reduce(&comm, 50_021).unwrap();
            if rank == 1 {
                comm.destroy().unwrap();
                after.wait();
                return;
            }
            after.wait();
            for round in 0..40u8 {
                let (from, mut to) = (vec![round; 40_000], vec![99; 40_000]);
                exchange(&comm, &from, &mut to, 2 - rank);
                assert_eq!(from, to);
            }
            comm.destroy().unwrap();
        };
        let run = &run;
        std::thread::scope(|scope| (0..3).for_each(|rank| drop(scope.spawn(move || run(rank)))));
    });
}

/// Copy engines' slots are carried by links of their own.
#[test]
fn ranks_without_multiprocessors_leave() {
    checked(|| {
        let config = Config { sm_free: true, ..Config::default() };
        on_hosts("ab", &config, |comm| {
            let (from, mut to) = (vec![comm.rank() as u8; 3_000_001], vec![9; 3_000_001]);
            for _ in 0..3 {
                exchange(comm, &from, &mut to, 1 - comm.rank());
            }
            assert_eq!(to, vec![1 - comm.rank() as u8; 3_000_001]);
        });
    });
}

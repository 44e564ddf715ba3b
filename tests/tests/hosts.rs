//! Ranks of several hosts, in threads of this process, over a net plugin that is as awkward as its contract allows.

use hawser_plan::{Collective, DataType, ReduceOp};
use hawser_runtime::{Comm, Config, unique_id};
use hawser_tests::net;
use hawser_tests::oracle::Case;
use hawser_tests::process::Process;
use hawser_tests::world::{on_host, run};

#[test]
fn every_collective_on_hosts_of_many_shapes() {
    for hosts in ["ab", "aab", "aabb", "abab", "abcd", "aaabbb", "aabbccdd"] {
        let before = net::bytes_carried();
        on_hosts(hosts, |comm| {
            for collective in Collective::ALL {
                for (dtype, count) in
                    [(DataType::Float32, 1), (DataType::Int8, 131), (DataType::Float32, 70_001)]
                {
                    let root = if collective.rooted() { comm.ranks() - 1 } else { 0 };
                    let case =
                        Case { collective, dtype, op: ReduceOp::Sum, ranks: comm.ranks(), root, count };
                    run(comm, case, false, count % 2).unwrap();
                }
            }
        });
        assert!(net::bytes_carried() > before, "{hosts}: nothing went over the net");
    }
}

/// A communicator whose rank `i` counts as a rank of host `hosts[i]`; every rank does `work` in a thread of its own.
fn on_hosts(hosts: &str, work: impl Fn(&Comm) + Sync) {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    std::thread::scope(|scope| {
        for (rank, host) in hosts.chars().enumerate() {
            let (work, ranks) = (&work, hosts.len() as u32);
            scope.spawn(move || {
                let config = Config { host: Some(host.to_string()), ..Config::default() };
                let comm = Comm::init(&[id], ranks, rank as u32, rank as u32, config).unwrap();
                work(&comm);
                comm.destroy().unwrap();
            });
        }
    });
}

/// Two hosts of two processes each, over TCP.
#[test]
fn processes_on_two_hosts_over_sockets() {
    processes(4, |rank| [("NCCL_HOSTID", ["left", "right"][rank as usize / 2]), ("NCCL_NET", "Socket")]);
}

/// One host whose ranks may not share memory: everything goes over TCP.
#[test]
fn processes_of_one_host_over_sockets() {
    processes(3, |_| [("NCCL_SHM_DISABLE", "1"), ("NCCL_NET", "Socket")]);
}

fn processes(ranks: u32, settings: impl Fn(u32) -> [(&'static str, &'static str); 2]) {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let start = |rank| {
        let steps = ["matrix", "finalize", "destroy"];
        Process::rank(env!("CARGO_BIN_EXE_hawser-test-rank"), &id, (rank, ranks), &steps, &settings(rank))
    };
    let processes: Vec<Process> = (0..ranks).map(start).collect();
    for process in processes {
        process.end().expect_success();
    }
}

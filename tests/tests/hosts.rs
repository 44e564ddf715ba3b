//! Ranks of several hosts, in threads of this process, over a net plugin that is as awkward as its contract
//! allows.

use hawser_plan::{Collective, DataType, ReduceOp};
use hawser_plugin::tuner::SettingsFile;
use hawser_runtime::{Comm, Config, ErrorKind, Stream, group, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::net;
use hawser_tests::oracle::Case;
use hawser_tests::process::Process;
use hawser_tests::world::{Issued, all_reduce, issue, on_host, on_hosts, plain, run};

/// `netName` of a communicator counts where `NCCL_NET` says nothing.
#[test]
fn a_communicator_names_its_net() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let with = |net: &str| Config { net: Some(net.to_owned()), ..Config::default() };
    on_hosts("ab", &with("socket"), |comm| all_reduce(comm, 1000).unwrap());
    let id = unique_id().unwrap();
    let init = |(rank, host): (u32, &str)| {
        let config = Config { host: Some(host.to_owned()), ..with("carrier pigeon") };
        Comm::init(&[id], 2, rank, rank, config).err().unwrap()
    };
    let init = &init;
    std::thread::scope(|scope| {
        let ranks = [(0, "a"), (1, "b")].map(|rank| scope.spawn(move || init(rank)));
        for error in ranks.map(|rank| rank.join().unwrap()) {
            assert_eq!(error.kind, ErrorKind::InvalidUsage, "{error}");
            assert!(error.text.contains("carrier pigeon"), "{error}");
        }
    });
}

#[test]
fn every_collective_on_hosts_of_many_shapes() {
    if !on_host() {
        return;
    }
    for hosts in ["ab", "aab", "aabb", "abab", "abcd", "aaabbb", "aabbccdd"] {
        let before = net::bytes_carried();
        on_hosts(hosts, &Config::default(), |comm| {
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

/// Ranks of one place of all hosts carry a part of the data beside those of other places, by ring and by
/// tree, and what their neighbours have for ranks of that place elsewhere.
#[test]
fn rails_on_hosts_of_many_shapes() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for hosts in ["aabb", "aabbcc", "aaabbb", "aabbccdd", "aaaabbbbccccdddd"] {
        run_rails(
            hosts,
            "rail_ring",
            &[Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter],
        );
        run_rails(hosts, "rail_tree", &[Collective::AllReduce]);
        // Blocks of whole packs that fit into slots; those of a host may be several tiles.
        let sizes = [(DataType::Float32, 4), (DataType::Int8, 144), (DataType::Bfloat16, 16_000)];
        run_by_rule(hosts, "rail_relay", &[Collective::AllToAll], sizes);
    }
}

/// Runs collectives by an algorithm that takes all sizes.
fn run_rails(hosts: &str, algorithm: &str, collectives: &[Collective]) {
    let sizes = [(DataType::Float32, 1), (DataType::Int8, 131), (DataType::Bfloat16, 70_001)];
    run_by_rule(hosts, algorithm, collectives, sizes);
}

/// Runs collectives by an algorithm that a rule names.
fn run_by_rule(hosts: &str, algorithm: &str, collectives: &[Collective], sizes: [(DataType, usize); 3]) {
    let cases: Vec<Case> = collectives
        .iter()
        .flat_map(|&collective| {
            let ranks = hosts.len() as u32;
            sizes.map(|(dtype, count)| Case { collective, dtype, op: ReduceOp::Sum, ranks, root: 0, count })
        })
        .collect();
    on_hosts(hosts, &Config::default(), |comm| {
        if comm.rank() == 0 {
            let text = format!("[[rule]]\nuse = {{ algorithm = \"{algorithm}\" }}\n");
            comm.change_rules(&[SettingsFile { name: "rails.toml".into(), text }]).unwrap();
        }
        // The change counts some collectives later.
        (0..40).for_each(|_| all_reduce(comm, 10).unwrap());
        for &case in &cases {
            // All-to-all has no form in place.
            let forms: &[bool] =
                if case.collective == Collective::AllToAll { &[false] } else { &[false, true] };
            for &in_place in forms {
                run(comm, case, in_place, 0).unwrap();
                let ran = comm.last_decision().unwrap().expect("a decision").algorithm;
                assert_eq!(ran.to_lowercase(), algorithm.replace('_', ""), "{hosts}: {:?}", case.collective);
            }
        }
    });
}

/// Children of a split, and messages of all sizes in both directions, over hosts.
#[test]
fn splits_and_messages_between_hosts() {
    if !on_host() {
        return;
    }
    on_hosts("aabbc", &Config::default(), |comm| {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let child = comm.split((rank % 2) as i32, 0, None).unwrap().unwrap();
        all_reduce(&child, 10_007).unwrap();
        for bytes in [1usize, 4_096, 3_000_001] {
            let from: Vec<u8> =
                (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(rank as u8)).collect();
            let mut to = vec![vec![0u8; bytes]; ranks as usize];
            group::start().unwrap();
            for peer in 0..ranks {
                comm.send(from.as_ptr() as u64, bytes as u64, peer, Stream(0)).unwrap();
                comm.recv(to[peer as usize].as_mut_ptr() as u64, bytes as u64, peer, Stream(0)).unwrap();
            }
            group::end().unwrap();
            for (peer, got) in to.iter().enumerate() {
                let right = |(i, b): (usize, &u8)| *b == (i as u8).wrapping_mul(31).wrapping_add(peer as u8);
                assert!(got.iter().enumerate().all(right), "{bytes} bytes from rank {peer} to rank {rank}");
            }
        }
        all_reduce(comm, 10_007).unwrap();
        child.destroy().unwrap();
    });
}

/// One thread drives all ranks of all hosts through groups: nothing may wait for a peer to connect.
#[test]
fn one_thread_for_all_hosts() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    group::start().unwrap();
    let init = |(rank, host): (u32, char)| {
        let config = Config { host: Some(host.to_string()), ..Config::default() };
        Comm::init(&[id], 6, rank, rank, config).unwrap()
    };
    let comms: Vec<Comm> = (0..).zip("aabbcc".chars()).map(init).collect();
    group::end().unwrap();
    for collective in Collective::ALL {
        group::start().unwrap();
        let issued: Vec<Issued> =
            comms.iter().map(|comm| issue(comm, plain(collective, 6, 50_021), false, 0).unwrap()).collect();
        group::end().unwrap();
        for issued in issued {
            assert_eq!(issued.fault(), None);
        }
    }
    comms.iter().for_each(|comm| comm.destroy().unwrap());
}

/// The settings of packets that the user makes arrive at the plugin.
#[test]
fn the_traffic_class_reaches_the_net() {
    if !on_host() {
        return;
    }
    let config = Config { traffic_class: Some(105), ..Config::default() };
    on_hosts("ab", &config, |comm| all_reduce(comm, 100).unwrap());
    assert!(net::was_opened_with(105) && !net::was_opened_with(106));
}

/// A net that fails on one rank fails the communicator on all of them, with the cause and who had it.
#[test]
fn a_net_that_breaks_ends_the_job_everywhere() {
    if !on_host() {
        return;
    }
    let args = ["hosts", "abcd", "all_reduce", "break", "?again", "?all_reduce"].map(str::to_owned);
    let process = Process::start(env!("CARGO_BIN_EXE_hawser-test-rank"), &args, &[("NCCL_NET", "test")]);
    let ended = process.end();
    ended.expect_error("System", &["sending through the test net", "110", "failed sending to rank"]);
    let errors: Vec<&str> = ended.output.lines().filter(|line| line.starts_with("error ")).collect();
    assert_eq!(errors.len(), 8, "four ranks, twice each:\n{}", ended.output);
    let cause = errors.iter().find_map(|line| line.strip_prefix("error System: ")?.split_once(" failed"));
    let (culprit, _) = cause.expect("the rank that failed");
    assert!(errors.iter().all(|line| line.contains(culprit)), "all name {culprit}:\n{}", ended.output);
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

/// Programs read in the log which net their ranks use, also where they turn out to need none.
#[test]
fn a_net_that_was_asked_for_and_is_not_needed_is_told() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let settings = [("NCCL_DEBUG", "INFO"), ("NCCL_NET", "socket")];
    let binary = env!("CARGO_BIN_EXE_hawser-test-rank");
    let start = |rank| Process::rank(binary, &id, (rank, 2), &["destroy"], &settings);
    let processes: Vec<Process> = (0..2).map(start).collect();
    for ended in processes.into_iter().map(Process::end) {
        ended.expect_success();
        assert!(
            ended.output.contains("Using network Socket between hosts; all ranks are on one"),
            "{}",
            ended.output
        );
    }
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

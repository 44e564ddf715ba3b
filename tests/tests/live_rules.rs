//! Rules that change while communicators work: every rank takes them at the same collective, results stay
//! right, nobody hangs. `HAWSER_TEST_SWITCHES` says how many changes are made under load (100).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use hawser_plan::Collective;
use hawser_plugin::tuner::SettingsFile;
use hawser_runtime::rules_update::Switch;
use hawser_runtime::{Comm, Config, ErrorKind, group, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::{self, call, in_threads, issue, on_host, plain};

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");

/// A folder of its own.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("live_{}_{name}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn rules(text: &str) -> Vec<SettingsFile> {
    vec![SettingsFile { name: "live.toml".into(), text: text.into() }]
}

/// Rules that take one algorithm for everything that has it; every number gives other rules.
fn some_rules(number: u64) -> Vec<SettingsFile> {
    let algorithms = ["ring", "tree", "all_pairs", "one_shot", "halving_doubling", "recursive_doubling"];
    let algorithm = algorithms[(number % 6) as usize];
    let (channels, chunk) = (1 + number % 2, 512 * (1 + number / 12 % 8));
    rules(&format!(
        "[[rule]]\nuse = {{ algorithm = \"{algorithm}\", channels = {channels}, chunk = {chunk} }}\n"
    ))
}

/// The next number of the generator splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 7
}

/// All ranks have the same record, and every change was taken at its collective.
#[track_caller]
fn expect_alike(records: &[Vec<Switch>], changes: usize) {
    for (rank, record) in records.iter().enumerate() {
        assert_eq!(record, &records[0], "rank {rank} has another record than rank 0");
        assert!(record.iter().all(|switch| switch.begun == switch.at), "rank {rank} was late: {record:?}");
        assert!(record.is_sorted_by(|a, b| a.at < b.at && a.change < b.change), "{record:?}");
        assert_eq!(record.len(), changes);
    }
}

/// The ranks of one process call without a pause, each now and then late; a thread changes rules as fast as
/// it can, through any rank, with refused ones in between.
#[test]
fn many_changes_under_load() {
    if !on_host() {
        return;
    }
    let changes: u64 =
        std::env::var("HAWSER_TEST_SWITCHES").map_or(100, |text| text.parse().expect("a number"));
    let _deadline = (changes <= 100).then(Deadline::start);
    let (id, ranks, stop) = (unique_id().unwrap(), 8, AtomicBool::new(false));
    let (comms, records) = (Mutex::new(BTreeMap::new()), Mutex::new(BTreeMap::new()));
    let run = |rank: u32| {
        let comm = Comm::init(&[id], ranks, rank, rank, Config::default()).unwrap();
        comms.lock().unwrap().insert(rank, comm.clone());
        let mut state = u64::from(rank);
        for round in 0.. {
            if random(&mut state).is_multiple_of(8) {
                std::thread::sleep(Duration::from_micros(random(&mut state) % 2_000));
            }
            // The sizes are the same on all ranks.
            let mut shared = round;
            let case =
                plain(Collective::ALL[(round % 8) as usize], ranks, random(&mut shared) as usize % 700);
            world::run(&comm, case, false, 0).unwrap();
            if round % 32 == 31 && world::rank_0_says(&comm, stop.load(Ordering::Relaxed)).unwrap() {
                break;
            }
        }
        // So many that all changes have been reached.
        (0..80).for_each(|_| world::all_reduce(&comm, 10).unwrap());
        records.lock().unwrap().insert(rank, comm.rule_changes());
        comm.destroy().unwrap();
    };
    let propose = || {
        while comms.lock().unwrap().len() < ranks as usize {
            std::thread::yield_now();
        }
        let comms = comms.lock().unwrap().clone();
        propose_all(&comms.into_values().collect::<Vec<_>>(), changes);
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
        let proposed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(propose));
        stop.store(true, Ordering::Relaxed);
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        proposed.unwrap();
    });
    let records: Vec<Vec<Switch>> = records.into_inner().unwrap().into_values().collect();
    expect_alike(&records, changes as usize);
}

/// Proposes so many changes through all ranks in turn; each must come after the one before.
fn propose_all(comms: &[Comm], changes: u64) {
    let mut last = None;
    for change in 0..changes {
        let comm = &comms[(change * 5 % 8) as usize];
        let at = loop {
            match comm.change_rules(&some_rules(change)) {
                Err(error) if error.text.contains("too many changes wait") => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                done => break done.unwrap(),
            }
        };
        assert!(last < Some(at), "{at} after {last:?}");
        last = Some(at);
        if change % 10 == 0 {
            let error = comm.change_rules(&rules("[[rule]]\nuse = 3\n")).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidUsage);
            assert!(error.text.contains("live.toml:2:7: "), "{error}");
        }
    }
}

/// Communicators of one process change one by one, also where one thread drives all ranks in groups; the
/// algorithm is the new one from the collective that was told.
#[test]
fn groups_and_several_communicators() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let [one, other] = [(); 2].map(|()| Comm::init_all(&[0, 1, 2]).unwrap());
    let case = plain(Collective::AllReduce, 3, 4_000);
    let chosen = |comm: &Comm| comm.explain(&call(&case, 0, (16, 16))).unwrap().key.algorithm.name();
    let round = || {
        group::start().unwrap();
        let all = one.iter().chain(&other).flat_map(|comm| [comm, comm]);
        let issued: Vec<_> = all.map(|comm| issue(comm, case, false, 0).unwrap()).collect();
        group::end().unwrap();
        assert_eq!(issued.iter().find_map(world::Issued::fault), None);
    };
    round();
    let before = chosen(&one[2]);
    let tree = rules("[[rule]]\nuse = { algorithm = \"tree\" }\n");
    let at = one[1].change_rules(&tree).unwrap();
    assert_eq!(chosen(&one[2]), before, "not yet");
    (0..at).for_each(|_| round());
    assert_eq!((chosen(&one[2]), chosen(&other[0])), ("Tree", before));
    let ring = other[0].change_rules(&rules("[[rule]]\nuse = { algorithm = \"ring\" }\n")).unwrap();
    let none = one[0].change_rules(&[]).unwrap();
    (0..ring.max(none)).for_each(|_| round());
    assert_eq!((chosen(&one[2]), chosen(&other[0])), (before, "Ring"));
    let records = |comms: &[Comm]| comms.iter().map(Comm::rule_changes).collect::<Vec<_>>();
    expect_alike(&records(&one), 2);
    expect_alike(&records(&other), 1);
    one.iter().chain(&other).for_each(|comm| comm.destroy().unwrap());
}

/// Changes that nobody has reached yet wait in line; too many are refused.
#[test]
fn changes_without_calls_wait_in_line() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let refused = AtomicU32::new(0);
    in_threads(2, |comm| {
        if comm.rank() == 1 {
            let places: Vec<u64> =
                (0..20).map_while(|number| comm.change_rules(&some_rules(number)).ok()).collect();
            assert!(places.len() == 16 && places.is_sorted_by(|a, b| a < b), "{places:?}");
            let error = comm.change_rules(&some_rules(1)).unwrap_err();
            assert!(error.text.contains("too many changes wait for this rank's next collectives"), "{error}");
            refused.fetch_add(1, Ordering::Relaxed);
        }
        (0..50).for_each(|_| world::all_reduce(comm, 100).unwrap());
        assert_eq!(comm.rule_changes().len(), 16);
    });
    assert_eq!(refused.into_inner(), 1);
}

#[test]
fn one_rank_has_nothing_to_change() {
    if !on_host() {
        return;
    }
    let comm = &Comm::init_all(&[0]).unwrap()[0];
    let error = comm.change_rules(&[]).unwrap_err();
    assert!(error.text.contains("one rank alone only copies"), "{error}");
    comm.destroy().unwrap();
}

/// A rank that is destroyed while the others wait for it: they are told, nothing changes.
#[test]
fn a_rank_that_has_left_refuses() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let comms = Comm::init_all(&[0, 1, 2]).unwrap();
    let at = comms[0].change_rules(&some_rules(1)).unwrap();
    comms[2].destroy().unwrap();
    let error = comms[1].change_rules(&some_rules(2)).unwrap_err();
    // Rank 2 may just be leaving.
    let left =
        |text: &str| text.contains("has left the communicator") || text.contains("leaves the communicator");
    assert!(error.text.contains("rank 2") && left(&error.text), "{error}");
    comms[0].destroy().unwrap();
    let error = comms[1].change_rules(&some_rules(2)).unwrap_err();
    assert!(error.text.contains("rank 0") && left(&error.text), "{error}");
    assert_eq!((at, comms[1].async_error()), (16, None), "who leaves in peace breaks nothing");
    comms[1].destroy().unwrap();
}

/// The lines of a process about the changes that it took: by number the collective and the digest.
fn switches(ended: &Ended) -> BTreeMap<u64, (u64, u64, String)> {
    let parse = |line: &str| {
        let mut words = line.strip_prefix("switch ")?.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (change, at, begun) = (number()?, number()?, number()?);
        Some((change, (at, begun, words.next()?.to_owned())))
    };
    ended.output.lines().filter_map(parse).collect()
}

/// A rank is killed while changes are made one after the other: the others end with an error, and what they
/// did was the same as long as they did it.
#[test]
fn a_rank_killed_in_the_middle() {
    if !on_host() {
        return;
    }
    for (victim, proposer, after) in [(2, 0, 25), (0, 1, 40), (3, 1, 55), (0, 0, 10)] {
        let (id, count) = (unique_id().unwrap(), 4);
        let settings = [("HAWSER_OP_TIMEOUT", "3"), ("HAWSER_RULES_TIMEOUT", "2"), ("NCCL_DEBUG", "WARN")];
        let start = |rank: u32| {
            let step = if rank == proposer { "?changes" } else { "?follow" };
            Process::rank(RANK, &id, (rank, count), &[step, "switches"], &settings)
        };
        let mut all: Vec<Process> = (0..count).map(start).collect();
        all[proposer as usize].wait_for("changed");
        std::thread::sleep(Duration::from_millis(after));
        all[victim as usize].kill();
        let ended: Vec<Ended> = all.into_iter().map(Process::end).collect();
        let mut records = Vec::new();
        for (rank, ended) in (0..).zip(&ended).filter(|(rank, _)| *rank != victim) {
            assert!(ended.output.contains("error "), "rank {rank} has not noticed:\n{}", ended.output);
            assert!(!ended.output.contains("wrong result"), "rank {rank}:\n{}", ended.output);
            records.push(switches(ended));
        }
        for record in &records {
            assert!(!record.is_empty() && record.values().all(|(at, begun, _)| at == begun), "{record:?}");
            for (change, taken) in record {
                let others = records.iter().filter_map(|other| other.get(change));
                assert!(others.clone().all(|other| other == taken), "change {change} differs: {records:?}");
            }
        }
    }
}

/// A rank that does not answer for a while is waited for: neither is the communicator lost, nor are changes.
#[test]
fn a_rank_that_is_held_for_a_while() {
    if !on_host() {
        return;
    }
    let folder = folder("held");
    let file = folder.join("rules.toml");
    std::fs::write(&file, "").unwrap();
    let settings = [
        ("HAWSER_RULES", file.to_str().unwrap()),
        ("HAWSER_RULES_WATCH", "1"),
        ("HAWSER_RULES_TIMEOUT", "60"),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG_SUBSYS", "TUNING"),
    ];
    let id = unique_id().unwrap();
    let mut all: Vec<Process> =
        (0..3).map(|rank| Process::rank(RANK, &id, (rank, 3), &["mark", "rounds"], &settings)).collect();
    all.iter_mut().for_each(|process| process.wait_for("mark"));
    all[2].signal("STOP");
    std::fs::write(&file, "[[rule]]\nuse = { algorithm = \"tree\" }\n").unwrap();
    all[0].wait_for_part("rank 0 sends to rank 2");
    all[2].signal("CONT");
    for process in &mut all {
        process.wait_for_part("change 1 of the rules counts from here on: 1 of 1 rules in ");
    }
    all[0].tell("stop");
    all.into_iter().for_each(|process| process.end().expect_success());
    std::fs::remove_dir_all(folder).unwrap();
}

/// A file that is watched: rank 0 notices, all ranks follow; a broken one changes nothing.
#[test]
fn a_watched_file() {
    if !on_host() {
        return;
    }
    let folder = folder("watch");
    let file = folder.join("rules.toml");
    let write = |text: &str| {
        std::fs::write(folder.join("new"), text).unwrap();
        std::fs::rename(folder.join("new"), &file).unwrap();
    };
    write("[[rule]]\nuse = { algorithm = \"ring\" }\n");
    // Its ending does not say that it is CSV; it goes on counting.
    let csv = folder.join("nccl");
    std::fs::write(&csv, "broadcast,0,100,ring,simple,-1,-1,-1\n").unwrap();
    let settings = [
        ("NCCL_TUNER_CONFIG_FILE", csv.to_str().unwrap()),
        ("HAWSER_RULES", file.to_str().unwrap()),
        ("HAWSER_RULES_WATCH", "1"),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG_SUBSYS", "TUNING"),
    ];
    let id = unique_id().unwrap();
    let mut all: Vec<Process> =
        (0..3).map(|rank| Process::rank(RANK, &id, (rank, 3), &["mark", "rounds"], &settings)).collect();
    all.iter_mut().for_each(|process| process.wait_for("mark"));
    write("[[rule]]\nuse = { algorithm = \"tree\" }\n");
    for process in &mut all {
        process.wait_for_part("change 1 of the rules counts from here on: 2 of 2 rules in ");
    }
    write("[[rule]]\nuse = { algorithm = \"tre\" }\n");
    all[0].wait_for_part("rules.toml:2:21: algorithm \"tre\" is not known");
    write("");
    all[1].wait_for_part("change 3 of the rules counts from here on: 1 of 1 rules in ");
    all[0].tell("stop");
    all.into_iter().for_each(|process| process.end().expect_success());
    std::fs::remove_dir_all(folder).unwrap();
}

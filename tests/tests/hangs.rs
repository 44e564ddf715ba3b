//! Staged hangs: whoever is asked names the rank that is to blame, and why.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hawser_runtime::progress::reader;
use hawser_runtime::progress::verdict::{Cause, Evidence, Verdict, of_meetings, verdict};
use hawser_runtime::unique_id;
use hawser_tests::deadline::LIMIT;
use hawser_tests::floods::own_addresses;
use hawser_tests::hangs::{Hang, expect_any};
use hawser_tests::process::Process;
use hawser_tests::skip::skipped;
use hawser_tests::world::on_host;

const BINARY: &str = env!("CARGO_BIN_EXE_hawser-test-rank");

/// Ranks that carry out these steps hang, and rank `asked` knows why.
#[track_caller]
fn check(hosts: usize, steps: &[&str], asked: usize, cause: Cause, guilty: &[u32], parts: &[&str]) {
    if on_host() {
        Hang::start(BINARY, hosts, steps, &[]).expect(asked, cause, guilty, parts);
    }
}

#[test]
fn a_rank_that_never_calls() {
    let steps = ["all_reduce all_reduce", "all_reduce sleep", "all_reduce all_reduce"];
    let parts =
        ["has not called what the others wait for", "its last was operation 0, all_reduce(5000 x float"];
    check(1, &steps, 0, Cause::NotCalled, &[1], &parts);
    check(
        1,
        &["sleep", "all_reduce", "all_reduce"],
        2,
        Cause::NotCalled,
        &[0],
        &["it has called nothing yet"],
    );
    check(3, &steps, 2, Cause::NotCalled, &[1], &parts);
}

#[test]
fn what_the_main_thread_of_a_late_rank_does() {
    let steps = |late| ["all_reduce", "all_reduce", late];
    check(1, &steps("sleep"), 0, Cause::NotCalled, &[2], &["main thread is in clock_nanosleep(2)"]);
    check(1, &steps("spin"), 0, Cause::NotCalled, &[2], &["main thread runs"]);
    check(1, &steps("read"), 1, Cause::NotCalled, &[2], &["main thread is in read(2)"]);
}

#[test]
fn ranks_of_a_rooted_collective_wait_for_one() {
    let root_is_late = ["sleep", "call=broadcast/70000", "call=broadcast/70000"];
    check(1, &root_is_late, 1, Cause::NotCalled, &[0], &["broadcast(70000 x float, root 0)"]);
    let leaf_is_late = ["call=gather/900000", "call=gather/900000", "sleep"];
    check(1, &leaf_is_late, 0, Cause::NotCalled, &[2], &["gather(900000 x float, root 0)"]);
}

#[test]
fn calls_that_differ() {
    // What differs may hang, fail, or end with a wrong result.
    let right = "?call=all_reduce/1000 sleep";
    let cases = [
        ("?call=all_gather/1000 sleep", "another collective"),
        ("?call=all_reduce/900000 sleep", "another count"),
        ("?call=all_reduce/1000/double sleep", "another type"),
        ("?call=all_reduce/1000/float/max sleep", "another reduction"),
    ];
    for (wrong, difference) in cases {
        let parts = [difference, "rank 1", "where rank 0 called all_reduce(1000"];
        check(1, &[right, wrong, right], 0, Cause::Mismatch, &[1], &parts);
    }
    let of_root = |root| format!("?call=broadcast/1000/float/sum/{root} sleep");
    let steps = [of_root(0), of_root(0), of_root(1)];
    let steps = steps.each_ref().map(String::as_str);
    check(1, &steps, 0, Cause::Mismatch, &[2], &["another root"]);
}

#[test]
fn calls_that_differ_between_hosts() {
    let steps = ["?call=all_reduce/1000 sleep", "?call=all_reduce/900000 sleep"];
    check(2, &steps, 0, Cause::Mismatch, &[1], &["another count"]);
}

#[test]
fn a_group_without_an_end() {
    let parts = ["has queued 3 calls in a group", "ncclGroupEnd"];
    check(1, &["all_reduce", "queued=3"], 0, Cause::GroupOpen, &[1], &parts);
    check(2, &["queued=3", "all_reduce", "all_reduce"], 1, Cause::GroupOpen, &[0], &parts);
}

#[test]
fn messages_that_cross_or_are_missing() {
    let parts = ["wait for each other's messages", "send to 1", "send to 0"];
    check(1, &["big-send=1 big-recv=1", "big-send=0 big-recv=0"], 0, Cause::MessagesCross, &[0, 1], &parts);
    let parts = ["rank 1", "has not called", "send to 1"];
    check(1, &["big-send=1", "sleep"], 0, Cause::NotCalled, &[1], &parts);
    check(2, &["big-recv=1", "sleep"], 0, Cause::NotCalled, &[1], &["receive from 1"]);
    // Rank 0 waits for 2, which waits for 1.
    check(1, &["big-recv=2", "sleep", "big-recv=1"], 0, Cause::NotCalled, &[1], &["rank 1"]);
}

#[test]
fn a_message_where_the_others_are_in_a_collective() {
    let steps = ["all_reduce", "big-recv=0"];
    check(1, &steps, 0, Cause::MessagesCross, &[0, 1], &["all_reduce", "receive from 0"]);
}

#[test]
fn two_communicators_in_different_orders() {
    let parts = ["communicators in different orders"];
    check(1, &["child=first", "child=second"], 0, Cause::OtherOrder, &[0, 1], &parts);
    check(2, &["child=first", "child=second"], 1, Cause::OtherOrder, &[0, 1], &parts);
}

#[test]
fn a_rank_that_is_held_up_in_another_communicator() {
    // Ranks 0 and 1 are in the child, for which rank 2 is late.
    check(1, &["child=first", "child=first", "child=late"], 0, Cause::NotCalled, &[2], &["has not called"]);
}

#[test]
fn a_process_that_is_stopped() {
    if !on_host() {
        return;
    }
    for stopped in [1, 0] {
        let mut hang = Hang::start(BINARY, 1, &["again", "again", "again"], &[]);
        hang.rank(stopped).signal("STOP");
        let parts = ["is stopped by a signal", "kill -CONT"];
        hang.expect(2, Cause::Stopped, &[stopped as u32], &parts);
        hang.rank(stopped).signal("CONT");
    }
}

/// Stops the main thread of a process as a debugger does, which the calling thread then is.
fn hold(pid: u32) -> std::io::Result<()> {
    let pid = pid.cast_signed();
    // SAFETY: the request takes no addresses.
    match unsafe { libc::ptrace(libc::PTRACE_ATTACH, pid, 0, 0) } {
        // SAFETY: nothing is written, as the place for a status may be missing.
        0 => match unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        },
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn a_process_in_a_debugger() {
    if !on_host() {
        return;
    }
    let mut hang = Hang::start(BINARY, 1, &["again", "again", "again"], &[]);
    if let Err(error) = hold(hang.rank(1).id()) {
        return skipped(format!("processes may not be traced here: {error}"));
    }
    let parts = ["is held by the debugger that is process", "detach"];
    hang.expect(0, Cause::Debugger, &[1], &parts);
    hang.expect(2, Cause::Debugger, &[1], &parts);
}

#[test]
fn a_process_that_dies() {
    if !on_host() {
        return;
    }
    let mut hang = Hang::start(BINARY, 1, &["?again sleep", "again", "?again sleep"], &[]);
    hang.rank(1).kill();
    hang.expect(0, Cause::Gone, &[1], &["it has died"]);
    hang.expect(2, Cause::Gone, &[1], &["it has died"]);
}

#[test]
fn a_rank_that_aborts_while_the_others_wait() {
    for hosts in [1, 3] {
        if !on_host() {
            return;
        }
        let steps =
            ["?all_reduce ?all_reduce sleep", "all_reduce abort sleep", "?all_reduce ?all_reduce sleep"];
        let mut hang = Hang::start(BINARY, hosts, &steps, &[]);
        for asked in [0, 2] {
            hang.expect(asked, Cause::Gone, &[1], &["it has left (it has aborted it)"]);
        }
    }
}

#[test]
fn a_main_thread_that_waits_for_a_lock() {
    let steps = ["all_reduce all_reduce", "all_reduce locked", "all_reduce all_reduce"];
    let parts = ["its last was operation 0", "its main thread is in futex(2) while its thread \"busy\" runs"];
    check(1, &steps, 0, Cause::NotCalled, &[1], &parts);
}

#[test]
fn a_process_that_is_stopped_is_read_without_its_help() {
    if !on_host() {
        return;
    }
    let mut hang = Hang::start(BINARY, 1, &["all_reduce mark all_reduce", "all_reduce sleep"], &[]);
    // Before that, rank 1 may be late for the first one.
    hang.rank(0).wait_for("mark");
    hang.expect(0, Cause::NotCalled, &[1], &[]);
    (0..2).for_each(|rank| hang.rank(rank).signal("STOP"));
    let pids: Vec<u32> = (0..2).map(|rank| hang.rank(rank).id()).collect();
    assert!(pids.iter().all(|pid| reader::processes().contains(pid)));
    let reports: Vec<_> = pids.iter().map(|pid| reader::read(*pid).expect("its journals")).collect();
    let comm_id = reports[0].comms[0].comm_id;
    let found = verdict(&Evidence { comm_id, reports: reports.clone(), ..Evidence::default() });
    assert_eq!(found.cause, Cause::Stopped, "{}", found.text());
    assert_eq!((reports[0].comms[0].collectives, reports[1].comms[0].collectives), (2, 1));
    (0..2).for_each(|rank| hang.rank(rank).signal("CONT"));
}

#[test]
fn what_rails_carry_and_pools_hold_is_read_from_outside() {
    if !on_host() {
        return;
    }
    // 20,000 bytes of each all-reduce cross the network once or twice.
    let mut hang = Hang::start(BINARY, 2, &["all_reduce sleep", "all_reduce sleep"], &[]);
    let until = Instant::now() + LIMIT;
    loop {
        let report = reader::read(hang.rank(1).id()).expect("the journals of a rank");
        let value = |name: &str| {
            let of = report.figures.iter().filter(|figure| figure.name == name);
            of.map(|figure| figure.value).sum::<u64>()
        };
        let carried = ["rail_sent_bytes_total", "rail_received_bytes_total"].map(value);
        if carried.iter().all(|bytes| *bytes >= 20_000) && value("rail_sends_open") == 0 {
            let net = ("net".to_owned(), "Socket".to_owned());
            assert!(report.figures.iter().any(|figure| figure.labels.contains(&net)), "{:?}", report.figures);
            assert!(value("pool_committed_bytes") > 0, "{:?}", report.figures);
            break;
        }
        assert!(Instant::now() < until, "{:?}", report.figures);
    }
}

#[test]
fn what_a_process_called_last_outlives_it() {
    if !on_host() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("hawser-progress-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let settings = [("HAWSER_PROGRESS_DIR", folder.to_str().expect("text"))];
    let mut hang = Hang::start(BINARY, 1, &["all_reduce", "sleep"], &settings);
    hang.expect(0, Cause::NotCalled, &[1], &[]);
    drop(hang);
    let files: Vec<_> = std::fs::read_dir(&folder).expect("the folder").flatten().map(|e| e.path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let reports: Vec<_> = files.iter().map(|file| reader::read_file(file).expect("journals")).collect();
    let comm_id = reports[0].comms[0].comm_id;
    let found = verdict(&Evidence { comm_id, reports, ..Evidence::default() });
    assert_eq!((found.cause, &found.guilty[..]), (Cause::NotCalled, &[1][..]), "{}", found.text());
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn a_net_plugin_that_ends_no_send() {
    if !on_host() {
        return;
    }
    ends_no_send(&["all_reduce", "stall", "mark", "again"], &[]);
    // All slots of copy engines have been used, and one has the message that hangs.
    let copies = [("NCCL_PASS_SM", "1"), ("NCCL_PSM_BUFFER_SIZE", "600K")];
    ends_no_send(&["matrix", "stall", "mark", "gathers"], &copies);
}

/// Calls that a net never ends, by kernels or by copy engines.
fn ends_no_send(steps: &[&str], more: &[(&str, &str)]) {
    // Both ranks are threads of one process, since the test net goes no further.
    let settings = [&[("NCCL_NET", "test"), ("HAWSER_HANG_AFTER", "0")], more].concat();
    let mut ranks = Process::hosts(BINARY, "ab", steps, &settings);
    (0..2).for_each(|_| ranks.wait_for("mark"));
    // The net stalls both ways: the rank that had a send in hand at that moment is named, or both have one.
    let pid = ranks.id();
    let found = expect_any(pid, &[0, 1], &|verdict: &Verdict| {
        let peer = verdict.guilty.first().map_or(0, |guilty| 1 - guilty);
        let parts = ["its net test has ended none of".to_owned(), format!("to rank {peer}")];
        verdict.cause == Cause::NetSilent && parts.iter().all(|part| verdict.sentence.contains(part))
    });
    assert!(
        found.guilty == [0] || found.sentence.contains("rank 0 has waited in operation"),
        "{}",
        found.text()
    );
}

#[test]
fn a_rank_that_is_slower_than_its_peers() {
    let parts = ["is slow: it came last to", "what does that rank do between its calls"];
    check(1, &["paced=0", "paced=0", "paced=80"], 0, Cause::Slow, &[2], &parts);
    check(1, &["paced=60", "paced=0"], 1, Cause::Slow, &[0], &parts);
}

#[test]
fn a_rank_that_does_not_come_to_init_and_a_stranger_in_its_place() {
    if !on_host() {
        return;
    }
    let id = unique_id().expect("a unique id");
    let begin = |rank| Process::rank(BINARY, &id, (rank, 3), &["all_reduce"], &[]);
    let ranks = [begin(0), begin(2)];
    let wait_for = |guilty: &[u32], parts: &[&str]| {
        let until = Instant::now() + LIMIT;
        loop {
            let reports: Vec<_> = ranks.iter().filter_map(|rank| reader::read(rank.id()).ok()).collect();
            let found = of_meetings(&reports);
            let text = |verdict: &Verdict| verdict.text();
            if let [found] = &found[..]
                && (found.cause, &found.guilty[..]) == (Cause::MissingAtInit, guilty)
                && parts.iter().all(|part| text(found).contains(part))
            {
                return;
            }
            assert!(
                Instant::now() < until,
                "no {parts:?} in {:?}",
                found.iter().map(text).collect::<Vec<_>>()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for(&[1], &["rank 1 has not come to init: ranks 0, 2 of 3 wait for it since "]);
    // A scraper of metrics tries all ports of the process where ranks meet, which is this one.
    for address in own_addresses() {
        if let Ok(mut scraper) = TcpStream::connect(address) {
            let _ = scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n");
        }
    }
    wait_for(&[1], &["rank 1 has not come to init", "sent an HTTP request, to the port where ranks meet"]);
    let late = begin(1);
    ranks.into_iter().chain([late]).for_each(|rank| rank.end().expect_success());
}

#[test]
fn nobody_has_to_ask() {
    if !on_host() {
        return;
    }
    let settings = [("HAWSER_HANG_AFTER", "1")];
    let mut hang = Hang::start(
        BINARY,
        1,
        &["all_reduce all_reduce", "all_reduce sleep", "all_reduce all_reduce"],
        &settings,
    );
    // One line first, then the report.
    hang.rank(0).wait_for_part("hawser WARN communicator world: nothing has moved for");
    assert!(hang.rank(0).written().contains(": rank 1 (host"), "the warning names the rank");
    hang.rank(0).wait_for_part("what to do:");
    assert_eq!(hang.rank(0).written().matches("hawser WARN").count(), 1, "{}", hang.rank(0).written());
    // Also where rank 0 is to blame.
    let mut hang = Hang::start(BINARY, 2, &["sleep", "all_reduce"], &settings);
    hang.rank(1).wait_for_part("has not called what the others wait for");
}

#[test]
fn a_signal_asks() {
    if !on_host() {
        return;
    }
    let settings = [("HAWSER_HANG_AFTER", "0"), ("HAWSER_HANG_SIGNAL", "USR2")];
    let mut hang = Hang::start(BINARY, 2, &["all_reduce all_reduce", "all_reduce sleep"], &settings);
    hang.expect(0, Cause::NotCalled, &[1], &[]);
    // Also the process of the rank that is to blame, on which nothing is open.
    for asked in 0..2 {
        hang.rank(asked).signal("USR2");
        hang.rank(asked).wait_for_part("asked by a signal why nothing moves");
        hang.rank(asked).wait_for_part("has not called what the others wait for");
        hang.rank(asked).wait_for_part("what to do:");
    }
}

#[test]
fn ranks_that_work_are_not_blamed() {
    if !on_host() {
        return;
    }
    let mut hang = Hang::start(BINARY, 1, &["all_reduce read", "all_reduce read"], &[]);
    hang.expect(0, Cause::NothingOpen, &[], &["1 collectives are over"]);
    let settings = [("HAWSER_HANG_AFTER", "4")];
    let mut hang = Hang::start(BINARY, 1, &["rounds destroy", "rounds destroy"], &settings);
    std::thread::sleep(std::time::Duration::from_secs(6));
    hang.rank(0).tell("stop");
    for rank in 0..2 {
        hang.rank(rank).wait_for_nothing_more();
        assert!(!hang.rank(rank).written().contains("nothing has moved"));
    }
}

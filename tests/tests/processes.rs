//! One process per rank, as MPI and torchrun start them: bring-up over TCP, heaps by descriptor, all
//! collectives.

use std::net::TcpListener;

use hawser_runtime::unique_id;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::on_host;

#[test]
fn one_process() {
    matrix(1);
}

#[test]
fn two_processes() {
    matrix(2);
}

#[test]
fn three_processes() {
    matrix(3);
}

#[test]
fn four_processes() {
    matrix(4);
}

#[test]
fn eight_processes() {
    matrix(8);
}

fn matrix(ranks: u32) {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let start = |rank| {
        let steps = [
            "matrix",
            "suspend",
            "?all_reduce",
            "resume",
            "small",
            "suspend",
            "resume",
            "small",
            "finalize",
            "destroy",
        ];
        Process::rank(env!("CARGO_BIN_EXE_hawser-test-rank"), &id, (rank, ranks), &steps, &[])
    };
    let processes: Vec<Process> = (0..ranks).map(start).collect();
    for process in processes {
        process.end().expect_success();
    }
}

/// Two ranks that meet at an address, rank 1 with settings of its own.
fn meet_at_an_address(settings: &[(&str, &str)], of_rank_1: &[(&str, &str)]) -> [Ended; 2] {
    // An address of its own: another test could otherwise take the port while it is free.
    let [.., high, low] = std::process::id().to_be_bytes();
    let place = format!("127.79.{high}.{low}:0");
    let free = TcpListener::bind(&place).unwrap().local_addr().unwrap().to_string();
    let start = |rank: &str, own: &[(&str, &str)]| {
        let args = ["rank", "env", "2", rank, "all_reduce", "finalize", "destroy"].map(str::to_owned);
        let common = [("NCCL_COMM_ID", &*free), ("NCCL_DEBUG", "WARN"), ("HAWSER_INIT_TIMEOUT", "3")];
        Process::start(env!("CARGO_BIN_EXE_hawser-test-rank"), &args, &[&common, settings, own].concat())
    };
    [start("0", &[]), start("1", of_rank_1)].map(Process::end)
}

#[test]
fn an_address_without_a_key_is_a_warning_and_with_one_a_secret() {
    if !on_host() {
        return;
    }
    let warnings = |ended: &Ended| ended.output.matches("take a rank's place").count();
    for ended in meet_at_an_address(&[], &[]) {
        ended.expect_success();
        assert_eq!(warnings(&ended), 1, "{}", ended.output);
    }
    let file = |name: &str| std::env::temp_dir().join(format!("hawser-{name}-{}", std::process::id()));
    let (right, wrong) = (file("right-key"), file("wrong-key"));
    std::fs::write(&right, "the key of this job").unwrap();
    std::fs::write(&wrong, "the key of another job").unwrap();
    let setting = |file: &'static str| ("HAWSER_COMM_ID_KEY_FILE", file);
    let [right, wrong] = [right, wrong].map(|file| &*file.into_os_string().into_string().unwrap().leak());
    for ended in meet_at_an_address(&[setting(right)], &[]) {
        ended.expect_success();
        assert_eq!(warnings(&ended), 0, "{}", ended.output);
    }
    let [told, stranger] = meet_at_an_address(&[setting(right)], &[setting(wrong)]);
    stranger.expect_error("InvalidUsage", &["wrong secret", "HAWSER_COMM_ID_KEY_FILE"]);
    let wrong_key = "a caller from 127.0.0.1:";
    told.expect_error("Timeout", &["rank 1", wrong_key, "that says it is rank 1 proved a wrong key"]);
    let is_warned = |line: &str| line.contains("WARN bootstrap: a caller from");
    assert_eq!(told.output.lines().filter(|line| is_warned(line)).count(), 1, "{}", told.output);
    std::fs::remove_file(right).unwrap();
    std::fs::remove_file(wrong).unwrap();
    for ended in meet_at_an_address(&[setting(right)], &[]) {
        ended.expect_error("InvalidUsage", &["HAWSER_COMM_ID_KEY_FILE=", "No such file"]);
    }
}

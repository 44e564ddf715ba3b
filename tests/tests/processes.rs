//! One process per rank, as MPI and torchrun start them: bring-up over TCP, heaps by descriptor, all
//! collectives.

use hawser_runtime::unique_id;
use hawser_tests::process::Process;
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
        let steps = ["matrix", "finalize", "destroy"];
        Process::rank(env!("CARGO_BIN_EXE_hawser-test-rank"), &id, (rank, ranks), &steps, &[])
    };
    let processes: Vec<Process> = (0..ranks).map(start).collect();
    for process in processes {
        process.end().expect_success();
    }
}

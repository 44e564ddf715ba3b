//! Collectives whose parts differ in length: results, bad input, and what says what ran.

use hawser_plan::DataType;
use hawser_plan::vector::{Parts, Vector};
use hawser_runtime::{ErrorKind, Stream};
use hawser_tests::deadline::Deadline;
use hawser_tests::process::Process;
use hawser_tests::vectors;
use hawser_tests::world::{all_reduce, in_threads, on_host};

/// Ranks in threads of a process of their own with these settings, and what they wrote.
fn with(settings: &[(&str, &str)], hosts: &str) -> String {
    let steps = ["vectors", "destroy"];
    let ended = Process::hosts(env!("CARGO_BIN_EXE_hawser-test-rank"), hosts, &steps, settings).end();
    ended.expect_success();
    ended.output
}

#[test]
fn every_length_arrives_where_it_should() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for ranks in [1, 2, 3, 5, 8] {
        in_threads(ranks, |comm| vectors::run_all(comm).unwrap());
    }
}

#[test]
fn hosts_and_copy_engines_carry_them_too() {
    if !on_host() {
        return;
    }
    with(&[], "aab");
    let told = with(&[("NCCL_PASS_SM", "2"), ("NCCL_SM_FREE_VERBOSE", "1")], "aaa");
    assert!(
        told.contains("sendrecv") && told.contains("copy engines") && !told.contains("kernels:"),
        "{told}"
    );
}

#[test]
fn bad_input_is_refused_and_hurts_nobody() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(2, |comm| {
        let data = [7i32; 8];
        let (input, output) = (data.as_ptr() as u64, data.as_ptr() as u64 + 16);
        let all = Parts { counts: &[1, 1], displs: None };
        let far = Parts { counts: &[1, 1], displs: Some(&[0, u64::MAX]) };
        let wrong = [
            Vector::AllToAll { input, sends: all, output: input, recvs: all },
            Vector::AllToAll { input, sends: Parts { counts: &[1], displs: None }, output, recvs: all },
            Vector::AllGather { input, count: 2, output, recvs: all },
            Vector::AllGather { input, count: 1, output, recvs: far },
            Vector::AllGather { input, count: 1, output: 0, recvs: all },
            Vector::Gather { input, count: 1, output, recvs: Some(all), root: 2 },
        ];
        for vector in wrong {
            let error = comm.vector(&vector, DataType::Int32, Stream(0)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
            assert!(error.text.contains(&format!("rank {} of 2", comm.rank())), "{error}");
        }
        assert_eq!(data, [7; 8]);
        vectors::run_all(comm).unwrap();
    });
}

#[test]
fn the_last_decision_says_what_ran_and_why() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(3, |comm| {
        assert_eq!(comm.last_decision().unwrap(), None);
        all_reduce(comm, 1000).unwrap();
        all_reduce(comm, 1000).unwrap();
        let reduced = comm.last_decision().unwrap().unwrap();
        assert_eq!((reduced.operation, reduced.collective.as_str(), reduced.bytes), (1, "all_reduce", 4000));
        assert_eq!((reduced.route.name(), reduced.rule.as_ref()), ("host/Simple", None));
        assert!(reduced.channels > 0 && reduced.predicted_us > 0.0);
        for part in
            [reduced.algorithm.as_str(), "decided:", "is predicted fastest", "fused kernels are for GPUs"]
        {
            assert!(reduced.text.contains(part), "{part}: {}", reduced.text);
        }
        vectors::run_all(comm).unwrap();
        let last = comm.last_decision().unwrap().unwrap();
        assert_eq!((last.collective.as_str(), last.algorithm.as_str()), ("sendrecv", ""));
        assert!(last.operation > 1 && last.text.contains("messages of"), "{}", last.text);
    });
}

#[test]
fn the_rule_that_decided_is_named_with_its_line() {
    if !on_host() {
        return;
    }
    let file = std::env::temp_dir().join(format!("hawser-decision-{}.toml", std::process::id()));
    let rules = "version = 1\n\n[[rule]]\nname = \"mine\"\nuse = { algorithm = \"tree\" }\n";
    std::fs::write(&file, rules).unwrap();
    let path = file.to_str().unwrap();
    let (steps, settings) = (["all_reduce", "decision", "destroy"], [("HAWSER_RULES", path)]);
    let ended = Process::hosts(env!("CARGO_BIN_EXE_hawser-test-rank"), "aa", &steps, &settings).end();
    std::fs::remove_file(&file).unwrap();
    ended.expect_success();
    let line = ended.output.lines().find(|line| line.starts_with("decision: ")).unwrap();
    assert!(line.contains("mine") && line.contains(&format!("{path}:3")), "{line}");
}

//! The cost of a decision: `cargo run --release -p hawser-tuner --example decide`.
//!
//! Nanoseconds per question, the least of several runs; figures are in `bench/README.md`.

use std::hint::black_box;
use std::time::Instant;

use hawser_plugin::Log;
use hawser_plugin::tuner::{
    Algorithm, Candidate, Decision, Executor, Function, Protocol, Question, TunerContext,
};
use hawser_tuner::engine::Engine;
use hawser_tuner::rule::Job;
use hawser_tuner::schema::parse;

/// Questions per run, and runs.
const QUESTIONS: u32 = 200_000;
const RUNS: u32 = 15;

fn main() {
    let other = rules(100, |_| "match.ranks = 16".to_owned());
    let none = rules(100, |n| {
        format!("match = {{ collective = \"all_reduce\", bytes = \"{}..={}\" }}", n * 64, n * 64 + 63)
    });
    let last = rules(100, |n| {
        let first = if n == 99 { 0 } else { 1_u64 << 40 };
        format!("match = {{ collective = \"all_reduce\", bytes = \"{first}..\", data_type = \"float\" }}")
    });
    let chain = "use = [{ algorithm = \"pat\" }, { algorithm = \"nvls\" }, { algorithm = \"ring\" }]";
    let worst = last.replace("use = { algorithm = \"ring\", protocol = \"simple\" }", chain);
    let worst = format!("never_worse = true\n{worst}");
    println!("{:48} {:>8}", "rules", "ns");
    for (name, text) in [
        ("none", String::new()),
        ("100 for other communicators", other),
        ("100 for this collective, other sizes", none),
        ("100, the last one decides", last),
        ("100, the third action of the last, never_worse", worst),
    ] {
        println!("{name:48} {:8.1}", cost(&text));
    }
}

fn rules(count: u32, when: impl Fn(u32) -> String) -> String {
    let rule =
        |n| format!("[[rule]]\n{}\nuse = {{ algorithm = \"ring\", protocol = \"simple\" }}\n", when(n));
    (0..count).map(rule).collect()
}

/// Nanoseconds of a decision by these rules.
fn cost(text: &str) -> f64 {
    let job = Job { ranks: 8, hosts: 1, per_host: (8, 8), name: "world".to_owned(), programs: Vec::new() };
    let rules = parse("rules", text).expect("rules of this program");
    let engine = Engine::new(&rules, "rules", &job, Log::silent());
    let before = candidates();
    let mut question = Question::new(Function::AllReduce, 1 << 20);
    question.data_type = Some(hawser_plugin::collnet::DataType::Float32);
    let run = || {
        let start = Instant::now();
        for _ in 0..QUESTIONS {
            let mut list = before;
            black_box(engine.tune(black_box(&question), black_box(&mut list))).expect("rules do not fail");
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(QUESTIONS)
    };
    (0..RUNS).map(|_| run()).fold(f64::INFINITY, f64::min)
}

/// As many as the library has for an all-reduce on one host.
fn candidates() -> [Candidate<'static>; 18] {
    let kinds = [
        (Algorithm::RING, Executor::Interpreter),
        (Algorithm::TREE, Executor::Interpreter),
        (Algorithm::ONE_SHOT, Executor::Interpreter),
        (Algorithm::ALL_PAIRS, Executor::Interpreter),
        (Algorithm::ONE_SHOT, Executor::Fused),
        (Algorithm::ALL_PAIRS, Executor::Fused),
    ];
    std::array::from_fn(|n| {
        let (algorithm, executor) = kinds[n / 3];
        Candidate::predicted(Decision::new(algorithm, executor, Protocol::ALL[n % 3]), 10.0 + n as f32)
    })
}

//! `hawser explain` says what runs: random calls on one host and on several, equal and not, with any root, in
//! place and in groups, compared with what a communicator chose, blocks included; and what a living
//! communicator says of itself.
//!
//! `HAWSER_EXPLAIN_POINTS=1000 cargo test -p hawser-tests --test explain` takes a thousand points,
//! `HAWSER_EXPLAIN_SEED` others than the usual ones.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use hawser_plan::{Collective, DataType, ReduceOp};
use hawser_plugin::tuner::SettingsFile;
use hawser_runtime::comm::LastDecision;
use hawser_runtime::{Comm, Config, group};
use hawser_tests::deadline::Deadline;
use hawser_tests::oracle::Case;
use hawser_tests::skip::skipped;
use hawser_tests::world::{self, Issued, in_threads, issue, on_host, on_hosts, plain};
use serde_json::Value;

/// A letter for the host of each rank; those of a host follow one another.
const LAYOUTS: [&str; 10] = ["aa", "aaa", "aaaaa", "ab", "abc", "aabb", "aaabbb", "aab", "abbb", "aaabbc"];

/// A call, and what ran.
struct Point {
    case: Case,
    /// Algorithm, executor, protocol, blocks, bytes.
    ran: (String, String, String, u64, u64),
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

/// The next of a row of numbers that look random.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let mixed = (*state >> 33) ^ *state;
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

/// A call of any collective and type, whose size is as often small as large, and seldom even.
fn random_case(state: &mut u64, ranks: u32) -> Case {
    let collective = Collective::ALL[next(state) as usize % Collective::ALL.len()];
    let dtype = [DataType::Float32, DataType::Int8, DataType::Bfloat16][next(state) as usize % 3];
    let most = 1_u64 << (next(state) % 18);
    let count = 1 + (next(state) % most) as usize;
    let root = if collective.rooted() { (next(state) % u64::from(ranks)) as u32 } else { 0 };
    Case { collective, dtype, op: ReduceOp::Sum, ranks, root, count }
}

/// Algorithm, executor, protocol, blocks and bytes of what ran.
fn words(last: LastDecision) -> (String, String, String, u64, u64) {
    let (executor, protocol) = (last.route.executor.name(), last.route.protocol.name());
    (last.algorithm, executor.to_owned(), protocol.to_owned(), last.channels.into(), last.bytes)
}

/// Runs a call, perhaps in place, and says what was chosen.
fn run(comm: &Comm, case: Case, in_place: bool) -> Point {
    world::run(comm, case, in_place, 0).unwrap();
    Point { case, ran: words(comm.last_decision().unwrap().expect("a decision")) }
}

/// Runs some calls in a group, and says what was chosen for the last.
fn run_group(comm: &Comm, cases: &[Case]) -> Point {
    group::start().unwrap();
    let issued: Vec<_> = cases.iter().map(|case| issue(comm, *case, false, 0).unwrap()).collect();
    group::end().unwrap();
    assert_eq!(issued.iter().find_map(Issued::fault), None);
    let case = *cases.last().expect("a call");
    Point { case, ran: words(comm.last_decision().unwrap().expect("a decision")) }
}

fn tool() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("hawser")
}

/// The words of `hawser explain` about the same call.
fn explained(layout: &str, point: &Point) -> (String, String, String, u64, u64) {
    let letters: std::collections::BTreeSet<char> = layout.chars().collect();
    let of = |letter: &char| layout.matches(*letter).count().to_string();
    let per_host: Vec<String> = letters.iter().map(of).collect();
    let options = [
        ("--per-host", per_host.join(",")),
        ("--root", point.case.root.to_string()),
        ("--device", "host".to_owned()),
        ("--bytes", point.ran.4.to_string()),
        ("--datatype", point.case.dtype.name().to_owned()),
    ];
    let mut words = vec!["explain", point.case.collective.name(), "--json"];
    words.extend(options.iter().flat_map(|(name, value)| [*name, value.as_str()]));
    words_of(&json(&words)["choices"][0])
}

/// The JSON that the tool prints.
fn json(arguments: &[&str]) -> Value {
    let output = Command::new(tool()).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn words_of(choice: &Value) -> (String, String, String, u64, u64) {
    let word = |name: &str| choice[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| choice[name].as_u64().unwrap_or_default();
    (word("algorithm"), word("executor"), word("protocol"), number("channels"), number("bytes"))
}

#[test]
fn explain_says_what_runs() {
    if !on_host() {
        return;
    }
    if !tool().exists() {
        skipped("target/PROFILE/hawser is not built: cargo build -p hawser-cli");
        return;
    }
    let (points, seed) = (number("HAWSER_EXPLAIN_POINTS", 140), number("HAWSER_EXPLAIN_SEED", 1));
    let mut wrong = Vec::new();
    for (number, layout) in (0..).zip(LAYOUTS) {
        let ranks = layout.len() as u32;
        let ran = Mutex::new(Vec::new());
        // The tests have a net of their own, which the tool does not have.
        let config = Config { net: Some("Socket".into()), ..Config::default() };
        on_hosts(layout, &config, |comm| {
            let mut state = seed.wrapping_mul(1000) + number;
            for _ in 0..points.div_ceil(LAYOUTS.len() as u64) {
                let point = match next(&mut state) % 4 {
                    0 => {
                        let cases: Vec<Case> =
                            (0..1 + next(&mut state) % 4).map(|_| random_case(&mut state, ranks)).collect();
                        run_group(comm, &cases)
                    }
                    way => {
                        let case = random_case(&mut state, ranks);
                        // NCCL's all-to-all is never in place.
                        run(comm, case, way == 1 && case.collective != Collective::AllToAll)
                    }
                };
                if comm.rank() == 0 {
                    ran.lock().unwrap().push(point);
                }
            }
        });
        for point in ran.into_inner().unwrap() {
            let said = explained(layout, &point);
            if said != point.ran {
                let Case { collective, dtype, count, root, .. } = point.case;
                let what = format!("{layout}: {} {count} x {}, root {root}", collective.name(), dtype.name());
                wrong.push(format!("{what}: explained {said:?}, ran {:?}", point.ran));
            }
        }
    }
    assert!(wrong.is_empty(), "{} points differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// A living communicator is asked from another process: what it says is what runs, by the rules of the
/// moment.
#[test]
fn a_living_communicator_says_what_it_would_run() {
    if !on_host() {
        return;
    }
    if !tool().exists() {
        skipped("target/PROFILE/hawser is not built: cargo build -p hawser-cli");
        return;
    }
    let _deadline = Deadline::start();
    let pid = std::process::id().to_string();
    // Who has panicked aborts the communicators, so that nobody waits here for ever.
    let wait = |comm: &Comm| world::all_reduce(comm, 1).unwrap();
    in_threads(3, |comm| {
        // A small communicator, which not every root is a rank of, beside the one that is asked.
        let small = comm.split((comm.rank() / 2) as i32, 0, None).unwrap().unwrap();
        let same = |case: Case| {
            let point = run(comm, case, false);
            if comm.rank() == 0 {
                let (bytes, root) = (point.ran.4.to_string(), case.root.to_string());
                let words = ["explain", case.collective.name(), "--json", "--pid", &pid, "--bytes", &bytes];
                let said = json(&[&words[..], &["--root", &root]].concat());
                // Tests of this file have other communicators in this process.
                let own: Vec<&Value> =
                    said.as_array().unwrap().iter().filter(|told| told["ranks"] == 3).collect();
                let is_said = own.iter().any(|told| words_of(&told["choices"][0]) == point.ran);
                assert!(is_said, "{:?} ran, and {said} was said", point.ran);
                assert!(
                    own.iter().all(|told| told["choices"][0]["why"].as_str().unwrap().contains("decided"))
                );
            }
            wait(comm);
        };
        same(plain(Collective::AllReduce, 3, 5_000));
        same(Case { root: 2, ..plain(Collective::Broadcast, 3, 300) });
        if comm.rank() == 0 {
            let text = "[[rule]]\nname = \"mine\"\nuse = { algorithm = \"tree\", protocol = \"simple\" }\n";
            let at = comm.change_rules(&[SettingsFile { name: "mine.toml".into(), text: text.into() }]);
            assert!(at.is_ok(), "{at:?}");
        }
        wait(comm);
        // The change may count some collectives later.
        (0..40).for_each(|_| world::all_reduce(comm, 10).unwrap());
        same(plain(Collective::AllReduce, 3, 5_000));
        if comm.rank() == 0 {
            let arguments = ["explain", "all_reduce", "--pid", &pid, "--bytes", "1K..4K"];
            let output = Command::new(tool()).args(arguments).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("all_reduce on 3 ranks") && text.contains("rule \"mine\""), "{text}");
            let refused = Command::new(tool())
                .args(["explain", "broadcast", "--pid", &pid, "--root", "7"])
                .output()
                .unwrap();
            let errors = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success() && errors.contains("root 7 is not a rank"), "{errors}");
        }
        wait(comm);
        small.destroy().unwrap();
    });
}

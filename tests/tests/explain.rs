//! `hawser explain` says what runs: random calls on one host and on several, compared with what a
//! communicator chose, blocks included.
//!
//! `HAWSER_EXPLAIN_POINTS=1000 cargo test -p hawser-tests --test explain` takes a thousand points,
//! `HAWSER_EXPLAIN_SEED` others than the usual ones.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use hawser_plan::{Collective, DataType, ReduceOp};
use hawser_runtime::{Comm, Config};
use hawser_tests::oracle::Case;
use hawser_tests::skip::skipped;
use hawser_tests::world::{self, on_host, on_hosts};
use serde_json::Value;

/// A letter for the host of each rank; hosts have equally many, which follow one another.
const LAYOUTS: [&str; 7] = ["aa", "aaa", "aaaaa", "ab", "abc", "aabb", "aaabbb"];

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
    Case { collective, dtype, op: ReduceOp::Sum, ranks, root: 0, count }
}

/// Runs a call, and says what was chosen.
fn run(comm: &Comm, case: Case) -> Point {
    world::run(comm, case, false, 0).unwrap();
    let last = comm.last_decision().unwrap().expect("a decision");
    let (executor, protocol) = (last.route.executor.name(), last.route.protocol.name());
    let ran = (last.algorithm, executor.to_owned(), protocol.to_owned(), last.channels.into(), last.bytes);
    Point { case, ran }
}

fn tool() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("hawser")
}

/// The words of `hawser explain` about the same call.
fn explained(layout: &str, point: &Point) -> (String, String, String, u64, u64) {
    let hosts = layout.chars().max().map_or(1, |last| last as u32 - 'a' as u32 + 1);
    let options = [
        ("--ranks", layout.len().to_string()),
        ("--hosts", hosts.to_string()),
        ("--device", "host".to_owned()),
        ("--bytes", point.ran.4.to_string()),
        ("--datatype", point.case.dtype.name().to_owned()),
    ];
    let mut command = Command::new(tool());
    command.args(["explain", point.case.collective.name(), "--json"]);
    for (name, value) in &options {
        command.args([*name, value.as_str()]);
    }
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let choice = &said["choices"][0];
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
                let point = run(comm, random_case(&mut state, ranks));
                if comm.rank() == 0 {
                    ran.lock().unwrap().push(point);
                }
            }
        });
        for point in ran.into_inner().unwrap() {
            let said = explained(layout, &point);
            if said != point.ran {
                let Case { collective, dtype, count, .. } = point.case;
                let what = format!("{layout}: {} {count} x {}", collective.name(), dtype.name());
                wrong.push(format!("{what}: explained {said:?}, ran {:?}", point.ran));
            }
        }
    }
    assert!(wrong.is_empty(), "{} points differ:\n{}", wrong.len(), wrong.join("\n"));
}

//! Every function with wrong arguments: the answers of NVIDIA's library, which `tests/abi/misuse.py`
//! recorded, and ours to the same calls.

mod built;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use built::{library, sources};

/// Answers that say nothing about the arguments: `ncclUnhandledCudaError`, since there was no GPU, the
/// death of the process, and what is no `ncclResult_t`.
const NO_FACT: [&str; 3] = ["1", "crash", "-"];

#[test]
#[cfg(target_arch = "x86_64")]
fn every_function_answers_misuse_as_nvidias_does() {
    let table = rows("misuse.txt");
    let different: BTreeMap<String, String> = rows("misuse-differences.txt")
        .into_iter()
        .map(|(answer, call)| {
            let (call, reason) = call.split_once(" # ").expect("a reason");
            assert!(!reason.is_empty());
            (call.to_owned(), answer)
        })
        .collect();
    let functions: BTreeSet<&str> = table.iter().filter_map(|(_, call)| call.split(' ').next()).collect();
    assert_eq!(functions.len(), 96, "functions with a row");
    let calls: Vec<&str> = table.iter().map(|(_, call)| call.as_str()).collect();
    assert!(different.keys().all(|call| calls.contains(&call.as_str())), "a difference without a row");
    let Some(answers) = answers(&calls) else { return };
    assert_eq!(answers.len(), table.len());
    let mut wrong = Vec::new();
    for ((recorded, call), (ours, _)) in table.iter().zip(&answers) {
        let is_right = match different.get(call) {
            // A difference that is none is not kept.
            Some(wanted) => ours == wanted && ours != recorded,
            None if NO_FACT.contains(&recorded.as_str()) => !["crash", "hang"].contains(&ours.as_str()),
            None => ours == recorded,
        };
        if !is_right {
            wrong.push(format!("{call}: {ours}, NVIDIA's {recorded}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), table.len(), wrong.join("\n"));
}

/// The answers and calls of a file of `tests/abi`.
fn rows(file: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(sources().join(file)).unwrap();
    parsed(&text)
}

fn parsed(text: &str) -> Vec<(String, String)> {
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split_once(' ').expect("an answer and a call"))
        .map(|(answer, call)| (answer.to_owned(), call.to_owned()))
        .collect()
}

/// The answers of our library on the host device; None, with a line that says so, where there is no C
/// compiler.
fn answers(calls: &[&str]) -> Option<Vec<(String, String)>> {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let runner = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("misuse-{}", std::process::id()));
    let compiled = Command::new(&compiler)
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&runner, &sources().join("misuse.c")])
        .arg("-ldl")
        .output();
    let Ok(compiled) = compiled else {
        let _ = writeln!(std::io::stderr(), "skipped: no C compiler ({compiler}); install gcc or set CC");
        return None;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut child = Command::new(&runner)
        .arg(library())
        .env("HAWSER_DEVICE", "host")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let rows = calls.join("\n") + "\n";
    let writer = std::thread::spawn(move || stdin.write_all(rows.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    fs::remove_file(&runner).unwrap();
    assert!(output.status.success());
    Some(parsed(&String::from_utf8(output.stdout).unwrap()))
}

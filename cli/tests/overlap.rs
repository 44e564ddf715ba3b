//! `hawser perf overlap` as a user runs it, on the host device.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn overlap(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["NCCL_", "HAWSER_", "OMPI_", "PMI", "SLURM_"].iter().any(|p| name.starts_with(p)) {
            command.env_remove(name);
        }
    }
    command.env_remove("RANK").env_remove("WORLD_SIZE").env("HAWSER_DEVICE", "host");
    let line = format!("perf overlap {args} --rounds 1 --gemm 64 --window-ms 20 -b 64K");
    command.args(line.split_whitespace()).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{error}")
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("hawser-overlap-test-{}-{name}", std::process::id()))
}

fn taken(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("the file was written");
    std::fs::remove_file(path).expect("remove");
    text
}

/// Rows of the table for a contender: its cells.
fn rows<'a>(text: &'a str, contender: &str) -> Vec<Vec<&'a str>> {
    let cells = |line: &'a str| line.split_whitespace().collect::<Vec<_>>();
    text.lines().map(cells).filter(|cells| cells.first() == Some(&contender)).collect()
}

#[test]
fn our_own_ways_are_compared() {
    let (json, svg) = (scratch("own.json"), scratch("own.svg"));
    let output = overlap(&format!(
        "sendrecv,all_gather,all_reduce -t 2 -J {} --plot {}",
        json.display(),
        svg.display()
    ));
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("2 ranks (threads) on") && text.contains("GEMM 64³ by the CPU"), "{text}");
    let (free, kernels) = (rows(&text, "sm-free"), rows(&text, "kernels"));
    assert_eq!((free.len(), kernels.len()), (3, 3), "{text}");
    let ctas: Vec<&str> = free.iter().map(|row| row[1]).collect();
    assert!(ctas[..2] == ["0", "0"] && ctas[2] != "0", "moves take none, reductions some: {text}");
    assert!(kernels.iter().all(|row| row[1].parse::<u32>().is_ok_and(|ctas| ctas > 0)), "{text}");
    let json: serde_json::Value = serde_json::from_str(&taken(&json)).expect("JSON");
    let results = json["results"].as_array().expect("results");
    assert_eq!((results.len(), json["config"]["ranks"].as_u64()), (6, Some(2)));
    for line in results {
        let positive = |name: &str| {
            line[name].as_array().is_some_and(|all| all.iter().all(|v| v.as_f64().is_some_and(|v| v > 0.0)))
        };
        assert!(positive("gemm_us") && positive("transfer_us") && positive("busbw"), "{line}");
    }
    let svg = taken(&svg);
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    // Two bars for each of the rows.
    assert_eq!(svg.matches(" %</text>").count(), 12, "{svg}");
}

#[test]
fn another_library_runs_in_three_ways() {
    // Cargo builds it for this test, beside the test's executable.
    let library = std::env::current_exe().expect("this test").with_file_name("libnccl.so");
    let output = overlap(&format!("all_gather -t 2 --library {}", library.display()));
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for contender in ["sm-free", "kernels", "other", "other-few", "other-zero"] {
        assert_eq!(rows(&text, contender).len(), 1, "{contender}: {text}");
    }
    assert!(text.contains("# other-few: the other library, at most 4 CTAs (2."), "{text}");
}

#[test]
fn processes_take_part_too() {
    let output = overlap("sendrecv -p 2 --only kernels");
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("2 ranks (processes)") && rows(&text, "kernels").len() == 1, "{text}");
}

#[test]
fn what_cannot_be_measured_says_why() {
    let missing = overlap("all_gather -t 2 --library /nowhere/libnccl.so.2");
    let out = text(&missing);
    assert!(!missing.status.success() && out.contains("cannot load --library /nowhere"), "{out}");
    assert!(out.contains("# other: ") && out.contains("FAILED") && rows(&out, "sm-free").len() == 1, "{out}");
    for (args, part) in [
        ("all_gather -t 1", "at least 2 ranks"),
        ("all_gather --only other", "need --library"),
        ("hypercube -t 2", "single ones"),
    ] {
        let output = overlap(args);
        assert!(!output.status.success() && text(&output).contains(part), "{args}: {}", text(&output));
    }
}

//! The built program, as a user runs it, on the host device.

use std::path::PathBuf;
use std::process::{Command, Output};

/// `hawser` on the host device with a clean environment.
fn hawser(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["NCCL_", "HAWSER_", "OMPI_", "PMI", "SLURM_", "MASTER_"].iter().any(|p| name.starts_with(p)) {
            command.env_remove(name);
        }
    }
    command.env_remove("RANK").env_remove("WORLD_SIZE");
    command.env("HAWSER_DEVICE", "host").env("HAWSER_INIT_TIMEOUT", "60");
    command.args(args.split_whitespace());
    command
}

fn run(args: &str) -> Output {
    hawser(args).output().unwrap_or_else(|e| panic!("{args}: {e}"))
}

/// Standard output of a run that must succeed.
fn text(args: &str) -> String {
    checked(args, run(args))
}

fn checked(what: &str, output: Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{out}\n{error}", output.status);
    out
}

/// Cells of the table's rows.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().filter(|l| !l.starts_with('#')).map(|l| l.split_whitespace().collect()).collect()
}

/// A table of `count` rows without a wrong element.
fn assert_right(text: &str, count: usize) {
    let rows = rows(text);
    assert_eq!(rows.len(), count, "{text}");
    for row in &rows {
        assert_eq!(row.len(), 13, "{row:?}");
        assert_eq!(row[8], "0", "{row:?}");
        assert!(row[12] == "0" || row[12] == "N/A", "{row:?}");
    }
    assert!(text.contains("# Out of bounds values : 0 OK"), "{text}");
    assert!(text.contains("# Avg bus bandwidth    : "), "{text}");
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("hawser-cli-test-{}-{name}", std::process::id()))
}

#[test]
fn all_reduce_with_default_ranks() {
    let text = text("perf all_reduce -b 8 -e 1K -f 2 -n 2");
    assert_right(&text, 8);
    assert!(text.contains("nThread 4 nGpus 1"), "{text}");
    assert_eq!(text.lines().filter(|l| l.contains("Rank")).count(), 4, "{text}");
    assert_eq!(rows(&text)[0][..5], ["8", "2", "float", "sum", "-1"]);
}

#[test]
fn every_operation_with_threads() {
    let text = text("perf all -b 4K -e 36K -i 16001 -n 1 -t 2 -r all");
    // Three sizes; broadcast, reduce, gather and scatter have two roots.
    assert_right(&text, (6 + 4 * 2) * 3);
}

#[test]
fn every_type_and_reduction() {
    assert_right(&text("perf reduce_scatter -b 20K -e 20K -n 1 -w 0 -t 3 -d all -o all"), 12 * 6);
}

#[test]
fn several_communicators_per_thread() {
    assert_right(&text("perf alltoall -b 64 -e 64K -f 32 -n 2 -t 1 -g 3"), 3);
    assert_right(&text("perf all_gather -b 64K -e 64K -n 2 -m 3 -t 2 -g 2 -u 1"), 1);
    assert_right(&text("perf hypercube -b 64K -e 64K -n 2 -t 2 -g 2"), 1);
}

#[test]
fn one_rank() {
    assert_right(&text("perf all -b 1K -e 1K -n 1 -t 1"), 10);
}

#[test]
fn processes_of_its_own() {
    let text = text("perf all_reduce -b 1K -e 1M -f 32 -n 2 -p 3");
    assert_right(&text, 3);
    assert_eq!(text.lines().filter(|l| l.contains("Rank")).count(), 3, "{text}");
    let both = self::text("perf broadcast -b 1K -e 1K -n 2 -p 2 -t 2 -r 3");
    assert_right(&both, 1);
}

#[test]
fn under_a_launcher() {
    let job = format!("test-{}", std::process::id());
    let children: Vec<_> = (0..2)
        .map(|rank| {
            hawser("perf sendrecv -b 1K -e 1K -n 2")
                .envs([
                    ("OMPI_COMM_WORLD_SIZE", "2"),
                    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                    ("PMIX_NAMESPACE", &job),
                ])
                .env("OMPI_COMM_WORLD_RANK", rank.to_string())
                .env("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string())
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .expect("start")
        })
        .collect();
    let texts: Vec<String> = children
        .into_iter()
        .map(|c| checked("under a launcher", c.wait_with_output().expect("wait")))
        .collect();
    assert_right(&texts[0], 1);
    assert_eq!(texts[1], "");
}

#[test]
fn json_and_explanations() {
    let file = scratch("out.json");
    let text = text(&format!("perf all_reduce -b 1K -e 1K -n 2 -t 2 --explain -J {}", file.display()));
    assert!(text.contains("#   ") && text.contains("Ring"), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("file")).expect("JSON");
    std::fs::remove_file(&file).expect("remove");
    let row = &json["results"][0];
    assert_eq!((row["size"].as_u64(), row["type"].as_str()), (Some(1024), Some("float")));
    assert_eq!(row["out_of_place"]["nwrong"].as_u64(), Some(0));
    assert_eq!(json["config"]["ranks"].as_u64(), Some(2));
    assert_eq!(json["out_of_bounds"]["okay"].as_bool(), Some(true));
}

#[test]
fn bad_input_is_refused_with_a_remedy() {
    for (args, word) in [
        ("perf all_reduce -b 2 -e 1", "-b"),
        ("perf all_reduce -G 1", "CUDA"),
        ("perf broadcast -r 9", "-r 9"),
        ("perf hypercube -t 3", "power of two"),
        ("perf allreduce", "all_reduce"),
        ("perf all_reduce -b 8 -e 8 -J /nonexistent/x.json", "/nonexistent"),
        ("plan show nothing", "plan list"),
        ("explain sendrecv", "known are"),
    ] {
        let output = run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(word), "{args}: {error}");
    }
}

#[test]
fn plans_are_shown_verified_and_drawn() {
    let svg = scratch("ring.svg");
    let shown = text(&format!("plan show ring_all_reduce --ranks 3 --svg {}", svg.display()));
    assert!(shown.contains("right: "), "{shown}");
    assert!(std::fs::read_to_string(&svg).expect("drawing").contains("<svg"));
    std::fs::remove_file(&svg).expect("remove");

    let file = scratch("ring.plan");
    std::fs::write(&file, &shown).expect("write");
    assert!(text(&format!("plan verify {}", file.display())).contains("right: "));
    std::fs::write(&file, "not a plan").expect("write");
    let output = run(&format!("plan verify {}", file.display()));
    assert!(!output.status.success());
    std::fs::remove_file(&file).expect("remove");
    assert!(text("plan list").contains("tree_broadcast"));
}

#[test]
fn choices_are_explained() {
    let table = text("explain all_reduce --ranks 8 --bytes 1K..64K --device h200");
    assert_eq!(rows(&table).len(), 7, "{table}");
    assert!(text("explain gather --bytes 1M --device host").contains("decided"));
}

#[test]
fn the_doctor_finds_typing_errors() {
    let output = hawser("doctor").env("NCCL_P2P_DISABEL", "1").output().expect("run");
    let text = checked("doctor", output);
    for word in ["GPUs", "Kernels", "Network", "/dev/shm", "did you mean NCCL_P2P_DISABLE?"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

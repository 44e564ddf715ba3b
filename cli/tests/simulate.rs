//! `hawser perf --simulate` and `hawser explain --cluster`, as a user runs them.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// `hawser` with a clean environment.
fn hawser(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    for (name, _) in std::env::vars_os() {
        if ["NCCL_", "HAWSER_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.env("HAWSER_DEVICE", "host").args(args);
    command
}

fn run(args: &[&str]) -> Output {
    hawser(args).output().unwrap_or_else(|e| panic!("{args:?}: {e}"))
}

/// Standard output of a run that must succeed.
fn text(args: &[&str]) -> String {
    let output = run(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {}\n{error}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Send and receive round a ring, and an exchange of more ranks than its program serves, are messages.
#[test]
fn messages_have_predicted_times() {
    let ring = run(&["perf", "sendrecv", "-b", "1M", "-e", "1M", "--json", "--simulate", "4 hosts of cpu"]);
    let text = String::from_utf8_lossy(&ring.stdout);
    assert!(ring.status.success() && text.contains("sendrecv"), "{text}");
    let large = ["perf", "alltoall", "-b", "16M", "-e", "16M", "--explain", "--simulate"];
    let output = run(&[&large[..], &["1024 hosts of hgx-h200"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("messages") && text.contains("simulated:"), "{text}");
}

#[test]
fn the_table_is_that_of_perf() {
    let args = ["perf", "all_reduce,broadcast", "-b", "1K", "-e", "1M", "-f", "32", "--simulate"];
    let table = text(&[&args[..], &["2 hosts of hgx-h200"]].concat());
    let rows: Vec<Vec<&str>> =
        table.lines().filter(|l| !l.starts_with('#')).map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 6, "{table}");
    for row in rows {
        assert!(row.len() == 13 && row[8] == "N/A" && row[9] == "-", "{row:?}");
        assert!(row[5].parse::<f64>().unwrap() > 1.0, "{row:?}");
    }
    assert!(table.contains("# Avg bus bandwidth    : "), "{table}");
    assert!(table.contains("constants of the cost model: built-in"), "{table}");
}

#[test]
fn explain_agrees_with_what_was_simulated() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("links.toml"), "[net]\nhop_us = 9.0\n").unwrap();
    let path = folder.path().join("cluster.toml");
    let cluster = "constants_file = \"links.toml\"\n[[hosts]]\ncount = 3\npreset = \"dgx-a100\"\nranks = 4\n\
                   [fabric]\nkind = \"leaf-spine\"\noversubscription = \"2:1\"\n";
    std::fs::write(&path, cluster).unwrap();
    let path = path.to_str().unwrap();
    let sizes = ["-b", "1K", "-e", "16M", "-f", "2", "--json", "--simulate", path];
    let simulated: Value =
        serde_json::from_str(&text(&[&["perf", "all_reduce"], &sizes[..]].concat())).unwrap();
    let args = ["explain", "all_reduce", "--bytes", "1K..16M", "--json", "--cluster", path];
    let explained: Value = serde_json::from_str(&text(&args)).unwrap();
    assert_eq!((&explained["ranks"], &explained["hosts"]), (&12.into(), &3.into()));
    assert_eq!(explained["constants"], "built-in, then links.toml");
    let (rows, choices) =
        (simulated["results"].as_array().unwrap(), explained["choices"].as_array().unwrap());
    assert_eq!((rows.len(), choices.len()), (15, 15));
    for (row, choice) in rows.iter().zip(choices) {
        assert_eq!(row["size"], choice["bytes"]);
        for word in ["algorithm", "executor", "protocol"] {
            assert_eq!(row["decision"][word], choice[word], "{word} of {} bytes", row["size"]);
        }
        let us = |value: &Value| value["predicted_us"].as_f64().unwrap() as f32;
        assert_eq!(us(&row["decision"]), us(choice), "{} bytes", row["size"]);
    }
}

#[test]
fn bad_clusters_are_errors_that_name_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.toml");
    let name = path.to_str().unwrap();
    for (cluster, words) in [
        ("[[hosts]]\nnic = 3\n", "line 2"),
        ("constants_file = \"none.toml\"\n[[hosts]]\n", "none.toml"),
        ("[[hosts]]\ncount = 100000\n", "100000 ranks"),
    ] {
        std::fs::write(&path, cluster).unwrap();
        for command in
            [["perf", "all_reduce", "--simulate", name], ["explain", "all_reduce", "--cluster", name]]
        {
            let output = run(&command);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains(words) && error.contains("cluster.toml"), "{error}");
        }
    }
    let missing = run(&["perf", "all_reduce", "--simulate", "/nowhere/cluster.toml"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot read /nowhere/cluster.toml"));
    let odd = run(&["perf", "hypercube", "--simulate", "3 hosts of cpu"]);
    assert!(String::from_utf8_lossy(&odd.stderr).contains("needs a power of two of ranks"));
    let both = run(&["perf", "all_reduce", "--simulate", "2 hosts of cpu", "-t", "4"]);
    assert_eq!(both.status.code(), Some(2));
}

/// A hypercube's exchanges follow one another: on twice as many hosts there is one more, as long as all
/// before it together and more.
#[test]
fn exchanges_of_a_hypercube_follow_one_another() {
    let us = |hosts: u32| {
        let cluster = format!("{hosts} hosts of cpu");
        let output = run(&["perf", "hypercube", "-b", "64M", "-e", "64M", "--simulate", &cluster]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let row = text.lines().find(|line| !line.starts_with('#')).unwrap_or_else(|| panic!("{text}"));
        row.split_whitespace().nth(5).and_then(|us| us.parse::<f64>().ok()).unwrap_or_else(|| panic!("{row}"))
    };
    // Half of the output crosses at last, a quarter before that, and so on.
    let (two, four, eight) = (us(2), us(4), us(8));
    assert!(1.2 * two < four && four < 1.9 * two, "{two} {four} {eight}");
    assert!(four < eight && eight < 1.4 * four, "{two} {four} {eight}");
}

#[test]
fn an_interrupt_leaves_what_is_done() {
    let args =
        ["perf", "all_reduce", "-b", "1K", "-e", "2G", "-i", "1K", "--simulate", "8 hosts of hgx-h200"];
    let mut child = hawser(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.find(|line| !line.starts_with('#')).expect("a row");
    assert!(first.trim_start().starts_with("1024 "), "{first}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert!(rest.iter().any(|line| line.contains("interrupted: ")), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("Avg bus bandwidth")), "{rest:?}");
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert!(error.contains("interrupted after"), "{error}");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

//! `hawser doctor` finds what init would fail of, and ends with 1 then.

use std::io::Write;
use std::process::{Command, Output};

/// `hawser` with these settings and no others.
fn hawser(args: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    for (name, _) in std::env::vars_os() {
        let is_ours = |name: &str| ["NCCL_", "HAWSER_", "MSCCL_"].iter().any(|p| name.starts_with(p));
        if name.to_str().is_some_and(is_ours) {
            command.env_remove(name);
        }
    }
    command.env("HAWSER_RUNTIME_DIR", "none").args(args).envs(settings.iter().copied());
    command.output().expect("run")
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

const HOST: (&str, &str) = ("HAWSER_DEVICE", "host");

#[test]
fn nothing_is_wrong_with_the_host_device() {
    let output = hawser(&["doctor"], &[HOST]);
    let text = told(&output);
    assert!(output.status.success() && text.contains("no problem found"), "{text}");
    assert!(!text.contains('\x1b'), "no colours outside of terminals: {text}");
}

/// Settings with which a communicator does not come up, or that are ignored: one line each, marked, and 1 at
/// the end.
#[test]
fn what_init_fails_of_is_found() {
    for ((name, value), part) in [
        (("NCCL_ALGO", "rng"), "NCCL_ALGO: unknown word \"rng\""),
        (("NCCL_PROTO", "ll999"), "NCCL_PROTO: unknown word \"ll999\""),
        (("HAWSER_RULES", "/nope"), "the rule file /nope cannot be used: there is no such file"),
        (("HAWSER_LINKS", "/nope"), "/nope"),
        (("MSCCL_XML_FILES", "/nope.xml"), "/nope.xml"),
        (("NCCL_IB_HCAA", "mlx5_0"), "did you mean NCCL_IB_HCA?"),
        (("NCCL_PASS_SM", "3"), "NCCL_PASS_SM=3 means nothing"),
    ] {
        let output = hawser(&["doctor"], &[HOST, (name, value)]);
        let text = told(&output);
        assert_eq!(output.status.code(), Some(1), "{name}: {text}");
        let marked: Vec<&str> = text.lines().filter(|line| line.starts_with("  !!")).collect();
        assert_eq!(marked.len(), 1, "{name}: {text}");
        assert!(text.contains(part) && text.contains("1 problem found"), "{part}: {text}");
        assert!(!text.contains(&format!("ok  {name}")), "{name}: {text}");
        let json = hawser(&["doctor", "--json"], &[HOST, (name, value)]);
        let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
        assert_eq!((json.status.code(), value["problems"].as_u64()), (Some(1), Some(1)), "{value}");
    }
}

#[test]
fn a_device_that_is_none_is_told_once() {
    let output = hawser(&["doctor"], &[("HAWSER_DEVICE", "gpu")]);
    let text = told(&output);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("HAWSER_DEVICE=gpu")).collect();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let own: Vec<&&str> = lines.iter().filter(|line| line.starts_with("  ")).collect();
    assert!(own.len() == 1 && own[0].starts_with("  !!"), "{text}");
}

/// Asking for a GPU where there is none is a problem.
#[test]
fn gpus_that_are_asked_for_have_to_be_there() {
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        let _ = writeln!(std::io::stderr(), "skipped: this machine has a GPU");
        return;
    }
    let output = hawser(&["doctor"], &[("HAWSER_DEVICE", "cuda")]);
    let text = told(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("collectives cannot run: HAWSER_DEVICE=cuda, and there is no GPU"), "{text}");
    let perf = hawser(&["perf", "all_reduce", "-b", "8", "-e", "8"], &[("HAWSER_DEVICE", "cuda")]);
    let text = told(&perf);
    assert!(!perf.status.success() && text.contains("HAWSER_DEVICE=host measures on the CPU"), "{text}");
}

#[test]
fn a_library_without_the_plugin_is_no_success() {
    // Cargo builds it for this test, beside the test's executable.
    let library = std::env::current_exe().expect("path").with_file_name("libnccl.so");
    let none = std::env::temp_dir().join(format!("hawser-no-library-{}", std::process::id()));
    std::fs::write(&none, "text").expect("write");
    for (kind, path, part) in [
        ("net", none.to_str().expect("UTF-8"), "refused"),
        ("tuner", library.to_str().expect("UTF-8"), "missing the library has no tuner plugin"),
        ("nett", "/nope", "the kind is one of net, tuner, profiler, env"),
    ] {
        let output = hawser(&["doctor", "--probe", kind, path], &[HOST]);
        let text = told(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(part), "{text}");
    }
    std::fs::remove_file(none).expect("remove");
}

/// An error names its rank and its setting once.
#[test]
fn errors_say_things_once() {
    let args = ["perf", "all_reduce", "-t", "4", "-b", "8", "-e", "8"];
    let output = hawser(&args, &[HOST, ("NCCL_ALGO", "rng")]);
    let text = told(&output);
    assert!(!output.status.success(), "{text}");
    let line = text.lines().find(|line| line.starts_with("hawser: ")).expect("an error");
    assert_eq!((line.matches("NCCL_ALGO").count(), line.matches("rank ").count()), (1, 1), "{line}");
}

/// Whoever redirects to a full disk hears of it, from all commands.
#[test]
fn lost_output_is_an_error() {
    for args in [
        &["doctor"][..],
        &["doctor", "--json"],
        &["perf", "all_reduce", "-t", "2", "-b", "8", "-e", "8"],
        &["plan", "list"],
        &["plan", "show", "ring_all_reduce"],
        &["explain", "all_reduce"],
        &["rules", "list"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("open");
        let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
        let output = command.args(args).env("HAWSER_DEVICE", "host").stdout(full).output().expect("run");
        let text = told(&output);
        assert!(!output.status.success(), "{args:?}");
        assert!(text.contains("cannot write to the standard output: No space left"), "{args:?}: {text}");
    }
}

/// Every command can tell programs what it shows people.
#[test]
fn what_is_shown_can_be_had_as_json() {
    let folder = std::env::temp_dir().join(format!("hawser-json-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let name = folder.to_str().expect("UTF-8");
    for (file, text) in [
        ("rules.toml", "[[rule]]\nuse = { algorithm = \"ring\" }\n"),
        ("tuner.csv", "allreduce,0,-1,tree,ll,2,1,-1\n"),
        ("trace.json", "[]\n"),
    ] {
        std::fs::write(folder.join(file), text).expect("a file");
    }
    for line in [
        "plan list",
        "plan show tree_all_reduce",
        "plan show tree_all_reduce -o DIR/tree.svg",
        "plan verify ring_all_gather --ranks 3",
        "plan export ring_all_reduce --plan -o DIR/ring.plan",
        "plan import DIR/ring.plan -o DIR/ring.xml",
        "lint DIR/ring.xml",
        "explain all_reduce",
        "rules list",
        "rules explain DIR/rules.toml --collective all_reduce --bytes 1K",
        "rules check DIR/rules.toml",
        "rules fmt DIR/rules.toml",
        "rules import DIR/tuner.csv",
        "rules import DIR/tuner.csv -o DIR/of-a-tuner.toml",
        "trace merge DIR/trace.json -o DIR/job.json",
        "top",
        "doctor",
        "doctor --net",
        "perf all_reduce -t 2 -b 1K -e 2K -n 2",
        "perf all_reduce -b 1K -e 1K --simulate 2-hosts",
        "measure -b 1K -e 8K -N 1 --point-ms 1 --dry-run",
    ] {
        let words =
            line.split(' ').map(|word| word.replace("DIR", name).replace("2-hosts", "2 hosts of hgx-h200"));
        let words: Vec<String> = words.chain(["--json".to_owned()]).collect();
        let args: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = hawser(&args, &[HOST]);
        let value: Result<serde_json::Value, _> = serde_json::from_slice(&output.stdout);
        assert!(output.status.success() && value.is_ok(), "{line}: {}", told(&output));
        let is_written = words
            .iter()
            .position(|word| word == "-o")
            .is_none_or(|at| std::fs::metadata(&words[at + 1]).is_ok_and(|file| file.len() > 0));
        assert!(is_written, "{line} wrote nothing");
    }
    std::fs::remove_dir_all(folder).expect("the folder");
}

#[test]
fn the_first_call_says_what_to_do_first() {
    let output = hawser(&[], &[]);
    let text = told(&output);
    assert!(output.status.success() && text.contains("What to do first:\n  hawser doctor"), "{text}");
    let text = told(&hawser(&["--version"], &[]));
    assert!(
        text.starts_with("hawser ") && text.contains("(commit ") && text.contains("NCCL API 2."),
        "{text}"
    );
}

#[test]
fn packages_get_man_pages_and_completions() {
    let folder = std::env::temp_dir().join(format!("hawser-man-{}", std::process::id()));
    let output = hawser(&["man", folder.to_str().expect("UTF-8")], &[]);
    assert!(output.status.success(), "{}", told(&output));
    for page in ["hawser.1", "hawser-perf.1", "hawser-rules-apply.1"] {
        let text = std::fs::read_to_string(folder.join(page)).expect(page);
        assert!(text.contains(".TH"), "{page}: {text}");
    }
    std::fs::remove_dir_all(folder).expect("remove");
    for shell in ["bash", "zsh", "fish"] {
        assert!(told(&hawser(&["completions", shell], &[])).contains("hawser"), "{shell}");
    }
}

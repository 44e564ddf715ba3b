//! `hawser exec` as a user runs it: what is preloaded, what is refused, and what passes through.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// More than any step takes, on a slow machine too.
const LIMIT: Duration = Duration::from_secs(60);

const HAWSER: &str = env!("CARGO_BIN_EXE_hawser");

/// The library, which Cargo builds for this test beside the test's executable.
fn library() -> String {
    let path = std::env::current_exe().expect("path").with_file_name("libnccl.so");
    path.to_str().expect("UTF-8").to_owned()
}

fn exec(args: &[&str]) -> Command {
    let mut command = Command::new(HAWSER);
    command.args(["exec", "--library", &library()]).args(args);
    command.env("HAWSER_DEVICE", "host").env_remove("LD_PRELOAD").env("HAWSER_RUNTIME_DIR", "none");
    command
}

fn run(args: &[&str]) -> Output {
    exec(args).output().expect("run")
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Both ways of running a program.
const WAYS: [&[&str]; 2] = [&["--"], &["--verify", "--"]];

#[test]
fn the_library_comes_first_and_exit_codes_pass_through() {
    for way in WAYS {
        let output =
            run(&[way, &["sh", "-c", "echo $LD_PRELOAD; grep -c libnccl /proc/$$/maps; exit 7"]].concat());
        let text = told(&output);
        let mut lines = text.lines();
        assert_eq!((output.status.code(), lines.next()), (Some(7), Some(library().as_str())), "{text}");
        assert!(
            lines.next().and_then(|count| count.parse::<u32>().ok()).is_some_and(|count| count > 0),
            "{text}"
        );
        assert_eq!(run(&[way, &["true"]].concat()).status.code(), Some(0));
    }
    let mut before = exec(&["--", "sh", "-c", "echo $LD_PRELOAD"]);
    let output = before.env("LD_PRELOAD", "/lib/none.so").output().expect("run");
    assert!(told(&output).contains(&format!("{}:/lib/none.so\n", library())), "{}", told(&output));
}

#[test]
fn a_signal_that_ends_the_program_ends_this_one() {
    for way in WAYS {
        let output = run(&[way, &["sh", "-c", "kill -KILL $$"]].concat());
        assert_eq!(output.status.signal(), Some(9), "{}", told(&output));
    }
}

/// A scheduler that stops a job sends a signal to the process that it started.
#[test]
fn signals_reach_the_program() {
    for way in WAYS {
        let script = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
        let mut command = exec(&[way, &["sh", "-c", script]].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("start");
        let mut output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).expect("read");
        assert_eq!(line, "ready\n");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut output, &mut rest).expect("read");
        assert_eq!((child.wait().expect("wait").code(), rest.as_str()), (Some(3), "told\n"), "{way:?}");
    }
}

#[test]
fn what_cannot_be_run_is_told_as_by_a_shell() {
    let folder = Folder::new("cannot");
    let file = folder.0.join("data");
    std::fs::write(&file, "text").expect("write");
    for (args, code, part) in [
        (
            &["--", "hawser-does-not-exist"][..],
            127,
            "there is no program hawser-does-not-exist: give its path",
        ),
        (&["--", file.to_str().expect("UTF-8")], 126, "Permission denied"),
        (&["--verify", "--", "/nonexistent/program"], 1, "there is no program /nonexistent/program"),
        (&["--"], 2, "required"),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", told(&output));
        assert!(told(&output).contains(part), "{args:?}: {}", told(&output));
    }
    for (library, part) in [
        (
            "/nonexistent/libnccl.so.2",
            "there is no library at /nonexistent/libnccl.so.2; name it with --library",
        ),
        (file.to_str().expect("UTF-8"), "is no shared library"),
    ] {
        let output =
            Command::new(HAWSER).args(["exec", "--library", library, "--", "true"]).output().expect("run");
        assert_eq!(output.status.code(), Some(1));
        assert!(told(&output).contains(part), "{}", told(&output));
    }
}

/// A process that has another library and not ours is ended; one beside ours is told of.
#[test]
fn another_library_is_refused() {
    let folder = Folder::new("another");
    let other = folder.0.join("libnccl.so.2");
    std::fs::copy(library(), &other).expect("copy");
    let other = other.to_str().expect("UTF-8");
    let perf = |library: &str, iterations: &str| {
        let args =
            ["perf", "all_reduce", "-t", "2", "-b", "8", "-e", "8", "-n", iterations, "--library", library];
        run(&[&["--verify", "--", HAWSER][..], &args].concat())
    };
    // By its path a program gets the other one, as PyTorch maps the one of its package.
    let output = perf(other, "200000");
    let text = told(&output);
    assert!(output.status.success() && text.contains(&format!("has {other} beside ours")), "{text}");
    let output = perf("libnccl.so.2", "2");
    let text = told(&output);
    assert!(output.status.success() && text.contains("# library: "), "{text}");
    assert!(!text.contains(other), "{text}");
    // A child of a child whose environment has lost the setting.
    let begin = Instant::now();
    let endless = format!("{HAWSER} perf all_reduce -t 2 -b 8 -e 8 -n 2000000000 --library {other}");
    let script = format!("env -u LD_PRELOAD {endless} & wait");
    let output = run(&["--verify", "--", "sh", "-c", &script]);
    let text = told(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("has loaded {other} and not {}", library())), "{text}");
    assert!(begin.elapsed() < LIMIT, "it was ended");
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hawser-exec-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

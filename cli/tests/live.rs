//! `hawser rules list` and `apply`, as a user runs them, on a job that works on the host device.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Far beyond what anything here needs.
const LIMIT: Duration = Duration::from_secs(120);

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `hawser` on the host device with a clean environment and this folder for sockets.
fn hawser(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|n| ["NCCL_", "HAWSER_", "SLURM_"].iter().any(|p| n.starts_with(p))) {
            command.env_remove(name);
        }
    }
    command.env("HAWSER_DEVICE", "host").env("HAWSER_RUNTIME_DIR", folder.join("run")).args(args);
    command
}

fn told(output: Output) -> (bool, String) {
    let all = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&all).into_owned())
}

fn ask(folder: &Path, args: &[&str]) -> (bool, String) {
    told(hawser(folder, args).output().expect("run"))
}

/// Asks until the answer has this part.
fn ask_until(folder: &Path, args: &[&str], part: &str) -> String {
    let until = Instant::now() + LIMIT;
    loop {
        let (_, text) = ask(folder, args);
        if text.contains(part) {
            return text;
        }
        assert!(Instant::now() < until, "no {part}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A job of three ranks that works until it is killed; its log is in the folder.
fn start(folder: &Path) -> Job {
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let args = ["perf", "all_reduce", "-t", "3", "-g", "1", "-c", "0", "-b", "4K", "-e", "4K", "-w", "1"];
    let mut job = hawser(folder, &args);
    job.args(["-n", "1000000"]).env("HAWSER_JOB", "night");
    job.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "TUNING");
    Job(job.stdout(log).stderr(Stdio::null()).spawn().expect("start"))
}

/// Waits until the log of a job has so many of these.
fn wait_for(job: &mut Job, folder: &Path, part: &str, count: usize) {
    let until = Instant::now() + LIMIT;
    loop {
        let log = std::fs::read_to_string(folder.join("log")).unwrap();
        if log.matches(part).count() >= count {
            return;
        }
        assert!(Instant::now() < until && job.0.try_wait().unwrap().is_none(), "{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn rules_of_a_job_that_works_are_changed() {
    let folder = Folder(std::env::temp_dir().join(format!("hawser-live-{}", std::process::id())));
    let folder = &folder.0;
    std::fs::create_dir_all(folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file("good.toml", "[[rule]]\nuse = { algorithm = \"tree\" }\n");
    let bad = file("bad.toml", "[[rule]]\nuse = { algorithm = \"tre\" }\n");
    let mut job = start(folder);

    ask_until(folder, &["rules", "list"], " 2      3 ");
    let (_, listed) = ask(folder, &["rules", "list"]);
    let rows: Vec<Vec<&str>> = listed.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let pid = job.0.id().to_string();
    let pid = pid.as_str();
    assert!(rows.len() == 3 && rows.iter().all(|row| row[..2] == [pid, "night"]), "{listed}");
    let (_, json) = ask(folder, &["rules", "list", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["processes"][0]["communicators"].as_array().map(Vec::len), Some(3), "{json}");

    let (right, text) = ask(folder, &["rules", "apply", &good, "--pid", pid]);
    assert!(right && text.contains("): changed from collective ") && text.lines().count() == 1, "{text}");
    wait_for(&mut job, folder, "change 1 of the rules counts from here on: 1 of 1 rules in ", 3);
    let (right, text) = ask(folder, &["rules", "apply", "--none", "--job", "night"]);
    assert!(right && text.contains("changed from collective"), "{text}");

    for (args, part) in [
        (&["rules", "apply", &bad, "--pid", pid][..], "bad.toml:2:21: algorithm \"tre\" is not known"),
        (&["rules", "apply", &good], "Give --pid or --job"),
        (&["rules", "apply", &good, "--job", "day"], "there is no such communicator"),
        (
            &["rules", "apply", &good, "--job", "night", "--communicator", "tp*"],
            "there is no such communicator",
        ),
        (&["rules", "apply", &good, "--pid", "4294967295"], "asking process 4294967295"),
    ] {
        let (right, text) = ask(folder, args);
        assert!(!right && text.contains(part), "{args:?}: {text}");
    }
    // A process that is stopped is told, and nobody waits for it.
    rustix::process::kill_process(rustix::process::Pid::from_child(&job.0), rustix::process::Signal::STOP)
        .unwrap();
    let text = ask_until(folder, &["rules", "list"], "is stopped and cannot answer: kill -CONT");
    assert!(text.contains(&format!("process {pid} is stopped")), "{text}");
    let (right, text) = ask(folder, &["rules", "list", "--pid", pid]);
    assert!(!right && text.contains("is stopped and cannot answer"), "{text}");
    job.0.kill().unwrap();
    job.0.wait().unwrap();
    let (_, text) = ask(folder, &["rules", "list"]);
    assert!(text.contains("no process of this user"), "{text}");
}

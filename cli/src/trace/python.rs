//! The Python stacks of processes that a verdict blames. They are read from the processes' memory, which are
//! neither stopped nor asked for anything: a process that hangs could not answer.

use std::fmt::Write;

use hawser_runtime::progress::report::ProcessReport;
use hawser_runtime::progress::verdict::Verdict;
use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy, StackTrace};
use serde::Serialize;

/// Guilty ranks whose stacks are read.
const MOST_RANKS: usize = 4;
/// Calls of a stack that are printed.
const MOST_FRAMES: usize = 16;
/// Attempts to read a process that runs meanwhile.
const ATTEMPTS: u64 = 3;

/// The doings of Python in a process of a guilty rank.
#[derive(Debug, Serialize)]
pub struct Python {
    /// The rank.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// The calls of its main thread, the innermost first.
    pub frames: Vec<Frame>,
    /// The thread that holds the interpreter (GIL), if it is not the main one, with its innermost call.
    pub held_by: Option<String>,
    /// The reason why there is nothing to be read.
    pub error: Option<String>,
}

/// A call on a stack.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Frame {
    /// The function.
    pub function: String,
    /// The file that it stands in.
    pub file: String,
    /// The line that it has reached.
    pub line: i32,
}

/// Reads the guilty ranks of a verdict that are processes of this host, as far as Python runs in them. `here`
/// are the processes of this host.
pub fn of_guilty(verdict: &Verdict, here: &[ProcessReport]) -> Vec<Python> {
    let rows = verdict.rows.iter().filter(|row| verdict.guilty.contains(&row.rank));
    let is_here = |host: &str, pid: u32| here.iter().any(|report| report.pid == pid && report.host == host);
    let near = rows.filter(|row| is_here(&row.host, row.pid) && has_python(row.pid));
    near.take(MOST_RANKS).map(|row| read(row.rank, row.pid)).collect()
}

/// Returns whether a process has loaded an interpreter of Python.
fn has_python(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let is_python = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libpython") || name.starts_with("python")
    };
    maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5)).any(is_python)
}

fn read(rank: u32, pid: u32) -> Python {
    let empty = Python { rank, pid, frames: Vec::new(), held_by: None, error: None };
    match traces(pid) {
        Err(error) => Python { error: Some(format!("{error:#}")), ..empty },
        Ok(traces) => {
            // Old versions of Python tell the name alone.
            let is_main = |trace: &&StackTrace| match trace.os_thread_id {
                Some(number) => number == u64::from(pid),
                None => trace.thread_name.as_deref() == Some("MainThread"),
            };
            let held_by = traces.iter().find(|trace| trace.owns_gil && !is_main(trace)).map(thread);
            match traces.iter().find(is_main) {
                Some(main) => Python { frames: main.frames.iter().map(frame).collect(), held_by, ..empty },
                None => Python { error: Some("its main thread runs no Python".into()), held_by, ..empty },
            }
        }
    }
}

fn traces(pid: u32) -> anyhow::Result<Vec<StackTrace>> {
    let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
    PythonSpy::retry_new(pid.cast_signed(), &config, ATTEMPTS)?.get_stack_traces()
}

fn frame(frame: &py_spy::Frame) -> Frame {
    let py_spy::Frame { name, filename, line, .. } = frame;
    Frame { function: name.clone(), file: filename.clone(), line: *line }
}

/// "thread 17 (loader), in fetch (data.py:12)".
fn thread(trace: &StackTrace) -> String {
    let number = trace.os_thread_id.unwrap_or(trace.thread_id);
    let name = trace.thread_name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let place =
        trace.frames.first().map_or_else(String::new, |first| format!(", in {}", frame(first).text()));
    format!("thread {number}{name}{place}")
}

impl Frame {
    fn text(&self) -> String {
        format!("{} ({}:{})", self.function, self.file, self.line)
    }
}

impl Python {
    /// The lines for people, below a verdict.
    pub fn text(&self) -> String {
        let Self { rank, pid, frames, held_by, error } = self;
        let mut text = match error {
            None => {
                format!("  Python in the main thread of rank {rank} (process {pid}), innermost call first:\n")
            }
            Some(error) => format!("  Python of rank {rank} (process {pid}) cannot be read: {error}\n"),
        };
        for frame in frames.iter().take(MOST_FRAMES) {
            let _ = writeln!(text, "    {}", frame.text());
        }
        if frames.len() > MOST_FRAMES {
            let _ = writeln!(text, "    and {} more", frames.len() - MOST_FRAMES);
        }
        if let Some(holder) = held_by {
            let _ = writeln!(text, "    the interpreter (GIL) is held by {holder}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A program of Python, which is killed when the test is over.
    struct Program(Child);

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Starts a program and waits until it says "ready"; None where there is no Python.
    fn start(code: &str) -> Option<Program> {
        let mut command = Command::new("python3");
        let started = command.args(["-u", "-c", code]).stdout(Stdio::piped()).spawn();
        let mut program = started.ok().map(Program)?;
        let mut line = String::new();
        let out = program.0.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        // A shim that finds no Python ends at once.
        (line == "ready\n").then_some(program)
    }

    #[test]
    fn the_calls_of_a_stuck_program_are_named() {
        let code = "import threading\ndef load_batch():\n    print('ready')\n    threading.Event().wait()\n\
                    def train():\n    load_batch()\ntrain()\n";
        let Some(program) = start(code) else { return };
        let pid = program.0.id();
        assert!(has_python(pid) && !has_python(std::process::id()));
        // It says that it is ready before it waits.
        let waits = |python: &Python| python.frames.iter().any(|frame| frame.function.ends_with("wait"));
        let mut read = super::read(3, pid);
        for _ in 0..200 {
            if waits(&read) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            read = super::read(3, pid);
        }
        let text = read.text();
        if read.error.as_ref().is_some_and(|error| error.contains("ermission") || error.contains("permitted"))
        {
            return; // the kernel lets nobody look (ptrace_scope)
        }
        assert_eq!(read.error, None, "{text}");
        let functions: Vec<&str> = read.frames.iter().map(|frame| &*frame.function).collect();
        let at = |name| {
            let place = functions.iter().position(|function| function.ends_with(name));
            place.unwrap_or_else(|| panic!("no {name} in {text}"))
        };
        assert!(at("wait") < at("load_batch") && at("load_batch") < at("train"), "{text}");
        assert!(text.contains("load_batch (<string>:4)\n") && text.contains("rank 3 (process"), "{text}");
    }

    #[test]
    fn a_process_without_python_and_one_that_has_ended_are_errors() {
        assert!(!has_python(u32::MAX));
        assert!(read(0, std::process::id()).error.is_some());
        assert!(read(0, 1 << 22).text().contains("cannot be read"));
    }
}

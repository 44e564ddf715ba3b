//! Ranks in processes of their own: starts them, listens to them, and never waits for them without a limit.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use hawser_runtime::UniqueId;

use crate::deadline::LIMIT;

/// A running `hawser-test-rank`. Killed when dropped.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    output: String,
}

/// True if all threads of a process sleep, as its files in /proc say.
fn sleeps(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which stands in parentheses and may have any letters.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
    })
}

/// The end of a process.
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// All it wrote.
    pub output: String,
}

impl Process {
    /// Starts `binary` on the host device. Settings of the library that this process has are not passed on.
    pub fn start(binary: &str, args: &[String], settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|n| ["NCCL_", "HAWSER_", "MSCCL_"].iter().any(|p| n.starts_with(p)))
            {
                command.env_remove(name);
            }
        }
        command.env("HAWSER_DEVICE", "host").envs(settings.iter().copied()).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the test binary starts");
        let (to, lines) = channel();
        listen(child.stdout.take().expect("piped"), to.clone());
        listen(child.stderr.take().expect("piped"), to);
        Self { stdin: child.stdin.take(), child, lines, output: String::new() }
    }

    /// Starts rank `rank` of `ranks`, which carries out `steps` (see the binary).
    pub fn rank(
        binary: &str,
        id: &UniqueId,
        (rank, ranks): (u32, u32),
        steps: &[&str],
        settings: &[(&str, &str)],
    ) -> Self {
        let mut args = vec!["rank".to_owned(), hex(&id.to_bytes()), ranks.to_string(), rank.to_string()];
        args.extend(steps.iter().map(|s| (*s).to_owned()));
        Self::start(binary, &args, settings)
    }

    /// Starts ranks in threads of one process, one for each letter of `hosts`, on the host that the letter
    /// names. All carry out `steps` (see the binary).
    pub fn hosts(binary: &str, hosts: &str, steps: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut args = vec!["hosts".to_owned(), hosts.to_owned()];
        args.extend(steps.iter().map(|s| (*s).to_owned()));
        Self::start(binary, &args, settings)
    }

    /// Waits for a line that the process writes.
    pub fn wait_for(&mut self, line: &str) {
        self.wait_until(line, |got| got == line);
    }

    /// Waits for a line with this part.
    pub fn wait_for_part(&mut self, part: &str) {
        self.wait_until(part, |got| got.contains(part));
    }

    /// Waits for a line that ends like this, or for one with `other` in it.
    pub fn wait_for_end_of_line(&mut self, end: &str, other: &str) {
        self.wait_until(end, |got| got.ends_with(end) || got.contains(other));
    }

    fn wait_until(&mut self, line: &str, is_it: impl Fn(&str) -> bool) {
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let got = self.lines.recv_timeout(left);
            let got = got.unwrap_or_else(|_| panic!("no line '{line}' in:\n{}", self.output));
            self.output += &format!("{got}\n");
            if is_it(&got) {
                return;
            }
        }
    }

    /// Waits until all threads of the process have slept for so long at every look: on a busy machine one
    /// that has something to do waits for a processor, which is no sleep.
    pub fn wait_until_idle(&self, lasting: Duration) {
        let until = Instant::now() + LIMIT;
        let mut since = Instant::now();
        while since.elapsed() < lasting {
            assert!(Instant::now() < until, "process {} always has something to do", self.id());
            std::thread::sleep(Duration::from_millis(5));
            if !sleeps(self.id()) {
                since = Instant::now();
            }
        }
    }

    /// Waits until the process has written all that it will.
    pub fn wait_for_nothing_more(&mut self) {
        let until = Instant::now() + LIMIT;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.output += &format!("{line}\n");
        }
        assert!(Instant::now() < until, "the process has not ended; it wrote:\n{}", self.output);
    }

    /// Writes a line to the process.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("piped"), "{line}").expect("the process reads");
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the process has ended. Does not wait.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a process of ours").is_some()
    }

    /// All it has written so far.
    pub fn written(&mut self) -> &str {
        self.output.extend(self.lines.try_iter().map(|line| line + "\n"));
        &self.output
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("a process of ours");
    }

    /// Sends it a signal, as `STOP`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill(1)").success());
    }

    /// Waits for the end.
    pub fn end(mut self) -> Ended {
        let until = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a process of ours") {
                break status;
            }
            if Instant::now() >= until {
                self.kill();
                self.output.extend(self.lines.iter().map(|line| line + "\n"));
                panic!("a process did not end within {LIMIT:?}; it wrote:\n{}", self.output);
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        self.output.extend(self.lines.iter().map(|line| line + "\n"));
        Ended { status, output: std::mem::take(&mut self.output) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Fails the test unless the process did all it was told.
    #[track_caller]
    pub fn expect_success(&self) {
        assert!(self.status.success(), "{}:\n{}", self.status, self.output);
    }

    /// Fails the test unless a step failed with an error of this kind whose text has all these parts.
    #[track_caller]
    pub fn expect_error(&self, kind: &str, parts: &[&str]) {
        let mut errors = self.output.lines().filter(|l| l.contains(&format!("error {kind}: ")));
        assert!(
            errors.any(|l| parts.iter().all(|part| l.contains(part))),
            "no error {kind} with {parts:?} ({}):\n{}",
            self.status,
            self.output
        );
    }
}

/// Passes the lines of a pipe on until it is closed.
fn listen(pipe: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Inverse of [`hex`].
pub(crate) fn bytes_from_hex(text: &str) -> Option<Vec<u8>> {
    let byte = |i: usize| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok();
    (0..text.len() / 2).map(byte).collect()
}

/// Inverse of the id's form in the arguments.
pub fn id_from_hex(text: &str) -> Option<UniqueId> {
    UniqueId::from_bytes(&bytes_from_hex(text)?.try_into().ok()?).ok()
}

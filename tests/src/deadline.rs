//! No test may hang: a guard that ends the process when its test takes far too long.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The time that a test, or a process that it started, may take. Far beyond what any of them needs.
pub const LIMIT: Duration = Duration::from_secs(120);

/// While it lives, the process ends with a text once [`LIMIT`] has passed.
pub struct Deadline {
    _over: Sender<()>,
}

impl Deadline {
    /// Starts the clock of the calling test.
    pub fn start() -> Self {
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        let (over, wait) = channel();
        std::thread::spawn(move || {
            if wait.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                // Not `eprintln!`, whose text the test harness keeps to itself until the test ends.
                let _ = writeln!(std::io::stderr(), "{name} hangs: no end within {LIMIT:?}");
                std::process::exit(1);
            }
        });
        Self { _over: over }
    }
}

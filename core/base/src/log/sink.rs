//! The destinations of the lines of the log.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

use crate::files::{in_time, write_within_limit};

/// The time that opening a log may take. A pipe that nobody reads is given up then.
const OPENING: Duration = Duration::from_secs(5);

/// The destination of a log. One line is one `write(2)`, so that lines of several processes do not mix.
pub(super) enum Sink {
    /// The standard output.
    Stdout,
    /// A file, to whose end lines are added.
    File(Mutex<File>),
}

impl Sink {
    /// Opens a file. `%h` in its name stands for the host, `%p` for the process.
    ///
    /// # Errors
    /// The name of the file, and why it cannot be opened.
    pub fn open(name: &str) -> Result<Self, String> {
        let path = name.replace("%h", &host_name()).replace("%p", &std::process::id().to_string());
        let name = path.clone();
        let open = move || OpenOptions::new().create(true).append(true).open(name);
        let file = in_time(OPENING, open);
        file.map(|file| Self::File(Mutex::new(file))).map_err(|error| format!("{path}: {error}"))
    }

    /// The file of that name, else the standard output, and a sentence if the file cannot be opened.
    pub fn open_or_stdout(name: Option<&str>) -> (Self, Option<String>) {
        match name.map(Self::open) {
            None => (Self::Stdout, None),
            Some(Ok(sink)) => (sink, None),
            Some(Err(why)) => {
                let text =
                    format!("the log goes to standard output, as NCCL_DEBUG_FILE cannot be opened: {why}");
                (Self::Stdout, Some(text))
            }
        }
    }

    /// Writes a line, which ends with a line feed. A log that cannot be written is no error of anybody's
    /// call.
    pub fn write(&self, line: &str) {
        match self {
            Self::File(file) => drop(file.lock().map(|file| write_within_limit(&file, line.as_bytes()))),
            Self::Stdout => drop(std::io::stdout().lock().write_all(line.as_bytes())),
        }
    }
}

/// The name of this host.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

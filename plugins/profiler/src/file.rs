//! The trace file: a JSON array that a thread of its own extends, and that is complete after each write.
//!
//! The end of the array is written with every batch and overwritten by the next one, so a process may end at
//! any time and leave a file that any reader takes; what is lost then is the last batch.
//!
//! A file that has reached half of the most bytes is put aside, in the place of the one before it, and a
//! new one begins with the lines that name processes and threads: of a long run the last part is kept.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hawser_plugin::{Error, ErrorKind, Log, Result};
use rustix::process::{Resource, getrlimit};

/// Between two lines.
pub const SEPARATOR: &str = ",\n";
const OPENING: &str = "[\n";
const CLOSING: &str = "\n]\n";

/// Batches of lines that wait for the writer at most.
const QUEUE: usize = 32;
/// The time for which the writer collects a batch, and the most that it collects.
const BATCH_TIME: Duration = Duration::from_millis(50);
const BATCH_BYTES: usize = 1 << 20;
/// Longest wait for a lock, and for the writer when something is closed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A trace file with its writer. Dropping it waits for the writer, within reason.
pub struct TraceFile {
    /// None while it is dropped.
    queue: Option<SyncSender<Message>>,
    over: Mutex<Receiver<()>>,
    lost: Arc<AtomicU64>,
}

enum Message {
    /// Lines that are joined already, and their number.
    Lines(String, u64),
    /// A line that every file begins with from then on.
    Head(String),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

impl TraceFile {
    /// Opens a file, `again` to continue what this process wrote before, and starts its writer. With
    /// `most_bytes` the file and the one put aside are together no longer than that, but for a batch.
    ///
    /// # Errors
    /// It cannot be written, or another process writes it.
    pub fn open(path: &Path, again: bool, most_bytes: Option<u64>, log: &Log) -> Result<Self> {
        let name = path.display().to_string();
        let sink = Sink::open(path, again).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => {
                let text = format!(
                    "profiler: another process writes the trace {name}: put %p into HAWSER_PROFILER_FILE"
                );
                Error::new(ErrorKind::InvalidUsage, text)
            }
            _ => Error::system(format!("profiler: writing the trace {name}"), error),
        })?;
        let (queue, messages) = mpsc::sync_channel(QUEUE);
        let (ended, over) = mpsc::sync_channel(1);
        let lost = Arc::new(AtomicU64::new(0));
        let heads = Vec::new();
        let most_bytes = most_bytes.map(|bytes| bytes / 2);
        let path = path.to_owned();
        let writer =
            Writer { sink, path, most_bytes, heads, name, log: log.clone(), lost: lost.clone(), said: false };
        let run = move || {
            writer.run(&messages);
            let _ = ended.send(());
        };
        let thread = thread::Builder::new().name("hawser-trace".into()).spawn(run);
        thread.map_err(|error| Error::system("profiler: starting the trace's writer", error))?;
        Ok(Self { queue: Some(queue), over: Mutex::new(over), lost })
    }

    /// Hands lines that are joined to the writer, which stand for `count` events, and waits for room until
    /// `deadline`; false, and they are lost, if there is none.
    pub fn send_lines(&self, lines: String, count: u64, deadline: Instant) -> bool {
        self.wait(Message::Lines(lines, count), deadline)
    }

    /// Hands a line to the writer that is in every part of the trace; waits for room until `deadline`.
    pub fn send_head(&self, line: String, deadline: Instant) -> bool {
        self.wait(Message::Head(line), deadline)
    }

    /// Waits until everything so far is written; false if the writer does not get there by `deadline`.
    pub fn flush(&self, deadline: Instant) -> bool {
        let (done, answer) = mpsc::sync_channel(1);
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        self.wait(Message::Flush(done), deadline) && answer.recv_timeout(left(deadline)).is_ok()
    }

    /// Lines that could not be written so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The moment at which whoever closes something stops waiting.
    pub fn deadline() -> Instant {
        Instant::now() + PATIENCE
    }

    fn wait(&self, mut message: Message, deadline: Instant) -> bool {
        let Some(queue) = &self.queue else { return false };
        loop {
            message = match queue.try_send(message) {
                Ok(()) => return true,
                Err(TrySendError::Full(message)) if Instant::now() < deadline => message,
                Err(_) => return false,
            };
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        self.queue = None; // the writer ends when it has written what is left
        let over = self.over.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = over.recv_timeout(PATIENCE);
    }
}

/// The state of the writer's thread.
struct Writer {
    sink: Sink,
    path: PathBuf,
    /// The length from which on a file is put aside.
    most_bytes: Option<u64>,
    /// The lines that every file begins with.
    heads: Vec<String>,
    name: String,
    log: Log,
    lost: Arc<AtomicU64>,
    /// A failing write was logged.
    said: bool,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>) {
        while let Ok(first) = messages.recv() {
            let mut batch = Batch::default();
            batch.add(first);
            let deadline = Instant::now() + BATCH_TIME;
            while batch.waiting.is_empty() && batch.text.len() < BATCH_BYTES {
                let left = deadline.saturating_duration_since(Instant::now());
                match messages.recv_timeout(left) {
                    Ok(message) => batch.add(message),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
            self.write(&batch);
            self.heads.append(&mut batch.heads);
            self.put_aside_if_full();
            batch.waiting.iter().for_each(|waiting| {
                let _ = waiting.send(());
            });
        }
    }

    /// Begins a new file if this one is long enough. Where that fails, this one goes on.
    fn put_aside_if_full(&mut self) {
        if self.most_bytes.is_none_or(|most| self.sink.end < most) {
            return;
        }
        let begin = || -> io::Result<Sink> {
            std::fs::rename(&self.path, aside(&self.path))?;
            let mut sink = Sink::open(&self.path, false)?;
            sink.append(&self.heads.join(SEPARATOR))?;
            Ok(sink)
        };
        match begin() {
            Ok(sink) => self.sink = sink,
            Err(error) => {
                // Once is enough.
                self.most_bytes = None;
                let name = &self.name;
                self.log
                    .warn(format!("profiler: the trace {name} grows on, it cannot be put aside: {error}"));
            }
        }
    }

    fn write(&mut self, batch: &Batch) {
        let Err(error) = self.sink.append(&batch.text) else { return };
        self.lost.fetch_add(batch.count, Ordering::Relaxed);
        if !std::mem::replace(&mut self.said, true) {
            let name = &self.name;
            self.log.warn(format!("profiler: writing the trace {name} failed: {error}; its events are lost"));
        }
    }
}

/// Lines that are written together.
#[derive(Default)]
struct Batch {
    text: String,
    count: u64,
    heads: Vec<String>,
    waiting: Vec<SyncSender<()>>,
}

impl Batch {
    fn add(&mut self, message: Message) {
        let (line, count) = match message {
            Message::Lines(lines, count) => (lines, count),
            Message::Head(line) => {
                self.heads.push(line.clone());
                (line, 1)
            }
            Message::Flush(waiting) => return self.waiting.push(waiting),
        };
        if !self.text.is_empty() {
            self.text.push_str(SEPARATOR);
        }
        self.text.push_str(&line);
        self.count += count;
    }
}

/// The file that a trace is put aside in: `trace.json` becomes `trace.1.json`.
fn aside(path: &Path) -> PathBuf {
    let ending = path.extension().map_or_else(|| "1".into(), |e| format!("1.{}", e.to_string_lossy()));
    path.with_extension(ending)
}

/// The file itself.
struct Sink {
    file: File,
    /// The offset at which the end of the array begins.
    end: u64,
}

impl Sink {
    fn open(path: &Path, again: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        lock(&file)?;
        if again && let Some(end) = end_of(&file)? {
            return Ok(Self { file, end });
        }
        file.set_len(0)?;
        fits((OPENING.len() + CLOSING.len()) as u64)?;
        file.write_all_at(format!("{OPENING}{CLOSING}").as_bytes(), 0)?;
        Ok(Self { file, end: OPENING.len() as u64 })
    }

    /// Adds lines that are joined already.
    fn append(&mut self, lines: &str) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let separator = if self.end > OPENING.len() as u64 { SEPARATOR } else { "" };
        let text = format!("{separator}{lines}{CLOSING}");
        let written = fits(self.end + text.len() as u64)
            .and_then(|()| self.file.write_all_at(text.as_bytes(), self.end));
        if let Err(error) = written {
            self.close();
            return Err(error);
        }
        self.end += (text.len() - CLOSING.len()) as u64;
        Ok(())
    }

    /// Takes back what was written of a batch: what came before stays a whole trace, also on a full disk.
    fn close(&mut self) {
        let _ = self.file.write_all_at(CLOSING.as_bytes(), self.end);
        let _ = self.file.set_len(self.end + CLOSING.len() as u64);
    }
}

/// Checks that a file may be so long. A write beyond the limit of a file's size (`ulimit -f`) would end the
/// process (SIGXFSZ).
fn fits(length: u64) -> io::Result<()> {
    let limit = getrlimit(Resource::Fsize).current;
    match limit {
        Some(limit) if length > limit => Err(io::ErrorKind::FileTooLarge.into()),
        _ => Ok(()),
    }
}

/// Keeps other writers off. A writer of this process that is about to end is waited for.
fn lock(file: &File) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::ResourceBusy.into()),
            // A file system without locks: whoever shares a file there needs %p.
            Err(TryLockError::Error(_)) => return Ok(()),
        }
    }
}

/// The end of the array of a file that we wrote; None if it does not look like one.
fn end_of(file: &File) -> io::Result<Option<u64>> {
    let closing = CLOSING.len() as u64;
    let Some(end) = file.metadata()?.len().checked_sub(closing) else { return Ok(None) };
    let mut found = [0; CLOSING.len()];
    file.read_exact_at(&mut found, end)?;
    Ok((found == CLOSING.as_bytes() && end >= OPENING.len() as u64).then_some(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(path: &Path) -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn line(file: &TraceFile, text: &str) {
        assert!(file.send_lines(text.to_owned(), 1, TraceFile::deadline()));
    }

    #[test]
    fn the_file_is_complete_at_every_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        std::fs::write(&path, "something old and longer than what comes").unwrap();
        let file = TraceFile::open(&path, false, None, &Log::silent()).unwrap();
        assert_eq!(parsed(&path), json!([]));
        for count in 1..=3 {
            line(&file, &format!("{{\"n\":{count}}}"));
            assert!(file.flush(TraceFile::deadline()));
            assert_eq!(parsed(&path).as_array().unwrap().len(), count);
        }
        line(&file, "4");
        line(&file, "5");
        drop(file);
        assert_eq!(parsed(&path), json!([{"n": 1}, {"n": 2}, {"n": 3}, 4, 5]));
    }

    #[test]
    fn a_file_of_this_process_is_continued() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        for (again, number, expected) in [
            (false, 1, json!([1])),
            (true, 2, json!([1, 2])),
            (false, 3, json!([3])),
            (true, 4, json!([3, 4])),
        ] {
            let file = TraceFile::open(&path, again, None, &Log::silent()).unwrap();
            line(&file, &number.to_string());
            drop(file);
            assert_eq!(parsed(&path), expected);
        }
        std::fs::write(&path, "[\n1").unwrap();
        drop(TraceFile::open(&path, true, None, &Log::silent()).unwrap());
        assert_eq!(parsed(&path), json!([]), "what is no whole array is written anew");
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_said_once() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let keep = lines.clone();
        let log = Log::new(move |_, _, line| keep.lock().unwrap().push(line.to_owned()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let file = File::create(&path).unwrap();
        drop(file);
        // A descriptor that cannot be written stands for a full disk.
        let sink = Sink { file: File::open(&path).unwrap(), end: 2 };
        let lost = Arc::new(AtomicU64::new(0));
        let (heads, name) = (Vec::new(), "trace".to_owned());
        let lost_here = lost.clone();
        let mut writer =
            Writer { sink, path, most_bytes: None, heads, name, log, lost: lost_here, said: false };
        for _ in 0..2 {
            let mut batch = Batch::default();
            batch.add(Message::Lines("1".into(), 1));
            batch.add(Message::Lines("2".into(), 1));
            writer.write(&batch);
        }
        assert_eq!(lost.load(Ordering::Relaxed), 4);
        assert_eq!(lines.lock().unwrap().len(), 1, "{lines:?}");
    }

    #[test]
    fn a_long_trace_keeps_its_last_part_and_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let most = 20_000;
        let file = TraceFile::open(&path, false, Some(most), &Log::silent()).unwrap();
        assert!(file.send_head("\"head\"".to_owned(), TraceFile::deadline()));
        for number in 0..200 {
            line(&file, &format!("{{\"n\":{number},\"text\":\"{}\"}}", "x".repeat(500)));
            assert!(file.flush(TraceFile::deadline()));
        }
        drop(file);
        let parts = [aside(&path), path.clone()].map(|path| parsed(&path));
        assert_eq!(aside(&path), folder.path().join("trace.1.json"));
        for part in &parts {
            assert_eq!(part[0], json!("head"), "every part begins with the names");
        }
        let numbers: Vec<u64> = parts
            .iter()
            .flat_map(|part| part.as_array().unwrap())
            .filter_map(|line| line["n"].as_u64())
            .collect();
        let first = numbers[0];
        assert!(first > 100 && numbers == (first..200).collect::<Vec<_>>(), "{numbers:?}");
        let bytes: u64 =
            std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes <= most + 2 * 600, "{bytes}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_is_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let error = TraceFile::open(folder.path(), false, None, &Log::silent()).err().unwrap();
        assert!(error.text.contains("writing the trace"), "{error}");
    }
}

//! The trace file: a JSON array that a thread of its own extends, and that is complete after each write.
//!
//! The end of the array is written with every batch and overwritten by the next one, so a process may end at
//! any time and leave a file that any reader takes; what is lost then is the last batch.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hawser_plugin::{Error, ErrorKind, Log, Result};

use crate::record::Record;

/// Between two lines.
pub const SEPARATOR: &str = ",\n";
const OPENING: &str = "[\n";
const CLOSING: &str = "\n]\n";

/// Records that wait for the writer at most.
const QUEUE: usize = 8192;
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
    Record(Record),
    Line(String),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

impl TraceFile {
    /// Opens a file, `again` to continue what this process wrote before, and starts its writer.
    ///
    /// # Errors
    /// It cannot be written, or another process writes it.
    pub fn open(path: &Path, again: bool, log: &Log) -> Result<Self> {
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
        let writer = Writer { sink, name, log: log.clone(), lost: lost.clone(), said: false };
        let run = move || {
            writer.run(&messages);
            let _ = ended.send(());
        };
        let thread = thread::Builder::new().name("hawser-trace".into()).spawn(run);
        thread.map_err(|error| Error::system("profiler: starting the trace's writer", error))?;
        Ok(Self { queue: Some(queue), over: Mutex::new(over), lost })
    }

    /// Hands a record to the writer; false, and the record is lost, if that is too far behind.
    pub fn send(&self, record: Record) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.try_send(Message::Record(record)).is_ok())
    }

    /// Hands a line to the writer and waits for room until `deadline`.
    pub fn send_line(&self, line: String, deadline: Instant) -> bool {
        self.wait(Message::Line(line), deadline)
    }

    /// Hands a record to the writer and waits for room until `deadline`.
    pub fn send_late(&self, record: Record, deadline: Instant) -> bool {
        self.wait(Message::Record(record), deadline)
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
            batch.waiting.iter().for_each(|waiting| {
                let _ = waiting.send(());
            });
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
    waiting: Vec<SyncSender<()>>,
}

impl Batch {
    fn add(&mut self, message: Message) {
        let line = match message {
            Message::Record(record) => record.lines(),
            Message::Line(line) => line,
            Message::Flush(waiting) => return self.waiting.push(waiting),
        };
        if !self.text.is_empty() {
            self.text.push_str(SEPARATOR);
        }
        self.text.push_str(&line);
        self.count += 1;
    }
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
        self.file.write_all_at(text.as_bytes(), self.end)?;
        self.end += (text.len() - CLOSING.len()) as u64;
        Ok(())
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

/// Where the array of a file that we wrote ends; None if it does not look like one.
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
        assert!(file.send_line(text.to_owned(), TraceFile::deadline()));
    }

    #[test]
    fn the_file_is_complete_at_every_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        std::fs::write(&path, "something old and longer than what comes").unwrap();
        let file = TraceFile::open(&path, false, &Log::silent()).unwrap();
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
            let file = TraceFile::open(&path, again, &Log::silent()).unwrap();
            line(&file, &number.to_string());
            drop(file);
            assert_eq!(parsed(&path), expected);
        }
        std::fs::write(&path, "[\n1").unwrap();
        drop(TraceFile::open(&path, true, &Log::silent()).unwrap());
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
        let mut writer = Writer { sink, name: "trace".into(), log, lost: lost.clone(), said: false };
        for _ in 0..2 {
            let mut batch = Batch::default();
            batch.add(Message::Line("1".into()));
            batch.add(Message::Line("2".into()));
            writer.write(&batch);
        }
        assert_eq!(lost.load(Ordering::Relaxed), 4);
        assert_eq!(lines.lock().unwrap().len(), 1, "{lines:?}");
    }

    #[test]
    fn a_folder_is_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let error = TraceFile::open(folder.path(), false, &Log::silent()).err().unwrap();
        assert!(error.text.contains("writing the trace"), "{error}");
    }
}

//! Profiler plugin that counts events and writes a Chrome trace.
//!
//! What a communicator does goes through these files:
//!
//! | file | does |
//! |---|---|
//! | `context` | takes the host's calls, counts, sums up at the end |
//! | `tree` | finds out when an event is really over: after its last child |
//! | `describe` | names an event and its particulars |
//! | `record` | a finished event, and its lines in the trace |
//! | `file` | writes lines from a thread of its own; the file is valid JSON after each write |
//!
//! Nothing here waits on the way of an operation: if the writer cannot keep up, events are dropped and
//! counted. `README.md` describes the settings.
//!
//! ```
//! use hawser_plugin::profiler::{EventMask, Profiler};
//! use hawser_profiler::{Settings, TraceProfiler};
//!
//! // Counts collectives and writes no trace.
//! let settings = Settings { mask: EventMask::COLL, file: None, ..Settings::default() };
//! assert!(!TraceProfiler::new(settings).name().is_empty());
//! ```

mod context;
mod count;
mod describe;
mod file;
mod record;
mod settings;
mod tree;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hawser_plugin::profiler::{EventMask, ProfilerConfig, ProfilerContext};
use hawser_plugin::{Profiler, Result};
use rustc_hash::{FxHashMap, FxHashSet};

use context::Context;
use file::TraceFile;
pub use settings::Settings;

/// A profiler that counts events and writes a trace. All communicators of a process with the same file name
/// share the file.
pub struct TraceProfiler {
    settings: Result<Settings>,
    files: Mutex<Files>,
    /// Handles are numbers that no other communicator of this profiler has.
    last_event: Arc<AtomicU64>,
    contexts: AtomicU64,
}

/// The files of this process: those open, and those that were written, which are continued when they are
/// opened again.
#[derive(Default)]
struct Files {
    open: FxHashMap<PathBuf, Weak<TraceFile>>,
    written: FxHashSet<PathBuf>,
}

impl TraceProfiler {
    /// A profiler with settings.
    pub fn new(settings: Settings) -> Self {
        Self::with(Ok(settings))
    }

    /// A profiler with the settings of the environment. Wrong ones are told when a communicator opens it.
    pub fn from_env() -> Self {
        Self::with(Settings::from_env())
    }

    fn with(settings: Result<Settings>) -> Self {
        let (last_event, contexts) = (Arc::default(), AtomicU64::new(0));
        Self { settings, files: Mutex::default(), last_event, contexts }
    }

    /// The file for a path, shared with those that have it open.
    fn file(&self, path: &Path, most_bytes: Option<u64>, config: &ProfilerConfig) -> Result<Arc<TraceFile>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.open.get(path).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = TraceFile::open(path, files.written.contains(path), most_bytes, &config.log)?;
        let file = Arc::new(file);
        files.written.insert(path.to_owned());
        files.open.insert(path.to_owned(), Arc::downgrade(&file));
        Ok(file)
    }
}

impl Profiler for TraceProfiler {
    fn name(&self) -> &str {
        "hawser-trace"
    }

    fn open(&self, config: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        let wanted = settings.mask != EventMask::NONE;
        let path = settings.file_of(config.rank).filter(|_| wanted);
        let file = path.map(|path| self.file(&path, settings.most_bytes, config)).transpose()?;
        let number = self.contexts.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Context::new(config, settings.mask, file, number, self.last_event.clone())))
    }
}

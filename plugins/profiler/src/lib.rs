//! Profiler plugin that counts events and writes a Chrome trace.
//!
//! What a communicator does goes through these files:
//!
//! | file | does |
//! |---|---|
//! | `context` | takes the host's calls, sums up at the end |
//! | `queue` | the steps of events, as the host's threads leave them |
//! | `clock` | the times of steps |
//! | `follower` | the thread that takes the steps of all communicators |
//! | `watched` | what it makes of the steps of one: counts, lines, figures |
//! | `count` | counts of events |
//! | `tree` | finds out when an event is really over: after its last child |
//! | `describe` | names an event and its particulars |
//! | `record` | a finished event, and its lines in the trace |
//! | `metrics` | figures for Prometheus |
//! | `host_figures` | what the host counts, for Prometheus too |
//! | `expose` | writes them to a file, and answers clients |
//! | `otel` | pushes them to a collector of OpenTelemetry, with the feature `otel` |
//! | `file` | writes lines from a thread of its own; the file is valid JSON after each write |
//!
//! Nothing here waits on the way of an operation, or makes a text there: if the threads cannot keep up,
//! events are dropped and counted. `README.md` describes the settings.
//!
//! ```
//! use hawser_plugin::profiler::{EventMask, Profiler};
//! use hawser_profiler::{Settings, TraceProfiler};
//!
//! // Counts collectives and writes no trace.
//! let settings = Settings { mask: EventMask::COLL, file: None, ..Settings::default() };
//! assert!(!TraceProfiler::new(settings).name().is_empty());
//! ```

mod clock;
mod context;
mod count;
mod describe;
mod expose;
mod file;
mod follower;
mod host_figures;
mod metrics;
#[cfg_attr(not(feature = "otel"), path = "no_otel.rs")]
mod otel;
mod queue;
mod record;
mod settings;
mod tree;
mod watched;

/// Entry point for a fuzz target.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::expose::fuzz_request as request;
}

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hawser_plugin::profiler::{EventMask, ProfilerConfig, ProfilerContext};
use hawser_plugin::{Error, ErrorKind, Profiler, Result};
use rustc_hash::{FxHashMap, FxHashSet};

use context::Context;
use expose::Figures;
use file::TraceFile;
use follower::Follower;
use metrics::Metrics;
use otel::Otel;
pub use settings::{Listen, Settings};
use watched::Outlets;

/// A profiler that counts events and writes a trace. All communicators of a process with the same file name
/// share the file.
pub struct TraceProfiler {
    settings: Result<Settings>,
    files: Mutex<Files>,
    figures: Mutex<PerProcess>,
    follower: Arc<Follower>,
    /// Communicators so far. Handles of events are numbers that no other communicator of this profiler has.
    contexts: AtomicU64,
}

/// The files of this process: those open, and those that were written, which are continued when they are
/// opened again.
#[derive(Default)]
struct Files {
    open: FxHashMap<PathBuf, Weak<TraceFile>>,
    written: FxHashSet<PathBuf>,
}

/// The figures of this process, for as long as a communicator is open. Counters go on from one to the next.
#[derive(Default)]
struct PerProcess {
    metrics: Option<Arc<Metrics>>,
    open: Weak<Figures>,
    /// The rank by which the file and the figures are named.
    rank: u32,
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
        let (follower, contexts) = (Arc::default(), AtomicU64::new(0));
        Self { settings, files: Mutex::default(), figures: Mutex::default(), follower, contexts }
    }

    /// The figures of this process. Where they cannot go anywhere, a warning says so and there are none: a
    /// busy port is no reason to do without the trace.
    fn figures(&self, settings: &Settings, config: &ProfilerConfig) -> Option<Arc<Figures>> {
        let mut own = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = own.open.upgrade() {
            return Some(open);
        }
        let made = || -> Result<Arc<Metrics>> {
            let metrics = Metrics::new(config.rank);
            metrics.map(Arc::new).map_err(|error| {
                Error::new(ErrorKind::Internal, format!("profiler: the figures for Prometheus: {error}"))
            })
        };
        let started = match own.metrics.clone() {
            Some(metrics) => Ok(metrics),
            None => made().inspect(|metrics| {
                own.rank = config.rank;
                push(metrics, settings, config);
            }),
        };
        let started = started.and_then(|metrics| {
            metrics.follow(&self.follower, &config.log);
            own.metrics = Some(metrics.clone());
            let file = (settings.metrics_file_of(own.rank), settings.metrics_interval);
            Figures::start(metrics, file, settings.metrics_listen_of(own.rank).as_ref(), &config.log)
        });
        match started {
            Ok(figures) => {
                let figures = Arc::new(figures);
                own.open = Arc::downgrade(&figures);
                Some(figures)
            }
            Err(error) => {
                config.log.warn(format!("{error}; there are no figures for Prometheus"));
                None
            }
        }
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

/// Has figures pushed to a collector of OpenTelemetry, if one is named. Where that cannot be, a warning says
/// so.
fn push(metrics: &Metrics, settings: &Settings, config: &ProfilerConfig) {
    let Some(address) = &settings.metrics_otlp else { return };
    match Otel::start(address, settings.metrics_interval, config.rank) {
        Ok(otel) => metrics.push(otel),
        Err(error) => config.log.warn(format!("{error}; nothing is pushed there")),
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
        let figures = (wanted && settings.has_metrics()).then(|| self.figures(settings, config)).flatten();
        let number = self.contexts.fetch_add(1, Ordering::Relaxed);
        let outlets = Outlets { file, figures };
        Ok(Box::new(Context::new(config, settings.mask, outlets, (number, &self.follower))?))
    }
}

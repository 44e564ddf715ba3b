//! Our trait over a C tuner of any version.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hawser_plugin::tuner::{Answer, Candidate, Question, TunerConfig, TunerContext};
use hawser_plugin::{Error, Log, Result, Subsys, Tuner};

use super::cost_table::{CostTable, cell_of};
use super::v5::{Constants, Domains};
use crate::common::{SUCCESS, check};
use crate::library::Library;
use crate::logger::{self, Logger};

/// The chunk size that plugins find: NCCL shows its own there, which our trait does not tell. With the
/// largest one those that ask for at least so much leave it alone, and those that ask for at most so much are
/// heard.
const ANY_CHUNK: usize = 1 << 30;

/// A plugin as its table tells it.
pub(super) struct Plugin {
    pub(super) name: String,
    pub(super) calls: Arc<dyn Calls>,
}

/// The calls of one ABI version, with the arguments of the newest. All are `unsafe` because they run foreign
/// code that trusts its arguments: `context` is what `init` gave and is not finalized yet.
pub(super) trait Calls: Send + Sync {
    /// Makes the plugin ready for a communicator.
    ///
    /// # Safety
    /// `comm` holds good pointers that stay valid until `finalize` returned.
    unsafe fn init(&self, comm: &Comm, context: &mut *mut c_void) -> c_int;

    /// Lets the plugin change the table. `channels` is 0 = default.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn tune(
        &self,
        context: *mut c_void,
        ask: &Ask,
        table: &mut CostTable,
        channels: &mut c_int,
    ) -> c_int;

    /// Lets the plugin change the chunk size of a choice (algorithm, protocol, channels).
    ///
    /// # Safety
    /// See the trait.
    unsafe fn chunk(&self, context: *mut c_void, ask: &Ask, chosen: [c_int; 3], bytes: &mut usize) -> c_int {
        let _ = (context, ask, chosen, bytes);
        SUCCESS
    }

    /// The last call with this context.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn finalize(&self, context: *mut c_void) -> c_int;
}

/// The facts about a communicator that `init` tells a plugin.
pub(super) struct Comm {
    pub(super) id: u64,
    pub(super) ranks: usize,
    pub(super) nodes: usize,
    pub(super) logger: Logger,
    pub(super) domains: *mut Domains,
    pub(super) constants: *mut Constants,
}

/// A question in C's types.
pub(super) struct Ask {
    pub(super) function: c_int,
    pub(super) bytes: usize,
    pub(super) pipelined: c_int,
    pub(super) registered: c_int,
}

impl Ask {
    fn new(question: &Question) -> Self {
        Self {
            function: question.function as c_int,
            bytes: usize::try_from(question.bytes).unwrap_or(usize::MAX),
            pipelined: c_int::try_from(question.pipelined).unwrap_or(c_int::MAX),
            registered: c_int::from(question.registered),
        }
    }
}

/// A C tuner behind our trait. Keeps its library open.
pub(super) struct Adapter {
    plugin: Plugin,
    library: Arc<Library>,
}

impl Adapter {
    pub(super) fn new(plugin: Plugin, library: Arc<Library>) -> Self {
        Self { plugin, library }
    }
}

impl Tuner for Adapter {
    fn name(&self) -> &str {
        &self.plugin.name
    }

    fn open(&self, config: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        let lent = Lent::new(config);
        let comm = Comm {
            id: config.comm_id,
            ranks: config.ranks as usize,
            nodes: config.nodes as usize,
            logger: logger::for_plugins(&config.log),
            // SAFETY: `lent` is alive; only the address of a field is taken.
            domains: unsafe { &raw mut (*lent.0.as_ptr()).domains },
            // SAFETY: as above.
            constants: unsafe { &raw mut (*lent.0.as_ptr()).constants },
        };
        let mut context = ptr::null_mut();
        // SAFETY: `lent` goes into the context below and is freed after `finalize`.
        let code = unsafe { self.plugin.calls.init(&comm, &mut context) };
        check(code, || format!("init of tuner {}", self.plugin.name))?;
        Ok(Box::new(Context {
            handle: Mutex::new(Handle(context)),
            calls: self.plugin.calls.clone(),
            name: self.plugin.name.clone(),
            log: config.log.clone(),
            garbage_said: AtomicBool::new(false),
            _lent: lent,
            _library: self.library.clone(),
        }))
    }
}

/// The memory that a plugin may point to, read and write until it is finalized. We do not look into it.
struct Lent(NonNull<Values>);

struct Values {
    domains: Domains,
    constants: Constants,
}

impl Lent {
    fn new(config: &TunerConfig) -> Self {
        let int = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
        let (count, fewest, most) = config.domains;
        let domains = Domains { count: int(count), fewest_ranks: int(fewest), most_ranks: int(most) };
        let values = Box::new(Values { domains, constants: Constants::NCCL });
        Self(NonNull::from(Box::leak(values)))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: made from a box in `new`, freed here only.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: only the plugin uses what it points to.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

/// The plugin's own context.
struct Handle(*mut c_void);

// SAFETY: NCCL calls a tuner from whichever thread enqueues, so plugins do not tie it to a thread.
unsafe impl Send for Handle {}

/// A C tuner, ready for a communicator.
struct Context {
    /// NCCL never asks about one communicator from two threads at once, so neither do we.
    handle: Mutex<Handle>,
    calls: Arc<dyn Calls>,
    name: String,
    log: Log,
    garbage_said: AtomicBool,
    _lent: Lent,
    _library: Arc<Library>,
}

impl TunerContext for Context {
    fn tune(&self, question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
        let before = CostTable::of(candidates);
        let mut table = before.clone();
        let mut channels = 0;
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the context is not finalized, and the lock keeps other threads out.
        let code = unsafe { self.calls.tune(handle.0, &Ask::new(question), &mut table, &mut channels) };
        drop(handle);
        check(code, || format!("getCollInfo of tuner {}", self.name))?;
        let applied = table.apply(&before, candidates);
        if applied.is_odd && !self.garbage_said.swap(true, Ordering::Relaxed) {
            self.log.warn(format!(
                "tuner {} wrote something that is no time, or gave one to an impossible combination ({}, {} bytes); \
                 such entries are ignored. Said once",
                self.name,
                question.function.name(),
                question.bytes
            ));
        }
        let mut answer = Answer::default();
        answer.order = applied.order;
        Ok(answer.with_channels(u32::try_from(channels).ok().filter(|channels| *channels > 0)))
    }

    fn chunk_bytes(&self, question: &Question, chosen: &Candidate<'_>) -> Result<Option<u64>> {
        let Some((algorithm, protocol)) = cell_of(chosen) else { return Ok(None) };
        let channels = chosen.decision.channels;
        let channels = c_int::try_from(channels).map_err(|_| {
            Error::internal(format!("{channels} channels are more than a plugin can be told"))
        })?;
        let chosen = [algorithm as c_int, protocol as c_int, channels];
        let mut bytes = ANY_CHUNK;
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `tune`.
        let code = unsafe { self.calls.chunk(handle.0, &Ask::new(question), chosen, &mut bytes) };
        drop(handle);
        check(code, || format!("getChunkSize of tuner {}", self.name))?;
        Ok(Some(bytes as u64).filter(|_| (1..ANY_CHUNK).contains(&bytes)))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the last call; nobody else holds the context any more.
        let code = unsafe { self.calls.finalize(handle.0) };
        if let Err(error) = check(code, || format!("finalize of tuner {}", self.name)) {
            self.log.info(Subsys::TUNING, error.into_text());
        }
    }
}

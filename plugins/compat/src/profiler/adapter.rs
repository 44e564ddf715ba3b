//! Our trait over a C profiler of any version.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, ProfilerConfig, ProfilerContext, StateArgs,
};
use hawser_plugin::{Log, Profiler, Result, Subsys};

use super::abi::{Comm, Plugin, address, int};
use super::names::{Strings, c_string};
use crate::common::{SUCCESS, check};
use crate::library::Library;
use crate::logger;

/// A C profiler behind our trait. Keeps its library open.
pub(super) struct Adapter {
    shared: Arc<Shared>,
}

struct Shared {
    plugin: Plugin,
    /// The kinds of events that the plugin wants. It may write at any time, also between its calls. There is
    /// one for all communicators, as in NCCL: plugins exist that write it for the first communicator only.
    mask: AtomicI32,
    strings: Arc<Strings>,
    _library: Arc<Library>,
}

impl Adapter {
    pub(super) fn new(plugin: Plugin, library: Arc<Library>) -> Self {
        let (mask, strings) = (AtomicI32::new(0), Arc::default());
        Self { shared: Arc::new(Shared { plugin, mask, strings, _library: library }) }
    }
}

impl Profiler for Adapter {
    fn name(&self) -> &str {
        &self.shared.plugin.name
    }

    fn open(&self, config: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>> {
        let comm = Comm {
            id: config.comm_id,
            name: config.comm_name.as_deref().map(c_string),
            nodes: int(config.nodes),
            ranks: int(config.ranks),
            rank: int(config.rank),
            logger: logger::for_plugins(&config.log),
            strings: self.shared.strings.clone(),
        };
        let mut handle = ptr::null_mut();
        let plugin = &self.shared.plugin;
        // SAFETY: mask and strings live in `shared`, the name in `comm`; both go into the context below.
        let code = unsafe { plugin.calls.init(&comm, &mut handle, self.shared.mask.as_ptr()) };
        check(code, || format!("init of profiler {}", plugin.name))?;
        Ok(Box::new(Context {
            handle,
            comm,
            log: config.log.clone(),
            failed: AtomicBool::new(false),
            shared: self.shared.clone(),
        }))
    }
}

/// A C profiler, ready for a communicator.
struct Context {
    /// The plugin's own context.
    handle: *mut c_void,
    comm: Comm,
    log: Log,
    /// A call failed, and that was said.
    failed: AtomicBool,
    shared: Arc<Shared>,
}

// SAFETY: `handle` is the plugin's, which NCCL calls from its own threads with the same context.
unsafe impl Send for Context {}
// SAFETY: as above: proxy threads and callers at the same time.
unsafe impl Sync for Context {}

impl Context {
    /// True if a call was successful; otherwise it is said once. What is watched must not fail because of it.
    fn succeeded(&self, code: c_int, call: &str) -> bool {
        if code != SUCCESS && !self.failed.swap(true, Ordering::Relaxed) {
            let failure = check(code, || format!("{call} of profiler {}", self.shared.plugin.name));
            let text = failure.map_or_else(|error| error.into_text(), |()| String::new());
            self.log.warn(format!("{text}. Later failures are not logged"));
        }
        code == SUCCESS
    }
}

impl ProfilerContext for Context {
    fn mask(&self) -> EventMask {
        let written = self.shared.mask.load(Ordering::Relaxed) as u32;
        EventMask(u64::from(written) & self.shared.plugin.calls.kinds().0)
    }

    fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
        let calls = &self.shared.plugin.calls;
        if !calls.kinds().contains(event.what.kind()) {
            return None;
        }
        let mut handle = ptr::null_mut();
        // SAFETY: the context is not finalized; parents are handles that the plugin gave.
        let code = unsafe { calls.start(self.handle, &mut handle, event, &self.comm) };
        let started = self.succeeded(code, "startEvent") && !handle.is_null();
        started.then(|| EventHandle(handle.expose_provenance() as u64))
    }

    fn stop(&self, event: EventHandle) {
        // SAFETY: the plugin gave this handle.
        let code = unsafe { self.shared.plugin.calls.stop(address(event.0)) };
        self.succeeded(code, "stopEvent");
    }

    fn record(&self, event: EventHandle, state: EventState, args: StateArgs) {
        // SAFETY: the plugin gave this handle.
        let code = unsafe { self.shared.plugin.calls.record(address(event.0), state, args) };
        self.succeeded(code, "recordEventState");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return; // as in NCCL: a plugin without a context is not finalized
        }
        // SAFETY: the last call with this context.
        let code = unsafe { self.shared.plugin.calls.finalize(self.handle) };
        if let Err(error) = check(code, || format!("finalize of profiler {}", self.shared.plugin.name)) {
            self.log.info(Subsys::PROFILE, error.into_text());
        }
    }
}

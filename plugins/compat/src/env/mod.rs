//! Env plugins: `ncclEnvPlugin_v1` and `_v2` onto our trait.
//!
//! The tables have no context, so a plugin can be ready once at a time.

mod v1;
mod v2;

use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hawser_plugin::env::EnvContext;
use hawser_plugin::{Env, Error, ErrorKind, Log, Result, Subsys};

use crate::Found;
use crate::common::check;
use crate::library::Library;
use crate::logger::{self, Logger};
use crate::table;

/// An ABI version that we read.
type Version = table::Version<Plugin>;

/// Newest first: the first one that a library has is taken.
const VERSIONS: &[Version] = &[v2::VERSION, v1::VERSION];

/// The env plugin of a library, by the newest of its tables. None: it has none.
///
/// # Errors
/// Its table lacks a function.
pub fn from_library(library: &Arc<Library>) -> Option<std::result::Result<Found<dyn Env>, String>> {
    let (version, table) = table::first(VERSIONS, library)?;
    // SAFETY: the symbol's name says which version its table has.
    let plugin = unsafe { version.read_of(table, library) };
    Some(plugin.map(|plugin| {
        let adapter = Adapter {
            name: plugin.name.clone(),
            shared: Arc::new(Shared {
                plugin,
                ready: AtomicBool::new(false),
                asking: Mutex::new(()),
                _library: library.clone(),
            }),
        };
        Found { symbol: version.symbol, plugin: Arc::new(adapter) as Arc<dyn Env> }
    }))
}

/// `init` in any form. A version whose function has a form of its own implements this in its file.
trait Init: Send + Sync {
    /// Calls it with NCCL's version, the suffix of that, and the function through which a plugin writes lines
    /// to the log.
    ///
    /// # Safety
    /// The function is the plugin's, and nobody else is between `init` and `finalize`.
    unsafe fn call(&self, version: (u8, u8, u8), suffix: *const c_char, logger: Logger) -> c_int;
}

/// `finalize`.
type Finalize = unsafe extern "C" fn() -> c_int;
/// `getEnv`.
type Value = unsafe extern "C" fn(*const c_char) -> *const c_char;

/// A plugin as its table tells it.
struct Plugin {
    name: String,
    init: Box<dyn Init>,
    finalize: Finalize,
    value: Value,
}

struct Shared {
    plugin: Plugin,
    ready: AtomicBool,
    /// An answer lives until the next question for the same name: it is copied before anybody else may ask.
    asking: Mutex<()>,
    _library: Arc<Library>,
}

/// A C env plugin behind our trait.
struct Adapter {
    name: String,
    shared: Arc<Shared>,
}

impl Env for Adapter {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, version: (u8, u8, u8), log: &Log) -> Result<Box<dyn EnvContext>> {
        if self.shared.ready.swap(true, Ordering::AcqRel) {
            let text = format!("env plugin {} is in use already: it can be opened once at a time", self.name);
            return Err(Error::new(ErrorKind::InvalidUsage, text));
        }
        let logger: Logger = logger::for_plugins(log);
        let suffix = c"".as_ptr();
        // SAFETY: the functions are the plugin's, and nobody else is between init and finalize.
        let code = unsafe { self.shared.plugin.init.call(version, suffix, logger) };
        if let Err(error) = check(code, || format!("init of env plugin {}", self.name)) {
            self.shared.ready.store(false, Ordering::Release);
            return Err(error);
        }
        Ok(Box::new(Context { shared: self.shared.clone(), log: log.clone() }))
    }
}

/// A C env plugin that is ready.
struct Context {
    shared: Arc<Shared>,
    log: Log,
}

impl EnvContext for Context {
    fn value(&self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        let _asking = self.shared.asking.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the plugin is ready; the name is terminated.
        let value = unsafe { (self.shared.plugin.value)(name.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: a terminated string that lives until the next question, which the lock holds back.
        Some(unsafe { std::ffi::CStr::from_ptr(value) }.to_string_lossy().into_owned())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the plugin is ready, and this is the last call.
        let code = unsafe { (self.shared.plugin.finalize)() };
        if let Err(error) = check(code, || format!("finalize of env plugin {}", self.shared.plugin.name)) {
            self.log.info(Subsys::ENV, error.into_text());
        }
        self.shared.ready.store(false, Ordering::Release);
    }
}

//! Our trait as NCCL's tables: what [`export_nccl_tuner!`](crate::export_nccl_tuner) puts into a library.
//!
//! Rules at this edge. A tuner that panics is not asked again; NCCL gets `ncclInternalError` for that call. A
//! tuner that returns an error for a question leaves NCCL's times as they are, and NCCL gets success: it
//! would fail the collective otherwise. An error while opening goes to NCCL, which fails the communicator.

use std::ffi::{CStr, c_int, c_void};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use hawser_plugin::tuner::{
    Algorithm, Answer, Candidate, Decision, Executor, Function, Protocol, Question, TunerConfig, TunerContext,
};
use hawser_plugin::{Error, ErrorKind, Log, Result, Tuner};

use super::cost_table::ALGORITHMS;
use super::v5::{Constants, Domains};
pub use super::{v4::Table as TableV4, v5::Table as TableV5, v6::Table as TableV6};
use crate::common::guard;
use crate::logger::{self, Logger};

/// Exports a tuner for NCCL as `ncclTunerPlugin_v4`, `_v5` and `_v6`.
///
/// The expression gives an `Arc<dyn Tuner>`; it is evaluated once, when NCCL makes the first communicator
/// ready. The second argument, a `&'static CStr`, is the name that NCCL logs; without it that is the
/// package's name.
///
/// Use it in a `cdylib` of its own, once: the symbols end up in every library that links the crate.
///
/// ```
/// use std::sync::Arc;
/// use hawser_plugin::tuner::{Answer, Candidate, Question, TunerConfig, TunerContext};
/// use hawser_plugin::{Result, Tuner};
///
/// struct Quick;
///
/// impl Tuner for Quick {
///     fn name(&self) -> &str {
///         "quick"
///     }
///     fn open(&self, _: &TunerConfig) -> Result<Box<dyn TunerContext>> {
///         Ok(Box::new(Quick))
///     }
/// }
///
/// impl TunerContext for Quick {
///     fn tune(&self, _: &Question, _: &mut [Candidate<'_>]) -> Result<Answer> {
///         Ok(Answer::default().with_channels(4))
///     }
/// }
///
/// hawser_compat::export_nccl_tuner!(Arc::new(Quick), c"quick");
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! export_nccl_tuner {
    ($plugin:expr) => {
        $crate::export_nccl_tuner!(
            $plugin,
            match ::std::ffi::CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_NAME"), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"unnamed",
            }
        );
    };
    ($plugin:expr, $name:expr) => {
        const _: () = {
            struct Here;

            impl $crate::tuner::export::Export for Here {
                fn exported() -> &'static $crate::tuner::export::Exported {
                    static EXPORTED: $crate::tuner::export::Exported =
                        $crate::tuner::export::Exported::new($name, || $plugin);
                    &EXPORTED
                }
            }

            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            pub static ncclTunerPlugin_v4: $crate::tuner::export::TableV4 =
                $crate::tuner::export::table_v4::<Here>($name);
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            pub static ncclTunerPlugin_v5: $crate::tuner::export::TableV5 =
                $crate::tuner::export::table_v5::<Here>($name);
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            pub static ncclTunerPlugin_v6: $crate::tuner::export::TableV6 =
                $crate::tuner::export::table_v6::<Here>($name);
        };
    };
}

/// An exported tuner: how to make it, and it once it is made.
pub struct Exported {
    name: &'static CStr,
    make: fn() -> Arc<dyn Tuner>,
    plugin: OnceLock<Arc<dyn Tuner>>,
}

impl Exported {
    /// Nothing is evaluated yet.
    pub const fn new(name: &'static CStr, make: fn() -> Arc<dyn Tuner>) -> Self {
        Self { name, make, plugin: OnceLock::new() }
    }

    fn plugin(&self) -> &Arc<dyn Tuner> {
        self.plugin.get_or_init(self.make)
    }
}

/// Ties the C functions, which get no context before `init`, to an exporting crate.
pub trait Export: 'static {
    /// The crate's only tuner.
    fn exported() -> &'static Exported;
}

/// The table for version 4.
pub const fn table_v4<E: Export>(name: &'static CStr) -> TableV4 {
    TableV4 { name: name.as_ptr(), init: Some(init_v4::<E>), tune: Some(tune), destroy: Some(finalize) }
}

/// The table for version 5.
pub const fn table_v5<E: Export>(name: &'static CStr) -> TableV5 {
    TableV5 { name: name.as_ptr(), init: Some(init::<E>), tune: Some(tune), finalize: Some(finalize) }
}

/// The table for version 6.
pub const fn table_v6<E: Export>(name: &'static CStr) -> TableV6 {
    TableV6 {
        name: name.as_ptr(),
        init: Some(init::<E>),
        tune: Some(tune),
        finalize: Some(finalize),
        chunk: Some(chunk),
    }
}

/// The object behind NCCL's `void* context`.
struct Context {
    name: &'static CStr,
    inner: Box<dyn TunerContext>,
    log: Log,
    /// It panicked: it is not asked any more.
    dead: AtomicBool,
    /// An error of a question was logged.
    said: AtomicBool,
}

/// Sets a flag if a panic passes it.
struct OnPanic<'a>(&'a AtomicBool);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

unsafe extern "C" fn init_v4<E: Export>(
    ranks: usize,
    nodes: usize,
    logger: Option<Logger>,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: NCCL's arguments.
    unsafe { open(E::exported(), context, (0, ranks, nodes), logger, None) }
}

unsafe extern "C" fn init<E: Export>(
    context: *mut *mut c_void,
    id: u64,
    ranks: usize,
    nodes: usize,
    logger: Option<Logger>,
    domains: *mut Domains,
    _constants: *mut Constants,
) -> c_int {
    // SAFETY: NCCL passes NULL or its domains.
    let domains = unsafe { domains.as_ref() };
    // SAFETY: NCCL's arguments.
    unsafe { open(E::exported(), context, (id, ranks, nodes), logger, domains) }
}

/// # Safety
/// `context` is NULL or writable.
unsafe fn open(
    exported: &'static Exported,
    context: *mut *mut c_void,
    (id, ranks, nodes): (u64, usize, usize),
    logger: Option<Logger>,
    domains: Option<&Domains>,
) -> c_int {
    let log = logger::from_host(logger);
    guard(
        exported.name,
        "init",
        || log.clone(),
        || {
            // SAFETY: this function's contract.
            let Some(context) = (unsafe { context.as_mut() }) else {
                return Err(Error::new(ErrorKind::InvalidArgument, "the place for the context is NULL"));
            };
            let number = |n: usize| {
                u32::try_from(n)
                    .map_err(|_| Error::new(ErrorKind::InvalidArgument, format!("{n} ranks or nodes")))
            };
            let mut config = TunerConfig::new(id, number(ranks)?, number(nodes)?, log.clone());
            if let Some(domains) = domains {
                config.domains =
                    (natural(domains.count), natural(domains.fewest_ranks), natural(domains.most_ranks));
            }
            let inner = exported.plugin().open(&config)?;
            let made = Context {
                name: exported.name,
                inner,
                log: log.clone(),
                dead: AtomicBool::new(false),
                said: AtomicBool::new(false),
            };
            *context = Box::into_raw(Box::new(made)).cast();
            Ok(())
        },
    )
}

unsafe extern "C" fn tune(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    pipelined: c_int,
    table: *mut *mut f32,
    rows: c_int,
    columns: c_int,
    registered: c_int,
    channels: *mut c_int,
) -> c_int {
    // SAFETY: NCCL passes what `init` gave, until `finalize`.
    let context = unsafe { context.cast::<Context>().as_ref() };
    ask(context, "getCollInfo", |context| {
        let Some(function) = function_of(function) else { return Ok(()) };
        let (rows, columns) = (natural(rows) as usize, natural(columns) as usize);
        if table.is_null() || rows == 0 || columns == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "the cost table is empty or NULL"));
        }
        let mut question = Question::new(function, bytes as u64);
        question.pipelined = natural(pipelined).max(1);
        question.registered = registered != 0;
        // SAFETY: NCCL's parameter is in truth the address of rows * columns floats, see `super::cost_table`.
        let cells = unsafe { slice::from_raw_parts_mut(table.cast::<f32>(), rows * columns) };
        let answer = tune_cells(&*context.inner, &question, cells, columns)?;
        let wanted = answer.channels.and_then(|wanted| c_int::try_from(wanted).ok());
        // SAFETY: NULL or NCCL's variable.
        if let (Some(wanted), Some(channels)) = (wanted, unsafe { channels.as_mut() }) {
            *channels = wanted;
        }
        Ok(())
    })
}

/// Shows the cells as candidates and takes over what the tuner answers: new times, -1 for what it leaves out,
/// and 0 for what it orders, by which NCCL takes it. A failing tuner changes nothing.
fn tune_cells(
    tuner: &dyn TunerContext,
    question: &Question,
    cells: &mut [f32],
    columns: usize,
) -> Result<Answer> {
    let mut candidates = Vec::with_capacity(cells.len());
    let mut places = Vec::with_capacity(cells.len());
    for (algorithm, row) in (0..ALGORITHMS as u32).zip(cells.chunks(columns)) {
        for (protocol, us) in Protocol::ALL.into_iter().zip(row) {
            let decision = Decision::new(Algorithm(algorithm), Executor::Interpreter, protocol);
            candidates.push(match *us >= 0.0 {
                true => Candidate::predicted(decision, *us),
                false => Candidate::refused(decision, "impossible for NCCL"),
            });
            places.push(algorithm as usize * columns + protocol as usize);
        }
    }
    let answer = tuner.tune(question, &mut candidates)?;
    // Only cells that NCCL can take are written.
    for (candidate, place) in candidates.iter().zip(&places) {
        let Some(cell) = cells.get_mut(*place).filter(|cell| **cell >= 0.0) else { continue };
        if !candidate.is_possible() || candidate.us < 0.0 {
            *cell = -1.0;
        } else if candidate.us.is_finite() {
            *cell = candidate.us;
        }
    }
    let ordered = answer.order.and_then(|place| cells.get_mut(*places.get(place)?));
    if let Some(cell) = ordered.filter(|cell| **cell >= 0.0) {
        *cell = 0.0;
    }
    Ok(answer)
}

unsafe extern "C" fn chunk(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    algorithm: c_int,
    protocol: c_int,
    channels: c_int,
    chunk: *mut usize,
) -> c_int {
    // SAFETY: NCCL passes what `init` gave, until `finalize`.
    let context = unsafe { context.cast::<Context>().as_ref() };
    ask(context, "getChunkSize", |context| {
        let protocol = Protocol::ALL.into_iter().find(|known| *known as c_int == protocol);
        let (Some(function), Ok(algorithm), Some(protocol)) =
            (function_of(function), u32::try_from(algorithm), protocol)
        else {
            return Ok(());
        };
        let question = Question::new(function, bytes as u64);
        let decision = Decision::new(Algorithm(algorithm), Executor::Interpreter, protocol);
        let chosen = Candidate::predicted(decision.with_channels(natural(channels)), 0.0);
        let wanted = context.inner.chunk_bytes(&question, &chosen)?;
        let wanted = wanted.and_then(|wanted| usize::try_from(wanted).ok());
        // SAFETY: NULL or NCCL's variable.
        if let (Some(wanted), Some(chunk)) = (wanted, unsafe { chunk.as_mut() }) {
            *chunk = wanted;
        }
        Ok(())
    })
}

unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    if context.is_null() {
        return 0;
    }
    // SAFETY: made by `open`; NCCL does not use it any more.
    let context = unsafe { Box::from_raw(context.cast::<Context>()) };
    let (name, log) = (context.name, context.log.clone());
    guard(
        name,
        "finalize",
        || log,
        || {
            drop(context);
            Ok(())
        },
    )
}

/// Asks a living tuner. Errors are logged once and are no errors for NCCL; a panic is one, the first time.
fn ask(context: Option<&Context>, call: &str, body: impl FnOnce(&Context) -> Result<()>) -> c_int {
    let Some(context) = context else { return ErrorKind::InvalidArgument as c_int };
    if context.dead.load(Ordering::Relaxed) {
        return 0;
    }
    guard(
        context.name,
        call,
        || context.log.clone(),
        || {
            let _dies = OnPanic(&context.dead);
            if let Err(error) = body(context)
                && !context.said.swap(true, Ordering::Relaxed)
            {
                let name = context.name.to_string_lossy();
                context.log.warn(format!("{name}: {call}: {error}; NCCL's own choice counts. Said once"));
            }
            Ok(())
        },
    )
}

/// The collectives that tuners are asked about.
fn function_of(number: c_int) -> Option<Function> {
    let index = usize::try_from(number).ok()?;
    Function::ALL.get(index).copied()
}

/// Negative numbers stand for "none" in NCCL.
fn natural(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

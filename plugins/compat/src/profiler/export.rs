//! Our trait as NCCL's tables: what [`export_nccl_profiler!`](crate::export_nccl_profiler) puts into a
//! library.
//!
//! Rules at this edge. A profiler that panics is not asked again; NCCL gets `ncclInternalError` for that
//! call. Kinds that a communicator does not want, although another one of the process does, are not passed
//! on. What NCCL leaves out is added: the rank of groups, kernel channels and proxy control. A proxy
//! operation of another process has no parent here.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use hawser_plugin::profiler::{Event, EventState, ProfilerConfig, What};
use hawser_plugin::{Error, ErrorKind, Profiler, Result};

use super::abi::{Abi, Reads, Table, address, natural};
use super::contexts::{self, Context, Contexts};
use super::kinds::comes_along;
use super::v4::{self, V4, text_of};
use super::v5::{self, V5};
use super::v6::{self, V6};
use super::v7::{self, V7};
use crate::common::guard;
use crate::logger::{self, Logger};

/// Exports a profiler for NCCL as `ncclProfiler_v4`, `_v5`, `_v6` and `_v7`.
///
/// The expression gives an `Arc<dyn Profiler>`; it is evaluated once, when NCCL makes the first communicator
/// ready. The second argument, a `&'static CStr`, is the name that NCCL logs; without it that is the
/// package's name.
///
/// Use it in a `cdylib` of its own, once: the symbols end up in every library that links the crate.
///
/// NCCL reads the mask from memory. It is written when a communicator begins or ends and when an event
/// starts, so a profiler that wants nothing at all for a while is asked again with the next communicator.
///
/// ```
/// use std::sync::Arc;
/// use hawser_plugin::profiler::{Event, EventHandle, EventMask, ProfilerConfig, ProfilerContext};
/// use hawser_plugin::{Profiler, Result};
///
/// struct Loud;
///
/// impl Profiler for Loud {
///     fn name(&self) -> &str {
///         "loud"
///     }
///     fn open(&self, _: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>> {
///         Ok(Box::new(Loud))
///     }
/// }
///
/// impl ProfilerContext for Loud {
///     fn mask(&self) -> EventMask {
///         EventMask::COLL
///     }
///     fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
///         eprintln!("{event:?}");
///         None
///     }
///     fn stop(&self, _: EventHandle) {}
/// }
///
/// hawser_compat::export_nccl_profiler!(Arc::new(Loud), c"loud");
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! export_nccl_profiler {
    ($plugin:expr) => {
        $crate::export_nccl_profiler!(
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

            impl $crate::profiler::export::Export for Here {
                fn exported() -> &'static $crate::profiler::export::Exported {
                    static EXPORTED: $crate::profiler::export::Exported =
                        $crate::profiler::export::Exported::new($name, || $plugin);
                    &EXPORTED
                }
            }

            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            pub static ncclProfiler_v4: $crate::profiler::export::TableV4 =
                $crate::profiler::export::table_v4::<Here>($name);
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            pub static ncclProfiler_v5: $crate::profiler::export::TableV5 =
                $crate::profiler::export::table_v5::<Here>($name);
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            pub static ncclProfiler_v6: $crate::profiler::export::TableV6 =
                $crate::profiler::export::table_v6::<Here>($name);
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            pub static ncclProfiler_v7: $crate::profiler::export::TableV7 =
                $crate::profiler::export::table_v7::<Here>($name);
        };
    };
}

/// The table of version 4.
pub type TableV4 = Table<v4::Init, v4::Descr>;
/// The table of version 5.
pub type TableV5 = Table<v5::Init, v5::Descr>;
/// The table of version 6.
pub type TableV6 = Table<v5::Init, v6::Descr>;
/// The table of version 7.
pub type TableV7 = Table<v5::Init, v7::Descr>;

/// An exported profiler: how to make it, it once it is made, and its communicators.
pub struct Exported {
    name: &'static CStr,
    make: fn() -> Arc<dyn Profiler>,
    plugin: OnceLock<Arc<dyn Profiler>>,
    contexts: Contexts,
}

impl Exported {
    /// Nothing is evaluated yet.
    pub const fn new(name: &'static CStr, make: fn() -> Arc<dyn Profiler>) -> Self {
        Self { name, make, plugin: OnceLock::new(), contexts: Contexts::new() }
    }

    fn plugin(&self) -> &Arc<dyn Profiler> {
        self.plugin.get_or_init(self.make)
    }
}

/// Ties the C functions, most of which get no context, to an exporting crate.
pub trait Export: 'static {
    /// The crate's only profiler.
    fn exported() -> &'static Exported;
}

/// The table for version 4.
pub const fn table_v4<E: Export>(name: &'static CStr) -> TableV4 {
    table::<V4, E>(name, init_v4::<E>)
}

/// The table for version 5.
pub const fn table_v5<E: Export>(name: &'static CStr) -> TableV5 {
    table::<V5, E>(name, init::<E>)
}

/// The table for version 6.
pub const fn table_v6<E: Export>(name: &'static CStr) -> TableV6 {
    table::<V6, E>(name, init::<E>)
}

/// The table for version 7.
pub const fn table_v7<E: Export>(name: &'static CStr) -> TableV7 {
    table::<V7, E>(name, init::<E>)
}

const fn table<V: Reads, E: Export>(name: &'static CStr, init: V::Init) -> Table<V::Init, V::Descr> {
    Table {
        name: name.as_ptr(),
        init: Some(init),
        start: Some(start::<V, E>),
        stop: Some(stop::<E>),
        record: Some(record::<V, E>),
        finalize: Some(finalize::<E>),
    }
}

unsafe extern "C" fn init_v4<E: Export>(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    id: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Option<Logger>,
) -> c_int {
    // SAFETY: the same arguments in another order.
    unsafe { init::<E>(context, id, mask, name, nodes, ranks, rank, logger) }
}

unsafe extern "C" fn init<E: Export>(
    context: *mut *mut c_void,
    id: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Option<Logger>,
) -> c_int {
    let exported = E::exported();
    let log = logger::from_host(logger);
    guard(
        exported.name,
        "init",
        || log.clone(),
        || {
            // SAFETY: NULL or the host's place for the context.
            let Some(context) = (unsafe { context.as_mut() }) else {
                return Err(Error::new(ErrorKind::InvalidArgument, "the place for the context is NULL"));
            };
            let mut config = ProfilerConfig::new(id, natural(ranks), natural(rank), log.clone());
            config.nodes = natural(nodes);
            // SAFETY: NULL or the communicator's name.
            config.comm_name = Some(unsafe { text_of(name) }.to_owned()).filter(|name| !name.is_empty());
            let inner = exported.plugin().open(&config)?;
            let made = Context::new(exported.name, inner, log.clone(), config.rank, mask);
            let number = exported.contexts.add(made);
            let number = number.ok_or_else(|| Error::internal("65535 communicators are open already"))?;
            *context = address(number.into());
            Ok(())
        },
    )
}

unsafe extern "C" fn start<V: Reads, E: Export>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> c_int {
    // SAFETY: NULL or the host's place for the handle.
    let Some(handle) = (unsafe { handle.as_mut() }) else { return ErrorKind::InvalidArgument as c_int };
    *handle = std::ptr::null_mut();
    // SAFETY: NULL or the host's descriptor.
    let Some(descr) = (unsafe { descr.as_ref() }) else { return ErrorKind::InvalidArgument as c_int };
    let number = context.addr() as u64;
    with::<E>(number, "startEvent", |context| {
        let resolve = |parent: *mut c_void| contexts::unpack(number, context, parent.addr() as u64);
        // SAFETY: the host filled the member of the kind.
        let event = unsafe { V::event(descr, &resolve) };
        let started = event.and_then(|event| start_event(context, event));
        if let Some(started) = started {
            *handle = address(contexts::pack(number, context, started));
        }
        E::exported().contexts.refresh(context);
    })
}

/// Completes what NCCL says, and passes it on if this communicator wants it.
fn start_event(context: &Context, mut event: Event<'_>) -> Option<hawser_plugin::profiler::EventHandle> {
    match event.what {
        What::Group | What::KernelCh { .. } | What::ProxyCtrl => event.rank = context.rank,
        What::ProxyOp { pid, .. } if pid != std::process::id() as i32 => event.parent = None,
        _ => {}
    }
    let wanted = comes_along(context.inner.mask(), event.what.kind());
    wanted.then(|| context.inner.start(&event))?
}

unsafe extern "C" fn stop<E: Export>(handle: *mut c_void) -> c_int {
    let handle = handle.addr() as u64;
    let number = contexts::number_of(handle);
    with::<E>(number, "stopEvent", |context| {
        if let Some(event) = contexts::unpack(number, context, handle) {
            context.inner.stop(event);
            contexts::over(context, handle);
        }
    })
}

unsafe extern "C" fn record<V: Reads, E: Export>(
    handle: *mut c_void,
    state: c_int,
    args: *mut c_void,
) -> c_int {
    let handle = handle.addr() as u64;
    let number = contexts::number_of(handle);
    with::<E>(number, "recordEventState", |context| {
        let event = contexts::unpack(number, context, handle);
        let (Some(event), Ok(known)) = (event, u32::try_from(state)) else { return };
        // SAFETY: NULL or the arguments of this state.
        let args = unsafe { V::state(state, args.cast::<<V as Abi>::Args>()) };
        context.inner.record(event, EventState(known), args);
    })
}

unsafe extern "C" fn finalize<E: Export>(context: *mut c_void) -> c_int {
    let exported = E::exported();
    let Some(context) = exported.contexts.remove(context.addr() as u64) else { return 0 };
    let log = context.log.clone();
    guard(
        exported.name,
        "finalize",
        || log,
        || {
            drop(context);
            Ok(())
        },
    )
}

/// Runs something in a communicator that is open and has not panicked; otherwise there is nothing to do.
fn with<E: Export>(number: u64, call: &str, body: impl FnOnce(&Context)) -> c_int {
    let Some(context) = E::exported().contexts.find(number) else { return 0 };
    if context.dead.load(Ordering::Relaxed) {
        return 0;
    }
    let run = || -> Result<()> {
        let _dies = OnPanic(&context.dead);
        body(&context);
        Ok(())
    };
    let code = guard(context.name, call, || context.log.clone(), run);
    // Possibly the last reference: a profiler that panics when it is dropped must not take the host along.
    let log = context.log.clone();
    let dropped = guard(
        E::exported().name,
        "finalize",
        || log,
        move || {
            drop(context);
            Ok(())
        },
    );
    if code == 0 { dropped } else { code }
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

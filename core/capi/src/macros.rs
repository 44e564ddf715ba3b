//! The form in which exported functions are declared, and the guard between it and C.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hawser_base::log::{self, Subsys, set_last_error};
use hawser_base::{env, nvtx};
use hawser_runtime::{Error, ErrorKind, Result};

use crate::types::result;

/// Declares exported functions: each is a private function that gets two names.
///
/// `fn ncclX / pncclX(args) { … }` has a body of type `Result<()>` and returns an `ncclResult_t`.
/// `fn ncclX / pncclX(args) -> T, else fallback { … }` has a body of type `Result<T>` and returns
/// `fallback` after an error, whose text is kept for `ncclGetLastError`.
macro_rules! nccl_api {
    ($($(#[doc = $doc:literal])* fn $name:ident / $twin:ident($($arg:ident: $type:ty),* $(,)?)
        $(-> $value:ty, else $fallback:expr,)? $body:block)*) => {$(
        $(#[doc = $doc])*
        #[allow(non_snake_case, clippy::too_many_arguments)] // parameters are NCCL's
        extern "C" fn $twin($($arg: $type),*) -> nccl_api!(@type $($value)?) {
            let run = move || -> hawser_runtime::Result<nccl_api!(@result $($value)?)> {
                $crate::macros::trace(stringify!($name), || {
                    $crate::macros::arguments(&[$((stringify!($arg), &$arg)),*])
                });
                $body
            };
            nccl_api!(@guard stringify!($name), run $(, $value, $fallback)?)
        }

        nccl_names! { $name / $twin($($arg: $type),*) -> nccl_api!(@type $($value)?) }
    )*};
    (@type) => { std::ffi::c_int };
    (@type $value:ty) => { $value };
    (@result) => { () };
    (@result $value:ty) => { $value };
    (@guard $name:expr, $run:ident) => { $crate::macros::guard($name, $run) };
    (@guard $name:expr, $run:ident, $value:ty, $fallback:expr) => {
        $crate::macros::guard_value($name, $fallback, $run)
    };
}

/// Gives a function its two names, as NVIDIA's library has them: `pncclX`, and at the same address `ncclX`,
/// which is weak, so that a program or a tool may have a function of that name.
///
/// Rust has no weak names, so both are made in assembly; a list of exported names (`build.rs`) tells the
/// linker of them. An argument on the stack stays where it is: the jump changes no register.
#[cfg(weak_names)]
macro_rules! nccl_names {
    ($name:ident / $twin:ident($($arg:ident: $type:ty),*) -> $value:ty) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.", stringify!($twin), ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl ", stringify!($twin)),
            concat!(".weak ", stringify!($name)),
            concat!(".type ", stringify!($twin), ",@function"),
            concat!(".type ", stringify!($name), ",@function"),
            concat!(stringify!($twin), ":"),
            concat!(stringify!($name), ":"),
            "jmp {entry}",
            concat!(".size ", stringify!($twin), ", . - ", stringify!($twin)),
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
            entry = sym $twin,
        );
    };
}

/// Gives a function its two names. Other linkers than rustc's own take no second list of exported names, so
/// both are strong there.
#[cfg(not(weak_names))]
macro_rules! nccl_names {
    ($name:ident / $twin:ident($($arg:ident: $type:ty),*) -> $value:ty) => {
        const _: () = {
            /// # Safety
            /// Pointers are NULL or what NCCL's documentation of the function asks for.
            #[allow(non_snake_case, clippy::too_many_arguments)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $value {
                self::$twin($($arg),*)
            }

            /// # Safety
            /// As its twin without the `p`.
            #[allow(non_snake_case, clippy::too_many_arguments)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $twin($($arg: $type),*) -> $value {
                self::$twin($($arg),*)
            }
        };
    };
}

/// Declares exported functions of our own, which have one name: `fn hawserX(args) { … }` has a body of type
/// `Result<()>` and returns an `ncclResult_t`.
macro_rules! hawser_api {
    ($($(#[doc = $doc:literal])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[doc = $doc])*
        ///
        /// # Safety
        /// Pointers are NULL or what `hawser.h` asks for.
        #[allow(non_snake_case, clippy::too_many_arguments)] // as NCCL's functions
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
            $crate::macros::guard(stringify!($name), move || {
                $crate::macros::trace(stringify!($name), || {
                    $crate::macros::arguments(&[$((stringify!($arg), &$arg)),*])
                });
                $body
            })
        }
    )*};
}

/// Runs a body, keeps its error for `ncclGetLastError` and gives NCCL's result code. A panic becomes
/// `ncclInternalError`.
pub fn guard(api: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
    match caught(api, body) {
        Ok(()) => result::SUCCESS,
        Err(error) => result::of(error.kind),
    }
}

/// As [`guard`] for functions that do not return a result code.
pub fn guard_value<T>(api: &'static str, fallback: T, body: impl FnOnce() -> Result<T>) -> T {
    caught(api, body).unwrap_or(fallback)
}

/// Logs a call with its arguments at `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=CALL`.
#[inline]
pub fn trace(api: &str, arguments: impl FnOnce() -> String) {
    env::settings(); // the first call of the process sets up the log
    log::info(Subsys::Call, || format!("{api}({})", arguments()));
}

/// The arguments of a call with their names, for the log.
#[cold]
pub fn arguments(args: &[(&str, &dyn std::fmt::Debug)]) -> String {
    let args: Vec<String> = args.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    args.join(", ")
}

fn caught<T>(api: &'static str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        nvtx::begin(api);
        body()
    }));
    nvtx::end();
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(kept(api, error)),
        Err(panic) => Err(kept(api, bug(&*panic))),
    }
}

/// Records an error. That runs foreign code too (locks, the log): nothing may escape from it either.
#[cold]
#[inline(never)]
fn kept(api: &'static str, error: Error) -> Error {
    match catch_unwind(AssertUnwindSafe(|| record(api, &error))) {
        Ok(()) => error,
        Err(panic) => bug(&*panic),
    }
}

/// Puts the function's name in front of the text and keeps it; and logs the error, unless the runtime has.
fn record(api: &str, error: &Error) {
    if error.kind == ErrorKind::InProgress {
        return;
    }
    let named = error.clone().in_call(api);
    if error.is_logged() { set_last_error(&named.text) } else { log::error(&named) }
}

fn bug(panic: &(dyn Any + Send)) -> Error {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error::internal(format!("a bug in Hawser stopped this call ({said})"))
        .remedy("please report it with the output of NCCL_DEBUG=INFO; abort the communicator before going on")
}

#[cfg(test)]
mod tests {
    use hawser_base::log::last_error;

    use super::*;

    /// The last error is the process's: one test at a time.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn a_panic_becomes_an_internal_error_with_a_text() {
        let _turn = TURN.lock();
        let code = guard("ncclTest", || panic!("lost {}", 42));
        assert_eq!(code, result::INTERNAL_ERROR);
        let text = last_error();
        assert!(text.starts_with("ncclTest: ") && text.contains("lost 42"), "{text}");

        assert_eq!(guard_value("ncclTest", 7, || -> Result<i32> { panic!("static text") }), 7);
        assert!(last_error().contains("static text"));
    }

    #[test]
    fn every_kind_has_its_code() {
        let _turn = TURN.lock();
        for kind in ErrorKind::ALL {
            let code = guard("ncclTest", || Err(Error::new(kind, "because")));
            assert!((1..=7).contains(&code), "{kind:?} gave {code}");
        }
        assert_eq!(
            guard("ncclTest", || Err(Error::new(ErrorKind::InProgress, "later"))),
            result::IN_PROGRESS
        );
        assert_eq!(guard("ncclTest", || Ok(())), result::SUCCESS);
    }
}

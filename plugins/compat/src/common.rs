//! Parts that all C tables share: result codes, strings, and the boundary that no panic crosses.
//!
//! Numbers that come from C are plain integers here, never Rust enums: a plugin may return anything.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hawser_plugin::{Error, ErrorKind, Log, Result, Subsys};

/// `ncclSuccess`.
pub const SUCCESS: c_int = 0;
/// Longest name that is read from a plugin.
const MAX_TEXT: usize = 4096;

/// A required entry of a table that is NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing(pub &'static str);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its {} is NULL", self.0)
    }
}

/// The entry of a table that cannot do without it.
pub fn required<F>(entry: Option<F>, name: &'static str) -> std::result::Result<F, Missing> {
    entry.ok_or(Missing(name))
}

/// Turns a result code of a plugin into a result; `what` names plugin and call.
pub fn check(code: c_int, what: impl FnOnce() -> String) -> Result<()> {
    if code == SUCCESS { Ok(()) } else { Err(failure(code, &what())) }
}

/// The error behind a code of a plugin; codes without a name occur in the field and become internal errors.
pub fn failure(code: c_int, what: &str) -> Error {
    let (kind, name) = match code {
        1 => (ErrorKind::Cuda, "ncclUnhandledCudaError"),
        2 => (ErrorKind::System, "ncclSystemError"),
        3 => (ErrorKind::Internal, "ncclInternalError"),
        4 => (ErrorKind::InvalidArgument, "ncclInvalidArgument"),
        5 => (ErrorKind::InvalidUsage, "ncclInvalidUsage"),
        6 => (ErrorKind::Remote, "ncclRemoteError"),
        7 => (ErrorKind::Internal, "ncclInProgress, which is no result of this call"),
        _ => (ErrorKind::Internal, "not a code of ncclResult_t"),
    };
    Error::new(
        kind,
        format!("{what} failed with {code} ({name}); NCCL_DEBUG=INFO shows what the plugin logged"),
    )
}

/// The code of an error for NCCL, which knows no "unsupported": asking for what a plugin lacks is the
/// caller's bug.
pub fn code(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::Unsupported => ErrorKind::Internal as c_int,
        kind => kind as c_int,
    }
}

/// A string of a plugin; None if it is NULL or empty. Bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `text` is NULL or points to a terminated string or to at least 4096 readable bytes.
pub unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller promises a terminated string or enough bytes; no more than those are looked at.
    let length = unsafe { libc::strnlen(text, MAX_TEXT) };
    // SAFETY: strnlen has just read these bytes.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    Some(String::from_utf8_lossy(bytes).into_owned()).filter(|text| !text.is_empty())
}

/// Runs a call that came from C: errors are logged and become their code, a panic becomes
/// `ncclInternalError`. That something is not offered is no warning: hosts ask to find out.
pub fn guard(who: &CStr, call: &str, log: impl FnOnce() -> Log, run: impl FnOnce() -> Result<()>) -> c_int {
    let error = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return SUCCESS,
        Ok(Err(error)) => error,
        Err(panic) => Error::internal(format!("panicked: {}", panic_text(panic.as_ref()))),
    };
    let report = || {
        let text = format!("{}: {call}: {error}", who.to_string_lossy());
        match error.kind {
            ErrorKind::Unsupported => log().info(Subsys::ALL, text),
            _ => log().warn(text),
        }
    };
    // A log that panics has nowhere to complain.
    let _ = catch_unwind(AssertUnwindSafe(report));
    code(error.kind)
}

/// The text of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_plugin::Level;
    use std::sync::{Arc, Mutex};

    #[test]
    fn codes_keep_their_kind_and_their_number() {
        let kinds = [
            ErrorKind::Cuda,
            ErrorKind::System,
            ErrorKind::Internal,
            ErrorKind::InvalidArgument,
            ErrorKind::InvalidUsage,
            ErrorKind::Remote,
        ];
        for (number, kind) in (1..).zip(kinds) {
            let error = check(number, || "isend".into()).unwrap_err();
            assert_eq!(error.kind, kind);
            assert_eq!(code(kind), number);
            assert!(error.text.starts_with(&format!("isend failed with {number} (nccl")), "{error}");
        }
        for odd in [7, 8, -1, i32::MIN, i32::MAX] {
            let error = check(odd, || "isend".into()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Internal);
            assert!(error.text.contains(&odd.to_string()), "{error}");
        }
        assert_eq!(check(0, || "isend".into()), Ok(()));
        assert_eq!(code(ErrorKind::Unsupported), 3);
    }

    #[test]
    fn strings_are_bounded() {
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { text(std::ptr::null()) }, None);
        // SAFETY: terminated strings.
        let texts = unsafe { [text(c"".as_ptr()), text(c"mlx5_0".as_ptr()), text(c"\xff".as_ptr())] };
        assert_eq!(texts, [None, Some("mlx5_0".into()), Some("\u{fffd}".into())]);
        let endless = vec![b'a'; MAX_TEXT];
        // SAFETY: that many bytes are readable.
        assert_eq!(unsafe { text(endless.as_ptr().cast()) }.map(|t| t.len()), Some(MAX_TEXT));
    }

    #[test]
    fn nothing_but_a_code_leaves_the_guard() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let keep = lines.clone();
        let log = Log::new(move |level, _, line| keep.lock().unwrap().push((level, line.to_owned())));
        let run = |body: &dyn Fn() -> Result<()>| guard(c"mine", "isend", || log.clone(), body);
        assert_eq!(run(&|| Ok(())), 0);
        assert_eq!(run(&|| Err(Error::remote("peer 3 left"))), 6);
        assert_eq!(run(&|| panic!("no {}", "way")), 3);
        assert_eq!(run(&|| Err(Error::unsupported("flight"))), 3);
        let loud = Log::new(|_, _, _| panic!("even the log"));
        assert_eq!(guard(c"mine", "isend", || loud, || Err(Error::remote("x"))), 6);
        let expected = [
            (Level::Warn, "mine: isend: peer 3 left".to_owned()),
            (Level::Warn, "mine: isend: panicked: no way".to_owned()),
            (Level::Info, "mine: isend: flight is not offered by this plugin".to_owned()),
        ];
        assert_eq!(*lines.lock().unwrap(), expected);
    }
}

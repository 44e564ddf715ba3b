//! NCCL's log callback, `void (level, subsys, file, line, format, ...)`, in both directions.
//!
//! The callback carries no context, so there is one sink per process: what C plugins say goes to the [`Log`]
//! that was set last.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong};
use std::sync::{PoisonError, RwLock};

use hawser_plugin::{Level, Log, Subsys};

/// NCCL's type of the callback.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

unsafe extern "C" {
    fn hawser_compat_set_sink(
        sink: unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char),
    );
    fn hawser_compat_logger(
        level: c_int,
        subsys: c_ulong,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
        ...
    );
}

static LOG: RwLock<Option<Log>> = RwLock::new(None);

/// The function that a C plugin gets as its logger. Its lines go to `log` from now on.
pub fn for_plugins(log: &Log) -> Logger {
    *LOG.write().unwrap_or_else(PoisonError::into_inner) = Some(log.clone());
    // SAFETY: `sink` has the signature that the C side calls.
    unsafe { hawser_compat_set_sink(sink) };
    hawser_compat_logger
}

/// A log that ends in a host's C logger; silent if the host has none.
pub fn from_host(logger: Option<Logger>) -> Log {
    let Some(logger) = logger else { return Log::silent() };
    Log::new(move |level, subsys, text| {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the host promised a printf-like function that lives as long as the plugin; the format takes
        // one string.
        unsafe {
            logger(level as c_int, subsys.0 as c_ulong, c"hawser".as_ptr(), 0, c"%s".as_ptr(), text.as_ptr());
        }
    })
}

unsafe extern "C" fn sink(
    level: c_int,
    subsys: c_ulong,
    _file: *const c_char,
    _line: c_int,
    text: *const c_char,
) {
    let level = match level {
        1 => Level::Version,
        2 => Level::Warn,
        3 => Level::Info,
        4 => Level::Abort,
        5 => Level::Trace,
        _ => return,
    };
    // SAFETY: the C side passes its own, terminated buffer.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let log = LOG.read().unwrap_or_else(PoisonError::into_inner).clone();
    let write = || log.iter().for_each(|log| log.line(level, Subsys(subsys), text.trim_end()));
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn lines_of_c_plugins_arrive_formatted() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let keep = lines.clone();
        let logger = for_plugins(&Log::new(move |level, subsys, text| {
            keep.lock().unwrap().push((level, subsys, text.to_owned()));
        }));
        // SAFETY: the arguments fit the format.
        unsafe {
            logger(3, 0x10, c"file.c".as_ptr(), 7, c"%d devices on %s\n".as_ptr(), 2 as c_int, c"lo".as_ptr())
        };
        // SAFETY: as above; an unknown level is dropped.
        unsafe { logger(99, 0, std::ptr::null(), 0, c"lost".as_ptr()) };
        from_host(Some(logger)).warn("100% of \"it\"");
        from_host(None).warn("nobody hears this");
        let lines = lines.lock().unwrap();
        assert_eq!(lines[0], (Level::Info, Subsys::NET, "2 devices on lo".to_owned()));
        assert_eq!(lines[1], (Level::Warn, Subsys::ALL, "100% of \"it\"".to_owned()));
        assert_eq!(lines.len(), 2);
    }
}

//! The signal by which a process is asked why nothing moves (`HAWSER_HANG_SIGNAL`).
//!
//! The handler only raises a flag; the thread of `hang_watch.rs` looks at it. A signal that the program
//! handles itself is left to it.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use hawser_base::log;

/// Raised by the handler.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    IS_ASKED.store(true, Ordering::Release);
}

/// Handles the signal from now on. Later calls do nothing: a process has one such signal.
pub fn listen(signal: libc::c_int) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| match handle(signal) {
        Ok(true) => {}
        Ok(false) => log::warn(&format!(
            "HAWSER_HANG_SIGNAL: the program handles signal {signal} itself, so it does not ask why nothing \
             moves; name another one"
        )),
        Err(error) => log::warn(&format!("HAWSER_HANG_SIGNAL: signal {signal} cannot be handled: {error}")),
    });
}

/// Installs the handler; false if the program has one.
fn handle(signal: libc::c_int) -> io::Result<bool> {
    // SAFETY: zeros are a disposition: the default one, with no flags and nothing blocked.
    let (mut old, mut new) = unsafe { (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed()) };
    // SAFETY: the place for the present disposition is valid, and nothing is changed.
    if unsafe { libc::sigaction(signal, std::ptr::null(), &mut old) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != libc::SIG_IGN {
        return Ok(false);
    }
    let action: &mut libc::sigaction = &mut new;
    action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler only stores to a static, which handlers may do.
    match unsafe { libc::sigaction(signal, action, std::ptr::null_mut()) } {
        0 => Ok(true),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns true once after each signal.
pub fn take() -> bool {
    IS_ASKED.load(Ordering::Relaxed) && IS_ASKED.swap(false, Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_asks_once_and_one_of_the_program_is_left_to_it() {
        let signal = libc::SIGRTMIN() + 7;
        assert!(handle(signal).unwrap());
        assert!(!handle(signal).unwrap(), "it has a handler now");
        assert!(handle(-1).is_err());
        assert!(!take());
        // SAFETY: the signal has a handler.
        unsafe { libc::raise(signal) };
        assert!(take() && !take());
    }
}

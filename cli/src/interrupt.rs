//! Ctrl-C in what takes long and leaves what is done.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// A flag that Ctrl-C sets; a second Ctrl-C ends the program.
///
/// # Errors
/// The system does not let the program listen.
pub fn flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    flag::register_conditional_default(SIGINT, Arc::clone(&stop))
        .and_then(|_| flag::register(SIGINT, Arc::clone(&stop)))
        .context("cannot listen for Ctrl-C")?;
    Ok(stop)
}

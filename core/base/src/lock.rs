//! Locks whose poison is an error: a panic of one thread makes no other thread panic.

use std::sync::{Mutex, MutexGuard};

use crate::error::{Error, Result};

/// Locks a mutex.
///
/// # Errors
/// `Internal`: a thread panicked while it held the lock, so what is in there may be half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    mutex.lock().map_err(|_| Error::internal("a lock is poisoned by an earlier panic"))
}

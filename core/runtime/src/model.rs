//! The atomics, cells and locks of the parts that loom checks: those of std, or in a model those of loom.
//!
//! Loom runs a test once for each order in which threads can take its steps, and for each value that a load
//! may see (CONTRIBUTING.md, Models). It sees only what is imported from here. The library itself is the same
//! with and without the feature `loom`.

#[cfg(not(all(test, feature = "loom")))]
pub use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64},
};

#[cfg(all(test, feature = "loom"))]
pub use loom::{
    cell::UnsafeCell,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64},
    },
};

/// A cell whose content is reached by a pointer, as that of loom is.
#[cfg(not(all(test, feature = "loom")))]
#[repr(transparent)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(test, feature = "loom")))]
impl<T> UnsafeCell<T> {
    /// Gives `look` the content to read.
    #[inline]
    pub fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
        look(self.0.get())
    }

    /// Gives `change` the content to write.
    #[inline]
    pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}

/// Tells whether this is a model.
pub const IS_MODEL: bool = cfg!(all(test, feature = "loom"));

/// Spends a moment of a loop that polls.
#[inline]
pub fn spin() {
    #[cfg(not(all(test, feature = "loom")))]
    std::hint::spin_loop();
    #[cfg(all(test, feature = "loom"))]
    loom::thread::yield_now();
}

/// Marks the place between two accesses that are SeqCst. Loom takes those for AcqRel, so its model gets the
/// fence that makes them what they are; the processor needs none.
#[inline]
pub fn sequential() {
    #[cfg(all(test, feature = "loom"))]
    loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

//! The plugin's side of the boundary: an author's object behind the raw traits. Nothing panics out of here.

mod collnet;
mod env;
mod learner;
mod net;
mod profiler;
mod tuner;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use abi_stable::std_types::{RErr, ROk, RResult};

use super::raw::RawError;
use crate::error::{Error, Result};
use crate::host::Log;

/// The state that all objects of one component share: whether one of them panicked.
#[derive(Clone, Default)]
struct Guard(Arc<GuardState>);

#[derive(Default)]
struct GuardState {
    dead: AtomicBool,
    log: Mutex<Option<Log>>,
}

impl Guard {
    /// The log for panics that have no error to come back as.
    fn log_to(&self, log: &Log) {
        *self.0.log.lock().unwrap_or_else(PoisonError::into_inner) = Some(log.clone());
    }

    /// Runs the author's code. After a panic it is never run again.
    fn run<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.0.dead.load(Ordering::Acquire) {
            return Err(Error::internal("the plugin panicked before and is not used any further"));
        }
        catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| Err(self.died(payload)))
    }

    /// [`Guard::run`] for calls that have no errors; a panic is logged.
    fn run_or<R>(&self, otherwise: R, f: impl FnOnce() -> R) -> R {
        if self.0.dead.load(Ordering::Acquire) {
            return otherwise;
        }
        catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
            let error = self.died(payload);
            let log = self.0.log.lock().unwrap_or_else(PoisonError::into_inner).clone();
            log.iter().for_each(|log| log.warn(format!("plugin: {error}; it is not used any further")));
            otherwise
        })
    }

    fn died(&self, payload: Box<dyn Any + Send>) -> Error {
        self.0.dead.store(true, Ordering::Release);
        let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
            (Some(text), _) => format!("panicked: {text}"),
            (_, Some(text)) => format!("panicked: {text}"),
            _ => "panicked".to_owned(),
        };
        std::mem::forget(payload); // its destructor is the author's code too
        Error::internal(text)
    }
}

/// An author's object behind its guard.
pub struct Shield<T> {
    /// None once it was used up.
    inner: Option<T>,
    guard: Guard,
}

impl<T> Shield<T> {
    /// The first object of a component.
    pub fn new(inner: T) -> Self {
        Self { inner: Some(inner), guard: Guard::default() }
    }

    /// An object that this one made.
    fn child<U>(&self, inner: U) -> Shield<U> {
        Shield { inner: Some(inner), guard: self.guard.clone() }
    }

    fn call<R>(&self, f: impl FnOnce(&T) -> Result<R>) -> RResult<R, RawError> {
        raw(self.guard.run(|| f(self.inner.as_ref().ok_or_else(used_up)?)))
    }

    fn call_mut<R>(&mut self, f: impl FnOnce(&mut T) -> Result<R>) -> RResult<R, RawError> {
        raw(self.guard.run(|| f(self.inner.as_mut().ok_or_else(used_up)?)))
    }

    /// A call that consumes the object.
    fn call_once<R>(&mut self, f: impl FnOnce(T) -> Result<R>) -> RResult<R, RawError> {
        raw(self.guard.run(|| f(self.inner.take().ok_or_else(used_up)?)))
    }

    /// A call without a result.
    fn tell(&self, f: impl FnOnce(&T)) {
        self.guard.run_or((), || self.inner.as_ref().map_or((), f));
    }

    /// A call that cannot fail.
    fn call_or<R>(&self, otherwise: R, f: impl FnOnce(&T) -> Option<R>) -> R {
        self.guard.run_or(None, || self.inner.as_ref().and_then(f)).unwrap_or(otherwise)
    }
}

impl<T> Drop for Shield<T> {
    fn drop(&mut self) {
        let inner = self.inner.take();
        // The author's destructor runs even after a panic, so that what it holds is given back.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(inner)));
        if let Err(payload) = dropped {
            self.guard.run_or((), || std::panic::resume_unwind(payload));
        }
    }
}

fn used_up() -> Error {
    Error::internal("called after it was used up")
}

fn raw<R>(result: Result<R>) -> RResult<R, RawError> {
    match result {
        Ok(value) => ROk(value),
        Err(error) => RErr(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }

    fn error<R>(result: RResult<R, RawError>) -> Error {
        result.map(drop).into_result().unwrap_err().into()
    }

    #[test]
    fn after_a_panic_all_objects_of_the_component_refuse() {
        let parent = Shield::new(1);
        let mut child = parent.child(2);
        let other = Shield::new(3);
        assert!(parent.call(|n| Ok(*n)).is_ok());
        assert_eq!(error(child.call_mut::<()>(|n| panic!("number {n}"))).text, "panicked: number 2");
        for refused in [error(child.call_mut(|n| Ok(*n))), error(parent.call(|n| Ok(*n)))] {
            assert!(refused.text.contains("panicked before"), "{refused}");
        }
        assert_eq!(parent.call_or(7, |n| Some(*n)), 7);
        assert!(other.call(|n| Ok(*n)).is_ok(), "components of their own are not affected");
    }

    #[test]
    fn panics_without_a_result_are_logged_once() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let keep = lines.clone();
        let shield = Shield::new(());
        shield.guard.log_to(&Log::new(move |_, _, text| keep.lock().unwrap().push(text.to_owned())));
        for _ in 0..2 {
            assert_eq!(shield.call_or(5, |()| panic!("no {}", "way")), 5);
        }
        assert_eq!(lines.lock().unwrap()[..], ["plugin: panicked: no way; it is not used any further"]);
    }

    #[test]
    fn destructors_and_payloads_may_panic() {
        let shield = Shield::new(Bomb);
        let guard = shield.guard.clone();
        drop(shield);
        assert!(guard.run(|| Ok(())).is_err());
        let text = error(Shield::new(()).call::<()>(|()| std::panic::panic_any(Bomb))).into_text();
        assert_eq!(text, "panicked");
    }

    #[test]
    fn objects_are_used_up_once() {
        let mut shield = Shield::new(4);
        assert_eq!(shield.call_once(Ok).into_result().ok(), Some(4));
        assert_eq!(error(shield.call_once(Ok)).text, "called after it was used up");
    }
}

//! The memory that an aborted communicator leaves.
//!
//! The driver frees page-locked and device memory when the GPU is through with all it has, the waits of other
//! communicators too, and meanwhile lets nobody make a stream. So that a caller can abort several that hang
//! one after the other, a thread frees what each of them had, once no copy engines wait any more.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::transport::control::Control;

/// The time that an abort waits for its memory to be freed.
const PATIENCE: Duration = Duration::from_secs(1);

/// Frees it when dropped.
#[derive(Default)]
pub struct Remains(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Remains {
    /// The memory goes first, then the words that all who use it look at.
    pub fn new(memory: impl Send + 'static, control: Arc<Control>) -> Self {
        let free = move || {
            crate::executor::copy_engine::wait_for_launches();
            drop(memory);
            // The thread that releases waits may still be looking; it must not be the one that frees.
            let begin = Instant::now();
            while Arc::strong_count(&control) > 1 && begin.elapsed() < PATIENCE {
                thread::sleep(Duration::from_micros(100));
            }
        };
        Self(Mutex::new(Some(Box::new(free))))
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        let slot = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(free) = slot.take() else { return };
        let (done, is_done) = mpsc::channel::<()>();
        let work = move || {
            free();
            drop(done);
        };
        // Where no thread can be had, the closure is dropped here, and with it the memory.
        if thread::Builder::new().name("hawser-free".into()).spawn(work).is_ok() {
            // Ends with the thread's work.
            let _ = is_done.recv_timeout(PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use hawser_device::host::HostDevice;

    use super::*;

    struct Slow(mpsc::Receiver<()>, mpsc::Sender<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
            let _ = self.1.send(());
        }
    }

    #[test]
    fn what_cannot_be_freed_yet_does_not_hold_the_caller() {
        let ((go, going), (freed, is_freed)) = (mpsc::channel(), mpsc::channel());
        let control = Arc::new(Control::new(&HostDevice::beside().unwrap()).unwrap());
        drop(Remains::new(Slow(going, freed), control.clone()));
        assert!(is_freed.try_recv().is_err());
        go.send(()).unwrap();
        is_freed.recv().unwrap();
        drop(control);
    }
}

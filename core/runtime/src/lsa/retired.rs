//! Mappings that were taken back while launches may still use them. Memory that is unmapped under a kernel is
//! an error of its whole process, so they are kept until those launches are over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hawser_device::{Device, OwnedStream};

use crate::stream_order::Order;

/// The time in which a GPU sees that a stream has nothing to wait for.
const MOMENT: Duration = Duration::from_millis(20);
/// The pause between two looks meanwhile.
const PAUSE: Duration = Duration::from_micros(100);

/// The mappings of a communicator that were taken back.
pub struct Retired {
    device: Arc<dyn Device>,
    order: Arc<Order>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// The mappings that go when a stream is idle, which was put behind all launches.
    marked: Option<(OwnedStream, Vec<Waiting>)>,
}

impl State {
    fn has_some(&self) -> bool {
        !self.waiting.is_empty() || self.marked.is_some()
    }
}

/// A mapping that this rank's collectives before a number may use.
struct Waiting {
    until: u64,
    /// The collectives had begun at the last look. Such may not be launched yet, so it waits for one more.
    is_seen: bool,
    /// Whatever keeps the memory mapped.
    _held: Box<dyn Send>,
}

impl Retired {
    /// Nothing yet. `order` knows the launches of the communicator.
    pub fn new(device: Arc<dyn Device>, order: Arc<Order>) -> Self {
        Self { device, order, state: Mutex::default() }
    }

    /// Keeps a mapping until this rank has begun so many collectives, and all launches until then are over.
    pub fn keep(&self, until: u64, held: impl Send + 'static) {
        self.state().waiting.push(Waiting { until, is_seen: until == 0, _held: Box::new(held) });
    }

    /// Frees what is over, on a rank that has begun so many collectives. True if there is more.
    pub fn free(&self, begun: u64) -> bool {
        let mut state = self.state();
        let over = self.over(&mut state, begun);
        let has_more = state.has_some();
        drop(state);
        // Unmapped when nothing is locked: that may wait for the GPU.
        drop(over);
        has_more
    }

    /// Frees what waits for no collective, if launches are over within a moment: one that finds a GPU idle
    /// has nothing mapped afterwards.
    pub fn free_soon(&self) {
        let until = Instant::now() + MOMENT;
        while self.free(0) && self.state().marked.is_some() && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }

    /// True if something is kept.
    pub fn has_some(&self) -> bool {
        self.state().has_some()
    }

    /// Takes all out: it is mapped as long as the answer lives.
    pub fn take(&self) -> impl Send + use<> {
        std::mem::take(&mut *self.state())
    }

    /// Takes out what is over, and begins to look for the end of the launches that the rest waits for.
    fn over(&self, state: &mut State, begun: u64) -> Vec<Waiting> {
        if let Some((stream, _)) = &state.marked
            && !self.is_idle(stream)
        {
            return Vec::new();
        }
        let mut over = state.marked.take().map_or_else(Vec::new, |(_, over)| over);
        let has_begun = |waiting: &mut Waiting| waiting.until <= begun;
        let is_ready =
            |waiting: &mut Waiting| has_begun(waiting) && std::mem::replace(&mut waiting.is_seen, true);
        let ready: Vec<Waiting> = state.waiting.extract_if(.., is_ready).collect();
        if ready.is_empty() {
            return over;
        }
        match self.order.end(&*self.device) {
            Ok(Some(stream)) if !self.is_idle(&stream) => state.marked = Some((stream, ready)),
            Ok(_) => over.extend(ready),
            Err(_) => state.waiting.extend(ready),
        }
        over
    }

    /// False also if the driver does not answer: then nothing is unmapped before the communicator ends.
    fn is_idle(&self, stream: &OwnedStream) -> bool {
        self.device.is_idle(stream.stream).unwrap_or(false)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use hawser_device::Stream;
    use hawser_device::cuda::fake::{fake, set_busy, with_fake_driver};

    use super::*;

    struct Counted(Arc<AtomicU32>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_launches_use_is_kept_until_they_are_over() {
        with_fake_driver(module_path!(), "what_launches_use_is_kept_until_they_are_over", &[], || {
            let device = hawser_device::cuda::open(0).unwrap();
            let word = device.alloc(4).unwrap();
            let order = Arc::new(Order::new(word.addr, false));
            let (retired, gone) = (Retired::new(device.clone(), order.clone()), Arc::new(AtomicU32::new(0)));
            let keep = |until| retired.keep(until, Counted(gone.clone()));
            let is_gone = |count| gone.load(Ordering::Relaxed) == count;
            let live = fake("fake_live");
            keep(0);
            assert!(!retired.free(0) && is_gone(1), "nothing was launched");
            order.put(&*device, Stream(1), 1, |_| Ok(())).unwrap();
            keep(0);
            retired.free_soon();
            assert!(!retired.has_some() && is_gone(2), "the launch is over");
            set_busy(1);
            keep(0);
            keep(8);
            assert!(retired.free(7) && retired.free(7) && is_gone(2), "the launch is not over");
            fake("fake_pass");
            assert!(retired.free(7) && is_gone(3), "the second one waits for calls that have not begun");
            assert!(retired.free(8) && is_gone(3), "they have begun, but may not be launched yet");
            assert!(retired.free(8) && is_gone(3), "they are");
            fake("fake_pass");
            assert!(!retired.free(8) && is_gone(4));
            assert_eq!(fake("fake_live"), live, "no stream is left");
        });
    }
}

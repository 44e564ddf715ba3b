//! The processors of hosts whose ranks are threads: each runs one thread at a time, until that one waits.
//!
//! A thread stays on its processor: the kernel moves threads to processors that are idle, and those of
//! threads that look and give way are not. A thread that waits gives way to the others of its processor at
//! once, in turns (`hawser_base::wait::Backoff`), so it takes nothing that others want.

use std::collections::VecDeque;

/// A thread of a host: a rank's, or a proxy's.
pub type Thread = u32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    IsReady,
    Runs,
}

/// The threads of all ranks on their processors.
#[derive(Debug)]
pub struct Processors {
    /// By thread: its processor, and what it does.
    threads: Vec<(u32, State)>,
    processors: Vec<Processor>,
}

#[derive(Debug, Clone, Default)]
struct Processor {
    is_busy: bool,
    /// The thread that had it last.
    last: Option<Thread>,
    /// The threads that want it, in the order in which they came.
    ready: VecDeque<Thread>,
}

/// A thread that has its processor now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The thread.
    pub thread: Thread,
    /// True if another one had the processor before.
    pub is_switch: bool,
}

impl Processors {
    /// Threads that all wait. `homes`: the processor of each.
    pub fn new(homes: impl IntoIterator<Item = u32>) -> Self {
        let threads: Vec<_> = homes.into_iter().map(|home| (home, State::Waits)).collect();
        let count = threads.iter().map(|(home, _)| home + 1).max().unwrap_or(0);
        Self { threads, processors: vec![Processor::default(); count as usize] }
    }

    /// A thread has something to do. Returns its turn if it has its processor at once; nothing changes for
    /// one that runs, or is waiting for the processor already.
    pub fn wake(&mut self, thread: Thread) -> Option<Turn> {
        let (home, state) = &mut self.threads[thread as usize];
        if *state != State::Waits {
            return None;
        }
        *state = State::IsReady;
        let home = *home;
        self.processors[home as usize].ready.push_back(thread);
        self.next(home)
    }

    /// A thread that runs has nothing to do any more. Returns whose turn it is.
    pub fn rest(&mut self, thread: Thread) -> Option<Turn> {
        let (home, state) = &mut self.threads[thread as usize];
        *state = State::Waits;
        let home = *home;
        self.processors[home as usize].is_busy = false;
        self.next(home)
    }

    fn next(&mut self, home: u32) -> Option<Turn> {
        let processor = &mut self.processors[home as usize];
        if processor.is_busy {
            return None;
        }
        let thread = processor.ready.pop_front()?;
        processor.is_busy = true;
        let is_switch = processor.last.replace(thread).is_some_and(|last| last != thread);
        self.threads[thread as usize].1 = State::Runs;
        Some(Turn { thread, is_switch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_processor_have_turns_and_those_of_another_do_not_wait() {
        let mut processors = Processors::new([0, 1, 0]);
        let turn = |thread, is_switch| Some(Turn { thread, is_switch });
        assert_eq!(processors.wake(0), turn(0, false));
        assert_eq!((processors.wake(2), processors.wake(0)), (None, None));
        assert_eq!(processors.wake(1), turn(1, false));
        assert_eq!(processors.rest(0), turn(2, true));
        assert_eq!((processors.rest(2), processors.wake(2)), (None, turn(2, false)));
        assert_eq!(processors.rest(1), None);
    }
}

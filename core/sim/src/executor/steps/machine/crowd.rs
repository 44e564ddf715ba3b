//! Ranks of the host device: a thread runs all blocks of its rank, and shares processors with others.

use std::collections::VecDeque;

use hawser_types::DeviceKind;

use super::{Event, Machine};
use crate::engine::Time;
use crate::executor::Scene;
use crate::executor::steps::processors::{Processors, Thread, Turn};

/// The threads of ranks and proxies.
#[derive(Debug)]
pub(super) struct Crowd {
    processors: Processors,
    /// By rank: the block of its launch that it looks at first.
    cursors: Vec<u32>,
    /// By rank: what its proxy has to do, and how long that takes.
    jobs: Vec<VecDeque<(Job, Time)>>,
}

/// The work of a proxy.
#[derive(Debug, Clone, Copy)]
pub(super) enum Job {
    /// It hands a message to the network: connection, and bytes.
    Send(u32, u32),
    /// It tells a block of a message that has come.
    Take(u32),
}

impl Crowd {
    /// The threads of a scene; None for GPUs, whose blocks all run at once.
    pub fn new(scene: Scene<'_>, device: DeviceKind) -> Option<Self> {
        let ranks = scene.members.count();
        let home = |thread: Thread| {
            let rank = scene.members.of(thread % ranks);
            scene.links.processor_of(rank, thread >= ranks)
        };
        let crowd = || Self {
            processors: Processors::new((0..2 * ranks).map(home)),
            cursors: vec![0; ranks as usize],
            jobs: vec![VecDeque::new(); ranks as usize],
        };
        (device == DeviceKind::Host).then(crowd)
    }
}

impl Machine<'_> {
    /// A rank's thread has something to do.
    pub(super) fn wake(&mut self, thread: Thread) {
        let turn = self.crowd.as_mut().and_then(|crowd| crowd.processors.wake(thread));
        self.give(turn);
    }

    /// A thread has its processor.
    fn give(&mut self, turn: Option<Turn>) {
        if let Some(Turn { thread, is_switch }) = turn {
            let after = if is_switch { self.switch } else { Time::ZERO };
            self.events.add(self.events.now() + after, Event::Turn(thread));
        }
    }

    /// A thread that has its processor goes on, or gives it away.
    pub(super) fn turn(&mut self, thread: Thread) {
        let ranks = self.scene.members.count();
        let has_work = match thread.checked_sub(ranks) {
            None => self.turn_of_rank(thread),
            Some(proxy) => self.turn_of_proxy(proxy),
        };
        if !has_work {
            let turn = self.crowd.as_mut().and_then(|crowd| crowd.processors.rest(thread));
            self.give(turn);
        }
    }

    /// The rank's thread launches its next operation, or runs the next block that need not wait, as the
    /// interpreter polls them. Returns false if there is nothing to do.
    fn turn_of_rank(&mut self, rank: u32) -> bool {
        let state = self.ranks[rank as usize];
        if state.left == 0 {
            let has_more = state.operations < self.scene.operations;
            if has_more {
                let next = self.events.now() + self.launch_of(rank);
                self.events.add(next, Event::Begin(rank));
                self.cursor(rank, 0);
            }
            return has_more;
        }
        let blocks = self.blocks_of_launch(rank);
        let (first, count) = (blocks.start, blocks.len() as u32);
        let at = self.crowd.as_ref().map_or(0, |crowd| crowd.cursors[rank as usize]);
        let next = (0..count).map(|k| (at + k) % count).find(|place| self.can_run(first + place));
        if let Some(place) = next {
            self.cursor(rank, place);
            self.start(first + place);
        }
        next.is_some()
    }

    fn cursor(&mut self, rank: u32, place: u32) {
        if let Some(crowd) = &mut self.crowd {
            crowd.cursors[rank as usize] = place;
        }
    }

    fn turn_of_proxy(&mut self, rank: u32) -> bool {
        let job = self.crowd.as_ref().and_then(|crowd| crowd.jobs[rank as usize].front());
        let Some((_, length)) = job else { return false };
        let at = self.events.now() + *length;
        self.events.add(at, Event::Handled(rank));
        true
    }

    /// Gives a rank's proxy something to do.
    pub(super) fn for_proxy(&mut self, rank: u32, job: Job, length: Time) {
        let ranks = self.scene.members.count();
        match &mut self.crowd {
            Some(crowd) => {
                crowd.jobs[rank as usize].push_back((job, length));
                self.wake(ranks + rank);
            }
            None => {
                let at = self.proxies.work(rank, self.events.now(), length);
                self.events.add(at, job.is_done());
            }
        }
    }

    /// A proxy has done what it had to do first.
    pub(super) fn handled(&mut self, rank: u32) {
        let job = self.crowd.as_mut().and_then(|crowd| crowd.jobs[rank as usize].pop_front());
        if let Some((job, _)) = job {
            self.events.add(self.events.now(), job.is_done());
        }
        self.turn(self.scene.members.count() + rank);
    }
}

impl Job {
    fn is_done(self) -> Event {
        match self {
            Self::Send(connection, bytes) => Event::Sent(connection, bytes),
            Self::Take(connection) => Event::Full(connection),
        }
    }
}

//! Second pass: an order in which all steps can run, or the deadlock.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::fault::{At, Fault, Wait};
use crate::{Program, Step};

/// Runs the FIFOs of `program` with `depth` slots each and returns the steps in an order that they allow.
pub(super) fn run(program: &Program, depth: u32) -> Result<Vec<At>, Fault> {
    let mut network = Network::new(program, depth.max(1));
    while let Some(process) = network.queue.pop_front() {
        network.queued[process] = false;
        while network.advance(process) {}
    }
    network.finish()
}

/// FIFO: (lane, sender, receiver).
type FifoKey = (u32, u32, u32);

struct Network<'a> {
    program: &'a Program,
    channels: usize,
    depth: u32,
    /// Lane of every process.
    lanes: Vec<u32>,
    /// Processes of a (rank, lane).
    users: FxHashMap<(u32, u32), Vec<usize>>,
    /// Next (step, repetition) of every process `rank * channels + channel`.
    next: Vec<(u32, u32)>,
    fifos: FxHashMap<FifoKey, u32>,
    /// Processes that may be able to go on.
    queue: VecDeque<usize>,
    queued: Vec<bool>,
    order: Vec<At>,
}

impl<'a> Network<'a> {
    fn new(program: &'a Program, depth: u32) -> Self {
        let channels = program.ranks[0].channels.len();
        let processes = program.ranks.len() * channels;
        let lanes: Vec<u32> = program
            .ranks
            .iter()
            .flat_map(|rank| (0..channels as u32).map(|channel| rank.lane(channel)))
            .collect();
        let mut users: FxHashMap<(u32, u32), Vec<usize>> = FxHashMap::default();
        for (process, &lane) in lanes.iter().enumerate() {
            users.entry(((process / channels) as u32, lane)).or_default().push(process);
        }
        Self {
            program,
            channels,
            depth,
            lanes,
            users,
            next: vec![(0, 0); processes],
            fifos: FxHashMap::default(),
            queue: (0..processes).collect(),
            queued: vec![true; processes],
            order: Vec::new(),
        }
    }

    /// Returns the place and the step of a process that has not ended.
    fn current(&self, process: usize) -> Option<(At, &'a Step)> {
        let (rank, channel) = (process / self.channels, process % self.channels);
        let (step, repetition) = self.next[process];
        let found = self.program.ranks[rank].channels[channel].steps.get(step as usize)?;
        Some((At { rank: rank as u32, channel: channel as u32, step, repetition }, found))
    }

    /// Returns the reason why a step cannot run now.
    fn obstacle(&self, at: At, step: &Step) -> Option<Wait> {
        let base = at.rank as usize * self.channels;
        let lane = self.lanes[base + at.channel as usize];
        let slots = |from, to| self.fifos.get(&(lane, from, to)).copied().unwrap_or(0);
        let dep = step.after.iter().find(|dep| self.next[base + dep.channel as usize].0 <= dep.step);
        if let Some(dep) = dep {
            return Some(Wait::Step { channel: dep.channel, step: dep.step });
        }
        if let Some(&peer) = step.recv.iter().find(|&&peer| slots(peer, at.rank) == 0) {
            return Some(Wait::Receive(peer));
        }
        step.send.iter().find(|&&peer| slots(at.rank, peer) >= self.depth).map(|&peer| Wait::Room(peer))
    }

    /// Runs the next repetition of a process if it can.
    fn advance(&mut self, process: usize) -> bool {
        let Some((at, step)) = self.current(process) else { return false };
        if self.obstacle(at, step).is_some() {
            return false;
        }
        let lane = self.lanes[process];
        for &peer in &step.recv {
            *self.fifos.entry((lane, peer, at.rank)).or_default() -= 1;
            self.wake_peer(peer, lane);
        }
        for &peer in &step.send {
            *self.fifos.entry((lane, at.rank, peer)).or_default() += 1;
            self.wake_peer(peer, lane);
        }
        self.order.push(at);
        self.next[process] =
            if at.repetition + 1 < step.times { (at.step, at.repetition + 1) } else { (at.step + 1, 0) };
        if self.next[process].1 == 0 && self.channels > 1 {
            let base = at.rank as usize * self.channels;
            (base..base + self.channels).filter(|&other| other != process).for_each(|other| self.wake(other));
        }
        true
    }

    fn wake_peer(&mut self, peer: u32, lane: u32) {
        let users = self.users.get(&(peer, lane)).cloned().unwrap_or_default();
        users.into_iter().for_each(|process| self.wake(process));
    }

    fn wake(&mut self, process: usize) {
        if !self.queued[process] {
            self.queued[process] = true;
            self.queue.push_back(process);
        }
    }

    fn finish(self) -> Result<Vec<At>, Fault> {
        let blocked = (0..self.next.len()).filter_map(|process| self.current(process));
        let waits: Vec<(At, Wait)> =
            blocked.filter_map(|(at, step)| self.obstacle(at, step).map(|wait| (at, wait))).collect();
        if !waits.is_empty() {
            return Err(Fault::Deadlock { depth: self.depth, waits });
        }
        let left = self.fifos.iter().filter(|&(_, &slots)| slots > 0).min();
        match left {
            Some((&(lane, from, to), &slots)) => Err(Fault::UnbalancedFifo { lane, from, to, slots }),
            None => Ok(self.order),
        }
    }
}

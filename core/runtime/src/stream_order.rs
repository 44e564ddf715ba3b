//! Operations of a communicator run in call order, whatever streams they are put on.
//!
//! Streams may be gone when the next operation comes, so none is looked at again. Every block of an eager
//! launch counts a word of device memory up at its end; a launch on another stream than the one before waits
//! there, by a stream memory operation, until the word has counted all blocks before it. Captured launches do
//! not count, since nobody knows how often they are replayed: within a capture streams are ordered by the
//! capture's own events. From the first capture on, an event of the communicator puts replays and eager
//! launches in the order in which the program launched them: each waits for it first and records it last. In
//! a graph the first launch waits for it, and one node that nothing waits for records it, behind the last
//! launch (`NCCL_GRAPH_MIXING_SUPPORT=0` leaves that order to the program).

use std::collections::VecDeque;
use std::sync::Mutex;

use hawser_base::error::Result;
use hawser_base::lock::lock;

use hawser_device::{Device, Event, OwnedStream, RecordNode, Stream};

/// Captures that are remembered: several may take turns, and nobody tells when one is over.
const CAPTURES: usize = 16;

/// The order of one communicator's launches on one device.
pub struct Order {
    /// Address of the word.
    done: u64,
    /// Replays are ordered as well.
    mixes_graphs: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Blocks that eager launches have had; wraps.
    blocks: u32,
    /// Stream of the latest eager launch and its identity.
    eager: Option<(Stream, u64)>,
    /// The latest captures.
    captures: VecDeque<Capture>,
    /// The event that replays and eager launches wait for and record, from the first capture on.
    event: Option<Event>,
}

impl State {
    /// True before the first launch.
    fn has_none(&self) -> bool {
        self.eager.is_none() && self.event.is_none()
    }
}

/// A capture that has launches.
struct Capture {
    id: u64,
    /// Stream of the latest launch.
    stream: Stream,
    /// The node of the graph that records the event.
    node: Option<RecordNode>,
}

/// One launch.
pub struct Turn {
    stream: Stream,
    id: u64,
    /// The capture that it is part of.
    pub capture: Option<u64>,
    /// Address of the word that it counts; 0 in a capture.
    pub done: u64,
    /// The value of the word before.
    pub before: u32,
}

impl Order {
    /// Nothing launched yet; the word at `done` is 0.
    pub fn new(done: u64, mixes_graphs: bool) -> Self {
        Self { done, mixes_graphs, state: Mutex::default() }
    }

    /// Runs `launch`, which puts that many blocks on `stream`, behind all earlier launches. It gets the
    /// address that each of the blocks must count, or 0.
    pub fn put(
        &self,
        device: &dyn Device,
        stream: Stream,
        blocks: u32,
        launch: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        let turn = self.begin(device, stream)?;
        launch(turn.done)?;
        self.finish(device, &turn, blocks)
    }

    /// Puts `stream` behind all earlier launches. What follows ends with [`Order::finish`], before the next
    /// begins.
    pub fn begin(&self, device: &dyn Device, stream: Stream) -> Result<Turn> {
        let mut state = lock(&self.state)?;
        let now = device.stream_state(stream)?;
        if let Some(capture) = now.capture {
            self.capture(&mut state, device, stream, capture)?;
            return Ok(Turn { stream, id: now.id, capture: now.capture, done: 0, before: 0 });
        }
        match (&state.event, state.eager) {
            (Some(event), _) => device.needs_graphs()?.wait_event(stream, event, false)?,
            (None, Some((_, id))) if id != now.id => self.after_eager(&state, device, stream)?,
            (None, _) => {}
        }
        Ok(Turn { stream, id: now.id, capture: None, done: self.done, before: state.blocks })
    }

    /// The launch that began so is on its stream and counts that many blocks.
    pub fn finish(&self, device: &dyn Device, turn: &Turn, blocks: u32) -> Result<()> {
        let mut state = lock(&self.state)?;
        let State { captures, event, .. } = &mut *state;
        if turn.capture.is_none() {
            state.eager = Some((turn.stream, turn.id));
            state.blocks = turn.before.wrapping_add(blocks);
            let Some(event) = &state.event else { return Ok(()) };
            return device.needs_graphs()?.record_event(turn.stream, event);
        }
        let capture = captures.iter_mut().find(|capture| Some(capture.id) == turn.capture);
        if let Some((capture, event)) = capture.zip(event.as_ref()) {
            capture.node =
                Some(device.needs_graphs()?.record_in_graph(turn.stream, event, capture.node.take())?);
        }
        Ok(())
    }

    /// True if anything was captured into a graph, so that it may be replayed.
    pub fn has_captures(&self) -> bool {
        self.state.lock().is_ok_and(|state| !state.captures.is_empty())
    }

    /// True if graphs may be replayed of which this does not know.
    pub fn has_unknown_replays(&self) -> bool {
        self.state.lock().is_ok_and(|state| !state.captures.is_empty() && state.event.is_none())
    }

    /// A stream of our own behind all launches, if there were any.
    pub fn end(&self, device: &dyn Device) -> Result<Option<OwnedStream>> {
        if lock(&self.state)?.has_none() {
            return Ok(None);
        }
        let own = device.stream()?;
        self.follow(device, own.stream)?;
        Ok(Some(own))
    }

    /// Puts a stream of our own behind all launches; false if there were none.
    pub fn follow(&self, device: &dyn Device, own: Stream) -> Result<bool> {
        let state = lock(&self.state)?;
        if state.has_none() {
            return Ok(false);
        }
        self.after_eager(&state, device, own)?;
        if let Some(event) = &state.event {
            device.needs_graphs()?.wait_event(own, event, false)?;
        }
        Ok(true)
    }

    /// Puts a stream behind the launches of its capture; the first one of a capture waits for what comes
    /// before a replay.
    fn capture(&self, state: &mut State, device: &dyn Device, stream: Stream, id: u64) -> Result<()> {
        if let Some(known) = state.captures.iter_mut().find(|known| known.id == id) {
            if known.stream != stream {
                device.order(known.stream, stream)?;
            }
            known.stream = stream;
            return Ok(());
        }
        if self.mixes_graphs {
            if state.event.is_none() {
                state.event = Some(self.event(state, device)?);
            }
            if let Some(event) = &state.event {
                device.needs_graphs()?.wait_event(stream, event, true)?;
            }
        }
        if state.captures.len() == CAPTURES {
            state.captures.pop_front();
        }
        state.captures.push_back(Capture { id, stream, node: None });
        Ok(())
    }

    /// The event, recorded behind all eager launches so far.
    fn event(&self, state: &State, device: &dyn Device) -> Result<Event> {
        let event = device.needs_graphs()?.event()?;
        if state.eager.is_some() {
            let own = device.stream()?;
            self.after_eager(state, device, own.stream)?;
            device.needs_graphs()?.record_event(own.stream, &event)?;
        }
        Ok(event)
    }

    /// Puts a stream behind all eager launches, whose streams may be gone.
    fn after_eager(&self, state: &State, device: &dyn Device, stream: Stream) -> Result<()> {
        match state.eager {
            None => Ok(()),
            Some((latest, _)) => match device.stream_words() {
                Some(words) if words.wait_value(stream, self.done, state.blocks)? => Ok(()),
                _ => device.order(latest, stream),
            },
        }
    }
}

#[cfg(test)]
mod tests;

//! Operations of a communicator run in call order, whatever streams they are put on.
//!
//! Streams may be gone when the next operation comes, so none is looked at again. Every block of an eager launch counts a
//! word of device memory up at its end; a launch on another stream than the one before waits there, by a stream memory
//! operation, until the word has counted all blocks before it. Captured launches do not count, since nobody knows how often
//! they are replayed: within a capture streams are ordered by events, between replays and other calls by the caller.

use std::sync::Mutex;

use super::live::lock;
use crate::device::{Device, OwnedStream, Stream};
use crate::error::Result;

/// The order of one communicator's launches on one device.
pub struct Order {
    /// Address of the word.
    done: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Blocks that eager launches have had; wraps.
    blocks: u32,
    /// Stream of the latest eager launch and its identity.
    eager: Option<(Stream, u64)>,
    /// Stream of the latest captured launch and its capture.
    captured: Option<(Stream, u64)>,
}

/// One launch.
pub struct Turn {
    stream: Stream,
    id: u64,
    /// Address of the word that it counts; 0 in a capture.
    pub done: u64,
    /// What the word says before.
    pub before: u32,
}

impl Order {
    /// Nothing launched yet; the word at `done` is 0.
    pub fn new(done: u64) -> Self {
        Self { done, state: Mutex::default() }
    }

    /// Runs `launch`, which puts that many blocks on `stream`, behind all earlier launches. It gets the address that each of
    /// the blocks must count, or 0.
    pub fn put(
        &self,
        device: &dyn Device,
        stream: Stream,
        blocks: u32,
        launch: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        let turn = self.begin(device, stream)?;
        launch(turn.done)?;
        self.finish(&turn, blocks)
    }

    /// Puts `stream` behind all earlier launches. What follows ends with [`Order::finish`], before the next begins.
    pub fn begin(&self, device: &dyn Device, stream: Stream) -> Result<Turn> {
        let mut state = lock(&self.state)?;
        let now = device.stream_state(stream)?;
        if let Some(capture) = now.capture {
            match state.captured {
                Some((earlier, of)) if of == capture && earlier != stream => device.order(earlier, stream)?,
                _ => {}
            }
            state.captured = Some((stream, capture));
            return Ok(Turn { stream, id: now.id, done: 0, before: 0 });
        }
        if let Some((earlier, _)) = state.eager.filter(|(_, id)| *id != now.id)
            && !device.wait_value(stream, self.done, state.blocks)?
        {
            device.order(earlier, stream)?;
        }
        Ok(Turn { stream, id: now.id, done: self.done, before: state.blocks })
    }

    /// The launch that began so is on its stream and counts that many blocks.
    pub fn finish(&self, turn: &Turn, blocks: u32) -> Result<()> {
        if turn.done != 0 {
            let mut state = lock(&self.state)?;
            state.eager = Some((turn.stream, turn.id));
            state.blocks = turn.before.wrapping_add(blocks);
        }
        Ok(())
    }

    /// A stream of our own behind all eager launches, if there were any.
    pub fn end(&self, device: &dyn Device) -> Result<Option<OwnedStream>> {
        let state = lock(&self.state)?;
        let Some((latest, _)) = state.eager else { return Ok(None) };
        let stream = device.stream()?;
        if !device.wait_value(stream.stream, self.done, state.blocks)? {
            device.order(latest, stream.stream)?;
        }
        Ok(Some(stream))
    }
}

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
        let mut state = lock(&self.state)?;
        let now = device.stream_state(stream)?;
        if let Some(capture) = now.capture {
            match state.captured {
                Some((earlier, of)) if of == capture && earlier != stream => device.order(earlier, stream)?,
                _ => {}
            }
            state.captured = Some((stream, capture));
            return launch(0);
        }
        if let Some((earlier, _)) = state.eager.filter(|(_, id)| *id != now.id)
            && !device.wait_value(stream, self.done, state.blocks)?
        {
            device.order(earlier, stream)?;
        }
        launch(self.done)?;
        state.eager = Some((stream, now.id));
        state.blocks = state.blocks.wrapping_add(blocks);
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

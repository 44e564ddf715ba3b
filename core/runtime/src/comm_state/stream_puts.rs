//! One-sided operations of GPUs that their streams carry out by themselves: a stream copies into windows that
//! are mapped here, and raises and awaits the signals of ranks that share their words. All else is a job of
//! the communicator's thread (`stream_ops.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_base::error::{Error, Result};
use hawser_base::log;

use super::CommState;
use super::put_ways::Way;
use super::stream_watch::{StreamWait, StreamWatch};
use crate::rma::{Awaited, Manner, Put, Raise, RmaOp, SignalWord, SignalWords};

/// The longest that a window which goes waits for puts on streams.
const MOST_OF_PUTS: Duration = Duration::from_secs(10);

/// A part of one-sided operations on a stream, in their order.
pub enum Part {
    /// A job of the communicator's thread.
    Job(Vec<RmaOp>),
    /// A copy into a window.
    Copy {
        /// The address that is written.
        to: u64,
        /// The address that is read.
        from: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// A number is written into the word of a signal.
    Write(SignalWord, u32),
    /// The word of a signal is counted up.
    Count(SignalWord),
    /// A wait for a word.
    Wait(StreamWait),
}

impl CommState {
    /// A window was registered: from now on signals are raised in words that the team shares, if it does so
    /// now, or by messages alone, if not all have the window mapped.
    ///
    /// # Errors
    /// A thread panicked while it raised a signal.
    pub fn share_words(&self, words: Option<SignalWords>, is_mapped: bool) -> Result<()> {
        if !is_mapped {
            self.rma.change_manner(Manner::Told)?;
        }
        let Some(words) = words else { return Ok(()) };
        // Those that the thread has still to raise or await have no numbers yet.
        let is_idle = self.stream_ops.get().is_none_or(|ops| ops.is_idle());
        self.rma.share_words(words, if is_idle { Manner::Written } else { Manner::Counted })
    }

    /// The parts of operations on a stream.
    ///
    /// # Errors
    /// As [`CommState::share_words`].
    pub fn parts(&self, ops: &[RmaOp], is_captured: bool) -> Result<Vec<Part>> {
        if is_captured && ops.iter().any(|op| self.has_words_for(op)) {
            self.rma.change_manner(Manner::Counted)?;
        }
        let mut parts = Vec::with_capacity(2 * ops.len());
        for op in ops {
            match op {
                RmaOp::Signal { peer, put, signal } => {
                    let place = put.as_ref().map(|put| self.mapped(*peer, put));
                    let raise = match place {
                        Some(None) => None,
                        Some(Some(_)) | None => self.rma.raise_on_stream(*peer, *signal)?,
                    };
                    let Some(raise) = raise else {
                        job(&mut parts, op.clone());
                        continue;
                    };
                    if let (Some(Some(to)), Some(Put { from, bytes, .. })) = (place, *put)
                        && bytes > 0
                    {
                        Way::Memory.count(bytes);
                        parts.push(Part::Copy { to, from, bytes });
                    }
                    parts.push(match raise {
                        Raise::Write(word, number) => Part::Write(word, number),
                        Raise::Count(word) => Part::Count(word),
                        Raise::Tell(_) => return Err(Error::internal("a stream cannot send messages")),
                    });
                }
                RmaOp::Wait(awaited) => self.wait_parts(awaited, &mut parts)?,
            }
        }
        Ok(parts)
    }

    /// Watches parts that a stream carries out.
    ///
    /// # Errors
    /// There is no memory or thread left.
    pub fn stream_watch(self: &Arc<Self>) -> Result<&Arc<StreamWatch>> {
        if let Some(watch) = self.stream_watch.get() {
            return Ok(watch);
        }
        if let Err(late) = self.stream_watch.set(StreamWatch::start(self)?) {
            late.close();
        }
        self.stream_watch.get().ok_or_else(|| Error::internal("no watch over signals"))
    }

    /// Waits until streams have carried out what they were given, since a window goes that they may write to.
    pub fn wait_for_streams_puts(&self) {
        let Some(watch) = self.stream_watch.get() else { return };
        let began = Instant::now();
        while watch.copies() && !self.has_ended() {
            if began.elapsed() > MOST_OF_PUTS {
                return log::warn(&format!(
                    "{} rank {}: a window goes while puts on streams are not over: wait for them first",
                    self.name, self.rank
                ));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// The signals of ranks that share their words are for the stream, all others for the thread.
    fn wait_parts(&self, awaited: &[Awaited], parts: &mut Vec<Part>) -> Result<()> {
        let mut others = Vec::new();
        for one in awaited {
            let is_written = self.rma.manner(one.peer)? == Some(Manner::Written);
            match is_written.then(|| self.rma.exposed().take_on_stream(one)).flatten() {
                Some((word, number)) => {
                    parts.push(Part::Wait(StreamWait { word, number, awaited: *one }));
                }
                None => others.push(*one),
            }
        }
        if !others.is_empty() {
            job(parts, RmaOp::Wait(others));
        }
        Ok(())
    }

    fn has_words_for(&self, op: &RmaOp) -> bool {
        let has_words = |peer: u32| self.rma.manner(peer).is_ok_and(|manner| manner.is_some());
        match op {
            RmaOp::Signal { peer, .. } => has_words(*peer),
            RmaOp::Wait(awaited) => awaited.iter().any(|one| has_words(one.peer)),
        }
    }

    /// The address of a put, if the window of the peer is mapped here.
    fn mapped(&self, peer: u32, put: &Put) -> Option<u64> {
        self.lsa.row((put.window, put.offset, put.bytes), peer).ok().flatten()
    }
}

/// Adds an operation to the job at the end, or begins one.
fn job(parts: &mut Vec<Part>, op: RmaOp) {
    match parts.last_mut() {
        Some(Part::Job(ops)) => ops.push(op),
        _ => parts.push(Part::Job(vec![op])),
    }
}

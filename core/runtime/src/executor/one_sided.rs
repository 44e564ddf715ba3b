//! One-sided operations on a GPU, in the order of all launches: copies, writes and waits of the stream where
//! both ends share memory, else a call of the host and a wait for a word. `comm_state/stream_puts.rs` says
//! which, `comm_state/stream_ops.rs` has the thread that carries out what the stream cannot.

use std::sync::{Arc, Weak};

use hawser_base::error::Result;
use hawser_device::{Device, MemoryOp, Stream, StreamWords};

use crate::comm_state::CommState;
use crate::comm_state::stream_puts::Part;
use crate::profiling::Span;
use crate::rma::RmaOp;

/// Puts operations on a stream. Their events last until they have been carried out, in a capture until they
/// are on the stream.
pub fn submit(comm: &Arc<CommState>, ops: &[RmaOp], events: Vec<Arc<Span>>, stream: Stream) -> Result<()> {
    let device = &*comm.device;
    let words = device.needs_stream_words()?;
    let turn = comm.order.begin(device, stream)?;
    let is_captured = turn.capture.is_some();
    let parts = comm.parts(ops, is_captured)?;
    let mut emission = Emission { comm, device, words, stream, is_captured, pending: Vec::new() };
    let marks = emission.begin(&parts, &events)?;
    for part in parts {
        emission.put(part, &events)?;
    }
    emission.pending.extend(marks);
    // What is captured is not counted: `stream_order.rs`.
    if !is_captured {
        emission.pending.push(MemoryOp::Write { addr: turn.done, value: turn.before.wrapping_add(1) });
    }
    emission.flush()?;
    comm.order.finish(device, &turn, 1)
}

/// Operations that are being put on a stream.
struct Emission<'a> {
    comm: &'a Arc<CommState>,
    device: &'a dyn Device,
    words: &'a dyn StreamWords,
    stream: Stream,
    is_captured: bool,
    /// Operations on words that come next.
    pending: Vec<MemoryOp>,
}

impl Emission<'_> {
    /// Has the parts of the stream watched. Answers the mark at their end. Replays are not watched: they only
    /// copy and count.
    fn begin(&mut self, parts: &[Part], events: &[Arc<Span>]) -> Result<Option<MemoryOp>> {
        let is_watched = !self.is_captured && parts.iter().any(|part| !matches!(part, Part::Job(_)));
        if !is_watched {
            return Ok(None);
        }
        let waits = parts.iter().filter_map(|part| match part {
            Part::Wait(wait) => Some(wait.clone()),
            _ => None,
        });
        let copies = parts.iter().any(|part| matches!(part, Part::Copy { .. }));
        let [begin, end] = self.comm.stream_watch()?.begin(waits.collect(), copies, events.to_vec());
        self.pending.push(begin);
        Ok(Some(end))
    }

    fn put(&mut self, part: Part, events: &[Arc<Span>]) -> Result<()> {
        match part {
            Part::Job(ops) => {
                let ops = (&*ops, events.to_vec());
                let (call, on_word) = self.comm.stream_ops()?.prepare(self.device, ops, self.is_captured)?;
                self.call(call)?;
                self.pending.extend(on_word);
            }
            Part::Copy { to, from, bytes } => {
                self.flush()?;
                self.device.copy(self.stream, to, from, bytes)?;
            }
            Part::Write(word, value) => self.pending.push(MemoryOp::Write { addr: word.addr(), value }),
            Part::Count(word) => {
                // The driver must not be the one that gives the memory of the words back.
                let (words, place) = word.apart();
                let count = move || {
                    if let Some(words) = Weak::upgrade(&words) {
                        words.at(place).count();
                    }
                };
                self.call(Box::new(count))?;
            }
            Part::Wait(wait) => {
                self.pending.push(MemoryOp::WaitFor { addr: wait.word.addr(), value: wait.number });
            }
        }
        Ok(())
    }

    fn call(&mut self, call: Box<dyn Fn() + Send + Sync>) -> Result<()> {
        self.flush()?;
        self.words.call(self.stream, call)
    }

    fn flush(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            self.words.memory_ops(self.stream, &self.pending)?;
            self.pending.clear();
        }
        Ok(())
    }
}

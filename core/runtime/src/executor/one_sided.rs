//! One-sided operations on a GPU: a call of the host and a wait for a word, in the order of all launches.
//! `comm_state/stream_ops.rs` has the thread that carries them out.

use std::sync::Arc;

use hawser_base::error::Result;
use hawser_device::{MemoryOp, Stream};

use crate::comm_state::CommState;
use crate::profiling::Span;
use crate::rma::RmaOp;

/// Puts operations on a stream. Their events last until they have been carried out, in a capture until they
/// are on the stream.
pub fn submit(comm: &Arc<CommState>, ops: &[RmaOp], events: Vec<Arc<Span>>, stream: Stream) -> Result<()> {
    let device = &*comm.device;
    let words = device.needs_stream_words()?;
    let stream_ops = comm.stream_ops()?;
    let turn = comm.order.begin(device, stream)?;
    let (call, on_word) = stream_ops.prepare(device, (ops, events), turn.capture.is_some())?;
    words.call(stream, call)?;
    words.memory_ops(stream, &on_word)?;
    // What is captured is not counted: `stream_order.rs`.
    if turn.capture.is_none() {
        let count = MemoryOp::Write { addr: turn.done, value: turn.before.wrapping_add(1) };
        words.memory_ops(stream, &[count])?;
    }
    comm.order.finish(device, &turn, 1)
}

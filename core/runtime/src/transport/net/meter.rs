//! What profilers see of a link: an event per operation and direction, and one per slot.
//!
//! A launch says how many slots it will move over a link; the proxy then reports slots as they begin and end. Launches
//! that the host does not see (replayed graphs) move slots that belong to no operation: they are not reported.

use std::collections::VecDeque;
use std::sync::Arc;

use hawser_plugin::profiler::{EventMask, EventState, StateArgs, What};

use super::link::Need;
use crate::comm::Span;

/// Operations to come on a link, and slots on their way.
#[derive(Default)]
pub struct Meter {
    ops: VecDeque<Op>,
    steps: VecDeque<(u64, Option<Arc<Span>>)>,
    /// The first slot that belongs to no operation that was expected.
    covered: u64,
}

struct Op {
    span: Option<Arc<Span>>,
    slots: u64,
    begun: u64,
}

impl Meter {
    /// The next `slots` slots belong to an operation whose event is `parent`. `done` slots have passed so far: some may
    /// be of this operation already, but no more than the `depth` of the FIFO.
    pub fn expect(
        &mut self,
        need: Need,
        slots: u64,
        slot_bytes: usize,
        (done, depth): (u64, u64),
        parent: &Arc<Span>,
    ) {
        if self.covered + depth < done {
            self.covered = done;
        }
        let early = done.saturating_sub(self.covered).min(slots);
        self.covered += slots;
        let what = What::ProxyOp {
            pid: std::process::id() as i32,
            channel: need.lane as u8,
            peer: need.peer,
            steps: slots as u32,
            chunk_bytes: slot_bytes as u32,
            is_send: need.send,
        };
        let span = parent.child(&what);
        if let Some(span) = &span {
            span.record(EventState::PROXY_OP_IN_PROGRESS, StateArgs::None);
        }
        if early < slots {
            self.ops.push_back(Op { span, slots, begun: early });
        }
    }

    /// Slot `number` is on its way.
    pub fn begin(&mut self, number: u64, send: bool) {
        let Some(op) = self.ops.front_mut() else { return };
        let step = What::ProxyStep { step: op.begun as u32 };
        let span = op.span.as_ref().and_then(|op| op.child(&step));
        if let Some(span) = &span {
            let state = if send { EventState::SEND_WAIT } else { EventState::RECV_WAIT };
            span.record(state, StateArgs::Bytes(0));
        }
        op.begun += 1;
        let is_last = op.begun == op.slots;
        self.steps.push_back((number, span));
        if is_last {
            // The last step keeps the operation's event open.
            self.ops.pop_front();
        }
    }

    /// Slot `number` has arrived where it belongs.
    pub fn end(&mut self, number: u64, bytes: usize, send: bool) {
        if self.steps.front().is_none_or(|(first, _)| *first != number) {
            return;
        }
        if let Some((_, Some(span))) = self.steps.pop_front() {
            let state = if send { EventState::SEND_WAIT } else { EventState::RECV_GPU_WAIT };
            span.record(state, StateArgs::Bytes(bytes as u64));
        }
    }

    /// Whether a slot is on its way.
    pub fn is_busy(&self) -> bool {
        !self.steps.is_empty()
    }

    /// The kinds of events that it reports.
    pub const KINDS: EventMask = EventMask(EventMask::PROXY_OP.0 | EventMask::PROXY_STEP.0);
}

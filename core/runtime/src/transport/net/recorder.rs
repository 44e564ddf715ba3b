//! The events of a link that profilers see: an event per operation and direction, and one per slot.
//!
//! A launch says how many slots it will move over a link; the proxy then reports slots as they begin and end.
//! Launches that the host does not see (replayed graphs) move slots that belong to no operation: they are not
//! reported.
//!
//! Its events start and stop in the proxy's thread, as with NCCL: plugins exist that count them per thread.

use std::collections::VecDeque;
use std::sync::Arc;

use hawser_plugin::profiler::{EventMask, EventState, StateArgs, What};

use super::end::ConnectionKey;
use super::events;
use crate::profiling::Span;

/// Operations to come on a link, and slots on their way.
#[derive(Default)]
pub struct EventRecorder {
    ops: VecDeque<Op>,
    steps: VecDeque<(u64, Option<Arc<Span>>)>,
    /// The first slot that belongs to no operation that was expected.
    covered: u64,
    /// Bytes of the slot that was received last.
    arrived: usize,
}

struct Op {
    parent: Arc<Span>,
    what: What<'static>,
    slots: u64,
    begun: u64,
    /// None: not started. Some(None): nobody wants it.
    span: Option<Option<Arc<Span>>>,
}

impl Op {
    fn start(&mut self) -> Option<&Arc<Span>> {
        let start = || {
            let span = self.parent.child(&self.what)?;
            span.record(EventState::PROXY_OP_IN_PROGRESS, StateArgs::None);
            Some(span)
        };
        self.span.get_or_insert_with(start).as_ref()
    }
}

impl EventRecorder {
    /// The next `slots` slots belong to an operation whose event is `parent`. `done` slots have passed so
    /// far: some may be of this operation already, but no more than the `depth` of the FIFO.
    pub fn expect(
        &mut self,
        key: ConnectionKey,
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
            channel: key.lane as u8,
            peer: key.peer,
            steps: slots as u32,
            chunk_bytes: slot_bytes as u32,
            is_send: key.send,
        };
        self.ops.push_back(Op { parent: parent.clone(), what, slots, begun: early, span: None });
    }

    /// Reports operations that begin, and those whose slots had all passed before they were known.
    pub fn look(&mut self) {
        while let Some(op) = self.ops.front_mut() {
            op.start();
            if op.begun < op.slots {
                break;
            }
            self.ops.pop_front();
        }
    }

    /// True if an operation is expected and none of its slots is on its way.
    pub fn is_waiting(&self) -> bool {
        self.steps.is_empty() && !self.ops.is_empty()
    }

    /// Slot `number` is about to be given to the plugin, perhaps for the second time. What the plugin's own
    /// events belong to, valid until the slot is [`sent`](Self::sent); 0 = nobody wants them.
    pub fn sending(&mut self, number: u64) -> u64 {
        if self.steps.back().is_none_or(|(last, _)| *last != number) {
            self.begin(number);
        }
        let step = self.steps.back().and_then(|(last, step)| step.as_ref().filter(|_| *last == number));
        step.filter(|step| step.wants(EventMask::NET_PLUGIN)).map_or(0, events::handle)
    }

    /// Slot `number`, which the device has filled, was given to the plugin.
    pub fn sends(&mut self, number: u64, bytes: usize) {
        if let Some((_, Some(step))) = self.steps.back().filter(|(last, _)| *last == number) {
            step.record(EventState::SEND_GPU_WAIT, StateArgs::Bytes(0));
            step.record(EventState::SEND_PEER_WAIT, StateArgs::Bytes(0));
            step.record(EventState::SEND_WAIT, StateArgs::Bytes(bytes as u64));
        }
    }

    /// The plugin is done with slot `number`.
    pub fn sent(&mut self, number: u64) {
        self.end(number);
    }

    /// Slot `number` is the next to receive.
    pub fn receives(&mut self, number: u64) {
        if let Some(step) = self.begin(number) {
            step.record(EventState::RECV_WAIT, StateArgs::Bytes(0));
        }
    }

    /// The data of slot `number` have come.
    pub fn received(&mut self, number: u64, bytes: usize) {
        self.arrived = bytes;
        if let Some((first, Some(step))) = self.steps.front()
            && *first == number
        {
            step.record(EventState::RECV_FLUSH_WAIT, StateArgs::Bytes(bytes as u64));
        }
    }

    /// The device may read slot `number`.
    pub fn readable(&mut self, number: u64) {
        if let Some(step) = self.end(number) {
            step.record(EventState::RECV_GPU_WAIT, StateArgs::Bytes(self.arrived as u64));
        }
    }

    fn begin(&mut self, number: u64) -> Option<Arc<Span>> {
        self.look();
        let op = self.ops.front_mut()?;
        let step = What::ProxyStep { step: op.begun as u32 };
        let span = op.start().and_then(|op| op.child(&step));
        op.begun += 1;
        let is_last = op.begun == op.slots;
        self.steps.push_back((number, span.clone()));
        if is_last {
            // The last step keeps the operation's event open.
            self.ops.pop_front();
        }
        span
    }

    /// The event of slot `number` stops when the result is dropped.
    fn end(&mut self, number: u64) -> Option<Arc<Span>> {
        if self.steps.front().is_none_or(|(first, _)| *first != number) {
            return None;
        }
        self.steps.pop_front()?.1
    }

    /// The kinds of events that it reports.
    pub const KINDS: EventMask = EventMask(EventMask::PROXY_OP.0 | EventMask::PROXY_STEP.0);
}

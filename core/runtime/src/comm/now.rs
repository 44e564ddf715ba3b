//! Calls that go to their streams at once: those that a fused kernel runs, and small batches of messages that came before, on a
//! GPU and while no profiler watches. They need no plan; alone no allocation either, and in a group
//! only its own lists.

use std::sync::{Arc, Mutex};

use hawser_plan::Call;
use hawser_plan::exchange::ExchangePlan;
use hawser_plan::p2p::Message;
use hawser_plan::world::DeviceKind;

use super::live::{Bound, Live};
use super::messages::{FEW, Kept};
use super::times::Timed;
use super::tune::Chosen;
use crate::device::{ExchangeLaunch, Stream};
use crate::error::{Error, Result};
use crate::group::Item;

/// What came of a call that wanted the short way.
pub enum Now {
    /// It is on its stream.
    Launched,
    /// It needs the long way; the number that it has already, if any.
    Later(Option<u64>),
}

/// All that a group has for a communicator, ready to be put on its stream.
pub enum Ready {
    /// One call.
    Call(ReadyCall),
    /// So many messages, and the batch that they are one of.
    Messages([Message; FEW], usize, Arc<Mutex<Kept>>, Stream),
}

/// A call that a fused kernel runs.
pub struct ReadyCall {
    bound: Arc<Bound>,
    call: Call,
    number: u64,
    launch: ExchangeLaunch,
    stream: Stream,
    timed: Option<Timed>,
}

impl ReadyCall {
    fn plan(&self) -> Option<(&ExchangePlan, &Chosen)> {
        match &*self.bound {
            Bound::Exchange(plan, chosen) => Some((plan, chosen)),
            Bound::Steps(..) => None,
        }
    }
}

impl Live {
    /// Puts a call on its stream at once, if that can be done.
    pub fn launch_now(&self, call: &Call, stream: Stream) -> Result<Now> {
        if !self.takes_calls_now(call) {
            return Ok(Now::Later(None));
        }
        let number = self.begin()?;
        match self.ready_call(call, stream, number)? {
            Some(ready) => self.put_call(ready).map(|()| Now::Launched),
            None => Ok(Now::Later(Some(number))),
        }
    }

    /// What a group has for this communicator, if that can be put on its stream at once. A call gets its number in any case.
    pub fn ready(&self, items: &mut [Item]) -> Result<Option<Ready>> {
        if let [Item::Call(call, stream, number)] = items {
            // One that has its number has tried the short way already.
            if number.is_some() || !self.takes_calls_now(call) {
                return Ok(None);
            }
            let taken = self.begin()?;
            *number = Some(taken);
            let ready = self.ready_call(call, *stream, taken)?;
            // A kernel that spins can keep the driver from loading another rank's.
            ready
                .as_ref()
                .and_then(ReadyCall::plan)
                .map_or(Ok(()), |(plan, _)| self.device.prepare(plan.kernel))?;
            return Ok(ready.map(Ready::Call));
        }
        self.ready_messages(items)
    }

    /// Puts it there.
    pub fn put_now(&self, ready: Ready) -> Result<()> {
        match ready {
            Ready::Call(call) => self.put_call(call),
            Ready::Messages(messages, count, kept, stream) => {
                self.put_messages(&kept, &messages[..count], stream)
            }
        }
    }

    fn takes_calls_now(&self, call: &Call) -> bool {
        call.count > 0 && self.fabric.exchange().is_some() && self.watch.is_idle()
    }

    fn ready_call(&self, call: &Call, stream: Stream, number: u64) -> Result<Option<ReadyCall>> {
        let (bound, timed) = self.bound(call, stream, number)?;
        let Bound::Exchange(plan, _) = &*bound else { return Ok(None) };
        let launch = self.exchange_launch(plan, call, number)?;
        Ok(Some(ReadyCall { bound, call: *call, number, launch, stream, timed }))
    }

    fn put_call(&self, ready: ReadyCall) -> Result<()> {
        let (plan, chosen) =
            ready.plan().ok_or_else(|| Error::internal("a call without its fused kernel"))?;
        self.log_call(&ready.call, &chosen.choice, plan.blocks as u8, ready.number);
        let (kernel, mut launch, stream) = (plan.kernel, ready.launch, ready.stream);
        self.order.put(&*self.device, stream, launch.blocks, |done| {
            launch.args.done = done;
            Timed::around(ready.timed, stream, || self.device.launch_exchange(kernel, &launch, stream))
        })
    }

    /// A few messages on one stream.
    fn ready_messages(&self, items: &[Item]) -> Result<Option<Ready>> {
        let is_host = self.device.caps().kind == DeviceKind::Host;
        if is_host || self.net.is_some() || !self.watch.is_idle() || items.len() > FEW {
            return Ok(None);
        }
        let (mut messages, mut on) = ([Message::default(); FEW], None);
        for (item, to) in items.iter().zip(&mut messages) {
            match item {
                Item::Message(message, stream) if *on.get_or_insert(*stream) == *stream => *to = *message,
                _ => return Ok(None),
            }
        }
        let Some(stream) = on else { return Ok(None) };
        let kept = self.kept_messages(&messages[..items.len()])?;
        Ok(kept.map(|kept| Ready::Messages(messages, items.len(), kept, stream)))
    }
}

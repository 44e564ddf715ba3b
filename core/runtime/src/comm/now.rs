//! Calls that go to their streams at once: those that a fused kernel runs, and small batches of messages that came before, on a
//! GPU and while no profiler watches. They need no plan; alone no allocation either, and in a group
//! only its own lists.

use std::sync::{Arc, Mutex};

use hawser_plan::Call;
use hawser_plan::p2p::Message;
use hawser_plan::topology::DeviceKind;

use super::op_timing::TimedOp;
use super::p2p::{FEW, Kept};
use super::state::{CommState, Compiled, exchange_launch};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::group::{self, Item};

/// What came of a call that wanted the short way.
pub enum Now {
    /// It is on its stream.
    Launched,
    /// It needs the long way; the number that it has already, if any.
    Later(Option<u64>),
}

/// All that a group has for a communicator can be put on its stream.
pub enum Ready {
    /// One call.
    Call(ReadyCall),
    /// Messages, and the batch that they are one of.
    Messages(Arc<Mutex<Kept>>),
}

/// A call that a fused kernel runs. Its arguments are made where it is launched: they are long.
pub struct ReadyCall {
    bound: Arc<Compiled>,
    number: u64,
    timed: Option<TimedOp>,
    /// See [`CommState::reach`].
    direct: u8,
}

impl CommState {
    /// Puts a call on its stream at once, if that can be done.
    pub fn launch_now(&self, call: &Call, stream: Stream) -> Result<Now> {
        if !self.takes_calls_now(call) {
            return Ok(Now::Later(None));
        }
        let number = self.begin()?;
        match self.ready_call(call, stream, number)? {
            Some(ready) => self.put_call(ready, call, stream).map(|()| Now::Launched),
            None => Ok(Now::Later(Some(number))),
        }
    }

    /// What a group has for this communicator, if that can be put on its stream at once. A call gets its number in any case.
    pub fn ready(&self, items: &mut [Item]) -> Result<Option<Ready>> {
        let [Item::Call(call, stream, number)] = items else { return self.ready_messages(items) };
        // One that has its number has tried the short way already.
        if number.is_some() || !self.takes_calls_now(call) {
            return Ok(None);
        }
        let taken = self.begin()?;
        *number = Some(taken);
        let Some(ready) = self.ready_call(call, *stream, taken)? else { return Ok(None) };
        // A kernel that spins can keep the driver from loading another rank's.
        if let Compiled::Exchange(plan, _) = &*ready.bound {
            self.device.prepare(plan.kernel)?;
        }
        Ok(Some(Ready::Call(ready)))
    }

    /// Puts it there.
    pub fn put_now(&self, ready: Ready, items: &[Item]) -> Result<()> {
        match (ready, items) {
            (Ready::Call(ready), [Item::Call(call, stream, _)]) => self.put_call(ready, call, *stream),
            (Ready::Messages(kept), [Item::Message(_, stream, _), ..]) => {
                self.put_messages(&kept, messages(items), *stream)
            }
            _ => Err(Error::internal("a group that changed on its way")),
        }
    }

    fn takes_calls_now(&self, call: &Call) -> bool {
        call.count > 0 && self.peer_memory.exchange().is_some() && self.profiling.is_idle()
    }

    fn ready_call(&self, call: &Call, stream: Stream, number: u64) -> Result<Option<ReadyCall>> {
        let (bound, timed) = self.bound(call, stream, number)?;
        let Compiled::Exchange(plan, _) = &*bound else { return Ok(None) };
        let direct = self.reach(plan, call, number)?;
        Ok(Some(ReadyCall { bound, number, timed, direct }))
    }

    fn put_call(&self, ready: ReadyCall, call: &Call, stream: Stream) -> Result<()> {
        let ReadyCall { bound, number, timed, direct } = ready;
        let Compiled::Exchange(plan, chosen) = &*bound else {
            return Err(Error::internal("a call without its fused kernel"));
        };
        self.log_call(call, &chosen.choice, plan.blocks as u8, number);
        let mut launch = exchange_launch(plan, call, number, direct);
        self.order.put(&*self.device, stream, launch.blocks, |done| {
            launch.args.done = done;
            TimedOp::around(timed, stream, || self.device.launch_exchange(plan.kernel, &launch, stream))
        })
    }

    /// A few messages on one stream.
    fn ready_messages(&self, items: &[Item]) -> Result<Option<Ready>> {
        let is_host = self.device.caps().kind == DeviceKind::Host;
        if is_host || self.net.is_some() || !self.profiling.is_idle() || items.len() > FEW {
            return Ok(None);
        }
        let Some(Item::Message(_, first, _)) = items.first() else { return Ok(None) };
        let is_alike = |item: &Item| matches!(item, Item::Message(_, stream, _) if stream == first);
        if !items.iter().all(is_alike) || !group::is_one_phase(items) {
            return Ok(None);
        }
        Ok(self.kept_messages(messages(items))?.map(Ready::Messages))
    }
}

fn messages(items: &[Item]) -> impl Iterator<Item = &Message> {
    items.iter().filter_map(|item| match item {
        Item::Message(message, ..) => Some(message),
        Item::Call(..) => None,
    })
}

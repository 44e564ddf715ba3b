//! The FIFO pair in front of a network that reduces: what the device sends to "the network" is reduced with
//! the slots of the other hosts and comes back as the slot that the device receives from it.
//!
//! One connection joins the ranks that have the same place on their hosts, for each lane. The plugin may
//! block while it joins them, so that is done by a thread of its own.

use std::collections::VecDeque;
use std::sync::mpsc::{self, TryRecvError};

use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_base::wait::Wait;
use hawser_compat::search::Candidate;
use hawser_kernels_abi::TAG_SHIFT;
use hawser_plugin::CollNet as Plugin;
use hawser_plugin::collnet::{CollNetComm, CollNetContext, CollNetListener, DataType, ReduceOp};
use hawser_plugin::net::{HANDLE_BYTES, Handle, MemoryKinds, Registration, Request};

use super::end::{Around, ConnectionKey, End};
use super::fifo::Fifo;
use crate::bootstrap::{Bootstrap, Tag};
use crate::plugin_types::data_type;
use crate::progress::stall::{NetRequest, Stopwatch};

/// A collnet plugin, opened for a communicator.
pub struct CollNet {
    /// Its name.
    pub name: String,
    context: Box<dyn CollNetContext>,
    device: u32,
    /// The reductions that it can do: see [`hawser_plan::Topology::collnet`].
    pub reduces: u64,
    /// True if it reads and writes GPU memory.
    pub reaches_gpus: bool,
}

impl CollNet {
    /// Opens the collnet that came with the chosen net. Its failure does not hurt the net.
    pub fn open(candidate: &Candidate<dyn Plugin>, comm_id: u64) -> Option<Self> {
        let plugin = &candidate.plugin;
        let opened = plugin.open(comm_id, &log::for_plugins()).map_err(Error::from);
        let found = opened.and_then(|context| Self::with(plugin.name(), context));
        let complain = |e: &Error| {
            log::info(Subsys::Net, || format!("collnet {} cannot be used: {e}", plugin.name()));
        };
        found.inspect_err(complain).ok()
    }

    fn with(name: &str, context: Box<dyn CollNetContext>) -> Result<Self> {
        if context.devices()? == 0 {
            return Err(Error::invalid_usage("it has no devices"));
        }
        let properties = context.properties(0)?;
        if !properties.memory.contains(MemoryKinds::HOST) {
            return Err(Error::invalid_usage("its device cannot read host memory"));
        }
        let mut reduces = 0;
        for dtype in DataType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
                let supported = context.supports(dtype, op)?;
                reduces |= u64::from(supported) << (5 * dtype as u64 + op as u64);
            }
        }
        let reaches_gpus = properties.memory.contains(MemoryKinds::CUDA);
        Ok(Self { name: name.to_owned(), context, device: 0, reduces, reaches_gpus })
    }
}

/// The ranks of a connection.
#[derive(Clone)]
pub struct Rail {
    /// The rank with this rank's place on each host, in the order of hosts.
    pub ranks: Vec<u32>,
    /// This rank's position among them.
    pub own: usize,
}

/// Both FIFOs of a lane, and the connection behind them.
pub struct CollLink {
    lane: u32,
    rail: Rail,
    send: Fifo,
    recv: Fifo,
    state: State,
    posted: u64,
    done: u64,
    requests: VecDeque<Request>,
    /// A flush of the slot at `done`.
    flush: Option<Request>,
    watch: Stopwatch,
}

enum State {
    /// Handles of the others are on their way.
    Gathering {
        listener: Box<dyn CollNetListener>,
        handles: Vec<Option<Handle>>,
    },
    /// A thread joins the ranks.
    Joining(mpsc::Receiver<Result<Box<dyn CollNetComm>>>),
    Open {
        comm: Box<dyn CollNetComm>,
        send: Registration,
        recv: Registration,
    },
    Closed,
}

impl CollLink {
    /// Listens, and tells the others of the rail where. May wait for the bootstrap to take messages.
    pub fn new(
        lane: u32,
        net: &CollNet,
        rail: Rail,
        (send, recv): (Fifo, Fifo),
        bootstrap: &Bootstrap,
        wait: &Wait,
    ) -> Result<Self> {
        let (handle, listener) = net.context.listen(net.device)?;
        let mut handles = vec![None; rail.ranks.len()];
        handles[rail.own] = Some(handle);
        for &peer in rail.ranks.iter().filter(|&&r| r != bootstrap.rank()) {
            bootstrap.send(peer, Tag::CollNetHandle.on_lane(lane), &handle, wait)?;
        }
        let state = State::Gathering { listener, handles };
        let (requests, watch) = (VecDeque::new(), Stopwatch::default());
        Ok(Self { lane, rail, send, recv, state, posted: 0, done: 0, requests, flush: None, watch })
    }

    /// All ranks of the connection.
    pub fn ranks(&self) -> &[u32] {
        &self.rail.ranks
    }

    /// True if everything that the device wrote has been reduced.
    pub fn is_drained(&self) -> bool {
        self.done == self.send.filled(self.posted)
    }

    fn gather(&mut self, bootstrap: &Bootstrap) -> Result<bool> {
        let State::Gathering { handles, .. } = &mut self.state else { return Ok(false) };
        for (peer, handle) in self.rail.ranks.iter().zip(handles.iter_mut()).filter(|(_, h)| h.is_none()) {
            if let Some(bytes) = bootstrap.take(*peer, Tag::CollNetHandle.on_lane(self.lane)) {
                *handle = Some(bytes.as_slice().try_into().map_err(|_| {
                    let text = format!("a collnet handle of {} bytes, expected {HANDLE_BYTES}", bytes.len());
                    Error::remote(text)
                })?);
            }
        }
        let Some(handles) = handles.iter().copied().collect::<Option<Vec<Handle>>>() else {
            return Ok(false);
        };
        let State::Gathering { listener, .. } = std::mem::replace(&mut self.state, State::Closed) else {
            return Ok(false);
        };
        let (tell, result) = mpsc::channel();
        let own = self.rail.own as u32;
        let join = move || drop(tell.send(listener.connect(&handles, own).map_err(Error::from)));
        std::thread::Builder::new()
            .name("hawser-collnet".into())
            .spawn(join)
            .map_err(|e| Error::system("starting a thread that joins a collnet", e))?;
        self.state = State::Joining(result);
        Ok(true)
    }

    /// Reduces every slot that is filled and has room to come back to.
    fn carry(&mut self, flush: bool) -> Result<bool> {
        let State::Open { comm, send, recv } = &mut self.state else { return Ok(false) };
        let mut moved = false;
        let ready = self.send.filled(self.posted).min(self.recv.receivable());
        while self.posted < ready {
            let told = self.send.told(self.posted);
            let (bytes, dtype, op) = decode(told, self.send.slot_bytes())?;
            let from = (self.send.slot_address(self.posted), *send);
            let to = (self.recv.slot_address(self.posted), *recv);
            // SAFETY: both slots lie in registered FIFOs, which the device leaves alone until the counters
            // below move.
            let request = unsafe { comm.iall_reduce(from, to, bytes / dtype.size(), dtype, op) }?;
            let Some(request) = request else { break };
            self.requests.push_back(request);
            self.posted += 1;
            moved = true;
        }
        loop {
            if let Some(request) = self.flush {
                if comm.test(request)?.is_none() {
                    break;
                }
                self.flush = None;
            } else {
                let Some(&request) = self.requests.front() else { break };
                if comm.test(request)?.is_none() {
                    break;
                }
                self.requests.pop_front();
                if flush && self.recv.in_device() {
                    let (addr, bytes) = (self.recv.slot_address(self.done), self.recv.slot_bytes());
                    // SAFETY: the slot that the finished reduction wrote, in the registered FIFO.
                    self.flush = unsafe { comm.flush(addr, bytes, *recv) }?;
                    if self.flush.is_some() {
                        continue;
                    }
                }
            }
            self.done += 1;
            self.recv.publish_tail(self.done);
            self.send.publish_credit(self.done);
            moved = true;
        }
        Ok(moved)
    }
}

impl End for CollLink {
    /// The lane and, for texts, the first of the other ranks.
    fn key(&self) -> ConnectionKey {
        let peer =
            self.rail.ranks.iter().enumerate().find(|(i, _)| *i != self.rail.own).map_or(0, |(_, r)| *r);
        ConnectionKey { lane: self.lane, peer, send: true }
    }

    fn go_on(&mut self, around: &Around<'_>) -> Result<bool> {
        match &mut self.state {
            State::Gathering { .. } => self.gather(around.bootstrap),
            State::Joining(result) => {
                let mut comm = match result.try_recv() {
                    Ok(joined) => joined?,
                    Err(TryRecvError::Empty) => return Ok(false),
                    Err(TryRecvError::Disconnected) => {
                        return Err(Error::internal("the collnet plugin panicked while it joined the ranks"));
                    }
                };
                // SAFETY: the FIFOs' memory lives until the connection is closed.
                let (send, recv) =
                    unsafe { (comm.register(&self.send.region())?, comm.register(&self.recv.region())?) };
                self.state = State::Open { comm, send, recv };
                Ok(true)
            }
            State::Open { .. } => self.carry(around.flush),
            State::Closed => Ok(false),
        }
    }

    fn asked(&self) -> Option<(NetRequest, u32)> {
        match &self.state {
            State::Joining(_) => Some((NetRequest::Connect, 1)),
            State::Open { .. } if self.flush.is_some() => Some((NetRequest::Flush, 1)),
            State::Open { .. } if !self.requests.is_empty() => {
                Some((NetRequest::Reduce, self.requests.len() as u32))
            }
            State::Gathering { .. } | State::Open { .. } | State::Closed => None,
        }
    }

    fn watch(&mut self) -> &mut Stopwatch {
        &mut self.watch
    }

    fn close(&mut self) {
        if let State::Open { comm, send, recv } = &mut self.state
            && self.requests.is_empty()
            && self.flush.is_none()
        {
            let _ = (comm.deregister(*send), comm.deregister(*recv));
        }
        self.state = State::Closed;
    }
}

/// Bytes, type and operation of a slot.
fn decode(told: u32, most: usize) -> Result<(usize, DataType, ReduceOp)> {
    let bytes = (told & ((1 << TAG_SHIFT) - 1)) as usize;
    let (dtype, op) = ((told >> TAG_SHIFT & 0xf) as i32, (told >> (TAG_SHIFT + 4)) as usize);
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];
    match (hawser_plan::DataType::from_raw(dtype), ops.get(op)) {
        (Some(dtype), Some(&op)) if bytes <= most => Ok((bytes, data_type(dtype), op)),
        _ => Err(Error::internal(format!("a slot of {most} bytes is marked {told:#x}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_kernels_abi::{DeviceOp, tag};

    #[test]
    fn tags_are_read_back() {
        let told = 4096 | tag(hawser_plan::DataType::Bfloat16, DeviceOp::Max);
        assert_eq!(decode(told, 8192).unwrap(), (4096, DataType::Bfloat16, ReduceOp::Max));
        assert!(decode(told, 4000).is_err());
        assert!(decode(0xf << TAG_SHIFT, 8192).is_err());
    }
}

//! The transfers that kernels of the user ask for (`gin/`), carried out by a thread of the communicator.
//!
//! The thread looks through the queues of all networks, and carries each descriptor out to its end before it
//! takes the next of that queue. Bytes for ranks of the load-store team go into their windows by this GPU's
//! copy engines alone, since kernels may fill the multiprocessors while they wait for them; those for all
//! others, and all signals, are messages of `rma/`, in the order of descriptors. Bytes of others that a
//! kernel wants are asked for, and their owner's thread sends them as a put.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::wait::Wait;

use super::CommState;
use super::put_ways::Way;
use crate::gin::Network;
use crate::gin::descriptor::{self, Action, Place, Source};
use crate::rma::{self, Fetch, Header, Put, RESOURCES};

/// The time after the last descriptor for which the thread looks again at once.
const BUSY: Duration = Duration::from_millis(1);
/// The time after it for which it rests shortly between two looks.
const CLOSE: Duration = Duration::from_millis(100);
/// The two lengths of rests.
const RESTS: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(200)];

/// The thread, which ends with the communicator or with its first error.
pub struct KernelNetwork {
    is_closed: Arc<AtomicBool>,
}

impl KernelNetwork {
    fn start(comm: &Arc<CommState>) -> Result<Self> {
        let is_closed = Arc::new(AtomicBool::new(false));
        let (flag, weak) = (is_closed.clone(), Arc::downgrade(comm));
        let spawned = thread::Builder::new().name("hawser-gin".into()).spawn(move || serve(&weak, &flag));
        spawned.map_err(|error| Error::system("starting a thread for the network in kernels", error))?;
        Ok(Self { is_closed })
    }

    /// Nothing that kernels ask for from now on is carried out.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }
}

fn serve(comm: &Weak<CommState>, is_closed: &AtomicBool) {
    let (mut worker, mut last) = (Worker::default(), Instant::now());
    while !is_closed.load(Ordering::Acquire) {
        let Some(comm) = comm.upgrade().filter(|comm| comm.failure().is_none()) else { return };
        match worker.look(&comm) {
            Ok(true) => last = Instant::now(),
            Ok(false) => {}
            Err(error) => {
                let name = format!("{} rank {}: a transfer of a kernel", comm.name, comm.rank);
                return comm.end_by(&comm.bootstrap.blame(error.context(name)));
            }
        }
        drop(comm);
        match last.elapsed() {
            idle if idle < BUSY => thread::yield_now(),
            idle => thread::sleep(RESTS[usize::from(idle >= CLOSE)]),
        }
    }
}

/// One queue of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Queue {
    network: u64,
    context: u32,
    peer: u32,
}

/// The memory of the thread between two looks.
#[derive(Default)]
struct Worker {
    /// The tickets of queues whose last descriptor wants bytes that have not come yet.
    wanted: BTreeMap<Queue, u64>,
    tickets: u64,
}

impl Worker {
    /// Looks once through everything. False if there was nothing to do.
    fn look(&mut self, comm: &CommState) -> Result<bool> {
        let mut has_moved = false;
        while let Some((from, fetch)) = comm.rma.exposed().take_wanted() {
            comm.answer(from, &fetch)?;
            has_moved = true;
        }
        for (number, network) in comm.lsa.networks() {
            for context in 0..network.needs().contexts {
                for peer in 0..comm.topology.size() {
                    has_moved |= self.turn(comm, &network, Queue { network: number, context, peer })?;
                }
            }
        }
        Ok(has_moved)
    }

    /// Carries the next descriptor of a queue out, if there is one.
    fn turn(&mut self, comm: &CommState, network: &Network, queue: Queue) -> Result<bool> {
        if let Some(ticket) = self.wanted.get(&queue) {
            if !comm.rma.exposed().take_got(*ticket) {
                return Ok(false);
            }
            self.wanted.remove(&queue);
        } else {
            let Some(words) = network.take(queue.context, queue.peer) else { return Ok(false) };
            let outcome = self.carry_out(comm, network, queue, &descriptor::read(&words)?);
            let is_over = outcome.map_err(|error| error.or_peer(queue.peer))?;
            if !is_over {
                return Ok(true);
            }
        }
        network.finish(queue.context, queue.peer);
        Ok(true)
    }

    /// False if the end is still to come.
    fn carry_out(
        &mut self,
        comm: &CommState,
        network: &Network,
        queue: Queue,
        action: &Action,
    ) -> Result<bool> {
        let Queue { network: number, context, peer } = queue;
        match *action {
            Action::Flush => {}
            Action::Add { to, value } => {
                comm.tell(peer, &Header::AddWord { window: to.window, offset: to.offset, value })?;
            }
            Action::Get { from, to, bytes } => return self.get(comm, network, queue, (from, to, bytes)),
            Action::Put { bytes, signal, counter } => {
                if let Some(bytes) = &bytes {
                    comm.put_for_kernel(network, peer, bytes)?;
                }
                if counter.is_some_and(|counter| !network.count(context, counter)) {
                    return Err(missing("counter", network.needs().counters, "ginCounterCount"));
                }
                if let Some(signal) = signal {
                    let signals = network.needs().signals;
                    if signal.index >= signals {
                        return Err(missing("signal", signals, "ginSignalCount"));
                    }
                    let place = context * signals + signal.index;
                    comm.tell(peer, &Header::AddSignal { network: number, place, value: signal.value })?;
                }
            }
        }
        Ok(true)
    }

    fn get(
        &mut self,
        comm: &CommState,
        network: &Network,
        queue: Queue,
        (from, to, bytes): (Place, Place, u64),
    ) -> Result<bool> {
        let here = comm.own_place(to, bytes)?;
        if let Some(there) = comm.lsa.row((from.window, from.offset, bytes), queue.peer)? {
            comm.rma.exposed().copy_for_kernel((here, there, bytes), network.bounce())?;
            return Ok(true);
        }
        self.tickets += 1;
        let (from, to) = ((from.window, from.offset), (to.window, to.offset));
        comm.tell(queue.peer, &Header::Get(Fetch { from, bytes, to, ticket: self.tickets }))?;
        self.wanted.insert(queue, self.tickets);
        Ok(false)
    }
}

fn missing(what: &str, count: u32, field: &str) -> Error {
    Error::invalid_usage(format!("a kernel names a {what} behind the last of {count}"))
        .remedy(format!("raise {field} of ncclDevCommRequirements"))
}

impl CommState {
    /// Shows the other ranks the signals and resources of a network in kernels, and serves it from now on.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn open_network(self: &Arc<Self>, number: u64, resources: rma::Window) -> Result<()> {
        let found = self.lsa.networks().into_iter().find(|(of, _)| *of == number);
        let (_, network) = found.ok_or_else(|| Error::internal("a network in kernels vanished"))?;
        self.rma.exposed().register(RESOURCES + number, resources);
        self.rma.exposed().show(number, network);
        if self.kernel_network.get().is_none()
            && let Err(second) = self.kernel_network.set(KernelNetwork::start(self)?)
        {
            second.close();
        }
        Ok(())
    }

    /// Writes into a window of a rank.
    fn put_for_kernel(
        &self,
        network: &Network,
        peer: u32,
        (source, to, bytes): &(Source, Place, u64),
    ) -> Result<()> {
        let there = self.lsa.row((to.window, to.offset, *bytes), peer)?;
        let own = self.rma.exposed();
        let place = match source {
            Source::Window(place) => place,
            Source::Value(value) => {
                let value = &value[..(*bytes as usize).min(value.len())];
                return match there {
                    Some(there) => own.copy(there, value.as_ptr() as u64, *bytes),
                    None => {
                        let to = (peer, to.window, to.offset);
                        self.rma.send_bytes(&self.bootstrap, to, value, &self.patience())
                    }
                };
            }
        };
        let from = self.own_place(*place, *bytes)?;
        let put = Put { from, bytes: *bytes, window: to.window, offset: to.offset };
        match there {
            Some(there) => {
                Way::Memory.count(*bytes);
                own.copy_for_kernel((there, from, *bytes), network.bounce())
            }
            None => self.put_to_host(peer, &put, &self.patience()),
        }
    }

    /// Sends a rank the bytes that its kernels want.
    fn answer(&self, peer: u32, fetch: &Fetch) -> Result<()> {
        let place = Place { window: fetch.from.0, offset: fetch.from.1 };
        let context = || format!("rank {peer} wants {} bytes", fetch.bytes);
        let from = self.own_place(place, fetch.bytes).map_err(|error| error.context(context()))?;
        let put = Put { from, bytes: fetch.bytes, window: fetch.to.0, offset: fetch.to.1 };
        self.put_to_host(peer, &put, &self.patience())?;
        self.tell(peer, &Header::Got(fetch.ticket))
    }

    fn own_place(&self, place: Place, bytes: u64) -> Result<u64> {
        let row = self.lsa.row((place.window, place.offset, bytes), self.rank)?;
        row.ok_or_else(|| Error::internal("this rank is not in its load-store team"))
    }

    fn tell(&self, peer: u32, header: &Header) -> Result<()> {
        self.rma.tell(&self.bootstrap, (peer, header), &self.patience())
    }

    fn patience(&self) -> Wait {
        Wait::new(self.abort.clone(), env::settings().op_timeout)
    }
}

//! The meeting of both ends of a direct transfer: rings in memory of the host that both processes map.
//!
//! Neither end knows the other's buffer when it is called. Each direction between two ranks has a ring; its
//! n-th slot is for their n-th transfer, whichever end comes first (`ring.rs`). The first end leaves its
//! **descriptor**, an address and how to map it, and goes on; the second takes it and copies. A sender gives
//! the receiver a moment to come first, since pushing is faster than pulling. Otherwise nobody waits, unless
//! one end is [`RING`] transfers ahead.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_base::env;
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::lock::lock;
use hawser_base::log::{self, Subsys};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_device::host::HostDevice;
use hawser_device::{Device, Exposed, HeapKind, Memory, SharedMemory};
use hawser_plan::executor::copy_engine::{Leg, Way};
use rustc_hash::FxHashMap;

use super::latch::Latch;
use super::ring::{RING, Ring};
use crate::bootstrap::Bootstrap;
use crate::transport::Peers;
use crate::transport::control::Control;

/// The most mappings of a peer's buffers that are kept, unless more are in use at once.
const MOST_OPENED: usize = 32;
/// The bytes of the allocation by which ranks try whether they reach each other: smaller ones share a block,
/// and IPC shares whole blocks.
const SAMPLE_BYTES: u64 = 2 << 20;
/// The time between two looks at the abort flag by a rank that is a ring ahead.
const SLICE: Duration = Duration::from_millis(20);
/// The longest that a rank which gives its buffers up waits for a piece of a copy.
const MOST_OF_A_COPY: Duration = Duration::from_secs(2);

/// The facts about a call that [`Rendezvous::meet`] needs for a leg of it.
#[derive(Clone, Copy)]
pub struct CopyRequest<'a> {
    /// True if the call is being captured into a graph.
    pub is_captured: bool,
    /// True if only senders copy.
    pub is_pushed: bool,
    /// The launch's number, which wraps.
    pub number: u32,
    /// The number of the latest launch that is known to be over.
    pub over: u32,
    /// The control block of the communicator, whose abort ends waits.
    pub control: &'a Control,
}

/// The descriptor that an end leaves for its peer.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Descriptor {
    /// 1 if the peer can use the buffer where it is; 0 if the transfer goes through staging.
    is_direct: u32,
    /// 1 if the call is being captured into a graph.
    is_captured: u32,
    /// The address of the buffer in its process.
    addr: u64,
    /// The bytes of the buffer.
    bytes: u64,
    /// The address of the allocation around the buffer.
    base: u64,
    /// The number of that allocation, which differs from those before it at the same address.
    id: u64,
    /// The handle by which other processes map the allocation.
    handle: [u8; 64],
}

/// The memory of a rank for one peer: transfers that the peer sends, and the latch of the rank's buffers.
#[repr(C)]
struct Shared {
    ring: Ring<Descriptor>,
    latch: Latch,
}

/// The address of a [`Shared`].
#[derive(Clone, Copy)]
struct SharedAt(*const Shared);

// SAFETY: it is an address of memory that threads and processes may use at the same time.
unsafe impl Send for SharedAt {}
// SAFETY: as above.
unsafe impl Sync for SharedAt {}

/// The latches of this rank's buffers and of its peers' (`latch.rs`).
#[derive(Clone)]
pub struct Latches {
    rank: u32,
    /// For each rank that may copy from and to this rank's buffers, the memory with their latch.
    own: Vec<Option<SharedAt>>,
    /// For each rank whose buffers this rank copies from and to, the memory with their latch.
    theirs: Vec<Option<SharedAt>>,
    _memory: Arc<Vec<Memory>>,
}

impl Latches {
    /// The latch of a peer's buffers.
    pub fn of(&self, peer: u32) -> Option<&Latch> {
        self.theirs.get(peer as usize)?.as_ref().map(|at| self.latch(at))
    }

    /// Gives this rank's buffers back: no peer copies from or to them from now on. Waits for copies that are
    /// under way, which is as long as a piece of a copy takes, unless their process was stopped or killed.
    pub fn shut(&self) {
        let own = self.own.iter().enumerate().filter_map(|(peer, at)| Some((peer, at.as_ref()?)));
        own.clone().for_each(|(_, at)| self.latch(at).shut());
        let begin = Instant::now();
        let is_lifted = |(_, at): &(usize, &SharedAt)| self.latch(at).is_lifted();
        while let Some((peer, _)) = own.clone().find(is_lifted) {
            if begin.elapsed() > MOST_OF_A_COPY {
                let rank = self.rank;
                return log::warn(&format!(
                    "rank {rank}: rank {peer} has been copying for {MOST_OF_A_COPY:?} from or to buffers \
                     that rank {rank} gives up: it may be stopped, and must not go on once they are freed"
                ));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn latch(&self, SharedAt(at): &SharedAt) -> &Latch {
        // SAFETY: it lives in memory that `self` keeps mapped; all of it is valid for any bytes.
        unsafe { &(**at).latch }
    }
}

/// The rings between this rank and those of its host that it can copy to and from directly.
pub struct Rendezvous {
    rank: u32,
    /// The memory shared with each rank; None for those that take no part.
    ends: Vec<Option<End>>,
    /// The handles of this rank's allocations, by base and number.
    handles: Mutex<FxHashMap<(u64, u64), [u8; 64]>>,
    abort: AbortFlag,
    /// The latches of both sides, which also keep the memory of the rings.
    latches: Latches,
}

/// The memory shared with a peer, and the peer's buffers that are mapped.
struct End {
    /// Memory in the peer's heap: the ring of what this rank sends, and the latch of the peer's buffers.
    there: SharedAt,
    /// Memory in this rank's heap: the ring of what the peer sends, and the latch of this rank's buffers.
    here: SharedAt,
    /// True if the peer is in this process.
    is_near: bool,
    opened: Mutex<Vec<Opened>>,
}

/// A peer's allocation, mapped here.
struct Opened {
    base: u64,
    id: u64,
    /// True if a graph holds the address, so that it stays mapped.
    is_captured: bool,
    /// The number of the latest launch that uses the mapping.
    used: u32,
    memory: Memory,
}

impl Rendezvous {
    /// Connects the rings of the ranks of a host; None if no peer takes part. Collective.
    pub fn connect(
        device: &dyn Device,
        bootstrap: &Bootstrap,
        peers: &Peers<'_>,
        abort: &AbortFlag,
        wait: &Wait,
    ) -> Result<Option<Self>> {
        let possible = probe(device, bootstrap, peers, wait)?;
        if !possible.iter().flatten().any(|can| *can) {
            return Ok(None);
        }
        let me = peers.rank as usize;
        let local = peers.places.iter().max().map_or(1, |place| place + 1);
        // The device of the CPU maps memory of the host, whatever runs the programs.
        let host = HostDevice::beside()?;
        let heap = host.alloc_heap(u64::from(local) * size_of::<Shared>() as u64, HeapKind::Host)?;
        let mapped = crate::transport::exchange(&host, bootstrap, peers, &heap, wait)?;
        let shared = |base: u64, place: u32| {
            SharedAt((base + u64::from(place) * size_of::<Shared>() as u64) as *const Shared)
        };
        let end = |(peer, memory): (usize, &Option<Memory>)| {
            let theirs = memory.as_ref().filter(|_| possible[me][peer] && possible[peer][me])?;
            Some(End {
                there: shared(theirs.addr, peers.places[me]),
                here: shared(heap.addr, peers.places[peer]),
                is_near: peers.processes[peer] == peers.processes[me],
                opened: Mutex::default(),
            })
        };
        let ends: Vec<Option<End>> = mapped.iter().enumerate().map(end).collect();
        log::info(Subsys::Init, || {
            let direct: Vec<String> =
                (0..ends.len()).filter(|p| ends[*p].is_some()).map(|p| p.to_string()).collect();
            format!("SM_FREE rank {me}: direct copies with ranks {}", direct.join(", "))
        });
        let mut memory: Vec<Memory> = mapped.into_iter().flatten().collect();
        memory.push(heap);
        let of = |of: fn(&End) -> SharedAt| ends.iter().map(|end| end.as_ref().map(of)).collect();
        let (own, theirs) = (of(|end| end.here), of(|end| end.there));
        let latches = Latches { rank: peers.rank, own, theirs, _memory: Arc::new(memory) };
        let (handles, abort) = (Mutex::default(), abort.clone());
        Ok(Some(Self { rank: peers.rank, ends, handles, abort, latches }))
    }

    /// The latches of this rank's buffers and of its peers'.
    pub fn latches(&self) -> &Latches {
        &self.latches
    }

    /// Meets the peer of a leg: leaves this end's descriptor, or takes the other one's, for which a sender
    /// waits until `until`. Returns how the leg's data go.
    ///
    /// # Errors
    /// The peer is a ring behind until the deadline; only one end is captured into a graph; a peer's memory
    /// cannot be mapped.
    pub fn meet(
        &self,
        device: &dyn Device,
        leg: &Leg,
        call: &CopyRequest<'_>,
        until: Instant,
    ) -> Result<Way> {
        let &CopyRequest { is_captured, is_pushed, control, .. } = call;
        let Some(end) = &self.ends[leg.peer as usize] else { return Ok(Way::Staged) };
        let own = self.descriptor(device, leg, is_captured, end.is_near)?;
        let (shared, side) = if leg.send { (end.there, 0) } else { (end.here, 1) };
        let Some(theirs) = self.exchange(shared, side, own, (leg.peer, until), control)? else {
            // What is pushed by tiles is staged if its sender comes first.
            let is_direct = own.is_direct == 1 && !(leg.send && is_pushed);
            return Ok(if is_direct { Way::First } else { Way::Staged });
        };
        if theirs.is_direct == 0 || !leg.send && is_pushed {
            return Ok(Way::Staged);
        }
        if theirs.is_captured != own.is_captured {
            let (this, that) = (self.rank, leg.peer);
            let (captures, runs) = if is_captured { (this, that) } else { (that, this) };
            return Err(Error::invalid_usage(format!(
                "rank {captures} captures a transfer into a graph that rank {runs} runs at once"
            ))
            .remedy("capture the call on both ranks, or on none"));
        }
        let addr = if end.is_near { theirs.addr } else { mapped(device, end, &theirs, leg.peer, call)? };
        Ok(Way::Second { addr, bytes: theirs.bytes })
    }

    fn descriptor(
        &self,
        device: &dyn Device,
        leg: &Leg,
        is_captured: bool,
        is_near: bool,
    ) -> Result<Descriptor> {
        let mut descriptor = Descriptor {
            is_direct: 0,
            is_captured: u32::from(is_captured),
            addr: leg.addr,
            bytes: leg.bytes,
            base: 0,
            id: 0,
            handle: [0; 64],
        };
        let Some(exposed) = device.expose(leg.addr)? else { return Ok(descriptor) };
        // A buffer that leaves its allocation is made of several.
        if leg.addr + leg.bytes > exposed.base + exposed.bytes {
            return Ok(descriptor);
        }
        if !is_near {
            // Memory that this process has itself from another one, say, has no handle.
            match self.handle(device, &exposed) {
                Ok(handle) => descriptor.handle = handle,
                Err(error) => {
                    log::info(Subsys::Coll, || {
                        format!("SM_FREE rank {}: a buffer is staged: {error}", self.rank)
                    });
                    return Ok(descriptor);
                }
            }
        }
        (descriptor.is_direct, descriptor.base, descriptor.id) = (1, exposed.base, exposed.id);
        Ok(descriptor)
    }

    fn handle(&self, device: &dyn Device, exposed: &Exposed) -> Result<[u8; 64]> {
        let key = (exposed.base, exposed.id);
        let mut handles = lock(&self.handles)?;
        if let Some(handle) = handles.get(&key) {
            return Ok(*handle);
        }
        // One allocation at an address: those before it are gone.
        handles.retain(|(base, _), _| *base != exposed.base);
        let handle = device.needs_ipc()?.exposed_handle(exposed)?;
        handles.insert(key, handle);
        Ok(handle)
    }

    /// Leaves a descriptor in a ring, or takes the other end's, if that has come before.
    fn exchange(
        &self,
        SharedAt(shared): SharedAt,
        side: usize,
        own: Descriptor,
        (peer, until): (u32, Instant),
        control: &Control,
    ) -> Result<Option<Descriptor>> {
        // SAFETY: the ring lives in memory that `self` keeps mapped; all of it is valid for any bytes.
        let ring = unsafe { &(*shared).ring };
        self.await_room(|| ring.has_room(side), peer, control)?;
        // Who sends had better come second.
        let lingers = || side == 0 && Instant::now() < until && !control.is_aborted();
        ring.come(side, own, lingers)
            .map_err(|error| error.context(format!("rank {} and rank {peer}", self.rank)).with_peer(peer))
    }

    fn await_room(&self, has_room: impl Fn() -> bool, peer: u32, control: &Control) -> Result<()> {
        if has_room() {
            return Ok(());
        }
        let what = || format!("rank {} is {RING} transfers ahead of rank {peer} and waits for it", self.rank);
        let wait = Wait::new(self.abort.clone(), env::settings().op_timeout);
        while !has_room() {
            wait.check(what).map_err(|error| error.or_peer(peer))?;
            if control.is_aborted() {
                let error = Error::new(ErrorKind::Aborted, format!("aborted while {}", what()));
                return Err(error.with_peer(peer));
            }
            std::thread::sleep(SLICE / 20);
        }
        Ok(())
    }
}

/// The address at which this device sees a peer's buffer, which is mapped if it is not yet.
fn mapped(
    device: &dyn Device,
    end: &End,
    theirs: &Descriptor,
    peer: u32,
    &CopyRequest { number, over, .. }: &CopyRequest<'_>,
) -> Result<u64> {
    let mut opened = lock(&end.opened)?;
    let offset = theirs.addr - theirs.base;
    let is_captured = theirs.is_captured != 0;
    if let Some(at) = opened.iter().position(|o| (o.base, o.id) == (theirs.base, theirs.id)) {
        // The last one used comes last.
        opened[at..].rotate_left(1);
        let last = opened.len() - 1;
        opened[last].is_captured |= is_captured;
        opened[last].used = number;
        return Ok(opened[last].memory.addr + offset);
    }
    let memory = device.needs_ipc()?.open_exposed(&theirs.handle).map_err(|error| {
        error
            .context(format!("mapping a buffer of rank {peer}"))
            .with_peer(peer)
            .remedy("set NCCL_ZERO_COPY=0 on all ranks where CUDA IPC is not allowed")
    })?;
    let addr = memory.addr + offset;
    // An allocation at the same place means that the older one is gone. The mappings that were not used for
    // longest go too, once nothing on a stream copies to them any more: to close one waits for copies.
    let may_go = |o: &Opened| !o.is_captured && over.wrapping_sub(o.used) as i32 >= 0;
    let gone = opened.iter().position(|o| o.base == theirs.base && !o.is_captured);
    let oldest = || opened.iter().position(may_go).filter(|_| opened.len() >= MOST_OPENED);
    if let Some(at) = gone.or_else(oldest) {
        opened.remove(at);
    }
    opened.push(Opened { base: theirs.base, id: theirs.id, is_captured, used: number, memory });
    Ok(addr)
}

/// Finds out which ranks can reach which: `[rank][peer]`. Collective.
fn probe(
    device: &dyn Device,
    bootstrap: &Bootstrap,
    peers: &Peers<'_>,
    wait: &Wait,
) -> Result<Vec<Vec<bool>>> {
    let me = peers.rank as usize;
    let wanted = env::settings().zero_copy != Some(false);
    // With peer access between the GPUs of a process, calls of the driver wait for all of them: to load a
    // kernel in one thread may wait for what another thread has not called yet. Who asks for direct copies
    // there knows.
    let near = env::settings().zero_copy == Some(true) || device.kernels().is_none();
    let elsewhere =
        |p: usize| p != me && peers.hosts[p] == peers.hosts[me] && peers.processes[p] != peers.processes[me];
    let is_asked = wanted && (0..peers.hosts.len()).any(elsewhere);
    let sample = is_asked.then(|| device.alloc_as_user(SAMPLE_BYTES)).transpose()?;
    let exposed = sample.as_ref().map(|memory| device.expose(memory.addr)).transpose()?.flatten();
    let handle = exposed.and_then(|exposed| device.ipc()?.exposed_handle(&exposed).ok());
    let mut token = vec![u8::from(wanted), u8::from(handle.is_some())];
    token.extend(device.caps().ordinal.to_le_bytes());
    token.extend(handle.unwrap_or([0; 64]));
    let tokens = bootstrap.all_gather(&token, wait)?;
    let reaches = |peer: usize| {
        let token = &tokens[peer];
        if peer == me || peers.hosts[peer] != peers.hosts[me] || !wanted || token.len() != 70 || token[0] == 0
        {
            return false;
        }
        let ordinal = u32::from_le_bytes([token[2], token[3], token[4], token[5]]);
        match elsewhere(peer) {
            false => near && device.reach(ordinal).is_ok(),
            true => {
                let mut handle = [0; 64];
                handle.copy_from_slice(&token[6..]);
                token[1] == 1 && device.ipc().is_some_and(|ipc| ipc.open_exposed(&handle).is_ok())
            }
        }
    };
    let own: Vec<u8> = (0..tokens.len()).map(|peer| u8::from(reaches(peer))).collect();
    // Once everybody has said what it could open, it has closed it again, and samples can go.
    let all = bootstrap.all_gather(&own, wait)?;
    drop(sample);
    let ranks = tokens.len();
    let line = |bytes: &Vec<u8>| (0..ranks).map(|p| bytes.get(p) == Some(&1)).collect();
    Ok(all.iter().map(line).collect())
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    impl Latches {
        /// Those of rank 0 of two, without buffers of its own, and the memory of rank 1's.
        pub fn of_one_peer() -> Self {
            let host = HostDevice::beside().unwrap();
            let memory = host.alloc_heap(size_of::<Shared>() as u64, HeapKind::Host).unwrap();
            let theirs = vec![None, Some(SharedAt(memory.addr as *const Shared))];
            Self { rank: 0, own: vec![None; 2], theirs, _memory: Arc::new(vec![memory]) }
        }

        /// Those of rank 1, whose buffers rank 0 copies from and to.
        pub fn turned_round(&self) -> Self {
            let own = vec![self.theirs[1], None];
            Self { rank: 1, own, theirs: vec![None; 2], _memory: self._memory.clone() }
        }
    }

    /// That of a rank whose rings the test has.
    fn rendezvous(rank: u32, abort: &AbortFlag) -> Rendezvous {
        let memory = Arc::new(Vec::new());
        let latches = Latches { rank, own: Vec::new(), theirs: Vec::new(), _memory: memory };
        Rendezvous { rank, ends: Vec::new(), handles: Mutex::default(), abort: abort.clone(), latches }
    }

    fn now() -> Instant {
        Instant::now()
    }

    /// Both sides of one ring, each in a thread: exactly one end of each transfer gets the other's
    /// descriptor, and the right one.
    #[test]
    fn of_two_ends_one_is_second() {
        const TRANSFERS: u64 = 3 * RING + 5;
        let host = HostDevice::beside().unwrap();
        let memory = host.alloc_heap(size_of::<Shared>() as u64, HeapKind::Host).unwrap();
        let control = Control::new(&host).unwrap();
        let side = |side: usize| {
            let rendezvous = rendezvous(side as u32, &AbortFlag::new());
            let mut seconds = Vec::new();
            for number in 0..TRANSFERS {
                let own = Descriptor {
                    is_direct: 1,
                    is_captured: 0,
                    addr: number * 2 + side as u64,
                    bytes: number,
                    base: 0,
                    id: 0,
                    handle: [side as u8; 64],
                };
                let ring = SharedAt(memory.addr as *const Shared);
                if let Some(theirs) =
                    rendezvous.exchange(ring, side, own, (1 - side as u32, now()), &control).unwrap()
                {
                    assert_eq!((theirs.addr, theirs.bytes), (number * 2 + 1 - side as u64, number));
                    assert_eq!(theirs.handle, [1 - side as u8; 64]);
                    seconds.push(number);
                }
                if number % 7 == side as u64 {
                    std::thread::yield_now();
                }
            }
            seconds
        };
        let (mut all, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| side(1));
            (side(0), other.join().unwrap())
        });
        all.extend(other);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..TRANSFERS));
    }

    /// Nobody goes further ahead than the ring is long.
    #[test]
    fn a_side_that_is_a_ring_ahead_waits_until_aborted() {
        let host = HostDevice::beside().unwrap();
        let memory = host.alloc_heap(size_of::<Shared>() as u64, HeapKind::Host).unwrap();
        let (control, abort) = (Control::new(&host).unwrap(), AbortFlag::new());
        let rendezvous = rendezvous(0, &abort);
        let own =
            Descriptor { is_direct: 0, is_captured: 0, addr: 0, bytes: 0, base: 0, id: 0, handle: [0; 64] };
        let ring = || SharedAt(memory.addr as *const Shared);
        for _ in 0..RING {
            assert!(rendezvous.exchange(ring(), 0, own, (1, now()), &control).unwrap().is_none());
        }
        abort.raise();
        let error = rendezvous.exchange(ring(), 0, own, (1, now()), &control).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Aborted);
        assert!(error.text.contains("ahead of rank 1"), "{error}");
    }
}

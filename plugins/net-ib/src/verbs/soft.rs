//! A test double of verbs: devices, queue pairs and memory of one process, with faults on demand.
//!
//! It keeps RC's promises and nothing more: a queue pair delivers in order, different ones in any order; data
//! change the receiver's memory some time before the completions; what a destroyed queue pair had sent may
//! still land, as long as the receiving queue pair is there; a broken pair flushes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_plugin::net::{MemoryKinds, Region};

use super::gid::Gid;
use super::{Caps, Cq, Device, DeviceInfo, Errno, Event, Mr, PortInfo, Qp, Route, Span, Verbs, Wc};

const FLUSHED: u32 = 5;
const ACCESS: u32 = 10;
const RETRIES: u32 = 12;
/// Polls for which a packet to a queue pair that is not there is tried again.
const TRIES: u32 = 2000;

/// A fabric: devices of several "hosts" that all reach each other.
#[derive(Clone)]
pub struct Fabric(Arc<Mutex<State>>);

/// The devices of one host.
pub struct Host {
    fabric: Fabric,
    devices: std::ops::Range<usize>,
}

#[derive(Default)]
struct State {
    devices: Vec<SoftDevice>,
    qps: BTreeMap<u32, SoftQp>,
    regions: BTreeMap<u32, (u64, u64)>,
    /// Keys of regions in GPU memory; None: devices do not reach it.
    gpu: Option<BTreeSet<u32>>,
    /// The writes of devices to GPU memory that the GPU does not see yet.
    unseen: Vec<(usize, u64, Vec<u8>)>,
    queues: BTreeMap<u64, VecDeque<Wc>>,
    /// Sent by queue pairs that are gone: may still land.
    late: Vec<(u32, Packet)>,
    next: u32,
    dice: u64,
    chaos: u32,
    /// Counters for tests.
    landed_late: u64,
}

#[derive(Default)]
struct SoftDevice {
    name: String,
    guid: u64,
    up: bool,
    mute: bool,
    deaf_acks: bool,
    dead: bool,
    pci_path: Option<String>,
    infiniband: bool,
    events: VecDeque<Event>,
}

struct SoftQp {
    device: usize,
    queue: u64,
    peer: u32,
    connected: bool,
    broken: bool,
    receives: VecDeque<(u64, Span)>,
    sends: VecDeque<Packet>,
    tries: u32,
}

struct Packet {
    wr: u64,
    span: Span,
    /// The bytes, once the sender's memory may not be read any more, or inline.
    bytes: Option<Vec<u8>>,
    write: Option<(u64, u32)>,
    read: Option<(u64, u32)>,
    imm: Option<u32>,
    /// The receiver has it; only the acknowledgement is missing.
    landed: bool,
}

impl Fabric {
    /// A fabric with this many devices.
    pub fn new(devices: usize) -> Self {
        let mut state = State { next: 100, dice: 1, ..State::default() };
        for number in 0..devices {
            let device = SoftDevice {
                name: format!("soft{number}"),
                guid: number as u64 + 1,
                up: true,
                ..SoftDevice::default()
            };
            state.devices.push(device);
        }
        Self(Arc::new(Mutex::new(state)))
    }

    /// The devices with these numbers, as a host sees them.
    pub fn host(&self, devices: std::ops::Range<usize>) -> Host {
        Host { fabric: self.clone(), devices }
    }

    /// A port goes down or comes back; its host gets the event.
    pub fn port(&self, device: usize, up: bool) {
        let mut state = self.lock();
        state.devices[device].up = up;
        let event = if up { Event::PortUp(1) } else { Event::PortDown(1) };
        state.devices[device].events.push_back(event);
    }

    /// The only port of a device goes down, and no event tells.
    pub fn port_goes_untold(&self, device: usize) {
        self.lock().devices[device].up = false;
    }

    /// All devices are functions of one card, each with its port 1, as those of a card with two ports are.
    pub fn on_one_card(self) -> Self {
        for (number, device) in self.lock().devices.iter_mut().enumerate() {
            (device.guid, device.pci_path) =
                (7, Some(format!("/sys/devices/pci0000:00/0000:01:00.{number}")));
        }
        self
    }

    /// All ports say that they are InfiniBand's.
    pub fn of_infiniband(self) -> Self {
        self.lock().devices.iter_mut().for_each(|device| device.infiniband = true);
        self
    }

    /// This device makes nothing any more: no queues, no registrations. Its port says nothing of it.
    pub fn kill(&self, device: usize) {
        self.lock().devices[device].dead = true;
    }

    /// Lets everything that this device sends vanish silently.
    pub fn mute(&self, device: usize, mute: bool) {
        self.lock().devices[device].mute = mute;
    }

    /// Lets everything that this device sends land, but without an acknowledgement.
    pub fn lose_acks(&self, device: usize, lose: bool) {
        self.lock().devices[device].deaf_acks = lose;
    }

    /// One of so many deliveries breaks its queue pair, and as many are put off; 0 = none. Seeded.
    pub fn chaos(&self, one_of: u32, seed: u64) {
        let mut state = self.lock();
        (state.chaos, state.dice) = (one_of, seed);
    }

    /// From now on devices reach "GPU memory": any memory that is registered as such, by address or as
    /// DMA-BUF. What they write there is seen after a read by the same device, not before.
    pub fn with_gpus(self) -> Self {
        self.lock().gpu = Some(BTreeSet::new());
        self
    }

    /// Writes that landed after the queue pair that sent them was gone.
    pub fn landed_late(&self) -> u64 {
        self.lock().landed_late
    }

    fn living(&self, device: usize) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.lock();
        if state.devices[device].dead { Err(libc::EIO) } else { Ok(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Verbs for Host {
    fn open(&self) -> Result<Vec<Arc<dyn Device>>, String> {
        let open = |number: usize| {
            let state = self.fabric.lock();
            let device = &state.devices[number];
            let info = DeviceInfo {
                name: device.name.clone(),
                pci_path: device.pci_path.clone(),
                guid: device.guid,
                ports: vec![1],
                peer_memory: state.gpu.is_some(),
                dmabuf: state.gpu.is_some(),
            };
            Arc::new(Opened { fabric: self.fabric.clone(), number, info }) as Arc<dyn Device>
        };
        Ok(self.devices.clone().map(open).collect())
    }
}

struct Opened {
    fabric: Fabric,
    number: usize,
    info: DeviceInfo,
}

impl Device for Opened {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn port(&self, _: u8) -> Result<PortInfo, Errno> {
        let SoftDevice { up: active, infiniband, .. } = self.fabric.lock().devices[self.number];
        Ok(PortInfo { active, speed_mbps: 100_000, ethernet: !infiniband, lid: 0, mtu: 3, gids: 1 })
    }

    fn gid(&self, _: u8, index: u32) -> Option<Gid> {
        let mut bytes = [0; 16];
        (bytes[10], bytes[11], bytes[12], bytes[15]) = (0xff, 0xff, 10, self.number as u8 + 1);
        (index == 0).then_some(Gid { bytes, version: 2 })
    }

    fn interface(&self, _: u8, _: u32) -> Option<String> {
        None
    }

    fn events(&self) -> Vec<Event> {
        self.fabric.lock().devices[self.number].events.drain(..).collect()
    }

    unsafe fn register(&self, region: &Region, _: bool) -> Result<Mr, Errno> {
        let mut state = self.fabric.living(self.number)?;
        state.next += 1;
        let key = state.next;
        if region.kind != MemoryKinds::HOST {
            state.gpu.as_mut().ok_or(libc::EOPNOTSUPP)?.insert(key);
        }
        if region.kind == MemoryKinds::DMABUF {
            is_mapped(region)?;
        }
        state.regions.insert(key, (region.addr, region.bytes as u64));
        Ok(Mr { lkey: key, rkey: key, token: u64::from(key) })
    }

    fn deregister(&self, mr: Mr) -> Result<(), Errno> {
        let mut state = self.fabric.lock();
        let found = state.regions.remove(&mr.rkey).ok_or(libc::EINVAL)?;
        state.unseen.retain(|(_, addr, _)| !(found.0..found.0 + found.1).contains(addr));
        Ok(())
    }

    fn queue(&self, _: u32) -> Result<Box<dyn Cq>, Errno> {
        let mut state = self.fabric.living(self.number)?;
        state.next += 1;
        let number = u64::from(state.next);
        state.queues.insert(number, VecDeque::new());
        Ok(Box::new(SoftCq { fabric: self.fabric.clone(), device: self.number, number }))
    }
}

struct SoftCq {
    fabric: Fabric,
    device: usize,
    number: u64,
}

impl Cq for SoftCq {
    fn poll(&mut self, out: &mut Vec<Wc>) -> Result<(), Errno> {
        let mut state = self.fabric.lock();
        state.deliver();
        out.extend(state.queues.get_mut(&self.number).into_iter().flat_map(|queue| queue.drain(..)));
        Ok(())
    }

    fn pair(&mut self, _: u8, _: u16, _: Caps) -> Result<Box<dyn Qp>, Errno> {
        let mut state = self.fabric.lock();
        state.next += 1;
        let number = state.next;
        let qp = SoftQp {
            device: self.device,
            queue: self.number,
            peer: 0,
            connected: false,
            broken: false,
            receives: VecDeque::new(),
            sends: VecDeque::new(),
            tries: 0,
        };
        state.qps.insert(number, qp);
        Ok(Box::new(Pair { fabric: self.fabric.clone(), number }))
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        self.fabric.lock().queues.remove(&self.number);
    }
}

struct Pair {
    fabric: Fabric,
    number: u32,
}

impl Pair {
    fn with<T>(&self, f: impl FnOnce(&mut SoftQp) -> Result<T, Errno>) -> Result<T, Errno> {
        f(self.fabric.lock().qps.get_mut(&self.number).ok_or(libc::EINVAL)?)
    }

    fn push(&self, packet: Packet) -> Result<(), Errno> {
        self.with(|qp| {
            if !qp.connected {
                return Err(libc::EINVAL);
            }
            qp.sends.push_back(packet);
            Ok(())
        })
    }
}

impl Qp for Pair {
    fn number(&self) -> u32 {
        self.number
    }

    fn inline(&self) -> u32 {
        128
    }

    fn connect(&mut self, route: &Route) -> Result<(), Errno> {
        self.with(|qp| {
            (qp.peer, qp.connected) = (route.qp, true);
            Ok(())
        })
    }

    fn stop(&mut self) -> Result<(), Errno> {
        let mut state = self.fabric.lock();
        state.break_pair(self.number, FLUSHED);
        Ok(())
    }

    unsafe fn receive(&mut self, wr: u64, span: Span) -> Result<(), Errno> {
        self.with(|qp| {
            qp.receives.push_back((wr, span));
            Ok(())
        })
    }

    unsafe fn send(&mut self, wr: u64, span: Span, inline: bool) -> Result<(), Errno> {
        // SAFETY: the caller vouches for the memory.
        let bytes = inline.then(|| unsafe { copy(span) });
        self.push(Packet { wr, span, bytes, write: None, read: None, imm: None, landed: false })
    }

    unsafe fn write(
        &mut self,
        wr: u64,
        span: Span,
        to: (u64, u32),
        imm: u32,
        _split: bool,
    ) -> Result<(), Errno> {
        let imm = Some(imm);
        self.push(Packet { wr, span, bytes: None, write: Some(to), read: None, imm, landed: false })
    }

    unsafe fn read(&mut self, wr: u64, span: Span, from: (u64, u32)) -> Result<(), Errno> {
        self.push(Packet { wr, span, bytes: None, write: None, read: Some(from), imm: None, landed: false })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let mut state = self.fabric.lock();
        let Some(qp) = state.qps.remove(&self.number) else { return };
        if let Some(queue) = state.queues.get_mut(&qp.queue) {
            queue.retain(|wc| wc.qp != self.number);
        }
        state.leave_on_the_wire(qp.peer, qp.sends);
        state.show(qp.device);
    }
}

/// Tells whether a descriptor stands for so many bytes.
fn is_mapped(region: &Region) -> Result<(), Errno> {
    let Some((fd, offset)) = region.dmabuf else { return Err(libc::EINVAL) };
    // SAFETY: all-zero bytes are a valid value of this plain struct, which the call fills for any descriptor.
    let (code, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut stat), stat)
    };
    let end = offset.checked_add(region.bytes as u64);
    let fits = code == 0 && end.is_some_and(|end| end <= stat.st_size as u64);
    if fits { Ok(()) } else { Err(libc::EBADF) }
}

/// # Safety
/// The span is readable.
unsafe fn copy(span: Span) -> Vec<u8> {
    let mut bytes = vec![0; span.len as usize];
    if span.len > 0 {
        // SAFETY: the caller vouches for the source; the vector has this length.
        unsafe { std::ptr::copy_nonoverlapping(span.addr as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    }
    bytes
}

impl State {
    fn dice(&mut self, of: u32) -> bool {
        self.dice = self.dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        of > 0 && (self.dice >> 33).is_multiple_of(u64::from(of))
    }

    /// Moves what can move.
    fn deliver(&mut self) {
        if self.dice(4) && !self.late.is_empty() {
            let (peer, packet) = self.late.remove(0);
            self.land_late(peer, &packet);
        }
        let numbers: Vec<u32> =
            self.qps.iter().filter(|(_, qp)| !qp.sends.is_empty()).map(|(&n, _)| n).collect();
        for number in numbers {
            let mut burst = 16;
            while burst > 0 && self.deliver_one(number) {
                burst -= 1;
            }
        }
    }

    /// A write of a pair that is gone: it lands if the receiving pair is still the same.
    fn land_late(&mut self, peer: u32, packet: &Packet) {
        let alive = self.qps.get(&peer).is_some_and(|qp| qp.connected && !qp.broken);
        if let (true, Some((addr, key)), Some(bytes)) = (alive, packet.write, &packet.bytes)
            && self.fits(addr, key, bytes.len() as u64)
        {
            self.landed_late += 1;
            // SAFETY: the region is registered, and its queue pair has not been destroyed.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        }
    }

    fn fits(&self, addr: u64, key: u32, len: u64) -> bool {
        let end = addr.saturating_add(len);
        len == 0 || self.regions.get(&key).is_some_and(|(base, size)| addr >= *base && end <= base + size)
    }

    /// Moves the pair's oldest packet, and tells whether it moved.
    fn deliver_one(&mut self, number: u32) -> bool {
        let Some(qp) = self.qps.get(&number) else { return false };
        let (device, peer, landed) = (qp.device, qp.peer, qp.sends.front().is_some_and(|p| p.landed));
        if qp.broken || qp.sends.is_empty() {
            return false;
        }
        let Some(theirs) = self.qps.get(&peer).filter(|theirs| !theirs.broken && theirs.peer == number)
        else {
            return self.retry(number);
        };
        let (from, to) = (&self.devices[device], &self.devices[theirs.device]);
        let lost = !from.up || !to.up || from.mute;
        if lost || self.dice(self.chaos) {
            return self.retry(number);
        }
        if self.dice(self.chaos.saturating_mul(8)) {
            self.break_pair(number, RETRIES);
            return false;
        }
        if !landed && !self.land(number, peer) {
            return false;
        }
        // The acknowledgement travels the other way.
        let to = &self.devices[self.qps[&peer].device];
        if to.mute || self.devices[device].deaf_acks {
            return self.retry(number);
        }
        self.acknowledge(number);
        true
    }

    /// Nothing came back: after some tries the pair breaks.
    fn retry(&mut self, number: u32) -> bool {
        let Some(qp) = self.qps.get_mut(&number) else { return false };
        qp.tries += 1;
        if qp.tries > TRIES {
            self.break_pair(number, RETRIES);
        }
        false
    }

    /// A device reads its own host's GPU memory.
    fn read(&mut self, number: u32) -> bool {
        let Some(qp) = self.qps.get_mut(&number) else { return false };
        let (device, Some(packet)) = (qp.device, qp.sends.front_mut()) else { return false };
        let (Some((from, key)), span) = (packet.read, packet.span) else { return false };
        packet.landed = true;
        if !self.fits(from, key, u64::from(span.len)) {
            self.break_pair(number, ACCESS);
            return false;
        }
        self.show(device);
        // SAFETY: both are registered, and the pair is alive.
        unsafe { std::ptr::copy(from as *const u8, span.addr as *mut u8, span.len as usize) };
        true
    }

    /// GPUs see what this device wrote.
    fn show(&mut self, device: usize) {
        let (seen, unseen) = std::mem::take(&mut self.unseen).into_iter().partition(|one| one.0 == device);
        self.unseen = unseen;
        let seen: Vec<(usize, u64, Vec<u8>)> = seen;
        for (_, addr, bytes) in seen {
            // SAFETY: the region is registered: what is written to others is forgotten.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        }
    }

    /// Puts the oldest packet into the peer's memory. False: the peer is not ready, or refuses.
    fn land(&mut self, number: u32, peer: u32) -> bool {
        if self.qps.get(&number).is_some_and(|qp| qp.sends.front().is_some_and(|p| p.read.is_some())) {
            return self.read(number);
        }
        let Some((wr, into)) = self.qps.get(&peer).and_then(|qp| qp.receives.front().copied()) else {
            return false;
        };
        let Some(mut packet) = self.qps.get_mut(&number).and_then(|qp| qp.sends.pop_front()) else {
            return false;
        };
        let (addr, key) = packet.write.unwrap_or((into.addr, into.lkey));
        if !self.fits(addr, key, u64::from(packet.span.len)) {
            if let Some(qp) = self.qps.get_mut(&number) {
                qp.sends.push_front(packet);
            }
            self.break_pair(number, ACCESS);
            return false;
        }
        let from = packet.bytes.as_ref().map_or(packet.span.addr as *const u8, |bytes| bytes.as_ptr());
        if self.gpu.as_ref().is_some_and(|gpu| gpu.contains(&key)) {
            // SAFETY: the source belongs to a work request that is not complete, or is our copy.
            let bytes = unsafe { copy(Span { addr: from as u64, ..packet.span }) };
            let device = self.qps.get(&peer).map_or(0, |qp| qp.device);
            self.unseen.push((device, addr, bytes));
        } else if packet.span.len > 0 {
            // SAFETY: the target is registered and its pair is alive; the source belongs to a work request
            // that is not complete, or is our copy.
            unsafe { std::ptr::copy(from, addr as *mut u8, packet.span.len as usize) };
        }
        let wc = Wc { qp: peer, wr, status: 0, vendor: 0, imm: packet.imm, bytes: packet.span.len };
        packet.landed = true;
        if let Some(theirs) = self.qps.get_mut(&peer) {
            theirs.receives.pop_front();
            let queue = theirs.queue;
            self.complete(queue, wc);
        }
        if let Some(qp) = self.qps.get_mut(&number) {
            qp.sends.push_front(packet);
        }
        true
    }

    fn acknowledge(&mut self, number: u32) {
        let Some(qp) = self.qps.get_mut(&number) else { return };
        qp.tries = 0;
        if let Some(packet) = qp.sends.pop_front() {
            let queue = qp.queue;
            let wc =
                Wc { qp: number, wr: packet.wr, status: 0, vendor: 0, imm: None, bytes: packet.span.len };
            self.complete(queue, wc);
        }
    }

    fn break_pair(&mut self, number: u32, status: u32) {
        let Some(qp) = self.qps.get_mut(&number).filter(|qp| !qp.broken) else { return };
        qp.broken = true;
        let queue = qp.queue;
        let (peer, flying) = (qp.peer, std::mem::take(&mut qp.sends));
        let sends: Vec<u64> = flying.iter().map(|packet| packet.wr).collect();
        let receives: Vec<u64> = qp.receives.drain(..).map(|(wr, _)| wr).collect();
        for (at, wr) in sends.into_iter().chain(receives).enumerate() {
            let status = if at == 0 { status } else { FLUSHED };
            self.complete(queue, Wc { qp: number, wr, status, vendor: 0, imm: None, bytes: 0 });
        }
        self.leave_on_the_wire(peer, flying);
    }

    /// The packets of a broken or destroyed pair may still arrive. Its memory is the sender's until this
    /// returns.
    fn leave_on_the_wire(&mut self, peer: u32, flying: VecDeque<Packet>) {
        for mut packet in flying.into_iter().filter(|packet| !packet.landed && packet.write.is_some()) {
            if packet.bytes.is_none() {
                // SAFETY: the work request is not complete for its owner, so the memory is readable.
                packet.bytes = Some(unsafe { copy(packet.span) });
            }
            self.late.push((peer, packet));
        }
        self.late.truncate(256);
    }

    fn complete(&mut self, queue: u64, wc: Wc) {
        self.queues.get_mut(&queue).into_iter().for_each(|queue| queue.push_back(wc));
    }
}

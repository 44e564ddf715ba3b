//! The memory of a network in kernels: what its device code reads and writes, and what the host takes out.
//!
//! Queues, the numbers of descriptors that are done, counters and signals lie in memory of the host, which
//! kernels reach; only the host writes the last three. Behind them is a buffer for bytes that stay on this
//! GPU, which its driver would copy by a kernel. The rest is device memory that kernels alone use.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hawser_base::error::Result;
use hawser_device::{Device, HostWords, Memory};

use super::descriptor::{self, SHORT_WORDS, WORDS, is_written};
use crate::rma::Board;

/// Bytes to whose multiples the parts of a memory are rounded up.
const LINE: u64 = 128;
/// Bytes that pass through memory of the host at once, on their way within a GPU.
const BOUNCE: u64 = 1 << 20;
/// Descriptors of a queue, unless the program asks for another number.
const DEPTH: u32 = 64;
/// The fewest and most that it may ask for.
const DEPTHS: (u32, u32) = (8, 4096);

/// The struct that a program's device code has for a context (`ncclGinProxyGpuCtx_t`), which has only grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Of 2.28: as until 2.30.4, with descriptors of half the length.
    Short,
    /// Until 2.30.4.
    Bare,
    /// From 2.30.5 on: signals are reset by numbers beside them, and gets are counted.
    Counted,
    /// From 2.32 on: it says what signals promise.
    Promising,
}

impl Form {
    /// Its length.
    pub fn bytes(self) -> usize {
        match self {
            Self::Short | Self::Bare => 48,
            Self::Counted => 72,
            Self::Promising => 80,
        }
    }

    /// Words of a descriptor.
    fn words(self) -> usize {
        if self == Self::Short { SHORT_WORDS } else { WORDS }
    }

    /// Bytes of a descriptor.
    fn descriptor(self) -> u64 {
        (self.words() * size_of::<u64>()) as u64
    }
}

/// The needs of a program that uses the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// The layout of its contexts.
    pub form: Form,
    /// The number of contexts; at least 1.
    pub contexts: u32,
    /// Signals of each.
    pub signals: u32,
    /// Counters of each.
    pub counters: u32,
    /// Descriptors of a queue; 0 leaves it to the library.
    pub depth: u32,
}

/// A network in kernels of one rank.
pub struct Network {
    needs: Needs,
    ranks: u32,
    /// Descriptors of a queue, a power of two.
    depth: u32,
    words: HostWords,
    memory: Memory,
    at: Places,
    /// By queue: the number of descriptors that were taken out.
    taken: Vec<AtomicU32>,
}

/// The places of everything in memory: the first five lie in the host's, the others in the device's.
#[derive(Debug, Clone, Copy)]
struct Places {
    done: u64,
    counters: u64,
    signals: u64,
    bounce: u64,
    host_bytes: u64,
    written: u64,
    issued_gets: u64,
    visible_gets: u64,
    signal_offsets: u64,
    shadows: u64,
    contexts: u64,
    device_bytes: u64,
}

impl Places {
    fn new(needs: &Needs, ranks: u32, depth: u32) -> Self {
        let (contexts, ranks) = (u64::from(needs.contexts), u64::from(ranks));
        let queues = contexts * ranks;
        let (signals, counters) = (contexts * u64::from(needs.signals), contexts * u64::from(needs.counters));
        let mut host = Room { next: queues * u64::from(depth) * needs.form.descriptor() };
        let mut device = Room { next: 0 };
        Self {
            done: host.take(4 * queues),
            counters: host.take(8 * counters),
            signals: host.take(8 * signals),
            bounce: host.take(BOUNCE),
            host_bytes: host.next,
            written: device.take(4 * queues),
            issued_gets: device.take(4 * queues),
            visible_gets: device.take(4 * queues),
            signal_offsets: device.take(8 * signals),
            shadows: device.take(8 * signals),
            contexts: device.take(contexts * needs.form.bytes() as u64),
            device_bytes: device.next,
        }
    }
}

/// A memory that is given out part by part.
struct Room {
    next: u64,
}

impl Room {
    fn take(&mut self, bytes: u64) -> u64 {
        let at = self.next;
        self.next += bytes.next_multiple_of(LINE);
        at
    }
}

impl Network {
    /// A network that connects `ranks` ranks, in which nothing is asked for yet.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(device: &dyn Device, ranks: u32, needs: Needs) -> Result<Self> {
        let depth = if needs.depth == 0 { DEPTH } else { needs.depth };
        let depth = depth.clamp(DEPTHS.0, DEPTHS.1).next_power_of_two();
        let at = Places::new(&needs, ranks, depth);
        let words = device.host_words(at.host_bytes)?;
        let memory = device.alloc(at.device_bytes)?;
        let taken = (0..needs.contexts * ranks).map(|_| AtomicU32::new(0)).collect();
        let network = Self { needs, ranks, depth, words, memory, at, taken };
        device.upload(network.contexts(), &network.image())?;
        Ok(network)
    }

    /// Device address of the contexts.
    pub fn contexts(&self) -> u64 {
        self.memory.addr + self.at.contexts
    }

    /// Device address of the numbers that kernels keep beside signals, one for each.
    pub fn shadows(&self) -> u64 {
        self.memory.addr + self.at.shadows
    }

    /// The needs that it was made for.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Device address and length of memory of the host for bytes on their way, of one copy at a time.
    pub fn bounce(&self) -> (u64, u64) {
        (self.words.memory.addr + self.at.bounce, BOUNCE)
    }

    /// Bytes of device memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// The oldest descriptor of a queue that is whole and was not taken out before, which it is now; in the
    /// words of the longer forms.
    pub fn take(&self, context: u32, peer: u32) -> Option<[u64; WORDS]> {
        let queue = self.queue(context, peer);
        let taken = self.taken[queue].load(Ordering::Relaxed);
        let first = queue * self.depth as usize + (taken & (self.depth - 1)) as usize;
        let form = self.needs.form;
        let words: &[AtomicU64] = self.host(first as u64 * form.descriptor(), form.words());
        let mut descriptor = [0; WORDS];
        for (word, place) in words.iter().zip(&mut descriptor) {
            *place = word.load(Ordering::Acquire);
            if !is_written(*place) {
                return None;
            }
        }
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.taken[queue].store(taken.wrapping_add(1), Ordering::Relaxed);
        Some(if form == Form::Short { descriptor::lengthened(&descriptor) } else { descriptor })
    }

    /// The oldest descriptor of a queue that was taken out is done: the kernel may use its place again.
    pub fn finish(&self, context: u32, peer: u32) {
        let done: &[AtomicU32] = self.host(self.at.done, self.taken.len());
        done[self.queue(context, peer)].fetch_add(1, Ordering::Release);
    }

    /// A counter grows by one. False if there is none with this index.
    pub fn count(&self, context: u32, index: u32) -> bool {
        let counters = self.needs.contexts * self.needs.counters;
        let all: &[AtomicU64] = self.host(self.at.counters, counters as usize);
        if index >= self.needs.counters {
            return false;
        }
        all[(context * self.needs.counters + index) as usize].fetch_add(1, Ordering::Release);
        true
    }

    fn queue(&self, context: u32, peer: u32) -> usize {
        (context * self.ranks + peer) as usize
    }

    /// Atomics in the memory of the host.
    fn host<T>(&self, at: u64, count: usize) -> &[T] {
        debug_assert!(at + (count * size_of::<T>()) as u64 <= self.at.host_bytes);
        // SAFETY: the memory is zeroed, lives as long as `self`, is aligned to a line where each part begins,
        // and nobody but atomics and kernels touches it; `Places` has room for `count` of them there.
        unsafe { std::slice::from_raw_parts(self.words.host.add(at as usize).cast(), count) }
    }

    /// The contexts as device code reads them.
    fn image(&self) -> Vec<u8> {
        let (host, device) = (self.words.memory.addr, self.memory.addr);
        let (at, Needs { form, signals, counters, .. }) = (&self.at, self.needs);
        let mut image = Vec::with_capacity(self.needs.contexts as usize * form.bytes());
        for context in (0..self.needs.contexts).map(u64::from) {
            let queue = context * u64::from(self.ranks);
            let (signal, counter) = (8 * context * u64::from(signals), 8 * context * u64::from(counters));
            let end = image.len() + form.bytes();
            image.extend(self.ranks.to_ne_bytes());
            image.extend(self.depth.to_ne_bytes());
            for address in [
                host + queue * u64::from(self.depth) * form.descriptor(),
                device + at.written + 4 * queue,
                host + at.done + 4 * queue,
                host + at.counters + counter,
                host + at.signals + signal,
                device + at.signal_offsets + signal,
                device + at.issued_gets + 4 * queue,
                device + at.visible_gets + 4 * queue,
            ] {
                image.extend(address.to_ne_bytes());
            }
            // The shorter form ends before, the longer one promises nothing.
            image.resize(end, 0);
        }
        image
    }
}

impl Board for Network {
    fn signals(&self) -> &[AtomicU64] {
        self.host(self.at.signals, (self.needs.contexts * self.needs.signals) as usize)
    }
}

//! The memory of a process that others may read: an anonymous file that programs of the same user find in
//! `/proc/PID/fd`, so that a process is read without its help, also when it is stopped.
//!
//! The file consists of **slots** of 8 KiB. The first says whose they are; each of the others holds the
//! journal of a communicator, the figures of the process ([`crate::figures`]), or nothing. It goes when the
//! process ends. With `HAWSER_PROGRESS_DIR` it is a file of that folder and stays. Where neither can be made,
//! slots lie in ordinary memory, which nobody else can read.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::env;
use crate::liveness::{Identity, forked};
use crate::log::{self, Subsys};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// The name of the file, by which readers know it.
pub const NAME: &str = "hawser-progress";
/// Words of a slot.
pub const SLOT_WORDS: usize = 1024;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 8 * SLOT_WORDS;
/// The first word of the first slot: the format of the file.
pub const FORMAT: u64 = u64::from_le_bytes(*b"hawserP2");
/// The place of the process's identity in the first slot, in bytes.
pub const IDENTITY_AT: usize = 64;

/// Slots by which the file grows.
const GROWTH: usize = 16;

/// The slot of one journal. It is free again when this is dropped.
pub struct Slot {
    words: &'static [AtomicU64; SLOT_WORDS],
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory { file: None, slots: 0, free: Vec::new() });

/// All slots of this process. They stay mapped, so that nobody can hold one that has gone.
struct Memory {
    /// The file; the inner None after a failure.
    file: Option<Option<OwnedFd>>,
    slots: usize,
    free: Vec<&'static [AtomicU64; SLOT_WORDS]>,
}

impl Slot {
    /// A slot of zeros.
    pub fn new() -> Self {
        let mut memory = lock();
        if memory.free.is_empty() {
            memory.grow();
        }
        let words = memory.free.pop().unwrap_or_else(|| ordinary_slots().remove(0));
        Self { words }
    }

    /// Its words.
    pub fn words(&self) -> &'static [AtomicU64; SLOT_WORDS] {
        self.words
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if forked::is_child() {
            return;
        }
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        lock().free.push(self.words);
    }
}

impl Memory {
    fn grow(&mut self) {
        let is_first = self.file.is_none();
        let file = self.file.get_or_insert_with(|| {
            open().inspect_err(|why| detail(&format!("progress is not shown to others: {why}"))).ok()
        });
        let from = self.slots;
        let mapped = file.as_ref().and_then(|file| {
            let mapped = map(file, from, GROWTH);
            mapped.inspect_err(|why| detail(&format!("progress is not shown to others: {why}"))).ok()
        });
        let mut slots = mapped.unwrap_or_else(ordinary_slots);
        self.slots += GROWTH;
        if is_first {
            let first = slots.remove(0);
            write_identity(first);
        }
        slots.reverse();
        self.free.append(&mut slots);
    }
}

/// Makes the file.
fn open() -> std::io::Result<OwnedFd> {
    let settings = env::settings();
    let Some(folder) = &settings.progress_dir else {
        return Ok(memfd_create(NAME, MemfdFlags::CLOEXEC)?);
    };
    let own = Identity::own(0, settings.host_id.as_deref());
    let path = Path::new(folder).join(format!("{NAME}-{}-{}", own.host(), own.pid));
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&path);
    file.map(OwnedFd::from)
        .map_err(|why| std::io::Error::new(why.kind(), format!("{}: {why}", path.display())))
}

/// Makes the file longer by `count` slots, and maps them.
fn map(file: &OwnedFd, from: usize, count: usize) -> std::io::Result<Vec<&'static [AtomicU64; SLOT_WORDS]>> {
    ftruncate(file, ((from + count) * SLOT_BYTES) as u64)?;
    let bytes = count * SLOT_BYTES;
    let (protection, offset) = (ProtFlags::READ | ProtFlags::WRITE, (from * SLOT_BYTES) as u64);
    // SAFETY: a new mapping at an address that the kernel chooses; it is never unmapped.
    let at =
        unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file.as_fd(), offset) }?;
    forked::keep_out(at as usize, bytes);
    let slot = |number: usize| {
        // SAFETY: within the mapping, which is aligned to pages and stays; atomics may be shared.
        unsafe { &*at.cast::<[AtomicU64; SLOT_WORDS]>().add(number) }
    };
    Ok((0..count).map(slot).collect())
}

/// Slots that no other process can read.
fn ordinary_slots() -> Vec<&'static [AtomicU64; SLOT_WORDS]> {
    let slot = |_| &*Box::leak(Box::new([const { AtomicU64::new(0) }; SLOT_WORDS]));
    (0..GROWTH).map(slot).collect()
}

/// Says in the first slot whose journals these are.
fn write_identity(words: &[AtomicU64; SLOT_WORDS]) {
    let identity = Identity::own(0, env::settings().host_id.as_deref()).encode();
    for (word, bytes) in words[IDENTITY_AT / 8..].iter().zip(identity.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
    }
    words[0].store(FORMAT, Ordering::Release);
}

fn detail(text: &str) {
    log::info(Subsys::Init, || text.to_owned());
}

fn lock() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

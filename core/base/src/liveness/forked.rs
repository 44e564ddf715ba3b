//! Children of fork(2): what belongs to the parent is none of theirs.
//!
//! A child has the parent's memory and descriptors but none of its threads. So heaps are kept out of it (it
//! would write into the parent's operations), connections that tell the end of the parent are closed in it,
//! and every call of it is refused.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::error::{Error, Result};

/// A byte that the kernel clears in children; null until a communicator was made.
static MARK: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());

/// The process that made the first communicator.
static OWNER: AtomicU32 = AtomicU32::new(0);

const PAGE: usize = 4096;

/// A communicator is made: from now on children of this process are told apart from it.
pub fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        OWNER.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the handler only does what a child of a process with threads may do.
        unsafe { libc::pthread_atfork(None, None, Some(close_all)) };
        let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let Ok(page) = (unsafe { mmap_anonymous(ptr::null_mut(), PAGE, flags.0, flags.1) }) else { return };
        // SAFETY: the page is ours alone, and the advice changes nothing in this process.
        if unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.is_ok() {
            let mark = page.cast::<AtomicU8>();
            // SAFETY: it is mapped, for as long as the process lives, and nobody else knows it yet.
            unsafe { &*mark }.store(1, Ordering::Relaxed);
            MARK.store(mark, Ordering::Release);
        }
    });
}

/// True if this process is a child of one that made communicators, without a program of its own.
#[inline]
pub fn is_child() -> bool {
    let mark = MARK.load(Ordering::Acquire);
    if mark.is_null() {
        return is_child_by_number();
    }
    // SAFETY: the page stays mapped, in children too.
    unsafe { &*mark }.load(Ordering::Relaxed) == 0
}

/// Returns true in a child of a fork, by the number of the process: for kernels that are too old to clear the
/// mark.
#[cold]
fn is_child_by_number() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && owner != std::process::id()
}

/// Refuses a call of a child.
///
/// # Errors
/// `InvalidUsage` with what to do instead, in a child.
#[inline]
pub fn refuse() -> Result<()> {
    if is_child() { Err(refusal()) } else { Ok(()) }
}

/// The error for calls of a child.
#[cold]
pub fn refusal() -> Error {
    let owner = OWNER.load(Ordering::Relaxed);
    let text = format!(
        "this process was forked from process {owner}, which has communicators: a child cannot use them"
    );
    Error::invalid_usage(text).remedy(
        "start workers with spawn or forkserver instead of fork, or before the first communicator is made",
    )
}

/// Keeps memory that is shared with other processes out of children. Where the kernel refuses that, children
/// are refused all the same.
pub fn keep_out(addr: usize, bytes: usize) {
    // SAFETY: the caller mapped the range; nothing changes in this process.
    let _ = unsafe { madvise(addr as *mut _, bytes, Advice::LinuxDontFork) };
}

/// Descriptors in one block of the list.
const SLOTS: usize = 512;

/// A part of the list of descriptors that children close. Parts are never freed, so that a child may read
/// them at any time.
struct Block {
    slots: [AtomicI32; SLOTS],
    next: AtomicPtr<Block>,
}

impl Block {
    const fn new() -> Self {
        Self { slots: [const { AtomicI32::new(FREE) }; SLOTS], next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn next(&self) -> Option<&'static Block> {
        // SAFETY: what is entered there was leaked.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

const FREE: i32 = -1;

static LIST: Block = Block::new();

/// While it lives, children close a descriptor. It must be dropped before the descriptor is closed.
#[derive(Debug)]
pub struct ClosedInChildren(&'static AtomicI32);

impl ClosedInChildren {
    /// Enters a descriptor into the list.
    pub fn new(descriptor: BorrowedFd<'_>) -> Self {
        let mut block = &LIST;
        loop {
            let number = descriptor.as_raw_fd();
            let take = |slot: &&AtomicI32| {
                slot.compare_exchange(FREE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            if let Some(slot) = block.slots.iter().find(take) {
                return Self(slot);
            }
            block = match block.next() {
                Some(next) => next,
                None => append(block),
            };
        }
    }
}

fn append(block: &'static Block) -> &'static Block {
    let new = Box::into_raw(Box::new(Block::new()));
    match block.next.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just leaked.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: nobody else knows the new one; the other one was leaked.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

impl Drop for ClosedInChildren {
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::Release);
    }
}

/// Closes the descriptors of the list, in a child. Their numbers stay taken, so that a child that closes them
/// again hits nothing else. Only calls that are safe in a child of a process with threads.
extern "C" fn close_all() {
    // SAFETY: plain system calls with valid arguments; the descriptors are the parent's, of which this is a
    // copy.
    unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        let mut block = Some(&LIST);
        while let Some(current) = block {
            for slot in &current.slots {
                let descriptor = slot.load(Ordering::Relaxed);
                if descriptor != FREE && (nothing < 0 || libc::dup3(nothing, descriptor, libc::O_CLOEXEC) < 0)
                {
                    libc::close(descriptor);
                }
            }
            block = current.next();
        }
        if nothing >= 0 {
            libc::close(nothing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_list_grows_and_places_are_used_again() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let many: Vec<_> = (0..SLOTS * 2 + 3).map(|_| ClosedInChildren::new(file.as_fd())).collect();
        assert!(LIST.next().and_then(Block::next).is_some());
        drop(many);
        let is_taken = |slot: &AtomicI32| slot.load(Ordering::Relaxed) == file.as_raw_fd();
        assert!(!LIST.slots.iter().any(is_taken));
        let kept = ClosedInChildren::new(file.as_fd());
        assert!(is_taken(kept.0));
    }

    #[test]
    fn the_process_itself_is_no_child() {
        assert!(!is_child());
        begin();
        begin();
        refuse().unwrap();
        assert!(refusal().text.contains("spawn"));
    }
}

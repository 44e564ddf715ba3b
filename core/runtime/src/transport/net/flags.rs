//! LL's slots as the proxy of a sender sees them: words of 16 bytes with 8 bytes of data and two copies of
//! the slot's flag (`kernels/abi`, [`Conn`](hawser_kernels_abi::Conn)). The device tells the bytes of a slot
//! when it begins to fill it, and each half of a word is whole by itself: when all flags are there, so are
//! the data. No tail is published, and no fence keeps the device waiting.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use hawser_kernels_abi::{FAR_TOLD, FAR_WORDS, TAG_SHIFT};

/// LL's slots of the sending end of a connection.
pub struct Flags {
    page: *const u8,
    depth: u64,
    stride: u64,
}

// SAFETY: only an address; the memory behind it is touched by atomics alone, and lives as long as the FIFO.
unsafe impl Send for Flags {}
// SAFETY: as above.
unsafe impl Sync for Flags {}

impl Flags {
    /// `depth` slots of `stride` bytes, [`FAR_WORDS`] bytes behind the zeroed page of a connection's end.
    pub fn new(page: *const u8, depth: u64, stride: u64) -> Self {
        Self { page, depth, stride }
    }

    /// Slots that the device has filled, of which the first `seen` are known.
    pub fn filled(&self, seen: u64) -> u64 {
        let mut filled = seen;
        // The device writes no slot a second time before it gets a credit.
        while filled < seen + self.depth && self.is_whole(filled) {
            filled += 1;
        }
        if filled > seen {
            // What is read next, by whomever, is read after the flags.
            fence(Ordering::Acquire);
        }
        filled
    }

    /// Bytes of the words in a slot that was told.
    pub fn bytes_of(&self, number: u64) -> usize {
        2 * (self.told(number) as u32 & ((1 << TAG_SHIFT) - 1)) as usize
    }

    /// True if the slot is told and all of its words have its flag.
    fn is_whole(&self, number: u64) -> bool {
        let flag = number as u32 + 1;
        if (self.told(number) >> 32) as u32 != flag {
            return false;
        }
        let slot = FAR_WORDS + number % self.depth * self.stride;
        // More than a slot holds is an error of whoever sends it.
        let bytes = (self.bytes_of(number) as u64).min(self.stride);
        // The last word is often the last to come.
        let mut halves = (0..bytes / 8).rev();
        halves.all(|half| (self.word(slot + 8 * half).load(Ordering::Relaxed) >> 32) as u32 == flag)
    }

    fn told(&self, number: u64) -> u64 {
        self.word(FAR_TOLD + 8 * (number % self.depth)).load(Ordering::Relaxed)
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: the memory of the piece is zeroed, page-aligned host memory that lives as long as the FIFO;
        // `at` is a multiple of 8 within what is told or within the slots.
        unsafe { &*self.page.add(at as usize).cast::<AtomicU64>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: u64 = 2;
    const STRIDE: u64 = 64;

    /// Zeroed memory of a page, what is told, and slots.
    fn memory() -> Vec<AtomicU64> {
        (0..(FAR_WORDS + DEPTH * STRIDE) / 8).map(|_| AtomicU64::new(0)).collect()
    }

    fn put(memory: &[AtomicU64], at: u64, high: u32, low: u32) {
        memory[at as usize / 8].store(u64::from(high) << 32 | u64::from(low), Ordering::Relaxed);
    }

    /// A slot counts when it is told and every half of its words has the flag, in whatever order they come.
    #[test]
    fn a_slot_is_full_when_all_flags_are_there() {
        let memory = memory();
        let flags = Flags::new(memory.as_ptr().cast(), DEPTH, STRIDE);
        for number in 0..5u64 {
            let (flag, slot) = (number as u32 + 1, FAR_WORDS + number % DEPTH * STRIDE);
            let told = FAR_TOLD + 8 * (number % DEPTH);
            let mut steps: Vec<(u64, u32)> = (0..4).map(|half| (slot + 8 * half, 7)).collect();
            steps.insert(number as usize, (told, 16));
            for (at, low) in steps {
                assert_eq!(flags.filled(number), number, "slot {number} is not whole yet");
                put(&memory, at, flag, low);
            }
            assert_eq!((flags.filled(number), flags.bytes_of(number)), (number + 1, 32));
        }
    }

    /// Two slots that are full are seen at once; those that were there before do not count again.
    #[test]
    fn all_full_slots_are_seen_and_none_twice() {
        let memory = memory();
        let flags = Flags::new(memory.as_ptr().cast(), DEPTH, STRIDE);
        for number in 0..2u64 {
            put(&memory, FAR_TOLD + 8 * number, number as u32 + 1, 8);
            (0..2)
                .for_each(|half| put(&memory, FAR_WORDS + number * STRIDE + 8 * half, number as u32 + 1, 0));
        }
        assert_eq!((flags.filled(0), flags.filled(1), flags.filled(2)), (2, 2, 2));
    }

    /// A number of bytes that no slot holds lets nobody read past it: the slot is seen, and its sender
    /// refuses it.
    #[test]
    fn too_many_bytes_are_not_looked_for() {
        let memory = memory();
        let flags = Flags::new(memory.as_ptr().cast(), DEPTH, STRIDE);
        put(&memory, FAR_TOLD + 8, 2, 1 << 20);
        (0..8).for_each(|half| put(&memory, FAR_WORDS + STRIDE + 8 * half, 2, 0));
        assert_eq!((flags.filled(1), flags.bytes_of(1)), (2, 2 << 20));
    }
}

//! A piece of shared memory and which ranges of it are taken.

use crate::memory::Memory;

/// Ranges begin at multiples of this: a page, so that a NIC may register each of them.
const PAGE: u64 = 4096;
/// Small ranges begin at multiples of this.
const LINE: u64 = 512;

/// A piece of memory of one handle, cut into ranges.
pub struct Segment {
    memory: Memory,
    /// Offset and bytes of the free ranges, by offset; no two touch.
    free: Vec<(u64, u64)>,
    /// Everything from this offset on is as the driver gave it.
    touched: u64,
}

/// A range of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The address of the range.
    pub addr: u64,
    /// Bytes, rounded up.
    pub bytes: u64,
    /// True if somebody had it before.
    pub is_used: bool,
}

impl Segment {
    /// All of `memory` is free.
    pub fn new(memory: Memory) -> Self {
        let free = vec![(0, memory.bytes)];
        Self { memory, free, touched: 0 }
    }

    /// Bytes of it all.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// True if nobody has a range of it.
    pub fn is_idle(&self) -> bool {
        self.free == [(0, self.memory.bytes)]
    }

    /// True if the address lies in it.
    pub fn holds(&self, addr: u64) -> bool {
        (self.memory.addr..self.memory.addr + self.memory.bytes).contains(&addr)
    }

    /// Takes the first free range that is long enough.
    pub fn take(&mut self, bytes: u64) -> Option<Range> {
        let (align, bytes) = rounded(bytes);
        let fits = |(at, length): &(u64, u64)| at.next_multiple_of(align) + bytes <= at + length;
        let index = self.free.iter().position(fits)?;
        let (at, length) = self.free[index];
        let start = at.next_multiple_of(align);
        let rest = [(at, start - at), (start + bytes, at + length - start - bytes)];
        self.free.splice(index..=index, rest.into_iter().filter(|(_, length)| *length > 0));
        let is_used = start < self.touched;
        self.touched = self.touched.max(start + bytes);
        Some(Range { addr: self.memory.addr + start, bytes, is_used })
    }

    /// Gives a range back.
    pub fn give(&mut self, range: Range) {
        let at = range.addr - self.memory.addr;
        let index = self.free.partition_point(|(start, _)| *start < at);
        self.free.insert(index, (at, range.bytes));
        for index in [index, index.wrapping_sub(1)] {
            let Some(&[(a, length), (b, more)]) = self.free.get(index..).and_then(|f| f.first_chunk()) else {
                continue;
            };
            if a + length == b {
                self.free.splice(index..index + 2, [(a, length + more)]);
            }
        }
    }
}

/// Alignment and length of a range of so many bytes.
pub fn rounded(bytes: u64) -> (u64, u64) {
    let align = if bytes >= PAGE { PAGE } else { LINE };
    (align, bytes.max(1).next_multiple_of(align))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(bytes: u64) -> Segment {
        Segment::new(Memory { addr: 1 << 20, bytes, owner: Box::new(()) })
    }

    #[test]
    fn ranges_are_aligned_and_merge_again() {
        let mut segment = segment(64 << 10);
        let small = segment.take(10).unwrap();
        let page = segment.take(5000).unwrap();
        assert_eq!((small.bytes, page.bytes, page.addr % PAGE), (512, 8192, 0));
        assert!(segment.take(64 << 10).is_none());
        let between = segment.take(1000).unwrap();
        assert_eq!(between.addr, small.addr + 512, "the gap before the page is used");
        assert!(!segment.is_idle() && !page.is_used && between.is_used, "below what was handed out");
        for range in [page, small, between] {
            segment.give(range);
        }
        assert!(segment.is_idle());
        assert!(segment.take(64 << 10).unwrap().is_used);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap(sizes in proptest::collection::vec((1u64..20_000, any::<bool>()), 1..60)) {
            let mut segment = segment(256 << 10);
            let mut taken: Vec<Range> = Vec::new();
            for (bytes, gives) in sizes {
                if gives && !taken.is_empty() {
                    segment.give(taken.swap_remove(bytes as usize % taken.len()));
                } else if let Some(range) = segment.take(bytes) {
                    prop_assert!(range.bytes >= bytes && segment.holds(range.addr));
                    prop_assert!(segment.holds(range.addr + range.bytes - 1));
                    for other in &taken {
                        let is_before = range.addr + range.bytes <= other.addr;
                        prop_assert!(is_before || other.addr + other.bytes <= range.addr);
                    }
                    taken.push(range);
                }
            }
            taken.into_iter().for_each(|range| segment.give(range));
            prop_assert!(segment.is_idle());
        }
    }
}

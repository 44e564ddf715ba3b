//! The immediate of a data write: slot, chunk, number of chunks, and whether the message fills its receive.
//!
//! | bits | content |
//! |---|---|
//! | 0–5 | chunk |
//! | 6–11 | number of chunks less one |
//! | 12 | the message has as many bytes as the receive has room |
//! | 13–31 | low bits of the slot |

const SLOT_BITS: u32 = 19;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// The content of an immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Imm {
    /// Number of the slot modulo 2^19.
    pub slot: u64,
    /// The number of the chunk in its message.
    pub chunk: u8,
    /// 1 to 64.
    pub count: u8,
    /// The message fills its receive.
    pub full: bool,
}

impl Imm {
    /// The immediate as 32 bits.
    pub fn pack(self) -> u32 {
        let low = (self.slot & SLOT_MASK) as u32;
        let count = u32::from(self.count.wrapping_sub(1) & 0x3f);
        low << 13 | u32::from(self.full) << 12 | count << 6 | u32::from(self.chunk & 0x3f)
    }

    /// Reads what [`Imm::pack`] packed.
    pub fn unpack(word: u32) -> Self {
        Self {
            slot: u64::from(word >> 13),
            chunk: (word & 0x3f) as u8,
            count: ((word >> 6 & 0x3f) + 1) as u8,
            full: word >> 12 & 1 == 1,
        }
    }

    /// The whole number of a slot that is not older than `base`.
    pub fn whole(self, base: u64) -> u64 {
        base + (self.slot.wrapping_sub(base) & SLOT_MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(
            slot: u64, chunk in 0u8..64, count in 1u8..=64, full: bool, back in 0u64..256
        ) {
            let imm = Imm { slot, chunk, count, full };
            let read = Imm::unpack(imm.pack());
            prop_assert_eq!((read.chunk, read.count, read.full), (chunk, count, full));
            if let Some(base) = slot.checked_sub(back) {
                prop_assert_eq!(read.whole(base), slot);
            }
        }
    }
}

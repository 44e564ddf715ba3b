//! Digests that all ranks compare.

/// A running FNV-1a hash: it is the same on all hosts and in all builds, so ranks can compare what they
/// hashed.
#[derive(Debug, Clone)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// A digest of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in the eight bytes of a number.
    pub fn add(&mut self, number: u64) {
        self.add_bytes(&number.to_le_bytes());
    }

    /// Takes in bytes.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The digest of everything that was taken in so far.
    pub fn value(&self) -> u64 {
        self.0
    }
}

//! Mutations of bytes for the tests on the stable toolchain: seeded, so that a failure comes again.

/// A stream of random numbers (xorshift*), the same for the same seed.
pub struct Dice(u64);

impl Dice {
    /// A stream that begins at this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16;
        number as usize % limit.max(1)
    }
}

/// Numbers that parsers trip over, as bytes and as text.
const BYTES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'"', b'\n'];
const WORDS: [&str; 12] =
    ["0", "-1", "4294967296", "18446744073709551615", "1e999", "NaN", "\"", "[", "{", "<", "..", "\u{fc}"];

/// A copy of `seed` after one to eight random changes; parts of `other` may be put in.
pub fn mutate(seed: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=dice.below(8) {
        let at = dice.below(bytes.len() + 1);
        let to = at + dice.below((bytes.len() - at).min(16) + 1);
        match dice.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 if at < bytes.len() => bytes[at] = BYTES[dice.below(BYTES.len())],
            2 => drop(bytes.drain(at..to)),
            3 => {
                let part = bytes[at..to].to_vec();
                let place = dice.below(bytes.len() + 1);
                bytes.splice(place..place, part);
            }
            4 => {
                let word = WORDS[dice.below(WORDS.len())];
                bytes.splice(at..to, word.bytes());
            }
            5 => {
                let from = dice.below(other.len() + 1);
                let end = from + dice.below((other.len() - from).min(64) + 1);
                bytes.splice(at..at, other[from..end].iter().copied());
            }
            6 => bytes.truncate(at),
            _ => bytes.insert(at, dice.below(256) as u8),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_bytes() {
        let run = |seed| {
            let mut dice = Dice::new(seed);
            (0..50).map(|_| mutate(b"rank = 3\nhost = 7", b"<a b=\"c\"/>", &mut dice)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!(run(1).iter().any(|bytes| bytes.len() > 17) && run(1).iter().any(|bytes| bytes.len() < 17));
    }
}

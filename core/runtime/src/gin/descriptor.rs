//! Descriptors (`ncclGinProxyGfd_t`): what a kernel wants to be done, in sixteen words of eight bytes.
//!
//! The lowest bit of each word is a flag: a word without it has not been written yet.

use hawser_base::error::{Error, Result};

/// Words of a descriptor.
pub const WORDS: usize = 16;
/// Words of one of 2.28.
pub const SHORT_WORDS: usize = 8;

/// Bits of an operation (`ncclGinProxyOp_t`).
pub mod op {
    /// Writes into a window of a peer.
    pub const PUT: u64 = 1;
    /// The descriptor itself holds the bytes that are written.
    pub const INLINE: u64 = 1 << 1;
    /// A counter of the sender grows by one when what was written may change.
    pub const COUNTER: u64 = 1 << 2;
    /// A signal of the peer grows by one.
    pub const SIGNAL_INC: u64 = 1 << 3;
    /// A signal of the peer grows by a number.
    pub const SIGNAL_ADD: u64 = 1 << 4;
    /// The signal is a word of a window.
    pub const WINDOW_SIGNAL: u64 = 1 << 5;
    /// Reads from a window of a peer.
    pub const GET: u64 = 1 << 6;
    /// Waits until bytes that were read are there.
    pub const FLUSH: u64 = 1 << 7;
}

/// A place in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the window, the same on all ranks.
    pub window: u64,
    /// Bytes before it.
    pub offset: u64,
}

/// The bytes of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// They lie in a window of the sender.
    Window(Place),
    /// They are the first ones of these.
    Value([u8; 8]),
}

/// An indexed signal that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalAdd {
    /// Its index in the context.
    pub index: u32,
    /// The number that is added.
    pub value: u64,
}

/// The work that a descriptor asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Writes into a window of the peer, if there is anything to write, and then raises a signal there.
    Put {
        /// The bytes and the place for them; None if there are none.
        bytes: Option<(Source, Place, u64)>,
        /// The signal.
        signal: Option<SignalAdd>,
        /// The counter of this rank that grows when the bytes may change.
        counter: Option<u32>,
    },
    /// Adds to a word of a window of the peer.
    Add {
        /// The word.
        to: Place,
        /// The number that is added.
        value: u64,
    },
    /// Reads from a window of the peer.
    Get {
        /// The place at the peer.
        from: Place,
        /// The place in a window of this rank.
        to: Place,
        /// The number of bytes.
        bytes: u64,
    },
    /// Asks that what was read is there.
    Flush,
}

/// True if a word has been written.
pub fn is_written(word: u64) -> bool {
    word & 1 == 1
}

/// Reads a descriptor whose words have all been written.
///
/// # Errors
/// `InvalidUsage`: it asks for nothing that is known, or names no window.
pub fn read(words: &[u64; WORDS]) -> Result<Action> {
    let operation = words[7] >> 8 & 0xffff;
    let size = words[0] >> 7;
    if operation & op::FLUSH != 0 {
        return Ok(Action::Flush);
    }
    if operation & op::GET != 0 {
        return Ok(Action::Get { from: place(words, 1)?, to: place(words, 3)?, bytes: size });
    }
    let value = if operation & op::SIGNAL_INC != 0 { 1 } else { signal_value(words) };
    let has_signal = operation & (op::SIGNAL_INC | op::SIGNAL_ADD) != 0;
    if operation & op::WINDOW_SIGNAL != 0 && has_signal {
        return Ok(Action::Add { to: place(words, 1)?, value });
    }
    if operation & op::PUT == 0 || operation & op::WINDOW_SIGNAL != 0 {
        return Err(unknown(&format!("operation {operation:#x}")));
    }
    let bytes = match size {
        0 => None,
        _ => Some((source(words, operation, size)?, place(words, 3)?, size)),
    };
    let signal = has_signal.then(|| SignalAdd { index: (words[5] >> 24 & 0xff_ffff) as u32, value });
    let counter = (operation & op::COUNTER != 0).then(|| (words[5] >> 1 & 0x7f_ffff) as u32);
    Ok(Action::Put { bytes, signal, counter })
}

/// The same work as 2.28 writes it ([`SHORT_WORDS`]) in words of later versions: the operation is beside the
/// size, and counters, signals and what is added to them have 16 bits less.
pub fn lengthened(short: &[u64; WORDS]) -> [u64; WORDS] {
    let mut words = *short;
    let operation = short[0] >> 1 & 0x3f;
    let [counter, signal, low] = [8, 24, 40].map(|at| short[5] >> at & 0xffff);
    words[0] = short[0] & !(0x3f << 1);
    words[5] = short[5] & 1 | counter << 1 | signal << 24 | low << 48;
    words[7] = short[7] & 1 | operation << 8;
    words
}

/// The bytes of a put.
fn source(words: &[u64; WORDS], operation: u64, size: u64) -> Result<Source> {
    if operation & op::INLINE == 0 {
        return Ok(Source::Window(place(words, 1)?));
    }
    if size > 8 {
        return Err(unknown(&format!("a value of {size} bytes")));
    }
    let (low, high) = (words[1] >> 8 & 0xffff_ffff_ffff, words[2] >> 8 & 0xffff);
    Ok(Source::Value((low | high << 48).to_le_bytes()))
}

/// The place that two words name: an offset, and one more than the number of a window.
fn place(words: &[u64; WORDS], at: usize) -> Result<Place> {
    let (offset, handle) = (words[at] >> 1, words[at + 1] >> 1);
    let window = handle.checked_sub(1).ok_or_else(|| unknown("a window without a number"))?;
    Ok(Place { window, offset })
}

/// The number that a signal grows by, which lies in two words.
fn signal_value(words: &[u64; WORDS]) -> u64 {
    words[5] >> 48 | (words[6] >> 8 & 0xffff) << 16 | (words[6] >> 24 & 0xffff_ffff) << 32
}

fn unknown(what: &str) -> Error {
    Error::invalid_usage(format!("a kernel asks the network for {what}"))
        .remedy("compile it with the headers of NCCL 2.28.7 to 2.32.3, and pass windows that are registered")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes a descriptor as the device code does.
    fn written(operation: u64, size: u64, words: &[(usize, u64)]) -> [u64; WORDS] {
        let mut all = [1; WORDS];
        all[0] |= 2 << 1 | size << 7;
        all[7] |= operation << 8;
        for (at, word) in words {
            all[*at] |= *word;
        }
        all
    }

    fn place_words(at: usize, place: Place) -> [(usize, u64); 2] {
        [(at, place.offset << 1), (at + 1, (place.window + 1) << 1)]
    }

    #[test]
    fn values_and_signals_come_whole() {
        let to = Place { window: 3, offset: 40 };
        let value = 0x0102_0304_0506_0708u64;
        let mut words = place_words(3, to).to_vec();
        words.extend([(1, (value & 0xffff_ffff_ffff) << 8), (2, (value >> 48) << 8)]);
        words.extend([(5, 7 << 1 | 9 << 24 | 0xbeef << 48), (6, 0xcafe << 8 | 0x1234_5678 << 24)]);
        let operation = op::PUT | op::INLINE | op::SIGNAL_ADD | op::COUNTER;
        let action = read(&written(operation, 8, &words)).unwrap();
        let signal = Some(SignalAdd { index: 9, value: 0x1234_5678_cafe_beef });
        let bytes = Some((Source::Value(value.to_le_bytes()), to, 8));
        assert_eq!(action, Action::Put { bytes, signal, counter: Some(7) });
        let add = read(&written(op::WINDOW_SIGNAL | op::SIGNAL_INC, 0, &place_words(1, to))).unwrap();
        assert_eq!(add, Action::Add { to, value: 1 });
        assert_eq!(read(&written(op::FLUSH, 0, &[])).unwrap(), Action::Flush);
    }

    /// A put of a value with a counter and a signal, by the bit fields of the headers of 2.28.9.
    #[test]
    fn what_2_28_writes_means_the_same() {
        let (value, to) = (0x0102_0304_0506_0708u64, Place { window: 3, offset: 40 });
        let operation = op::PUT | op::INLINE | op::SIGNAL_ADD | op::COUNTER;
        let mut words = [0; WORDS];
        words[..SHORT_WORDS].fill(1);
        words[0] |= operation << 1 | 8 << 7;
        (words[1], words[2]) = (1 | (value & 0xffff_ffff_ffff) << 8, 1 | (value >> 48) << 8);
        place_words(3, to).into_iter().for_each(|(at, word)| words[at] |= word);
        words[5] |= 7 << 8 | 9 << 24 | 0xbeef << 40;
        words[6] |= 0xcafe << 8 | 0x1234_5678 << 24;
        let signal = Some(SignalAdd { index: 9, value: 0x1234_5678_cafe_beef });
        let bytes = Some((Source::Value(value.to_le_bytes()), to, 8));
        let put = Action::Put { bytes, signal, counter: Some(7) };
        assert_eq!(read(&lengthened(&words)).unwrap(), put);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let to = place_words(3, Place { window: 0, offset: 0 });
        for (words, text) in [
            (written(0, 8, &[]), "operation 0x0"),
            (written(op::WINDOW_SIGNAL, 0, &[]), "operation 0x20"),
            (written(op::PUT, 8, &[]), "a window without a number"),
            (written(op::GET, 8, &to), "a window without a number"),
            (written(op::PUT | op::INLINE, 9, &to), "a value of 9 bytes"),
        ] {
            assert!(read(&words).unwrap_err().text.contains(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn places_come_back(from in (0..1u64 << 40, 0..1u64 << 62), to in (0..1u64 << 40, 0..1u64 << 62),
            size in 1..1u64 << 57) {
            let [from, to] = [from, to].map(|(window, offset)| Place { window, offset });
            let words = [place_words(1, from), place_words(3, to)].concat();
            let bytes = Some((Source::Window(from), to, size));
            let put = Action::Put { bytes, signal: None, counter: None };
            prop_assert_eq!(read(&written(op::PUT, size, &words)).unwrap(), put);
            let get = Action::Get { from, to, bytes: size };
            prop_assert_eq!(read(&written(op::GET, size, &words)).unwrap(), get);
        }

        #[test]
        fn no_words_bring_it_down(words in prop::array::uniform16(any::<u64>())) {
            let _ = read(&words);
        }
    }
}

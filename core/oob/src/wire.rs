//! The protection of connections after their handshake, and the way in which a program asks a plugin in the
//! same library for it.
//!
//! Plugin interfaces have no word for protection, and third parties' plugins need none. A program that wants
//! it opens a plugin within [`offer`]; a plugin that can give it says so by [`take`]. A plugin that does not
//! ask gives none, so the program refuses it.

use std::cell::Cell;
use std::fmt;

/// The protection of what goes over connections once both ends have proved the secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Wire {
    /// No protection.
    #[default]
    Plain = 0,
    /// All bytes are encrypted and authenticated ([`crate::seal`]).
    Encrypt = 1,
}

impl Wire {
    /// Every protection there is.
    pub const ALL: [Wire; 2] = [Wire::Plain, Wire::Encrypt];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Wire::Plain => "plain",
            Wire::Encrypt => "encrypt",
        }
    }

    /// The protection that a word stands for, in any case of letters.
    pub fn parse(word: &str) -> Option<Wire> {
        Self::ALL.into_iter().find(|wire| wire.name().eq_ignore_ascii_case(word))
    }

    /// Its number in messages.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The protection of a number.
    pub fn of_code(code: u8) -> Option<Wire> {
        Self::ALL.into_iter().find(|wire| wire.code() == code)
    }

    /// True if bytes are sealed.
    pub fn is_sealed(self) -> bool {
        self != Wire::Plain
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

thread_local! {
    /// The protection that is asked for on this thread, and whether somebody has taken it.
    static OFFERED: Cell<(Wire, bool)> = const { Cell::new((Wire::Plain, false)) };
}

/// Runs `open`, which may [`take`] the protection that is wanted, on this thread. Returns whether it did.
pub fn offer<T>(wire: Wire, open: impl FnOnce() -> T) -> (T, bool) {
    /// Puts back what was offered before, also after a panic.
    struct Before((Wire, bool));
    impl Drop for Before {
        fn drop(&mut self) {
            OFFERED.set(self.0);
        }
    }
    let _before = Before(OFFERED.replace((wire, false)));
    let opened = open();
    (opened, OFFERED.get().1)
}

/// The protection that is wanted of what is opened now on this thread. Who asks promises to give it.
pub fn take() -> Wire {
    let (wire, _) = OFFERED.get();
    OFFERED.set((wire, true));
    wire
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_holds_for_one_opening() {
        assert_eq!(take(), Wire::Plain);
        assert_eq!(offer(Wire::Encrypt, take), (Wire::Encrypt, true));
        assert_eq!(offer(Wire::Encrypt, || 7), (7, false));
        let inner = || (offer(Wire::Plain, take), take());
        assert_eq!(offer(Wire::Encrypt, inner), (((Wire::Plain, true), Wire::Encrypt), true));
        assert_eq!(take(), Wire::Plain);
        let _ = std::panic::catch_unwind(|| offer(Wire::Encrypt, || panic!("in a plugin")));
        assert_eq!(take(), Wire::Plain);
    }

    #[test]
    fn words_and_numbers_stand_for_protections() {
        for wire in Wire::ALL {
            assert_eq!((Wire::parse(wire.name()), Wire::of_code(wire.code())), (Some(wire), Some(wire)));
        }
        assert_eq!((Wire::parse("ENCRYPT"), Wire::parse("tls")), (Some(Wire::Encrypt), None));
        assert_eq!(Wire::of_code(9), None);
    }
}

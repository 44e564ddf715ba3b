//! Entry point for a fuzz target: what other ranks put here.

use super::message::{Header, Sums};

/// Reads bytes as a message, with a checksum and without.
///
/// # Panics
/// A header that was read does not come back when it is written.
pub fn message(bytes: &[u8]) {
    for sums in [Sums::No, Sums::Yes] {
        let Ok((header, rest)) = Header::read(bytes, sums) else { continue };
        let fill = |room: &mut [u8]| {
            room.copy_from_slice(rest);
            Ok(())
        };
        let again = header.message(rest.len(), sums, fill).expect("nothing fails");
        assert_eq!(Header::read(&again, sums).ok(), Some((header, rest)));
    }
}

//! Entry point for a fuzz target: what other ranks put here.

use super::message::Header;

/// Reads bytes as a message.
///
/// # Panics
/// A header that was read does not come back when it is written.
pub fn message(bytes: &[u8]) {
    let Ok((header, rest)) = Header::read(bytes) else { return };
    let fill = |room: &mut [u8]| {
        room.copy_from_slice(rest);
        Ok(())
    };
    let again = header.message(rest.len(), fill).expect("nothing fails");
    assert_eq!(Header::read(&again).ok(), Some((header, rest)));
}

//! Entry points for fuzz targets: what a stranger may send to a listener, and what a peer may send on a connection.

use hawser_plugin::net::Handle;

use crate::handle::{MAGIC, Place, check_sum};
use crate::hello::{BLOCK, Block, FIRST, Talk, is_for};
use crate::proto::wire::Message;

/// Reads bytes as a message of the control queue pairs.
///
/// # Panics
/// A message that was written cannot be read again.
pub fn message(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        assert!(Message::decode(&message.encode()).is_ok(), "{message:?}");
    }
}

/// Reads bytes as the handle of a listener, as they are and with the right beginning and check sum.
///
/// # Panics
/// What was read does not come back when it is written.
pub fn handle(bytes: &Handle) {
    let _ = Place::decode(bytes);
    let mut bytes = *bytes;
    bytes[..4].copy_from_slice(&MAGIC);
    let sum = check_sum(&bytes);
    bytes[4..8].copy_from_slice(&sum);
    if let Ok(place) = Place::decode(&bytes) {
        assert_eq!(Place::decode(&place.encode()).map(|again| again.encode()), Ok(place.encode()));
    }
}

/// Reads bytes as the messages of the handshake; the secret is all zeros.
pub fn handshake(bytes: &[u8]) {
    if let Some((first, rest)) = bytes.split_first_chunk::<FIRST>() {
        let _ = is_for(first, 0);
        let _ = Talk::new([0; 32], first).hear(1, rest);
    }
    if let Some(block) = bytes.first_chunk::<BLOCK>() {
        let _ = Block::decode(block);
    }
}

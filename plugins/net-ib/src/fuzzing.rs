//! Entry points for fuzz targets: what a stranger may send to a listener, and what a peer may send on a
//! connection.

use hawser_oob::fuzzing;
use hawser_plugin::net::Handle;

use crate::handshake::{Block, HANDLE, PROTOCOL, key};
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

/// Reads bytes as the handle of a listener.
///
/// # Panics
/// Bytes that were read do not come back when they are written.
pub fn handle(bytes: &Handle) {
    fuzzing::handle(HANDLE, bytes);
}

/// Reads bytes as the messages of the handshake; the secret is all zeros.
///
/// # Panics
/// Bytes without the secret pass for a proof.
pub fn handshake(bytes: &[u8]) {
    fuzzing::handshake(PROTOCOL, &key(&[0; 32]), bytes);
    let _ = Block::decode(bytes);
}

//! Entry points for fuzz targets: what a stranger may send to a listener, and what a peer may send on a
//! connection.

use hawser_oob::handle::{ConnectInfo, seal};
use hawser_oob::handshake::{Connector, Responder};
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

/// Reads bytes as the handle of a listener, as they are and with the right beginning and check sum.
///
/// # Panics
/// What was read does not come back when it is written.
pub fn handle(bytes: &Handle) {
    let _ = ConnectInfo::decode(HANDLE, bytes);
    let mut bytes = *bytes;
    seal(HANDLE, &mut bytes);
    if let Ok(info) = ConnectInfo::decode(HANDLE, &bytes) {
        assert_eq!(ConnectInfo::decode(HANDLE, &info.encode(HANDLE)), Ok(info));
    }
}

/// Reads bytes as the messages of the handshake; the secret is all zeros.
///
/// # Panics
/// Bytes without the secret pass for a proof.
pub fn handshake(bytes: &[u8]) {
    let key = key(&[0; 32]);
    if let Some((greeting, rest)) = bytes.split_at_checked(PROTOCOL.greeting_bytes()) {
        let _ = PROTOCOL.read_greeting(greeting);
        assert!(Responder::new(PROTOCOL, &key, greeting, [0; 32]).0.check(rest).is_none());
    }
    let greeting = vec![0; PROTOCOL.greeting];
    let mut connector = Connector::new(PROTOCOL, &key, [0; 32], &greeting);
    assert!(connector.answer(bytes, &vec![0; PROTOCOL.answer]).is_err());
    assert!(connector.welcomed(bytes).is_err());
    let _ = Block::decode(bytes);
}

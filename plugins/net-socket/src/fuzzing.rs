//! Entry points for fuzz targets: what a stranger may send to a listener, and what a peer may send on a
//! connection.

use hawser_oob::handle::{ConnectInfo, read_addresses, seal};
use hawser_oob::handshake::{Connector, Responder};
use hawser_plugin::net::Handle;

use crate::frame::{CHUNK_HEADER, ChunkHeader, Record};
use crate::greeting::{Answer, HANDLE, Hello, PROTOCOL, Welcome, key};

/// Reads bytes as records of the control connection and as headers of chunks.
///
/// # Panics
/// What was read does not come back when it is written.
pub fn frame(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some((record, used))) = Record::parse(rest) {
        let mut again = Vec::new();
        record.encode(|part| again.extend_from_slice(part));
        assert_eq!(Record::parse(&again), Ok(Some((record, again.len()))));
        rest = &rest[used..];
    }
    if let Some(header) = bytes.first_chunk::<CHUNK_HEADER>()
        && let Ok(chunk) = ChunkHeader::parse(header)
    {
        assert_eq!(chunk.encode(), *header);
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
    assert!(connector.answer(bytes, &[0; PROTOCOL.answer]).is_err());
    assert!(connector.welcomed(bytes).is_err());
    let _ = (Hello::parse(bytes), Answer::parse(bytes), Welcome::parse(bytes));
    if let Some((count, addresses)) = bytes.split_first() {
        let _ = read_addresses(*count, addresses);
    }
}

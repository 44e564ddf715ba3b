//! The functions that fuzz targets call on handles, handshakes and seals, for every crate that uses them.

use crate::handle::{ConnectInfo, HANDLE_BYTES, seal};
use crate::handshake::{Connector, Key, Protocol, Responder};
use crate::seal::{Records, SessionKeys};
use crate::socket::Moved;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Reads bytes as the handle of a listener, as they are and with the right beginning and check sum.
///
/// # Panics
/// Bytes that were read do not come back when they are written.
pub fn handle(magic: [u8; 4], bytes: &[u8; HANDLE_BYTES]) {
    let _ = ConnectInfo::decode(magic, bytes);
    let mut bytes = *bytes;
    seal(magic, &mut bytes);
    if let Ok(info) = ConnectInfo::decode(magic, &bytes) {
        assert_eq!(ConnectInfo::decode(magic, &info.encode(magic)), Ok(info));
    }
}

/// Reads bytes as the messages of a handshake, by either end, which know a key that the sender does not know.
///
/// # Panics
/// Bytes without the key pass for a proof.
pub fn handshake(protocol: Protocol, key: &Key, bytes: &[u8]) {
    if let Some((greeting, rest)) = bytes.split_at_checked(protocol.greeting_bytes()) {
        let _ = protocol.read_greeting(greeting);
        assert!(Responder::new(protocol, key, greeting, [0; 32]).0.check(rest).is_none());
    }
    let greeting = vec![0; protocol.greeting];
    let mut connector = Connector::new(protocol, key, [0; 32], &greeting);
    assert!(connector.answer(bytes, &vec![0; protocol.answer]).is_err());
    assert!(connector.welcomed(bytes).is_err());
    records(bytes);
}

/// Reads bytes as what comes behind the handshake where that is sealed, under a key that the sender does not
/// know.
fn records(bytes: &[u8]) {
    let Ok((near, mut far)) = UnixStream::pair() else { return };
    let bytes = &bytes[..bytes.len().min(MOST_BYTES)];
    if near.set_nonblocking(true).is_err() || far.write_all(bytes).is_err() {
        return;
    }
    for reads_ahead in [false, true] {
        let mut records = Records::new(SessionKeys::derive(&[1; 32], b"said", true), reads_ahead);
        let believed = records.receive(near.as_fd(), &mut [0; 64]);
        assert!(!matches!(believed, Ok(Moved::Bytes(1..))));
    }
}

/// Bytes that a socket takes though nobody reads.
const MOST_BYTES: usize = 16 << 10;

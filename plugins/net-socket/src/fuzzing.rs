//! Entry points for fuzz targets: what a stranger may send to a listener, and what a peer may send on a
//! connection.

use hawser_oob::fuzzing;
use hawser_oob::handle::read_addresses;
use hawser_plugin::net::Handle;

use crate::frame::{CHUNK_HEADER, ChunkHeader, Record};
use crate::greeting::{Answer, HANDLE, Hello, PROTOCOL, Welcome, key};

/// Reads bytes as records of the control connection and as headers of chunks.
///
/// # Panics
/// Bytes that were read do not come back when they are written.
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
    let _ = (Hello::parse(bytes), Answer::parse(bytes), Welcome::parse(bytes));
    if let Some((count, addresses)) = bytes.split_first() {
        let _ = read_addresses(*count, addresses);
    }
}

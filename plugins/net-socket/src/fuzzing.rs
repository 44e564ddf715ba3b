//! Entry points for fuzz targets: what a stranger may send to a listener, and what a peer may send on a connection.

use hawser_plugin::net::Handle;

use crate::auth::{ANSWER, Answer, CHALLENGE, Challenge, HELLO, Hello, Proof, WELCOME, Welcome};
use crate::frame::{CHUNK_HEADER, ChunkHeader, Record};
use crate::handle::{MAGIC, Place, check_sum, read_addresses};

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
    let _ = Place::decode(bytes);
    let mut bytes = *bytes;
    bytes[..4].copy_from_slice(&MAGIC);
    let sum = check_sum(&bytes);
    bytes[4..8].copy_from_slice(&sum);
    if let Ok(place) = Place::decode(&bytes) {
        assert_eq!(Place::decode(&place.encode()), Ok(place));
    }
}

/// Reads bytes as the messages of the handshake; the secret is all zeros.
pub fn handshake(bytes: &[u8]) {
    let secret = [0; 32];
    if let Some(hello) = bytes.first_chunk::<HELLO>() {
        let _ = Hello::parse(hello);
        let proof = Proof::new(secret, *hello, [0; 32]);
        let rest = &bytes[HELLO..];
        let _ =
            rest.first_chunk::<CHALLENGE>().map(|bytes| Challenge::parse(bytes, secret, *hello).is_some());
        let _ = rest.first_chunk::<ANSWER>().map(|bytes| Answer::parse(bytes, &proof).is_some());
        let _ = rest.first_chunk::<WELCOME>().map(|bytes| Welcome::parse(bytes, &proof).is_some());
    }
    if let Some((count, addresses)) = bytes.split_first() {
        let _ = read_addresses(*count, addresses);
    }
}

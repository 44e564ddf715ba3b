//! Entry point for a fuzz target: what other processes send while a communicator comes up.

use super::fate;
use super::meet::Hello;
use super::wire::{HEADER, Header, decode_failure, decode_parts, decode_ranks, decode_status};

/// The longest payload that the target lets a header announce, in bytes.
const LIMIT: usize = 1 << 20;

/// Reads bytes as a frame, and its payload as each of the payloads that a frame may have.
///
/// # Panics
/// A header that was read does not come back when it is written.
pub fn frame(bytes: &[u8]) {
    let Some((head, payload)) = bytes.split_first_chunk::<HEADER>() else { return };
    if let Ok(header) = Header::parse(head, LIMIT) {
        assert_eq!(header.encode().ok(), Some(*head));
    }
    if let Ok(hello) = Hello::decode(payload) {
        assert_eq!(Hello::decode(&hello.encode()).ok(), Some(hello));
    }
    for count in [0, 1, 3] {
        let _ = decode_parts(payload, count);
    }
    let _ = fate::decode(u64::MAX, payload);
    if let Ok((rank, end, age)) = fate::decode(3, payload) {
        let _ = fate::encode(rank, &end, age);
    }
    let _ = decode_ranks(payload);
    let _ = decode_status(payload);
    let _ = decode_failure(payload);
}

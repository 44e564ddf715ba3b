//! Entry points for fuzz targets: what other ranks and clients of the control socket send about changes of
//! rules.

use super::{learn, wire};

/// Reads bytes as a message of the protocol and as a list of times.
///
/// # Panics
/// A message that was read does not come back when it is written.
pub fn message(bytes: &[u8]) {
    if let Some(message) = wire::decode(bytes) {
        let again = wire::decode(&wire::encode(&message)).expect("a message that was written");
        assert_eq!(wire::encode(&again), wire::encode(&message));
    }
    let _ = learn::decode(bytes);
}

/// Reads bytes as the content of a change: names and texts of files.
///
/// # Panics
/// Content that was read does not come back when it is written.
pub fn content(bytes: &[u8]) {
    if let Some(files) = wire::unpack(bytes) {
        assert_eq!(wire::unpack(&wire::pack(&files)), Some(files));
    }
}

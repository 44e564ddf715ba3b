//! A key that the program gives to all ranks by its own means, beside the unique id (`ncclSetEncryption`).
//! With it everything is sealed, and who has the unique id alone is a stranger.

use std::sync::{Mutex, PoisonError};

use hawser_oob::sha256;

use super::auth::Secret;

/// The key of this process.
static KEY: Mutex<Option<Secret>> = Mutex::new(None);

/// Sets the key of the communicators, and of the unique ids, that are made from now on; None: none. All ranks
/// need the same, and have to set it before the unique id is made.
pub fn set_pre_shared_key(key: Option<&[u8]>) {
    let key = key.map(|key| sha256::mac(key, b"hawser pre-shared key"));
    *KEY.lock().unwrap_or_else(PoisonError::into_inner) = key;
}

/// The key that was set.
pub(super) fn pre_shared_key() -> Option<Secret> {
    *KEY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The secret of an id where there is such a key: nobody knows it who has only one of the two.
pub(super) fn mixed(id_secret: &Secret, key: Option<&Secret>) -> Secret {
    match key {
        Some(key) => sha256::mac(key, &[b"hawser with pre-shared key".as_slice(), id_secret].concat()),
        None => *id_secret,
    }
}

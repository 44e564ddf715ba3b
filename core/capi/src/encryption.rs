//! Encryption of the library's own sockets: none is offered.

use hawser_runtime::Error;

use crate::args::In;
use crate::types::{API_MAGIC, EncryptionConfig};

nccl_api! {
    /// Sets the encryption of the library's own sockets: none. NULL stands for that.
    fn ncclSetEncryption / pncclSetEncryption(config: In<EncryptionConfig>) {
        if config.is_null() {
            return Ok(());
        }
        let config = config.read_versioned("config", EncryptionConfig::UNDEFINED, API_MAGIC)?;
        match config.mode {
            EncryptionConfig::NO_ENCRYPTION => Ok(()),
            EncryptionConfig::PRE_SHARED_KEY => Err(no_pre_shared_key(config)),
            mode => Err(Error::invalid_argument(format!("config->mode {mode} is not a mode of encryption"))
                .remedy("use NCCL_ENCRYPTION_MODE_NONE (0)")),
        }
    }
}

/// The fewest bytes of a pre-shared key that NCCL takes.
const LEAST_KEY_BYTES: usize = 32;

fn no_pre_shared_key(config: EncryptionConfig) -> Error {
    if In::inside(config.psk).text().is_none_or(|key| key.len() < LEAST_KEY_BYTES) {
        return Error::invalid_argument(format!("config->psk has less than {LEAST_KEY_BYTES} bytes"))
            .remedy("pass a longer key; this library has no TLS to use it for");
    }
    Error::invalid_usage(
        "NCCL_ENCRYPTION_MODE_PSK is not offered: this library has no TLS, sockets carry data in the clear",
    )
    .remedy("pass NCCL_ENCRYPTION_MODE_NONE and encrypt below, by WireGuard or IPsec between the hosts")
}

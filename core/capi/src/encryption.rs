//! Encryption of the library's own sockets.

use hawser_runtime::{Error, set_pre_shared_key};

use crate::args::In;
use crate::types::{API_MAGIC, EncryptionConfig};

nccl_api! {
    /// Sets the encryption of what goes over TCP between ranks, for unique ids and communicators that are
    /// made from now on. With a pre-shared key, which all ranks have to set before the unique id is made,
    /// control connections and data are encrypted (AES-256-GCM, not TLS as in NVIDIA's library), and nobody
    /// joins who has the unique id alone; nets that cannot encrypt are refused at init. Without (NULL or
    /// NONE) `HAWSER_WIRE` says what is done.
    fn ncclSetEncryption / pncclSetEncryption(config: In<EncryptionConfig>) {
        if config.is_null() {
            set_pre_shared_key(None);
            return Ok(());
        }
        let config = config.read_versioned("config", EncryptionConfig::UNDEFINED, API_MAGIC)?;
        match config.mode {
            EncryptionConfig::NO_ENCRYPTION => set_pre_shared_key(None),
            EncryptionConfig::PRE_SHARED_KEY => set_pre_shared_key(Some(key_of(&config)?.as_bytes())),
            mode => {
                let text = format!("config->mode {mode} is not a mode of encryption");
                let remedy = "use NCCL_ENCRYPTION_MODE_NONE (0) or NCCL_ENCRYPTION_MODE_PSK (1)";
                return Err(Error::invalid_argument(text).remedy(remedy));
            }
        }
        Ok(())
    }
}

/// The fewest bytes of a pre-shared key that NCCL takes.
const LEAST_KEY_BYTES: usize = 32;

fn key_of(config: &EncryptionConfig) -> Result<String, Error> {
    let refuse = |why: String| {
        Error::invalid_argument(format!("config->psk {why}"))
            .remedy("pass a longer random key, the same on all ranks (openssl rand -hex 32)")
    };
    match In::inside(config.psk).text() {
        // Keys that differ in what is replaced would be one.
        Some(key) if key.contains(char::REPLACEMENT_CHARACTER) => Err(refuse("is no text in UTF-8".into())),
        Some(key) if key.len() >= LEAST_KEY_BYTES => Ok(key),
        _ => Err(refuse(format!("has less than {LEAST_KEY_BYTES} bytes"))),
    }
}

//! The unique id that `NCCL_COMM_ID` stands for: every rank makes the same one by itself.
//!
//! Its secret is a keyed hash of the address under the key of `HAWSER_COMM_ID_KEY_FILE`. Without a key it
//! follows from the address alone: that keeps out accidents, and whoever knows the address can take a rank's
//! place. The log says so once.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Once;

use hawser_base::error::{Error, Result};
use hawser_base::files;
use hawser_oob::sha256;

use super::id::UniqueId;
use super::{Remark, Settings, remark};

/// The key where the user gives none, which is no secret.
const NO_KEY: &[u8] = b"hawser bootstrap NCCL_COMM_ID secret";

/// The same id on every rank that has the same `NCCL_COMM_ID` and the same key.
///
/// # Errors
/// `InvalidUsage` when the address is malformed, or the key cannot be read or is too short.
pub(super) fn unique_id(comm_id: &str, settings: &Settings) -> Result<UniqueId> {
    let address = address(comm_id, settings)?;
    let place = address.to_string();
    let key = match &settings.comm_id_key_file {
        Some(file) => key(file)?,
        None if settings.wire.is_sealed() && settings.pre_shared.is_none() => {
            let text = format!(
                "HAWSER_WIRE={} with NCCL_COMM_ID needs a secret, and the address is none",
                settings.wire
            );
            return Err(Error::invalid_usage(text).remedy(
                "give all ranks a file with the same random key (HAWSER_COMM_ID_KEY_FILE), or a pre-shared \
                 key (ncclSetEncryption)",
            ));
        }
        None => {
            warn_of_weakness(&place);
            NO_KEY.to_vec()
        }
    };
    let mut nonce = [0; 16];
    nonce.copy_from_slice(&sha256::hash(place.as_bytes())[..16]);
    Ok(UniqueId { address, fixed: true, secret: sha256::mac(&key, place.as_bytes()), nonce })
}

/// The address that the text names, of the family that the settings want.
fn address(comm_id: &str, settings: &Settings) -> Result<SocketAddr> {
    let refuse = |why: String| {
        Error::invalid_usage(format!("NCCL_COMM_ID={comm_id}: {why}"))
            .remedy("give it as host:port or [ipv6]:port")
    };
    let mut found = comm_id.trim().to_socket_addrs().map_err(|error| refuse(error.to_string()))?;
    let address = found.find(|address| settings.family.is_none_or(|family| family.has(address.ip())));
    let address = address.ok_or_else(|| refuse("no address of the wanted family".into()))?;
    if address.port() == 0 {
        return Err(refuse("port 0".into()));
    }
    Ok(SocketAddr::new(address.ip(), address.port()))
}

/// The key in a file; the log says once if others can read it.
fn key(file: &Path) -> Result<Vec<u8>> {
    static SAID: Once = Once::new();
    let name = file.display();
    let key = files::read_key(file).map_err(|error| {
        Error::invalid_usage(format!("HAWSER_COMM_ID_KEY_FILE={name}: {error}"))
            .remedy("every rank needs to read a file with the same key of 16 bytes or more")
    })?;
    if files::is_readable_by_others(file) {
        SAID.call_once(|| {
            let text = format!("every user of this host can read the key in {name}: chmod 600 {name}");
            remark(Remark::Warning, &text);
        });
    }
    Ok(key)
}

/// Says once that the id of an address without a key is no secret.
fn warn_of_weakness(place: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let text = format!(
            "NCCL_COMM_ID without HAWSER_COMM_ID_KEY_FILE: whoever reaches {place} can take a rank's place; \
             give all ranks a file with the same random key (see SECURITY.md)"
        );
        remark(Remark::Warning, &text);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_base::error::ErrorKind;
    use std::path::PathBuf;

    fn settings(comm_id: &str, key_file: Option<&Path>) -> Settings {
        Settings {
            comm_id: Some(comm_id.into()),
            comm_id_key_file: key_file.map(PathBuf::from),
            ..Settings::default()
        }
    }

    #[test]
    fn an_address_gives_the_same_id_everywhere() {
        let settings_of = |comm_id| settings(comm_id, None);
        let id = UniqueId::create(&settings_of("127.0.0.1:7788")).unwrap();
        assert_eq!(id, UniqueId::create(&settings_of("127.0.0.1:7788")).unwrap());
        assert_eq!(id.address().to_string(), "127.0.0.1:7788");
        for bad in ["127.0.0.1", "127.0.0.1:0", "127.0.0.1:port", ""] {
            let error = UniqueId::create(&settings_of(bad)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidUsage, "{bad}");
        }
    }

    #[test]
    fn a_key_makes_the_secret_and_nothing_else() {
        let file = std::env::temp_dir().join(format!("hawser-comm-id-key-{}", std::process::id()));
        let with = |key: &[u8]| {
            std::fs::write(&file, key).unwrap();
            UniqueId::create(&settings("127.0.0.1:7788", Some(&file)))
        };
        let id = with(b"0123456789abcdef").unwrap();
        assert_eq!(id, with(b"0123456789abcdef\n").unwrap());
        let others = [
            with(b"0123456789abcdeF").unwrap(),
            UniqueId::create(&settings("127.0.0.1:7788", None)).unwrap(),
        ];
        for other in others {
            assert_ne!(id.secret, other.secret);
            assert_eq!((id.address, id.nonce), (other.address, other.nonce));
        }
        let short = with(b"secret").unwrap_err();
        std::fs::remove_file(&file).unwrap();
        let missing = UniqueId::create(&settings("127.0.0.1:7788", Some(&file))).unwrap_err();
        for (error, why) in [(short, "6 bytes"), (missing, "No such file")] {
            assert_eq!(error.kind, ErrorKind::InvalidUsage);
            assert!(error.text.contains("HAWSER_COMM_ID_KEY_FILE=") && error.text.contains(why), "{error}");
        }
    }
}

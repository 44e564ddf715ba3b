//! The unique id: where ranks meet and the secret that lets them in, in 128 bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | magic |
//! | 8 | version |
//! | 9 | 1 if the address comes from `NCCL_COMM_ID`, else 0 |
//! | 10..29 | address of the root, as [`write_address`] makes it |
//! | 32..64 | secret |
//! | 64..80 | nonce: tells ids apart in logs and lists |
//! | 112..128 | checksum over all before it |

use super::auth::Secret;
use super::wire::Fields;
use super::{Settings, comm_id, listen_address, random, root};
use hawser_base::error::{Error, Result};
use hawser_oob::handle::{ADDRESS_BYTES, read_address, write_address};
use hawser_oob::sha256;
use hawser_oob::socket::{self, Options};
use std::fmt;
use std::net::SocketAddr;

const MAGIC: [u8; 8] = *b"HAWSERid";
const VERSION: u8 = 3;
const SUM_AT: usize = 112;

/// An id of a communicator to be, as `ncclUniqueId` carries it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    /// The address at which the root listens.
    pub(super) address: SocketAddr,
    /// From `NCCL_COMM_ID`: nobody listens yet, rank 0 will.
    pub(super) fixed: bool,
    /// The secret that lets ranks in.
    pub(super) secret: Secret,
    /// Random bytes that tell ids apart.
    pub(super) nonce: [u8; 16],
}

impl UniqueId {
    /// Length of an id in bytes.
    pub const LEN: usize = 128;

    /// Makes an id and starts its root in this process: a thread that ends when all ranks have met, when
    /// nobody comes for `settings.init_timeout` after the first one, or on [`super::stop_root`].
    ///
    /// With `settings.comm_id` there is no root yet: rank 0 starts it in [`super::Bootstrap::join`]. The
    /// secret then comes from `settings.comm_id_key_file`; see `comm_id`.
    ///
    /// # Errors
    /// `InvalidUsage` when no interface fits, `comm_id` is malformed or its key cannot be read; `System` when
    /// the listener cannot be opened.
    pub fn create(settings: &Settings) -> Result<UniqueId> {
        if let Some(comm_id) = &settings.comm_id {
            return comm_id::unique_id(comm_id, settings);
        }
        let ip = listen_address(settings, None)?;
        let (listener, address) = socket::listen(SocketAddr::new(ip, 0), &Options::default())
            .map_err(|errno| Error::system(format!("listening on {ip} for the unique id"), errno))?;
        let id = UniqueId { address, fixed: false, secret: random()?, nonce: random()? };
        root::start_registered(&id, listener, settings)?;
        Ok(id)
    }

    /// The id as `ncclUniqueId` carries it.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = VERSION;
        bytes[9] = self.fixed.into();
        bytes[10..10 + ADDRESS_BYTES].copy_from_slice(&write_address(self.address));
        bytes[32..64].copy_from_slice(&self.secret);
        bytes[64..80].copy_from_slice(&self.nonce);
        let sum = checksum(&bytes);
        bytes[SUM_AT..].copy_from_slice(&sum);
        bytes
    }

    /// Reads an id that came from another process.
    ///
    /// # Errors
    /// `InvalidArgument` that tells an empty, a foreign and a damaged id apart.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<UniqueId> {
        let refuse = |what: &str| {
            Error::invalid_argument(format!("the unique id {what}"))
                .remedy("call ncclGetUniqueId on one rank and copy all 128 bytes to the others")
        };
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(refuse("is empty (all bytes are zero)"));
        }
        if bytes[..8] != MAGIC {
            return Err(refuse("was not made by this library"));
        }
        if bytes[8] != VERSION {
            return Err(refuse(&format!("has version {}, this library uses {VERSION}", bytes[8])));
        }
        if bytes[SUM_AT..] != checksum(bytes) {
            return Err(refuse("is damaged (wrong checksum)"));
        }
        let address = read_address(&bytes[10..]).ok_or_else(|| refuse("has an unknown address family"))?.0;
        let mut fields = Fields::new(&bytes[32..80]);
        Ok(UniqueId { address, fixed: bytes[9] == 1, secret: fields.array()?, nonce: fields.array()? })
    }

    /// The address at which the root listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Never prints the secret.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({}, {:02x}{:02x}…)", self.address, self.nonce[0], self.nonce[1])
    }
}

fn checksum(bytes: &[u8; UniqueId::LEN]) -> [u8; UniqueId::LEN - SUM_AT] {
    let mut sum = [0; UniqueId::LEN - SUM_AT];
    sum.copy_from_slice(&sha256::hash(&bytes[..SUM_AT])[..UniqueId::LEN - SUM_AT]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_base::error::ErrorKind;
    use proptest::prelude::*;

    fn sample(address: &str) -> UniqueId {
        UniqueId { address: address.parse().unwrap(), fixed: false, secret: [3; 32], nonce: [4; 16] }
    }

    #[test]
    fn ids_survive_and_hide_their_secret() {
        for address in ["10.1.2.3:4567", "[fd00::1]:9"] {
            let id = sample(address);
            assert_eq!(UniqueId::from_bytes(&id.to_bytes()).unwrap(), id);
            assert!(!format!("{id:?}").contains("3, 3"));
        }
    }

    #[test]
    fn empty_foreign_and_damaged_ids_are_told_apart() {
        let text = |bytes: &[u8; 128]| {
            let error = UniqueId::from_bytes(bytes).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            error.into_text()
        };
        assert!(text(&[0; 128]).contains("empty"));
        assert!(text(&[7; 128]).contains("not made by this library"));
        let good = sample("10.1.2.3:4567").to_bytes();
        for at in 9..128 {
            let mut bad = good;
            bad[at] ^= 0x10;
            assert!(text(&bad).contains("damaged"), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 128), dress: bool, family in 3u8..8
        ) {
            if dress {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8] = VERSION;
                bytes[10] = family;
            }
            let mut bytes: [u8; 128] = bytes.try_into().unwrap();
            if dress {
                let sum = checksum(&bytes);
                bytes[SUM_AT..].copy_from_slice(&sum);
            }
            let parsed = UniqueId::from_bytes(&bytes);
            prop_assert_eq!(parsed.is_ok(), dress && (family == 4 || family == 6));
        }
    }
}

//! The 128 bytes that the host carries from a listener to its sender: where to dial, and a secret.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | magic |
//! | 4 | check sum of the rest |
//! | 8 | number of the listener |
//! | 32 | secret |
//! | 2 | port |
//! | 1 | number of addresses |
//! | 77 | addresses, 16 bytes each (IPv4 mapped): four of them |

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use hawser_plugin::net::{HANDLE_BYTES, Handle};

pub(crate) const MAGIC: [u8; 4] = *b"HwI2";
/// Addresses that have room.
pub(crate) const MOST_ADDRESSES: usize = 4;

/// What a handle says.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub listener: u64,
    pub secret: [u8; 32],
    /// One to four.
    pub addresses: Vec<SocketAddr>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "listener {:x} at {:?}", self.listener, self.addresses)
    }
}

impl Place {
    pub fn encode(&self) -> Handle {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.listener.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.secret);
        let addresses = &self.addresses[..self.addresses.len().min(MOST_ADDRESSES)];
        let port = addresses.first().map_or(0, SocketAddr::port);
        bytes[48..50].copy_from_slice(&port.to_le_bytes());
        bytes[50] = addresses.len() as u8;
        for (at, address) in addresses.iter().enumerate() {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[51 + 16 * at..67 + 16 * at].copy_from_slice(&ip.octets());
        }
        let sum = check_sum(&bytes);
        bytes[4..8].copy_from_slice(&sum);
        bytes
    }

    /// # Errors
    /// A sentence that says what is wrong with the bytes.
    pub fn decode(bytes: &Handle) -> Result<Self, String> {
        if bytes[..4] != MAGIC {
            return Err("the handle is not one of this plugin (other plugin or version at the peer)".into());
        }
        if bytes[4..8] != check_sum(bytes) {
            return Err("the handle is damaged: its check sum is wrong".into());
        }
        let count = usize::from(bytes[50]);
        if count == 0 || count > MOST_ADDRESSES {
            return Err(format!("the handle has {count} addresses, expected 1 to {MOST_ADDRESSES}"));
        }
        let port = u16::from_le_bytes([bytes[48], bytes[49]]);
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[51 + 16 * at..67 + 16 * at]);
            SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port)
        };
        let mut listener = [0; 8];
        listener.copy_from_slice(&bytes[8..16]);
        let mut secret = [0; 32];
        secret.copy_from_slice(&bytes[16..48]);
        Ok(Self {
            listener: u64::from_le_bytes(listener),
            secret,
            addresses: (0..count).map(address).collect(),
        })
    }
}

pub(crate) fn check_sum(bytes: &Handle) -> [u8; 4] {
    let mut sum = [0; 4];
    sum.copy_from_slice(&hmac_sha256::Hash::hash(&bytes[8..])[..4]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_come_back(listener: u64, secret: [u8; 32], port: u16, ips in prop::collection::vec(any::<IpAddr>(), 1..=4)) {
            let addresses = ips.iter().map(|ip| SocketAddr::new(ip.to_canonical(), port)).collect();
            let place = Place { listener, secret, addresses };
            prop_assert_eq!(Place::decode(&place.encode()), Ok(place));
        }

        #[test]
        fn a_changed_handle_is_refused(at in 0usize..HANDLE_BYTES, bit in 0u8..8) {
            let addresses = vec!["10.0.0.1:7".parse().unwrap()];
            let mut bytes = Place { listener: 1, secret: [2; 32], addresses }.encode();
            bytes[at] ^= 1 << bit;
            prop_assert!(Place::decode(&bytes).is_err());
        }
    }
}

//! The 128 bytes that the host carries from a listener to its sender.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | magic |
//! | 4 | check sum of the rest: a handle that was cut or mixed up is noticed at once |
//! | 8 | number of the listener |
//! | 32 | secret that both ends of every socket prove to know |
//! | 1 | number of addresses, 1 to 8 |
//! | 79 | the addresses: family (4 or 6), port, address; what has no room is told when the connection is up |
//!
//! Numbers are little-endian, ports and addresses in network order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hawser_plugin::net::{HANDLE_BYTES, Handle, MAX_VIRTUAL};

pub(crate) const MAGIC: [u8; 4] = *b"HwS2";
const CHECKED: usize = 8;
const ADDRESSES: usize = 48;

/// Longest encoding of one address.
pub(crate) const ADDRESS_BYTES: usize = 19;

/// What a handle says.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub listener: u64,
    pub secret: [u8; 32],
    /// Never empty. Link-local addresses without scope: that is the reader's own.
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
        let (count, _) = write_addresses(&self.addresses, &mut bytes[ADDRESSES + 1..]);
        bytes[ADDRESSES] = count;
        let sum = check_sum(&bytes);
        bytes[4..8].copy_from_slice(&sum);
        bytes
    }

    /// # Errors
    /// A sentence that says what is wrong with the bytes.
    pub fn decode(bytes: &Handle) -> Result<Place, String> {
        if bytes[..4] != MAGIC {
            return Err("the handle is not one of this plugin (other plugin or version at the peer)".into());
        }
        if bytes[4..8] != check_sum(bytes) {
            return Err("the handle is damaged: its check sum is wrong".into());
        }
        let addresses = read_addresses(bytes[ADDRESSES], &bytes[ADDRESSES + 1..])?;
        let mut listener = [0; 8];
        listener.copy_from_slice(&bytes[8..16]);
        let mut secret = [0; 32];
        secret.copy_from_slice(&bytes[16..48]);
        Ok(Place { listener: u64::from_le_bytes(listener), secret, addresses })
    }
}

pub(crate) fn check_sum(bytes: &Handle) -> [u8; 4] {
    let mut sum = [0; 4];
    sum.copy_from_slice(&hmac_sha256::Hash::hash(&bytes[CHECKED..])[..4]);
    sum
}

/// Writes as many addresses as fit. Returns how many, and the bytes used.
pub(crate) fn write_addresses(addresses: &[SocketAddr], into: &mut [u8]) -> (u8, usize) {
    let (mut count, mut at) = (0, 0);
    for address in addresses.iter().take(MAX_VIRTUAL) {
        let mut bytes = [0; ADDRESS_BYTES];
        let len = match address.ip() {
            IpAddr::V4(ip) => {
                bytes[0] = 4;
                bytes[3..7].copy_from_slice(&ip.octets());
                7
            }
            IpAddr::V6(ip) => {
                bytes[0] = 6;
                bytes[3..19].copy_from_slice(&ip.octets());
                ADDRESS_BYTES
            }
        };
        bytes[1..3].copy_from_slice(&address.port().to_be_bytes());
        let Some(place) = into.get_mut(at..at + len) else { break };
        place.copy_from_slice(&bytes[..len]);
        at += len;
        count += 1;
    }
    (count, at)
}

/// Inverse of [`write_addresses`].
///
/// # Errors
/// A sentence that says what is wrong with the bytes.
pub(crate) fn read_addresses(count: u8, from: &[u8]) -> Result<Vec<SocketAddr>, String> {
    if count == 0 || usize::from(count) > MAX_VIRTUAL {
        return Err(format!("{count} addresses of the peer, expected 1 to {MAX_VIRTUAL}"));
    }
    let mut addresses = Vec::new();
    let mut at = 0;
    for _ in 0..count {
        let (ip, len) = match from.get(at..) {
            Some([4, _, _, a, b, c, d, ..]) => (IpAddr::from(Ipv4Addr::new(*a, *b, *c, *d)), 7),
            Some([6, rest @ ..]) if rest.len() >= 18 => {
                let mut octets = [0; 16];
                octets.copy_from_slice(&rest[2..18]);
                (IpAddr::from(Ipv6Addr::from(octets)), ADDRESS_BYTES)
            }
            _ => return Err("an address of the peer has no known family".into()),
        };
        let port = u16::from_be_bytes([from[at + 1], from[at + 2]]);
        if port == 0 || ip.is_unspecified() || ip.is_multicast() {
            return Err(format!("nobody can be reached at {ip} port {port}"));
        }
        addresses.push(SocketAddr::new(ip, port));
        at += len;
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(addresses: &[&str]) -> Place {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Place { listener: 0x1234_5678_9abc_def0, secret: [7; 32], addresses }
    }

    #[test]
    fn what_goes_in_comes_out() {
        for addresses in [&["10.0.0.1:4000"][..], &["[fd00::1]:1", "10.1.2.3:65535"]] {
            assert_eq!(Place::decode(&place(addresses).encode()), Ok(place(addresses)));
        }
        let many: Vec<String> = (1..=8).map(|i| format!("10.0.0.{i}:4000")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(Place::decode(&place(&many).encode()).unwrap().addresses.len(), 8);
        let long: Vec<String> = (1..=8).map(|i| format!("[fd00::{i}]:4000")).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        assert_eq!(Place::decode(&place(&long).encode()).unwrap().addresses.len(), 4);
    }

    #[test]
    fn a_changed_bit_is_noticed() {
        let good = place(&["10.0.0.1:4000"]).encode();
        for bit in 0..HANDLE_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Place::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(Place::decode(&[0; HANDLE_BYTES]).is_err());
    }

    #[test]
    fn a_debug_line_does_not_tell_the_secret() {
        assert!(!format!("{:?}", place(&["10.0.0.1:4000"])).contains("7, 7"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(body in prop::collection::vec(any::<u8>(), HANDLE_BYTES)) {
            let mut bytes = [0; HANDLE_BYTES];
            bytes.copy_from_slice(&body);
            bytes[..4].copy_from_slice(&MAGIC);
            let sum = check_sum(&bytes);
            bytes[4..8].copy_from_slice(&sum);
            if let Ok(place) = Place::decode(&bytes) {
                let again = Place::decode(&place.encode());
                prop_assert_eq!(again, Ok(place));
            }
        }

        #[test]
        fn any_list_of_addresses_is_survived(count: u8, bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            let _ = read_addresses(count, &bytes);
        }
    }
}

//! The 128 bytes that a plugin's host carries from a listener to the end that dials it, and addresses as
//! bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | magic of the plugin |
//! | 4 | check sum of the rest: a handle that was cut or mixed up is noticed at once |
//! | 8 | number of the listener |
//! | 32 | secret that both ends of every connection prove to know |
//! | 1 | number of addresses, 1 to 8 |
//! | 79 | the addresses: family (4 or 6), port, address; those without room are left out |
//!
//! Numbers are little-endian, ports and addresses in network order.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of a handle, as NCCL's net plugins exchange it.
pub const HANDLE_BYTES: usize = 128;
/// The most addresses that a listener may have.
pub const MOST_ADDRESSES: usize = 8;
/// Bytes of the longest encoding of one address.
pub const ADDRESS_BYTES: usize = 19;

const CHECKED: usize = 8;
const ADDRESSES: usize = 48;

/// The content of a handle: everything that is needed to dial a listener.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectInfo {
    /// The number of the listener, which tells it from others at the same address.
    pub listener: u64,
    /// The secret that both ends prove to know.
    pub secret: [u8; 32],
    /// The addresses at which the listener can be reached; never empty. Link-local addresses have no scope:
    /// that is the reader's own.
    pub addresses: Vec<SocketAddr>,
}

/// Does not print the secret.
impl fmt::Debug for ConnectInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener {:x} at {:?}", self.listener, self.addresses)
    }
}

impl ConnectInfo {
    /// The handle, marked with the magic of its plugin.
    pub fn encode(&self, magic: [u8; 4]) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[8..16].copy_from_slice(&self.listener.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.secret);
        let (count, _) = write_addresses(&self.addresses, &mut bytes[ADDRESSES + 1..]);
        bytes[ADDRESSES] = count;
        seal(magic, &mut bytes);
        bytes
    }

    /// Reads a handle of the plugin with this magic.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the bytes.
    pub fn decode(magic: [u8; 4], bytes: &[u8; HANDLE_BYTES]) -> Result<ConnectInfo, String> {
        if bytes[..4] != magic {
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
        Ok(ConnectInfo { listener: u64::from_le_bytes(listener), secret, addresses })
    }
}

/// Gives bytes the magic and the check sum of a handle, whatever is behind them.
pub fn seal(magic: [u8; 4], bytes: &mut [u8; HANDLE_BYTES]) {
    bytes[..4].copy_from_slice(&magic);
    let sum = check_sum(bytes);
    bytes[4..8].copy_from_slice(&sum);
}

fn check_sum(bytes: &[u8; HANDLE_BYTES]) -> [u8; 4] {
    let mut sum = [0; 4];
    sum.copy_from_slice(&crate::sha256::hash(&bytes[CHECKED..])[..4]);
    sum
}

/// One address in a field of fixed size: family, port, address, zeros behind an IPv4 address.
pub fn write_address(address: SocketAddr) -> [u8; ADDRESS_BYTES] {
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[1..3].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes[0] = 4;
            bytes[3..7].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes[0] = 6;
            bytes[3..].copy_from_slice(&ip.octets());
        }
    }
    bytes
}

/// The address at the front of `bytes`, as [`write_address`] makes it, and how many bytes it needs: fewer
/// than [`ADDRESS_BYTES`] for IPv4. `None` if there is none.
pub fn read_address(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
    let (ip, len) = match bytes {
        [4, _, _, a, b, c, d, ..] => (IpAddr::from(Ipv4Addr::new(*a, *b, *c, *d)), 7),
        [6, _, _, rest @ ..] => (IpAddr::from(Ipv6Addr::from(*rest.first_chunk::<16>()?)), ADDRESS_BYTES),
        _ => return None,
    };
    Some((SocketAddr::new(ip, u16::from_be_bytes([bytes[1], bytes[2]])), len))
}

/// Writes as many addresses as fit. Returns how many, and the bytes used.
pub fn write_addresses(addresses: &[SocketAddr], into: &mut [u8]) -> (u8, usize) {
    let (mut count, mut at) = (0, 0);
    for &address in addresses.iter().take(MOST_ADDRESSES) {
        let bytes = write_address(address);
        let len = if address.is_ipv4() { 7 } else { ADDRESS_BYTES };
        let Some(place) = into.get_mut(at..at + len) else { break };
        place.copy_from_slice(&bytes[..len]);
        at += len;
        count += 1;
    }
    (count, at)
}

/// Reads what [`write_addresses`] wrote. Addresses at which nobody can be reached are refused.
///
/// # Errors
/// A sentence that says what is wrong with the bytes.
pub fn read_addresses(count: u8, from: &[u8]) -> Result<Vec<SocketAddr>, String> {
    if count == 0 || usize::from(count) > MOST_ADDRESSES {
        return Err(format!("{count} addresses of the peer, expected 1 to {MOST_ADDRESSES}"));
    }
    let mut addresses = Vec::new();
    let mut at = 0;
    for _ in 0..count {
        let found = from.get(at..).and_then(read_address);
        let (address, len) = found.ok_or("an address of the peer has no known family")?;
        let ip = address.ip();
        if address.port() == 0 || ip.is_unspecified() || ip.is_multicast() {
            return Err(format!("nobody can be reached at {ip} port {}", address.port()));
        }
        addresses.push(address);
        at += len;
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAGIC: [u8; 4] = *b"test";

    fn info(addresses: &[&str]) -> ConnectInfo {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        ConnectInfo { listener: 0x1234_5678_9abc_def0, secret: [7; 32], addresses }
    }

    #[test]
    fn what_goes_in_comes_out() {
        for addresses in [&["10.0.0.1:4000"][..], &["[fd00::1]:1", "10.1.2.3:65535"]] {
            let handle = info(addresses).encode(MAGIC);
            assert_eq!(ConnectInfo::decode(MAGIC, &handle), Ok(info(addresses)));
            assert!(ConnectInfo::decode(*b"else", &handle).is_err());
        }
        let many: Vec<String> = (1..=8).map(|i| format!("10.0.0.{i}:4000")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(ConnectInfo::decode(MAGIC, &info(&many).encode(MAGIC)).unwrap().addresses.len(), 8);
        let long: Vec<String> = (1..=8).map(|i| format!("[fd00::{i}]:4000")).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        assert_eq!(ConnectInfo::decode(MAGIC, &info(&long).encode(MAGIC)).unwrap().addresses.len(), 4);
    }

    #[test]
    fn a_changed_bit_is_noticed() {
        let good = info(&["10.0.0.1:4000"]).encode(MAGIC);
        for bit in 0..HANDLE_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ConnectInfo::decode(MAGIC, &bad).is_err(), "bit {bit}");
        }
        assert!(ConnectInfo::decode(MAGIC, &[0; HANDLE_BYTES]).is_err());
    }

    #[test]
    fn a_debug_line_does_not_tell_the_secret() {
        assert!(!format!("{:?}", info(&["10.0.0.1:4000"])).contains("7, 7"));
    }

    proptest! {
        #[test]
        fn any_handle_is_survived(body in prop::collection::vec(any::<u8>(), HANDLE_BYTES)) {
            let mut bytes = [0; HANDLE_BYTES];
            bytes.copy_from_slice(&body);
            seal(MAGIC, &mut bytes);
            if let Ok(info) = ConnectInfo::decode(MAGIC, &bytes) {
                let again = ConnectInfo::decode(MAGIC, &info.encode(MAGIC));
                prop_assert_eq!(again, Ok(info));
            }
        }

        #[test]
        fn any_list_of_addresses_is_survived(count: u8, bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            let _ = read_addresses(count, &bytes);
        }

        #[test]
        fn every_address_survives(ip: IpAddr, port: u16) {
            let address = SocketAddr::new(ip, port);
            prop_assert_eq!(read_address(&write_address(address)).unwrap().0, address);
        }
    }
}

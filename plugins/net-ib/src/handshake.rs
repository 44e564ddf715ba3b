//! The parts of both ends in the handshake of [`hawser_oob::handshake`]: the greeting adds the number of the
//! listener, answer and welcome add a [`Block`].

use hawser_oob::handshake::{Key, Protocol};
use hawser_plugin::net::HANDLE_BYTES;

use crate::config::Pairing;

/// The first bytes of this plugin's handles.
pub(crate) const HANDLE: [u8; 4] = *b"HwI3";

const _: () = assert!(HANDLE_BYTES == hawser_oob::handle::HANDLE_BYTES);

/// The parameters of the handshake.
pub(crate) const PROTOCOL: Protocol =
    Protocol { magic: *b"HAWSerIB", version: 3, greeting: 8, answer: BLOCK, welcome: BLOCK };

/// Bytes of an encoded [`Block`].
const BLOCK: usize = 256;
/// Ports that an end may bring.
pub(crate) const MAX_PORTS: usize = 9;

const NAME: usize = 20;
const PORT: usize = 6 + NAME;

/// The key of a handle's secret.
pub(crate) fn key(secret: &[u8; 32]) -> Key {
    Key::derive(secret, "ib")
}

/// The description of an end: its ports and its choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// The ports that the end brings.
    pub ports: Vec<PortBlock>,
    /// The sender's count for both.
    pub qps: u8,
    /// The sender's choice for both.
    pub pairing: Pairing,
    /// The end goes on after the loss of a rail if this is set.
    pub failover: bool,
}

/// A port of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortBlock {
    /// The name of the port, for people.
    pub name: String,
    /// The speed in megabits per second.
    pub speed_mbps: u32,
    /// The tier: 0 for a port of the device, 1 for a spare one.
    pub tier: u8,
    /// True for RoCE, false for InfiniBand.
    pub ethernet: bool,
}

impl Block {
    /// The description as bytes of the handshake.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        let pairing = [Pairing::Same, Pairing::Cross, Pairing::All].iter().position(|&p| p == self.pairing);
        bytes[0] = self.ports.len().min(MAX_PORTS) as u8;
        (bytes[1], bytes[2], bytes[3]) = (self.qps, pairing.unwrap_or(0) as u8, u8::from(self.failover));
        for (at, port) in self.ports.iter().take(MAX_PORTS).enumerate() {
            let into = &mut bytes[4 + at * PORT..4 + (at + 1) * PORT];
            into[..4].copy_from_slice(&port.speed_mbps.to_le_bytes());
            (into[4], into[5]) = (port.tier, u8::from(port.ethernet));
            let name = port.name.bytes().take(NAME);
            into[6..].iter_mut().zip(name).for_each(|(to, from)| *to = from);
        }
        bytes
    }

    /// # Errors
    /// The text says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes = bytes.first_chunk::<BLOCK>().ok_or("the peer's description of its ports is too short")?;
        let count = usize::from(bytes[0]);
        if count == 0 || count > MAX_PORTS || bytes[1] == 0 || bytes[1] > 16 || bytes[2] > 2 || bytes[3] > 1 {
            return Err("the peer's description of its ports makes no sense");
        }
        let ports = (0..count).map(|at| {
            let from = &bytes[4 + at * PORT..4 + (at + 1) * PORT];
            let name = from[6..].iter().take_while(|&&byte| byte != 0).copied().collect::<Vec<_>>();
            PortBlock {
                name: String::from_utf8_lossy(&name).chars().filter(|c| !c.is_control()).collect(),
                speed_mbps: u32::from_le_bytes([from[0], from[1], from[2], from[3]]),
                tier: from[4].min(1),
                ethernet: from[5] == 1,
            }
        });
        let pairing = [Pairing::Same, Pairing::Cross, Pairing::All][usize::from(bytes[2])];
        Ok(Self { ports: ports.collect(), qps: bytes[1], pairing, failover: bytes[3] == 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block() -> Block {
        let port = PortBlock { name: "mlx5_0:1".into(), speed_mbps: 400_000, tier: 1, ethernet: true };
        Block { ports: vec![port; MAX_PORTS], qps: 4, pairing: Pairing::All, failover: true }
    }

    #[test]
    fn blocks_come_back() {
        assert_eq!(Block::decode(&block().encode()), Ok(block()));
        assert!(Block::decode(&[0; BLOCK]).is_err());
    }

    proptest! {
        #[test]
        fn any_block_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..BLOCK + 9)) {
            if let Ok(block) = Block::decode(&bytes) {
                prop_assert_eq!(Block::decode(&block.encode()).unwrap().ports.len(), block.ports.len());
            }
        }
    }
}

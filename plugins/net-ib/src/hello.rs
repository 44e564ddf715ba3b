//! The handshake of the side connection: both ends prove to know the secret of the handle, and tell what they have.
//!
//! | step | from | bytes |
//! |---|---|---|
//! | 1 | sender | magic, listener, nonce |
//! | 2 | listener | nonce, proof over 1 and its nonce |
//! | 3 | sender | proof over all before and its block, block |
//! | 4 | listener | the same, with its own block |
//!
//! Proofs are keyed hashes (HMAC-SHA256). The listener believes nothing before step 3, the sender nothing before step 2.

use hmac_sha256::HMAC;

use crate::config::Pairing;

/// Bytes of the steps.
pub(crate) const FIRST: usize = 48;
pub(crate) const SECOND: usize = 64;
pub(crate) const BLOCK: usize = 256;
pub(crate) const THIRD: usize = 32 + BLOCK;
/// Ports that an end may bring.
pub(crate) const MAX_PORTS: usize = 9;

const MAGIC: [u8; 8] = *b"HwIB\0\0\x01\x02";
const NAME: usize = 20;
const PORT: usize = 6 + NAME;

/// What an end has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub ports: Vec<PortBlock>,
    /// The sender's count for both.
    pub qps: u8,
    /// The sender's choice for both.
    pub pairing: Pairing,
    pub failover: bool,
}

/// A port of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortBlock {
    pub name: String,
    pub speed_mbps: u32,
    pub tier: u8,
    pub ethernet: bool,
}

impl Block {
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
    /// What is wrong.
    pub fn decode(bytes: &[u8; BLOCK]) -> Result<Self, &'static str> {
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

/// The first step.
pub(crate) fn first(listener: u64, nonce: [u8; 32]) -> [u8; FIRST] {
    let mut bytes = [0; FIRST];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&listener.to_le_bytes());
    bytes[16..].copy_from_slice(&nonce);
    bytes
}

/// Whether a first step is for this listener.
pub(crate) fn is_for(bytes: &[u8; FIRST], listener: u64) -> bool {
    bytes[..8] == MAGIC && bytes[8..16] == listener.to_le_bytes()
}

/// What was said, and the secret.
#[derive(Clone)]
pub(crate) struct Talk {
    secret: [u8; 32],
    said: Vec<u8>,
    heard: u32,
}

impl Talk {
    pub fn new(secret: [u8; 32], first: &[u8; FIRST]) -> Self {
        Self { secret, said: first.to_vec(), heard: 0 }
    }

    /// A message of `tail` with a proof over everything said; `role` keeps the steps apart.
    pub fn say(&mut self, role: u8, tail: &[u8]) -> Vec<u8> {
        let proof = self.proof(role, tail).finalize();
        let bytes: Vec<u8> = proof.iter().chain(tail).copied().collect();
        self.said.extend_from_slice(&bytes);
        bytes
    }

    /// The tail of a message, if its proof is right.
    pub fn hear<'a>(&mut self, role: u8, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (proof, tail) = bytes.split_first_chunk::<32>()?;
        // In constant time.
        let is_right = self.proof(role, tail).finalize_verify(proof);
        self.said.extend_from_slice(bytes);
        self.heard += u32::from(is_right);
        is_right.then_some(tail)
    }

    /// Messages that were proved.
    pub fn heard(&self) -> u32 {
        self.heard
    }

    fn proof(&self, role: u8, tail: &[u8]) -> HMAC {
        let mut proof = HMAC::new(self.secret);
        let length = (self.said.len() as u64).to_le_bytes();
        [&[role], &length[..], &self.said, tail].iter().for_each(|part| proof.update(part));
        proof
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

    #[test]
    fn both_ends_of_a_talk_agree_and_nobody_else_can_speak() {
        let open = first(7, [1; 32]);
        assert!(is_for(&open, 7) && !is_for(&open, 8));
        let (mut a, mut b) = (Talk::new([3; 32], &open), Talk::new([3; 32], &open));
        let second = b.say(2, &[9; 32]);
        assert_eq!(second.len(), SECOND);
        assert_eq!(a.hear(2, &second), Some(&[9; 32][..]));
        let third = a.say(3, &block().encode());
        assert_eq!(third.len(), THIRD);
        for bit in 0..third.len() * 8 {
            let mut bad = third.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(b.clone().hear(3, &bad), None);
        }
        assert_eq!(b.clone().hear(4, &third), None);
        assert!(b.hear(3, &third).is_some());
        let mut stranger = Talk::new([4; 32], &open);
        assert_eq!(stranger.hear(2, &second), None);
    }

    proptest! {
        #[test]
        fn any_block_is_survived(bytes in prop::collection::vec(any::<u8>(), BLOCK)) {
            let bytes: [u8; BLOCK] = bytes.try_into().unwrap();
            if let Ok(block) = Block::decode(&bytes) {
                prop_assert_eq!(Block::decode(&block.encode()).unwrap().ports.len(), block.ports.len());
            }
        }

        #[test]
        fn any_answer_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..400), role in 2u8..5) {
            let mut talk = Talk::new([8; 32], &first(1, [2; 32]));
            prop_assert_eq!(talk.hear(role, &bytes), None);
        }
    }
}

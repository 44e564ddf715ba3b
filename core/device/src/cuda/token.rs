//! The name of a heap for a peer of the same host: 168 bytes, little-endian, sent through bootstrap.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | `HWHP` |
//! | 4 | version, 1 |
//! | 5 | kind: 1 VMM, 2 legacy IPC, 3 host memory |
//! | 6..8 | zero |
//! | 8..12 | process id of the owner (for texts) |
//! | 12..28 | random number of the owner's process |
//! | 28..36 | key of the heap within that process |
//! | 36..44 | bytes that the user asked for |
//! | 44..52 | bytes to map |
//! | 52..104 | identity of the device, padded with zeros |
//! | 104..168 | `CUipcMemHandle` of a legacy heap, else zeros |

use std::sync::OnceLock;

use rustix::rand::{GetRandomFlags, getrandom};

use hawser_base::error::{Error, Result};

const MAGIC: [u8; 4] = *b"HWHP";
const VERSION: u8 = 1;
const BYTES: usize = 168;
const ID_BYTES: usize = 52;
/// No heap is larger: beyond it a length is a corrupt token.
const MOST_BYTES: u64 = 1 << 47;

/// The kinds of memory that a heap is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A VMM allocation; a peer in another process needs its descriptor.
    Vmm,
    /// Memory of `cuMemAlloc`, opened by its IPC handle.
    Legacy,
    /// A memfd that both sides map and register.
    Host,
}

/// The decoded token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The kind of memory that the heap is made of.
    pub kind: Kind,
    /// Process id of the owner, for texts only.
    pub pid: u32,
    /// Random number of the owner's process.
    pub process: [u8; 16],
    /// Key of the heap within its process.
    pub key: u64,
    /// Bytes that the user asked for.
    pub bytes: u64,
    /// Bytes to map; at least `bytes`.
    pub mapped: u64,
    /// Identity of the device that the heap was made for.
    pub device: String,
    /// IPC handle of a legacy heap.
    pub ipc: [u8; 64],
}

impl Token {
    /// True if the heap's owner is this process.
    pub fn is_local(&self) -> bool {
        self.process == *process() && self.pid == std::process::id()
    }

    /// As bytes for the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        out.extend_from_slice(&MAGIC);
        let kind = match self.kind {
            Kind::Vmm => 1,
            Kind::Legacy => 2,
            Kind::Host => 3,
        };
        out.extend_from_slice(&[VERSION, kind, 0, 0]);
        out.extend_from_slice(&self.pid.to_le_bytes());
        out.extend_from_slice(&self.process);
        for number in [self.key, self.bytes, self.mapped] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let mut id = self.device.clone().into_bytes();
        id.resize(ID_BYTES, 0);
        out.extend_from_slice(&id);
        out.extend_from_slice(&self.ipc);
        out
    }

    /// Inverse of [`Token::encode`]; a peer's bytes are not trusted.
    pub fn decode(token: &[u8]) -> Result<Self> {
        parse(token).map_err(|what| {
            Error::remote(format!("a peer named its heap by a token that this rank cannot read ({what})"))
                .remedy("run the same version of the library on all ranks")
        })
    }
}

/// Random number of this process, which tells it from processes with the same id in other namespaces.
pub fn process() -> &'static [u8; 16] {
    static PROCESS: OnceLock<[u8; 16]> = OnceLock::new();
    PROCESS.get_or_init(|| {
        let mut random = [0; 16];
        if getrandom(&mut random, GetRandomFlags::empty()).is_err() {
            // Without random numbers the address of a static differs between most processes.
            random[..8].copy_from_slice(&(&raw const PROCESS as u64).to_le_bytes());
        }
        random
    })
}

fn parse(token: &[u8]) -> std::result::Result<Token, String> {
    let Ok(token) = <&[u8; BYTES]>::try_from(token) else {
        return Err(format!("{} bytes instead of {BYTES}", token.len()));
    };
    if token[..4] != MAGIC {
        return Err("wrong magic number".into());
    }
    if token[4] != VERSION {
        return Err(format!("version {} instead of {VERSION}", token[4]));
    }
    let kind = match token[5] {
        1 => Kind::Vmm,
        2 => Kind::Legacy,
        3 => Kind::Host,
        other => return Err(format!("unknown kind {other}")),
    };
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| token[at + i]));
    let (bytes, mapped) = (number(36), number(44));
    if mapped == 0 || mapped < bytes || mapped > MOST_BYTES {
        return Err(format!("length {bytes} in a mapping of {mapped} bytes"));
    }
    let id = token[52..104].split(|b| *b == 0).next().unwrap_or_default();
    Ok(Token {
        kind,
        pid: u32::from_le_bytes(std::array::from_fn(|i| token[8 + i])),
        process: std::array::from_fn(|i| token[12 + i]),
        key: number(28),
        bytes,
        mapped,
        device: String::from_utf8_lossy(id).into_owned(),
        ipc: std::array::from_fn(|i| token[104 + i]),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Token {
        Token {
            kind: Kind::Vmm,
            pid: 77,
            process: [3; 16],
            key: 9,
            bytes: 1000,
            mapped: 2 << 20,
            device: "0000:1b:00.0/mig-00112233445566778899aabbccddeeff".into(),
            ipc: std::array::from_fn(|i| i as u8),
        }
    }

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in [Kind::Vmm, Kind::Legacy, Kind::Host] {
            let token = Token { kind, ..sample() };
            assert_eq!(token.encode().len(), BYTES);
            assert_eq!(Token::decode(&token.encode()).unwrap(), token);
        }
    }

    #[test]
    fn every_truncation_and_addition_is_refused() {
        let token = sample().encode();
        for length in 0..token.len() {
            assert!(Token::decode(&token[..length]).is_err(), "{length} bytes");
        }
        assert!(Token::decode(&[&token[..], &[0]].concat()).is_err());
    }

    #[test]
    fn wrong_fields_are_named() {
        let cases: [(usize, u8, &str); 4] =
            [(0, 0, "magic"), (4, 9, "version 9"), (5, 0, "kind 0"), (51, 0x80, "length")];
        for (at, value, names) in cases {
            let mut token = sample().encode();
            token[at] = value;
            let error = Token::decode(&token).unwrap_err();
            assert!(error.text.contains(names), "{error}");
        }
        assert!(Token::decode(&Token { mapped: 999, ..sample() }.encode()).is_err());
        assert!(Token::decode(&Token { bytes: 0, mapped: 0, ..sample() }.encode()).is_err());
    }

    #[test]
    fn only_this_process_is_local() {
        let mine = Token { process: *process(), pid: std::process::id(), ..sample() };
        assert!(mine.is_local());
        assert!(!Token { process: [0; 16], ..mine.clone() }.is_local());
        assert!(!Token { pid: 0, ..mine }.is_local());
    }

    proptest! {
        #[test]
        fn garbage_never_panics(token in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Token::decode(&token);
        }

        #[test]
        fn damaged_tokens_never_panic(at in 0..BYTES, value: u8) {
            let mut token = sample().encode();
            token[at] = value;
            if let Ok(read) = Token::decode(&token) {
                prop_assert!(read.mapped >= read.bytes);
            }
        }
    }
}

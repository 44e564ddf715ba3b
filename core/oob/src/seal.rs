//! Seals: what two ends say to each other after the handshake, encrypted and authenticated (AES-256-GCM).
//!
//! Each handshake gives each direction a key of its own, which follows from the secret and from the random
//! bytes of both ends. Seals are numbered from 0 and the number is part of the seal, so one is right only
//! once, in its place, in its direction and on its connection: what was changed, left out, repeated, taken
//! from another place or connection, or sent back is no seal. An end of the connection is not sealed: who
//! uses this must not take a closed connection for the end of what was to come.
//!
//! [`Sealer`] and [`Opener`] do no input or output. [`Records`] carries a byte stream over a socket in sealed
//! records: length (u32, little endian), encrypted bytes, tag.

use crate::sha256::Derived;
use crate::socket::{self, Moved};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use rustix::io::Errno;
use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Bytes of a tag, by which a seal is known to be right.
pub const TAG: usize = 16;
/// Most bytes that a record holds.
pub const MOST: usize = 64 << 10;

const KEY: usize = 32;
const LENGTH: usize = 4;
/// Bytes of a record on connections of which a process may have thousands, and of the buffers that they keep.
const FEW: usize = 16 << 10;
const KEPT: usize = 4 << 10;

/// The error of bytes whose seal is wrong, which no system call on a socket returns.
pub const FORGED: Errno = Errno::BADMSG;

/// The reason for an error of a connection that may be sealed.
pub fn reason(errno: Errno) -> String {
    match errno {
        FORGED => "what came is not what the peer sent here and now: it was changed, repeated, cut or \
                   reordered on its way (wrong seal, HAWSER_WIRE); somebody or something on the path \
                   interferes"
            .into(),
        errno => std::io::Error::from(errno).to_string(),
    }
}

/// The keys of both directions of one connection.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKeys {
    send: [u8; KEY],
    receive: [u8; KEY],
}

/// Does not print the keys.
impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKeys")
    }
}

impl SessionKeys {
    /// The keys for what the connector says and for what the listener says, of a secret that both know and of
    /// all that both have said.
    pub(crate) fn derive(secret: &[u8], said: &[u8], is_connector: bool) -> Self {
        let derived = Derived::new(said, secret);
        let (connector, listener) =
            (derived.key("hawser wire connector"), derived.key("hawser wire listener"));
        let (send, receive) = if is_connector { (connector, listener) } else { (listener, connector) };
        Self { send, receive }
    }

    /// Both ends of the seals of one connection.
    pub fn into_ends(self) -> (Sealer, Opener) {
        (Sealer(Numbered::new(&self.send)), Opener(Numbered::new(&self.receive)))
    }
}

/// A seal that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// A key whose uses are numbered.
struct Numbered {
    key: LessSafeKey,
    next: u64,
}

impl Numbered {
    fn new(key: &[u8; KEY]) -> Self {
        let Ok(key) = UnboundKey::new(&AES_256_GCM, key) else {
            unreachable!("a key for AES-256 has 32 bytes")
        };
        Self { key: LessSafeKey::new(key), next: 0 }
    }

    /// The next number, each once.
    fn number(&mut self) -> Nonce {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&self.next.to_le_bytes());
        // 2^64 seals take centuries.
        self.next += 1;
        Nonce::assume_unique_for_key(bytes)
    }
}

impl fmt::Debug for Numbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seal {}", self.next)
    }
}

/// Makes the seals of one direction.
#[derive(Debug)]
pub struct Sealer(Numbered);

impl Sealer {
    /// Encrypts `secret` in place and returns the tag, which vouches for it and for `open`, which is not
    /// encrypted.
    pub fn seal(&mut self, open: &[u8], secret: &mut [u8]) -> [u8; TAG] {
        let number = self.0.number();
        let sealed = self.0.key.seal_in_place_separate_tag(number, Aad::from(open), secret);
        let mut tag = [0; TAG];
        match sealed {
            Ok(sealed) => tag.copy_from_slice(sealed.as_ref()),
            Err(_) => unreachable!("AES-GCM takes 64 GiB at once"),
        }
        tag
    }
}

/// Looks at the seals of one direction.
#[derive(Debug)]
pub struct Opener(Numbered);

impl Opener {
    /// Decrypts `secret` in place if the tag vouches for it and for `open`.
    ///
    /// # Errors
    /// The seal is wrong; `secret` then holds nothing of use, and no later seal will be right.
    pub fn open(&mut self, open: &[u8], secret: &mut [u8], tag: &[u8; TAG]) -> Result<(), Forged> {
        let number = self.0.number();
        let opened =
            self.0.key.open_in_place_separate_tag(number, Aad::from(open), Tag::from(*tag), secret, 0..);
        opened.map(|_| ()).map_err(|_| Forged)
    }
}

/// A byte stream in sealed records over one socket. The calls mirror those of [`socket`].
pub struct Records {
    sealer: Sealer,
    opener: Opener,
    /// The record that is being sent, how much of it the socket has, and the bytes that it stands for.
    out: Vec<u8>,
    sent: usize,
    covers: usize,
    /// The bytes that were read; `unread` of it is not opened yet, `clear` is opened and not handed out.
    raw: Vec<u8>,
    unread: Range<usize>,
    clear: Range<usize>,
    reads_ahead: bool,
    /// The socket had less than was asked for.
    is_dry: bool,
    /// The reason why nothing more comes.
    end: Option<Errno>,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("sealer", &self.sealer).field("opener", &self.opener).finish()
    }
}

impl Records {
    /// A stream at its beginning. With `reads_ahead` it takes all that the socket has, which needs fewer
    /// calls of the kernel; then bytes may be here that poll(2) on the socket does not tell of, unless the
    /// reader always reads on until nothing is left. Without, it takes no byte behind the record that it
    /// needs.
    pub fn new(keys: SessionKeys, reads_ahead: bool) -> Self {
        let (sealer, opener) = keys.into_ends();
        Self {
            sealer,
            opener,
            out: Vec::new(),
            sent: 0,
            covers: 0,
            raw: Vec::new(),
            unread: 0..0,
            clear: 0..0,
            reads_ahead,
            is_dry: false,
            end: None,
        }
    }

    /// Sends what there is room for. Bytes count as taken when the record that holds them is on its way as a
    /// whole: after `Nothing` the same bytes have to come again, perhaps with more behind them.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&mut self, fd: BorrowedFd<'_>, bytes: &[u8], more: bool) -> Result<Moved, Errno> {
        if self.covers == 0 {
            self.begin(&bytes[..bytes.len().min(if self.reads_ahead { MOST } else { FEW })]);
        }
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            match if more { socket::send_more(fd, rest) } else { socket::send(fd, rest) }? {
                Moved::Bytes(count) => self.sent += count,
                Moved::Nothing | Moved::Closed => return Ok(Moved::Nothing),
            }
        }
        if !self.reads_ahead && self.out.capacity() > KEPT {
            self.out = Vec::new();
        }
        // Who comes with fewer bytes than were refused has given those up.
        Ok(Moved::Bytes(std::mem::take(&mut self.covers).min(bytes.len())))
    }

    fn begin(&mut self, bytes: &[u8]) {
        self.out.clear();
        (self.sent, self.covers) = (0, bytes.len());
        if bytes.is_empty() {
            return;
        }
        let length = (bytes.len() as u32).to_le_bytes();
        self.out.extend_from_slice(&length);
        self.out.extend_from_slice(bytes);
        let tag = self.sealer.seal(&length, &mut self.out[LENGTH..]);
        self.out.extend_from_slice(&tag);
    }

    /// Fills `into` as far as whole records have come.
    ///
    /// # Errors
    /// The connection is broken, or a seal is wrong ([`FORGED`]); again at every later call.
    pub fn receive(&mut self, fd: BorrowedFd<'_>, into: &mut [u8]) -> Result<Moved, Errno> {
        self.is_dry = false;
        let mut count = 0;
        while count < into.len() {
            if self.clear.is_empty() {
                let end = match self.end {
                    Some(errno) => Err(errno),
                    None => self.next(fd).inspect_err(|errno| self.end = Some(*errno)),
                };
                match end {
                    Ok(Moved::Bytes(_)) => {}
                    // What is already there goes first; the end is told at the next call.
                    _ if count > 0 => break,
                    other => return other,
                }
            }
            let length = self.clear.len().min(into.len() - count);
            into[count..count + length].copy_from_slice(&self.raw[self.clear.start..][..length]);
            self.clear.start += length;
            count += length;
        }
        if !self.reads_ahead && self.clear.is_empty() && self.unread.is_empty() && self.raw.len() > KEPT {
            (self.raw, self.clear, self.unread) = (Vec::new(), 0..0, 0..0);
        }
        Ok(if count > 0 || into.is_empty() { Moved::Bytes(count) } else { Moved::Nothing })
    }

    /// Opens the next record. To be called when `clear` is empty.
    fn next(&mut self, fd: BorrowedFd<'_>) -> Result<Moved, Errno> {
        loop {
            let unread = &mut self.raw[self.unread.clone()];
            let need = match unread.split_first_chunk_mut::<LENGTH>() {
                None => LENGTH,
                Some((length, rest)) => {
                    let bytes = u32::from_le_bytes(*length) as usize;
                    if bytes == 0 || bytes > MOST {
                        return Err(FORGED);
                    }
                    if let Some((secret, rest)) = rest.split_at_mut_checked(bytes)
                        && let Some((tag, _)) = rest.split_first_chunk::<TAG>()
                    {
                        self.opener.open(length, secret, tag).map_err(|Forged| FORGED)?;
                        let start = self.unread.start + LENGTH;
                        self.clear = start..start + bytes;
                        self.unread.start = start + bytes + TAG;
                        return Ok(Moved::Bytes(bytes));
                    }
                    LENGTH + bytes + TAG
                }
            };
            if self.is_dry {
                return Ok(Moved::Nothing);
            }
            match self.fill(fd, need)? {
                Moved::Bytes(_) => {}
                other => return Ok(other),
            }
        }
    }

    /// Reads so that `need` bytes may be unread, or more.
    fn fill(&mut self, fd: BorrowedFd<'_>, need: usize) -> Result<Moved, Errno> {
        let have = self.unread.len();
        self.raw.copy_within(self.unread.clone(), 0);
        self.unread = 0..have;
        let room = if self.reads_ahead { LENGTH + MOST + TAG } else { need };
        if self.raw.len() < room {
            self.raw.resize(room, 0);
        }
        let asked = if self.reads_ahead { self.raw.len() } else { need } - have;
        let moved = socket::receive(fd, &mut self.raw[have..have + asked])?;
        if let Moved::Bytes(count) = moved {
            self.unread.end += count;
            self.is_dry = count < asked;
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn keys(said: &[u8]) -> (SessionKeys, SessionKeys) {
        (SessionKeys::derive(&[5; 32], said, true), SessionKeys::derive(&[5; 32], said, false))
    }

    /// The records of `messages` as they go over the wire, each by itself.
    fn records(from: &mut Records, messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (near, mut wire) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut record = |message: &Vec<u8>| {
            assert_eq!(from.send(near.as_fd(), message, false), Ok(Moved::Bytes(message.len())));
            let mut bytes = vec![0; LENGTH + message.len() + TAG];
            wire.read_exact(&mut bytes).unwrap();
            bytes
        };
        messages.iter().map(&mut record).collect()
    }

    /// All that a reader believes of `wire`, which comes in pieces of at most `piece` bytes and then ends,
    /// and what it says at the end.
    fn believed(to: &mut Records, wire: &[u8], piece: usize) -> (Vec<u8>, Result<Moved, Errno>) {
        let (far, mut way) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut all = Vec::new();
        let mut read = |all: &mut Vec<u8>| loop {
            let mut into = [0; 100];
            match to.receive(far.as_fd(), &mut into) {
                Ok(Moved::Bytes(count)) => all.extend_from_slice(&into[..count]),
                other => return other,
            }
        };
        for part in wire.chunks(piece) {
            way.write_all(part).unwrap();
            if let Err(errno) = read(&mut all) {
                return (all, Err(errno));
            }
        }
        drop(way);
        let end = read(&mut all);
        (all, end)
    }

    fn messages() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 2..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_stream_comes_as_it_was_sent_in_any_pieces(
            messages in messages(), piece in 1usize..400, ahead: bool
        ) {
            let (near, far) = keys(b"hello");
            let wire = records(&mut Records::new(near, false), &messages).concat();
            let (all, end) = believed(&mut Records::new(far, ahead), &wire, piece);
            prop_assert_eq!(all, messages.concat());
            prop_assert_eq!(end, Ok(Moved::Closed));
            for message in messages.iter().filter(|message| message.len() > 8) {
                prop_assert!(!wire.windows(message.len()).any(|part| part == &message[..]), "in the clear");
            }
        }

        /// Whatever somebody on the path does, the reader believes whole records from the beginning, and no
        /// byte more.
        #[test]
        fn interference_is_noticed(
            messages in messages(), at: prop::sample::Index, other: prop::sample::Index, bit in 0u8..8,
            kind in 0u8..7, ahead: bool
        ) {
            let (near, far) = keys(b"hello");
            let mut sent = records(&mut Records::new(near.clone(), false), &messages);
            let (i, j) = (at.index(sent.len()), other.index(sent.len()));
            // The number of records that are still good, and what the reader must say then.
            let (good, is_forged) = match kind {
                0 => {
                    // A bit is flipped, but in a length: there the reader may wait for bytes that never come.
                    let byte = LENGTH + other.index(sent[i].len() - LENGTH);
                    sent[i][byte] ^= 1 << bit;
                    (i, true)
                }
                1 => {
                    let byte = other.index(LENGTH);
                    sent[i][byte] ^= 1 << bit;
                    (i, false)
                }
                2 => {
                    // Replay, of any record at any later place.
                    let copy = sent[i.min(j)].clone();
                    sent.insert(i.max(j) + 1, copy);
                    (i.max(j) + 1, true)
                }
                3 => {
                    // Reordering.
                    sent.swap(i, j);
                    if i == j { (sent.len(), false) } else { (i.min(j), true) }
                }
                4 => {
                    // One is left out.
                    sent.remove(i);
                    (i, i < sent.len())
                }
                5 => {
                    // Reflection: what the other end itself has said.
                    sent[i] = records(&mut Records::new(far.clone(), false), &messages).swap_remove(i);
                    (i, true)
                }
                _ => {
                    // From another connection with the same secret.
                    sent[i] = records(&mut Records::new(keys(b"hallo").0, false), &messages).swap_remove(i);
                    (i, true)
                }
            };
            let (all, end) = believed(&mut Records::new(far, ahead), &sent.concat(), usize::MAX);
            prop_assert_eq!(all, messages[..good.min(messages.len())].concat());
            if is_forged {
                prop_assert_eq!(end, Err(FORGED));
            } else {
                prop_assert!(end == Ok(Moved::Closed) || end == Err(FORGED));
            }
        }

        #[test]
        fn a_cut_stream_ends_with_its_last_whole_record(
            messages in messages(), cut: prop::sample::Index, ahead: bool
        ) {
            let (near, far) = keys(b"hello");
            let sent = records(&mut Records::new(near, false), &messages);
            let wire = sent.concat();
            let cut = cut.index(wire.len());
            let (mut whole, mut bytes) = (0, 0);
            while bytes + sent[whole].len() <= cut {
                bytes += sent[whole].len();
                whole += 1;
            }
            let (all, end) = believed(&mut Records::new(far, ahead), &wire[..cut], usize::MAX);
            prop_assert_eq!(all, messages[..whole].concat());
            prop_assert_eq!(end, Ok(Moved::Closed));
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), ahead: bool) {
            let (all, _) = believed(&mut Records::new(keys(b"hello").1, ahead), &bytes, 50);
            prop_assert!(all.is_empty());
        }
    }

    #[test]
    fn a_full_socket_gets_the_same_record_on() {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let (a, b) = keys(b"hello");
        let (mut a, mut b) = (Records::new(a, false), Records::new(b, true));
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
        let (mut sent, mut all, mut refusals) = (0, Vec::new(), 0);
        while all.len() < bytes.len() {
            while sent < bytes.len() {
                match a.send(near.as_fd(), &bytes[sent..], false).unwrap() {
                    Moved::Bytes(count) => sent += count,
                    _ => break,
                }
            }
            refusals += usize::from(sent < bytes.len());
            let mut into = vec![0; 70_000];
            if let Moved::Bytes(count) = b.receive(far.as_fd(), &mut into).unwrap() {
                all.extend_from_slice(&into[..count]);
            }
        }
        assert!(all == bytes && refusals > 0);
    }

    #[test]
    fn tags_vouch_for_what_is_not_encrypted_too() {
        let (near, far) = keys(b"hello");
        let mut data = *b"data";
        let tag = near.into_ends().0.seal(b"head", &mut data);
        let mut copy = data;
        assert_eq!(far.clone().into_ends().1.open(b"head", &mut copy, &tag), Ok(()));
        assert_eq!(&copy, b"data");
        assert_eq!(far.into_ends().1.open(b"heap", &mut data, &tag), Err(Forged));
    }
}

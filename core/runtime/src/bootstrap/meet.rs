//! The rank's side of the meeting at the root: hand in one's addresses, get everybody's.

use super::auth::{self, Greeting, Key, ROOT, Retry, Role};
use super::id::UniqueId;
use super::wire::{Fields, Frame, Kind, Status, decode_failure, decode_status, encode_failure, malformed};
use super::{Settings, detail};
use crate::progress::joining::Joining;
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::liveness::Identity;
use hawser_base::wait::{AbortFlag, Wait};
use hawser_oob::handle::{ADDRESS_BYTES, read_address, write_address};
use hawser_oob::sha256;
use hawser_oob::socket::{Address, Token};
use hawser_oob::stream::Stream;
use std::net::SocketAddr;
use std::time::Duration;

/// The time that a rank spends to tell a root that it is not needed.
const RELEASE_TIME: Duration = Duration::from_secs(5);

/// The places where a rank listens, and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerAddress {
    /// The address of the TCP listener.
    pub tcp: SocketAddr,
    /// The name of the unix-domain listener.
    pub unix: Token,
    /// The rank's process.
    pub process: Identity,
}

impl PeerAddress {
    /// Bytes of an encoded address.
    pub const LEN: usize = ADDRESS_BYTES + 16 + Identity::LEN;

    /// The addresses as bytes of a table.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..ADDRESS_BYTES].copy_from_slice(&write_address(self.tcp));
        bytes[ADDRESS_BYTES..][..16].copy_from_slice(&self.unix);
        bytes[ADDRESS_BYTES + 16..].copy_from_slice(&self.process.encode());
        bytes
    }

    /// Reads what [`PeerAddress::encode`] wrote.
    pub fn decode(fields: &mut Fields<'_>) -> Result<PeerAddress> {
        let bytes = fields.array::<ADDRESS_BYTES>()?;
        let found = read_address(&bytes).filter(|(tcp, _)| write_address(*tcp) == bytes);
        let (tcp, _) = found.ok_or_else(|| malformed("no address"))?;
        Ok(PeerAddress { tcp, unix: fields.array()?, process: Identity::decode(&fields.array()?) })
    }
}

/// The message with which a rank introduces itself to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The number of ranks that the rank was told.
    pub nranks: u32,
    /// The number of ids that the rank has, and the hash of all of them in order.
    pub ids: (u32, [u8; 32]),
    /// The addresses at which the rank listens.
    pub address: PeerAddress,
}

impl Hello {
    /// A number that is the same for all ranks that meet.
    fn meeting(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.ids.1;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// The message as the payload of a frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.nranks.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.ids.0.to_le_bytes());
        bytes.extend_from_slice(&self.ids.1);
        bytes.extend_from_slice(&self.address.encode());
        bytes
    }

    /// Reads what [`Hello::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Hello> {
        let mut fields = Fields::new(bytes);
        let nranks = fields.u32()?;
        let ids = (fields.u32()?, fields.array()?);
        let address = PeerAddress::decode(&mut fields)?;
        fields.end()?;
        Ok(Hello { nranks, ids, address })
    }
}

/// Number and hash of a list of ids: equal only for equal lists in equal order.
pub(super) fn digest(ids: &[UniqueId]) -> (u32, [u8; 32]) {
    (ids.len() as u32, sha256::hash_all(ids.iter().map(UniqueId::to_bytes)))
}

/// Hands in `hello` and waits for the addresses of all ranks.
///
/// # Errors
/// What the root says is wrong (missing ranks, two claims of one rank, different rank counts or ids);
/// `InvalidUsage` when the id is used up; otherwise as [`auth::connect`].
pub(super) fn meet(
    id: &UniqueId,
    rank: u32,
    hello: &Hello,
    settings: &Settings,
    wait: &Wait,
) -> Result<Vec<PeerAddress>> {
    let describe = || format!("rank {rank} waits for the root of the unique id at {}", id.address);
    let stream = connect(id, rank, Role::Join, settings, wait, &describe)?;
    stream.write_frame(Kind::Hello, 0, &hello.encode(), wait, &describe)?;
    let limit = (PeerAddress::LEN * hello.nranks as usize).max(FAILURE_LIMIT);
    let joining = Joining::new(hello.meeting(), rank, hello.nranks);
    let mut missing: Option<Status> = None;
    loop {
        let describe = || match &missing {
            Some(status) => {
                let stranger = &status.stranger;
                let note = if stranger.is_empty() { String::new() } else { format!("; {stranger}") };
                format!("rank {rank} waits for {} to join (root at {}{note})", status.words(), id.address)
            }
            None => describe(),
        };
        let frame = stream.read_frame(limit, wait, &describe)?;
        match frame.kind {
            Kind::Status => {
                let status = decode_status(&frame.payload)?;
                joining.note(status.missing as u32, &status.named, &status.stranger);
                missing = Some(status);
            }
            Kind::Failure => return Err(decode_failure(&frame.payload)),
            Kind::Table => return decode_table(&frame.payload, hello.nranks),
            other => return Err(malformed(format!("{other:?} from the root"))),
        }
    }
}

/// The longest text of a failure.
const FAILURE_LIMIT: usize = 64 << 10;

fn decode_table(bytes: &[u8], nranks: u32) -> Result<Vec<PeerAddress>> {
    let mut fields = Fields::new(bytes);
    let table = (0..nranks).map(|_| PeerAddress::decode(&mut fields)).collect::<Result<_>>()?;
    fields.end()?;
    Ok(table)
}

/// Tells the root of `id` that it is not needed, or (with `failure`) that the meeting of which it is part has
/// failed.
///
/// # Errors
/// Only what the root itself objects; a root that cannot be reached is logged, the meeting will show if it
/// matters.
pub(super) fn release(
    id: &UniqueId,
    rank: u32,
    failure: Option<&Error>,
    settings: &Settings,
    wait: &Wait,
) -> Result<()> {
    let describe = || format!("rank {rank} releases the unneeded root at {}", id.address);
    let wait = wait.at_most(RELEASE_TIME);
    let talk = || -> Result<Option<Error>> {
        let stream = connect(id, rank, Role::Release, settings, &wait, &describe)?;
        let payload = failure.map(encode_failure).unwrap_or_default();
        stream.write_frame(Kind::Release, 0, &payload, &wait, &describe)?;
        let frame: Frame = stream.read_frame(FAILURE_LIMIT, &wait, &describe)?;
        Ok((frame.kind == Kind::Failure).then(|| decode_failure(&frame.payload)))
    };
    match talk() {
        Ok(None) => Ok(()),
        Ok(Some(objection)) => Err(objection),
        Err(error) if error.kind == ErrorKind::Aborted => Err(error),
        Err(error) => {
            detail(&error.text);
            Ok(())
        }
    }
}

/// Tells the root of `id` that a rank cannot join and why. A root that cannot be reached has no use for it.
pub(super) fn cannot_join(id: &UniqueId, rank: u32, failure: &Error, settings: &Settings) {
    let describe = || format!("rank {rank} tells the root at {} that it cannot join", id.address);
    let wait = Wait::new(AbortFlag::new(), Some(RELEASE_TIME));
    let told = connect(id, rank, Role::Release, settings, &wait, &describe).and_then(|stream| {
        stream.write_frame(Kind::Failure, 0, &encode_failure(failure), &wait, &describe)?;
        stream.read_frame::<Kind, _>(FAILURE_LIMIT, &wait, &describe)
    });
    if let Err(error) = told {
        detail(&error.text);
    }
}

fn connect(
    id: &UniqueId,
    rank: u32,
    role: Role,
    settings: &Settings,
    wait: &Wait,
    describe: &dyn Fn() -> String,
) -> Result<Stream> {
    let retry = Retry {
        count: settings.retry_count,
        sleep: settings.retry_sleep,
        // The root of an ordinary id listens before the id exists; that of NCCL_COMM_ID may come later.
        refused: id.fixed,
        when_refused: if id.fixed {
            "rank 0 must run on the host that NCCL_COMM_ID names"
        } else {
            "the process that created the id is gone or the id was used already; make a fresh id for every \
             communicator"
        },
        when_strange: if id.fixed {
            "all ranks need the same NCCL_COMM_ID and the same key (HAWSER_COMM_ID_KEY_FILE), or none at all"
        } else {
            settings.when_strange()
        },
    };
    let greeting = Greeting { role, rank, target: ROOT };
    auth::connect(
        &Address::Tcp(id.address),
        (&Key::derive(&settings.secret_of(id), "root"), settings.wire),
        greeting,
        retry,
        wait,
        describe,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn random_hellos_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..240), nranks in 0u32..4
        ) {
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(hello.encode(), bytes.clone());
            }
            let _ = decode_table(&bytes, nranks);
        }

        #[test]
        fn hellos_survive(ip: std::net::IpAddr, port: u16, nranks: u32, count: u32, token: [u8; 16]) {
            let process = Identity::own(nranks, None);
            let address = PeerAddress { tcp: SocketAddr::new(ip, port), unix: token, process };
            let hello = Hello { nranks, ids: (count, [7; 32]), address };
            prop_assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
        }
    }
}

//! Checksums of slots that cross a network (`HAWSER_CHECKSUM`): the sender's proxy writes a record in front
//! of a slot when it takes the slot, and the receiver's looks at it before the device may read the slot.
//!
//! | bytes | hold |
//! |---|---|
//! | 0 to 3 | CRC32C of all that follows, the data included |
//! | 4 to 7 | bytes of data |
//! | 8 to 15 | the number of the slot, counted from the first of the connection |
//! | 16 to 27 | lane, sending rank, receiving rank |
//! | 28 to 31 | nothing |
//!
//! Record and data are one message, so the network may not lose one of them, and data of another slot or
//! connection are noticed as well as changed ones.

use std::fmt;

use hawser_base::error::{Error, ErrorKind};

use super::end::ConnectionKey;

/// Bytes of a record. It ends where the data begin.
pub const RECORD: usize = 32;

/// The bytes that slots move up by, so that there is room for a record and slots stay aligned for devices.
pub const LEAD: u32 = 128;

/// The parts of a record that say which slot it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Label {
    bytes: u32,
    number: u64,
    lane: u32,
    from: u32,
    to: u32,
}

/// One end of a connection whose slots have checksums.
#[derive(Debug, Clone, Copy)]
pub struct Checksum {
    lane: u32,
    from: u32,
    to: u32,
}

/// An error behind errors: what came is not what was sent.
#[derive(Debug)]
pub struct Mismatch(String);

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mismatch {}

impl Mismatch {
    /// Returns true if data were changed, lost or mixed up on the way, which nothing excuses.
    pub fn is_behind(error: &Error) -> bool {
        error.source.as_ref().is_some_and(|source| source.is::<Mismatch>())
    }

    /// The error for people, where `rail` is the NIC that the slot came through.
    fn into_error(self, rail: &str) -> Error {
        Error::because(ErrorKind::System, self).with_resource(rail).remedy(format!(
            "the network, a NIC or memory of a host is faulty: try without {rail} (NCCL_IB_HCA, \
             NCCL_SOCKET_IFNAME), and look at the counters of links on both hosts"
        ))
    }
}

impl Checksum {
    /// The end `key` of a connection of rank `rank`.
    pub fn of(key: ConnectionKey, rank: u32) -> Self {
        let (from, to) = if key.send { (rank, key.peer) } else { (key.peer, rank) };
        Self { lane: key.lane, from, to }
    }

    /// The record of slot `number`, which holds `data`.
    pub fn record(&self, number: u64, data: &[u8]) -> [u8; RECORD] {
        let &Self { lane, from, to } = self;
        let mut record = [0; RECORD];
        // A slot is shorter than 4 GiB.
        record[4..8].copy_from_slice(&(data.len() as u32).to_le_bytes());
        record[8..16].copy_from_slice(&number.to_le_bytes());
        for (at, word) in [(16, lane), (20, from), (24, to)] {
            record[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let sum = sum_of(&record, data);
        record[..4].copy_from_slice(&sum.to_le_bytes());
        record
    }

    /// Looks at slot `number`, into which a message came whose record is `record`; `slot` is the whole slot.
    ///
    /// # Errors
    /// Other data came than were sent; the text names `rail`.
    pub fn check(&self, number: u64, record: &[u8; RECORD], slot: &[u8], rail: &str) -> Result<(), Error> {
        self.compare(number, record, slot, rail).map_err(|mismatch| mismatch.into_error(rail))
    }

    fn compare(&self, number: u64, record: &[u8; RECORD], slot: &[u8], rail: &str) -> Result<(), Mismatch> {
        let said = Label::of(record);
        let where_ = format_args!("slot {number} of lane {} through {rail}", self.lane);
        let data = slot.get(..said.bytes as usize);
        let (sum, is_right) = match data {
            Some(data) => {
                let sum = sum_of(record, data);
                (sum, sum.to_le_bytes() == record[..4])
            }
            None => (0, false),
        };
        if !is_right {
            let told = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
            return Err(Mismatch(format!(
                "{where_}: data were changed on the way: {} bytes with checksum {told:#010x} were sent, what \
                 came has {sum:#010x}",
                said.bytes
            )));
        }
        let expected = Label { bytes: said.bytes, number, lane: self.lane, from: self.from, to: self.to };
        if said == expected {
            return Ok(());
        }
        let Label { number, lane, from, to, .. } = said;
        Err(Mismatch(format!(
            "{where_}: the data of another slot came: number {number} of lane {lane} from rank {from} to \
             rank {to}"
        )))
    }
}

impl Label {
    fn of(record: &[u8; RECORD]) -> Self {
        let word =
            |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        let number = u64::from(word(8)) | u64::from(word(12)) << 32;
        Self { bytes: word(4), number, lane: word(16), from: word(20), to: word(24) }
    }
}

fn sum_of(record: &[u8; RECORD], data: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[4..]), data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (Checksum, Checksum) {
        let send = ConnectionKey { lane: 3, peer: 5, send: true };
        (Checksum::of(send, 2), Checksum::of(ConnectionKey { peer: 2, send: false, ..send }, 5))
    }

    fn text(far: Checksum, number: u64, record: &[u8; RECORD], slot: &[u8]) -> String {
        let error = far.check(number, record, slot, "mlx5_1").unwrap_err();
        assert!(Mismatch::is_behind(&error) && error.resource.as_deref() == Some("mlx5_1"));
        assert!(error.text.contains("mlx5_1") && error.text.contains("lane 3"), "{error}");
        error.text.clone()
    }

    #[test]
    fn what_was_sent_is_right_and_every_changed_bit_is_noticed() {
        let (near, far) = ends();
        let mut slot: Vec<u8> = (0..67).collect();
        let record = near.record(9, &slot[..61]);
        far.check(9, &record, &slot, "eth0").unwrap();
        for bit in 0..61 * 8 {
            slot[bit / 8] ^= 1 << (bit % 8);
            assert!(text(far, 9, &record, &slot).contains("changed on the way"));
            slot[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in 0..RECORD * 8 {
            let mut record = record;
            record[bit / 8] ^= 1 << (bit % 8);
            text(far, 9, &record, &slot);
        }
        // What lies behind the data is nobody's business.
        slot[66] ^= 1;
        far.check(9, &record, &slot, "eth0").unwrap();
    }

    #[test]
    fn data_of_another_slot_or_connection_are_noticed() {
        let (near, far) = ends();
        let slot = [7; 64];
        assert!(text(far, 10, &near.record(9, &slot), &slot).contains("number 9 of lane 3"));
        let other = Checksum { from: 4, ..near };
        assert!(text(far, 9, &other.record(9, &slot), &slot).contains("from rank 4 to rank 5"));
        let other = Checksum { lane: 8, ..near };
        assert!(text(far, 9, &other.record(9, &slot), &slot).contains("number 9 of lane 8"));
        // Nothing came at all, or a part.
        text(far, 9, &[0; RECORD], &slot);
        text(far, 9, &near.record(9, &slot), &slot[..63]);
        far.check(9, &near.record(9, &[]), &[], "eth0").unwrap();
    }
}

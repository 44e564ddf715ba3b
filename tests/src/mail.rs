//! Point-to-point messages with contents that only the right message has.

use hawser_runtime::{Comm, Result, Stream};

use crate::oracle::Buffer;

/// A message from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parcel {
    /// The rank that sends.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// The length in elements.
    pub bytes: usize,
}

/// The buffers that one rank has posted, and what they are to hold.
pub struct Mail {
    rank: u32,
    sent: Vec<Buffer>,
    received: Vec<(Parcel, usize, Buffer)>,
}

impl Mail {
    /// Posts this rank's side of all parcels. Belongs between the start and the end of a group.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn post(comm: &Comm, parcels: &[Parcel]) -> Result<Self> {
        Self::post_from(comm, parcels, 0)
    }

    /// The same for parcels whose numbers begin with `first`: what they hold follows from their numbers.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn post_from(comm: &Comm, parcels: &[Parcel], first: usize) -> Result<Self> {
        let rank = comm.rank();
        let mut mail = Self { rank, sent: Vec::new(), received: Vec::new() };
        for (number, parcel) in (first..).zip(parcels) {
            // Odd addresses: messages are bytes and need no alignment.
            let mut buffer = Buffer::new(parcel.bytes, number % 5);
            if parcel.from == rank {
                buffer.bytes_mut().copy_from_slice(&contents(parcel, number));
                comm.send(buffer.addr(), parcel.bytes as u64, parcel.to, Stream(0))?;
                mail.sent.push(buffer);
            }
            if parcel.to == rank {
                let buffer = Buffer::new(parcel.bytes, (number + 3) % 5);
                comm.recv(buffer.addr(), parcel.bytes as u64, parcel.from, Stream(0))?;
                mail.received.push((*parcel, number, buffer));
            }
        }
        Ok(mail)
    }

    /// The first parcel that did not arrive as it was sent.
    pub fn fault(&self) -> Option<String> {
        if !self.sent.iter().all(Buffer::guards_hold) {
            return Some(format!("rank {}: bytes around a send buffer changed", self.rank));
        }
        self.received.iter().find_map(|(parcel, number, buffer)| {
            let want = contents(parcel, *number);
            let wrong = buffer.bytes().iter().zip(&want).position(|(got, want)| got != want);
            match wrong {
                Some(at) => Some(format!("{parcel:?} (number {number}): byte {at} is wrong")),
                None if !buffer.guards_hold() => Some(format!("{parcel:?}: bytes around it changed")),
                None => None,
            }
        })
    }
}

fn contents(parcel: &Parcel, number: usize) -> Vec<u8> {
    let seed = parcel.from as usize * 59 + parcel.to as usize * 101 + number * 17;
    (0..parcel.bytes).map(|i| ((i * 31 + i / 256 + seed) % 251) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_that_did_not_arrive_is_seen() {
        let parcel = Parcel { from: 0, to: 1, bytes: 300 };
        let mut mail = Mail { rank: 1, sent: Vec::new(), received: vec![(parcel, 4, Buffer::new(300, 1))] };
        assert!(mail.fault().is_some());
        mail.received[0].2.bytes_mut().copy_from_slice(&contents(&parcel, 4));
        assert_eq!(mail.fault(), None);
        mail.received[0].1 = 5;
        assert!(mail.fault().is_some(), "the contents of another message must not pass");
    }
}

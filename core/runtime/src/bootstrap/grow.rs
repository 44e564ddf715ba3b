//! Ids by which new ranks join those of a communicator. The new ranks get the whole id from the program; the
//! old ones learn where its root listens from each other, and derive its secret, which is never sent.

use super::wire::{Fields, decode_failure, encode_failure};
use super::{Bootstrap, Tag, UniqueId, random, root};
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::wait::Wait;
use hawser_oob::handle::{ADDRESS_BYTES, read_address, write_address};
use hawser_oob::sha256;
use hawser_oob::socket::{self, Options};
use std::net::SocketAddr;
use std::sync::{MutexGuard, PoisonError};

/// An id that a rank brings to a growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The id.
    pub id: UniqueId,
    /// The program passed it. Otherwise this rank made it, and the program need not say so, as with NCCL.
    is_passed: bool,
}

impl Bootstrap {
    /// Makes an id for a communicator of these ranks and of new ones, and starts its root in this process.
    ///
    /// # Errors
    /// As [`UniqueId::create`].
    pub fn grow_id(&self) -> Result<UniqueId> {
        let ip = super::listen_address(&self.settings, self.near)?;
        let (listener, address) = socket::listen(SocketAddr::new(ip, 0), &Options::default())
            .map_err(|errno| Error::system(format!("listening on {ip} for new ranks"), errno))?;
        let nonce = random()?;
        let id = UniqueId { address, fixed: false, secret: self.secret_of_growth(&nonce), nonce };
        root::start_registered(&id, listener, &self.settings)?;
        *self.made_grow_id() = Some(id);
        Ok(id)
    }

    /// Returns the id that this rank brings to a growth: the one that the program passes, else the one that
    /// this rank has made for it and that has served none yet.
    pub fn offer(&self, passed: Option<UniqueId>) -> Option<Offer> {
        let made = self.made_grow_id().take();
        passed.or(made).map(|id| Offer { id, is_passed: passed.is_some() })
    }

    fn made_grow_id(&self) -> MutexGuard<'_, Option<UniqueId>> {
        self.made_grow_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All ranks agree on the id and on the number of ranks. Ids that are passed come before those that ranks
    /// have made. Collective.
    ///
    /// # Errors
    /// `InvalidUsage` when no rank has an id, when they have different ones or the numbers differ; otherwise
    /// as [`Bootstrap::all_gather`].
    pub fn agree_to_grow(&self, offer: Option<&Offer>, nranks: u32, wait: &Wait) -> Result<UniqueId> {
        let mut mine = nranks.to_le_bytes().to_vec();
        if let Some(Offer { id, is_passed }) = offer {
            mine.push(u8::from(*is_passed));
            mine.extend_from_slice(&write_address(id.address));
            mine.extend_from_slice(&id.nonce);
        }
        let mut found = Vec::new();
        for (rank, bytes) in self.all_gather(&mine, wait)?.iter().enumerate() {
            let mut fields = Fields::new(bytes);
            let theirs = fields.u32()?;
            if theirs != nranks {
                let text = format!("rank {rank} grows to {theirs} ranks, rank {} to {nranks}", self.rank);
                return Err(Error::invalid_usage(text).remedy("pass the same nRanks on every rank"));
            }
            if bytes.len() > 4 {
                let is_passed = fields.bytes(1)? != [0];
                let address = read_address(fields.bytes(ADDRESS_BYTES)?);
                let address = address.ok_or_else(|| super::wire::malformed("the address of a root"))?.0;
                let nonce = fields.array()?;
                fields.end()?;
                let id = UniqueId { address, fixed: false, secret: [0; 32], nonce };
                found.push((rank as u32, Offer { id, is_passed }));
            }
        }
        let id = the_id(&found)?;
        Ok(UniqueId { secret: self.secret_of_growth(&id.nonce), ..id })
    }

    /// The old ranks tell each other whether a growth has failed on them: `failure` says why it has on this
    /// one. Returns the reason if it has failed on any of those that are still there. Collective.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather_of_present`].
    pub fn agree_on_growth(&self, failure: Option<&Error>, wait: &Wait) -> Result<Option<Error>> {
        let mine = failure.map(encode_failure).unwrap_or_default();
        let given = self.all_gather_of_present(Tag::Grown, &mine, wait)?;
        let failures = (0..).zip(given).filter_map(|(rank, bytes)| {
            let bytes = bytes.filter(|bytes| !bytes.is_empty())?;
            Some((rank, decode_failure(&bytes)))
        });
        Ok(reason(self.rank, &failures.collect::<Vec<_>>(), failure))
    }

    fn secret_of_growth(&self, nonce: &[u8; 16]) -> super::auth::Secret {
        sha256::mac(&self.secret, &[&b"hawser grow"[..], nonce].concat())
    }
}

/// The id that all ranks grow by, of those that some of them bring.
fn the_id(offers: &[(u32, Offer)]) -> Result<UniqueId> {
    let is_any_passed = offers.iter().any(|(_, offer)| offer.is_passed);
    let of_most: Vec<_> = offers.iter().filter(|(_, offer)| offer.is_passed == is_any_passed).collect();
    let remedy = "call ncclCommGetUniqueId on one rank; it passes the id or NULL, the others pass NULL";
    let Some((_, first)) = of_most.first() else {
        let text = "no rank has made a unique id by ncclCommGetUniqueId";
        return Err(Error::invalid_usage(text).remedy(remedy));
    };
    if of_most.iter().all(|(_, offer)| offer.id == first.id) {
        return Ok(first.id);
    }
    let ranks: Vec<u32> = of_most.iter().map(|(rank, _)| *rank).collect();
    let text = format!("{} have different unique ids", super::wire::list_ranks(&ranks));
    Err(Error::invalid_usage(text).remedy(remedy))
}

/// The failure that tells a rank most: one that blames a rank before one that blames time or an abort, and
/// its own before those of others. Where the rank that its own blames has failed too, that one's comes first:
/// who has given up is out of reach.
fn reason(rank: u32, failures: &[(u32, Error)], own: Option<&Error>) -> Option<Error> {
    let is_better = |error: &Error| error.kind == ErrorKind::Remote;
    let blamed = own.and_then(|own| own.peer).filter(|peer| *peer != rank);
    let cause = failures.iter().find(|(other, error)| Some(*other) == blamed && is_better(error));
    let is_best = |own: &&Error| is_better(own) || !failures.iter().any(|(_, error)| is_better(error));
    if let Some(own) = own.filter(is_best).filter(|_| cause.is_none()) {
        return Some(own.clone());
    }
    let best = cause.or_else(|| failures.iter().find(|(_, error)| is_better(error))).or(failures.first());
    best.map(|(other, error)| {
        let text = format!("rank {rank}: growth has failed on rank {other}");
        error.clone().context(text).with_peer(*other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_that_tells_most_is_the_reason() {
        let told = |failures: &[(u32, Error)], own: Option<Error>| {
            reason(2, failures, own.as_ref()).map(|error| error.text.clone())
        };
        let (late, dead) =
            (Error::new(ErrorKind::Timeout, "no end"), Error::remote("rank 4 has died").with_peer(4));
        let context = "rank 2: growth has failed on rank 0: ";
        let of_others = Some(format!("{context}rank 4 has died"));
        assert_eq!(told(&[], None), None);
        assert_eq!(told(&[(0, dead.clone())], None), of_others);
        assert_eq!(told(&[(0, dead.clone()), (2, late.clone())], Some(late.clone())), of_others);
        assert_eq!(told(&[(0, late), (2, dead.clone())], Some(dead.clone())), Some("rank 4 has died".into()));
        // It came so late that the others had given up.
        let refused = Error::remote("rank 0 cannot be reached").with_peer(0);
        assert_eq!(told(&[(0, dead), (2, refused.clone())], Some(refused)), of_others);
    }
}

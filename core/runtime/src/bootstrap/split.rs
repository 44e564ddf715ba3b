//! A child bootstrap from the ranks of a parent.

use super::auth::Secret;
use super::meet::PeerAddress;
use super::service::Listeners;
use super::wire::{Fields, list_ranks};
use super::{Bootstrap, Settings};
use hawser_base::error::{Error, Result};
use hawser_base::wait::Wait;
use std::sync::atomic::Ordering;

impl Bootstrap {
    /// Builds a bootstrap of `members`: parent ranks in child-rank order. Every rank of the parent calls it
    /// at the same point; ranks that belong to no child pass an empty list and get `None`. Several children
    /// may form at once. Addresses are fresh, and the secret is derived from the parent's, the count of
    /// splits and the members, so that siblings cannot enter each other's connections by accident.
    ///
    /// # Errors
    /// `InvalidArgument` when `members` lacks this rank, repeats one or names one out of range;
    /// `InvalidUsage` when the members do not agree; otherwise as [`Bootstrap::all_gather`].
    pub fn split(&self, members: &[u32], wait: &Wait) -> Result<Option<Bootstrap>> {
        let count = self.splits.fetch_add(1, Ordering::Relaxed);
        let prepared = self.prepare(members);
        let digest = digest_of_members(members);
        // Also those who failed already take part: nobody waits for them.
        let card = match &prepared {
            Ok(None) => vec![NOT_A_MEMBER],
            Ok(Some(listeners)) => [&[MEMBER][..], &digest, &listeners.address.encode()].concat(),
            Err(error) => {
                [&[FAILED][..], &error.text.as_bytes()[..error.text.len().min(TEXT_LIMIT)]].concat()
            }
        };
        let cards = self.all_gather(&card, wait)?;
        let Some(listeners) = prepared? else { return Ok(None) };
        let peers = members.iter().map(|member| read_card(*member, &cards[*member as usize], &digest));
        let peers = peers.collect::<Result<Vec<PeerAddress>>>().map_err(|error| {
            error.context(format!(
                "rank {}: split of '{}' into {}",
                self.rank,
                self.label,
                list_ranks(members)
            ))
        })?;
        let rank = members.iter().position(|member| *member == self.rank).unwrap_or(0) as u32;
        let secret = child_secret(&self.secret, count, &digest);
        let label = format!("{} / split {}", self.label, count + 1);
        let listeners = (members.len() > 1).then_some(listeners);
        let mut child = Bootstrap::assemble(rank, label, secret, peers, listeners, &self.settings, wait)?;
        child.near = self.near;
        Ok(Some(child))
    }

    /// Checks the members and opens this rank's listeners, if it is to be a member.
    fn prepare(&self, members: &[u32]) -> Result<Option<Listeners>> {
        if members.is_empty() {
            return Ok(None);
        }
        let refuse = |what: String| Error::invalid_argument(format!("rank {}: split: {what}", self.rank));
        let mut listed = vec![false; self.nranks as usize];
        for member in members {
            match listed.get_mut(*member as usize) {
                Some(true) => return Err(refuse(format!("rank {member} is listed twice"))),
                Some(is_listed) => *is_listed = true,
                None => {
                    return Err(refuse(format!("rank {member} does not exist, there are {}", self.nranks)));
                }
            }
        }
        if !members.contains(&self.rank) {
            return Err(refuse("the calling rank is not among the members".into()));
        }
        let settings = Settings { comm_id: None, ..self.settings.clone() };
        Listeners::open(&settings, self.near, self.own_world()).map(Some)
    }

    /// This rank in the first communicator.
    pub(super) fn own_world(&self) -> u32 {
        self.peers.get(self.rank as usize).map_or(0, |own| own.process.world)
    }
}

const NOT_A_MEMBER: u8 = 0;
/// First byte of a member's card.
pub(super) const MEMBER: u8 = 1;
const FAILED: u8 = 2;
const TEXT_LIMIT: usize = 4096;

/// The address on a member's card, if it agrees with us about the members.
pub(super) fn read_card(rank: u32, card: &[u8], digest: &[u8; 32]) -> Result<PeerAddress> {
    let mut fields = Fields::new(card);
    match fields.u8()? {
        MEMBER => {}
        FAILED => {
            let text = String::from_utf8_lossy(fields.rest());
            return Err(Error::remote(format!("rank {rank} failed: {text}")).with_peer(rank));
        }
        _ => return Err(disagreement(rank, "is not to be a member by its own account")),
    }
    if fields.array::<32>()? != *digest {
        return Err(disagreement(rank, "gave other members or another order"));
    }
    let address = PeerAddress::decode(&mut fields)?;
    fields.end()?;
    Ok(address)
}

fn disagreement(rank: u32, what: &str) -> Error {
    Error::invalid_usage(format!("rank {rank} {what}"))
        .with_peer(rank)
        .remedy("all ranks of one color must agree on their list")
}

/// Tells lists of members apart.
pub(super) fn digest_of_members(members: &[u32]) -> [u8; 32] {
    let bytes: Vec<u8> = members.iter().flat_map(|member| member.to_le_bytes()).collect();
    hawser_oob::sha256::hash(&bytes)
}

fn child_secret(parent: &Secret, count: u32, digest: &[u8; 32]) -> Secret {
    let said = [&b"hawser split"[..], &count.to_le_bytes(), digest].concat();
    hawser_oob::sha256::mac(parent, &said)
}

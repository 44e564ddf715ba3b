//! Ids by which new ranks join those of a communicator. The new ranks get the whole id from the program; the
//! old ones learn where its root listens from each other, and derive its secret, which is never sent.

use super::wire::Fields;
use super::{Bootstrap, UniqueId, random, root};
use hawser_base::error::{Error, Result};
use hawser_base::wait::Wait;
use hawser_oob::handle::{ADDRESS_BYTES, read_address, write_address};
use hawser_oob::socket::{self, Options};
use hmac_sha256::HMAC;
use std::net::SocketAddr;

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
        Ok(id)
    }

    /// All ranks agree on the id and on the number of ranks; one of them has the id. Collective.
    ///
    /// # Errors
    /// `InvalidUsage` when not exactly one rank has an id or the numbers differ; otherwise as
    /// [`Bootstrap::all_gather`].
    pub fn agree_to_grow(&self, id: Option<&UniqueId>, nranks: u32, wait: &Wait) -> Result<UniqueId> {
        let mut mine = nranks.to_le_bytes().to_vec();
        if let Some(id) = id {
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
                let address = read_address(fields.bytes(ADDRESS_BYTES)?);
                let address = address.ok_or_else(|| super::wire::malformed("the address of a root"))?.0;
                let nonce = fields.array()?;
                fields.end()?;
                found.push((rank, UniqueId { address, fixed: false, secret: [0; 32], nonce }));
            }
        }
        let remedy = "the rank that called ncclCommGetUniqueId passes the id, the others pass NULL";
        match found.as_slice() {
            [(_, id)] => Ok(UniqueId { secret: self.secret_of_growth(&id.nonce), ..*id }),
            [] => {
                Err(Error::invalid_usage("no rank passes the unique id of ncclCommGetUniqueId")
                    .remedy(remedy))
            }
            more => {
                let ranks: Vec<u32> = more.iter().map(|(rank, _)| *rank as u32).collect();
                let text = format!("{} pass a unique id", super::wire::list_ranks(&ranks));
                Err(Error::invalid_usage(text).remedy(remedy))
            }
        }
    }

    fn secret_of_growth(&self, nonce: &[u8; 16]) -> super::auth::Secret {
        HMAC::mac([&b"hawser grow"[..], nonce].concat(), self.secret)
    }
}

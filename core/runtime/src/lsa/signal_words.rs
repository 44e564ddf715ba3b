//! The words of signals that the ranks of a load-store team share (`rma/words.rs`), as soon as they have
//! windows of each other mapped: then streams write into windows, and raise and await signals themselves.

use std::os::fd::{AsFd, OwnedFd};

use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_base::wait::Wait;
use hawser_device::{Export, HeapKind, Memory};
use serde::{Deserialize, Serialize};

use super::Lsa;
use super::exchange::Exchange;
use crate::rma::{Limits, SignalWords};

/// The words that a rank offers.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Offer {
    /// Signals and contexts, which must be the same on all ranks.
    limits: (u32, u32),
    /// The handle by which others map the words.
    token: Vec<u8>,
}

/// The words, or the reason why a rank has none.
type OfferRecord = std::result::Result<Offer, String>;

/// Nothing, or the reason why a rank has not mapped all words.
type OutcomeRecord = std::result::Result<(), String>;

impl Lsa {
    /// Shares the words of signals of all ranks of the team. None, on all ranks alike, where some rank
    /// cannot: signals are messages then. Collective.
    ///
    /// # Errors
    /// Another rank did not answer.
    pub fn share_signal_words(&self, limits: Limits, wait: &Wait) -> Result<Option<SignalWords>> {
        let own = self.own_words(limits);
        let offer: OfferRecord = match &own {
            Ok((_, export)) => {
                Ok(Offer { limits: (limits.signals, limits.contexts), token: export.token.clone() })
            }
            Err(error) => Err(error.to_string()),
        };
        let exchange = self.exchange(false, wait);
        let offers: Vec<OfferRecord> = exchange.offer(&offer)?;
        let mut tokens = Vec::with_capacity(offers.len());
        for (rank, offer) in (0..).zip(offers) {
            match offer {
                Ok(offer) if offer.limits == (limits.signals, limits.contexts) => tokens.push(offer.token),
                Ok(_) => return Ok(self.no_words(rank, "it has another number of signals")),
                Err(why) => return Ok(self.no_words(rank, &why)),
            }
        }
        let (memory, export) = own?;
        let descriptors = pass(&exchange, &export)?;
        let mapped = self.map_words((tokens, descriptors), memory, limits);
        let outcome: OutcomeRecord = mapped.as_ref().map(drop).map_err(ToString::to_string);
        for (rank, outcome) in (0..).zip(exchange.tell_outcome::<OutcomeRecord>(&outcome)?) {
            if let Err(why) = outcome {
                return Ok(self.no_words(rank, &why));
            }
        }
        mapped.map(Some)
    }

    /// Memory for the words of this rank, and how others map it.
    fn own_words(&self, limits: Limits) -> Result<(Memory, Export)> {
        if self.device.stream_words().is_none() {
            return Err(Error::invalid_usage("its streams cannot wait for words"));
        }
        let bytes = SignalWords::bytes(self.team.ranks(), limits)
            .ok_or_else(|| Error::invalid_usage("there are too many signals to share them"))?;
        let memory = self.device.alloc_heap(bytes, HeapKind::Host)?;
        let export = self.device.export(&memory, HeapKind::Host)?;
        Ok((memory, export))
    }

    fn map_words(
        &self,
        (tokens, descriptors): (Vec<Vec<u8>>, Vec<Option<OwnedFd>>),
        own: Memory,
        limits: Limits,
    ) -> Result<SignalWords> {
        let mut own = Some(own);
        let mut memory = Vec::with_capacity(tokens.len());
        for ((rank, token), descriptor) in (0..).zip(tokens).zip(descriptors) {
            memory.push(match own.take_if(|_| rank == self.team.rank) {
                Some(own) => own,
                None => self.device.import(&token, descriptor, HeapKind::Host)?,
            });
        }
        SignalWords::new(&*self.device, self.team.first, limits, memory)
    }

    fn no_words(&self, rank: u32, why: &str) -> Option<SignalWords> {
        let (own, rank) = (self.bootstrap.rank(), self.team.first + rank);
        log::info(Subsys::Reg, || {
            format!("rank {own}: signals of this host are messages, because of rank {rank}: {why}")
        });
        None
    }
}

/// The descriptors of the words of all ranks in other processes, by rank of the team.
fn pass(exchange: &Exchange<'_>, export: &Export) -> Result<Vec<Option<OwnedFd>>> {
    let elsewhere = &exchange.team.is_elsewhere;
    if let Some(descriptor) = &export.fd {
        let others = (0..).zip(elsewhere).filter(|(_, is_elsewhere)| **is_elsewhere);
        others.clone().try_for_each(|(peer, _)| exchange.send_descriptor(peer, descriptor.as_fd()))?;
    }
    let take = |(peer, is_elsewhere): (u32, &bool)| {
        (*is_elsewhere && export.fd.is_some()).then(|| exchange.receive_descriptor(peer)).transpose()
    };
    (0..).zip(elsewhere).map(take).collect()
}

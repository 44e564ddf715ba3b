//! Parts of heaps that are made when an operation first needs them ([`HeapLayout::is_late`]): a communicator
//! that only adds up small values takes a few MiB, not those of every way there is.
//!
//! A rank that needs a part asks all others of its host for theirs, by a message. The thread of their
//! bootstrap has the part made and named, so nobody waits for a call of another rank. Ranks that have not
//! needed the part themselves have it from then on as well.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;

use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_device::{Device, Export, HeapKind, Memory, size_text};
use hawser_plan::layout::{HeapLayout, Part};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};

use super::Near;
use crate::bootstrap::{Bootstrap, Tag};
use crate::record;

/// Number of parts.
const PARTS: usize = Part::ALL.len();

/// The late parts of this rank's heap, and those of the others that this rank has mapped.
pub struct LateParts {
    rank: u32,
    bootstrap: Arc<Bootstrap>,
    own: Arc<OwnParts>,
    /// By part: those of the others. Held while a rank asks, so that two threads do not both ask.
    mapped: [Mutex<Vec<Memory>>; PARTS],
    /// By part: where it begins on each rank, once all are mapped.
    starts: [OnceLock<Vec<u64>>; PARTS],
}

/// This rank's own parts, which its bootstrap serves.
struct OwnParts {
    rank: u32,
    /// The other ranks, all of this host.
    near: Vec<Near>,
    device: Arc<dyn Device>,
    layout: HeapLayout,
    abort: AbortFlag,
    made: [Mutex<Option<Memory>>; PARTS],
}

/// The answer to a rank that asks for a part.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The part's name, and whether a descriptor comes as well.
    Made { token: Vec<u8>, has_descriptor: bool },
    /// The reason why there is none.
    Failed(String),
}

impl LateParts {
    /// Makes nothing yet; from now on other ranks may ask. To be called before they do.
    pub fn new(
        device: &Arc<dyn Device>,
        bootstrap: &Arc<Bootstrap>,
        near: Vec<Near>,
        layout: &HeapLayout,
        abort: &AbortFlag,
    ) -> Self {
        let rank = bootstrap.rank();
        let own = Arc::new(OwnParts {
            rank,
            near,
            device: device.clone(),
            layout: *layout,
            abort: abort.clone(),
            made: Default::default(),
        });
        let (served, answers) = (Arc::downgrade(&own), Arc::downgrade(bootstrap));
        bootstrap.serve(Tag::PartWanted.word(), move |from, message| {
            serve(&served, &answers, from, message);
        });
        let (mapped, starts) = Default::default();
        Self { rank, bootstrap: bootstrap.clone(), own, mapped, starts }
    }

    /// The addresses at which a late part begins, by rank. The first call for a part makes and maps it.
    ///
    /// # Errors
    /// There is no memory for it, here or on another rank; a rank has left; or as [`Wait::check`].
    pub fn reach(&self, part: Part, wait: &Wait) -> Result<&[u64]> {
        let number = part as usize;
        if let Some(starts) = self.starts[number].get() {
            return Ok(starts);
        }
        let mut mapped = unpoisoned(&self.mapped[number]);
        if let Some(starts) = self.starts[number].get() {
            return Ok(starts);
        }
        let own = self.own.make(part)?;
        let theirs = self.ask_all(part, wait)?;
        let theirs = self.own.near.iter().zip(theirs).map(|(near, (token, descriptor))| {
            let memory = self.own.device.import(&token, descriptor, HeapKind::Device);
            memory.map_err(|error: Error| {
                let text = format!("rank {} cannot map the {part:?} of rank {}", self.rank, near.rank);
                error.context(text).with_peer(near.rank)
            })
        });
        *mapped = theirs.collect::<Result<_>>()?;
        let mut starts = vec![own; self.own.near.len() + 1];
        for (near, memory) in self.own.near.iter().zip(&*mapped) {
            starts[near.rank as usize] = memory.addr;
        }
        log::info(Subsys::Alloc, || {
            let bytes = size_text(self.own.layout.part_bytes(part));
            format!(
                "rank {}: {part:?} of {bytes} made, those of {} peers mapped",
                self.rank,
                self.own.near.len()
            )
        });
        Ok(self.starts[number].get_or_init(|| starts))
    }

    /// Asks all other ranks for a part: their tokens and descriptors. Where one does not answer, the error
    /// says who is to blame, and the others are told: this rank's part in the communicator is over.
    fn ask_all(&self, part: Part, wait: &Wait) -> Result<Vec<(Vec<u8>, Option<OwnedFd>)>> {
        for near in &self.own.near {
            let sent = self.bootstrap.send(near.rank, Tag::PartWanted.word(), &[part as u8], wait);
            sent.map_err(|error| self.bootstrap.blame(error))?;
        }
        // All of them, also where one says no: none is left for the next question.
        let answers = self.own.near.iter().map(|near| self.take_answer(near.rank, part, wait));
        let answers: Vec<Result<_>> = answers.collect();
        answers.into_iter().collect()
    }

    fn take_answer(&self, peer: u32, part: Part, wait: &Wait) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        let tag = Tag::PartNamed.on_lane(part as u32);
        let silent = |error| self.bootstrap.blame(error);
        let answer = self.bootstrap.recv(peer, tag, wait).map_err(silent)?;
        match record::decode(&answer) {
            Some(Answer::Made { token, has_descriptor: false }) => Ok((token, None)),
            Some(Answer::Made { token, has_descriptor: true }) => {
                Ok((token, Some(self.bootstrap.recv_fd(peer, tag, wait).map_err(silent)?)))
            }
            Some(Answer::Failed(text)) => Err(Error::remote(text).with_peer(peer)),
            None => Err(Error::remote(format!("rank {peer} named its {part:?} by no record"))
                .remedy("use the same build everywhere")
                .with_peer(peer)),
        }
    }

    /// Device memory that this rank has made.
    pub fn bytes(&self) -> u64 {
        self.own.made.iter().map(|made| unpoisoned(made).as_ref().map_or(0, |memory| memory.bytes)).sum()
    }

    /// Does something with all memory: first this rank's own, then that of others.
    ///
    /// # Errors
    /// The first of `act`.
    pub fn try_for_each(&self, mut act: impl FnMut(&Memory, Owner) -> Result<()>) -> Result<()> {
        for made in &self.own.made {
            unpoisoned(made).as_ref().map_or(Ok(()), |memory| act(memory, Owner::Own))?;
        }
        for mapped in &self.mapped {
            unpoisoned(mapped).iter().try_for_each(|memory| act(memory, Owner::Peer))?;
        }
        Ok(())
    }

    /// Maps the parts of others again, at the same addresses, after all ranks have taken memory for theirs
    /// again.
    ///
    /// # Errors
    /// As [`LateParts::reach`].
    pub fn map_again(&self, wait: &Wait) -> Result<()> {
        for part in Part::ALL {
            let mapped = unpoisoned(&self.mapped[part as usize]);
            if mapped.is_empty() {
                continue;
            }
            let handles = self.ask_all(part, wait)?;
            for ((near, memory), (token, descriptor)) in self.own.near.iter().zip(&*mapped).zip(handles) {
                if !self.own.device.can_detach(memory) {
                    continue;
                }
                self.own.device.attach_peer(memory, &token, descriptor).map_err(|error: Error| {
                    let text = format!("the {part:?} of rank {} cannot be mapped again", near.rank);
                    error.context(text).with_peer(near.rank)
                })?;
            }
        }
        Ok(())
    }

    /// Takes all memory out: it lives as long as the answer.
    pub fn take_memory(&self) -> Vec<Memory> {
        let own = self.own.made.iter().filter_map(|made| unpoisoned(made).take());
        let mapped = self.mapped.iter().flat_map(|mapped| std::mem::take(&mut *unpoisoned(mapped)));
        own.chain(mapped).collect()
    }
}

/// The rank that some memory is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// This rank's.
    Own,
    /// Another rank's, mapped here.
    Peer,
}

impl OwnParts {
    /// The address of this rank's part, which is made if it is not there.
    fn make(&self, part: Part) -> Result<u64> {
        let mut made = unpoisoned(&self.made[part as usize]);
        if let Some(memory) = &*made {
            return Ok(memory.addr);
        }
        let bytes = self.layout.part_bytes(part);
        let memory = self.device.alloc_heap(bytes.max(1), HeapKind::Device).map_err(|error: Error| {
            let text = format!("rank {} has no {} for the {part:?} of its heap", self.rank, size_text(bytes));
            let remedy = "leave more device memory, or take it at init with NCCL_RUNTIME_CONNECT=0";
            error.context(text).remedy(remedy)
        })?;
        Ok(made.insert(memory).addr)
    }

    /// The name of this rank's part, for another rank.
    fn name(&self, part: Part) -> Result<Export> {
        self.make(part)?;
        let made = unpoisoned(&self.made[part as usize]);
        let memory = made.as_ref().ok_or_else(|| Error::internal("a part went away"))?;
        self.device.export(memory, HeapKind::Device)
    }

    /// Makes a part for rank `to` and tells it the name, or why there is none.
    fn answer(&self, bootstrap: &Bootstrap, to: u32, part: Part) -> Result<()> {
        let wait = Wait::new(self.abort.clone(), None);
        let tag = Tag::PartNamed.on_lane(part as u32);
        let is_elsewhere = self.near.iter().any(|near| near.rank == to && near.is_elsewhere);
        // The descriptor first: if it cannot be sent, the answer says so.
        let named = self.name(part).and_then(|Export { token, fd }| {
            let descriptor = fd.filter(|_| is_elsewhere);
            descriptor.as_ref().map_or(Ok(()), |fd| bootstrap.send_fd(to, tag, fd.as_fd(), &wait))?;
            Ok(Answer::Made { token, has_descriptor: descriptor.is_some() })
        });
        let answer = named.unwrap_or_else(|error| Answer::Failed(error.to_string()));
        bootstrap.send(to, tag, &record::encode(&answer), &wait)
    }
}

/// Has a rank that asks answered, by a thread of its own: the bootstrap's must not wait for that rank.
fn serve(own: &Weak<OwnParts>, bootstrap: &Weak<Bootstrap>, from: u32, message: &[u8]) {
    let part = match message {
        [number] => Part::ALL.get(usize::from(*number)).copied(),
        _ => None,
    };
    let Some(part) = part else {
        log::warn(&format!(
            "rank {from} asked for a part of the heap that is none: its build is another one"
        ));
        return;
    };
    let (own, bootstrap) = (own.clone(), bootstrap.clone());
    let answer = move || {
        let (Some(own), Some(bootstrap)) = (own.upgrade(), bootstrap.upgrade()) else { return };
        if !own.layout.is_late(part) {
            return log::warn(&format!("rank {from} asked for the {part:?}, which are no part of their own"));
        }
        if let Err(error) = own.answer(&bootstrap, from, part) {
            log::info(Subsys::Alloc, || format!("rank {}: {part:?} for rank {from}: {error}", own.rank));
        }
    };
    if let Err(error) = thread::Builder::new().name("hawser-parts".into()).spawn(answer) {
        log::warn(&format!("rank {from} gets no answer, no thread can be started: {error}"));
    }
}

/// Locks what no panic can leave half changed.
fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;

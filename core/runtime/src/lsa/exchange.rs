//! The exchange by which the ranks of a load-store team map each other's memory.
//!
//! Each tells the others which memory its buffer lies in, or why they cannot have it; then all map that of
//! all, and tell each other how that went. So all decide alike: either everybody has the mapping or nobody.
//!
//! Memory of CUDA's VMM is mapped side by side, in rows of one length, as kernels of users need it. That of
//! `cudaMalloc` cannot be; if all ranks have such (`allocation.rs`), each finds that of the others somewhere.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use hawser_base::error::{Error, Result};
use hawser_base::wait::Wait;
use hawser_device::{Device, FlatMaps, Memory, Multicast, Pieces, Row};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::allocation::{Allocation, Opened};
use super::layout::STRIDE_UNIT;
use super::team::Team;
use crate::bootstrap::{Bootstrap, Tag};
use crate::record;

/// The purpose of an exchange, which must be the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// A window of the user.
    Window,
    /// The resources of a communicator for kernels.
    Resources,
    /// A buffer of a captured call.
    Graph,
    /// A buffer that its rank registers for itself.
    Registered,
}

impl Purpose {
    fn call(self) -> &'static str {
        match self {
            Self::Window => "ncclCommWindowRegister",
            Self::Resources => "ncclDevCommCreate",
            Self::Graph => "a collective in a capture",
            Self::Registered => "ncclCommRegister",
        }
    }
}

/// The memory of a buffer, as others map it.
pub enum Share {
    /// Pieces of CUDA's VMM.
    Pieces(Pieces),
    /// An allocation of `cudaMalloc`.
    Allocation(Allocation),
}

/// A mapping of the memory of all ranks of a team.
pub struct Mapping {
    /// By rank of the team: the address of its buffer here.
    pub places: Vec<u64>,
    /// Distance between the buffers of two neighbours; the reason why they do not lie side by side, if so.
    pub stride: std::result::Result<u64, String>,
    /// By rank of the team: the length of its buffer.
    pub lengths: Vec<u64>,
    /// By rank of the team: the address of this rank's buffer there; empty unless all ranks lend their
    /// buffers to collectives.
    pub seen_at: Vec<u64>,
    /// The offers that it was made from, where some rank wants multicast addresses.
    pub rows: Option<Rows>,
    /// Whatever keeps the memory mapped.
    _memory: Vec<Arc<Memory>>,
}

/// Memory that a rank offers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Offer {
    purpose: Purpose,
    /// Length of the buffer.
    bytes: u64,
    /// Bytes of the first piece before it.
    pub before: u64,
    granularity: u64,
    /// Lengths of the pieces.
    pub pieces: Vec<u64>,
    /// The place of their descriptors in the table of the process.
    key: u64,
    /// The allocation that the buffer lies in, if it has no pieces.
    allocation: Option<Allocation>,
    /// The number of bytes that multicast needs pieces to be multiples of, if the rank takes part in it.
    pub multicast: Option<u64>,
}

/// The memory, or the reason why there is none.
pub type OfferRecord = std::result::Result<Offer, String>;

/// The memory that a rank has mapped, or why mapping failed there.
type OutcomeRecord = std::result::Result<Mapped, String>;

/// The memory of a team as a rank has mapped it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Mapped {
    /// As [`Mapping::places`]; none if all buffers are empty.
    places: Vec<u64>,
    /// The rank lends its buffer to collectives.
    is_lent: bool,
}

/// Descriptors that ranks of the same process take from each other.
static IN_PROCESS: LazyLock<Mutex<FxHashMap<u64, Arc<Vec<OwnedFd>>>>> = LazyLock::new(Mutex::default);

/// See [`Shown`].
pub fn in_process() -> MutexGuard<'static, FxHashMap<u64, Arc<Vec<OwnedFd>>>> {
    IN_PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This rank's descriptors in the table, taken out at the end of the exchange.
pub struct Shown {
    /// Their place in the table.
    pub key: u64,
    /// The descriptors.
    pub descriptors: Arc<Vec<OwnedFd>>,
}

impl Shown {
    /// Enters descriptors into the table.
    pub fn new(descriptors: Vec<OwnedFd>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let descriptors = Arc::new(descriptors);
        in_process().insert(key, descriptors.clone());
        Self { key, descriptors }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        in_process().remove(&self.key);
    }
}

/// One exchange of a communicator.
pub struct Exchange<'a> {
    /// Control connections.
    pub bootstrap: &'a Bootstrap,
    /// The ranks that take part.
    pub team: &'a Team,
    /// The device that maps them.
    pub device: &'a dyn Device,
    /// The allocations of other ranks that are open.
    pub opened: &'a Opened,
    /// Its number, the same on all ranks.
    pub number: u32,
    /// This rank lends its buffer to collectives, if all others do.
    pub is_lent: bool,
    /// This rank wants multicast addresses, if all others do and the devices have them.
    pub wants_multicast: bool,
    /// The wait for other ranks, which may end it.
    pub wait: &'a Wait,
}

impl Exchange<'_> {
    /// Maps the buffers of all ranks: this rank's is `bytes` long, in `share`. The inner error is what ranks
    /// agree on, so the communicator goes on; empty buffers map nothing.
    ///
    /// # Errors
    /// Of the outer result: another rank did not answer.
    pub fn run(
        &self,
        maps: &dyn FlatMaps,
        purpose: Purpose,
        (addr, bytes): (u64, u64),
        share: Result<Option<Share>>,
    ) -> Result<Result<Option<Mapping>>> {
        let (own, descriptors) = offer(purpose, (addr, bytes), share);
        let shown = Shown::new(descriptors);
        let own = own.map(|offer| {
            let multicast = maps.multicast().filter(|_| self.wants_multicast && !offer.pieces.is_empty());
            let granularity = |of: &dyn Multicast| of.multicast_granularity(self.team.ranks()).ok();
            Offer { key: shown.key, multicast: multicast.and_then(granularity), ..offer }
        });
        let offers: Vec<OfferRecord> = self.offer(&own)?;
        let plan = match self.plan(&offers, purpose) {
            Ok(plan) => plan,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let rows = match plan {
            Plan::Rows(rows) => rows,
            Plan::Apart(allocations) => return self.agree(self.open(&allocations).map(Some)),
        };
        let received = self.pass_descriptors(&rows, &shown.descriptors)?;
        let mapping = if rows.stride == 0 { Ok(None) } else { rows.lay_out(maps, &received).map(Some) };
        let agreed = self.agree(mapping)?;
        let rows = Some(rows).filter(|rows| rows.offers.iter().any(|offer| offer.multicast.is_some()));
        Ok(agreed.map(|mapping| mapping.map(|mapping| Mapping { rows, ..mapping })))
    }

    /// Tells all ranks how mapping went: everybody has the mapping, or nobody.
    fn agree(&self, mapping: Result<Option<Mapping>>) -> Result<Result<Option<Mapping>>> {
        let places =
            |mapping: &Option<Mapping>| mapping.as_ref().map_or_else(Vec::new, |one| one.places.clone());
        let outcome: OutcomeRecord = mapping
            .as_ref()
            .map(|mapping| Mapped { places: places(mapping), is_lent: self.is_lent })
            .map_err(ToString::to_string);
        let outcomes: Vec<OutcomeRecord> = self.tell_outcome(&outcome)?;
        let mapping = match mapping {
            Ok(mapping) => mapping,
            Err(error) => return Ok(Err(error)),
        };
        let mut mapped = Vec::with_capacity(outcomes.len());
        for (rank, outcome) in (0..).zip(outcomes) {
            match outcome {
                Ok(outcome) => mapped.push(outcome),
                Err(text) => return Ok(Err(self.of(rank, Error::remote(text)))),
            }
        }
        let own_place = |one: &Mapped| one.places.get(self.team.rank as usize).copied();
        let seen_at = mapped.iter().map(|one| own_place(one).filter(|_| one.is_lent)).collect::<Option<_>>();
        Ok(Ok(mapping.map(|mapping| Mapping { seen_at: seen_at.unwrap_or_default(), ..mapping })))
    }

    /// Opens the allocations of all ranks, with the lengths of their buffers.
    fn open(&self, allocations: &[(Allocation, u64)]) -> Result<Mapping> {
        let (mut places, mut memory) = (Vec::with_capacity(allocations.len()), Vec::new());
        for (rank, (allocation, _)) in (0..).zip(allocations) {
            let opened = if rank == self.team.rank {
                None
            } else if self.team.is_elsewhere[rank as usize] {
                let peer = self.team.first + rank;
                Some(self.opened.open(self.device, peer, allocation).map_err(|error| self.of(rank, error))?)
            } else {
                self.device.reach(allocation.ordinal).map_err(|error| self.of(rank, error))?;
                None
            };
            places.push(allocation.place(opened.as_deref()));
            memory.extend(opened);
        }
        let stride = Err(allocations.first().map_or_else(String::new, |(first, _)| first.why_apart.clone()));
        let lengths = allocations.iter().map(|(_, bytes)| *bytes).collect();
        Ok(Mapping { places, stride, lengths, seen_at: Vec::new(), rows: None, _memory: memory })
    }

    /// Tells all ranks of the team what this one offers, and learns their offers.
    ///
    /// # Errors
    /// Another rank did not answer, or not with a record.
    pub fn offer<T: Serialize + for<'de> Deserialize<'de> + Clone>(&self, own: &T) -> Result<Vec<T>> {
        self.swap(Tag::LsaOffer, own)
    }

    /// Tells all ranks of the team how it went on this one, and learns how on theirs.
    ///
    /// # Errors
    /// As [`Exchange::offer`].
    pub fn tell_outcome<T: Serialize + for<'de> Deserialize<'de> + Clone>(&self, own: &T) -> Result<Vec<T>> {
        self.swap(Tag::LsaOutcome, own)
    }

    /// Passes a descriptor to a rank of the team in another process.
    ///
    /// # Errors
    /// It is not there.
    pub fn send_descriptor(&self, peer: u32, descriptor: BorrowedFd<'_>) -> Result<()> {
        let tag = Tag::LsaOffer.on_lane(self.number);
        self.bootstrap.send_fd(self.team.first + peer, tag, descriptor, self.wait)
    }

    /// The next descriptor that a rank of the team in another process has passed.
    ///
    /// # Errors
    /// It did not come.
    pub fn receive_descriptor(&self, peer: u32) -> Result<OwnedFd> {
        let tag = Tag::LsaOffer.on_lane(self.number);
        self.bootstrap.recv_fd(self.team.first + peer, tag, self.wait)
    }

    /// Tells all ranks of the team something, and learns it of theirs.
    fn swap<T: Serialize + for<'de> Deserialize<'de> + Clone>(&self, tag: Tag, own: &T) -> Result<Vec<T>> {
        let (bytes, tag) = (record::encode(own), tag.on_lane(self.number));
        for peer in self.team.others() {
            self.bootstrap.send(self.team.first + peer, tag, &bytes, self.wait)?;
        }
        let mut all = Vec::with_capacity(self.team.ranks() as usize);
        for peer in 0..self.team.ranks() {
            if peer == self.team.rank {
                all.push(own.clone());
                continue;
            }
            let answer = self.bootstrap.recv(self.team.first + peer, tag, self.wait)?;
            let answer = record::decode(&answer).ok_or_else(|| {
                let error = Error::remote("its message about a window is no record");
                self.of(peer, error.remedy("use the same build everywhere"))
            })?;
            all.push(answer);
        }
        Ok(all)
    }

    fn of(&self, rank: u32, error: Error) -> Error {
        let rank = self.team.first + rank;
        error.context(format_args!("rank {rank}")).with_peer(rank)
    }

    /// The way in which the memory that is offered can be mapped; the first reason why there is none.
    fn plan(&self, offers: &[OfferRecord], purpose: Purpose) -> Result<Plan> {
        let mut good = Vec::with_capacity(offers.len());
        for (rank, offer) in (0..).zip(offers) {
            match offer {
                Ok(offer) if offer.purpose == purpose => good.push(offer.clone()),
                Ok(offer) => {
                    let text = format!("it calls {}, and this rank {}", offer.purpose.call(), purpose.call());
                    let error = Error::invalid_usage(text).remedy("make the same calls in the same order");
                    return Err(self.of(rank, error));
                }
                Err(text) => return Err(self.of(rank, Error::invalid_usage(text.as_str()))),
            }
        }
        Plan::new(good).map_err(|(rank, error)| self.of(rank, error))
    }

    /// The descriptors of all ranks' pieces; those of this rank among them.
    fn pass_descriptors(&self, plan: &Rows, own: &Arc<Vec<OwnedFd>>) -> Result<Vec<Arc<Vec<OwnedFd>>>> {
        for peer in self.team.others().filter(|peer| self.team.is_elsewhere[*peer as usize]) {
            for descriptor in own.iter() {
                self.send_descriptor(peer, descriptor.as_fd())?;
            }
        }
        let mut all = Vec::with_capacity(plan.offers.len());
        for (rank, offer) in (0..).zip(&plan.offers) {
            all.push(if rank == self.team.rank {
                own.clone()
            } else if self.team.is_elsewhere[rank as usize] {
                let take = |_: &u64| self.receive_descriptor(rank);
                Arc::new(offer.pieces.iter().map(take).collect::<Result<Vec<_>>>()?)
            } else {
                let found = in_process().get(&offer.key).cloned();
                found.ok_or_else(|| self.of(rank, Error::remote("it took its descriptors back")))?
            });
        }
        Ok(all)
    }
}

/// The offer of this rank, and the descriptors of its pieces.
pub fn offer(
    purpose: Purpose,
    (addr, bytes): (u64, u64),
    share: Result<Option<Share>>,
) -> (OfferRecord, Vec<OwnedFd>) {
    let mut offer = Offer {
        purpose,
        bytes,
        before: 0,
        granularity: 1,
        pieces: Vec::new(),
        key: 0,
        allocation: None,
        multicast: None,
    };
    let mut descriptors = Vec::new();
    match share {
        Err(error) => return (Err(error.to_string()), descriptors),
        Ok(None) => {}
        Ok(Some(Share::Allocation(allocation))) => offer.allocation = Some(allocation),
        Ok(Some(Share::Pieces(Pieces { base, pieces, granularity }))) => {
            (offer.before, offer.granularity) = (addr - base, granularity);
            (offer.pieces, descriptors) = pieces.into_iter().unzip();
        }
    }
    (Ok(offer), descriptors)
}

/// The way in which ranks map each other's memory, the same on all ranks.
enum Plan {
    /// Side by side.
    Rows(Rows),
    /// Each allocation for itself; with the lengths of the buffers.
    Apart(Vec<(Allocation, u64)>),
}

impl Plan {
    /// The error names the rank of the team whose offer does not fit.
    fn new(offers: Vec<Offer>) -> std::result::Result<Self, (u32, Error)> {
        let apart = |offer: &Offer| Some((offer.allocation.clone()?, offer.bytes));
        if let Some(allocations) = offers.iter().map(apart).collect() {
            return Ok(Self::Apart(allocations));
        }
        let other = (0..).zip(&offers).find_map(|(rank, offer)| Some((rank, offer.allocation.as_ref()?)));
        match other {
            Some((rank, other)) => Err((rank, Error::invalid_usage(other.why_apart.as_str()))),
            None => Rows::new(offers).map(Self::Rows),
        }
    }
}

/// The places of all pieces, the same on all ranks.
pub struct Rows {
    /// The offers of all ranks.
    pub offers: Vec<Offer>,
    /// The place of the buffers in their rows.
    pub at: u64,
    /// Length of a row; 0 if nothing is mapped.
    stride: u64,
}

impl Rows {
    /// The error names the rank of the team whose offer does not fit.
    fn new(offers: Vec<Offer>) -> std::result::Result<Self, (u32, Error)> {
        let at = offers.iter().map(|offer| offer.before).max().unwrap_or(0);
        let mut longest = 0;
        for (rank, offer) in (0..).zip(&offers) {
            let first = &offers[0];
            let refuse = |text: String, remedy: &str| Err((rank, Error::invalid_usage(text).remedy(remedy)));
            if offer.purpose == Purpose::Resources && offer.bytes != first.bytes {
                let text = format!(
                    "it asks for {} bytes of resources, and the first for {}",
                    offer.bytes, first.bytes
                );
                return refuse(text, "ask for the same resources on all ranks");
            }
            let page = first.granularity.max(offer.granularity);
            if offer.before % page != first.before % page {
                let text = format!(
                    "its window begins {:#x} behind a border of {page:#x}, and the first rank's {:#x}",
                    offer.before % page,
                    first.before % page
                );
                return refuse(text, "register the same offset of allocations made alike on all ranks");
            }
            longest = longest.max(at - offer.before + offer.pieces.iter().sum::<u64>());
        }
        Ok(Self { offers, at, stride: longest.next_multiple_of(STRIDE_UNIT) })
    }

    fn lay_out(&self, maps: &dyn FlatMaps, descriptors: &[Arc<Vec<OwnedFd>>]) -> Result<Mapping> {
        let rows: Vec<Row<'_>> = self
            .offers
            .iter()
            .zip(descriptors)
            .map(|(offer, descriptors)| {
                let pieces = offer.pieces.iter().copied().zip(descriptors.iter().map(AsFd::as_fd));
                Row { at: self.at - offer.before, pieces: pieces.collect() }
            })
            .collect();
        let rows = maps.lay_out(self.stride, &rows)?;
        let places =
            (0..self.offers.len() as u64).map(|rank| rows.addr + rank * self.stride + self.at).collect();
        let lengths = self.offers.iter().map(|offer| offer.bytes).collect();
        let memory = vec![Arc::new(rows)];
        Ok(Mapping {
            places,
            stride: Ok(self.stride),
            lengths,
            seen_at: Vec::new(),
            rows: None,
            _memory: memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(before: u64, pieces: &[u64]) -> Offer {
        let (purpose, pieces) = (Purpose::Window, pieces.to_vec());
        let (bytes, granularity) = (100, 2 << 20);
        Offer { purpose, bytes, before, granularity, pieces, key: 0, allocation: None, multicast: None }
    }

    #[test]
    fn buffers_have_one_place_in_rows_whatever_is_around_them() {
        let page = 2 << 20;
        let plan = Rows::new(vec![offer(page + 64, &[3 * page]), offer(64, &[page, page])]).unwrap();
        assert_eq!((plan.at, plan.stride), (page + 64, STRIDE_UNIT));
        let long = Rows::new(vec![offer(0, &[STRIDE_UNIT]), offer(page, &[2 * page])]).unwrap();
        assert_eq!((long.at, long.stride), (page, 2 * STRIDE_UNIT), "the first one begins a page later");
        assert_eq!(Rows::new(vec![offer(0, &[]), offer(0, &[])]).unwrap().stride, 0);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_rank() {
        let (rank, error) = Rows::new(vec![offer(0, &[1]), offer(64, &[1])]).err().unwrap();
        assert!(rank == 1 && error.text.contains("0x40 behind"), "{error}");
        let resources = |bytes| Offer { purpose: Purpose::Resources, bytes, ..offer(0, &[1]) };
        let (rank, error) = Rows::new(vec![resources(1), resources(1), resources(2)]).err().unwrap();
        assert!(rank == 2 && error.text.contains("asks for 2 bytes"), "{error}");
    }

    #[test]
    fn allocations_stay_apart_and_all_ranks_have_such_or_none() {
        let apart = |why: &str| Offer { allocation: Some(Allocation::example(why)), ..offer(0, &[]) };
        let Ok(Plan::Apart(all)) = Plan::new(vec![apart("a"), apart("b")]) else { panic!("not apart") };
        assert_eq!(
            all.iter().map(|(one, bytes)| (&*one.why_apart, *bytes)).collect::<Vec<_>>(),
            [("a", 100), ("b", 100)]
        );
        for offers in [vec![offer(0, &[1]), apart("b")], vec![apart("b"), offer(0, &[1])]] {
            let wanted = offers.iter().position(|offer| offer.allocation.is_some()).unwrap() as u32;
            let (rank, error) = Plan::new(offers).err().unwrap();
            assert!(rank == wanted && error.text.contains('b'), "{error}");
        }
    }
}

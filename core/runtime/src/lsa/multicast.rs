//! Multicast addresses of windows, for kernels of the program (`ncclGetLsaMultimemPointer`).
//!
//! Once the ranks of a team have mapped each other's memory they make one object over it: the first rank
//! makes it and passes its descriptor, each joins, then each binds its own memory and maps the object. After
//! each step all tell how it went, so that either all have it or none does. Where none does the window stays
//! what it is without.
//!
//! **No hardware has run this** (`HAWSER_MULTICAST`, off): it is tested on the stand-in for CUDA's driver.

use std::os::fd::AsFd;
use std::sync::OnceLock;

use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_device::{FlatMaps, Multicast, MulticastObject};

use super::exchange::{Exchange, Mapping, Rows, Shown, in_process};
use super::{Lsa, Window};

/// The unit in which device code counts places of windows, in bytes.
const PLACE_UNIT: u64 = 4096;
/// Device code has 32 bits for such a place.
const PLACES: u64 = PLACE_UNIT << 32;

/// The object over the memory of a window.
pub struct Mapped {
    /// The address at which the buffer begins on all ranks at once.
    pub addr: u64,
    /// The same in units of 4 KiB from the begin that the communicator's windows have; never 0.
    pub place: u32,
    /// Whatever keeps it mapped.
    _object: Box<dyn MulticastObject>,
}

/// The object over a window, or the reason why there is none.
pub type MulticastOutcome = std::result::Result<Mapped, String>;

/// The outcome for a team of one rank.
pub fn nobody_else() -> MulticastOutcome {
    Err("a team of one rank has none".to_string())
}

/// The begin of the addresses that places of a communicator's windows are counted from.
#[derive(Default)]
pub struct Base(OnceLock<u64>);

impl Base {
    /// The begin; 0 while no window has a multicast address.
    pub fn get(&self) -> u64 {
        self.0.get().copied().unwrap_or(0)
    }

    /// The place of an address, in units of 4 KiB; 0 if it is too far from the first one.
    fn place_of(&self, addr: u64) -> u32 {
        // The first address is in the middle, as others may be before it.
        let base = *self.0.get_or_init(|| addr.saturating_sub(PLACES / 2).next_multiple_of(PLACE_UNIT));
        let at = addr.checked_sub(base).filter(|at| *at < PLACES && at.is_multiple_of(PLACE_UNIT));
        at.map_or(0, |at| (at / PLACE_UNIT) as u32)
    }
}

impl Lsa {
    /// True if windows have multicast addresses where their memory allows it.
    pub fn offers_multicast(&self) -> bool {
        let is_supported = || self.device.flat_maps().is_some_and(|maps| maps.multicast().is_some());
        self.multicast.is_some() && self.missing.is_none() && self.team.ranks() > 1 && is_supported()
    }

    /// The begin that places of windows are counted from; 0 if no window has one.
    pub fn multicast_base(&self) -> u64 {
        self.multicast.as_ref().map_or(0, Base::get)
    }

    /// The address at which an offset of a window is on all ranks at once; None if it has none.
    pub fn multicast_address(&self, handle: u64, offset: u64) -> Option<u64> {
        let state = self.state();
        state.windows.get(&handle)?.multicast.as_ref().ok().map(|mapped| mapped.addr + offset)
    }

    /// The place of a window by its handle; 0 if it has none.
    pub(super) fn place_of_window(&self, handle: u64) -> u32 {
        self.state().windows.get(&handle).map_or(0, Window::multicast_place)
    }

    /// Makes the object over a window whose memory all ranks have mapped, if some rank asks for it; this
    /// rank's begins at `addr`. The inner error is the reason why there is none, on all ranks.
    ///
    /// # Errors
    /// Of the outer result: another rank did not answer.
    pub(super) fn map_multicast(
        &self,
        exchange: &Exchange<'_>,
        maps: &dyn FlatMaps,
        (mapping, addr): (&Result<Option<Mapping>>, u64),
    ) -> Result<MulticastOutcome> {
        let rows = mapping.as_ref().ok().and_then(|mapping| mapping.as_ref()?.rows.as_ref());
        let Some(rows) = rows else { return Ok(Err("it is not asked for (HAWSER_MULTICAST=1)".to_string())) };
        let nowhere = Base::default();
        let made = exchange.multicast(maps, (rows, addr), self.multicast.as_ref().unwrap_or(&nowhere))?;
        if let Err(why) = &made {
            log::info(Subsys::Reg, || {
                format!("rank {}: a window has no multicast address: {why}", self.bootstrap.rank())
            });
        }
        Ok(made)
    }

    /// Checks that kernels find all windows by multicast, and the resources whose object this is.
    ///
    /// # Errors
    /// `InvalidUsage`: one has no such address, and why; the same on all ranks.
    pub(super) fn check_multicast(&self, resources: Option<&MulticastOutcome>) -> Result<()> {
        let state = self.state();
        let windows = state.windows.values().filter(|window| window.held.is_none());
        let all = windows.map(|window| &window.multicast).chain(resources);
        match all.filter_map(|one| one.as_ref().err()).next() {
            Some(why) => Err(Error::invalid_usage(format!("a window has no multicast address: {why}"))
                .remedy(
                    "make windows of ncclMemAlloc, at the same offset on all ranks, on GPUs with NVSwitch",
                )),
            None => Ok(()),
        }
    }
}

impl Window {
    /// Its place in multicast; 0 if it has none.
    pub(super) fn multicast_place(&self) -> u32 {
        self.multicast.as_ref().map_or(0, |mapped| mapped.place)
    }
}

impl Exchange<'_> {
    /// Makes an object over buffers that all ranks have mapped; this rank's is at `addr`. The inner error is
    /// the reason why there is none, on all ranks.
    ///
    /// # Errors
    /// Of the outer result: another rank did not answer.
    fn multicast(
        &self,
        maps: &dyn FlatMaps,
        (rows, addr): (&Rows, u64),
        base: &Base,
    ) -> Result<MulticastOutcome> {
        let bytes = match length(rows) {
            Ok(bytes) => bytes,
            Err(why) => return Ok(Err(why)),
        };
        let own = maps.multicast().ok_or_else(|| Error::internal("a device without multicast offered it"))?;
        let object = match self.object(own, bytes)? {
            Ok(object) => object,
            Err(why) => return Ok(Err(why)),
        };
        if let Some(why) = self.first_problem(&object.join())? {
            return Ok(Err(why));
        }
        let mapped = self.bind(object, (rows, addr), base);
        Ok(match self.first_problem(&mapped)? {
            Some(why) => Err(why),
            None => mapped.map_err(|error| error.to_string()),
        })
    }

    /// The object of the team: the first rank makes it.
    fn object(
        &self,
        own: &dyn Multicast,
        bytes: u64,
    ) -> Result<std::result::Result<Box<dyn MulticastObject>, String>> {
        let made = match self.team.rank {
            0 => Some(
                own.create_multicast(self.team.ranks(), bytes).and_then(|made| Ok((made.export()?, made))),
            ),
            _ => None,
        };
        let (made, shown) = match made.transpose() {
            Ok(Some((descriptor, made))) => (Ok(Some(made)), Some(Shown::new(vec![descriptor]))),
            Ok(None) => (Ok(None), None),
            Err(error) => (Err(error), None),
        };
        let key = shown.as_ref().map_or(0, |shown| shown.key);
        let outcome = made.as_ref().map(|_| key).map_err(ToString::to_string);
        let outcomes: Vec<std::result::Result<u64, String>> = self.tell_outcome(&outcome)?;
        if let Some(why) = problem(&outcomes) {
            return Ok(Err(why));
        }
        let object = match (made, &shown) {
            (Ok(Some(object)), Some(shown)) => {
                for peer in self.team.others().filter(|peer| self.team.is_elsewhere[*peer as usize]) {
                    self.send_descriptor(peer, shown.descriptors[0].as_fd())?;
                }
                Ok(object)
            }
            _ if self.team.is_elsewhere[0] => {
                let descriptor = self.receive_descriptor(0)?;
                own.import_multicast(descriptor.as_fd(), bytes)
            }
            _ => {
                let key = outcomes[0].clone().unwrap_or(0);
                let shown = in_process().get(&key).cloned();
                let shown = shown.ok_or_else(|| Error::remote("rank 0 took its descriptor back"));
                shown.and_then(|shown| own.import_multicast(shown[0].as_fd(), bytes))
            }
        };
        Ok(match self.first_problem(&object)? {
            Some(why) => Err(why),
            None => object.map_err(|error| error.to_string()),
        })
    }

    /// Binds this rank's memory, piece by piece, and maps the object.
    fn bind(
        &self,
        mut object: Box<dyn MulticastObject>,
        (rows, addr): (&Rows, u64),
        base: &Base,
    ) -> Result<Mapped> {
        let offer = &rows.offers[self.team.rank as usize];
        let (mut at, mut from) = (rows.at - offer.before, addr - offer.before);
        for bytes in &offer.pieces {
            object.bind(at, (from, *bytes))?;
            (at, from) = (at + bytes, from + bytes);
        }
        let addr = object.map()? + rows.at;
        match base.place_of(addr) {
            0 => Err(Error::internal(format!("{addr:#x} is too far from the addresses of other windows"))),
            place => Ok(Mapped { addr, place, _object: object }),
        }
    }

    /// Tells all ranks how a step went on this one. The first problem of any rank, the same on all.
    fn first_problem<T>(&self, outcome: &Result<T>) -> Result<Option<String>> {
        let own = outcome.as_ref().map(|_| 0).map_err(ToString::to_string);
        let all: Vec<std::result::Result<u64, String>> = self.tell_outcome(&own)?;
        Ok(problem(&all))
    }
}

fn problem(outcomes: &[std::result::Result<u64, String>]) -> Option<String> {
    let problems = outcomes.iter().enumerate();
    problems
        .filter_map(|(rank, outcome)| Some(format!("rank {rank} of the team: {}", outcome.as_ref().err()?)))
        .next()
}

/// The length of the object over what all ranks offer; the same on all of them.
fn length(rows: &Rows) -> std::result::Result<u64, String> {
    let offered: Option<Vec<u64>> = rows.offers.iter().map(|offer| offer.multicast).collect();
    let granularity = offered.and_then(|all| all.into_iter().max()).ok_or("not all ranks offer multicast")?;
    if !rows.at.is_multiple_of(PLACE_UNIT) {
        return Err(format!("the window begins {:#x} behind a border of 4 KiB", rows.at % PLACE_UNIT));
    }
    let mut bytes = 0;
    for offer in &rows.offers {
        let begin = rows.at - offer.before;
        let mut lengths = offer.pieces.iter().chain([&begin]);
        if !lengths.all(|length| length.is_multiple_of(granularity)) {
            return Err(format!("pieces of memory are no multiples of {granularity:#x}"));
        }
        bytes = bytes.max(begin + offer.pieces.iter().sum::<u64>());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_from_one_begin() {
        let base = Base::default();
        assert_eq!(base.get(), 0);
        let first = 0x7f00_0000_0000;
        assert_eq!(base.place_of(first), 1 << 31);
        assert_eq!(base.get(), first - PLACES / 2);
        assert_eq!(base.place_of(first - PLACE_UNIT), (1 << 31) - 1);
        assert_eq!(base.place_of(first + (4 << 30)), (1 << 31) + (1 << 20));
        // Too far away, and at no border.
        assert_eq!(base.place_of(first + PLACES / 2), 0);
        assert_eq!(base.place_of(first + 16), 0);
    }
}

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
    /// Whatever keeps it mapped.
    _object: Box<dyn MulticastObject>,
}

/// The begin of the addresses that places of a communicator's windows are counted from.
#[derive(Default)]
pub struct Base(OnceLock<u64>);

impl Base {
    /// The begin; 0 while no window has a multicast address.
    pub fn get(&self) -> u64 {
        self.0.get().copied().unwrap_or(0)
    }

    /// The place of an address, in units of 4 KiB: 0 if it is none, or too far from the first one.
    pub fn place_of(&self, addr: Option<u64>) -> u32 {
        let Some(addr) = addr else { return 0 };
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
        Some(self.state().windows.get(&handle)?.multicast()? + offset)
    }

    /// The place of a window that is about to be entered. Says why it has none, where it could have one.
    pub(super) fn multicast_place(&self, window: &Window) -> u32 {
        let (Some(base), Some(mapping)) = (&self.multicast, &window.mapping) else { return 0 };
        if let Err(why) = &mapping.multicast {
            log::info(Subsys::Reg, || {
                format!("rank {}: the window has no multicast address: {why}", self.bootstrap.rank())
            });
        }
        base.place_of(window.multicast())
    }

    /// The place of a window by its handle; 0 if it has none.
    pub(super) fn place_of_window(&self, handle: u64) -> u32 {
        let addr = self.state().windows.get(&handle).and_then(Window::multicast);
        self.multicast.as_ref().map_or(0, |base| base.place_of(addr))
    }

    /// Checks that kernels find all windows by multicast, also that of the resources which are mapped so.
    ///
    /// # Errors
    /// `InvalidUsage`: one has no such address, and why; the same on all ranks.
    pub(super) fn check_multicast(&self, resources: Option<&Mapping>) -> Result<()> {
        let without = |mapping: &Mapping| mapping.multicast.as_ref().err().cloned();
        let state = self.state();
        let windows = state.windows.values().filter(|window| window.held.is_none());
        let of_windows = windows.map(|window| match &window.mapping {
            Some(mapping) => without(mapping),
            None => Some("a team of one rank has none".to_string()),
        });
        match of_windows.flatten().next().or_else(|| without(resources?)) {
            Some(why) => Err(Error::invalid_usage(format!("a window has no multicast address: {why}"))
                .remedy(
                    "make windows of ncclMemAlloc, at the same offset on all ranks, on GPUs with NVSwitch",
                )),
            None => Ok(()),
        }
    }
}

impl Window {
    /// The address at which it is on all ranks at once.
    fn multicast(&self) -> Option<u64> {
        self.mapping.as_ref()?.multicast.as_ref().ok().map(|mapped| mapped.addr)
    }
}

impl Exchange<'_> {
    /// The number of bytes that pieces have to be multiples of, if this rank's device takes part.
    pub fn granularity_of_multicast(&self, maps: &dyn FlatMaps) -> Option<u64> {
        maps.multicast()?.multicast_granularity(self.team.ranks()).ok()
    }

    /// Makes an object over buffers that all ranks have mapped; this rank's is at `addr`. The inner error is
    /// the reason why there is none, on all ranks.
    ///
    /// # Errors
    /// Of the outer result: another rank did not answer.
    pub fn multicast(
        &self,
        maps: &dyn FlatMaps,
        rows: &Rows,
        addr: u64,
    ) -> Result<std::result::Result<Mapped, String>> {
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
        let mapped = self.bind(object, rows, addr);
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
    fn bind(&self, mut object: Box<dyn MulticastObject>, rows: &Rows, addr: u64) -> Result<Mapped> {
        let offer = &rows.offers[self.team.rank as usize];
        let (mut at, mut from) = (rows.at - offer.before, addr - offer.before);
        for bytes in &offer.pieces {
            object.bind(at, (from, *bytes))?;
            (at, from) = (at + bytes, from + bytes);
        }
        let begin = object.map()?;
        Ok(Mapped { addr: begin + rows.at, _object: object })
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
        assert_eq!((base.get(), base.place_of(None)), (0, 0));
        let first = 0x7f00_0000_0000;
        assert_eq!(base.place_of(Some(first)), 1 << 31);
        assert_eq!(base.get(), first - PLACES / 2);
        assert_eq!(base.place_of(Some(first - PLACE_UNIT)), (1 << 31) - 1);
        assert_eq!(base.place_of(Some(first + (4 << 30))), (1 << 31) + (1 << 20));
        // Too far away, and at no border.
        assert_eq!(base.place_of(Some(first + PLACES / 2)), 0);
        assert_eq!(base.place_of(Some(first + 16)), 0);
    }
}

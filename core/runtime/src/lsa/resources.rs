//! Communicators for kernels: barriers and buffers that a program asks for, in one window of zeroed memory.

use std::sync::Arc;

use hawser_base::error::{Error, Result};
use hawser_base::wait::Wait;
use hawser_device::Memory;

use super::exchange::{Exchange, Mapping, Purpose, Share};
use super::layout::{Barriers, DevCommImage, Family, HANDLE_UNIT, NetworkBarriers, NetworkImage};
use super::multicast::{MulticastOutcome, nobody_else};
use super::{Lsa, Window, resource_memory};
use crate::gin::{Form, Needs, Network};
use crate::rma::{self, RESOURCES};

/// The contexts of a network that barriers of the rail team have counters for, until 2.29.
const GIN_CONTEXTS: u64 = 4;

/// Most signals and counters of a context: descriptors have 24 and 23 bits for them.
const MOST_SIGNALS: u32 = 1 << 24;
const MOST_COUNTERS: u32 = 1 << 23;

/// The number of the resource windows of communicators for kernels that have no network.
const NO_NETWORK: u64 = 1 << 40;

/// A resource that a program asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resource {
    /// The length of its buffer.
    pub bytes: u64,
    /// The number of which the place of the buffer is a multiple; a power of two.
    pub align: u64,
    /// Signals of the network in each context.
    pub signals: u32,
    /// Counters of the network in each context.
    pub counters: u32,
}

/// The wishes of a program about the network in kernels, beside what resources and barriers need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkWanted {
    /// The layout of its contexts.
    pub form: Form,
    /// The number of contexts.
    pub contexts: u32,
    /// Signals of each context.
    pub signals: u32,
    /// Counters of each context.
    pub counters: u32,
    /// Descriptors of a queue; 0 leaves it to the library.
    pub depth: u32,
    /// The number of barriers of all ranks.
    pub world_barriers: u32,
    /// Distance between two ranks that contexts have to connect.
    pub stride: u32,
    /// All signals come behind what was put before.
    pub has_strong_signals: bool,
}

/// The needs of a program that makes a communicator for kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The version that it was compiled with.
    pub version: u32,
    /// The layout of its struct.
    pub family: Family,
    /// The number of barriers of the load-store team.
    pub lsa_barriers: u32,
    /// The number of barriers of all kinds.
    pub barriers: u32,
    /// The number of barriers of the rail team.
    pub rail_barriers: u32,
    /// Resources of its own.
    pub resources: Vec<Resource>,
    /// The network in kernels, if it is asked for.
    pub network: Option<NetworkWanted>,
    /// Windows and resources have multicast addresses.
    pub multicast: bool,
}

/// A communicator for kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevComm {
    /// The struct, as the caller's version has it.
    pub image: Vec<u8>,
    /// The parts that the resources got, in order.
    pub parts: Vec<Part>,
    /// The begin of the multicast addresses of windows; 0 if there are none.
    pub multicast: u64,
    /// The number of its network, if it has one, and the window of its resources.
    pub network: Option<(u64, rma::Window)>,
}

/// The place of a resource: where its buffer, signals and counters begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Part {
    /// The handle of its buffer.
    pub buffer: u32,
    /// Its first signal.
    pub signal: u32,
    /// Its first counter.
    pub counter: u32,
}

/// The memory of a rank before all agree.
struct Prepared {
    places: Places,
    room: Memory,
    memory: Option<Memory>,
    network: Option<Arc<Network>>,
}

/// The places of everything in the resource window, and of the signals and counters of the network.
#[derive(Debug, PartialEq, Eq)]
struct Places {
    rail: u32,
    lsa: Barriers,
    hybrid: Barriers,
    parts: Vec<Part>,
    bytes: u64,
    /// The first signals of barriers, and the numbers of signals and counters.
    signals: NetworkBarriers,
    totals: [u32; 2],
}

impl Lsa {
    /// Makes a communicator for kernels. Collective; `ranks` is the size of the communicator, `abort_flag`
    /// the address of a word that ends waits of kernels.
    ///
    /// # Errors
    /// Of the outer result: another rank did not answer. Of the inner one: there is no memory, or what ranks
    /// ask for does not agree.
    pub fn make_dev_comm(
        &self,
        wanted: &Wanted,
        (ranks, abort_flag): (u32, u64),
        wait: &Wait,
    ) -> Result<Result<DevComm>> {
        let number = self.network_number(wanted);
        let prepared = self.prepare(wanted, ranks);
        let bytes = prepared.as_ref().map_or(0, |prepared| prepared.places.bytes);
        let (mapping, multicast) = match self.team.ranks() {
            1 => (Ok(None), nobody_else()),
            _ => {
                let maps = self.maps()?;
                let addr = prepared.as_ref().ok().and_then(|prepared| Some(prepared.memory.as_ref()?.addr));
                let addr = addr.unwrap_or(0);
                let share = match &prepared {
                    Ok(Prepared { memory: Some(memory), .. }) => {
                        maps.pieces(memory.addr, bytes).map(|pieces| Some(Share::Pieces(pieces)))
                    }
                    Ok(_) => Ok(None),
                    Err(error) => Err(error.clone()),
                };
                let wants_multicast = self.multicast.is_some();
                let exchange = Exchange { wants_multicast, ..self.exchange(false, wait) };
                let mapping = exchange.run(maps, Purpose::Resources, (addr, bytes), share)?;
                let multicast = self.map_multicast(&exchange, maps, (&mapping, addr))?;
                (mapping, multicast)
            }
        };
        let ready = mapping.and_then(|mapping| Ok((mapping, prepared?)));
        let made = ready.and_then(|(mapping, prepared)| {
            self.dev_comm(wanted, (ranks, abort_flag), (mapping, multicast), (prepared, number))
        });
        Ok(if number.is_some() { self.agree_with_all(made, wait)? } else { made })
    }

    /// The number of the network that a program asks for: how many were made before.
    fn network_number(&self, wanted: &Wanted) -> Option<u64> {
        wanted.network.as_ref().map(|_| {
            let mut state = self.state();
            state.networks_made += 1;
            state.networks_made - 1
        })
    }

    /// Takes the memory that is needed, before ranks agree.
    fn prepare(&self, wanted: &Wanted, ranks: u32) -> Result<Prepared> {
        let places = Places::new(wanted, self.team.ranks(), ranks)?;
        let network = wanted.network.as_ref().map(|network| {
            let NetworkWanted { form, contexts, depth, .. } = *network;
            let [signals, counters] = places.totals;
            Network::new(&*self.device, ranks, Needs { form, contexts, signals, counters, depth })
        });
        let network = network.transpose()?.map(Arc::new);
        let memory = (places.bytes > 0).then(|| resource_memory(&*self.device, places.bytes)).transpose()?;
        Ok(Prepared { places, room: self.room()?, memory, network })
    }

    /// All ranks have made a communicator for kernels with a network, or nobody keeps it.
    fn agree_with_all(&self, made: Result<DevComm>, wait: &Wait) -> Result<Result<DevComm>> {
        let own = made.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let all = self.bootstrap.all_gather(own.as_bytes(), wait)?;
        let failed = all.iter().position(|text| !text.is_empty());
        let (Some(rank), Ok(dev_comm)) = (failed, &made) else { return Ok(made) };
        self.destroy_dev_comm(Family::resource_window(&dev_comm.image))?;
        let text = String::from_utf8_lossy(&all[rank]);
        Ok(Err(Error::remote(format!("rank {rank}: {text}")).with_peer(rank as u32)))
    }

    fn dev_comm(
        &self,
        wanted: &Wanted,
        (ranks, abort_flag): (u32, u64),
        (mapping, multicast): (Option<Mapping>, MulticastOutcome),
        (Prepared { places, room, memory, network }, number): (Prepared, Option<u64>),
    ) -> Result<DevComm> {
        if wanted.multicast {
            self.check_multicast(memory.as_ref().map(|_| &multicast))?;
        }
        let mut answer = DevComm { image: Vec::new(), parts: places.parts, multicast: 0, network: None };
        let resources = match memory {
            Some(memory) => {
                let (addr, bytes) = (memory.addr, places.bytes);
                let window = rma::Window { addr, bytes, is_symmetric: true };
                answer.network = number.map(|number| (number, window));
                let (number, network) = (RESOURCES + number.unwrap_or(NO_NETWORK), network.clone());
                let held = Some(memory);
                self.enter(Window { image: room, multicast, mapping, held, network, number, addr, bytes })?
            }
            None => (0, 0, 0),
        };
        let image_of = |network: &Network, wanted: &NetworkWanted| NetworkImage {
            handle: network.contexts(),
            contexts: wanted.contexts,
            signals: places.totals,
            shadows: network.shadows(),
            barriers: places.signals,
            stride: wanted.stride,
            has_strong_signals: wanted.has_strong_signals,
            context_bytes: wanted.form.bytes() as u64,
        };
        let multicast = (self.multicast_base(), self.place_of_window(resources.0));
        let mut state = self.state();
        // `room` has made the first part.
        let table = state.table.first().map_or(0, |part| part.memory.addr);
        state.dev_comms += 1;
        let image = DevCommImage {
            version: wanted.version,
            world: (self.bootstrap.rank(), ranks),
            lsa: (self.team.rank, self.team.ranks()),
            table,
            resources,
            multicast,
            lsa_barrier: places.lsa,
            rail_buffer: places.rail,
            hybrid_barrier: places.hybrid,
            abort_flag,
            network: network.as_ref().zip(wanted.network.as_ref()).map(|(made, asked)| image_of(made, asked)),
        };
        (answer.image, answer.multicast) = (image.bytes(wanted.family), multicast.0);
        Ok(answer)
    }

    /// Frees the resources of a communicator for kernels by the handle of its resource window; 0 if it has
    /// none. Answers the number of its network, if it has one.
    ///
    /// # Errors
    /// `InvalidArgument`: there is none with this window; the driver refused.
    pub fn destroy_dev_comm(&self, resource_window: u64) -> Result<Option<u64>> {
        let is_resource = resource_window == 0
            || self.state().windows.get(&resource_window).is_some_and(|window| window.held.is_some());
        if !is_resource || self.state().dev_comms == 0 {
            return Err(Error::invalid_argument(format!(
                "devComm has resource window {resource_window:#x}, which is none of this communicator"
            ))
            .remedy("pass what ncclDevCommCreate stored, and only once"));
        }
        let mut network = None;
        if resource_window != 0 {
            let windows = &self.state().windows;
            let window = windows.get(&resource_window).filter(|window| window.network.is_some());
            network = window.map(|window| window.number - RESOURCES);
        }
        if resource_window != 0 {
            self.drop_window(resource_window)?;
        }
        self.state().dev_comms -= 1;
        Ok(network)
    }

    /// The reason why kernels cannot use some symmetric window that was registered, if so.
    pub fn host_only(&self) -> Option<String> {
        self.state().host_only.clone()
    }
}

impl Places {
    /// Places one behind the other, in the order in which NVIDIA's library has them: barriers of the rail
    /// team, of the load-store team, of both kinds, then buffers.
    fn new(wanted: &Wanted, team: u32, ranks: u32) -> Result<Self> {
        let has_hybrid = wanted.family.offsets().hybrid_barrier.is_some();
        // Before 2.30 barriers of both kinds are those of the two teams.
        let (lsa, rail, hybrid) = match has_hybrid {
            true => (wanted.lsa_barriers, wanted.rail_barriers, wanted.barriers),
            false => (wanted.lsa_barriers.max(wanted.barriers), wanted.rail_barriers.max(wanted.barriers), 0),
        };
        let barrier = |count: u32| (u64::from(count) * (3 + u64::from(team)) * 4, 4);
        let counters = if wanted.family == Family::V228 { GIN_CONTEXTS * 4 } else { 0 };
        let mut bytes = 0u64;
        let mut place = |(length, align): (u64, u64)| -> Result<u32> {
            let align = align.max(HANDLE_UNIT);
            let at = bytes.checked_next_multiple_of(align).ok_or_else(too_much)?;
            bytes = at.checked_add(length).ok_or_else(too_much)?;
            u32::try_from(at / HANDLE_UNIT).map_err(|_| too_much())
        };
        let rail = place((u64::from(rail) * counters, 4))?;
        let lsa = Barriers { buffer: place(barrier(lsa))?, count: lsa };
        let hybrid = Barriers { buffer: place(barrier(hybrid))?, count: hybrid };
        let mut parts = Vec::with_capacity(wanted.resources.len());
        for resource in &wanted.resources {
            let buffer = place((resource.bytes, resource.align))?;
            parts.push(Part { buffer, ..Part::default() });
        }
        // The network's number is kept with the resource window.
        if wanted.network.is_some() && bytes == 0 {
            bytes = HANDLE_UNIT;
        }
        let mut places =
            Self { rail, lsa, hybrid, parts, bytes, signals: NetworkBarriers::default(), totals: [0; 2] };
        if let Some(network) = &wanted.network {
            places.place_signals(wanted, network, (ranks / team.max(1), ranks))?;
        }
        Ok(places)
    }

    /// Places signals and counters one behind the other: the program's own, then those of barriers, a signal
    /// for each rank, and of resources. `rails` and `ranks` are the sizes of the rail team and of all.
    fn place_signals(
        &mut self,
        wanted: &Wanted,
        network: &NetworkWanted,
        (rails, ranks): (u32, u32),
    ) -> Result<()> {
        let mut totals = [network.signals, network.counters];
        let mut take = |signals: Option<u32>, counters: u32| -> Result<[u32; 2]> {
            let first = totals;
            let add = |total: u32, more: Option<u32>, most: u32| {
                total.checked_add(more?).filter(|total| *total <= most)
            };
            totals = [
                add(totals[0], signals, MOST_SIGNALS).ok_or_else(too_many_signals)?,
                add(totals[1], Some(counters), MOST_COUNTERS).ok_or_else(too_many_signals)?,
            ];
            Ok(first)
        };
        let connected = ranks / network.stride.max(1);
        let mut barrier = |count: u32, team: u32| take(count.checked_mul(team), 0).map(|first| first[0]);
        self.signals.world = barrier(network.world_barriers, ranks)?;
        if wanted.family.offsets().hybrid_barrier.is_some() {
            self.signals.rail = barrier(wanted.rail_barriers, rails)?;
            self.signals.hybrid = [barrier(wanted.barriers, connected)?, barrier(wanted.barriers, rails)?];
        } else {
            self.signals.rail = barrier(wanted.rail_barriers.max(wanted.barriers), rails)?;
        }
        for (part, resource) in self.parts.iter_mut().zip(&wanted.resources) {
            [part.signal, part.counter] = take(Some(resource.signals), resource.counters)?;
        }
        self.totals = totals;
        Ok(())
    }
}

fn too_much() -> Error {
    Error::invalid_argument("the buffers that are asked for exceed what handles can name")
        .remedy("ask for smaller ones, or register a window")
}

fn too_many_signals() -> Error {
    Error::invalid_argument(format!(
        "more than {MOST_SIGNALS} signals or {MOST_COUNTERS} counters of a context are asked for"
    ))
    .remedy("ask for fewer, or for fewer barriers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(family: Family) -> Wanted {
        let resources =
            [(100, 16), (1, 4096)].map(|(bytes, align)| Resource { bytes, align, ..Resource::default() });
        let resources = resources.to_vec();
        Wanted {
            version: 0,
            family,
            lsa_barriers: 2,
            barriers: 3,
            rail_barriers: 0,
            resources,
            network: None,
            multicast: false,
        }
    }

    fn buffers(places: &Places) -> Vec<u32> {
        places.parts.iter().map(|part| part.buffer).collect()
    }

    #[test]
    fn everything_has_a_place_of_its_own() {
        // Four ranks: a barrier takes 28 bytes.
        let old = Places::new(&wanted(Family::V228), 4, 4).unwrap();
        let barriers = |buffer, count| Barriers { buffer, count };
        assert_eq!(
            (old.rail, old.lsa, old.hybrid.count),
            (0, barriers(1, 3), 0),
            "48 bytes for the rail team"
        );
        assert_eq!((buffers(&old), old.bytes), (vec![2, 32], 4097));
        let new = Places::new(&wanted(Family::V232), 4, 4).unwrap();
        assert_eq!((new.rail, new.lsa, new.hybrid), (0, barriers(0, 2), barriers(1, 3)));
        assert_eq!((buffers(&new), new.bytes), (vec![2, 32], 4097));
    }

    #[test]
    fn nothing_takes_nothing_and_too_much_is_refused() {
        let none = Wanted { lsa_barriers: 0, barriers: 0, resources: vec![], ..wanted(Family::V230) };
        assert_eq!(Places::new(&none, 8, 8).unwrap().bytes, 0);
        for bytes in [u64::MAX, 1 << 40] {
            let resources = [bytes, 1].map(|bytes| Resource { bytes, align: 1, ..Resource::default() });
            let resources = resources.to_vec();
            assert!(Places::new(&Wanted { resources, ..none.clone() }, 8, 8).is_err());
        }
    }

    /// Eight ranks in teams of four: two rails.
    #[test]
    fn signals_of_barriers_and_resources_follow_those_of_the_program() {
        let network = NetworkWanted {
            form: Form::Counted,
            contexts: 2,
            signals: 5,
            counters: 1,
            depth: 0,
            world_barriers: 2,
            stride: 1,
            has_strong_signals: false,
        };
        let mut wanted = Wanted { rail_barriers: 4, network: Some(network), ..wanted(Family::V230) };
        (wanted.resources[0].signals, wanted.resources[0].counters, wanted.resources[1].signals) = (7, 3, 2);
        let places = Places::new(&wanted, 4, 8).unwrap();
        let (world, rail, hybrid) = (5, 5 + 2 * 8, [21 + 4 * 2, 29 + 3 * 8]);
        assert_eq!(places.signals, NetworkBarriers { world, rail, hybrid });
        let of = |part: &Part| (part.signal, part.counter);
        assert_eq!(places.parts.iter().map(of).collect::<Vec<_>>(), [(53 + 3 * 2, 1), (66, 4)]);
        assert_eq!(places.totals, [68, 4]);
        let much = NetworkWanted { signals: MOST_SIGNALS, ..network };
        let error = Places::new(&Wanted { network: Some(much), ..wanted }, 4, 8).unwrap_err();
        assert!(error.text.contains("16777216 signals"), "{error}");
    }
}

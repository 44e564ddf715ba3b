//! Windows that kernels load and store: the memory of a load-store team side by side, and the structs by
//! which NVIDIA's inline device code finds it.
//!
//! Each window has a range of addresses of its own, with a row for each rank of the team (`exchange`). Its
//! handle is the address of a struct in device memory ([`layout`]), which kernels follow. A table of windows
//! and the resources of communicators for kernels ([`resources`]) lie there too. Nothing here launches
//! anything: kernels are the user's.
//!
//! The library's own kernels and puts find windows of other ranks by an address for each. So windows whose
//! memory cannot lie side by side (`allocation`) are mapped too, for them alone.

mod allocation;
mod exchange;
mod graph;
pub mod layout;
mod multicast;
mod registered;
pub mod resources;
mod retired;
mod signal_words;
mod team;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_base::wait::Wait;
use hawser_device::{Device, FlatMaps, HeapKind, Memory, size_text};

use self::allocation::{Allocation, Opened};
use self::exchange::{Exchange, Mapping, Purpose, Share};
use self::graph::GraphBuffers;
use self::layout::{NEXT_PART, STRIDE_UNIT, TABLE_ENTRIES, TableEntry, TablePart, WindowImage};
use self::multicast::{MulticastOutcome, nobody_else};
use self::registered::RegisteredBuffers;
use self::retired::Retired;
use crate::bootstrap::Bootstrap;
use crate::gin::Network;
use crate::rma::{Limits, RESOURCES, SignalWords, Window as UserWindow};
use crate::stream_order::Order;
use crate::transport::{PeerMemory, bytes_of};

pub use self::team::Team;

/// The windows of a communicator for kernels.
pub struct Lsa {
    team: Team,
    device: Arc<dyn Device>,
    bootstrap: Arc<Bootstrap>,
    /// The reason why kernels cannot have windows, if so.
    missing: Option<&'static str>,
    lends: Lends,
    /// Some window is lent by all ranks.
    has_lent: AtomicBool,
    exchanges: AtomicU32,
    /// The allocations of other processes that windows lie in.
    opened: Opened,
    /// The buffers that graphs use.
    graphs: GraphBuffers,
    /// The buffers that ranks have registered each for itself.
    registered: RegisteredBuffers,
    /// The mappings that launches may still use, though they were taken back.
    retired: Retired,
    /// The begin of the places that windows have in multicast, for those who want it.
    multicast: Option<multicast::Base>,
    /// The ranks of the team have tried to share the words of signals.
    has_tried_words: AtomicBool,
    state: Mutex<State>,
}

/// The uses of this rank's memory without staging by collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lends {
    /// They may use its windows, if those of all ranks may.
    pub to_collectives: bool,
    /// They may use buffers of captured calls. All ranks say so, or none.
    pub to_graphs: bool,
    /// They may use buffers that this rank registers for itself.
    pub registered: bool,
}

/// The outcome of a registration.
pub struct Registration {
    /// The handle of the window; none where kernels of the user cannot use it.
    pub handle: Result<Option<u64>>,
    /// The words of signals, if the ranks of the team share them from now on.
    pub words: Option<SignalWords>,
    /// All ranks of the team have it mapped.
    pub is_mapped: bool,
}

#[derive(Default)]
struct State {
    /// By the addresses of their structs, which are the handles of those that kernels can use.
    windows: BTreeMap<u64, Window>,
    /// These addresses, by the numbers that all ranks have for windows.
    numbers: BTreeMap<u64, u64>,
    table: Vec<Part>,
    /// Windows of the user that kernels cannot use, and why the last one was none.
    host_only: Option<String>,
    /// Communicators for kernels that were made and not destroyed.
    dev_comms: u32,
    /// Networks in kernels so far, the same number on all ranks.
    networks_made: u64,
}

/// A part of the table of windows: its memory, and the windows that its entries hold.
struct Part {
    memory: Memory,
    held: [u64; TABLE_ENTRIES],
}

/// A window that all ranks of the team have mapped. Fields are dropped in this order.
struct Window {
    image: Memory,
    /// The memory of all ranks at once; the reason why there is none.
    multicast: MulticastOutcome,
    /// The memory of the team; none where this rank is alone in it.
    mapping: Option<Mapping>,
    /// The library's own memory, of a resource window.
    held: Option<Memory>,
    /// The network of the communicator for kernels whose resources it is.
    network: Option<Arc<Network>>,
    /// The number that all ranks have for it.
    number: u64,
    /// Address of the buffer itself.
    addr: u64,
    /// Its length.
    bytes: u64,
}

impl Window {
    /// The address of the buffer of the team's rank 0, and the distance to the next one.
    ///
    /// # Errors
    /// The reason why the buffers do not lie side by side, so that kernels of the user cannot use them.
    fn side_by_side(&self) -> std::result::Result<(u64, u64), String> {
        match &self.mapping {
            Some(mapping) => mapping.stride.clone().map(|stride| (mapping.places[0], stride)),
            None => Ok((self.addr, 0)),
        }
    }

    /// The address of the buffer of a rank of the team, and its length.
    fn row(&self, rank: u32) -> (u64, u64) {
        let of = |mapping: &Mapping| (mapping.places[rank as usize], mapping.lengths[rank as usize]);
        self.mapping.as_ref().map_or((self.addr, self.bytes), of)
    }

    /// True if all ranks lend it to collectives.
    fn is_lent(&self) -> bool {
        self.mapping.as_ref().is_some_and(|mapping| !mapping.seen_at.is_empty())
    }

    /// By rank, what it adds to an address in this rank's buffer to find it; empty where not all ranks lend
    /// the window to collectives.
    fn shifts(&self) -> Vec<u64> {
        let seen_at = self.mapping.iter().flat_map(|mapping| &mapping.seen_at);
        seen_at.map(|there| there.wrapping_sub(self.addr)).collect()
    }
}

impl State {
    /// The window with these bytes that all ranks lend to collectives.
    fn lent(&self, addr: u64, bytes: u64) -> Option<&Window> {
        let holds = |window: &Window| {
            let at = addr.checked_sub(window.addr);
            at.is_some_and(|at| at < window.bytes && bytes <= window.bytes - at)
        };
        self.windows.values().find(|window| window.held.is_none() && window.is_lent() && holds(window))
    }
}

impl Lsa {
    /// A communicator without windows. `missing` says why kernels cannot have any, if so.
    pub fn new(
        team: Team,
        (device, bootstrap): (&Arc<dyn Device>, &Arc<Bootstrap>),
        missing: Option<&'static str>,
        lends: Lends,
        order: Arc<Order>,
    ) -> Self {
        let (device, bootstrap) = (device.clone(), bootstrap.clone());
        let [has_lent, has_tried_words] = [false; 2].map(AtomicBool::new);
        let (exchanges, opened, state) = (AtomicU32::new(0), Opened::default(), Mutex::default());
        let (graphs, registered) = (GraphBuffers::default(), RegisteredBuffers::default());
        let retired = Retired::new(device.clone(), order);
        let multicast = env::settings().multicast.then(multicast::Base::default);
        Self {
            team,
            device,
            bootstrap,
            missing,
            lends,
            has_lent,
            exchanges,
            opened,
            graphs,
            registered,
            retired,
            multicast,
            has_tried_words,
            state,
        }
    }

    /// The reason why kernels cannot have windows, if so.
    pub fn missing(&self) -> Option<&'static str> {
        self.missing
    }

    /// The ranks whose windows this rank's kernels can use.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Maps a window of the user with this number, and makes it one that kernels of the user can use where
    /// the memory of all ranks allows it. Collectives use it too if it is symmetric. With the first one that
    /// all ranks of the team have mapped, they share the words of signals. Collective.
    ///
    /// # Errors
    /// Another rank did not answer. The error of the handle is, on all ranks alike: the memory does not allow
    /// it, and kernels wait for it, or mapping failed on some rank.
    pub fn register(
        &self,
        number: u64,
        window: UserWindow,
        limits: Limits,
        wait: &Wait,
    ) -> Result<Registration> {
        let (room, UserWindow { addr, bytes, is_symmetric }) = (self.room(), window);
        let made = match self.team.ranks() {
            1 => room.map(|room| (None, nobody_else(), room)),
            _ => {
                let maps = self.maps()?;
                let share = room.as_ref().map_err(Error::clone).and_then(|_| self.share(maps, window));
                let exchange = self.exchange(self.lends.to_collectives && is_symmetric, wait);
                let exchange = Exchange { wants_multicast: self.multicast.is_some(), ..exchange };
                let mapping = exchange.run(maps, Purpose::Window, (addr, bytes), share.map(Some))?;
                let multicast = self.map_multicast(&exchange, maps, (&mapping, addr))?;
                mapping.and_then(|mapping| Ok((mapping, multicast, room?)))
            }
        };
        let is_mapped = made.is_ok();
        let is_first =
            is_mapped && self.team.ranks() > 1 && !self.has_tried_words.swap(true, Ordering::AcqRel);
        let words = if is_first { self.share_signal_words(limits, wait)? } else { None };
        let handle = match made {
            Ok((mapping, multicast, image)) => {
                let (held, network) = (None, None);
                let window = Window { image, multicast, mapping, held, network, number, addr, bytes };
                match window.side_by_side() {
                    Ok(_) => self.enter(window).map(|(handle, ..)| Some(handle)),
                    Err(why) => self.keep_from_kernels(window, why).map(|()| None),
                }
            }
            Err(error) => self.keep_on_host(error),
        };
        Ok(Registration { handle, words, is_mapped })
    }

    /// The memory of a buffer, as others map it.
    fn share(&self, maps: &dyn FlatMaps, window: UserWindow) -> Result<Share> {
        let UserWindow { addr, bytes, is_symmetric } = window;
        let why_apart = match maps.pieces(addr, bytes) {
            Ok(pieces) => return Ok(Share::Pieces(pieces)),
            Err(error) => error,
        };
        // Kernels of a communicator for kernels would follow the window's handle, and nobody else uses a
        // window that is not symmetric.
        if self.state().dev_comms > 0 || !is_symmetric {
            return Err(why_apart);
        }
        Allocation::around(&*self.device, (addr, bytes), &self.team, why_apart).map(Share::Allocation)
    }

    /// Memory for the struct of a window, and a free entry of the table. Taken before ranks agree, so that
    /// one without memory says so.
    fn room(&self) -> Result<Memory> {
        let mut state = self.state();
        if state.table.iter().all(|part| !part.held.contains(&0)) {
            self.add_part(&mut state)?;
        }
        // Behind the struct is a number for each rank.
        let numbers = size_of::<u64>() * self.team.ranks() as usize;
        self.device.alloc((size_of::<WindowImage>() + numbers) as u64)
    }

    /// Keeps a window that is not mapped as one of the host alone, unless a communicator for kernels is
    /// there, whose kernels would follow its handle.
    fn keep_on_host(&self, error: Error) -> Result<Option<u64>> {
        let mut state = self.state();
        if state.dev_comms > 0 {
            return Err(error.context("kernels cannot use the window"));
        }
        log::info(Subsys::Reg, || {
            format!("rank {}: the window is one for the host alone: {error}", self.bootstrap.rank())
        });
        state.host_only = Some(error.to_string());
        Ok(None)
    }

    /// Keeps a window that is mapped, but not as kernels of the user need it.
    fn keep_from_kernels(&self, window: Window, why: String) -> Result<()> {
        self.note_lent(&window);
        log::info(Subsys::Reg, || {
            let (rank, ranks, length) = (self.bootstrap.rank(), self.team.ranks(), size_text(window.bytes));
            format!(
                "rank {rank}: calls and puts reach a window of {length} of {ranks} ranks where it is, \
                 kernels of the program do not: {why}"
            )
        });
        self.state().host_only = Some(why);
        self.keep(window)
    }

    /// Takes a window of the user back. False if none with this number is mapped.
    ///
    /// # Errors
    /// The driver refused.
    pub fn deregister(&self, number: u64) -> Result<bool> {
        let handle = self.state().numbers.get(&number).copied();
        handle.map_or(Ok(false), |handle| self.drop_window(handle))
    }

    /// Takes a window back by the address of its struct. False if there is none.
    fn drop_window(&self, handle: u64) -> Result<bool> {
        let mut state = self.state();
        let Some(window) = state.windows.remove(&handle) else { return Ok(false) };
        if state.numbers.get(&window.number) == Some(&handle) {
            state.numbers.remove(&window.number);
        }
        let cleared = match window.side_by_side() {
            Ok(_) => self.replace(&mut state, handle, TableEntry::default()),
            Err(_) => Ok(()),
        };
        drop(state);
        self.retired.keep(0, window);
        self.retired.free_soon();
        cleared.map(|()| true)
    }

    /// Unmaps what was taken back and launches do not use any more, on a rank that has begun so many
    /// collectives. True if there is more.
    pub fn free_retired(&self, begun: u64) -> bool {
        self.retired.free(begun)
    }

    /// True if there is memory that was taken back and is still mapped.
    pub fn has_retired(&self) -> bool {
        self.retired.has_some()
    }

    /// The address of a window of the team's rank `rank`, on this rank's device. None if kernels cannot use
    /// the window.
    pub fn address(&self, handle: u64, rank: u32, offset: u64) -> Option<u64> {
        let (base, stride) = self.state().windows.get(&handle)?.side_by_side().ok()?;
        Some(base + u64::from(rank) * stride + offset)
    }

    /// The address of these bytes of a window of a rank of the communicator, by the window's number. None if
    /// that rank's memory is not mapped here.
    ///
    /// # Errors
    /// `InvalidUsage`: there is no such window, or it is shorter.
    pub fn row(&self, (number, offset, bytes): (u64, u64, u64), rank: u32) -> Result<Option<u64>> {
        let Some(row) = rank.checked_sub(self.team.first).filter(|row| *row < self.team.ranks()) else {
            return Ok(None);
        };
        let state = self.state();
        let window = state.numbers.get(&number).and_then(|handle| state.windows.get(handle));
        let Some(window) = window else {
            let text = format!("window {number} is not registered with this communicator");
            return Err(Error::invalid_usage(text).remedy("deregister windows when no kernel uses them"));
        };
        let (begin, length) = window.row(row);
        if offset > length || bytes > length - offset {
            let text = format!(
                "{bytes} bytes at offset {offset} do not fit window {number} of rank {rank}, which has \
                 {length}"
            );
            return Err(Error::invalid_usage(text).remedy("pass offsets in bytes, and put less"));
        }
        Ok(Some(begin + offset))
    }

    /// The networks in kernels that are there, with their numbers.
    pub fn networks(&self) -> Vec<(u64, Arc<Network>)> {
        let state = self.state();
        let of = |window: &Window| window.network.clone().map(|network| (window.number - RESOURCES, network));
        state.windows.values().filter_map(of).collect()
    }

    /// True from the moment on at which all ranks have lent a window to collectives.
    pub fn has_lent_windows(&self) -> bool {
        self.has_lent.load(Ordering::Acquire)
    }

    /// Address of the numbers by which other ranks find these bytes
    /// ([`hawser_kernels_abi::fused::FusedArgs::src_seen`]); None if they lie in no window that is lent, nor
    /// in a registered buffer that all ranks have mapped.
    pub fn seen(&self, addr: u64, bytes: u64) -> Option<u64> {
        let in_window =
            self.state().lent(addr, bytes).map(|window| window.image.addr + size_of::<WindowImage>() as u64);
        in_window.or_else(|| self.registered.seen(addr, bytes))
    }

    /// The address at which a rank of the team finds these bytes; None if they lie in no window that is lent,
    /// nor in a registered buffer that it has mapped.
    pub fn address_seen_by(&self, team_rank: u32, addr: u64, bytes: u64) -> Option<u64> {
        let window = self.state().lent(addr, bytes).map(Window::shifts);
        let shift = window.and_then(|shifts| shifts.get(team_rank as usize).copied());
        let in_window = shift.map(|shift| addr.wrapping_add(shift));
        in_window.or_else(|| self.registered.address_seen_by(team_rank, addr, bytes))
    }

    /// Device memory that this rank allocated.
    pub fn bytes(&self) -> u64 {
        let state = self.state();
        let own = |window: &Window| {
            let network = window.network.as_ref().map_or(0, |network| network.bytes());
            window.image.bytes + window.held.as_ref().map_or(0, |held| held.bytes) + network
        };
        let parts = state.table.iter().map(|part| part.memory.bytes);
        parts
            .chain(state.windows.values().map(own))
            .chain([self.graphs.bytes(), self.registered.bytes()])
            .sum()
    }

    /// Takes all memory out: it lives as long as the answer.
    pub fn take_memory(&self) -> impl Send + use<> {
        let mut state = self.state();
        let (windows, table) = (std::mem::take(&mut state.windows), std::mem::take(&mut state.table));
        (windows, table, self.graphs.take(), self.registered.take(), self.retired.take())
    }

    fn maps(&self) -> Result<&dyn FlatMaps> {
        self.device.flat_maps().ok_or_else(|| Error::internal("windows for kernels on a device without them"))
    }

    /// The next exchange, after which this rank lends its buffer to collectives if `is_lent`.
    fn exchange<'a>(&'a self, is_lent: bool, wait: &'a Wait) -> Exchange<'a> {
        let number = self.exchanges.fetch_add(1, Ordering::Relaxed);
        let (device, opened) = (&*self.device, &self.opened);
        let (bootstrap, team) = (&*self.bootstrap, &self.team);
        Exchange { bootstrap, team, device, opened, number, is_lent, wants_multicast: false, wait }
    }

    /// Writes the struct of a window and enters it into the table. Answers the handle, the flat base, and the
    /// stride in its units.
    fn enter(&self, window: Window) -> Result<(u64, u64, u32)> {
        self.note_lent(&window);
        // A resource window has no address that the user registered.
        let base = if window.held.is_some() { 0 } else { window.addr };
        let entry = TableEntry { base, bytes: window.bytes, window: window.image.addr };
        let (handle, length) = (window.image.addr, size_text(window.bytes));
        let (base, stride) = window.side_by_side().map_err(Error::internal)?;
        let stride_4g = (stride / STRIDE_UNIT) as u32;
        let places = (self.team.rank, self.bootstrap.rank());
        let mut image = WindowImage::new(base, stride_4g, places, window.number);
        image.multicast_4k = window.multicast_place();
        self.device.upload(handle, bytes_of(std::slice::from_ref(&image)))?;
        self.keep(window)?;
        self.replace(&mut self.state(), 0, entry)?;
        log::info(Subsys::Reg, || {
            let (rank, ranks) = (self.bootstrap.rank(), self.team.ranks());
            let place = format!("{base:#x} with stride {stride:#x}");
            format!("rank {rank}: kernels have a window of {length} of {ranks} ranks at {place}")
        });
        Ok((handle, base, stride_4g))
    }

    /// Notes that there is a window which all ranks have mapped: they have agreed by now, and choose alike
    /// from here on, whatever fails on this one.
    fn note_lent(&self, window: &Window) {
        if window.is_lent() {
            self.has_lent.store(true, Ordering::Release);
        }
    }

    /// Keeps a window that is mapped, with the numbers by which other ranks find it.
    fn keep(&self, window: Window) -> Result<()> {
        let (handle, shifts) = (window.image.addr, window.shifts());
        if !shifts.is_empty() {
            self.device.upload(handle + size_of::<WindowImage>() as u64, bytes_of(&shifts))?;
        }
        let mut state = self.state();
        state.numbers.insert(window.number, handle);
        state.windows.insert(handle, window);
        Ok(())
    }

    fn add_part(&self, state: &mut State) -> Result<()> {
        let memory = self.device.alloc(size_of::<TablePart>() as u64)?;
        if let Some(last) = state.table.last() {
            self.device.upload(last.memory.addr + NEXT_PART, &memory.addr.to_ne_bytes())?;
        }
        state.table.push(Part { memory, held: [0; TABLE_ENTRIES] });
        Ok(())
    }

    /// Writes an entry where one of the window `old` is; 0 is a free one.
    fn replace(&self, state: &mut State, old: u64, entry: TableEntry) -> Result<()> {
        for part in &mut state.table {
            if let Some(at) = part.held.iter().position(|held| *held == old) {
                let addr = part.memory.addr + (at * size_of::<TableEntry>()) as u64;
                self.device.upload(addr, bytes_of(std::slice::from_ref(&entry)))?;
                part.held[at] = entry.window;
                return Ok(());
            }
        }
        Err(Error::internal("a window without an entry in the table"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason why the kernels of a device cannot have windows of other ranks, if so. All ranks of a host
/// answer alike: each looks at the heaps of all.
pub fn missing(device: &dyn Device, memory: &PeerMemory) -> Option<&'static str> {
    if device.kernels().is_none() {
        Some("the host device runs no kernels of programs")
    } else if device.flat_maps().is_none() || !memory.has_shared_vmm(device) {
        Some(
            "the ranks of this host do not share device memory by CUDA's VMM \
             (it takes peer access, and neither NCCL_CUMEM_ENABLE=0 nor NCCL_P2P_DISABLE=1)",
        )
    } else {
        None
    }
}

/// Memory for a heap of resources, whose pieces others may map.
fn resource_memory(device: &dyn Device, bytes: u64) -> Result<Memory> {
    let memory = device.alloc_heap(bytes, HeapKind::Device)?;
    // From now on the pool gives it to nobody else while a peer may still map it.
    device.export(&memory, HeapKind::Device)?;
    Ok(memory)
}

#[cfg(test)]
mod tests;

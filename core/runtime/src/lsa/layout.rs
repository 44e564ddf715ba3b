//! The structs that NVIDIA's inline device code reads, by the versions that have them.
//!
//! The offsets are facts of the headers `nccl_device.h` of 2.28.9, 2.29.7, 2.30.7 and 2.32.3. The struct
//! behind a window has only grown, so one serves all versions. `ncclDevComm`, which the caller allocates, is
//! another one in each family of versions.

use std::mem::offset_of;

/// `NCCL_API_MAGIC`.
const MAGIC: u32 = 0xcafe_beef;

/// Entries of a part of the table of windows.
pub const TABLE_ENTRIES: usize = 32;

/// Bytes of a row's length for each unit of a stride.
pub const STRIDE_UNIT: u64 = 1 << 32;

/// Bytes for each unit of the handle of a buffer.
pub const HANDLE_UNIT: u64 = 128;

/// `ncclWindow_vidmem` of 2.32.3. Until 2.29 it ends before `multi_segment`, in 2.30 before `cft_rank`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct WindowImage {
    /// Host data of the library, which kernels do not read.
    pub host: u64,
    /// Address of the window of the team's rank 0.
    pub flat_base: u64,
    /// This rank in its load-store team.
    pub lsa_rank: i32,
    /// This rank in the communicator.
    pub world_rank: i32,
    /// Distance of the windows of two neighbours, in units of 4 GiB.
    pub stride_4g: u32,
    /// The place in the multicast range, in units of 4 KiB.
    pub multicast_4k: u32,
    /// The place in the memory that the network has: the begin, as it has the window itself.
    pub gin_4k: u32,
    /// The flags of the registration, from 2.32 on.
    pub flags: u32,
    gin_windows: [u64; 4],
    multi_segment: u64,
    segments: i32,
    cft_rank: i32,
    cft_endpoint: u32,
    end: u32,
}

/// An entry of `ncclDevCommWindowTable`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TableEntry {
    /// Address that the user registered.
    pub base: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The window.
    pub window: u64,
}

/// `ncclDevCommWindowTable`: a part of the table, and where the next one is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TablePart {
    entries: [TableEntry; TABLE_ENTRIES],
    next: u64,
}

/// Offset of the address of the next part.
pub const NEXT_PART: u64 = offset_of!(TablePart, next) as u64;

const _: () = assert!(size_of::<WindowImage>() == 96 && size_of::<TablePart>() == 776);
const _: () = assert!(size_of::<TableEntry>() == 24);
const _: () = assert!(offset_of!(WindowImage, flat_base) == 8 && offset_of!(WindowImage, lsa_rank) == 16);
const _: () =
    assert!(offset_of!(WindowImage, stride_4g) == 24 && offset_of!(WindowImage, multicast_4k) == 28);
const _: () = assert!(offset_of!(WindowImage, gin_windows) == 40 && offset_of!(WindowImage, segments) == 80);
const _: () = assert!(offset_of!(WindowImage, cft_rank) == 84 && offset_of!(WindowImage, cft_endpoint) == 88);

impl WindowImage {
    /// A window of one piece without a place in multicast, and the network by its number.
    pub fn new(flat_base: u64, stride_4g: u32, (lsa_rank, world_rank): (u32, u32), number: u64) -> Self {
        Self {
            host: 0,
            flat_base,
            lsa_rank: lsa_rank.cast_signed(),
            world_rank: world_rank.cast_signed(),
            stride_4g,
            multicast_4k: 0,
            gin_4k: 0,
            flags: 0,
            // 0 is no window.
            gin_windows: [number + 1; 4],
            multi_segment: 0,
            segments: 1,
            cft_rank: -1,
            cft_endpoint: u32::MAX,
            end: 0,
        }
    }
}

/// A family of versions whose `ncclDevComm` is laid out alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// 2.28.7 to 2.29.3. Until 2.28 its requirements have neither size nor magic number.
    V228,
    /// 2.29.7.
    V229,
    /// 2.30.
    V230,
    /// 2.32.
    V232,
}

/// The offsets of an `ncclDevComm`. Its first fields are the same in all, behind `head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    /// Length of the struct.
    pub bytes: usize,
    /// Bytes of magic number and version before everything else.
    pub head: usize,
    /// The resource window.
    pub resource_window: usize,
    /// The copy of the resource window: its flat base and stride.
    pub flat_base: usize,
    /// See `flat_base`.
    pub stride: usize,
    /// The barriers of the load-store team.
    pub lsa_barrier: usize,
    /// The barriers of the rail team.
    pub rail_barrier: usize,
    /// The barriers of the load-store team for barriers of both kinds; they are `lsa_barrier` before 2.30.
    pub hybrid_barrier: Option<usize>,
    /// The address of a word that ends waits of kernels; there is none in 2.28.
    pub abort_flag: Option<usize>,
    /// The network, from 2.30 on; that of 2.28 is laid out otherwise ([`NETWORK_228`]).
    pub network: Option<NetworkOffsets>,
}

/// The offsets of the network in an `ncclDevComm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkOffsets {
    /// The number of connections, a byte.
    pub connections: usize,
    /// The type of the first one, a byte.
    pub first_type: usize,
    /// The address of the contexts of the first one.
    pub handle: usize,
    /// The numbers of signals and of counters.
    pub signals: usize,
    /// The address of the numbers that kernels keep beside signals.
    pub shadows: usize,
    /// The number of contexts.
    pub contexts: usize,
    /// Barriers over the network for barriers of both kinds: of all ranks, and of the rail team.
    pub hybrid: [usize; 2],
    /// Barriers of all ranks.
    pub world_barrier: usize,
    /// The fields that say which ranks contexts connect, which differ.
    pub strides: Strides,
}

/// The fields of an `ncclDevComm` that say which ranks the contexts connect, and that signals are strong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strides {
    /// Three bytes, of which the second says that signals are strong, and the third that only the rail team
    /// is connected.
    Flags(usize),
    /// The strides of connections and of contexts, and a byte for strong signals; elsewhere the number by
    /// which the first one divides.
    Numbers(usize, usize),
}

/// The offsets of the network in an `ncclDevComm` of 2.28, which has a type and an address for each context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortNetworkOffsets {
    /// The number of contexts, a byte.
    pub contexts: usize,
    /// The type of each, a byte.
    pub types: usize,
    /// The address of each.
    pub handles: usize,
    /// The number of signals.
    pub signals: usize,
    /// The number of counters.
    pub counters: usize,
    /// The address of the numbers that kernels keep beside signals.
    pub shadows: usize,
}

/// The network of 2.28.
pub const NETWORK_228: ShortNetworkOffsets = ShortNetworkOffsets {
    contexts: 136,
    types: 137,
    handles: 144,
    signals: 180,
    counters: 188,
    shadows: 192,
};

/// The network of 2.30.
const NETWORK_230: NetworkOffsets = NetworkOffsets {
    connections: 144,
    first_type: 145,
    handle: 152,
    signals: 184,
    shadows: 192,
    contexts: 200,
    hybrid: [112, 224],
    world_barrier: 232,
    strides: Strides::Flags(204),
};

/// The network of 2.32.
const NETWORK_232: NetworkOffsets = NetworkOffsets {
    connections: 96,
    first_type: 98,
    handle: 104,
    signals: 136,
    shadows: 144,
    contexts: 152,
    hybrid: [64, 184],
    world_barrier: 192,
    strides: Strides::Numbers(156, 200),
};

impl Family {
    /// The family of a version code; none for those whose layout is not known.
    pub fn of(version: u32) -> Option<Self> {
        match version {
            22807..=22903 => Some(Self::V228),
            22907 => Some(Self::V229),
            23000..=23007 => Some(Self::V230),
            23203 => Some(Self::V232),
            _ => None,
        }
    }

    /// The places of the fields of its `ncclDevComm`.
    pub const fn offsets(self) -> Offsets {
        let old = Offsets {
            bytes: 200,
            head: 0,
            resource_window: 32,
            flat_base: 48,
            stride: 64,
            lsa_barrier: 120,
            rail_barrier: 128,
            hybrid_barrier: None,
            abort_flag: None,
            network: None,
        };
        match self {
            Self::V228 => old,
            Self::V229 => Offsets { bytes: 224, abort_flag: Some(216), ..old },
            Self::V230 => Offsets {
                bytes: 240,
                head: 8,
                resource_window: 40,
                flat_base: 56,
                stride: 72,
                lsa_barrier: 128,
                rail_barrier: 136,
                hybrid_barrier: Some(216),
                abort_flag: Some(208),
                network: Some(NETWORK_230),
            },
            Self::V232 => Offsets {
                bytes: 248,
                head: 8,
                resource_window: 40,
                flat_base: 48,
                stride: 56,
                lsa_barrier: 80,
                rail_barrier: 88,
                hybrid_barrier: Some(176),
                abort_flag: Some(168),
                network: Some(NETWORK_232),
            },
        }
    }

    /// The resource window that an `ncclDevComm` names.
    ///
    /// # Panics
    /// `bytes` holds less than its first 48 bytes.
    pub fn resource_window(bytes: &[u8]) -> u64 {
        let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        // Older ones begin with the rank, which is less.
        let offsets = if word(0) == MAGIC { Self::V232.offsets() } else { Self::V228.offsets() };
        let at = offsets.resource_window;
        bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
    }
}

/// Bytes of an `ncclDevComm` that [`Family::resource_window`] reads.
pub const LEAST_DEV_COMM: usize = 48;

/// Barriers as device code finds them: the handle of their buffer, and their number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Barriers {
    /// The handle of the buffer.
    pub buffer: u32,
    /// The number of barriers.
    pub count: u32,
}

/// The content of an `ncclDevComm`.
#[derive(Debug, Clone, Copy, Default)]
pub struct DevCommImage {
    /// The version that the caller was compiled with.
    pub version: u32,
    /// This rank, and the number of ranks.
    pub world: (u32, u32),
    /// The same in the load-store team.
    pub lsa: (u32, u32),
    /// Address of the table of windows.
    pub table: u64,
    /// The resource window, its flat base and its stride; zeros without resources.
    pub resources: (u64, u64, u32),
    /// The begin of multicast addresses, and the place of the resource window in them.
    pub multicast: (u64, u32),
    /// Barriers of the load-store team.
    pub lsa_barrier: Barriers,
    /// The handle of the buffer of the rail team's barriers.
    pub rail_buffer: u32,
    /// Barriers of the load-store team for those of both kinds.
    pub hybrid_barrier: Barriers,
    /// Address of the word that ends waits of kernels.
    pub abort_flag: u64,
    /// The network, if the program asked for it.
    pub network: Option<NetworkImage>,
}

/// The network of an `ncclDevComm`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkImage {
    /// Address of the contexts.
    pub handle: u64,
    /// The number of contexts.
    pub contexts: u32,
    /// Signals and counters of each.
    pub signals: [u32; 2],
    /// Address of the numbers that kernels keep beside signals.
    pub shadows: u64,
    /// The first signals of barriers.
    pub barriers: NetworkBarriers,
    /// Distance between two ranks that the program wants to be connected.
    pub stride: u32,
    /// All signals come behind what was put before.
    pub has_strong_signals: bool,
    /// Bytes of a context.
    pub context_bytes: u64,
}

/// The most contexts of programs of 2.28 (`NCCL_GIN_MAX_CONTEXTS`).
pub const MOST_SHORT_CONTEXTS: u32 = 4;

/// The first signals of each kind of barriers over the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkBarriers {
    /// Barriers of all ranks.
    pub world: u32,
    /// Barriers of the rail team.
    pub rail: u32,
    /// Barriers of both kinds: of all ranks, and of the rail team.
    pub hybrid: [u32; 2],
}

/// `NCCL_NET_DEVICE_GIN_PROXY`: the type of a network whose descriptors a thread of the host carries out.
const PROXY: u8 = 2;

impl DevCommImage {
    /// The struct as the family has it.
    pub fn bytes(&self, family: Family) -> Vec<u8> {
        let offsets = family.offsets();
        let mut image = vec![0; offsets.bytes];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        let at = offsets.head;
        if at > 0 {
            put(0, &MAGIC.to_ne_bytes());
            put(4, &self.version.to_ne_bytes());
        }
        let ((rank, ranks), (lsa_rank, lsa_ranks)) = (self.world, self.lsa);
        let numbers = [rank, ranks, reciprocal(ranks), lsa_rank, lsa_ranks, reciprocal(lsa_ranks)];
        for (number, value) in numbers.iter().enumerate() {
            put(at + 4 * number, &value.to_ne_bytes());
        }
        put(at + 24, &self.table.to_ne_bytes());
        let (window, flat_base, stride) = self.resources;
        put(offsets.resource_window, &window.to_ne_bytes());
        put(offsets.flat_base, &flat_base.to_ne_bytes());
        put(offsets.stride, &stride.to_ne_bytes());
        let (base, place) = self.multicast;
        put(offsets.stride + 4, &place.to_ne_bytes());
        // The base stands before the barriers of the load-store team in all families.
        put(offsets.lsa_barrier - 8, &base.to_ne_bytes());
        let mut barriers = |at: usize, barriers: Barriers| {
            put(at, &barriers.buffer.to_ne_bytes());
            put(at + 4, &barriers.count.to_ne_bytes());
        };
        barriers(offsets.lsa_barrier, self.lsa_barrier);
        if let Some(at) = offsets.hybrid_barrier {
            barriers(at, self.hybrid_barrier);
        }
        // Signal 0 comes first, then the buffer.
        put(offsets.rail_barrier + 4, &self.rail_buffer.to_ne_bytes());
        if let Some(at) = offsets.abort_flag {
            put(at, &self.abort_flag.to_ne_bytes());
        }
        if let Some(network) = &self.network {
            put(offsets.rail_barrier, &network.barriers.rail.to_ne_bytes());
            match offsets.network {
                Some(places) => network.write(&places, put),
                None => network.write_short(put),
            }
        }
        image
    }
}

impl NetworkImage {
    /// Writes it into an `ncclDevComm` of 2.28 by `put`. The first signal and the first counter are 0.
    fn write_short(&self, mut put: impl FnMut(usize, &[u8])) {
        let (at, contexts) = (&NETWORK_228, self.contexts.min(MOST_SHORT_CONTEXTS));
        put(at.contexts, &[contexts as u8]);
        for context in 0..contexts as usize {
            put(at.types + context, &[PROXY]);
            let handle = self.handle + context as u64 * self.context_bytes;
            put(at.handles + 8 * context, &handle.to_ne_bytes());
        }
        put(at.signals, &self.signals[0].to_ne_bytes());
        put(at.counters, &self.signals[1].to_ne_bytes());
        put(at.shadows, &self.shadows.to_ne_bytes());
    }

    /// Writes it into an `ncclDevComm` by `put`.
    fn write(&self, at: &NetworkOffsets, mut put: impl FnMut(usize, &[u8])) {
        put(at.connections, &[1]);
        put(at.first_type, &[PROXY]);
        put(at.handle, &self.handle.to_ne_bytes());
        put(at.shadows, &self.shadows.to_ne_bytes());
        let barriers = &self.barriers;
        for (at, number) in [
            (at.signals, self.signals[0]),
            (at.signals + 4, self.signals[1]),
            (at.contexts, self.contexts),
            (at.hybrid[0], barriers.hybrid[0]),
            (at.hybrid[1], barriers.hybrid[1]),
            (at.world_barrier, barriers.world),
        ] {
            put(at, &number.to_ne_bytes());
        }
        let is_strong = u8::from(self.has_strong_signals);
        match at.strides {
            Strides::Flags(at) => put(at, &[0, is_strong, u8::from(self.stride > 1)]),
            Strides::Numbers(at, reciprocal_at) => {
                put(at, &1u32.to_ne_bytes());
                put(at + 4, &self.stride.to_ne_bytes());
                put(at + 8, &[is_strong]);
                put(reciprocal_at, &reciprocal(1).to_ne_bytes());
            }
        }
    }
}

/// The number by which device code divides: 2^32 / `x`, rounded down, and one more for powers of two less the
/// one that does not fit.
fn reciprocal(x: u32) -> u32 {
    (u32::MAX / x.max(1)).wrapping_add(x.is_power_of_two().into())
}

#[cfg(test)]
mod tests;

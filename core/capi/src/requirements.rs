//! The needs of resources of the device API: sizes and counts, which a program adds up before it makes a
//! communicator for kernels.
//!
//! The figures are those of NVIDIA's library 2.32.3, found by calling it. Nothing is allocated here.

use std::ffi::{c_int, c_void};

use hawser_runtime::{Error, Result};

use crate::args::Out;
use crate::handle::CommPtr;
use crate::types::Team;

/// Bytes of a cache line, to which parts of buffers for the network are rounded up.
const LINE: u64 = 128;

/// `ncclDevResourceRequirements_t`. Pointers lead into the handle, which a communicator would fill in.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Requirement {
    pub next: *const c_void,
    pub buffer_bytes: usize,
    pub buffer_alignment: usize,
    pub out_buffer: *const c_void,
    pub signals: c_int,
    pub counters: c_int,
    pub out_signals: *const c_void,
    pub out_counters: *const c_void,
}

/// A handle of two words: the buffer, which a communicator would fill in, and a number.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct BufferHandle {
    buffer: u32,
    number: c_int,
}

/// `ncclGinInboxA2AHandle`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct InboxHandle {
    buffer: u32,
    signals: u32,
    size_log2: c_int,
    /// 2^32 divided by the number of the other ranks.
    reciprocal: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Requirement>() == 56 && size_of::<InboxHandle>() == 16);

nccl_api! {
    /// Tells what barriers of a load-store team need: three words each, and one for each rank.
    fn ncclLsaBarrierCreateRequirement / pncclLsaBarrierCreateRequirement(
        team: Team, nBarriers: c_int, outHandle: Out<BufferHandle>, outReq: Out<Requirement>,
    ) {
        let (barriers, ranks) = (count("nBarriers", nBarriers)?, count("team.nRanks", team.ranks)?);
        let buffer = (bytes(&[barriers, 3 + ranks, 4])?, 4);
        with_buffer(outHandle, nBarriers, outReq, buffer)
    }

    /// Tells what barriers over the network need: a signal for each rank.
    fn ncclGinBarrierCreateRequirement / pncclGinBarrierCreateRequirement(
        _comm: CommPtr, team: Team, nBarriers: c_int, outHandle: Out<u32>, outReq: Out<Requirement>,
    ) {
        let (barriers, ranks) = (count("nBarriers", nBarriers)?, count("team.nRanks", team.ranks)?);
        outHandle.check("outHandle")?;
        let signals = to_int(bytes(&[barriers, ranks])? as u64)?;
        outReq.set("outReq", Requirement { signals, out_signals: outHandle.address(), ..Requirement::NONE })
    }

    /// Tells what the inboxes of an all-to-all over the network need.
    fn ncclGinInboxA2ACreateRequirement / pncclGinInboxA2ACreateRequirement(
        peers: Team, nBlocks: c_int, sizeLog2: c_int, outHandle: Out<InboxHandle>, outReq: Out<Requirement>,
    ) {
        let blocks = count("nBlocks", nBlocks)?;
        let others = count("peers.nRanks - 1", peers.ranks.saturating_sub(1))?;
        let size = size_of_log2(sizeLog2)?;
        if others == 0 {
            return Err(Error::invalid_argument("peers has one rank").remedy("pass a team of two or more"));
        }
        let reciprocal = (u64::from(u32::MAX).wrapping_add(1) / others) as u32;
        let handle = InboxHandle { buffer: 0, signals: 0, size_log2: sizeLog2, reciprocal };
        let signals = to_int(blocks.saturating_mul(2048 + 4 * others))?;
        outReq.check("outReq")?;
        outHandle.set("outHandle", handle)?;
        outReq.set("outReq", Requirement {
            buffer_bytes: bytes(&[blocks, LINE + size.next_multiple_of(LINE)])?,
            buffer_alignment: LINE as usize,
            out_buffer: outHandle.address(),
            signals,
            out_signals: outHandle.address().wrapping_byte_add(4),
            ..Requirement::NONE
        })
    }

    /// Tells what outboxes for the network need: 65 lines and what is sent, a line at least.
    fn ncclGinOutboxCreateRequirement / pncclGinOutboxCreateRequirement(
        nBlocks: c_int, sizeLog2: c_int, outHandle: Out<BufferHandle>, outReq: Out<Requirement>,
    ) {
        let blocks = count("nBlocks", nBlocks)?;
        let log2 = sizeLog2.max(LINE.trailing_zeros().cast_signed());
        let buffer = (bytes(&[blocks, 65 * LINE + size_of_log2(log2)?])?, LINE as usize);
        with_buffer(outHandle, log2, outReq, buffer)
    }

    /// Slots of a low-latency all-to-all: 8 bytes of an element each.
    fn ncclLLA2ACalcSlots / pncclLLA2ACalcSlots(maxElts: c_int, maxEltSize: c_int) -> c_int, else 0, {
        to_int(count("maxElts", maxElts)?.saturating_mul(count("maxEltSize", maxEltSize)?.div_ceil(8)))
    }

    /// Tells what low-latency all-to-alls need: two sets of slots of 16 bytes each, and one for the epoch.
    fn ncclLLA2ACreateRequirement / pncclLLA2ACreateRequirement(
        nBlocks: c_int, nSlots: c_int, outHandle: Out<BufferHandle>, outReq: Out<Requirement>,
    ) {
        let (blocks, slots) = (count("nBlocks", nBlocks)?, count("nSlots", nSlots)?);
        let buffer = (bytes(&[blocks, 1 + 2 * slots, 16])?, 16);
        with_buffer(outHandle, nSlots, outReq, buffer)
    }
}

impl Requirement {
    /// No need at all.
    pub const NONE: Self = Self {
        next: std::ptr::null(),
        buffer_bytes: 0,
        buffer_alignment: 0,
        out_buffer: std::ptr::null(),
        signals: 0,
        counters: 0,
        out_signals: std::ptr::null(),
        out_counters: std::ptr::null(),
    };

    /// The fields that all versions have: the next one, a buffer, and where its handle goes.
    pub fn of_least(bytes: [u8; 32]) -> Self {
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, usize::from_ne_bytes);
        Self {
            next: word(0) as *const c_void,
            buffer_bytes: word(8),
            buffer_alignment: word(16),
            out_buffer: word(24) as *const c_void,
            ..Self::NONE
        }
    }
}

/// Stores a handle with a number and the need for a buffer of so many bytes, aligned so.
fn with_buffer(
    handle: Out<BufferHandle>,
    number: c_int,
    requirement: Out<Requirement>,
    (buffer_bytes, buffer_alignment): (usize, usize),
) -> Result<()> {
    requirement.check("outReq")?;
    handle.set("outHandle", BufferHandle { buffer: 0, number })?;
    let out_buffer = handle.address();
    requirement.set("outReq", Requirement { buffer_bytes, buffer_alignment, out_buffer, ..Requirement::NONE })
}

fn count(name: &str, value: c_int) -> Result<u64> {
    u64::try_from(value).map_err(|_| {
        Error::invalid_argument(format!("{name} is {value}")).remedy("pass a number that is not negative")
    })
}

fn size_of_log2(log2: c_int) -> Result<u64> {
    let power = u32::try_from(log2).ok().filter(|power| *power < 32);
    power.map(|power| 1 << power).ok_or_else(|| {
        Error::invalid_argument(format!("size_log2 is {log2}")).remedy("pass a power of two from 0 to 31")
    })
}

/// The product, as a number of bytes.
fn bytes(factors: &[u64]) -> Result<usize> {
    let product = factors.iter().try_fold(1u64, |product, factor| product.checked_mul(*factor));
    product.and_then(|product| usize::try_from(product).ok()).ok_or_else(too_many)
}

fn to_int(value: u64) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| too_many())
}

fn too_many() -> Error {
    Error::invalid_argument("these numbers together exceed what can be counted").remedy("pass smaller ones")
}

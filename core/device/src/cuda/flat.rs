//! Memory of several ranks side by side: one range of addresses, in rows of one length.
//!
//! Kernels that load and store the memory of others find it by arithmetic: the begin of the range, the row
//! of the rank, and the offset. What is mapped is the user's own physical memory, by its descriptors, so it
//! has addresses here beside those that its owner knows.

use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType, CUpointer_attribute,
};
use hawser_base::error::{Error, Result};

use super::context::Context;
use super::memory::in_context;
use super::vmm::{self, Physical};
use crate::device::{Pieces, Row};
use crate::memory::{Memory, size_text};

/// Most pieces of one buffer: each is a descriptor while ranks exchange them.
const MOST_PIECES: usize = 256;

/// See [`crate::FlatMaps::pieces`].
pub fn pieces(context: &Arc<Context>, addr: u64, bytes: u64) -> Result<Pieces> {
    let end = addr + bytes.max(1);
    let (mut pieces, mut first, mut next) = (Vec::new(), None, addr);
    while next < end {
        if pieces.len() == MOST_PIECES {
            let text = format!("the buffer at {addr:#x} lies in more than {MOST_PIECES} pieces of memory");
            return Err(Error::invalid_usage(text).remedy("allocate it in larger pieces"));
        }
        let (base, length) = piece_at(context, next)?;
        let begin = *first.get_or_insert(base);
        if base != begin + pieces.iter().map(|(length, _)| *length).sum::<u64>() {
            let text = format!("{context}: the driver names memory at {base:#x} for the address {next:#x}");
            return Err(Error::invalid_usage(text).remedy("register memory of ncclMemAlloc"));
        }
        let physical =
            Physical::at(context, base, length)?.map_err(|status| not_shared(context, status, addr))?;
        let descriptor = physical.export().map_err(|error| {
            error.context("the memory cannot be shared by a descriptor").remedy(
                "allocate it with ncclMemAlloc, or with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR among the \
                 handle types",
            )
        })?;
        pieces.push((length, descriptor));
        next = base + length;
    }
    Ok(Pieces { base: first.unwrap_or(addr), pieces, granularity: vmm::granularity(context)? })
}

/// The range around an address that is mapped at once. Of pieces in the memory of the host the driver tells
/// it by attributes alone: by the other way they begin at 0.
fn piece_at(context: &Arc<Context>, addr: u64) -> Result<(u64, u64)> {
    let _scope = context.enter_relaxed()?;
    let (mut base, mut length) = (0, 0);
    // SAFETY: valid for the address and the length.
    let status = unsafe { context.driver.mem_address_range(&mut base, &mut length, addr) };
    let holds = |base: u64, length: u64| addr.checked_sub(base).is_some_and(|at| at < length);
    if status.is_ok() && holds(base, length as u64) {
        return Ok((base, length as u64));
    }
    let attribute = |attribute| {
        let mut value: u64 = 0;
        // SAFETY: these attributes are addresses and lengths of 8 bytes.
        let status = unsafe { context.driver.pointer_attribute((&raw mut value).cast(), attribute, addr) };
        if status.is_ok() { Ok(value) } else { Err(not_shared(context, status, addr)) }
    };
    let base = attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)?;
    let length = attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE)?;
    if holds(base, length) {
        return Ok((base, length));
    }
    let text = format!("{context}: the driver does not tell which memory lies at {addr:#x}");
    Err(Error::invalid_usage(text).remedy("register memory of ncclMemAlloc"))
}

fn not_shared(context: &Context, status: super::result::Status, addr: u64) -> Error {
    let text = format!("the memory at {addr:#x} is not of cuMemCreate ({})", status.error(context).text);
    Error::invalid_usage(text).remedy("allocate it with ncclMemAlloc")
}

/// A reserved range and what is mapped in it.
pub struct Range {
    context: Arc<Context>,
    addr: CUdeviceptr,
    bytes: usize,
    mapped: Vec<(CUdeviceptr, usize)>,
}

/// See [`crate::FlatMaps::lay_out`].
pub fn lay_out(context: &Arc<Context>, stride: u64, rows: &[Row<'_>]) -> Result<Memory> {
    let bytes = stride * rows.len() as u64;
    let mut range = Range::reserve(context, bytes)?;
    for (row, begin) in rows.iter().zip((range.addr..).step_by(stride as usize)) {
        let mut at = begin + row.at;
        for (length, descriptor) in &row.pieces {
            range.map(at, &Physical::import(context, *descriptor, *length)?)?;
            at += length;
        }
    }
    Ok(Memory { addr: range.addr, bytes, owner: Box::new(range) })
}

impl Range {
    /// The address of its first byte.
    pub fn begin(&self) -> CUdeviceptr {
        self.addr
    }

    /// Reserves so many addresses.
    pub fn reserve(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let _scope = context.enter_relaxed()?;
        let mut addr = 0;
        // SAFETY: valid for the address; no alignment or place is asked for.
        unsafe { context.driver.mem_address_reserve(&mut addr, bytes as usize, 0, 0, 0) }
            .check(&context)
            .map_err(|error| {
                error
                    .context(format!("{} of addresses for the windows of all ranks", size_text(bytes)))
                    .remedy("take windows back that are not needed, or register fewer and larger ones")
            })?;
        Ok(Range { context: context.clone(), addr, bytes: bytes as usize, mapped: Vec::new() })
    }

    /// Maps a piece for the context's device; the mapping keeps the memory.
    pub fn map(&mut self, at: CUdeviceptr, physical: &Physical) -> Result<()> {
        physical.map_at(at)?;
        let length = physical.bytes as usize;
        self.mapped.push((at, length));
        let access = CUmemAccessDesc {
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: self.context.device,
            },
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let _scope = self.context.enter_relaxed()?;
        // SAFETY: the piece is mapped; valid for the one description.
        unsafe { self.context.driver.mem_set_access(at, length, &access, 1) }.check(&self.context)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        for (at, length) in &self.mapped {
            in_context(&self.context, || {
                // SAFETY: mapped by `map`; whoever used the range has let go of it.
                unsafe { self.context.driver.mem_unmap(*at, *length) }
            });
        }
        in_context(&self.context, || {
            // SAFETY: reserved in `reserve`, nothing is mapped any more.
            unsafe { self.context.driver.mem_address_free(self.addr, self.bytes) }
        });
    }
}

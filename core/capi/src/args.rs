//! Arguments from C: pointers and numbers, checked where they are used.
//!
//! [`In`] and [`Out`] have the ABI of plain C pointers and appear in the exported signatures. Only C
//! makes them, with the promise of NCCL's documentation: NULL, or valid for the call. That promise is
//! what the few `unsafe` blocks here rest on; no other file follows a pointer from C.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use hawser_plan::DataType;
use hawser_runtime::{Error, Result};

use crate::decision;
use crate::partitioned;
use crate::types::API_MAGIC;

/// A struct for which any bytes are a value.
///
/// # Safety
/// Only integers, floats and raw pointers inside, and `#[repr(C)]`. The first 16 bytes are NCCL's
/// header: `size_t size`, `unsigned magic`, `unsigned version`.
pub unsafe trait Plain: Copy {}

/// A pointer through which the caller gets a result.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

// SAFETY: an address; what a group does at its end may run in another thread, and the caller keeps the place
// until then.
unsafe impl<T> Send for Out<T> {}

/// A pointer to what the caller passes in.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> Out<T> {
    /// Refuses NULL, before anything was done.
    pub fn check(self, name: &str) -> Result<()> {
        if self.0.is_null() { Err(null(name)) } else { Ok(()) }
    }

    /// Writes the result; NULL is refused.
    pub fn set(self, name: &str, value: T) -> Result<()> {
        self.check(name)?;
        self.set_if_given(value);
        Ok(())
    }

    /// Writes the result unless the caller passed NULL.
    pub fn set_if_given(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not NULL, so valid for a write of T by the caller's promise (see the module).
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Writes the elements one after the other; NULL is refused.
    pub fn set_all(self, name: &str, values: impl IntoIterator<Item = T>) -> Result<()> {
        self.check(name)?;
        for (i, value) in values.into_iter().enumerate() {
            // SAFETY: not NULL, and the caller's array holds as many elements as it asked for.
            unsafe { self.0.add(i).write_unaligned(value) }
        }
        Ok(())
    }

    /// Returns whether the caller passed NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same pointer for reading what the caller put there.
    pub fn input(self) -> In<T> {
        In(self.0)
    }
}

impl Out<u8> {
    /// Writes bytes one behind the other, as many as the caller's struct has by its version; NULL is refused.
    pub fn set_bytes(self, name: &str, bytes: &[u8]) -> Result<()> {
        self.set_all(name, bytes.iter().copied())
    }
}

impl<T> Out<T> {
    /// A pointer that came inside a struct from C, under the same promise.
    pub fn inside(pointer: *mut T) -> Self {
        Out(pointer)
    }

    /// The address itself, to be stored somewhere.
    pub fn address(self) -> *const c_void {
        self.0.cast_const().cast()
    }

    /// The same place, for a struct of another version.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Plain> Out<T> {
    /// Writes the first `bytes` bytes of `value`, at most all of it: an older caller's struct is shorter.
    pub fn set_prefix(self, name: &str, value: &T, bytes: usize) -> Result<()> {
        self.check(name)?;
        let bytes = bytes.min(size_of::<T>());
        // SAFETY: not NULL; the caller's struct is `bytes` long by its own size field, and T has no fewer.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), self.0.cast::<u8>(), bytes)
        };
        Ok(())
    }
}

impl<T> In<T> {
    /// No argument.
    pub const NULL: Self = In(std::ptr::null());

    /// A pointer that came inside a struct from C, under the same promise.
    pub fn inside(pointer: *const T) -> Self {
        In(pointer)
    }

    /// Returns whether the caller passed NULL.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl<T: Copy> In<T> {
    /// The value behind the pointer; NULL is refused.
    pub fn read(self, name: &str) -> Result<T> {
        if self.0.is_null() {
            return Err(null(name));
        }
        // SAFETY: not NULL, so valid for a read of T by the caller's promise (see the module).
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The first `count` elements of an array; NULL is refused.
    pub fn read_all(self, name: &str, count: usize) -> Result<Vec<T>> {
        if self.0.is_null() {
            return Err(null(name));
        }
        // SAFETY: not NULL, and the caller says that the array has `count` elements.
        Ok((0..count).map(|i| unsafe { self.0.add(i).read_unaligned() }).collect())
    }
}

impl In<c_char> {
    /// The text, None for NULL. Bytes that are not UTF-8 are replaced.
    pub fn text(self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not NULL, so a string that ends with NUL by the caller's promise.
        Some(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

impl<T: Plain> In<T> {
    /// Reads a struct of a time when it had no header: the first `bytes` of what is behind the header, over
    /// `undefined`. None if there is a header with this magic number; NULL is refused. The caller's struct is
    /// longer than a header.
    pub fn read_headless(self, name: &str, undefined: T, magic: c_uint, bytes: usize) -> Result<Option<T>> {
        if In(self.0.cast::<Header>()).read(name)?.magic == magic {
            return Ok(None);
        }
        let mut value = undefined;
        let bytes = bytes.min(size_of::<T>() - size_of::<Header>());
        // SAFETY: the caller's struct is `bytes` long in all versions without a header; any bytes are a T.
        unsafe {
            let behind = (&raw mut value).cast::<u8>().add(size_of::<Header>());
            std::ptr::copy_nonoverlapping(self.0.cast::<u8>(), behind, bytes);
        }
        Ok(Some(value))
    }

    /// Reads a versioned struct: the caller's bytes, as many as both sides know, over `undefined`.
    ///
    /// # Errors
    /// `InvalidArgument` for NULL, for a size without a header and for a wrong magic number.
    pub fn read_versioned(self, name: &str, undefined: T, magic: c_uint) -> Result<T> {
        let header = In(self.0.cast::<Header>()).read(name)?;
        if header.magic != magic {
            let initialiser = match magic {
                API_MAGIC => "NCCL's initialiser of the struct",
                decision::MAGIC => "HAWSER_DECISION_INITIALIZER",
                partitioned::MAGIC => "HAWSER_PARTITIONED_CONFIG_INITIALIZER",
                _ => "NCCL_SIM_INFO_INITIALIZER",
            };
            return Err(Error::invalid_argument(format!(
                "{name} has magic number {:#x} instead of {magic:#x}",
                header.magic
            ))
            .remedy(format!("fill it with {initialiser} before setting fields")));
        }
        if header.size < size_of::<Header>() {
            return Err(Error::invalid_argument(format!(
                "{name} has size {}, less than its header",
                header.size
            ))
            .remedy("leave the field size as the initialiser set it"));
        }
        let mut value = undefined;
        let bytes = header.size.min(size_of::<T>());
        // SAFETY: the caller's struct is at least `bytes` long by its own size field; any bytes are a T.
        unsafe { std::ptr::copy_nonoverlapping(self.0.cast::<u8>(), (&raw mut value).cast::<u8>(), bytes) };
        Ok(value)
    }
}

/// The fields that all versioned structs start with.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    size: usize,
    magic: c_uint,
    version: c_uint,
}

/// An element type by its number.
pub fn data_type(value: c_int) -> Result<DataType> {
    DataType::from_raw(value).ok_or_else(|| {
        Error::invalid_argument(format!("datatype {value} is not a type"))
            .remedy("use ncclInt8 (0) to ncclFloat8e5m2 (11)")
    })
}

/// The bytes of `count` elements.
pub fn bytes(count: usize, dtype: DataType) -> Result<usize> {
    let size = dtype.size();
    count.checked_mul(size).filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(|| {
        Error::invalid_argument(format!("count {count} of {size} bytes exceeds the address space"))
            .remedy("pass the count in elements")
    })
}

/// A rank of a communicator of `ranks`: a root or a peer.
pub fn rank(name: &str, value: c_int, ranks: u32) -> Result<u32> {
    u32::try_from(value).ok().filter(|rank| *rank < ranks).ok_or_else(|| {
        Error::invalid_argument(format!("{name} {value} is not a rank of this communicator"))
            .remedy(format!("use 0 to {}", ranks.saturating_sub(1)))
    })
}

/// Checks that `bytes` bytes from `address` on are a possible buffer.
pub fn buffer(name: &str, address: *const c_void, bytes: usize) -> Result<u64> {
    if address.is_null() {
        return Err(null(name));
    }
    if (address as usize).checked_add(bytes).is_none() || isize::try_from(bytes).is_err() {
        return Err(Error::invalid_argument(format!(
            "{name} {address:?} with {bytes} bytes exceeds the address space"
        ))
        .remedy("pass the size in bytes"));
    }
    Ok(address as u64)
}

/// A pointer that must not be NULL is.
pub fn null(name: &str) -> Error {
    Error::invalid_argument(format!("{name} is NULL")).remedy("pass a valid pointer")
}

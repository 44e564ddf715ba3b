//! The functions of a `libnccl.so.2` that are measured, with the types of NCCL's documentation.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::Id;

/// `ncclComm_t`.
pub type Comm = *mut c_void;
/// `cudaStream_t`.
pub type CudaStream = *mut c_void;
/// The result code that most functions return (`ncclResult_t`).
pub type Status = c_int;

/// `ncclSuccess`.
const SUCCESS: Status = 0;
/// `ncclInProgress`.
const IN_PROGRESS: Status = 7;

/// `ncclUniqueId`, which C passes by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub Id);

/// `ncclConfig_t` as of NCCL 2.27: what is not set is "undefined", and later fields are not there.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: c_int,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    name: *const c_char,
    collnet: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
}

const _: () = assert!(size_of::<Config>() == 72 && std::mem::offset_of!(Config, cta_policy) == 60);

impl Config {
    /// With `NCCL_CTA_POLICY_ZERO`.
    pub fn zero_ctas() -> Self {
        /// `NCCL_CONFIG_UNDEF_INT`.
        const UNDEFINED: c_int = c_int::MIN;
        /// `NCCL_API_MAGIC`.
        const MAGIC: u32 = 0xcafe_beef;
        /// `NCCL_CTA_POLICY_ZERO`.
        const ZERO: c_int = 2;
        Self {
            size: size_of::<Self>(),
            magic: MAGIC,
            version: 22_700,
            blocking: UNDEFINED,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
            name: std::ptr::null(),
            collnet: UNDEFINED,
            cta_policy: ZERO,
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
        }
    }
}

/// Send and receive buffer, count, type, reduction, communicator, stream.
type Reducing =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Status;
/// Send and receive buffer, count, type, communicator, stream.
type Moving = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CudaStream) -> Status;
/// Send and receive buffer, count, type, root, communicator, stream.
type Rooted =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Status;
/// Send and receive buffer, count, type, reduction, root, communicator, stream.
type RootedReducing =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, CudaStream) -> Status;

/// Declares the table: a field per function, required or not.
macro_rules! table {
    (
        required { $($(#[$meta:meta])* $field:ident: $type:ty = $symbol:literal,)* }
        optional { $($(#[$option_meta:meta])* $option:ident: $option_type:ty = $option_symbol:literal,)* }
    ) => {
        /// Addresses of the functions. Calling one is subject to what NCCL's documentation asks for.
        pub struct Api {
            $($(#[$meta])* pub $field: $type,)*
            $($(#[$option_meta])* pub $option: Option<$option_type>,)*
        }

        impl Api {
            fn fill(library: &Library) -> Result<Self> {
                Ok(Self {
                    // SAFETY: NCCL documents this type for this name.
                    $($field: unsafe { library.get::<$type>($symbol.as_bytes()) }
                        .map(|found| *found)
                        .map_err(|_| missing($symbol))?,)*
                    // SAFETY: as above.
                    $($option: unsafe { library.get::<$option_type>($option_symbol.as_bytes()) }
                        .ok()
                        .map(|found| *found),)*
                })
            }
        }
    };
}

table! {
    required {
        /// `ncclGetVersion`
        version: unsafe extern "C" fn(*mut c_int) -> Status = "ncclGetVersion",
        /// `ncclGetErrorString`
        error_string: unsafe extern "C" fn(Status) -> *const c_char = "ncclGetErrorString",
        /// `ncclGetUniqueId`
        unique_id: unsafe extern "C" fn(*mut UniqueId) -> Status = "ncclGetUniqueId",
        /// `ncclCommInitRank`
        init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> Status = "ncclCommInitRank",
        /// `ncclCommDestroy`
        destroy: unsafe extern "C" fn(Comm) -> Status = "ncclCommDestroy",
        /// `ncclCommAbort`
        abort: unsafe extern "C" fn(Comm) -> Status = "ncclCommAbort",
        /// `ncclCommGetAsyncError`
        async_error: unsafe extern "C" fn(Comm, *mut Status) -> Status = "ncclCommGetAsyncError",
        /// `ncclGroupStart`
        group_start: unsafe extern "C" fn() -> Status = "ncclGroupStart",
        /// `ncclGroupEnd`
        group_end: unsafe extern "C" fn() -> Status = "ncclGroupEnd",
        /// `ncclAllReduce`
        all_reduce: Reducing = "ncclAllReduce",
        /// `ncclReduce`
        reduce: RootedReducing = "ncclReduce",
        /// `ncclReduceScatter`
        reduce_scatter: Reducing = "ncclReduceScatter",
        /// `ncclBroadcast`
        broadcast: Rooted = "ncclBroadcast",
        /// `ncclAllGather`
        all_gather: Moving = "ncclAllGather",
        /// `ncclSend`
        send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm,
        CudaStream) -> Status = "ncclSend",
        /// `ncclRecv`
        recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Status = "ncclRecv",
    }
    optional {
        /// `ncclGetLastError`, since NCCL 2.13
        last_error: unsafe extern "C" fn(Comm) -> *const c_char = "ncclGetLastError",
        /// `ncclAlltoAll`, since NCCL 2.28
        all_to_all: Moving = "ncclAlltoAll",
        /// `ncclGather`, since NCCL 2.28
        gather: Rooted = "ncclGather",
        /// `ncclScatter`, since NCCL 2.28
        scatter: Rooted = "ncclScatter",
        /// `ncclRedOpCreatePreMulSum`, since NCCL 2.11
        create_premul_sum: unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, c_int,
        Comm) -> Status = "ncclRedOpCreatePreMulSum",
        /// `ncclCommInitRankConfig`, since NCCL 2.14
        init_config: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int,
        *mut Config) -> Status = "ncclCommInitRankConfig",
        /// `ncclMemAlloc`, since NCCL 2.19
        mem_alloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> Status = "ncclMemAlloc",
        /// `ncclMemFree`, since NCCL 2.19
        mem_free: unsafe extern "C" fn(*mut c_void) -> Status = "ncclMemFree",
        /// `ncclCommRegister`, since NCCL 2.19
        register: unsafe extern "C" fn(Comm, *mut c_void, usize,
        *mut *mut c_void) -> Status = "ncclCommRegister",
        /// `ncclCommWindowRegister`, since NCCL 2.27
        window_register: unsafe extern "C" fn(Comm, *mut c_void, usize, *mut *mut c_void,
        c_int) -> Status = "ncclCommWindowRegister",
        /// `ncclRedOpDestroy`, since NCCL 2.11
        destroy_op: unsafe extern "C" fn(c_int, Comm) -> Status = "ncclRedOpDestroy",
    }
}

impl Api {
    /// Loads the library at `path`, for good: it may have threads that outlive the last communicator.
    ///
    /// # Errors
    /// The dynamic loader's reason, or the name of a function that is missing.
    pub fn load(path: &Path) -> Result<&'static Self> {
        // SAFETY: loading a library runs its initialisers; the user asked for this one.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| {
            let reason = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
            anyhow!(
                "cannot load --library {}: {reason}; give the path of a libnccl.so.2 whose own dependencies \
                 are there",
                path.display()
            )
        })?;
        let api =
            Self::fill(&library).map_err(|error| error.context(format!("--library {}", path.display())))?;
        std::mem::forget(library);
        Ok(Box::leak(Box::new(api)))
    }

    /// Turns a status into an error that names the call, who made it, and the library's own words.
    ///
    /// # Errors
    /// Whenever it is no success.
    pub fn check(&self, status: Status, call: &str, who: &dyn std::fmt::Display) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any number and returns a text that is never freed.
        let name = text(unsafe { (self.error_string)(status) }).unwrap_or_default();
        // SAFETY: the communicator is optional; the text is valid until the library's next error, copied
        // before.
        let last = self.last_error.and_then(|last| text(unsafe { last(std::ptr::null_mut()) }));
        let mut message = format!("{who}: {call} failed: {name} (ncclResult_t {status})");
        if let Some(last) = last.filter(|last| !last.is_empty()) {
            message += &format!(": {last}");
        }
        if status == IN_PROGRESS {
            message += "; communicators have to be blocking here: unset NCCL_COMM_BLOCKING";
        }
        bail!(message)
    }
}

fn missing(symbol: &str) -> anyhow::Error {
    anyhow!("it has no function {symbol}: is this NCCL, version 2.7 or later?")
}

/// A C text, if there is one.
fn text(address: *const c_char) -> Option<String> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the library returned a text that ends with a zero; it is copied at once.
    Some(unsafe { CStr::from_ptr(address) }.to_string_lossy().trim().to_owned())
}

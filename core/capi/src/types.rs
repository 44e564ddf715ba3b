//! Structs and numbers of NCCL 2.32.3's headers, as they lie in memory on LP64 machines.
//!
//! Enums cross the boundary as `c_int`: C may pass any number, so each is checked where it is used.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;

use crate::args::Plain;
use crate::requirements::Requirement;

/// The number that `ncclGetVersion` gives: 10000 × major + 100 × minor + patch.
pub const VERSION_CODE: c_int = 23203;
/// `NCCL_CONFIG_UNDEF_INT`: the caller did not set the field.
pub const UNDEF_INT: c_int = c_int::MIN;
/// Magic number of configurations and most other versioned structs.
pub const API_MAGIC: c_uint = 0xcafe_beef;
/// Magic number of `ncclSimInfo_t`.
pub const SIM_INFO_MAGIC: c_uint = 0x7468_5283;
/// `NCCL_SPLIT_NOCOLOR`: this rank joins no part.
pub const SPLIT_NOCOLOR: c_int = -1;
/// `ncclNumOps`: built-in reductions are below, the users' own ones from here on.
pub const BUILT_IN_OPS: c_int = 5;

/// `ncclResult_t`.
pub mod result {
    use std::ffi::c_int;

    use hawser_runtime::ErrorKind;

    pub const SUCCESS: c_int = 0;
    pub const UNHANDLED_CUDA_ERROR: c_int = 1;
    pub const SYSTEM_ERROR: c_int = 2;
    pub const INTERNAL_ERROR: c_int = 3;
    pub const INVALID_ARGUMENT: c_int = 4;
    pub const INVALID_USAGE: c_int = 5;
    pub const REMOTE_ERROR: c_int = 6;
    pub const IN_PROGRESS: c_int = 7;
    pub const TIMEOUT: c_int = 8;

    /// The code of an error. A deadline is a system error: NCCL keeps `ncclTimeout` for its device API.
    pub fn of(kind: ErrorKind) -> c_int {
        match kind {
            ErrorKind::UnhandledCuda => UNHANDLED_CUDA_ERROR,
            ErrorKind::System | ErrorKind::Timeout => SYSTEM_ERROR,
            ErrorKind::Internal | ErrorKind::Aborted => INTERNAL_ERROR,
            ErrorKind::InvalidArgument => INVALID_ARGUMENT,
            ErrorKind::InvalidUsage => INVALID_USAGE,
            ErrorKind::Remote => REMOTE_ERROR,
            ErrorKind::InProgress => IN_PROGRESS,
        }
    }
}

/// `ncclUniqueId`, passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IdBytes(pub [u8; 128]);

/// Holds a secret: never printed.
impl fmt::Debug for IdBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ncclUniqueId(…)")
    }
}

/// `ncclConfig_t`: properties of a communicator.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(non_snake_case)] // NCCL's names
pub struct NcclConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cgaClusterSize: c_int,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub netName: *const c_char,
    pub splitShare: c_int,
    pub trafficClass: c_int,
    pub commName: *const c_char,
    pub collnetEnable: c_int,
    pub CTAPolicy: c_int,
    pub shrinkShare: c_int,
    pub nvlsCTAs: c_int,
    pub nChannelsPerNetPeer: c_int,
    pub nvlinkCentricSched: c_int,
    pub graphUsageMode: c_int,
    pub numRmaCtx: c_int,
    pub maxP2pPeers: c_int,
    pub graphStreamOrdering: c_int,
    pub launchOrderImplicit: c_int,
    pub numRmaSig: c_int,
    pub rmaEagerInit: c_int,
    pub hostCftMode: c_int,
    pub nvlsHostMode: c_int,
}

impl NcclConfig {
    /// All fields unset, as `NCCL_CONFIG_INITIALIZER` of 2.32.3.
    pub const UNDEFINED: Self = Self {
        size: size_of::<Self>(),
        magic: API_MAGIC,
        version: VERSION_CODE as c_uint,
        blocking: UNDEF_INT,
        cgaClusterSize: UNDEF_INT,
        minCTAs: UNDEF_INT,
        maxCTAs: UNDEF_INT,
        netName: std::ptr::null(),
        splitShare: UNDEF_INT,
        trafficClass: UNDEF_INT,
        commName: std::ptr::null(),
        collnetEnable: UNDEF_INT,
        CTAPolicy: UNDEF_INT,
        shrinkShare: UNDEF_INT,
        nvlsCTAs: UNDEF_INT,
        nChannelsPerNetPeer: UNDEF_INT,
        nvlinkCentricSched: UNDEF_INT,
        graphUsageMode: UNDEF_INT,
        numRmaCtx: UNDEF_INT,
        maxP2pPeers: UNDEF_INT,
        graphStreamOrdering: UNDEF_INT,
        launchOrderImplicit: UNDEF_INT,
        numRmaSig: UNDEF_INT,
        rmaEagerInit: UNDEF_INT,
        hostCftMode: UNDEF_INT,
        nvlsHostMode: UNDEF_INT,
    };
}

/// `ncclCollConfig_t`: properties of one call.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(non_snake_case)] // NCCL's names
pub struct NcclCollConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub ext: *const NcclConfigExt,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub nvlsCTAs: c_int,
    pub cgaClusterSize: c_int,
    pub algSelection: *const c_char,
    pub forceAlgSelection: c_int,
    pub CTAPolicy: c_int,
    pub userProfilerTag: u64,
    pub launchCompletionEvent: *const c_void,
}

impl NcclCollConfig {
    /// All fields unset, as `NCCL_COLLCONFIG_INITIALIZER` of 2.32.3.
    pub const UNDEFINED: Self = Self {
        size: size_of::<Self>(),
        magic: API_MAGIC,
        version: VERSION_CODE as c_uint,
        ext: std::ptr::null(),
        minCTAs: UNDEF_INT,
        maxCTAs: UNDEF_INT,
        nvlsCTAs: UNDEF_INT,
        cgaClusterSize: UNDEF_INT,
        algSelection: std::ptr::null(),
        forceAlgSelection: 1,
        CTAPolicy: UNDEF_INT,
        userProfilerTag: 0,
        launchCompletionEvent: std::ptr::null(),
    };
}

/// `ncclConfigExt_t`: one vendor's option in a list.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NcclConfigExt {
    pub next: *const NcclConfigExt,
    pub vendor: c_int,
    pub option: c_int,
    pub value: *const c_void,
}

/// `ncclEncryptionConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EncryptionConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub mode: c_int,
    pub psk: *const c_char,
}

impl EncryptionConfig {
    /// `NCCL_ENCRYPTION_MODE_NONE`.
    pub const NO_ENCRYPTION: c_int = 0;
    /// `NCCL_ENCRYPTION_MODE_PSK`.
    pub const PRE_SHARED_KEY: c_int = 1;

    /// As `NCCL_ENCRYPTION_CONFIG_INITIALIZER` of 2.32.3.
    pub const UNDEFINED: Self = Self {
        size: size_of::<Self>(),
        magic: API_MAGIC,
        version: VERSION_CODE as c_uint,
        mode: Self::NO_ENCRYPTION,
        psk: std::ptr::null(),
    };
}

/// `ncclWaitSignalDesc_t`: how many raises of a signal are waited for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WaitSignalDesc {
    pub op_count: c_int,
    pub peer: c_int,
    pub signal: c_int,
    pub context: c_int,
}

/// `ncclSimInfo_t`: the answer of `ncclGroupSimulateEnd`; the time is in microseconds.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SimInfo {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub estimated_time: f32,
}

/// `ncclCommProperties_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommProperties {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub ranks: c_int,
    pub cuda_device: c_int,
    pub nvml_device: c_int,
    /// C `bool`s are bytes here: the caller may have left anything in them.
    pub device_api_support: u8,
    pub multimem_support: u8,
    pub gin_type: c_int,
    pub lsa_teams: c_int,
    pub host_rma_support: u8,
    pub railed_gin_type: c_int,
    pub comm_hash: u64,
    pub gin_min_stride: c_int,
    pub gin_connection_type: c_int,
    pub gin_support: [u8; 64],
    pub device_comm_size: usize,
    pub cft_support: u8,
    pub cft_multicast_support: u8,
    pub cft_counted_support: u8,
}

/// `ncclDevCommRequirements_t`. Until 2.28 it has no header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DevCommRequirements {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub resources: *const Requirement,
    pub teams: *const TeamRequirement,
    /// C `bool`s are bytes here, as in `CommProperties`.
    pub lsa_multimem: u8,
    pub barriers: c_int,
    pub lsa_barriers: c_int,
    pub rail_barriers: c_int,
    pub lla2a_blocks: c_int,
    pub lla2a_slots: c_int,
    pub gin_force_enable: u8,
    pub gin_contexts: c_int,
    pub gin_signals: c_int,
    pub gin_counters: c_int,
    pub gin_connection_type: c_int,
    pub gin_exclusive_contexts: u8,
    pub gin_queue_depth: c_int,
    pub gin_traffic_class: c_int,
    pub world_barriers: c_int,
    pub gin_strong_signals: u8,
    pub gin_va_signals: u8,
    pub gin_custom_stride: c_int,
    pub gin_type: c_int,
    pub use_runtime_version: u8,
    pub cft_caps: c_int,
    pub cft_barriers: c_int,
}

/// `ncclTeamRequirements_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TeamRequirement {
    pub next: *const Self,
    pub team: Team,
    pub multimem: u8,
    pub out_multimem: *const c_void,
}

/// `ncclTeam_t`, passed and returned by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Team {
    pub ranks: c_int,
    pub rank: c_int,
    pub stride: c_int,
}

// SAFETY: integers, floats and pointers that are only followed through `args::In`: any bytes are a value.
unsafe impl Plain for NcclConfig {}
// SAFETY: as above.
unsafe impl Plain for NcclCollConfig {}
// SAFETY: as above.
unsafe impl Plain for EncryptionConfig {}
// SAFETY: as above.
unsafe impl Plain for SimInfo {}
// SAFETY: as above; the C `bool`s are declared as bytes.
unsafe impl Plain for CommProperties {}
// SAFETY: as above.
unsafe impl Plain for DevCommRequirements {}

// The layouts of 2.32.3's headers, measured with a C compiler.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<IdBytes>() == 128 && align_of::<IdBytes>() == 1);
    assert!(size_of::<NcclConfig>() == 120);
    assert!(offset_of!(NcclConfig, blocking) == 16 && offset_of!(NcclConfig, netName) == 32);
    assert!(offset_of!(NcclConfig, trafficClass) == 44 && offset_of!(NcclConfig, commName) == 48);
    assert!(offset_of!(NcclConfig, graphStreamOrdering) == 92 && offset_of!(NcclConfig, nvlsHostMode) == 112);
    assert!(size_of::<NcclCollConfig>() == 72);
    assert!(offset_of!(NcclCollConfig, ext) == 16 && offset_of!(NcclCollConfig, algSelection) == 40);
    assert!(offset_of!(NcclCollConfig, userProfilerTag) == 56);
    assert!(offset_of!(NcclCollConfig, launchCompletionEvent) == 64);
    assert!(size_of::<NcclConfigExt>() == 24 && offset_of!(NcclConfigExt, value) == 16);
    assert!(size_of::<EncryptionConfig>() == 32 && offset_of!(EncryptionConfig, psk) == 24);
    assert!(size_of::<WaitSignalDesc>() == 16);
    assert!(size_of::<SimInfo>() == 24 && offset_of!(SimInfo, estimated_time) == 16);
    assert!(size_of::<Team>() == 12);
    assert!(size_of::<CommProperties>() == 152 && offset_of!(CommProperties, gin_type) == 36);
    assert!(offset_of!(CommProperties, railed_gin_type) == 48 && offset_of!(CommProperties, comm_hash) == 56);
    assert!(size_of::<DevCommRequirements>() == 120 && offset_of!(DevCommRequirements, lsa_barriers) == 40);
    assert!(offset_of!(DevCommRequirements, gin_force_enable) == 56);
    assert!(offset_of!(DevCommRequirements, gin_counters) == 68);
    assert!(offset_of!(DevCommRequirements, gin_connection_type) == 72);
    assert!(offset_of!(DevCommRequirements, gin_traffic_class) == 84);
    assert!(size_of::<TeamRequirement>() == 32 && offset_of!(TeamRequirement, multimem) == 20);
    assert!(offset_of!(CommProperties, gin_support) == 72 && offset_of!(CommProperties, cft_support) == 144);
};

//! Parts that the tests of the C interface share: its functions as C declares them, and a communicator.
#![allow(non_snake_case, dead_code, missing_docs)]

// Links the library; the functions below are its exported ones.
use nccl as _;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

pub const SUCCESS: c_int = 0;
pub const INVALID_ARGUMENT: c_int = 4;
pub const INVALID_USAGE: c_int = 5;
pub const IN_PROGRESS: c_int = 7;
pub const FLOAT32: c_int = 7;
pub const FLOAT64: c_int = 8;
pub const SUM: c_int = 0;
pub const UNDEF: c_int = c_int::MIN;
/// The vendor whose options of calls are ours.
pub const VENDOR: c_int = 0x48_5752;

/// `ncclConfigExt_t`.
#[repr(C)]
pub struct VendorOption {
    pub next: *const VendorOption,
    pub vendor: c_int,
    pub option: c_int,
    pub value: *const c_char,
}

pub type Ptr = *const c_void;
pub type Comm = *mut c_void;
/// Room for a struct of the device API.
pub type Words = *mut u32;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Id(pub [u8; 128]);

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Team(pub c_int, pub c_int, pub c_int);

/// `ncclConfig_t` as words: 30 ints, with `size` in the first two and pointers at 8-9 and 12-13.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Config(pub [c_int; 30]);

/// `ncclCollConfig_t` as words.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct CollConfig(pub [c_int; 18]);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct SimInfo {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub time: f32,
}

/// `ncclEncryptionConfig_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EncryptionConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub mode: c_int,
    pub psk: *const c_char,
}

// SAFETY: the signatures are those of the headers. Safe to call from these tests, which pass live
// buffers, NULL, or what is refused before anything is followed.
unsafe extern "C" {
    pub safe fn ncclGetVersion(version: *mut c_int) -> c_int;
    pub safe fn ncclGetErrorString(code: c_int) -> *const c_char;
    pub safe fn ncclGetLastError(comm: Comm) -> *const c_char;
    pub safe fn ncclGetUniqueId(id: *mut Id) -> c_int;
    pub safe fn ncclCommInitRank(comm: *mut Comm, ranks: c_int, id: Id, rank: c_int) -> c_int;
    pub safe fn ncclCommInitRankConfig(
        comm: *mut Comm,
        ranks: c_int,
        id: Id,
        rank: c_int,
        config: *const Config,
    ) -> c_int;
    pub safe fn ncclCommInitRankScalable(
        comm: *mut Comm,
        ranks: c_int,
        rank: c_int,
        ids: c_int,
        id: *const Id,
        config: *const Config,
    ) -> c_int;
    pub safe fn ncclCommInitAll(comms: *mut Comm, devices: c_int, list: *const c_int) -> c_int;
    pub safe fn ncclCommSplit(
        comm: Comm,
        color: c_int,
        key: c_int,
        part: *mut Comm,
        config: *const Config,
    ) -> c_int;
    pub safe fn ncclCommFinalize(comm: Comm) -> c_int;
    pub safe fn ncclCommDestroy(comm: Comm) -> c_int;
    pub safe fn ncclCommAbort(comm: Comm) -> c_int;
    pub safe fn ncclCommCount(comm: Comm, out: *mut c_int) -> c_int;
    pub safe fn ncclCommUserRank(comm: Comm, out: *mut c_int) -> c_int;
    pub safe fn ncclCommCuDevice(comm: Comm, out: *mut c_int) -> c_int;
    pub safe fn ncclCommGetAsyncError(comm: Comm, out: *mut c_int) -> c_int;
    pub safe fn ncclCommQueryProperties(comm: Comm, out: *mut c_void) -> c_int;
    pub safe fn ncclGroupStart() -> c_int;
    pub safe fn ncclGroupEnd() -> c_int;
    pub safe fn ncclGroupSimulateEnd(info: *mut SimInfo) -> c_int;
    pub safe fn ncclAllReduce(
        s: Ptr,
        r: Ptr,
        n: usize,
        t: c_int,
        op: c_int,
        comm: Comm,
        stream: Ptr,
    ) -> c_int;
    pub safe fn ncclAllReduceConfig(
        s: Ptr,
        r: Ptr,
        n: usize,
        t: c_int,
        op: c_int,
        comm: Comm,
        stream: Ptr,
        config: *const CollConfig,
    ) -> c_int;
    pub safe fn ncclReduceScatter(
        s: Ptr,
        r: Ptr,
        n: usize,
        t: c_int,
        op: c_int,
        comm: Comm,
        stream: Ptr,
    ) -> c_int;
    pub safe fn ncclReduce(
        s: Ptr,
        r: Ptr,
        n: usize,
        t: c_int,
        op: c_int,
        root: c_int,
        comm: Comm,
        stream: Ptr,
    ) -> c_int;
    pub safe fn ncclBroadcast(
        s: Ptr,
        r: Ptr,
        n: usize,
        t: c_int,
        root: c_int,
        comm: Comm,
        stream: Ptr,
    ) -> c_int;
    pub safe fn ncclBcast(b: Ptr, n: usize, t: c_int, root: c_int, comm: Comm, stream: Ptr) -> c_int;
    pub safe fn ncclAllGather(s: Ptr, r: Ptr, n: usize, t: c_int, comm: Comm, stream: Ptr) -> c_int;
    pub safe fn ncclAlltoAll(s: Ptr, r: Ptr, n: usize, t: c_int, comm: Comm, stream: Ptr) -> c_int;
    pub safe fn ncclGather(s: Ptr, r: Ptr, n: usize, t: c_int, root: c_int, comm: Comm, stream: Ptr)
    -> c_int;
    pub safe fn ncclScatter(
        s: Ptr,
        r: Ptr,
        n: usize,
        t: c_int,
        root: c_int,
        comm: Comm,
        stream: Ptr,
    ) -> c_int;
    pub safe fn ncclSend(s: Ptr, n: usize, t: c_int, peer: c_int, comm: Comm, stream: Ptr) -> c_int;
    pub safe fn ncclRecv(r: Ptr, n: usize, t: c_int, peer: c_int, comm: Comm, stream: Ptr) -> c_int;
    pub safe fn ncclRedOpCreatePreMulSum(
        op: *mut c_int,
        scalar: Ptr,
        t: c_int,
        residence: c_int,
        comm: Comm,
    ) -> c_int;
    pub safe fn ncclRedOpDestroy(op: c_int, comm: Comm) -> c_int;
    pub safe fn ncclMemAlloc(out: *mut *mut c_void, size: usize) -> c_int;
    pub safe fn ncclMemFree(memory: Ptr) -> c_int;
    pub safe fn ncclCommRegister(comm: Comm, buffer: Ptr, size: usize, handle: *mut Ptr) -> c_int;
    pub safe fn ncclCommDeregister(comm: Comm, handle: Ptr) -> c_int;
    pub safe fn ncclCommWindowRegister(
        comm: Comm,
        buffer: Ptr,
        size: usize,
        win: *mut Ptr,
        flags: c_int,
    ) -> c_int;
    pub safe fn ncclCommWindowDeregister(comm: Comm, win: Ptr) -> c_int;
    pub safe fn ncclWinGetUserPtr(comm: Comm, win: Ptr, out: *mut Ptr) -> c_int;
    pub safe fn ncclCommShrink(
        comm: Comm,
        exclude: *const c_int,
        n: c_int,
        out: *mut Comm,
        config: *const Config,
        flags: c_int,
    ) -> c_int;
    pub safe fn ncclCommGetUniqueId(comm: Comm, id: *mut Id) -> c_int;
    pub safe fn ncclCommGrow(
        comm: Comm,
        ranks: c_int,
        id: *const Id,
        rank: c_int,
        out: *mut Comm,
        config: *const Config,
    ) -> c_int;
    pub safe fn ncclCommRevoke(comm: Comm, flags: c_int) -> c_int;
    pub safe fn ncclCommSuspend(comm: Comm, flags: c_int) -> c_int;
    pub safe fn ncclCommResume(comm: Comm) -> c_int;
    pub safe fn ncclCommMemStats(comm: Comm, stat: c_int, out: *mut u64) -> c_int;
    pub safe fn ncclTeamCft(comm: Comm, mode: c_int) -> Team;
    pub safe fn ncclDevCommCreate(comm: Comm, requirements: Ptr, out: Ptr) -> c_int;
    pub safe fn ncclDevCommDestroy(comm: Comm, dev_comm: Ptr) -> c_int;
    pub safe fn ncclPutSignal(
        local: Ptr,
        n: usize,
        t: c_int,
        peer: c_int,
        win: Ptr,
        offset: usize,
        sig: c_int,
        ctx: c_int,
        flags: c_uint,
        comm: Comm,
        stream: Ptr,
    ) -> c_int;
    pub safe fn ncclWaitSignal(n: c_int, descriptors: Ptr, comm: Comm, stream: Ptr) -> c_int;
    pub safe fn ncclSetEncryption(config: *const EncryptionConfig) -> c_int;
    pub safe fn ncclSignal(
        peer: c_int,
        sig: c_int,
        ctx: c_int,
        flags: c_uint,
        comm: Comm,
        stream: Ptr,
    ) -> c_int;
    pub safe fn ncclParamBind(out: *mut Ptr, key: *const c_char) -> c_int;
    pub safe fn ncclParamGetI8(handle: Ptr, out: *mut i8) -> c_int;
    pub safe fn ncclParamGetI16(handle: Ptr, out: *mut i16) -> c_int;
    pub safe fn ncclParamGetI32(handle: Ptr, out: *mut i32) -> c_int;
    pub safe fn ncclParamGetI64(handle: Ptr, out: *mut i64) -> c_int;
    pub safe fn ncclParamGetU8(handle: Ptr, out: *mut u8) -> c_int;
    pub safe fn ncclParamGetU16(handle: Ptr, out: *mut u16) -> c_int;
    pub safe fn ncclParamGetU32(handle: Ptr, out: *mut u32) -> c_int;
    pub safe fn ncclParamGetU64(handle: Ptr, out: *mut u64) -> c_int;
    pub safe fn ncclParamGet(handle: Ptr, out: *mut u8, room: c_int, bytes: *mut c_int) -> c_int;
    pub safe fn ncclParamGetParameter(
        key: *const c_char,
        out: *mut *const c_char,
        bytes: *mut c_int,
    ) -> c_int;
    pub safe fn ncclParamGetAllParameterKeys(out: *mut *const *const c_char, count: *mut c_int) -> c_int;
    pub safe fn ncclParamGetStr(handle: Ptr, out: *mut *const c_char) -> c_int;
    pub safe fn ncclTeamWorld(comm: Comm) -> Team;
    pub safe fn ncclTeamLsa(comm: Comm) -> Team;
    pub safe fn ncclTeamRail(comm: Comm) -> Team;
    pub safe fn ncclTeamRankToLsa(comm: Comm, team: Team, rank: c_int) -> c_int;
    pub safe fn ncclGetPeerDevicePointer(win: Ptr, offset: usize, rank: c_int, out: *mut Ptr) -> c_int;
    pub safe fn ncclGetLsaMultimemDevicePointer(win: Ptr, offset: usize, out: *mut Ptr) -> c_int;
    pub safe fn ncclLsaBarrierCreateRequirement(team: Team, n: c_int, handle: Words, out: Words) -> c_int;
    pub safe fn ncclGinBarrierCreateRequirement(
        comm: Comm,
        team: Team,
        n: c_int,
        handle: Words,
        out: Words,
    ) -> c_int;
    pub safe fn ncclGinInboxA2ACreateRequirement(
        team: Team,
        blocks: c_int,
        log2: c_int,
        handle: Words,
        out: Words,
    ) -> c_int;
    pub safe fn ncclGinOutboxCreateRequirement(
        blocks: c_int,
        log2: c_int,
        handle: Words,
        out: Words,
    ) -> c_int;
    pub safe fn ncclLLA2ACreateRequirement(blocks: c_int, slots: c_int, handle: Words, out: Words) -> c_int;
    pub safe fn ncclTeamRankToWorld(comm: Comm, team: Team, rank: c_int) -> c_int;
    pub safe fn ncclLLA2ACalcSlots(elements: c_int, size: c_int) -> c_int;
    pub safe fn ncclGetLsaDevicePointer(win: Ptr, offset: usize, rank: c_int, out: *mut Ptr) -> c_int;
    pub safe fn ncclParamDumpAll();
    pub safe fn ncclResetDebugInit();
}

impl Config {
    pub const BLOCKING: usize = 4;
    pub const MIN_CTAS: usize = 6;
    pub const MAX_CTAS: usize = 7;

    /// As `NCCL_CONFIG_INITIALIZER`, with one field set.
    pub fn with(field: usize, value: c_int) -> Self {
        let mut words = [UNDEF; 30];
        words[..4].copy_from_slice(&[120, 0, 0xcafe_beef_u32.cast_signed(), 23203]);
        (words[8], words[9], words[12], words[13]) = (0, 0, 0, 0);
        words[field] = value;
        Self(words)
    }
}

impl CollConfig {
    pub const SIZE: usize = 0;
    pub const MAGIC: usize = 2;
    pub const MIN_CTAS: usize = 6;
    pub const MAX_CTAS: usize = 7;
    pub const CGA: usize = 9;
    pub const FORCE: usize = 12;
    pub const EVENT: usize = 16;

    /// As `NCCL_COLLCONFIG_INITIALIZER`, with one field set.
    pub fn with(field: usize, value: c_int) -> Self {
        let mut words = [0; 18];
        words[..4].copy_from_slice(&[72, 0, 0xcafe_beef_u32.cast_signed(), 23203]);
        words[6..10].fill(UNDEF);
        (words[12], words[13]) = (1, UNDEF);
        words[field] = value;
        Self(words)
    }

    /// Sets the pointer at `algSelection`.
    pub fn filter(text: &CStr, force: c_int) -> Self {
        let mut config = Self::with(Self::FORCE, force);
        let address = text.as_ptr() as u64;
        (config.0[10], config.0[11]) = (address as c_int, (address >> 32) as c_int);
        config
    }
}

/// First thing in every test: the host device, and one test at a time, since the last error is the process's.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    on_host();
    turn
}

fn on_host() {
    static ONCE: Once = Once::new();
    // SAFETY: every test comes through here before it calls the library, and no other code of this
    // process reads or writes the environment.
    ONCE.call_once(|| unsafe { std::env::set_var("HAWSER_DEVICE", "host") });
}

/// The text of `ncclGetLastError`.
pub fn last_error() -> String {
    // SAFETY: NULL is allowed; the text always ends.
    unsafe { CStr::from_ptr(ncclGetLastError(null_mut())) }.to_string_lossy().into_owned()
}

pub fn ok(code: c_int) {
    assert_eq!(code, SUCCESS, "{}", last_error());
}

/// A new communicator of one rank.
pub fn single() -> Comm {
    let (mut id, mut comm) = (Id([0; 128]), null_mut());
    ok(ncclGetUniqueId(&mut id));
    ok(ncclCommInitRank(&mut comm, 1, id, 0));
    comm
}

/// Communicators of `ranks` ranks, all driven by the calling thread.
pub fn several(ranks: usize) -> Vec<Comm> {
    let mut comms = vec![null_mut(); ranks];
    let count = c_int::try_from(ranks).expect("a small number");
    ok(ncclCommInitAll(comms.as_mut_ptr(), count, null()));
    comms
}

/// `hawserDecision_t`, as bytes.
#[repr(C, align(8))]
struct Decision([u8; 448]);

// SAFETY: the signature is `hawser.h`'s. Safe to call from these tests, which pass live memory.
unsafe extern "C" {
    safe fn hawserLastDecision(
        comm: Comm,
        decision: *mut Decision,
        text: *mut c_char,
        capacity: usize,
    ) -> c_int;
}

/// The algorithm and the channels of a communicator's last operation.
pub fn last_decision(comm: Comm) -> (String, u32) {
    let mut decision = Decision([0; 448]);
    decision.0[..8].copy_from_slice(&448u64.to_ne_bytes());
    decision.0[8..12].copy_from_slice(&0x5241_5748u32.to_ne_bytes());
    decision.0[12..16].copy_from_slice(&2u32.to_ne_bytes());
    ok(hawserLastDecision(comm, &mut decision, null_mut(), 0));
    let name = CStr::from_bytes_until_nul(&decision.0[88..152]).unwrap().to_str().unwrap();
    (name.to_owned(), u32::from_ne_bytes(decision.0[36..40].try_into().unwrap()))
}

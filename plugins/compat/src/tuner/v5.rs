//! Tuner version 5 (NCCL 2.28): `init` tells the communicator's id and NVLink domains, and shows the
//! constants of NCCL's cost model.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::Arc;

use super::Version;
use super::adapter::{Ask, Calls, Comm, Plugin};
use super::cost_table::{ALGORITHMS, CostTable, PROTOCOLS};
use super::v2::Finalize;
use super::v4::{self, Tune};
use crate::common::{self, Missing, required};
use crate::logger::Logger;

pub(super) const VERSION: Version = Version { symbol: "ncclTunerPlugin_v5", read };

/// `init` since version 5: context out, id, ranks, nodes, logger, domains, constants.
pub(super) type Init = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    usize,
    usize,
    Option<Logger>,
    *mut Domains,
    *mut Constants,
) -> c_int;

/// `ncclTuner_v5_t`.
#[repr(C)]
pub struct Table {
    pub(super) name: *const c_char,
    pub(super) init: Option<Init>,
    pub(super) tune: Option<Tune>,
    pub(super) finalize: Option<Finalize>,
}

/// `ncclNvlDomainInfo_v5_t`: NVLink domains.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Domains {
    pub(super) count: c_int,
    pub(super) fewest_ranks: c_int,
    pub(super) most_ranks: c_int,
}

/// Per algorithm and protocol.
type PerCell = [[f64; PROTOCOLS]; ALGORITHMS];
/// Per compute capability (Volta, Ampere, Hopper, Blackwell) and number of nodes (1, 2, 4 and more).
type PerScale = [[f64; 3]; 4];

/// `ncclTunerConstants_v5_t`: microseconds and GB/s of NCCL's cost model. Plugins may change them; Hawser's
/// own model has other constants and does not read them back.
#[repr(C)]
pub struct Constants {
    base_latencies: PerCell,
    /// NVLink, PCI, network.
    hw_latencies: [PerCell; 3],
    ll_max_bw: PerScale,
    ring_ll128_max_bw: PerScale,
    tree_ll128_max_bw: PerScale,
    tree_max_bw: PerScale,
    nvls_tree_max_bw: PerScale,
}

const _: () = {
    assert!(size_of::<Table>() == 32);
    assert!(
        offset_of!(Table, init) == 8 && offset_of!(Table, tune) == 16 && offset_of!(Table, finalize) == 24
    );
    assert!(size_of::<Domains>() == 12 && size_of::<Constants>() == 1152);
    assert!(offset_of!(Constants, hw_latencies) == 168 && offset_of!(Constants, ll_max_bw) == 672);
    assert!(
        offset_of!(Constants, ring_ll128_max_bw) == 768 && offset_of!(Constants, tree_ll128_max_bw) == 864
    );
    assert!(offset_of!(Constants, tree_max_bw) == 960 && offset_of!(Constants, nvls_tree_max_bw) == 1056);
};

impl Constants {
    /// The numbers that NCCL 2.30 shows to a plugin, so that one that scales them finds what it expects.
    pub(super) const NCCL: Self = Self {
        base_latencies: cells([6.8, 14.0, 8.4], [6.6, 14.0, 8.4], [0.0; 4], [8.0; 3]),
        hw_latencies: [
            cells([0.6, 1.25, 4.0], [0.6, 1.9, 3.4], [3.7, 2.8, 25.0, 25.0], [0.0, 0.0, 4.0]),
            cells([1.0, 1.9, 4.0], [1.0, 2.5, 5.7], [3.7, 2.8, 0.0, 0.0], [0.0, 0.0, 4.0]),
            cells([5.0, 8.5, 14.0], [2.7, 4.0, 14.0], [31.0, 30.0, 18.0, 20.9], [0.0, 0.0, 14.0]),
        ],
        ll_max_bw: [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [282.0, 90.0, 70.0]],
        ring_ll128_max_bw: [[20.0; 3], [20.0; 3], [36.7; 3], [40.0; 3]],
        tree_ll128_max_bw: [[20.0; 3], [20.0; 3], [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]],
        tree_max_bw: [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]],
        nvls_tree_max_bw: [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], [0.0, 96.0, 80.0]],
    };
}

/// Rows of tree and ring, the Simple entries of the four algorithms in between, and the row of PAT.
const fn cells(tree: [f64; 3], ring: [f64; 3], simple: [f64; 4], pat: [f64; 3]) -> PerCell {
    let [direct, chain, nvls, nvls_tree] = simple;
    [tree, ring, [0.0, 0.0, direct], [0.0, 0.0, chain], [0.0, 0.0, nvls], [0.0, 0.0, nvls_tree], pat]
}

// SAFETY: a table is never written after it was made.
unsafe impl Sync for Table {}

/// The functions of a complete table.
struct V5 {
    init: Init,
    tune: Tune,
    finalize: Finalize,
}

/// # Safety
/// `table` is the address of an `ncclTuner_v5_t`.
pub(super) unsafe fn read(table: *const c_void) -> Result<Plugin, Missing> {
    // SAFETY: see above.
    let table = unsafe { &*table.cast::<Table>() };
    let calls = V5 {
        init: required(table.init, "init")?,
        tune: required(table.tune, "getCollInfo")?,
        finalize: required(table.finalize, "finalize")?,
    };
    // SAFETY: NULL or a name.
    let name = unsafe { common::text(table.name) }.unwrap_or_else(|| "unnamed".into());
    Ok(Plugin { name, calls: Arc::new(calls) })
}

impl Calls for V5 {
    unsafe fn init(&self, comm: &Comm, context: &mut *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { init(self.init, comm, context) }
    }

    unsafe fn tune(
        &self,
        context: *mut c_void,
        ask: &Ask,
        table: &mut CostTable,
        channels: &mut c_int,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { v4::tune(self.tune, context, ask, table, channels) }
    }

    unsafe fn finalize(&self, context: *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.finalize)(context) }
    }
}

/// `init` since version 5.
///
/// # Safety
/// `function` is the plugin's, and the pointers of `comm` stay good until it is finalized.
pub(super) unsafe fn init(function: Init, comm: &Comm, context: &mut *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        function(context, comm.id, comm.ranks, comm.nodes, Some(comm.logger), comm.domains, comm.constants)
    }
}

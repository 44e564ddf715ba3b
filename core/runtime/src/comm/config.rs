//! The options of a communicator.

use hawser_plan::Class;

use crate::rma::Limits;

/// Options of a communicator (the part of `ncclConfig_t` that the runtime acts on).
#[derive(Debug, Clone)]
pub struct Config {
    /// Calls return when they are done; otherwise at once, and [`async_error`](super::Comm::async_error)
    /// tells.
    pub blocking: bool,
    /// Fewest CTAs of an operation.
    pub min_ctas: Option<u32>,
    /// Most CTAs of an operation.
    pub max_ctas: Option<u32>,
    /// Copy engines do what they can, as with `NCCL_PASS_SM=1`.
    pub sm_free: bool,
    /// The level of reproducible reductions (`HAWSER_REPRODUCIBLE`), unless the environment says another.
    pub reproducible: u8,
    /// The class of operations, unless the environment says another (`HAWSER_CLASS`). None: normal, or urgent
    /// on streams of a priority above normal.
    pub class: Option<Class>,
    /// Replays of graphs and other launches are put in order by the library: yes, unless this or the
    /// environment says no.
    pub mixes_graphs: Option<bool>,
    /// Name for logs and errors.
    pub name: Option<String>,
    /// Name of the net plugin between hosts, unless `NCCL_NET` names one.
    pub net: Option<String>,
    /// Traffic class of the communicator's packets, for net plugins that know such.
    pub traffic_class: Option<i32>,
    /// Name of the host that this rank counts as, instead of `NCCL_HOSTID` and the real one: lets the ranks
    /// of one process be several hosts.
    pub host: Option<String>,
    /// Number of the process that this rank counts as: ranks of one process with different numbers share
    /// nothing but what processes can share, so that one of them can end without the others.
    pub process: Option<u64>,
    /// Signals and contexts of one-sided transfers, alike on all ranks.
    pub rma: Limits,
}

impl Config {
    /// The options of a communicator that the rank with these options makes of another one: it stays in the
    /// place where it is.
    pub(super) fn placed_as(mut self, parent: &Self) -> Self {
        self.host = self.host.or_else(|| parent.host.clone());
        self.process = self.process.or(parent.process);
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            blocking: true,
            min_ctas: None,
            max_ctas: None,
            sm_free: false,
            reproducible: 0,
            class: None,
            mixes_graphs: None,
            name: None,
            net: None,
            traffic_class: None,
            host: None,
            process: None,
            rma: Limits { signals: 1, contexts: 1 },
        }
    }
}

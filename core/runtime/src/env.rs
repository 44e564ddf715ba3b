//! All settings of the library in one typed table, read once.
//!
//! An env plugin (`NCCL_ENV_PLUGIN`), if there is one, is the only source. Without it: process environment, then the
//! file named by `NCCL_CONF_FILE` (else `~/.nccl.conf`), then `/etc/nccl.conf`; what names a setting first counts, also
//! in a file, and an empty value counts as none. A value that does not parse is reported once and the default kept; an
//! unknown `NCCL_*` name is reported with the nearest known one. This is the only file of the runtime that reads the
//! environment.

mod sm_free;
mod source;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use hawser_plan::topology::QUEUES;
use hawser_plugin::env::EnvContext;
use std::collections::BTreeMap;

use crate::bootstrap::Remark;
use crate::error::{Error, Result};
use crate::log;
use crate::pool;
use hawser_oob::interface::Family;
use source::Source;

/// The settings of this process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `HAWSER_DEVICE`: `auto`, `host` or `cuda`.
    pub device: String,
    /// `NCCL_CUMEM_ENABLE`: VMM allocations; None = where supported.
    pub cumem_enable: Option<bool>,
    /// `NCCL_P2P_DISABLE`.
    pub p2p_disable: bool,
    /// `NCCL_SHM_DISABLE`.
    pub shm_disable: bool,
    /// `NCCL_ALGO`.
    pub algo: Option<String>,
    /// `NCCL_PROTO`.
    pub proto: Option<String>,
    /// `NCCL_MIN_CTAS` (old names `NCCL_MIN_NCHANNELS`, `NCCL_MIN_NRINGS`).
    pub min_ctas: Option<u32>,
    /// `NCCL_MAX_CTAS` (old names `NCCL_MAX_NCHANNELS`, `NCCL_MAX_NRINGS`).
    pub max_ctas: Option<u32>,
    /// `NCCL_BUFFSIZE`: bytes of Simple FIFO per lane and peer.
    pub buffsize: Option<u64>,
    /// `NCCL_COMM_BLOCKING`.
    pub comm_blocking: Option<bool>,
    /// `NCCL_COMM_ID`.
    pub comm_id: Option<String>,
    /// `NCCL_SOCKET_IFNAME`.
    pub socket_ifname: Option<String>,
    /// `NCCL_SOCKET_FAMILY`: 4 or 6.
    pub socket_family: Option<u8>,
    /// `NCCL_SOCKET_RETRY_CNT`.
    pub socket_retry_count: u32,
    /// `NCCL_SOCKET_RETRY_SLEEP_MSEC`.
    pub socket_retry_sleep: Duration,
    /// `NCCL_HOSTID`: identity of the host, instead of host name and boot id.
    pub host_id: Option<String>,
    /// `NCCL_MULTI_RANK_GPU_ENABLE`.
    pub multi_rank_gpu: bool,
    /// `HAWSER_INIT_TIMEOUT` in seconds: how long each step of bring-up may last, once all ranks are there.
    pub init_timeout: Duration,
    /// The same: how long ranks wait for those that have not come to init or split. Unset it is long, since programs load data
    /// or compile before, each rank in its time.
    pub join_timeout: Duration,
    /// `HAWSER_HANDSHAKE_TIMEOUT` in seconds: how long a stranger may stay silent.
    pub handshake_timeout: Duration,
    /// `HAWSER_OP_TIMEOUT` in seconds: how long an operation may wait for a peer; None = for ever.
    pub op_timeout: Option<Duration>,
    /// `NCCL_NET`: name of the net plugin to use.
    pub net: Option<String>,
    /// `NCCL_NET_PLUGIN`: names or paths of libraries with net plugins.
    pub net_plugin: Option<String>,
    /// `NCCL_TUNER_PLUGIN`.
    pub tuner_plugin: Option<String>,
    /// `NCCL_PROFILER_PLUGIN`.
    pub profiler_plugin: Option<String>,
    /// `HAWSER_PLUGIN_PROBE`: plugins are tried in a process of their own first, so that one that crashes is named. 1 =
    /// in a forked child; the path of the `hawser` program = in that (a fork does not suit every process).
    pub plugin_probe: Option<String>,
    /// `NCCL_COLLNET_ENABLE`: whether a collnet plugin may reduce in the network.
    pub collnet: bool,
    /// `NCCL_NET_GDR_LEVEL`: whether net plugins may read and write GPU memory (not `LOC` or 0).
    pub gpu_direct: bool,
    /// `NCCL_PASS_SM`: 0, 1 or 2, see [`hawser_plan::PlanConfig::pass_sm`].
    pub pass_sm: u8,
    /// `NCCL_CTA_POLICY`: whether communicators do without multiprocessors where they can; None = as each is made.
    pub no_ctas: Option<bool>,
    /// `NCCL_PSM_BUFFER_SIZE`: staging for copy engines per peer, in bytes.
    pub staging_bytes: u64,
    /// `HAWSER_SM_FREE_CTAS`, see [`hawser_plan::PlanConfig::reducing_ctas`].
    pub reducing_ctas: Option<u32>,
    /// `HAWSER_SM_FREE_ADD`: memory makes the sums beside copy engines that it makes right ([`hawser_plan::dma::Fold::in_memory`]).
    pub memory_adds: bool,
    /// `NCCL_CUMEM_POOL_SIZE`, `_PREALLOC`, `_GROWTH_FACTOR`, `_MAX_SIZE`, `_TRIM_THRESHOLD`, `_MONITOR`,
    /// `_MONITOR_INTERVAL`: the memory of each device.
    pub pool: pool::Policy,
    /// `NCCL_SM_FREE_VERBOSE`: lines about what runs without multiprocessors, and why not: 1 = at the first use, 2 = always.
    pub sm_free_verbose: u8,
    /// `NCCL_DMA_ENABLE`: whether copy engines may move data.
    pub dma_enable: bool,
    /// `NCCL_ZERO_COPY`: 0 = all through staging, else copy engines move data from user buffer to user buffer.
    pub zero_copy: Option<bool>,
    /// `NCCL_DIRECT_PATH`: 0 = through host memory even where GPUs reach each other.
    pub direct_path: Option<bool>,
    /// Values of the settings above that mean nothing: communicators refuse to come up with them.
    pub faults: Vec<String>,
    /// `HAWSER_LINKS`: file with constants of the cost model, as `hawser measure` writes it; `none` = the built-in ones.
    pub links: Option<String>,
    /// `MSCCL_XML_FILES`: program files (MSCCL's XML, or `.plan`), separated by `:`; the first that fits a call runs it.
    pub msccl_files: Option<String>,
    /// `MSCCL_ALGO_DIR`: folder of such files, tried after those that are named.
    pub msccl_folder: Option<String>,
    /// The user's folder for caches: `$XDG_CACHE_HOME`, else `~/.cache`.
    pub cache: Option<PathBuf>,
    /// Without `NCCL_P2P_DIRECT_DISABLE`: ranks of one process move large data straight between the users' buffers (SymDirect).
    pub direct: bool,
    /// `NCCL_GRAPH_MIXING_SUPPORT`: 0 = the program orders replays of graphs and other launches of a communicator itself, 1 =
    /// the library does; None = as each communicator is made.
    pub mixes_graphs: Option<bool>,
    /// `HAWSER_FUSE`: 0 = every collective of a group gets a launch of its own.
    pub fuse: bool,
    /// `HAWSER_EXPLAIN`: who writes why calls run as they do.
    pub explain: Explain,
    /// `HAWSER_RULES_WATCH`: rule files that count anew when they change; 1 = those of `HAWSER_RULES`.
    pub rules_watch: Vec<PathBuf>,
    /// `HAWSER_RULES_TIMEOUT` in seconds: how long ranks may take for each step of a change of rules.
    pub rules_timeout: Duration,
    /// `HAWSER_RUNTIME_DIR`: folder of the sockets through which rules of a process can be changed; `none` = no socket.
    pub runtime_folder: Option<PathBuf>,
    /// `HAWSER_JOB`: what `hawser rules apply --job` finds this process by; else `SLURM_JOB_ID`.
    pub job: Option<String>,
    /// `NCCL_DEBUG`.
    pub debug: Option<String>,
    /// `NCCL_DEBUG_SUBSYS`.
    pub debug_subsys: Option<String>,
    /// `NCCL_DEBUG_FILE`.
    pub debug_file: Option<String>,
}

impl Settings {
    /// Whether all values that must mean something do.
    ///
    /// # Errors
    /// `InvalidUsage` with the name, the value and the accepted form of each that does not.
    pub fn check(&self) -> Result<()> {
        if self.faults.is_empty() { Ok(()) } else { Err(Error::invalid_usage(self.faults.join("; "))) }
    }
}

/// Values of `HAWSER_EXPLAIN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Explain {
    /// Nobody (0).
    No,
    /// Rank 0 of every communicator (1).
    First,
    /// Every rank (`all`).
    All,
}

/// The settings, read at first use.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let source = Source::read();
        hawser_plugin::settings::set_source(value);
        let settings = source.settings();
        log::configure(&settings);
        crate::bootstrap::set_log(|remark, text| match remark {
            Remark::Detail => log::info(log::Subsys::Bootstrap, || text.to_owned()),
            Remark::Warning => log::warn(text),
        });
        for complaint in source.complaints().iter().chain(&settings.faults) {
            log::warn(complaint);
        }
        // Where a plugin is, that stays.
        let _ = ORIGIN.set(Origin::Found(source.values));
        settings
    })
}

/// A sentence about each value that means nothing.
pub fn wrong_values() -> Vec<String> {
    let source = Source::read();
    let faults = source.settings().faults;
    let values = source.wrong_values();
    values.into_iter().chain(faults.iter().map(ToString::to_string)).collect()
}

/// Where values come from that the library has no use for itself.
static ORIGIN: OnceLock<Origin> = OnceLock::new();

enum Origin {
    /// From it alone.
    Plugin(Box<dyn EnvContext>),
    /// From these, which were found at the begin, else from the environment.
    Found(BTreeMap<String, String>),
}

/// A value for a built-in plugin.
fn value(name: &str) -> Option<OsString> {
    let found = match ORIGIN.get() {
        Some(Origin::Plugin(plugin)) => return plugin.value(name).map(OsString::from),
        Some(Origin::Found(values)) => values.get(name),
        None => None,
    };
    found.map(OsString::from).or_else(|| std::env::var_os(name))
}

/// The part of the settings that the bootstrap needs.
pub fn bootstrap_settings() -> crate::bootstrap::Settings {
    let s = settings();
    crate::bootstrap::Settings {
        ifname: s.socket_ifname.clone(),
        family: s.socket_family.map(|version| if version == 6 { Family::V6 } else { Family::V4 }),
        init_timeout: s.join_timeout,
        handshake_timeout: s.handshake_timeout,
        comm_id: s.comm_id.clone(),
        retry_count: s.socket_retry_count,
        retry_sleep: s.socket_retry_sleep,
    }
}

/// Names of the variables that have an effect in this version.
pub const HONOURED: &[&str] = &[
    "NCCL_CUMEM_ENABLE",
    "NCCL_CUMEM_HOST_ENABLE",
    "NCCL_CUMEM_POOL_SIZE",
    "NCCL_CUMEM_PREALLOC",
    "NCCL_CUMEM_GROWTH_FACTOR",
    "NCCL_CUMEM_MAX_SIZE",
    "NCCL_CUMEM_TRIM_THRESHOLD",
    "NCCL_CUMEM_MONITOR",
    "NCCL_CUMEM_MONITOR_INTERVAL",
    "NCCL_SM_FREE_VERBOSE",
    "NCCL_ZERO_COPY",
    "NCCL_DMA_ENABLE",
    "NCCL_DIRECT_PATH",
    "NCCL_PXN_DISABLE",
    "NCCL_ENABLE_FAULT_TOLERANCE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_GRAPH_MIXING_SUPPORT",
    "NCCL_SHM_DISABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NRINGS",
    "NCCL_MAX_NRINGS",
    "NCCL_BUFFSIZE",
    "NCCL_COMM_BLOCKING",
    "NCCL_COMM_ID",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY",
    "NCCL_SOCKET_RETRY_CNT",
    "NCCL_SOCKET_RETRY_SLEEP_MSEC",
    "NCCL_HOSTID",
    "NCCL_MULTI_RANK_GPU_ENABLE",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_TUNER_PLUGIN",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_PASS_SM",
    "NCCL_CTA_POLICY",
    "NCCL_PSM_BUFFER_SIZE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_FILE",
    "NCCL_CONF_FILE",
    "NCCL_ENV_PLUGIN",
    "NCCL_TUNER_CONFIG_FILE",
    "MSCCL_XML_FILES",
    "MSCCL_ALGO_DIR",
    "HAWSER_DEVICE",
    "HAWSER_FUSE",
    "HAWSER_EXPLAIN",
    "HAWSER_RULES",
    "HAWSER_RULES_WATCH",
    "HAWSER_RULES_TIMEOUT",
    "HAWSER_RUNTIME_DIR",
    "HAWSER_JOB",
    "HAWSER_LINKS",
    "HAWSER_PLUGIN_PROBE",
    "HAWSER_INIT_TIMEOUT",
    "HAWSER_HANDSHAKE_TIMEOUT",
    "HAWSER_OP_TIMEOUT",
    "HAWSER_SM_FREE_CTAS",
    "HAWSER_SM_FREE_ADD",
];

/// The longest deadline that can be set, in seconds (30 years): clocks can count that far.
const MOST_SECONDS: u32 = 1_000_000_000;

impl Source {
    fn read() -> Self {
        let named = std::env::var("NCCL_ENV_PLUGIN").ok();
        if let Some(plugin) = crate::plugins::env(named.as_deref()) {
            let values: Vec<_> =
                HONOURED.iter().filter_map(|name| Some(((*name).to_owned(), plugin.value(name)?))).collect();
            let _ = ORIGIN.set(Origin::Plugin(plugin));
            return Self::of(values.into_iter());
        }
        let home = std::env::var("HOME").map(|h| format!("{h}/.nccl.conf")).ok();
        let own = std::env::var("NCCL_CONF_FILE").ok().filter(|path| !path.is_empty()).or(home);
        let files = [own, Some("/etc/nccl.conf".to_owned())].into_iter().flatten();
        let texts: Vec<String> = files.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| ["NCCL_", "HAWSER_", "MSCCL_"].iter().any(|p| name.starts_with(p)));
        Self::of(environment.chain(texts.iter().flat_map(|text| source::parse_file(text))))
    }

    fn settings(&self) -> Settings {
        let old_names =
            |names: [&str; 3]| names.iter().find_map(|n| self.parsed::<u32>(n, "a positive number"));
        let of_init = self.seconds("HAWSER_INIT_TIMEOUT", MOST_SECONDS);
        Settings {
            device: self.word("HAWSER_DEVICE", &["auto", "host", "cuda"]).unwrap_or_else(|| "auto".into()),
            cumem_enable: self
                .parsed::<i64>("NCCL_CUMEM_ENABLE", "0 or 1")
                .filter(|v| *v >= 0)
                .map(|v| v != 0),
            p2p_disable: self.flag("NCCL_P2P_DISABLE"),
            shm_disable: self.flag("NCCL_SHM_DISABLE"),
            algo: self.text("NCCL_ALGO"),
            proto: self.text("NCCL_PROTO"),
            min_ctas: old_names(["NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"]),
            max_ctas: old_names(["NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"]),
            buffsize: self.parsed("NCCL_BUFFSIZE", "a number of bytes"),
            comm_blocking: self.parsed::<i64>("NCCL_COMM_BLOCKING", "0 or 1").map(|v| v != 0),
            comm_id: self.text("NCCL_COMM_ID"),
            socket_ifname: self.text("NCCL_SOCKET_IFNAME"),
            socket_family: self
                .word("NCCL_SOCKET_FAMILY", &["AF_INET", "AF_INET6"])
                .map(|f| if f == "AF_INET6" { 6 } else { 4 }),
            socket_retry_count: self.parsed("NCCL_SOCKET_RETRY_CNT", "a number").unwrap_or(34),
            socket_retry_sleep: Duration::from_millis(
                self.parsed("NCCL_SOCKET_RETRY_SLEEP_MSEC", "milliseconds").unwrap_or(100),
            ),
            host_id: self.text("NCCL_HOSTID"),
            multi_rank_gpu: self.flag("NCCL_MULTI_RANK_GPU_ENABLE"),
            init_timeout: of_init.unwrap_or(Duration::from_secs(120)),
            join_timeout: of_init.unwrap_or(Duration::from_secs(1800)),
            handshake_timeout: self
                .seconds("HAWSER_HANDSHAKE_TIMEOUT", MOST_SECONDS)
                .unwrap_or(Duration::from_secs(5)),
            op_timeout: self.seconds("HAWSER_OP_TIMEOUT", MOST_SECONDS).filter(|limit| !limit.is_zero()),
            net: self.text("NCCL_NET"),
            net_plugin: self.text("NCCL_NET_PLUGIN"),
            tuner_plugin: self.text("NCCL_TUNER_PLUGIN"),
            profiler_plugin: self.text("NCCL_PROFILER_PLUGIN"),
            plugin_probe: self.text("HAWSER_PLUGIN_PROBE").filter(|v| v != "0"),
            collnet: self.flag("NCCL_COLLNET_ENABLE"),
            gpu_direct: !self
                .text("NCCL_NET_GDR_LEVEL")
                .is_some_and(|v| v == "0" || v.eq_ignore_ascii_case("LOC")),
            pass_sm: self.level("NCCL_PASS_SM"),
            no_ctas: self.no_ctas(),
            staging_bytes: self.size("NCCL_PSM_BUFFER_SIZE").unwrap_or(0),
            reducing_ctas: self.reducing_ctas(),
            memory_adds: self.choice("HAWSER_SM_FREE_ADD").unwrap_or(false),
            pool: self.pool(),
            sm_free_verbose: self.sm_free_verbose(),
            dma_enable: self.choice("NCCL_DMA_ENABLE").unwrap_or(true),
            zero_copy: self.choice("NCCL_ZERO_COPY"),
            direct_path: self.choice("NCCL_DIRECT_PATH"),
            links: self.text("HAWSER_LINKS"),
            msccl_files: self.text("MSCCL_XML_FILES"),
            msccl_folder: self.text("MSCCL_ALGO_DIR"),
            cache: cache_folder(),
            direct: !self.flag("NCCL_P2P_DIRECT_DISABLE"),
            mixes_graphs: self.parsed::<i64>("NCCL_GRAPH_MIXING_SUPPORT", "0 or 1").map(|v| v != 0),
            fuse: self.choice("HAWSER_FUSE").unwrap_or(true),
            explain: match self.word("HAWSER_EXPLAIN", &["0", "1", "all"]).as_deref() {
                Some("1") => Explain::First,
                Some("all") => Explain::All,
                _ => Explain::No,
            },
            rules_watch: self.watched(),
            rules_timeout: self
                .seconds("HAWSER_RULES_TIMEOUT", 86_400)
                .filter(|limit| !limit.is_zero())
                .unwrap_or(Duration::from_secs(10)),
            runtime_folder: match self.text("HAWSER_RUNTIME_DIR") {
                Some(folder) if folder == "none" => None,
                Some(folder) => Some(folder.into()),
                None => Some(runtime_folder()),
            },
            job: self.text("HAWSER_JOB").or_else(|| std::env::var("SLURM_JOB_ID").ok()),
            debug: self.text("NCCL_DEBUG"),
            debug_subsys: self.text("NCCL_DEBUG_SUBSYS"),
            debug_file: self.text("NCCL_DEBUG_FILE"),
            // Last: what the lines above have found.
            faults: self.faults(),
        }
    }

    /// The files of `HAWSER_RULES_WATCH`, and that of `NCCL_TUNER_CONFIG_FILE` if that is meant for the tuner by rules.
    fn watched(&self) -> Vec<PathBuf> {
        let Some(text) = self.text("HAWSER_RULES_WATCH").filter(|text| text != "0") else {
            return Vec::new();
        };
        let named =
            if text == "1" { self.text("HAWSER_RULES").filter(|text| text != "none") } else { Some(text) };
        let Some(files) = named else {
            self.complain("HAWSER_RULES_WATCH=1 is ignored: HAWSER_RULES names no file to watch".to_owned());
            return Vec::new();
        };
        let files = files.split(',').map(str::trim).filter(|file| !file.is_empty()).map(PathBuf::from);
        // Counts as well, and would not after a change of the others.
        let is_ours = self.text("NCCL_TUNER_PLUGIN").is_none_or(|name| name == "none");
        let csv = self.text("NCCL_TUNER_CONFIG_FILE").filter(|_| is_ours).map(PathBuf::from);
        files.chain(csv.filter(|path| path.is_file())).collect()
    }
}

/// Where sockets lie if nobody says it: a folder of this user alone, where no variable of the environment makes a difference
/// between a job and the shell in which somebody asks for it.
fn runtime_folder() -> PathBuf {
    format!("/dev/shm/hawser-{}", rustix::process::geteuid().as_raw()).into()
}

/// Only an absolute `XDG_CACHE_HOME` counts, as its specification demands.
fn cache_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
}

/// Hardware queues of a context on a GPU, as the driver reads it from the environment: 1 to 32.
pub fn gpu_queues() -> u32 {
    let asked = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().and_then(|text| text.trim().parse().ok());
    asked.map_or(QUEUES, |queues: u32| queues.clamp(1, 32))
}

#[cfg(test)]
mod tests {
    use super::source::tests::source;
    use super::*;

    #[test]
    fn values_parse_strictly_and_bad_ones_are_reported() {
        let numbers = [("NCCL_P2P_DISABLE", "true"), ("NCCL_MAX_CTAS", "8")];
        let s = source(&[numbers[0], numbers[1], ("HAWSER_DEVICE", "HOST")]);
        let settings = s.settings();
        assert!(!settings.p2p_disable);
        assert_eq!(settings.max_ctas, Some(8));
        assert_eq!(settings.device, "host");
        assert!(s.complaints().iter().any(|text| text.contains("NCCL_P2P_DISABLE=true")));
    }

    #[test]
    fn deadlines_are_numbers_that_clocks_can_count() {
        let s = source(&[
            ("HAWSER_INIT_TIMEOUT", "1e300"),
            ("HAWSER_HANDSHAKE_TIMEOUT", "-1"),
            ("HAWSER_OP_TIMEOUT", "1.5"),
            ("HAWSER_RULES_TIMEOUT", "NaN"),
        ]);
        let settings = s.settings();
        assert_eq!((settings.init_timeout.as_secs(), settings.handshake_timeout.as_secs()), (120, 5));
        assert_eq!(settings.op_timeout, Some(Duration::from_millis(1500)));
        assert_eq!(settings.rules_timeout.as_secs(), 10);
        let complaints = s.complaints();
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        assert!(
            complaints
                .iter()
                .any(|text| text.contains("HAWSER_RULES_TIMEOUT=NaN") && text.contains("to 86400"))
        );
        assert_eq!(source(&[("HAWSER_OP_TIMEOUT", "0")]).settings().op_timeout, None);
    }

    #[test]
    fn typing_errors_get_the_nearest_name() {
        let complaints = source(&[("NCCL_ALGOS", "Ring"), ("NCCL_UNRELATED_SETTING", "1")]).complaints();
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].contains("NCCL_ALGO?"));
    }

    #[test]
    fn every_value_that_must_mean_something_is_a_fault_if_it_does_not() {
        for name in ["HAWSER_FUSE", "HAWSER_SM_FREE_ADD", "NCCL_DMA_ENABLE", "NCCL_CUMEM_POOL_SIZE"] {
            let settings = source(&[(name, "maybe")]).settings();
            assert!(
                settings.check().is_err_and(|e| e.to_string().contains(name)),
                "{name}: {:?}",
                settings.faults
            );
        }
    }
}

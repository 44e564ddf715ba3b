//! The settings, and the one place that reads them from the environment.

use std::net::IpAddr;
use std::time::Duration;

use hawser_plugin::setting;

use crate::verbs::gid::{Wish, parse_range};

/// The settings of the plugin. [`Settings::from_environment`] is what the library uses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// `NCCL_IB_DISABLE`.
    pub disable: bool,
    /// `NCCL_IB_HCA`.
    pub hca: Option<String>,
    /// `NCCL_IB_GID_INDEX`.
    pub gid_index: Option<u32>,
    /// `NCCL_IB_ROCE_VERSION_NUM`.
    pub roce_version: u8,
    /// `NCCL_IB_ADDR_FAMILY=AF_INET6`.
    pub ipv6: bool,
    /// `NCCL_IB_ADDR_RANGE`.
    pub range: Option<(IpAddr, u8)>,
    /// `NCCL_IB_TIMEOUT`: acknowledgements are waited for 4.096 µs times two to the power of this.
    pub timeout: u8,
    /// `NCCL_IB_RETRY_CNT`.
    pub retries: u8,
    /// `NCCL_IB_PKEY`: an index.
    pub pkey: u16,
    /// `NCCL_IB_SL`.
    pub service_level: u8,
    /// `NCCL_IB_TC`; None = what the communicator wants, else 0.
    pub traffic_class: Option<u8>,
    /// `NCCL_IB_QPS_PER_CONNECTION`: rails per pair of ports.
    pub qps: u8,
    /// `NCCL_IB_AR_THRESHOLD`: chunks from this size on are sent apart from their immediate, with adaptive
    /// routing.
    pub ar_threshold: u64,
    /// `NCCL_IB_ADAPTIVE_ROUTING`; None = on for InfiniBand, off for RoCE.
    pub adaptive_routing: Option<bool>,
    /// `NCCL_IB_PCI_RELAXED_ORDERING`: 1 or 2 = where the library can.
    pub relaxed_ordering: bool,
    /// `NCCL_IB_USE_INLINE`: control messages are sent inline where they fit.
    pub inline: bool,
    /// `NCCL_ENABLE_FAULT_TOLERANCE`, `NCCL_IB_RESILIENCY_PORT_FAILOVER`: go on when a rail fails.
    pub failover: bool,
    /// `HAWSER_IB_DEADLINE`: how long a connection may be without any rail; zero = for ever.
    pub deadline: Duration,
    /// `HAWSER_IB_SILENCE`: a rail on which nothing completes for this long is stopped.
    pub silence: Duration,
    /// `HAWSER_IB_FLAPS`: a rail that fails more often than this within a minute waits longer.
    pub flaps: u32,
    /// `NCCL_IB_RESILIENCY_PORT_RECOVERY`: a rail that failed may come back.
    pub recovery: bool,
    /// `HAWSER_IB_SPARES`: devices beside the wanted ones that stand by.
    pub spares: usize,
    /// `HAWSER_IB_RAILS`: which ports are paired.
    pub pairing: Pairing,
    /// `HAWSER_IB_CHUNK`: largest chunk in bytes.
    pub chunk: u64,
    /// `HAWSER_IB_GPU`: offer GPU memory. Off by default: it never ran on a real HCA.
    pub gpu: bool,
    /// `NCCL_SOCKET_IFNAME`: interfaces of the handshake.
    pub ifname: Option<String>,
}

/// The rule by which ports of the two ends are paired into rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// The first with the first, the second with the second.
    Same,
    /// Each with the next one of the peer.
    Cross,
    /// Each with each.
    All,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            disable: false,
            hca: None,
            gid_index: None,
            roce_version: 2,
            ipv6: false,
            range: None,
            timeout: 16,
            retries: 6,
            pkey: 0,
            service_level: 0,
            traffic_class: None,
            qps: 1,
            ar_threshold: 8192,
            adaptive_routing: None,
            relaxed_ordering: true,
            inline: true,
            failover: true,
            deadline: Duration::from_secs(10),
            silence: Duration::from_secs(1),
            flaps: 5,
            recovery: true,
            spares: 1,
            pairing: Pairing::Same,
            chunk: 1 << 20,
            gpu: false,
            ifname: None,
        }
    }
}

/// `NCCL_IBVERBS_LIB`: the library to open.
pub(crate) fn library() -> String {
    text("NCCL_IBVERBS_LIB").unwrap_or_else(|| "libibverbs.so.1".into())
}

/// `NCCL_IB_DEVICE_PCI_ORDER`: devices in the order of their PCI addresses, else as the library lists them.
pub(crate) fn is_pci_order() -> bool {
    text("NCCL_IB_DEVICE_PCI_ORDER").is_none_or(|text| text.trim() != "0")
}

fn text(name: &str) -> Option<String> {
    setting(name)?.into_string().ok()
}

/// Names that NCCL knows and this plugin has no use for, with the reason that the user is told.
const REFUSED: &[(&str, &str)] = &[
    ("NCCL_IB_SPLIT_DATA_ON_QPS", "chunks always go to the rail that is idle first"),
    ("NCCL_IB_MERGE_NICS", "devices are joined per connection, not fused"),
    ("NCCL_IB_MERGE_VFS", "devices are joined per connection, not fused"),
    ("NCCL_IB_ECE_ENABLE", "enhanced connection establishment is not offered"),
    ("NCCL_IB_DATA_DIRECT", "Data Direct devices are not offered"),
    ("NCCL_IB_OOO_RQ", "out-of-order receive queues are not offered"),
    ("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "routable FLIDs are not offered"),
    ("NCCL_IB_FIFO_TC", "control messages share the queue pairs of the data, and their class"),
    ("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "receive requests are always posted beforehand"),
    ("NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", "receives are always matched by number"),
    ("NCCL_IB_SUBNET_AWARE_ROUTING", "HAWSER_IB_RAILS says which ports are paired"),
    ("NCCL_IB_RETURN_ASYNC_EVENTS", "events stop a rail, they do not fail operations"),
    (
        "NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS",
        "failures are not counted, HAWSER_IB_DEADLINE bounds them",
    ),
    ("NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY", "there is no delay before failover"),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX", "a port may come back at any time"),
    ("NCCL_IB_MQP_RETRY_ALL", "a rail whose set-up fails is tried again with back-off"),
    ("NCCL_IB_MQP_RETRY_CNT", "a rail whose set-up fails is tried again with back-off"),
    ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "a rail whose set-up fails is tried again with back-off"),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY", OWN_RECOVERY),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE", OWN_RECOVERY),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL", OWN_RECOVERY),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE", OWN_RECOVERY),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT", OWN_RECOVERY),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT", OWN_RECOVERY),
    ("NCCL_IB_SORT_MERGE_NICS", "devices are joined per connection, not fused"),
    ("NCCL_IB_SUBNET_PREFIX_LEN", "HAWSER_IB_RAILS says which ports are paired"),
    ("NCCL_IB_RAIL_POLICY", "HAWSER_IB_RAILS says which ports are paired"),
    ("NCCL_IB_WARN_RAIL_LOCAL", "the log says which ports are paired"),
    ("NCCL_IB_QUERY_PORT_SPEED", "speeds are read from sysfs"),
    ("NCCL_IB_PKEY_VALUE", "NCCL_IB_PKEY takes an index"),
    ("NCCL_IB_EVENT_BASED_LB", "chunks always go to the rail that is idle first"),
    ("NCCL_IB_EVENT_BASED_LB_REMOTE", "chunks always go to the rail that is idle first"),
    ("NCCL_IB_WQE_LATENCY_REPORT", "latencies are counted always: see the last log lines of a connection"),
    (
        "NCCL_IB_WQE_LATENCY_THRESHOLD_NS",
        "latencies are counted always: see the last log lines of a connection",
    ),
    ("NCCL_IB_CUDA_SUPPORT", "HAWSER_IB_GPU offers GPU memory"),
    ("NCCL_IB_GDR_LEVEL", "HAWSER_IB_GPU offers GPU memory, NCCL_NET_GDR_LEVEL says whether it is used"),
    ("NCCL_IB_RETRY_COUNT", "the name is NCCL_IB_RETRY_CNT"),
];

/// Names that are not settings of one opening.
const OF_THE_PROCESS: &[&str] = &["NCCL_IBVERBS_LIB", "NCCL_IB_DEVICE_PCI_ORDER"];

const OWN_RECOVERY: &str = "rails come back by probes of their own, with back-off";

/// The answer to the question what this plugin does with a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regard {
    /// It has an effect.
    Honoured,
    /// It has none, for this reason.
    Refused(&'static str),
    /// It is none of this plugin's.
    Foreign,
}

/// Says what this plugin does with a variable of this name.
pub fn regard(name: &str) -> Regard {
    if let Some((_, why)) = REFUSED.iter().find(|refused| refused.0 == name) {
        return Regard::Refused(why);
    }
    let is_read = std::cell::Cell::new(OF_THE_PROCESS.contains(&name));
    Settings::read(|asked| {
        is_read.set(is_read.get() || asked == name);
        None
    });
    if is_read.get() { Regard::Honoured } else { Regard::Foreign }
}

impl Settings {
    /// The settings of the environment, and a sentence about each value that makes no sense or is of no use
    /// here.
    pub fn from_environment() -> (Self, Vec<String>) {
        Self::read(text)
    }

    pub(crate) fn wish(&self) -> Wish {
        Wish { index: self.gid_index, version: self.roce_version, ipv6: self.ipv6, range: self.range }
    }

    fn read(value: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut own = Self::default();
        let mut from = Reader { value: &value, complaints: Vec::new() };
        own.disable = from.flag("NCCL_IB_DISABLE", false);
        own.hca = value("NCCL_IB_HCA").filter(|text| !text.trim().is_empty());
        own.gid_index = from.number("NCCL_IB_GID_INDEX", 0, 255).map(|n| n as u32);
        own.roce_version = from.number("NCCL_IB_ROCE_VERSION_NUM", 1, 2).map_or(2, |n| n as u8);
        own.timeout = from.number("NCCL_IB_TIMEOUT", 1, 31).map_or(own.timeout, |n| n as u8);
        own.retries = from.number("NCCL_IB_RETRY_CNT", 0, 7).map_or(own.retries, |n| n as u8);
        own.pkey = from.number("NCCL_IB_PKEY", 0, 65_535).map_or(0, |n| n as u16);
        own.service_level = from.number("NCCL_IB_SL", 0, 15).map_or(0, |n| n as u8);
        own.traffic_class = from.number("NCCL_IB_TC", 0, 255).map(|n| n as u8);
        own.qps = from.number("NCCL_IB_QPS_PER_CONNECTION", 1, 16).map_or(1, |n| n as u8);
        own.ar_threshold = from.number("NCCL_IB_AR_THRESHOLD", 0, 1 << 40).unwrap_or(own.ar_threshold);
        own.adaptive_routing = from.number("NCCL_IB_ADAPTIVE_ROUTING", 0, 1).map(|n| n == 1);
        own.relaxed_ordering = from.number("NCCL_IB_PCI_RELAXED_ORDERING", 0, 2) != Some(0);
        own.inline = from.flag("NCCL_IB_USE_INLINE", true);
        own.failover = from.flag("NCCL_ENABLE_FAULT_TOLERANCE", true);
        own.failover = from.flag("NCCL_IB_RESILIENCY_PORT_FAILOVER", own.failover);
        let seconds = from.number("HAWSER_IB_DEADLINE", 0, 86_400);
        own.deadline = seconds.map_or(own.deadline, Duration::from_secs);
        let silence = from.number("HAWSER_IB_SILENCE", 50, 600_000);
        own.silence = silence.map_or(own.silence, Duration::from_millis);
        own.flaps = from.number("HAWSER_IB_FLAPS", 0, 1 << 30).map_or(own.flaps, |n| n as u32);
        own.recovery = from.flag("NCCL_IB_RESILIENCY_PORT_RECOVERY", true);
        own.spares = from.number("HAWSER_IB_SPARES", 0, 8).map_or(own.spares, |n| n as usize);
        own.chunk = from.number("HAWSER_IB_CHUNK", 4096, 1 << 30).unwrap_or(own.chunk);
        own.gpu = from.flag("HAWSER_IB_GPU", false);
        own.ifname = value("NCCL_SOCKET_IFNAME").filter(|text| !text.trim().is_empty());
        let mut complaints = from.complaints;
        let mut word = |name: &str, known: &[&str]| -> Option<usize> {
            let text = value(name).filter(|text| !text.is_empty())?;
            let found = known.iter().position(|one| text.eq_ignore_ascii_case(one));
            if found.is_none() {
                complaints.push(format!("{name}={text} is ignored: it is one of {}", known.join(", ")));
            }
            found
        };
        own.ipv6 = word("NCCL_IB_ADDR_FAMILY", &["AF_INET", "AF_INET6"]) == Some(1);
        own.pairing = match word("HAWSER_IB_RAILS", &["same", "cross", "all"]) {
            Some(1) => Pairing::Cross,
            Some(2) => Pairing::All,
            _ => Pairing::Same,
        };
        if let Some(text) = value("NCCL_IB_ADDR_RANGE").filter(|text| !text.is_empty()) {
            own.range = parse_range(&text);
            if own.range.is_none() {
                complaints.push(format!("NCCL_IB_ADDR_RANGE={text} is ignored: it is address/length"));
            }
        }
        for (name, why) in REFUSED {
            if value(name).is_some_and(|text| !text.is_empty()) {
                complaints.push(format!("{name} has no effect: {why}"));
            }
        }
        (own, complaints)
    }
}

struct Reader<'a> {
    value: &'a dyn Fn(&str) -> Option<String>,
    complaints: Vec<String>,
}

impl Reader<'_> {
    /// None: not set, or NCCL's -1 and -2 for "choose yourself", or nonsense.
    fn number(&mut self, name: &str, least: u64, most: u64) -> Option<u64> {
        let text = (self.value)(name)?;
        let text = text.trim();
        match integer(text) {
            Ok(-2 | -1) => None,
            Ok(number) if u64::try_from(number).is_ok_and(|n| (least..=most).contains(&n)) => {
                Some(number as u64)
            }
            Ok(_) => self.complain(format!("{name}={text} is ignored: it is from {least} to {most}")),
            Err(_) if text.is_empty() => None,
            Err(_) => self.complain(format!("{name}={text} is ignored: it is not a number")),
        }
    }

    fn flag(&mut self, name: &str, default: bool) -> bool {
        self.number(name, 0, 1).map_or(default, |n| n == 1)
    }

    fn complain(&mut self, text: String) -> Option<u64> {
        self.complaints.push(text);
        None
    }
}

/// As strtoll(3) with base 0 reads it, which NCCL uses: `0x` for sixteen, a leading 0 for eight.
fn integer(text: &str) -> Result<i64, std::num::ParseIntError> {
    let lower = text.to_ascii_lowercase();
    match (lower.strip_prefix("0x"), lower.strip_prefix('0')) {
        (Some(digits), _) => i64::from_str_radix(digits, 16),
        (_, Some(digits)) if !digits.is_empty() => i64::from_str_radix(digits, 8),
        _ => lower.parse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Settings, Vec<String>) {
        Settings::read(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_string()))
    }

    #[test]
    fn the_environment_overrides_the_defaults() {
        assert_eq!(read(&[]), (Settings::default(), vec![]));
        let (settings, complaints) = read(&[
            ("NCCL_IB_HCA", "=mlx5_0:1"),
            ("NCCL_IB_TIMEOUT", "0x12"),
            ("NCCL_IB_TC", "0152"),
            ("NCCL_IB_ADDR_FAMILY", "AF_INET6"),
            ("NCCL_IB_ADDR_RANGE", "fd00::/8"),
            ("HAWSER_IB_DEADLINE", "0"),
            ("HAWSER_IB_RAILS", "all"),
            ("NCCL_IB_GID_INDEX", "-1"),
        ]);
        assert_eq!(complaints, Vec::<String>::new());
        assert_eq!((settings.timeout, settings.traffic_class, settings.ipv6), (18, Some(106), true));
        assert_eq!((settings.deadline, settings.pairing), (Duration::ZERO, Pairing::All));
        assert_eq!((settings.gid_index, settings.range.is_some()), (None, true));
    }

    #[test]
    fn the_resiliency_name_wins_over_fault_tolerance() {
        let on = |pairs: &[(&str, &str)]| read(pairs).0.failover;
        assert!(on(&[]) && !on(&[("NCCL_ENABLE_FAULT_TOLERANCE", "0")]));
        assert!(on(&[("NCCL_ENABLE_FAULT_TOLERANCE", "0"), ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "1")]));
    }

    #[test]
    fn names_are_honoured_refused_or_foreign() {
        for name in
            ["NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "HAWSER_IB_RAILS", "NCCL_IBVERBS_LIB", "NCCL_SOCKET_IFNAME"]
        {
            assert_eq!(regard(name), Regard::Honoured, "{name}");
        }
        assert!(matches!(regard("NCCL_IB_ECE_ENABLE"), Regard::Refused(why) if !why.is_empty()));
        assert_eq!(regard("NCCL_ALGO"), Regard::Foreign);
    }

    #[test]
    fn nonsense_and_what_is_not_offered_is_told() {
        for (name, text) in [
            ("NCCL_IB_TIMEOUT", "32"),
            ("NCCL_IB_GID_INDEX", "256"),
            ("NCCL_IB_TC", "09"),
            ("NCCL_IB_RETRY_CNT", "seven"),
            ("HAWSER_IB_RAILS", "some"),
            ("NCCL_IB_ADDR_RANGE", "10"),
            ("NCCL_IB_ECE_ENABLE", "1"),
        ] {
            let (settings, complaints) = read(&[(name, text)]);
            assert_eq!(settings, Settings::default(), "{name}");
            assert!(complaints.len() == 1 && complaints[0].contains(name), "{complaints:?}");
        }
    }
}

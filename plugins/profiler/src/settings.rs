//! The settings of the plugin. A plugin cannot ask the host for them, so it reads the environment itself,
//! here only.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hawser_plugin::profiler::EventMask;
use hawser_plugin::{Error, ErrorKind, Result, setting};

/// Names the trace.
const FILE: &str = "HAWSER_PROFILER_FILE";
/// The variable for the kinds of events; its name is that of NVIDIA's example.
const MASK: &str = "NCCL_PROFILE_EVENT_MASK";

/// The most bytes of a trace.
const MOST: &str = "HAWSER_PROFILER_MAX_SIZE";
const DEFAULT_MOST: u64 = 1 << 30;

/// The file with figures for Prometheus.
const METRICS_FILE: &str = "HAWSER_METRICS_FILE";
/// Seconds between two writings of it.
const METRICS_INTERVAL: &str = "HAWSER_METRICS_INTERVAL";
const DEFAULT_INTERVAL: Duration = Duration::from_secs(15);
/// The address at which Prometheus may ask.
const METRICS_LISTEN: &str = "HAWSER_METRICS_LISTEN";

/// The addresses of a collector of OpenTelemetry: for metrics, or the one that their path is added to.
const OTLP: [(&str, &str); 2] =
    [("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_ENDPOINT", "/v1/metrics")];

const DEFAULT_FILE: &str = "hawser-trace-%h-%p.json";
/// Collectives, messages, proxy operations and kernel channels, without the calls around them.
const DEFAULT_MASK: u64 = EventMask::COLL.0
    | EventMask::P2P.0
    | EventMask::PROXY_OP.0
    | EventMask::KERNEL_CH.0
    | EventMask::ALONE.0;
/// The same with groups, the user's calls and launches, as an example for those who want more.
const LARGE_MASK: u64 = 3919;
const ALL: u64 = (EventMask::KERNEL_PHASE.0 << 1) - 1;

/// The settings: what is traced, and into which file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Kinds of events that are wanted.
    pub mask: EventMask,
    /// The trace: `%h` is the host, `%p` the process, `%r` the rank, `%%` a percent sign. None: events are
    /// counted only.
    pub file: Option<String>,
    /// The most bytes of a file and of the one put aside, together; None: no limit.
    pub most_bytes: Option<u64>,
    /// The file with figures for Prometheus, with the same letters behind percent signs; None: none.
    pub metrics_file: Option<String>,
    /// Time between two writings of it.
    pub metrics_interval: Duration,
    /// The address at which Prometheus may ask for the figures; None: none.
    pub metrics_listen: Option<Listen>,
    /// The address of a collector of OpenTelemetry, `http://127.0.0.1:4318/v1/metrics`; None: none.
    pub metrics_otlp: Option<String>,
}

/// An address for clients of this host only.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listen {
    /// The first free port of loopback from that of `address` to `last_port`.
    Tcp {
        /// An address of loopback, and the first port.
        address: SocketAddr,
        /// The last port.
        last_port: u16,
    },
    /// A socket of the file system, for this user only.
    Unix(PathBuf),
}

impl Listen {
    /// Reads `127.0.0.1:9400`, `[::1]:9400-9463` or `unix:PATH`.
    fn parse(text: &str) -> std::result::Result<Self, &'static str> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("no path stands behind unix:"),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let form = "write 127.0.0.1:9400, 127.0.0.1:9400-9463 or unix:PATH";
        let (host, ports) = text.rsplit_once(':').ok_or(form)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let ip = match bare {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            bare => bare.parse().map_err(|_| form)?,
        };
        if !ip.is_loopback() {
            return Err(
                "only loopback is listened at; let an agent or proxy of this host pass the figures on",
            );
        }
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let port = |text: &str| text.parse::<u16>().map_err(|_| form);
        let (first, last_port) = (port(first)?, port(last)?);
        match last_port < first {
            true => Err("the last port lies before the first"),
            false => Ok(Self::Tcp { address: SocketAddr::new(ip, first), last_port }),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { address, last_port } if *last_port > address.port() => {
                write!(f, "{address}-{last_port}")
            }
            Self::Tcp { address, .. } => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mask: EventMask(DEFAULT_MASK),
            file: Some(DEFAULT_FILE.to_owned()),
            most_bytes: Some(DEFAULT_MOST),
            metrics_file: None,
            metrics_interval: DEFAULT_INTERVAL,
            metrics_listen: None,
            metrics_otlp: None,
        }
    }
}

impl Settings {
    /// From `HAWSER_PROFILER_FILE` (`none`: no trace), `HAWSER_PROFILER_MAX_SIZE`, `NCCL_PROFILE_EVENT_MASK`,
    /// `HAWSER_METRICS_FILE`, `HAWSER_METRICS_INTERVAL` and `HAWSER_METRICS_LISTEN`.
    ///
    /// # Errors
    /// A value that cannot be understood.
    pub fn from_env() -> Result<Self> {
        Self::parse(&|name: &str| {
            setting(name)
                .map(|value| value.into_string().map_err(|_| wrong(name, "it is not UTF-8")))
                .transpose()
        })
    }

    fn parse(value: &dyn Fn(&str) -> Result<Option<String>>) -> Result<Self> {
        let (file, mask, most) = (value(FILE)?, value(MASK)?, value(MOST)?);
        let mut settings = Self::default();
        match file {
            Some(file) if file.eq_ignore_ascii_case("none") => settings.file = None,
            Some(file) => settings.file = Some(file),
            None => {}
        }
        if let Some(text) = mask {
            let text = text.trim();
            let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
            let number = hex.map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
            let number = number.map_err(|_| {
                wrong(MASK, &format!("{text:?} is no number; write a sum of bits such as {LARGE_MASK}"))
            })?;
            settings.mask = EventMask(number & ALL);
        }
        if let Some(text) = most {
            let bytes = bytes(&text).ok_or_else(|| {
                wrong(MOST, &format!("{text:?} is no size; write 0 for no limit, or 512M, 1G, 2GiB"))
            })?;
            settings.most_bytes = Some(bytes).filter(|bytes| *bytes > 0);
        }
        settings.metrics_file =
            value(METRICS_FILE)?.filter(|file| !file.is_empty() && !file.eq_ignore_ascii_case("none"));
        if let Some(text) = value(METRICS_INTERVAL)? {
            let seconds =
                text.trim().parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
            let what = || format!("{text:?} is no time; write seconds from 0.1 to 86400");
            settings.metrics_interval =
                Duration::from_secs_f64(seconds.ok_or_else(|| wrong(METRICS_INTERVAL, &what()))?);
        }
        if let Some(text) = value(METRICS_LISTEN)?.filter(|text| !text.eq_ignore_ascii_case("none")) {
            let listen = Listen::parse(text.trim());
            let what = |why| format!("{text:?}: {why}");
            settings.metrics_listen = Some(listen.map_err(|why| wrong(METRICS_LISTEN, &what(why)))?);
        }
        // They are the program's own settings too: only a build that can export heeds them.
        for (name, path) in OTLP {
            if cfg!(feature = "otel") && settings.metrics_otlp.is_none() {
                let address = value(name)?.filter(|address| !address.trim().is_empty());
                settings.metrics_otlp =
                    address.map(|address| format!("{}{path}", address.trim_end_matches('/')));
            }
        }
        Ok(settings)
    }

    /// The file for a rank.
    pub(crate) fn file_of(&self, rank: u32) -> Option<PathBuf> {
        self.file.as_ref().map(|file| filled(file, rank).into())
    }

    /// The file with figures of a process whose first rank is this one.
    pub(crate) fn metrics_file_of(&self, rank: u32) -> Option<PathBuf> {
        self.metrics_file.as_ref().map(|file| filled(file, rank).into())
    }

    /// The address at which such a process is asked.
    pub(crate) fn metrics_listen_of(&self, rank: u32) -> Option<Listen> {
        match self.metrics_listen.clone()? {
            Listen::Unix(path) => Some(Listen::Unix(filled(&path.to_string_lossy(), rank).into())),
            tcp @ Listen::Tcp { .. } => Some(tcp),
        }
    }

    /// True if figures go anywhere.
    pub(crate) fn has_metrics(&self) -> bool {
        self.metrics_file.is_some() || self.metrics_listen.is_some() || self.metrics_otlp.is_some()
    }
}

/// A path whose letters behind percent signs are filled in.
fn filled(pattern: &str, rank: u32) -> String {
    let mut parts = pattern.chars();
    let mut path = String::new();
    while let Some(part) = parts.next() {
        match (part, parts.clone().next()) {
            ('%', Some('h')) => path += &host(),
            ('%', Some('p')) => path += &std::process::id().to_string(),
            ('%', Some('r')) => path += &rank.to_string(),
            ('%', Some('%')) => path.push('%'),
            _ => {
                path.push(part);
                continue;
            }
        }
        parts.next();
    }
    path
}

/// Bytes: a number, perhaps with K, M, G or T (binary), perhaps followed by B or iB.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let text = text.strip_suffix("ib").or(text.strip_suffix('b')).unwrap_or(&text);
    let shift = match text.chars().last()? {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        _ => 0,
    };
    let number = if shift > 0 { &text[..text.len() - 1] } else { text };
    number.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The host's name; a file name can hold it.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().replace('/', "-")
}

fn wrong(name: &str, what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("profiler: {name} cannot be used: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed<const N: usize>(values: [(&str, Option<String>); N]) -> Result<Settings> {
        Settings::parse(&|name| {
            let found = values.iter().find(|(known, _)| *known == name);
            Ok(found.and_then(|(_, value)| value.clone()))
        })
    }

    #[test]
    fn figures_go_to_a_file_and_to_clients_of_this_host() {
        let with = |name, text: &str| parsed([(name, Some(text.to_owned()))]);
        let file = with(METRICS_FILE, "a-%r.prom").unwrap();
        assert_eq!((file.metrics_file_of(3), file.has_metrics()), (Some("a-3.prom".into()), true));
        assert!(!with(METRICS_FILE, "none").unwrap().has_metrics());
        assert_eq!(with(METRICS_INTERVAL, "0.5").unwrap().metrics_interval, Duration::from_millis(500));
        for (text, wanted) in [
            ("127.0.0.1:9400", "127.0.0.1:9400"),
            ("localhost:1-2", "127.0.0.1:1-2"),
            ("[::1]:9400", "[::1]:9400"),
            ("unix:/run/%r", "unix:/run/7"),
        ] {
            let listen = with(METRICS_LISTEN, text).unwrap().metrics_listen_of(7).unwrap();
            assert_eq!(listen.to_string(), wanted);
        }
        for (name, text, part) in [
            (METRICS_INTERVAL, "0", "seconds from 0.1"),
            (METRICS_INTERVAL, "NaN", "seconds from 0.1"),
            (METRICS_LISTEN, "0.0.0.0:9400", "only loopback"),
            (METRICS_LISTEN, "9400", "write 127.0.0.1:9400"),
            (METRICS_LISTEN, "127.0.0.1:2-1", "before the first"),
            (METRICS_LISTEN, "unix:", "no path"),
        ] {
            let error = with(name, text).unwrap_err();
            assert!(error.text.contains(name) && error.text.contains(part), "{error}");
        }
    }

    #[test]
    fn values_are_understood_or_refused_by_name() {
        let some = |text: &str| Some(text.to_owned());
        let parse =
            |file: Option<String>, mask: Option<String>| parsed([(FILE, file), (MASK, mask)]).unwrap();
        let with = |mask, file| Settings { mask: EventMask(mask), file, ..Settings::default() };
        assert_eq!(parse(None, None), Settings::default());
        assert_eq!(parse(some("none"), some(" 74 ")), with(74, None));
        assert_eq!(parse(some("x%r"), some("0x4F")), with(0x4f, some("x%r")));
        assert_eq!(parse(None, some("0xffffffffffff")).mask.0, 0xffff);
        assert_eq!(Settings::default().mask.0 & ALL, 78);
        for bad in ["coll", "-1", "0x", "1.5", "0xg", "99999999999999999999"] {
            let error = parsed([(MASK, some(bad))]).unwrap_err();
            assert!(error.text.contains(MASK) && error.text.contains(bad), "{error}");
        }
        let most = |text: &str| parsed([(MOST, some(text))]).map(|settings| settings.most_bytes);
        assert_eq!(most("0").unwrap(), None);
        for (text, bytes) in [("4096", 4096), ("512M", 512 << 20), ("2 GiB", 2 << 30), ("1kb", 1024)] {
            assert_eq!(most(text).unwrap(), Some(bytes), "{text}");
        }
        for bad in ["", "many", "-1", "1.5G", "99999999T"] {
            let error = most(bad).unwrap_err();
            assert!(error.text.contains(MOST) && error.text.contains("write 0 for no limit"), "{error}");
        }
    }

    #[test]
    fn a_name_may_hold_host_process_and_rank() {
        let of = |file: &str| {
            let settings = Settings { file: Some(file.to_owned()), ..Settings::default() };
            settings.file_of(7).unwrap().into_os_string().into_string().unwrap()
        };
        assert_eq!(of("plain"), "plain");
        assert_eq!(of("%r-%%r-%x-%"), "7-%r-%x-%");
        let (host, process) = (host(), std::process::id());
        assert_eq!(of("a/%h.%p%p"), format!("a/{host}.{process}{process}"));
        assert!(!host.is_empty() && !host.contains('/'));
    }
}

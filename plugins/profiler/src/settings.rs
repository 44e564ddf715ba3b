//! The settings of the plugin. A plugin cannot ask the host for them, so it reads the environment itself,
//! here only.

use std::path::PathBuf;

use hawser_plugin::profiler::EventMask;
use hawser_plugin::{Error, ErrorKind, Result, setting};

/// Names the trace.
const FILE: &str = "HAWSER_PROFILER_FILE";
/// The variable for the kinds of events; its name is that of NVIDIA's example.
const MASK: &str = "NCCL_PROFILE_EVENT_MASK";

/// The most bytes of a trace.
const MOST: &str = "HAWSER_PROFILER_MAX_SIZE";
const DEFAULT_MOST: u64 = 1 << 30;

const DEFAULT_FILE: &str = "hawser-trace-%h-%p.json";
/// Groups, collectives, messages, proxy operations, kernel channels, the user's calls and launches.
const DEFAULT_MASK: u64 = EventMask::GROUP.0
    | EventMask::COLL.0
    | EventMask::P2P.0
    | EventMask::PROXY_OP.0
    | EventMask::KERNEL_CH.0
    | EventMask::GROUP_API.0
    | EventMask::COLL_API.0
    | EventMask::P2P_API.0
    | EventMask::KERNEL_LAUNCH.0;
const ALL: u64 = (EventMask::CE_BATCH.0 << 1) - 1;

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
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mask: EventMask(DEFAULT_MASK),
            file: Some(DEFAULT_FILE.to_owned()),
            most_bytes: Some(DEFAULT_MOST),
        }
    }
}

impl Settings {
    /// From `HAWSER_PROFILER_FILE` (`none`: no trace), `HAWSER_PROFILER_MAX_SIZE` and
    /// `NCCL_PROFILE_EVENT_MASK`.
    ///
    /// # Errors
    /// A value that cannot be understood.
    pub fn from_env() -> Result<Self> {
        let value = |name: &str| {
            setting(name)
                .map(|value| value.into_string().map_err(|_| wrong(name, "it is not UTF-8")))
                .transpose()
        };
        Self::parse(value(FILE)?, value(MASK)?, value(MOST)?)
    }

    fn parse(file: Option<String>, mask: Option<String>, most: Option<String>) -> Result<Self> {
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
                wrong(MASK, &format!("{text:?} is no number; write a sum of bits such as {DEFAULT_MASK}"))
            })?;
            settings.mask = EventMask(number & ALL);
        }
        if let Some(text) = most {
            let bytes = bytes(&text).ok_or_else(|| {
                wrong(MOST, &format!("{text:?} is no size; write 0 for no limit, or 512M, 1G, 2GiB"))
            })?;
            settings.most_bytes = Some(bytes).filter(|bytes| *bytes > 0);
        }
        Ok(settings)
    }

    /// The file for a rank.
    pub(crate) fn file_of(&self, rank: u32) -> Option<PathBuf> {
        let mut parts = self.file.as_ref()?.chars();
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
        Some(path.into())
    }
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

    #[test]
    fn values_are_understood_or_refused_by_name() {
        let some = |text: &str| Some(text.to_owned());
        let parse = |file: Option<String>, mask: Option<String>| Settings::parse(file, mask, None).unwrap();
        let with = |mask, file| Settings { mask: EventMask(mask), file, ..Settings::default() };
        assert_eq!(parse(None, None), Settings::default());
        assert_eq!(parse(some("none"), some(" 74 ")), with(74, None));
        assert_eq!(parse(some("x%r"), some("0x4F")), with(0x4f, some("x%r")));
        assert_eq!(parse(None, some("0xffffffffffff")).mask.0, 0x7fff);
        assert_eq!(Settings::default().mask.0, 3919);
        for bad in ["coll", "-1", "0x", "1.5", "0xg", "99999999999999999999"] {
            let error = Settings::parse(None, some(bad), None).unwrap_err();
            assert!(error.text.contains(MASK) && error.text.contains(bad), "{error}");
        }
        let most = |text: &str| Settings::parse(None, None, some(text)).map(|settings| settings.most_bytes);
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

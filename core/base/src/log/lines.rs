//! The log in NCCL's form: `[time] host:pid:tid [dev] NCCL WARN text`.

use std::fmt;
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterFn, filter_fn};
use tracing_subscriber::layer::{Context, Layer};

use super::sink::{Sink, host_name};
use super::stamp::Stamp;
use super::{EXPLAIN, MONITOR, SUBSYSTEMS, VERSION, is_ours};

/// Levels of `NCCL_DEBUG`, each of which includes those before it.
pub(super) const SILENT: u8 = 0;
const VERSION_ONLY: u8 = 1;
const WARN: u8 = 2;
const INFO: u8 = 3;
const TRACE: u8 = 4;

/// The part of the log that `NCCL_DEBUG` and `NCCL_DEBUG_SUBSYS` ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verbosity {
    /// The level.
    pub level: u8,
    /// The bits of the parts of the log that are wanted.
    mask: u32,
}

impl Verbosity {
    /// Reads the values of the two settings.
    pub fn of(debug: Option<&str>, subsystems: &str) -> Self {
        let level = match debug.map(str::to_ascii_uppercase).as_deref() {
            None => SILENT,
            Some("VERSION") => VERSION_ONLY,
            Some("WARN") => WARN,
            Some("TRACE") => TRACE,
            Some(_) => INFO,
        };
        Self { level, mask: mask(subsystems) }
    }

    /// Lets those events through that are to be written.
    pub fn filter(self) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
        // Lines that a setting of their own asks for, and the version, are events of the level INFO.
        let most = if self.level >= TRACE { LevelFilter::TRACE } else { LevelFilter::INFO };
        filter_fn(move |metadata| self.wants(metadata)).with_max_level_hint(most)
    }

    fn wants(self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        if metadata.is_span() || !is_ours(target) {
            return false;
        }
        let needed = match *metadata.level() {
            Level::ERROR | Level::WARN => return self.level >= WARN,
            Level::INFO => INFO,
            Level::DEBUG | Level::TRACE => TRACE,
        };
        match target {
            EXPLAIN | MONITOR => true,
            VERSION => self.level >= VERSION_ONLY,
            _ => {
                let of_target = SUBSYSTEMS.iter().find(|(_, name, _)| *name == target);
                self.level >= needed && of_target.is_some_and(|(_, _, bit)| self.mask & bit != 0)
            }
        }
    }

    /// Returns whether the finest events are wanted, too.
    pub fn traces(self) -> bool {
        self.level >= TRACE
    }
}

/// The bit mask of a `NCCL_DEBUG_SUBSYS` list; `^` at the start inverts it.
fn mask(list: &str) -> u32 {
    let (invert, names) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
    let one = |name: &str| match SUBSYSTEMS.iter().find(|(word, ..)| word.eq_ignore_ascii_case(name.trim())) {
        Some((_, _, bit)) => *bit,
        None if name.trim().eq_ignore_ascii_case("ALL") => u32::MAX,
        None => 0,
    };
    let bits = names.split(',').map(one).fold(0, |a, b| a | b);
    if invert { !bits } else { bits }
}

/// Writes each event as a line of NCCL's.
pub(super) struct NcclLines {
    sink: Sink,
    stamp: Stamp,
}

impl NcclLines {
    /// A layer whose lines go there, with such times in front.
    pub fn new(sink: Sink, stamp: Stamp) -> Self {
        Self { sink, stamp }
    }
}

impl<S: Subscriber> Layer<S> for NcclLines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        // NCCL's number of the level tells whether the line has a time.
        let (level, word) = match (metadata.target(), *metadata.level()) {
            (EXPLAIN, _) => (3, "EXPLAIN"),
            (VERSION, _) => (1, "INFO"),
            (_, Level::ERROR | Level::WARN) => (2, "WARN"),
            (_, Level::INFO) => (3, "INFO"),
            (_, Level::DEBUG | Level::TRACE) => (5, "TRACE"),
        };
        let mut message = Message::default();
        event.record(&mut message);
        let device = super::device().map_or_else(|| "-".to_owned(), |device| device.to_string());
        let (host, process) = (host_name(), std::process::id());
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let time = self.stamp.text(level, SystemTime::now());
        self.sink.write(&format!("{time}{host}:{process}:{thread} [{device}] NCCL {word} {}\n", message.0));
    }
}

/// The text of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.0);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Subsys;
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry::Registry;

    #[test]
    fn subsystem_lists() {
        assert_eq!(mask("INIT,coll"), 3);
        assert_eq!(mask("^INIT"), !1);
        assert_eq!(mask("ALL"), u32::MAX);
        assert_eq!(mask("nonsense"), 0);
    }

    /// Returns the lines that are written of some events.
    fn written(name: &str, verbosity: Verbosity, events: impl FnOnce()) -> Vec<String> {
        let path = std::env::temp_dir().join(format!("hawser-log-{}-{name}", std::process::id()));
        let sink = Sink::open(path.to_str().unwrap()).unwrap();
        let subscriber = Registry::default()
            .with(NcclLines::new(sink, Stamp::new("[%F] ", 1 << WARN)).with_filter(verbosity.filter()));
        tracing::subscriber::with_default(subscriber, events);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn everything() {
        super::super::warn("wrong");
        super::super::info(Subsys::Net, || "net".into());
        super::super::info(Subsys::Coll, || "coll".into());
        super::super::trace(Subsys::Net, || "fine".into());
        super::super::explain("why\nand why");
        super::super::monitor("memory");
        tracing::info!(target: "other_crate", "not ours");
        let _span = tracing::info_span!(target: "hawser", "communicator", rank = 3).entered();
        tracing::info!(target: "hawser::net", peer = 7, "with a field");
    }

    #[test]
    fn lines_have_nccls_form_and_only_those_that_are_wanted_are_written() {
        let texts = |lines: Vec<String>| -> Vec<String> {
            lines.iter().map(|line| line.split(" NCCL ").nth(1).unwrap().to_owned()).collect()
        };
        let lines = written("info", Verbosity::of(Some("info"), "NET"), everything);
        let start = format!("{}:{}:", host_name(), std::process::id());
        let (warning, others) = lines.split_first().unwrap();
        assert!(others.iter().all(|line| line.starts_with(&start)), "{lines:?}");
        assert!(warning.starts_with("[2") && warning[11..].starts_with(&format!("] {start}")), "{lines:?}");
        assert!(lines[0].ends_with(" NCCL WARN wrong") && lines[0].contains(" [-] "), "{lines:?}");
        let apart = ["EXPLAIN why", "EXPLAIN and why", "INFO memory"];
        assert_eq!(texts(lines), [&["WARN wrong", "INFO net"], &apart[..], &["INFO with a field"]].concat());
        let traced = texts(written("trace", Verbosity::of(Some("TRACE"), "^COLL"), everything));
        assert!(traced.contains(&"TRACE fine".to_owned()) && !traced.contains(&"INFO coll".to_owned()));
        assert_eq!(texts(written("silent", Verbosity::of(None, "ALL"), everything)), apart);
        let warned = texts(written("warn", Verbosity::of(Some("WARN"), "ALL"), everything));
        assert_eq!(warned, [&["WARN wrong"], &apart[..]].concat());
    }
}

//! Reading a trace in Chrome's format event by event: files may be larger than memory.
//!
//! A file is a list of events, or an object whose `traceEvents` is one. A file that breaks off, as programs
//! leave it that are killed, ends with its last whole event.

use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// An event: an object of the format.
pub type Event = Map<String, Value>;

/// Calls `take` with each event of a file. Returns true if the file is whole, false if it breaks off.
///
/// # Errors
/// The file cannot be read, is no trace, or `take` fails.
pub fn events(path: &Path, take: &mut dyn FnMut(Event) -> Result<()>) -> Result<bool> {
    let name = || format!("reading {}", path.display());
    let file = File::open(path).with_context(name)?;
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 20, file));
    let mut state = State { take, fault: None, began: false };
    let outcome = Trace(&mut state).deserialize(&mut json).and_then(|()| json.end());
    if let Some(fault) = state.fault {
        return Err(fault).with_context(name);
    }
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.is_eof() && state.began => Ok(false),
        Err(error) => {
            Err(error).with_context(|| format!("{} is no trace in Chrome's format", path.display()))
        }
    }
}

struct State<'a> {
    take: &'a mut dyn FnMut(Event) -> Result<()>,
    /// The error of `take`, which serde has no place for.
    fault: Option<anyhow::Error>,
    /// The list of events has begun.
    began: bool,
}

/// A whole file.
struct Trace<'a, 'b>(&'a mut State<'b>);

impl<'de> DeserializeSeed<'de> for Trace<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Trace<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events, or an object with traceEvents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.began = true;
        while let Some(event) = list.next_element::<Event>()? {
            if let Err(fault) = (self.0.take)(event) {
                self.0.fault = Some(fault);
                return Err(serde::de::Error::custom("stopped"));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "traceEvents" {
                map.next_value_seed(Trace(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        match self.0.began {
            true => Ok(()),
            false => Err(serde::de::Error::custom("it has no traceEvents")),
        }
    }
}

/// The text of a member; empty if it has none.
pub fn text<'a>(event: &'a Event, name: &str) -> &'a str {
    event.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The particulars of an event.
pub fn args(event: &Event) -> Option<&Event> {
    event.get("args")?.as_object()
}

/// A whole number among the particulars.
pub fn number(args: &Event, name: &str) -> Option<u64> {
    args.get(name)?.as_u64()
}

/// The number of the process that an event belongs to; 0 if it has none.
pub fn process(event: &Event) -> i64 {
    event.get("pid").and_then(Value::as_i64).unwrap_or(0)
}

/// The time of an event in nanoseconds.
pub fn time(event: &Event) -> Option<i64> {
    nanoseconds(event.get("ts")?)
}

/// A time in nanoseconds from one in microseconds.
pub fn nanoseconds(microseconds: &Value) -> Option<i64> {
    let nanoseconds = microseconds.as_f64()? * 1000.0;
    (nanoseconds.abs() < i64::MAX as f64).then_some(nanoseconds.round() as i64)
}

/// A rank, as the profiler describes it at the beginning of its file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rank {
    /// The communicator's number, the same on all ranks, as the file has it.
    pub comm: String,
    /// Its name; empty for none.
    pub comm_name: String,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// Its host.
    pub host: String,
    /// Its process there.
    pub process: u32,
    /// The number that the host's kernel took when it started: files with one number share a clock.
    pub boot: String,
    /// The wall clock less the trace's clock, in nanoseconds.
    pub wall: i64,
}

impl Rank {
    /// Reads the event in which the profiler says it, which names the process (in files of older builds it is
    /// one of its own); None for other events.
    pub fn of(event: &Event) -> Option<Self> {
        if text(event, "ph") != "M" || !matches!(text(event, "name"), "process_name" | "hawser_rank") {
            return None;
        }
        let args = args(event)?;
        let small = |name| u32::try_from(number(args, name)?).ok();
        let wall = i64::try_from(number(args, "realtime_ns")?).ok()?;
        Some(Self {
            comm: text(args, "comm").to_owned(),
            comm_name: text(args, "comm_name").to_owned(),
            rank: small("rank")?,
            ranks: small("ranks")?,
            host: text(args, "host").to_owned(),
            process: small("process")?,
            boot: text(args, "boot").to_owned(),
            wall: wall.checked_sub(i64::try_from(number(args, "monotonic_ns")?).ok()?)?,
        })
    }
}

/// A collective or message of a rank, from its call to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collective {
    /// The process of the trace, which is a rank of a communicator.
    pub process: i64,
    /// Its number on the communicator; None for messages.
    pub number: Option<u64>,
    /// Its name, such as `AllReduce` or `Send`.
    pub name: String,
    /// The bytes of this rank's buffer.
    pub bytes: u64,
    /// The type of its elements, by NCCL's name; empty if the trace does not say.
    pub datatype: String,
    /// The root; 0 if there is none.
    pub root: u32,
    /// The beginning in nanoseconds.
    pub start: i64,
    /// The end, likewise.
    pub end: i64,
    /// The communicator was closed before it was over.
    pub unfinished: bool,
}

/// Finds the collectives and messages among the events of a trace: each is a pair of events.
#[derive(Debug, Default)]
pub struct Collectives {
    open: std::collections::HashMap<(i64, String), Collective>,
}

/// The most collectives that are open at once.
const MOST_OPEN: usize = 1 << 16;

impl Collectives {
    /// Takes the next event; returns a collective that ends with it.
    pub fn take(&mut self, event: &Event) -> Option<Collective> {
        let is_collective = text(event, "cat") == "coll";
        if !is_collective && text(event, "cat") != "p2p" {
            return None;
        }
        let id = event.get("id2").and_then(Value::as_object).map(|id| text(id, "local").to_owned())?;
        let key = (process(event), id);
        match text(event, "ph") {
            "b" => {
                let args = args(event)?;
                let start = time(event)?;
                let collective = Collective {
                    process: key.0,
                    number: number(args, "seq").filter(|_| is_collective),
                    name: text(event, "name").to_owned(),
                    bytes: number(args, "bytes").unwrap_or(0),
                    datatype: text(args, "datatype").to_owned(),
                    root: number(args, "root").and_then(|root| u32::try_from(root).ok()).unwrap_or(0),
                    start,
                    end: start,
                    unfinished: args.contains_key("unfinished"),
                };
                if self.open.len() < MOST_OPEN {
                    self.open.insert(key, collective);
                }
                None
            }
            "e" => {
                let mut collective = self.open.remove(&key)?;
                collective.end = time(event)?.max(collective.start);
                Some(collective)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(usize, bool)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        std::fs::write(&path, text).unwrap();
        let mut count = 0;
        let whole = events(&path, &mut |_| {
            count += 1;
            Ok(())
        })?;
        Ok((count, whole))
    }

    #[test]
    fn both_forms_are_read_and_other_files_refused() {
        assert_eq!(read("[]").unwrap(), (0, true));
        assert_eq!(read("[\n{\"ph\":\"M\"},{}\n]\n").unwrap(), (2, true));
        assert_eq!(read("{\"a\":[{}],\"traceEvents\":[{}],\"b\":1}").unwrap(), (1, true));
        assert_eq!(read("[{\"ph\":\"M\"},{\"ph").unwrap(), (1, false), "what breaks off");
        assert_eq!(read("[{}").unwrap(), (1, false));
        for foreign in ["", "{}", "7", "[7]", "[{}]]", "{\"traceEvents\":7}", "\"text\""] {
            let error = format!("{:#}", read(foreign).unwrap_err());
            assert!(error.contains("is no trace in Chrome's format"), "{foreign}: {error}");
        }
        let missing = events(Path::new("/nowhere/trace.json"), &mut |_| Ok(())).unwrap_err();
        assert!(format!("{missing:#}").contains("/nowhere/trace.json"), "{missing:#}");
    }
}

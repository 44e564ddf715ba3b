//! A finished event, and its lines in the trace.

use std::fmt;

use compact_str::CompactString;
use hawser_plugin::profiler::ProfilerConfig;
use serde_json::json;

use crate::describe::{KINDS, Particulars, Value};

/// A finished event. Times are nanoseconds of the host's monotonic clock, which its processes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Number of the communicator's process in the trace.
    pub process: u32,
    /// Handle of the event.
    pub id: u64,
    /// Handle of the event above it.
    pub parent: Option<u64>,
    /// Index in [`KINDS`].
    pub kind: usize,
    pub name: CompactString,
    pub particulars: Particulars,
    /// The thread that started it.
    pub thread: u32,
    pub start: u64,
    pub end: u64,
    /// States and when they came.
    pub states: Vec<(&'static str, u64)>,
    /// Children kept it open, so that its end is that of the work and not of the call.
    pub has_children: bool,
    /// Its communicator was closed before it was over.
    pub unfinished: bool,
}

impl Record {
    /// The name of its kind.
    pub fn category(&self) -> &'static str {
        KINDS[self.kind].0
    }

    /// The bytes of the call's count; 0 if it has none.
    pub fn bytes(&self) -> u64 {
        self.number("bytes")
    }

    /// The nanoseconds that the host's planner predicted; 0 if it did not.
    pub fn predicted_ns(&self) -> u64 {
        self.number("predicted_ns")
    }

    fn number(&self, name: &str) -> u64 {
        let found = self.particulars.iter().find(|(known, _)| *known == name);
        found.map_or(0, |(_, value)| if let Value::Number(number) = value { *number } else { 0 })
    }

    /// Adds the event as lines of a Chrome trace, joined like the others. Events that nest in their thread
    /// are one complete event; others, which may overlap, are an asynchronous pair.
    pub fn write_lines(&self, to: &mut String) {
        let (_, nests) = KINDS[self.kind];
        let mut line = Line { to };
        line.begin(if nests { 'X' } else { 'b' }, self, self.start);
        if nests {
            line.key("dur");
            line.microseconds(self.end.saturating_sub(self.start));
        } else {
            line.id(self);
        }
        line.to.push_str(",\"args\":{\"event\":");
        line.hex(self.id);
        self.write_args(&mut line);
        line.to.push_str("}}");
        if !nests {
            line.to.push_str(crate::file::SEPARATOR);
            line.begin('e', self, self.end);
            line.id(self);
            line.to.push('}');
        }
    }

    /// Everything about the event that has no place of its own.
    fn write_args(&self, line: &mut Line<'_>) {
        if let Some(parent) = self.parent {
            line.key("parent");
            line.hex(parent);
        }
        for (name, value) in &self.particulars {
            line.key(name);
            match value {
                Value::Number(number) => line.number(*number),
                Value::Truth(truth) => line.to.push_str(if *truth { "true" } else { "false" }),
                Value::Text(text) => line.text(text),
                Value::Hex(number) => line.hex(*number),
            }
        }
        if !self.states.is_empty() {
            line.key("states_us");
            for (at, (name, time)) in self.states.iter().enumerate() {
                line.to.push_str(if at == 0 { "[[" } else { ",[" });
                line.text(name);
                line.to.push(',');
                line.microseconds(time.saturating_sub(self.start));
                line.to.push(']');
            }
            line.to.push(']');
        }
        if self.unfinished {
            line.to.push_str(",\"unfinished\":true");
        }
    }
}

/// A line of the trace that is being written. It is made piece by piece, since there are millions of them: a
/// serializer took several times as long, on a processor that the job may need.
struct Line<'a> {
    to: &'a mut String,
}

impl Line<'_> {
    fn begin(&mut self, phase: char, record: &Record, at: u64) {
        self.to.push_str("{\"ph\":\"");
        self.to.push(phase);
        self.to.push_str("\",\"cat\":\"");
        self.to.push_str(record.category());
        self.to.push_str("\",\"name\":");
        self.text(&record.name);
        self.key("pid");
        self.number(record.process.into());
        self.key("tid");
        self.number(record.thread.into());
        self.key("ts");
        self.microseconds(at);
    }

    /// The number of an asynchronous event within its process.
    fn id(&mut self, record: &Record) {
        self.to.push_str(",\"id2\":{\"local\":");
        self.hex(record.id);
        self.to.push('}');
    }

    /// The name of a further member; ours need no escapes.
    fn key(&mut self, name: &str) {
        self.to.push_str(",\"");
        self.to.push_str(name);
        self.to.push_str("\":");
    }

    fn number(&mut self, number: u64) {
        self.to.push_str(itoa::Buffer::new().format(number));
    }

    /// A time as the trace has it, of nanoseconds.
    fn microseconds(&mut self, nanoseconds: u64) {
        self.number(nanoseconds / 1000);
        let rest = (nanoseconds % 1000) as u16;
        self.to.push('.');
        for digit in [rest / 100, rest / 10 % 10, rest % 10] {
            self.to.push(char::from(b'0' + digit as u8));
        }
    }

    fn hex(&mut self, number: u64) {
        self.to.push_str("\"0x");
        let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
        for at in (0..digits).rev() {
            let digit = (number >> (4 * at) & 15) as u8;
            self.to.push(char::from(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }));
        }
        self.to.push('"');
    }

    /// A text, with escapes where it needs them.
    fn text(&mut self, text: &str) {
        if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
            self.to.push('"');
            self.to.push_str(text);
            self.to.push('"');
        } else {
            self.to.push_str(&serde_json::Value::from(text).to_string());
        }
    }
}

/// The line by which viewers put the communicators of a host in the order of their ranks.
pub fn rank_line(process: u32, rank: u32) -> String {
    let args = json!({ "sort_index": rank });
    json!({ "ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": args }).to_string()
}

/// The place where a rank runs, with the times of its clocks at one moment.
pub struct Place {
    pub host: String,
    /// The number that the kernel took when it started: traces with one number share a clock.
    pub boot: String,
    pub process: u32,
    /// Nanoseconds of the clock that the trace's times are of.
    pub monotonic: u64,
    /// Nanoseconds of the wall clock.
    pub realtime: u64,
}

/// The line that names a communicator's process to viewers. By the rest of it programs know the rank, and lay
/// its clock on those of other hosts; it has no line of its own, since viewers warn of names that they do not
/// know.
pub fn process_line(process: u32, name: &str, config: &ProfilerConfig, place: &Place) -> String {
    let args = json!({
        "name": name,
        "comm": hex(config.comm_id),
        "comm_name": config.comm_name.as_deref().unwrap_or_default(),
        "rank": config.rank,
        "ranks": config.ranks,
        "host": place.host,
        "boot": place.boot,
        "process": place.process,
        "monotonic_ns": place.monotonic,
        "realtime_ns": place.realtime,
    });
    json!({ "ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": args }).to_string()
}

/// The lines that name a thread and say where it stands among those of its communicator.
pub fn thread_lines(process: u32, thread: u32, name: &str, place: usize) -> String {
    let line = |kind: &str, args: serde_json::Value| {
        json!({ "ph": "M", "name": kind, "pid": process, "tid": thread, "args": args }).to_string()
    };
    let named = line("thread_name", json!({ "name": name }));
    let placed = line("thread_sort_index", json!({ "sort_index": place }));
    format!("{named}{}{placed}", crate::file::SEPARATOR)
}

/// The line that says how many events of a communicator are missing.
pub fn dropped_line(process: u32, count: u64) -> String {
    let labels = format!("{count} events are missing");
    json!({ "ph": "M", "name": "process_labels", "pid": process, "tid": 0, "args": { "labels": labels } })
        .to_string()
}

fn hex(number: u64) -> String {
    format!("{number:#x}")
}

/// For logs: sizes as people write them.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["kB", "MB", "GB", "TB", "PB"];
        let (mut size, mut unit) = (self.0 as f64, "B");
        for larger in units {
            if size < 1000.0 {
                break;
            }
            (size, unit) = (size / 1000.0, larger);
        }
        if unit == "B" { write!(f, "{} B", self.0) } else { write!(f, "{size:.1} {unit}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: usize) -> Record {
        Record {
            process: 7,
            id: 26,
            parent: Some(25),
            kind,
            name: "All\"Reduce".into(),
            particulars: vec![
                ("count", Value::Number(u64::MAX)),
                ("captured", Value::Truth(true)),
                ("algo", Value::Text("RING\n".into())),
                ("send", Value::Hex(0x1000)),
            ],
            thread: 99,
            start: 1_234_567,
            end: 2_000_000,
            states: vec![("send_wait", 1_234_667), ("send_wait", 1_300_567)],
            has_children: false,
            unfinished: false,
        }
    }

    fn lines(record: &Record) -> String {
        let mut lines = String::new();
        record.write_lines(&mut lines);
        lines
    }

    #[test]
    fn what_overlaps_is_a_pair() {
        let lines = lines(&record(1));
        let [begin, end]: [serde_json::Value; 2] = serde_json::from_str(&format!("[{lines}]")).unwrap();
        let args = json!({
            "event": "0x1a", "parent": "0x19", "count": u64::MAX, "captured": true,
            "algo": "RING\n", "send": "0x1000",
            "states_us": [["send_wait", 0.1], ["send_wait", 66.0]],
        });
        let id = json!({ "local": "0x1a" });
        let common = json!({ "cat": "coll", "name": "All\"Reduce", "pid": 7, "tid": 99, "id2": id });
        let with = |extra: serde_json::Value| {
            let mut all = common.clone();
            all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            all
        };
        assert_eq!(begin, with(json!({ "ph": "b", "ts": 1234.567, "args": args })));
        assert_eq!(end, with(json!({ "ph": "e", "ts": 2000.0 })));
    }

    #[test]
    fn what_nests_is_one_event() {
        let mut record = record(9);
        (record.parent, record.unfinished, record.end) = (None, true, 0);
        record.states.clear();
        let line: serde_json::Value = serde_json::from_str(&lines(&record)).unwrap();
        assert_eq!((&line["ph"], &line["cat"], &line["dur"]), (&json!("X"), &json!("coll_api"), &json!(0.0)));
        assert_eq!(line["args"]["unfinished"], json!(true));
        assert!(line.get("id2").is_none() && line["args"].get("parent").is_none());
    }

    #[test]
    fn numbers_are_written_as_others_write_them() {
        for number in [0, 1, 9, 10, 15, 16, 255, 1 << 40, u64::MAX] {
            let mut to = String::new();
            let mut line = Line { to: &mut to };
            line.hex(number);
            line.to.push(' ');
            line.microseconds(number);
            let wanted = format!("\"{}\" {}.{:03}", hex(number), number / 1000, number % 1000);
            assert_eq!(to, wanted);
        }
    }

    #[test]
    fn sizes_are_short() {
        let sizes = [0, 999, 1000, 1_234_567, 5_000_000_000, u64::MAX].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(sizes, ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 GB", "18446.7 PB"]);
    }
}

//! `hawser trace merge`: the traces of several ranks as one, with one clock.
//!
//! Files are read twice, event by event: first for their clocks, then to be written. No file need fit into
//! memory.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use super::clocks::{Clock, How, Shift, align};
use super::read::{self, Event, Rank};
use super::sources::{Source, Sources};
use crate::progress::Progress;
use crate::{files, output};

/// Options of `hawser trace merge`.
#[derive(Debug, Args)]
pub struct Merge {
    /// Traces of the profiler plugin, or others in Chrome's format
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The trace to write
    #[arg(short, long, alias = "output", value_name = "FILE")]
    out: PathBuf,
    /// Print what was merged as JSON
    #[arg(long)]
    json: bool,
}

/// A place for each communicator among the processes of a trace, and within it one for each rank.
const RANKS_OF_COMM: u64 = 1 << 15;

/// Runs `hawser trace merge`.
///
/// # Errors
/// A file cannot be read or is no trace, or the merged one cannot be written.
pub fn run(options: &Merge) -> Result<()> {
    let out = &options.out;
    check(&options.files, out)?;
    let sources = Sources::of(&options.files)?;
    let shifts = align(&sources.clocks);
    let mut count = 0;
    files::write_by(out, &mut |to| {
        count = write(&sources, &shifts, to)?;
        Ok(())
    })?;
    let name = out.display().to_string();
    match options.json {
        true => output::print_json(&record(&sources, &shifts, count, &name)),
        false => output::print(&summary(&sources, &shifts, count, &name)),
    }
}

/// Checks that a file can be written, and is none of those that are read.
///
/// # Errors
/// There is no such place, or it is one of these.
pub fn check(read: &[PathBuf], out: &Path) -> Result<()> {
    files::check_place(out)?;
    let is_it =
        |path: &&PathBuf| path.canonicalize().ok().is_some_and(|path| out.canonicalize().ok() == Some(path));
    if let Some(path) = read.iter().find(is_it) {
        bail!("{} would be overwritten; give -o another name", path.display());
    }
    Ok(())
}

/// Merges a trace with nothing else, and writes that.
///
/// # Errors
/// The file is no trace.
pub fn fuzz(path: &Path, to: &mut dyn Write) -> Result<()> {
    let sources = Sources::of(&[path.to_owned()])?;
    let shifts = align(&sources.clocks);
    let count = write(&sources, &shifts, to)?;
    drop(summary(&sources, &shifts, count, "fuzz"));
    Ok(())
}

/// Writes the merged trace; the number of its events.
fn write(sources: &Sources, shifts: &[Shift], to: &mut dyn Write) -> Result<u64> {
    to.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let mut count = 0_u64;
    let progress = Progress::new(sources.files.len() as u64, "traces written");
    for (at, source) in sources.files.iter().enumerate() {
        progress.set(at as u64);
        let by = shifts[source.clock].by;
        read::events(&source.path, &mut |mut event| {
            change(&mut event, sources, (at, source), by);
            if count > 0 {
                to.write_all(b",\n")?;
            }
            serde_json::to_writer(&mut *to, &event)?;
            count += 1;
            Ok(())
        })
        .with_context(|| format!("merging {}", source.path.display()))?;
    }
    to.write_all(b"\n]}\n")?;
    Ok(count)
}

/// Puts an event of a file into the merged trace: its time, its process, and names that other files may have
/// as well.
fn change(event: &mut Event, sources: &Sources, (at, source): (usize, &Source), by: i64) {
    let process = source.processes.get(&read::process(event)).copied();
    if let (Some(number), Some(process)) = (process, event.get_mut("pid")) {
        *process = json!(number);
    }
    for name in ["id", "bind_id"] {
        if let Some(id) = event.get_mut(name) {
            let text = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            *id = json!(format!("{at}.{text}"));
        }
    }
    if let Some(time) = read::time(event) {
        event.insert("ts".into(), json!(time.saturating_add(by) as f64 / 1000.0));
    }
    if read::text(event, "name") == "process_sort_index"
        && let Some(rank) = process.and_then(|number| sources.rank(number))
    {
        let comm = sources.comm(&rank.comm);
        let place = (comm * RANKS_OF_COMM + u64::from(rank.rank)).min(i32::MAX as u64);
        event.insert("args".into(), json!({ "sort_index": place }));
    }
    if let Some(rank) = Rank::of(event)
        && let Some(Value::Object(args)) = event.get_mut("args")
    {
        // The clock is that of the first host from here on.
        let first = sources.clocks[0].wall.unwrap_or(rank.wall);
        let monotonic = read::number(args, "realtime_ns").and_then(|wall| wall.checked_add_signed(-first));
        args.insert("monotonic_ns".into(), json!(monotonic.unwrap_or(0)));
        args.insert("boot".into(), json!(sources.first_host()));
    }
}

/// The same as [`summary()`] for programs; times in nanoseconds.
fn record(sources: &Sources, shifts: &[Shift], count: u64, out: &str) -> Value {
    let clock = |(clock, shift): (&Clock, &Shift)| {
        let (how, collectives, spread) = match shift.how {
            How::First => ("first", None, None),
            How::Collectives { count, spread } => ("collectives", Some(count), Some(spread)),
            How::Wall => ("wall_clock", None, None),
            How::Nothing => ("nothing", None, None),
        };
        json!({
            "clock": clock.name, "moved_ns": shift.by, "by": how,
            "collectives": collectives, "spread_ns": spread
        })
    };
    let file =
        |source: &Source| json!({ "file": source.path.display().to_string(), "is_whole": source.whole });
    json!({
        "written": out,
        "events": count,
        "files": sources.files.iter().map(file).collect::<Vec<_>>(),
        "clocks": sources.clocks.iter().zip(shifts).map(clock).collect::<Vec<_>>()
    })
}

/// Says what was merged, and how well the clocks fit.
fn summary(sources: &Sources, shifts: &[Shift], count: u64, out: &str) -> String {
    let mut text = format!("{out}: {count} events of {} files\n", sources.files.len());
    for (clock, shift) in sources.clocks.iter().zip(shifts) {
        let by = format!("moved by {:.3} ms", shift.by as f64 / 1e6);
        let how = match shift.how {
            How::First => "the clock of all".to_owned(),
            How::Collectives { count, spread } => {
                let spread = spread as f64 / 1000.0;
                format!("{by}: the ends of {count} collectives in common, half of them within {spread:.1} us")
            }
            How::Wall => format!("{by}: by wall clocks, since no collectives are in common"),
            How::Nothing => "not moved: neither collectives in common nor a wall clock are known".to_owned(),
        };
        text += &format!("  {}: {how}\n", clock.name);
    }
    for source in sources.files.iter().filter(|source| !source.whole) {
        text += &format!("  {} breaks off: taken up to its last whole event\n", source.path.display());
    }
    text
}

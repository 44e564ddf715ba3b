//! `hawser trace merge`: the traces of several ranks as one, with one clock.
//!
//! Files are read twice, event by event: first for their clocks, then to be written. No file need fit into
//! memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use super::clocks::{Clock, How, Shift, align};
use super::read::{self, Collectives, Event, Rank};
use crate::{files, output};

/// Options of `hawser trace merge`.
#[derive(Debug, Args)]
pub struct Merge {
    /// Traces of the profiler plugin, or others in Chrome's format
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
}

/// A place for each communicator among the processes of a trace, and within it one for each rank.
const RANKS_OF_COMM: u64 = 1 << 15;

/// The findings of the first reading of a file.
struct Source {
    path: PathBuf,
    /// The number of its clock.
    clock: usize,
    /// The numbers of its processes in the merged trace.
    processes: HashMap<i64, i64>,
    /// False if the file breaks off.
    whole: bool,
}

/// The facts about all files.
#[derive(Default)]
struct Sources {
    files: Vec<Source>,
    clocks: Vec<Clock>,
    /// The clock of the host that has started with this number.
    hosts: BTreeMap<String, usize>,
    /// Numbers of processes that are taken, and by which rank.
    taken: BTreeMap<i64, Option<Rank>>,
    /// Places of communicators, in the order in which they are found.
    comms: BTreeMap<String, u64>,
}

/// Runs `hawser trace merge`.
///
/// # Errors
/// A file cannot be read or is no trace, or the merged one cannot be written.
pub fn run(options: &Merge) -> Result<()> {
    let out = &options.output;
    files::check_place(out)?;
    let same =
        |path: &PathBuf| path.canonicalize().ok().is_some_and(|path| out.canonicalize().ok() == Some(path));
    if let Some(path) = options.files.iter().find(|path| same(path)) {
        bail!("{} would be overwritten by the merged trace; give -o another name", path.display());
    }
    let mut sources = Sources::default();
    let mut seen = BTreeSet::new();
    for path in &options.files {
        if seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
            sources.look_into(path)?;
        }
    }
    let shifts = align(&sources.clocks);
    let mut count = 0;
    files::write_by(out, &mut |to| {
        count = write(&sources, &shifts, to)?;
        Ok(())
    })?;
    output::print(&summary(&sources, &shifts, count, &out.display().to_string()))
}

impl Sources {
    /// Reads a file for the first time.
    fn look_into(&mut self, path: &Path) -> Result<()> {
        let mut ranks: HashMap<i64, Rank> = HashMap::new();
        let mut processes = BTreeSet::new();
        let mut collectives = Collectives::default();
        let mut own = Clock::new(path.display().to_string(), None);
        let whole = read::events(path, &mut |event| {
            let process = read::process(&event);
            processes.insert(process);
            if let Some(rank) = Rank::of(&event) {
                ranks.entry(process).or_insert(rank);
            }
            if let Some(collective) = collectives.take(&event)
                && let Some(rank) = ranks.get(&collective.process)
            {
                own.note(&rank.comm, &collective);
            }
            Ok(())
        })?;
        let boots: BTreeSet<&str> = ranks.values().map(|rank| &*rank.boot).collect();
        if boots.len() > 1 {
            bail!("{} holds ranks of several hosts: merge the files that it was made of", path.display());
        }
        let clock = self.clock(own, ranks.values().next());
        for rank in ranks.values() {
            let place = self.comms.len() as u64;
            self.comms.entry(rank.comm.clone()).or_insert(place);
        }
        let number = |process: i64| (process, self.number(process, ranks.get(&process)));
        let processes = processes.into_iter().map(number).collect();
        self.files.push(Source { path: path.to_path_buf(), clock, processes, whole });
        Ok(())
    }

    /// The number of the clock of a file, to which what was found is added.
    fn clock(&mut self, own: Clock, rank: Option<&Rank>) -> usize {
        let fresh = self.clocks.len();
        let at = match rank {
            Some(rank) => *self.hosts.entry(rank.boot.clone()).or_insert(fresh),
            None => fresh,
        };
        if at == fresh {
            let name = rank.map_or_else(|| own.name.clone(), |rank| format!("host {}", rank.host));
            self.clocks.push(Clock::new(name, rank.map(|rank| rank.wall)));
        }
        self.clocks[at].add(own);
        at
    }

    /// A number of a process that no other file's process has. Files that go on with a rank share it.
    fn number(&mut self, process: i64, rank: Option<&Rank>) -> i64 {
        let mut number = process;
        loop {
            match self.taken.get(&number) {
                None => break,
                Some(owner) if owner.is_some() && owner.as_ref().map(place) == rank.map(place) => break,
                Some(_) => number = (number & 0x7fff_ffff) % 0x7fff_fffe + 1,
            }
        }
        self.taken.insert(number, rank.cloned());
        number
    }
}

/// The facts that tell a rank of a process from all others.
fn place(rank: &Rank) -> (&str, u32, &str, u32) {
    (&rank.comm, rank.rank, &rank.boot, rank.process)
}

/// Writes the merged trace; the number of its events.
fn write(sources: &Sources, shifts: &[Shift], to: &mut dyn Write) -> Result<u64> {
    to.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let mut count = 0_u64;
    for (at, source) in sources.files.iter().enumerate() {
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
        && let Some(Some(rank)) = process.and_then(|number| sources.taken.get(&number))
    {
        let comm = sources.comms.get(&rank.comm).copied().unwrap_or(0);
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
        let boot = sources.hosts.iter().find(|(_, clock)| **clock == 0).map(|(boot, _)| boot.as_str());
        args.insert("boot".into(), json!(boot.unwrap_or("merged")));
    }
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

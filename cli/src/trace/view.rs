//! `hawser trace view`: a page with the timelines of all ranks, that needs nothing but a browser.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use hawser_runtime::progress::verdict::Cause;
use serde::Serialize;
use serde_json::{Value, json};

use super::analysis::{Bar, Findings, Timeline, analyse};
use super::clocks::align;
use super::read::{self, Collectives, Rank};
use super::sources::Sources;
use super::{hang, merge};
use crate::progress::Progress;
use crate::{files, output};

/// Options of `hawser trace view`.
#[derive(Debug, Args)]
pub struct View {
    /// Traces of the profiler plugin, merged or not
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The page to write
    #[arg(short, long, alias = "output", value_name = "FILE")]
    out: PathBuf,
    /// Files of `HAWSER_PROGRESS_DIR`: the page says why nothing moved
    #[arg(long, num_args = 1.., value_name = "FILE")]
    progress: Vec<PathBuf>,
    /// The most operations that the page holds: of more, the last ones of each rank
    #[arg(long, default_value_t = 200_000, value_name = "COUNT")]
    most: usize,
    /// Print what the page holds as JSON
    #[arg(long)]
    json: bool,
}

/// The page; the data take the place of [`PLACE`].
const PAGE: &str = include_str!("page.html");
const PLACE: &str = "/*DATA*/";

/// The text behind the name of a transfer's sending side.
const SENDING: &str = "proxy send";
/// A link is slow if its median is so many times that of all.
const SLOW: f64 = 2.0;
/// The most links that are listed.
const MOST_LINKS: usize = 32;

/// Transfers from a rank to another one.
#[derive(Debug, Serialize)]
struct Link {
    timeline: usize,
    peer: u64,
    count: usize,
    median_us: f64,
    is_slow: bool,
}

/// The content of the traces.
#[derive(Default)]
struct Content {
    timelines: Vec<Timeline>,
    ranks: Vec<Rank>,
    links: BTreeMap<(usize, u64), Vec<i64>>,
    /// Operations that are not on the page.
    left_out: u64,
}

/// Runs `hawser trace view`.
///
/// # Errors
/// A file cannot be read or holds no ranks, or the page cannot be written.
pub fn run(options: &View) -> Result<()> {
    merge::check(&options.files, &options.out)?;
    let verdicts = match options.progress.is_empty() {
        true => Vec::new(),
        false => hang::of_files(&options.progress)?,
    };
    let sources = Sources::of(&options.files)?;
    let mut content = content(&sources, options.most)?;
    if content.timelines.is_empty() {
        bail!(
            "these traces name no ranks: are they of Hawser's profiler plugin (libnccl-profiler-hawser.so)?"
        );
    }
    let findings = analyse(&mut content.timelines);
    let said = verdicts.iter().filter(|verdict| verdict.cause != Cause::NothingOpen);
    let said: Vec<Value> = said
        .map(
            |verdict| json!({ "sentence": verdict.sentence, "remedy": verdict.remedy, "comm": verdict.name }),
        )
        .collect();
    let data = data(&sources, &content, &findings, &said);
    // Within a script, only this could end it.
    let data = serde_json::to_string(&data)?.replace('<', "\\u003c");
    files::write(&options.out, &PAGE.replace(PLACE, &data))?;
    let bars: usize = content.timelines.iter().map(|timeline| timeline.bars.len()).sum();
    let (ranks, name) = (content.timelines.len(), options.out.display());
    if options.json {
        let left_out = content.left_out;
        return output::print_json(&json!({
            "written": name.to_string(), "operations": bars, "ranks": ranks, "left_out": left_out
        }));
    }
    let mut text = format!("{name}: {bars} operations of {ranks} ranks\n");
    if content.left_out > 0 {
        text += &format!("  {} earlier ones are left out (--most)\n", content.left_out);
    }
    output::print(&text)
}

/// Reads the operations of all ranks, on one clock.
fn content(sources: &Sources, most: usize) -> Result<Content> {
    let shifts = align(&sources.clocks);
    let mut places: BTreeMap<(u64, u32, String, u32), usize> = BTreeMap::new();
    let mut content = Content::default();
    for rank in sources.ranks() {
        let comm = sources.comm(&rank.comm);
        places.entry((comm, rank.rank, rank.boot.clone(), rank.process)).or_insert(0);
    }
    for (at, place) in places.values_mut().enumerate() {
        *place = at;
    }
    let each = (most / places.len().max(1)).max(1);
    let mut bars: Vec<VecDeque<Bar>> = places.keys().map(|_| VecDeque::new()).collect();
    content.ranks = vec![Rank::default(); places.len()];
    let mut transfers: BTreeMap<(i64, String), (i64, u64)> = BTreeMap::new();
    let progress = Progress::new(sources.files.len() as u64, "traces looked at");
    for (at, source) in sources.files.iter().enumerate() {
        progress.set(at as u64);
        let by = shifts[source.clock].by;
        let mut of_process: BTreeMap<i64, usize> = BTreeMap::new();
        let mut collectives = Collectives::default();
        transfers.clear();
        read::events(&source.path, &mut |event| {
            if let Some(rank) = Rank::of(&event) {
                let key = (sources.comm(&rank.comm), rank.rank, rank.boot.clone(), rank.process);
                if let Some(place) = places.get(&key) {
                    of_process.insert(read::process(&event), *place);
                    content.ranks[*place] = rank;
                }
            }
            let Some(place) = of_process.get(&read::process(&event)).copied() else { return Ok(()) };
            if let Some(taken) = transfer(&event, &mut transfers) {
                content.links.entry((place, taken.0)).or_default().push(taken.1);
            }
            if let Some(found) = collectives.take(&event) {
                if bars[place].len() >= each {
                    bars[place].pop_front();
                    content.left_out += 1;
                }
                bars[place].push_back(Bar {
                    name: found.name,
                    number: found.number,
                    bytes: found.bytes,
                    start: found.start.saturating_add(by),
                    end: found.end.saturating_add(by),
                    wait: 0,
                    unfinished: found.unfinished,
                });
            }
            Ok(())
        })?;
    }
    let line = |(key, bars): (&(u64, u32, String, u32), VecDeque<Bar>)| Timeline {
        comm: key.0 as usize,
        rank: key.1,
        bars: bars.into(),
    };
    content.timelines = places.keys().zip(bars).map(line).collect();
    Ok(content)
}

/// The peer and the time of a transfer that ends with this event.
fn transfer(event: &read::Event, open: &mut BTreeMap<(i64, String), (i64, u64)>) -> Option<(u64, i64)> {
    /// Transfers that are under way at most.
    const MOST: usize = 1 << 16;
    if read::text(event, "cat") != "proxy_op" || read::text(event, "name") != SENDING {
        return None;
    }
    let id = event.get("id2").and_then(Value::as_object).map(|id| read::text(id, "local").to_owned())?;
    let key = (read::process(event), id);
    match read::text(event, "ph") {
        "b" => {
            let begun = (read::time(event)?, read::number(read::args(event)?, "peer")?);
            if open.len() < MOST {
                open.insert(key, begun);
            }
            None
        }
        "e" => {
            let (start, peer) = open.remove(&key)?;
            Some((peer, read::time(event)? - start))
        }
        _ => None,
    }
}

/// The links, the slowest first.
fn links(content: &Content) -> Vec<Link> {
    let one = |((timeline, peer), times): (&(usize, u64), &Vec<i64>)| {
        let mut times = times.clone();
        times.sort_unstable();
        let median_us = times[times.len() / 2] as f64 / 1000.0;
        Link { timeline: *timeline, peer: *peer, count: times.len(), median_us, is_slow: false }
    };
    let mut links: Vec<Link> = content.links.iter().map(one).collect();
    links.sort_by(|a, b| b.median_us.total_cmp(&a.median_us));
    let middle = links.get(links.len() / 2).map_or(0.0, |link| link.median_us);
    links.iter_mut().for_each(|link| link.is_slow = link.median_us > SLOW * middle);
    links.truncate(MOST_LINKS);
    links
}

/// The data of the page.
fn data(sources: &Sources, content: &Content, findings: &Findings, verdicts: &[Value]) -> Value {
    let mut names: Vec<&str> = Vec::new();
    let mut bars: Vec<Value> = Vec::new();
    let first = content.timelines.iter().flat_map(|line| &line.bars).map(|bar| bar.start).min().unwrap_or(0);
    let micros = |nanoseconds: i64| nanoseconds as f64 / 1000.0;
    for (at, timeline) in content.timelines.iter().enumerate() {
        for bar in &timeline.bars {
            let name = names.iter().position(|known| *known == bar.name).unwrap_or_else(|| {
                names.push(&bar.name);
                names.len() - 1
            });
            let number = bar.number.map_or(-1.0, |number| number as f64);
            let (start, length, wait) =
                (micros(bar.start - first), micros(bar.end - bar.start), micros(bar.wait));
            bars.push(json!([at, name, start, length, wait, number, bar.bytes, u8::from(bar.unfinished)]));
        }
    }
    let ranks: Vec<Value> = content
        .ranks
        .iter()
        .zip(&content.timelines)
        .map(|(rank, line)| {
            json!({ "comm": line.comm, "rank": line.rank, "host": rank.host, "process": rank.process })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "comms": sources.comm_names(),
        "ranks": ranks,
        "names": names,
        "bars": bars,
        "findings": findings,
        "links": links(content),
        "verdicts": verdicts,
        "left_out": content.left_out,
    })
}

/// Makes the data of a page.
///
/// # Errors
/// The file is no trace.
pub fn fuzz(path: &std::path::Path) -> Result<()> {
    let sources = Sources::of(&[path.to_owned()])?;
    let mut content = content(&sources, 100)?;
    let findings = analyse(&mut content.timelines);
    drop(data(&sources, &content, &findings, &[]));
    Ok(())
}

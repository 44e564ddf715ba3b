//! Steps from traces of the profiler plugin.
//!
//! The collectives of one rank are run again: each begins so long after the one that ended last before it as
//! it did when it was recorded. Between collectives a rank computed, so far as a trace tells.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use hawser_plan::{Collective, DataType};
use hawser_sim::Cluster;
use hawser_sim::step::{Builder, Collected, Kind, Step};

use crate::trace::read::{self, Collectives, Rank};

/// A step, and what is to be known about it.
pub struct Recorded {
    /// The step.
    pub step: Step,
    /// Sentences about what was taken for what, and what was left out.
    pub notes: Vec<String>,
}

/// A process: its host's start and its number.
type Process = (String, u32);

/// The content of the traces.
#[derive(Default)]
struct Traces {
    /// All ranks of all communicators.
    ranks: Vec<Rank>,
    /// The collectives of each of them.
    calls: Vec<Vec<read::Collective>>,
    messages: usize,
}

/// Reads traces as a step on a cluster.
///
/// # Errors
/// They cannot be read, name no ranks, or are of another number of ranks than the cluster has.
pub fn step(paths: &[PathBuf], cluster: &Cluster, most: usize) -> Result<Recorded> {
    let mut traces = Traces::default();
    for path in paths {
        traces.read(path)?;
    }
    let world = traces.ranks.iter().max_by_key(|rank| rank.ranks).cloned();
    let world = world.context(
        "these traces name no ranks: are they of Hawser's profiler plugin (libnccl-profiler-hawser.so)?",
    )?;
    let size = cluster.topology.size();
    if world.ranks != size {
        bail!(
            "the traces are of a job of {} ranks, and the cluster has {size}: name one with as many \
             (--cluster)",
            world.ranks
        );
    }
    traces.step(&world.comm, cluster, most)
}

impl Traces {
    fn read(&mut self, path: &Path) -> Result<()> {
        let mut places: BTreeMap<i64, usize> = BTreeMap::new();
        let mut collectives = Collectives::default();
        read::events(path, &mut |event| {
            if let Some(rank) = Rank::of(&event) {
                places.insert(read::process(&event), self.ranks.len());
                self.ranks.push(rank);
                self.calls.push(Vec::new());
            }
            if let Some(found) = collectives.take(&event)
                && let Some(place) = places.get(&found.process)
                && !found.unfinished
            {
                match found.number {
                    Some(_) => self.calls[*place].push(found),
                    None => self.messages += 1,
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    fn step(&self, world: &str, cluster: &Cluster, most: usize) -> Result<Recorded> {
        let process = |rank: &Rank| -> Process { (rank.boot.clone(), rank.process) };
        // Processes that are one rank of the world: by them ranks of other communicators are known.
        let mut numbers: BTreeMap<Process, Option<u32>> = BTreeMap::new();
        for rank in self.ranks.iter().filter(|rank| rank.comm == world) {
            let known = numbers.entry(process(rank)).or_insert(Some(rank.rank));
            *known = known.filter(|known| *known == rank.rank);
        }
        let of_world = self.ranks.iter().filter(|rank| rank.comm == world);
        let first = of_world.min_by_key(|rank| rank.rank).context("a communicator without ranks: a bug")?;
        let is_alone = numbers.get(&process(first)).is_some_and(Option::is_some);
        let mut notes = Vec::new();
        let mut builder = Builder::new(cluster.topology.size());
        let mut calls: Vec<(usize, String, u32, &read::Collective)> = Vec::new();
        for (rank, own) in self.ranks.iter().zip(&self.calls) {
            let is_own = if is_alone { process(rank) == process(first) } else { rank == first };
            if !is_own || own.is_empty() {
                continue;
            }
            let name = if rank.comm_name.is_empty() { &rank.comm } else { &rank.comm_name };
            let group = match rank.comm == world {
                true => builder.group_of("all")?,
                false => {
                    let communicators = self.communicators(rank, &numbers, cluster, name, &mut notes)?;
                    builder.group(&rank.comm, communicators).or_else(|_| builder.group_of(&rank.comm))?
                }
            };
            calls.extend(own.iter().map(|call| (group, name.clone(), rank.ranks, call)));
        }
        calls.sort_by_key(|(.., call)| (call.start, call.end));
        if calls.len() > most {
            notes.push(format!("of {} collectives the last {most} are simulated (--most)", calls.len()));
            calls.drain(..calls.len() - most);
        }
        if self.messages > 0 {
            notes.push(format!("{} messages are left out: they are not simulated yet", self.messages));
        }
        if calls.is_empty() {
            bail!("rank {} has no collectives in these traces: name other files", first.rank);
        }
        notes.push(format!("what rank {} did, done by all ranks", first.rank));
        add(&mut builder, &calls)?;
        Ok(Recorded { step: builder.finish()?, notes })
    }

    /// The communicators that do what one does: its own ranks if all are known, else ranks side by side.
    fn communicators(
        &self,
        of: &Rank,
        numbers: &BTreeMap<Process, Option<u32>>,
        cluster: &Cluster,
        name: &str,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Vec<u32>>> {
        let mut members: Vec<Option<u32>> = vec![None; of.ranks as usize];
        for rank in self.ranks.iter().filter(|rank| rank.comm == of.comm) {
            let number = numbers.get(&(rank.boot.clone(), rank.process)).copied().flatten();
            if let Some(member) = members.get_mut(rank.rank as usize) {
                *member = member.or(number);
            }
        }
        if let Some(known) = members.into_iter().collect::<Option<Vec<u32>>>() {
            return Ok(vec![known]);
        }
        let (size, all) = (of.ranks, cluster.topology.size());
        if size == 0 || !all.is_multiple_of(size) {
            bail!(
                "the traces do not say which ranks communicator {name} has ({size} of {all}): add those of \
                 all its ranks"
            );
        }
        let local = cluster.topology.per_host().unwrap_or(1);
        let (stride, words) = if size <= local {
            (1, "ranks in a row")
        } else {
            (all / size, "ranks that are equally far apart")
        };
        notes.push(format!("the ranks of communicator {name} are not known: taken for {size} {words}"));
        let block = size * stride;
        let one = move |first: u32| (0..size).map(move |at| first + at * stride).collect::<Vec<u32>>();
        Ok((0..all / block).flat_map(|at| (0..stride).map(move |by| one(at * block + by))).collect())
    }
}

/// Adds calls, each as long after what ended last before it as it was.
fn add(builder: &mut Builder, calls: &[(usize, String, u32, &read::Collective)]) -> Result<()> {
    let begin = calls.first().map_or(0, |(.., call)| call.start);
    for (at, (group, name, ranks, call)) in calls.iter().enumerate() {
        let kind = Kind::Collective(collected(call, *ranks)?);
        let before =
            (0..at).filter(|other| calls[*other].3.end <= call.start).max_by_key(|other| calls[*other].3.end);
        let since = before.map_or(begin, |other| calls[other].3.end);
        let gap = (call.start - since) as f64 / 1000.0;
        let stream = format!("communicator {name}");
        let label = format!("{} on {name}", call.name);
        builder.add_after((&label, &stream), kind, *group, (before.into_iter().collect(), gap))?;
    }
    Ok(())
}

/// The call of a record, whose bytes are those of a block.
fn collected(call: &read::Collective, ranks: u32) -> Result<Collected> {
    let known =
        Collective::ALL.into_iter().find(|known| format!("{known:?}").eq_ignore_ascii_case(&call.name));
    let collective =
        known.with_context(|| format!("the trace has a collective \"{}\", which is not known", call.name))?;
    let dtype = DataType::ALL.into_iter().find(|dtype| format!("nccl{dtype:?}") == call.datatype);
    let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
    let root = if collective.rooted() { call.root } else { 0 };
    Ok(Collected {
        collective,
        bytes: call.bytes.saturating_mul(blocks.into()),
        dtype: dtype.unwrap_or(DataType::Float32),
        root,
    })
}

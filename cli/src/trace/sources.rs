//! The files of traces that are looked at together: their clocks, their ranks, and the numbers that their
//! processes have where all are one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::clocks::Clock;
use super::read::{self, Collectives, Rank};
use crate::progress::Progress;

/// The findings of the first reading of a file.
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The number of its clock.
    pub clock: usize,
    /// The numbers of its processes in the merged trace.
    pub processes: HashMap<i64, i64>,
    /// False if the file breaks off.
    pub whole: bool,
}

/// The facts about all files.
#[derive(Default)]
pub struct Sources {
    /// They, in order.
    pub files: Vec<Source>,
    /// The clocks that they have.
    pub clocks: Vec<Clock>,
    /// The clock of the host that has started with this number.
    hosts: BTreeMap<String, usize>,
    /// Numbers of processes that are taken, and by which rank.
    taken: BTreeMap<i64, Option<Rank>>,
    /// Places of communicators, in the order in which they are found.
    comms: BTreeMap<String, u64>,
}

impl Sources {
    /// Reads files for the first time; of one that is named twice, once.
    ///
    /// # Errors
    /// One cannot be read or is no trace.
    pub fn of(paths: &[PathBuf]) -> Result<Self> {
        let (mut sources, mut seen) = (Self::default(), BTreeSet::new());
        let progress = Progress::new(paths.len() as u64, "traces read");
        for path in paths {
            progress.inc();
            if seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                sources.look_into(path)?;
            }
        }
        Ok(sources)
    }

    /// The ranks of all files.
    pub fn ranks(&self) -> impl Iterator<Item = &Rank> {
        self.taken.values().flatten()
    }

    /// The rank that has this number in the merged trace.
    pub fn rank(&self, number: i64) -> Option<&Rank> {
        self.taken.get(&number)?.as_ref()
    }

    /// The place of a communicator.
    pub fn comm(&self, comm: &str) -> u64 {
        self.comms.get(comm).copied().unwrap_or(0)
    }

    /// The names of all communicators, or their numbers where they have none.
    pub fn comm_names(&self) -> Vec<String> {
        let mut names = vec![String::new(); self.comms.len()];
        for rank in self.ranks() {
            let name = if rank.comm_name.is_empty() { &rank.comm } else { &rank.comm_name };
            if let Some(place) = names.get_mut(self.comm(&rank.comm) as usize) {
                place.clone_from(name);
            }
        }
        names
    }

    /// The number with which the host of the first clock started.
    pub fn first_host(&self) -> &str {
        self.hosts.iter().find(|(_, clock)| **clock == 0).map_or("merged", |(boot, _)| boot)
    }

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

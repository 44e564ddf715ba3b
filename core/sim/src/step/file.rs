//! The text of a step of training: TOML.

use std::collections::BTreeMap;

use hawser_types::{Collective, DataType};
use serde::Deserialize;

use super::ops::{Builder, Collected, Kind, Step};
use crate::error::{Result, SimError, wrong};

/// A step as it is written.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepFile {
    /// The cluster: a sentence, or a file beside this one.
    pub cluster: Option<String>,
    /// Communicators, by names of groups of them. `all` has all ranks in one.
    #[serde(default)]
    pub groups: BTreeMap<String, GroupFile>,
    /// The operations of a step without blocks.
    #[serde(default)]
    pub op: Vec<OpFile>,
    /// Parts of the step, one after the other.
    #[serde(default)]
    pub block: Vec<BlockFile>,
}

/// Operations that are repeated.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockFile {
    /// The number of times; 1 if it is left out.
    pub repeat: Option<u32>,
    /// The operations.
    pub op: Vec<OpFile>,
}

/// Communicators of equally many ranks: of the ranks that are named, every `stride`-th belongs together.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFile {
    /// The ranks, all of the cluster if it is left out.
    pub ranks: Option<RanksFile>,
    /// The ranks of a communicator; as many as there are, by the stride, if it is left out.
    pub size: Option<u32>,
    /// The distance of the ranks of a communicator among those that are named; 1 if it is left out.
    pub stride: Option<u32>,
}

/// Ranks: a text such as `"0-7,16"`, or a list of numbers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum RanksFile {
    /// `"0-7,16"`.
    Text(String),
    /// `[0, 1, 2]`.
    List(Vec<u32>),
}

/// A number of bytes: a number, or a text with a suffix (powers of 1024).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Bytes {
    /// `65536`.
    Number(u64),
    /// `"64K"`, `"1.5M"`, `"2G"`.
    Text(String),
}

/// An operation.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpFile {
    /// Its name, for `after` and for what is printed.
    pub name: Option<String>,
    /// The time for which ranks compute, in µs.
    pub compute_us: Option<f64>,
    /// The share of the multiprocessors that computing takes; 1 if it is left out.
    pub multiprocessors: Option<f64>,
    /// The collective, by NCCL's name.
    pub collective: Option<String>,
    /// Bytes of the larger buffer of a rank.
    pub bytes: Option<Bytes>,
    /// The type of the elements, by nccl-tests' name; float if it is left out.
    #[serde(rename = "type")]
    pub dtype: Option<String>,
    /// The root, a rank of each communicator; 0 if it is left out.
    pub root: Option<u32>,
    /// The group of communicators; all ranks in one if it is left out.
    pub group: Option<String>,
    /// The ranks that compute; all if it is left out.
    pub ranks: Option<RanksFile>,
    /// The stream: operations of a rank on one stream follow each other. `compute` or the name of the group
    /// if it is left out.
    pub stream: Option<String>,
    /// Operations that must be over before, by name: the last of that name above.
    #[serde(default)]
    pub after: Vec<String>,
}

impl StepFile {
    /// Reads TOML.
    ///
    /// # Errors
    /// `Syntax`, with line and column.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| SimError::Syntax(error.to_string().trim_end().into()))
    }

    /// The step on a cluster of so many ranks.
    ///
    /// # Errors
    /// `Cluster`, with what is wrong and what to write.
    pub fn step(&self, ranks: u32) -> Result<Step> {
        let mut builder = Builder::new(ranks);
        for (name, group) in &self.groups {
            let communicators =
                group.communicators(ranks).map_err(|error| within(&format!("group {name}"), error))?;
            builder.group(name, communicators)?;
        }
        let all = BlockFile { repeat: None, op: self.op.clone() };
        let blocks = match (self.op.is_empty(), self.block.is_empty()) {
            (false, false) => {
                return Err(wrong(
                    "[[op]] and [[block]] both say what is done",
                    "put the former into a [[block]]",
                ));
            }
            (true, true) => return Err(wrong("the step has no operations", "write [[op]] tables")),
            (false, true) => std::slice::from_ref(&all),
            (true, false) => &self.block,
        };
        for block in blocks {
            let repeat = block.repeat.unwrap_or(1);
            if block.op.is_empty() || repeat == 0 {
                return Err(wrong(
                    "a block that does nothing",
                    "give it [[block.op]], and repeat at least 1",
                ));
            }
            for _ in 0..repeat {
                for op in &block.op {
                    op.add_to(&mut builder)?;
                }
            }
        }
        builder.finish()
    }
}

impl OpFile {
    /// The name, or what the operation is.
    fn shown(&self) -> String {
        let what = self.name.as_ref().or(self.collective.as_ref());
        what.cloned().unwrap_or_else(|| "compute".into())
    }

    fn add_to(&self, builder: &mut Builder) -> Result<()> {
        let name = self.shown();
        self.try_add_to(&name, builder).map_err(|error| within(&format!("operation {name}"), error))
    }

    fn try_add_to(&self, name: &str, builder: &mut Builder) -> Result<()> {
        let (kind, group, stream) = match (&self.collective, self.compute_us) {
            (None, Some(us)) => {
                let (kind, ranks) = self.computing(us, builder.ranks())?;
                (kind, builder.computing(ranks), "compute")
            }
            (Some(collective), None) => {
                if self.ranks.is_some() {
                    return Err(wrong("ranks are for computing", "name a group, which may have ranks"));
                }
                let kind = self.collected(collective)?;
                let group = self.group.as_deref().unwrap_or("all");
                (kind, builder.group_of(group)?, group)
            }
            (Some(_), Some(_)) => {
                return Err(wrong("it has collective and compute_us", "make two operations of it"));
            }
            (None, None) => {
                return Err(wrong("it has neither collective nor compute_us", "give it one of them"));
            }
        };
        let stream = self.stream.as_deref().unwrap_or(stream).to_owned();
        builder.add((name, &stream), kind, group, &self.after)
    }

    fn computing(&self, us: f64, ranks: u32) -> Result<(Kind, Vec<u32>)> {
        if self.bytes.is_some() || self.dtype.is_some() || self.root.is_some() || self.group.is_some() {
            return Err(wrong("bytes, type, root and group are for collectives", "leave them out"));
        }
        if !(0.0..=1e12).contains(&us) {
            return Err(wrong(format!("compute_us = {us} cannot be"), "write µs from 0 on"));
        }
        let ranks = match &self.ranks {
            Some(named) => named.numbers(ranks)?,
            None => (0..ranks).collect(),
        };
        let multiprocessors = self.multiprocessors.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&multiprocessors) {
            let what = format!("multiprocessors = {multiprocessors} cannot be");
            return Err(wrong(what, "write the share that computing takes, from 0 to 1"));
        }
        Ok((Kind::Compute { us, multiprocessors }, ranks))
    }

    fn collected(&self, name: &str) -> Result<Kind> {
        if self.multiprocessors.is_some() {
            return Err(wrong("multiprocessors are for computing", "leave them out"));
        }
        // People write both.
        let known =
            if name == "all_to_all" { Some(Collective::AllToAll) } else { Collective::from_name(name) };
        let collective = known.filter(|collective| *collective != Collective::SendRecv).ok_or_else(|| {
            let all = Collective::ALL.map(Collective::name).join(", ");
            wrong(format!("collective = \"{name}\" is not known"), format!("known are {all}"))
        })?;
        let bytes = self.bytes.as_ref().ok_or_else(|| wrong("it has no bytes", "write bytes = \"64M\""))?;
        let dtype = match &self.dtype {
            None => DataType::Float32,
            Some(name) => DataType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
                let all = DataType::ALL.map(DataType::name).join(", ");
                wrong(format!("type = \"{name}\" is not known"), format!("known are {all}"))
            })?,
        };
        if self.root.is_some() && !collective.rooted() {
            return Err(wrong(format!("{name} has no root"), "leave root out"));
        }
        let root = self.root.unwrap_or(0);
        Ok(Kind::Collective(Collected { collective, bytes: bytes.value()?, dtype, root }))
    }
}

impl Bytes {
    /// The number.
    ///
    /// # Errors
    /// `Cluster` for what is no size.
    pub fn value(&self) -> Result<u64> {
        let text = match self {
            Self::Number(bytes) => return Ok(*bytes),
            Self::Text(text) => text.trim(),
        };
        let (number, unit) = match text.char_indices().last() {
            Some((at, 'k' | 'K')) => (&text[..at], 1u64 << 10),
            Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
            Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
            _ => (text, 1),
        };
        let bytes = number.trim().parse::<f64>().ok().map(|number| number * unit as f64);
        let bytes = bytes.filter(|bytes| (0.0..=2f64.powi(50)).contains(bytes));
        bytes.map(|bytes| bytes as u64).ok_or_else(|| {
            wrong(format!("bytes = \"{text}\" is no size"), "write a number of bytes, or 64K, 1.5M, 2G")
        })
    }
}

impl RanksFile {
    /// The ranks, in the order in which they are named.
    fn numbers(&self, ranks: u32) -> Result<Vec<u32>> {
        let named = match self {
            Self::List(list) => list.clone(),
            Self::Text(text) => {
                let mut named = Vec::new();
                for part in text.split(',').map(str::trim) {
                    let (first, last) = part.split_once('-').unwrap_or((part, part));
                    let bounds = first.trim().parse::<u32>().ok().zip(last.trim().parse::<u32>().ok());
                    let (first, last) = bounds.filter(|(first, last)| first <= last).ok_or_else(|| {
                        wrong(format!("ranks = \"{text}\" are not understood"), "write such as \"0-7,16\"")
                    })?;
                    // Before a range that nobody has is made.
                    check_rank(last, ranks)?;
                    named.extend(first..=last);
                }
                named
            }
        };
        let mut seen = vec![false; ranks as usize];
        for &rank in &named {
            check_rank(rank, ranks)?;
            if std::mem::replace(&mut seen[rank as usize], true) {
                return Err(wrong(format!("rank {rank} is named twice"), "name it once"));
            }
        }
        if named.is_empty() {
            return Err(wrong("no ranks are named", "name some, or leave ranks out"));
        }
        Ok(named)
    }
}

fn check_rank(rank: u32, ranks: u32) -> Result<()> {
    if rank < ranks {
        return Ok(());
    }
    Err(wrong(
        format!("the cluster has no rank {rank}"),
        format!("its ranks are 0 to {}", ranks.saturating_sub(1)),
    ))
}

impl GroupFile {
    /// The communicators.
    fn communicators(&self, ranks: u32) -> Result<Vec<Vec<u32>>> {
        let named = match &self.ranks {
            Some(named) => named.numbers(ranks)?,
            None => (0..ranks).collect(),
        };
        let count = named.len() as u32;
        let stride = self.stride.unwrap_or(1);
        let size = self.size.unwrap_or(count / stride.max(1));
        let of_block = u64::from(size) * u64::from(stride);
        if of_block == 0 || !u64::from(count).is_multiple_of(of_block) {
            return Err(wrong(
                format!("{count} ranks are no whole number of {size} × {stride}"),
                "choose size and stride whose product divides the number of ranks",
            ));
        }
        let blocks = named.chunks(of_block as usize);
        let one = |block: &[u32], at: u32| {
            block.iter().skip(at as usize).step_by(stride as usize).copied().collect()
        };
        Ok(blocks.flat_map(|block| (0..stride).map(move |at| one(block, at))).collect())
    }
}

/// Puts the place before what is wrong there.
fn within(place: &str, error: SimError) -> SimError {
    match error {
        SimError::Cluster { what, remedy } => wrong(format!("{place}: {what}"), remedy),
        other => other,
    }
}

//! The operations of a step, in order, each with what it waits for.

use std::collections::BTreeMap;

use hawser_types::{Call, Collective, DataType};

use crate::error::{Result, wrong};

/// Most operations of a step.
pub const MOST_OPS: usize = 20_000;

/// A step of training.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The operations, in an order in which each stands after all that it waits for.
    pub ops: Vec<Op>,
    /// The groups that operations name.
    pub groups: Vec<Group>,
    /// Classes of ranks that belong to the same groups: the first rank of each, and how many there are.
    pub classes: Vec<(u32, u32)>,
}

/// An operation: all communicators of a group run it at the same time.
#[derive(Debug, Clone, PartialEq)]
pub struct Op {
    /// Its name.
    pub name: String,
    /// Its stream.
    pub stream: String,
    /// The work.
    pub kind: Kind,
    /// The place of its group.
    pub group: usize,
    /// The operations that must be over before.
    pub after: Vec<usize>,
    /// µs from then on until it begins.
    pub delay_us: f64,
}

/// The work of an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Every rank computes.
    Compute {
        /// The time in µs.
        us: f64,
        /// The share of the multiprocessors that it takes, 0 to 1.
        multiprocessors: f64,
    },
    /// Every communicator calls a collective.
    Collective(Collected),
}

/// A collective that communicators call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collected {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the larger buffer of a rank.
    pub bytes: u64,
    /// The type of the elements.
    pub dtype: DataType,
    /// The root.
    pub root: u32,
}

impl Collected {
    /// The call in a communicator of so many ranks.
    pub fn call(&self, ranks: u32) -> Call {
        Call::of_bytes(self.collective, self.bytes, self.dtype, self.root, ranks)
    }
}

/// Communicators, or ranks that compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// The ranks of each communicator; those that compute are one.
    pub communicators: Vec<Vec<u32>>,
    /// The places of the classes that its ranks are of.
    pub classes: Vec<usize>,
}

/// A step that is being made.
#[derive(Debug)]
pub struct Builder {
    ranks: u32,
    ops: Vec<Op>,
    groups: Vec<Group>,
    /// The names that operations may use.
    by_name: BTreeMap<String, usize>,
    /// The last operation of each name.
    named: BTreeMap<String, usize>,
}

impl Builder {
    /// A step without operations on so many ranks.
    pub fn new(ranks: u32) -> Self {
        let mut builder = Self {
            ranks,
            ops: Vec::new(),
            groups: Vec::new(),
            by_name: BTreeMap::new(),
            named: BTreeMap::new(),
        };
        builder.push("all", vec![(0..ranks).collect()]);
        builder.by_name.insert("all".into(), 0);
        builder
    }

    /// The number of ranks of the cluster.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Adds a group of communicators. Returns its place.
    ///
    /// # Errors
    /// `Cluster` for a name that is taken.
    pub fn group(&mut self, name: &str, communicators: Vec<Vec<u32>>) -> Result<usize> {
        if self.by_name.contains_key(name) {
            return Err(wrong(format!("there is a group {name} already"), "give it another name"));
        }
        let at = self.push(name, communicators);
        self.by_name.insert(name.into(), at);
        Ok(at)
    }

    /// The place of a group.
    ///
    /// # Errors
    /// `Cluster` for a name that no group has.
    pub fn group_of(&self, name: &str) -> Result<usize> {
        self.by_name.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
            wrong(format!("there is no group \"{name}\""), format!("known are {}", known.join(", ")))
        })
    }

    /// The place of the group of ranks that compute.
    pub fn computing(&mut self, ranks: Vec<u32>) -> usize {
        let is_it = |group: &Group| matches!(&group.communicators[..], [one] if *one == ranks);
        let known = self.groups.iter().position(is_it);
        known.unwrap_or_else(|| self.push("", vec![ranks]))
    }

    /// Adds an operation behind all others. The order of its stream is not in `after`.
    ///
    /// # Errors
    /// `Cluster` for names that no operation above has, too many operations, and roots that communicators
    /// have not.
    pub fn add(
        &mut self,
        (name, stream): (&str, &str),
        kind: Kind,
        group: usize,
        after: &[String],
    ) -> Result<()> {
        let find = |other: &String| {
            self.named.get(other).copied().ok_or_else(|| {
                wrong(
                    format!("no operation \"{other}\" stands above"),
                    "name one that does, or change the order",
                )
            })
        };
        let after = after.iter().map(find).collect::<Result<Vec<usize>>>()?;
        self.add_after((name, stream), kind, group, (after, 0.0))
    }

    /// Adds an operation that begins so many µs after the operations at these places.
    ///
    /// # Errors
    /// As [`Builder::add`].
    pub fn add_after(
        &mut self,
        (name, stream): (&str, &str),
        kind: Kind,
        group: usize,
        (after, delay_us): (Vec<usize>, f64),
    ) -> Result<()> {
        if self.ops.len() >= MOST_OPS {
            let what = format!("the step has more than {MOST_OPS} operations");
            return Err(wrong(what, "describe a part of it: equal parts take equal times"));
        }
        if let Kind::Collective(Collected { root, .. }) = kind {
            let least = self.groups[group].communicators.iter().map(Vec::len).min().unwrap_or(0);
            if root as usize >= least {
                return Err(wrong(
                    format!("a communicator of {least} ranks has no root {root}"),
                    "name one that it has",
                ));
            }
        }
        self.named.insert(name.into(), self.ops.len());
        self.ops.push(Op { name: name.into(), stream: stream.into(), kind, group, after, delay_us });
        Ok(())
    }

    /// The number of operations so far.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The step, in which the operations of a rank on one stream follow each other.
    ///
    /// # Errors
    /// `Cluster` for a step without operations.
    pub fn finish(mut self) -> Result<Step> {
        if self.ops.is_empty() {
            return Err(wrong("the step has no operations", "give it some"));
        }
        let classes = self.classes();
        let mut last: BTreeMap<(String, usize), usize> = BTreeMap::new();
        for (at, op) in self.ops.iter_mut().enumerate() {
            let before = |class: &usize| last.insert((op.stream.clone(), *class), at);
            let order: Vec<usize> = self.groups[op.group].classes.iter().filter_map(before).collect();
            op.after.extend(order);
            op.after.sort_unstable();
            op.after.dedup();
        }
        Ok(Step { ops: self.ops, groups: self.groups, classes })
    }

    fn push(&mut self, name: &str, communicators: Vec<Vec<u32>>) -> usize {
        self.groups.push(Group { name: name.into(), communicators, classes: Vec::new() });
        self.groups.len() - 1
    }

    /// Finds the classes of ranks, and tells the groups.
    fn classes(&mut self) -> Vec<(u32, u32)> {
        let mut belongs: Vec<Vec<usize>> = vec![Vec::new(); self.ranks as usize];
        for (at, group) in self.groups.iter().enumerate() {
            group.communicators.iter().flatten().for_each(|rank| belongs[*rank as usize].push(at));
        }
        let (mut classes, mut by_groups) = (Vec::new(), BTreeMap::new());
        for (rank, groups) in (0..).zip(belongs) {
            let class = *by_groups.entry(groups).or_insert_with(|| {
                classes.push((rank, 0));
                classes.len() - 1
            });
            classes[class].1 += 1;
        }
        for (groups, class) in by_groups {
            groups.into_iter().for_each(|group| self.groups[group].classes.push(class));
        }
        classes
    }
}

//! The times of collectives alone: each kind of call in each group once.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use hawser_base::env;
use hawser_plan::PlanConfig;
use hawser_runtime::comm;
use hawser_runtime::tuning::CallAttributes;
use hawser_sim::cluster::Form;
use hawser_sim::step::{Alone, Collected, Group, Kind, Op, Part, Step};
use hawser_sim::{Cluster, Options, SimError, Twin};

use crate::explain;
use crate::progress::Progress;

/// A kind of call in a group.
type Key = (usize, Collected);

/// A collective alone, and how it runs.
pub struct Found {
    /// Its time, and the links that it uses.
    pub alone: Alone,
    /// The decisions, one for each form that its communicators have.
    pub decisions: Vec<String>,
    /// True if a part of it was run, and its time carried on.
    pub is_carried_on: bool,
}

/// The times of collectives alone, and of computing.
pub struct Times<'a> {
    cluster: &'a Cluster,
    seed: u64,
    stop: &'a dyn Fn() -> bool,
    found: Vec<(Key, Found)>,
    /// By group, and by time and share of the multiprocessors.
    computing: BTreeMap<(usize, u64, u64), Alone>,
}

impl<'a> Times<'a> {
    /// Nothing is known yet.
    pub fn new(cluster: &'a Cluster, seed: u64, stop: &'a dyn Fn() -> bool) -> Self {
        Self { cluster, seed, stop, found: Vec::new(), computing: BTreeMap::new() }
    }

    /// Predicts everything that the step has. Returns false if the user has interrupted it.
    ///
    /// # Errors
    /// The planner refuses a call, or settings are wrong.
    pub fn find(&mut self, step: &Step) -> Result<bool> {
        let keys = keys(step);
        let progress = Progress::new(keys.len() as u64, "collectives");
        for op in &step.ops {
            if let Kind::Compute { us, multiprocessors } = op.kind {
                let key = (op.group, us.to_bits(), multiprocessors.to_bits());
                let share = if self.cluster.has_gpus() { multiprocessors } else { 0.0 };
                let classes = &step.groups[op.group].classes;
                self.computing.entry(key).or_insert_with(|| Alone::computing(us, share, classes));
            }
        }
        for (group, collected) in keys {
            progress.say(format!("{} of {} bytes", collected.collective.name(), collected.bytes));
            match self.predict(step, &step.groups[group], collected)? {
                Some(found) => self.found.push(((group, collected), found)),
                None => return Ok(false),
            }
            progress.inc();
        }
        Ok(true)
    }

    /// The time of each operation alone.
    ///
    /// # Errors
    /// One is not known: a bug, as [`Times::find`] has found all.
    pub fn of_ops(&self, step: &Step) -> Result<Vec<&Alone>> {
        let one = |op: &Op| match op.kind {
            Kind::Compute { us, multiprocessors } => {
                self.computing.get(&(op.group, us.to_bits(), multiprocessors.to_bits()))
            }
            Kind::Collective(_) => self.of(op).map(|found| &found.alone),
        };
        step.ops
            .iter()
            .map(|op| one(op).with_context(|| format!("operation {} has no time", op.name)))
            .collect()
    }

    /// The time of a collective, if it is known.
    pub fn of(&self, op: &Op) -> Option<&Found> {
        let Kind::Collective(collected) = op.kind else { return None };
        self.found.iter().find(|(key, _)| *key == (op.group, collected)).map(|(_, found)| found)
    }

    /// Kinds of calls that are known, and all of them.
    pub fn progress(&self, step: &Step) -> (usize, usize) {
        (self.found.len(), keys(step).len())
    }

    /// Predicts a call of all communicators of a group; None if the user has interrupted it.
    fn predict(&self, step: &Step, group: &Group, collected: Collected) -> Result<Option<Found>> {
        let mut forms: BTreeMap<Form, Vec<Vec<u32>>> = BTreeMap::new();
        for ranks in &group.communicators {
            forms.entry(self.cluster.form(ranks)).or_default().push(ranks.clone());
        }
        let mut found = Found { alone: Alone::default(), decisions: Vec::new(), is_carried_on: false };
        for communicators in forms.values() {
            let twin = Twin::of_communicators(self.cluster, communicators)?;
            let topology = twin.topology();
            let plan_config = comm::plan_config_elsewhere(topology, self.cluster.most_blocks())?;
            let (tuners, _) = explain::tuners(None, topology, &plan_config)?;
            let copy_engines = env::settings().dma_enable && tuners.wants_copy_engines();
            let plan_config = PlanConfig { copy_engines, ..plan_config };
            let call = collected.call(topology.size());
            let attributes = CallAttributes::default();
            let tuned = tuners.choose(&call, attributes, topology, &plan_config)?;
            let config = tuners.plan_config(&call, attributes, topology, &tuned.choice, &plan_config);
            let options = Options { seed: self.seed, stop: self.stop, ..Options::default() };
            let prediction = match twin.predict(&call, &tuned.choice, &config, &options) {
                Err(SimError::Interrupted) => return Ok(None),
                prediction => prediction?,
            };
            let share = twin.multiprocessors(&tuned.choice, &config);
            // The ranks of a class do the same; the first of them stands for all.
            let is_here =
                |class: &&usize| communicators.iter().flatten().any(|r| *r == step.classes[**class].0);
            let classes = group.classes.iter().filter(is_here).filter(|_| share > 0.0);
            let multiprocessors = classes.map(|class| (*class, share)).collect();
            found.alone.parts.push(Part { us: prediction.us, links: prediction.used, multiprocessors });
            found.decisions.push(tuned.choice.to_string());
            found.is_carried_on |= prediction.is_carried_on;
        }
        Ok(Some(found))
    }
}

/// The kinds of calls of a step, in the order in which they come.
fn keys(step: &Step) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for op in &step.ops {
        if let Kind::Collective(collected) = op.kind
            && !keys.contains(&(op.group, collected))
        {
            keys.push((op.group, collected));
        }
    }
    keys
}

//! `hawser perf --simulate`: the table of a cluster that is not here, with predicted times.
//!
//! The real planner decides about every row, as `hawser explain --cluster` shows, and the twin runs the
//! program that it decided for (`core/sim`).

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use hawser_base::env;
use hawser_plan::p2p::Message;
use hawser_plan::{Call, Collective, PlanConfig, algo, vector};
use hawser_runtime::tuning::{CallAttributes, Tuners};
use hawser_sim::{Cluster, Options as SimOptions, Prediction, SimError, Twin};

use super::collective::Test;
use super::library::About;
use super::options::Options;
use super::report::{Job, Outcome, Reporter, Row};
use super::run::{self, Series};
use crate::cluster;
use crate::explain;
use crate::interrupt;

/// Runs `hawser perf --simulate`. Returns true: nothing is computed that could be wrong.
///
/// # Errors
/// The cluster or the options cannot be, or nothing is left to choose from.
pub fn run(options: &Options, name: &str) -> Result<bool> {
    options.validate()?;
    // The header says what is done: one operation, whose result nobody checks.
    let options = &Options { check: 0, warmup: 0, iterations: 1, ..options.clone() };
    let cluster = cluster::read(name)?;
    let plan_config = cluster::settings(&cluster)?;
    let (tuners, rules) = explain::tuners(None, &cluster.topology, &plan_config)?;
    let copy_engines = env::settings().dma_enable && tuners.wants_copy_engines();
    let plan_config = PlanConfig { copy_engines, ..plan_config };
    let series = run::plan(options, cluster.topology.size())?;
    let rows = series.len() as u64 * options.sizes().len() as u64;
    let mut reporter = Reporter::new(options, job(&cluster, name, &rules), rows)?;
    if run::leaves_out_hypercube(options, &series) {
        reporter.note("hypercube is left out: it needs a power of two of ranks");
    }
    let world = World { options, twin: Twin::new(&cluster), tuners, plan_config, stop: interrupt::flag()? };
    let mut done = 0;
    for one in &series {
        if one.first {
            reporter.begin(one.test);
        }
        for bytes in options.sizes() {
            reporter.working(|| format!("{} of {bytes} bytes", one.test.name()));
            let Some(row) = world.row(one, bytes)? else {
                reporter.note(&format!("interrupted: {done} of {rows} sizes are done"));
                reporter.finish()?;
                bail!("interrupted after {done} of {rows} sizes");
            };
            reporter.row(row, 0);
            done += 1;
        }
    }
    reporter.finish()
}

/// All that rows are made with.
struct World<'a> {
    options: &'a Options,
    twin: Twin<'a>,
    tuners: Tuners,
    plan_config: PlanConfig,
    stop: Arc<AtomicBool>,
}

impl World<'_> {
    /// A row of the table; None if the user has interrupted it.
    fn row(&self, one: &Series, bytes: u64) -> Result<Option<Row>> {
        let topology = self.twin.topology();
        let (ranks, root) = (topology.size(), one.root.unwrap_or(0));
        let geometry = one.test.geometry(bytes, one.dtype, ranks);
        let row = |us: f64| {
            let (algorithm, bus) = one.test.bandwidth(geometry, one.dtype, ranks, us / 1e6);
            Row {
                communicator: None,
                collective: one.test.name(),
                size: geometry.send.max(geometry.recv) * one.dtype.size() as u64,
                count: geometry.count,
                dtype: one.dtype.name(),
                op: one.op.map_or("none", |op| op.name()),
                root: one.root.map_or(-1, i64::from),
                out_of_place: Outcome { time_us: us, algorithm, bus, wrong: None, operations: 1 },
                in_place: None,
                decision: None,
                choice: None,
                stages: None,
            }
        };
        if let Some(prediction) = self.by_messages(one, geometry.count)? {
            let Some(prediction) = prediction else { return Ok(None) };
            let choice = || format!("messages{}", seen(&prediction));
            return Ok(Some(Row { choice: self.options.explain.then(choice), ..row(prediction.us) }));
        }
        let call = one.test.call(geometry.count, one.dtype, one.op, root).context("a test without a call")?;
        let attributes = CallAttributes::default();
        let tuned = self.tuners.choose(&call, attributes, topology, &self.plan_config)?;
        let config = self.tuners.plan_config(&call, attributes, topology, &tuned.choice, &self.plan_config);
        let stop = || self.stop.load(Ordering::Relaxed);
        let options = SimOptions { seed: self.options.seed, stop: &stop, ..SimOptions::default() };
        let prediction = match self.twin.predict(&call, &tuned.choice, &config, &options) {
            Err(SimError::Interrupted) => return Ok(None),
            prediction => prediction?,
        };
        Ok(Some(Row {
            decision: Some((&tuned.choice).into()),
            choice: self.options.explain.then(|| format!("{tuned}{}", seen(&prediction))),
            ..row(prediction.us)
        }))
    }

    /// Runs a test that is made of messages, or a collective of more ranks than programs are offered for.
    /// None for all others; None within it if the user has interrupted it.
    fn by_messages(&self, one: &Series, count: u64) -> Result<Option<Option<Prediction>>> {
        /// The places of input and output: any that are apart.
        const BUFFERS: [u64; 2] = [1 << 20, 1 << 60];
        let (ranks, size) = (self.twin.topology().size(), one.dtype.size() as u64);
        let collective = match one.test {
            Test::One(collective) => collective,
            Test::Hypercube => return self.hypercube(BUFFERS, count * size).map(Some),
        };
        let neighbours = |rank: u32| {
            let message = |peer, send, addr| Message { peer, send, addr, bytes: count * size };
            let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            vec![message(to, true, BUFFERS[0]), message(from, false, BUFFERS[1])]
        };
        if collective == Collective::SendRecv {
            return self.run_messages(&neighbours, true).map(Some);
        }
        if ranks <= algo::most_ranks(collective) {
            return Ok(None);
        }
        let call = one.test.call(count, one.dtype, one.op, one.root.unwrap_or(0));
        let [input, output] = BUFFERS;
        let call = Call { input, output, ..call.context("a test without a call")? };
        let counts = vec![count; ranks as usize];
        let Some(vector) = vector::of_many_ranks(&call, &counts) else { return Ok(None) };
        // What is wrong with the call is wrong on rank 0 too.
        vector.messages(one.dtype, 0, ranks)?;
        let messages = |rank| vector.messages(one.dtype, rank, ranks).unwrap_or_default();
        self.run_messages(&messages, collective == Collective::AllToAll).map(Some)
    }

    /// Runs the exchanges of a hypercube one after the other, each until its last rank has ended: the time of
    /// all, and what the longest saw. None if the user has interrupted it.
    fn hypercube(&self, [input, output]: [u64; 2], block: u64) -> Result<Option<Prediction>> {
        let ranks = self.twin.topology().size();
        let mut longest: Option<Prediction> = None;
        let (mut us, mut events) = (0.0, 0);
        for step in 0..ranks.ilog2() {
            let exchanged = |rank: u32| {
                let peer = rank ^ 1 << step;
                let message = |send, addr| Message { peer, send, addr, bytes: block << step };
                vec![message(true, input), message(false, output)]
            };
            let Some(one) = self.run_messages(&exchanged, false)? else { return Ok(None) };
            us += one.us;
            events += one.events;
            if longest.as_ref().is_none_or(|longest| longest.us < one.us) {
                longest = Some(one);
            }
        }
        let longest = longest.context("a hypercube of one rank has no exchanges")?;
        Ok(Some(Prediction { us, events, ..longest }))
    }

    /// Runs messages; None if the user has interrupted it.
    fn run_messages(
        &self,
        messages: &dyn Fn(u32) -> Vec<Message>,
        is_symmetric: bool,
    ) -> Result<Option<Prediction>> {
        let stop = || self.stop.load(Ordering::Relaxed);
        let options = SimOptions { seed: self.options.seed, stop: &stop, ..SimOptions::default() };
        match self.twin.predict_messages(messages, is_symmetric, &self.plan_config, &options) {
            Err(SimError::Interrupted) => Ok(None),
            prediction => Ok(Some(prediction?)),
        }
    }
}

/// Tells what the twin saw.
fn seen(prediction: &Prediction) -> String {
    let mut text = String::new();
    let _ = write!(text, "\n  simulated: {:.1} µs in {} events", prediction.us, prediction.events);
    if prediction.is_carried_on {
        text.push_str("; a part of the call was run, and its time carried on");
    }
    if let Some((link, share)) = &prediction.busiest {
        let _ = write!(text, "; busiest link: {link}, {:.0} % of its bytes per second", share * 100.0);
    }
    text
}

/// The job as the lines above the table describe it.
fn job(cluster: &Cluster, name: &str, rules: &str) -> Job {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let library = About { path: Some(format!("simulated on {name}{rules}")), version };
    let most = cluster.kinds.iter().map(|kind| kind.ranks).max().unwrap_or(1);
    Job { library, ranks: cluster.topology.size(), threads: most, gpus: 1, devices: cluster.origins.clone() }
}

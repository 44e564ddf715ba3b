//! `hawser tune --simulate`: rules for machines that are not here, from predicted times.
//!
//! Every way is what a rule makes the real planner do, and the twin runs the plan. What the cost model thinks
//! hopeless is not simulated.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use hawser_plan::{Call, Collective, PlanConfig};
use hawser_runtime::tuning::{CallAttributes, Tuners};
use hawser_sim::{Cluster, Options as SimOptions, SimError, Twin};
use hawser_tuner::files::RuleFile;

use super::bench::{self, Sample, Way};
use super::state::State;
use super::{Options, decide, plot, report};
use crate::progress::Progress;
use crate::subprocess::Folder;
use crate::{cluster, explain, files, interrupt, output};

/// A way that the cost model thinks so many times slower than its own choice is left out.
const HOPELESS: f32 = 4.0;
/// The factor by which two sizes with different winners may lie apart: others in between are simulated until
/// none are further.
const NEAR: f64 = 1.25;
/// Steps that are run of a call: a tenth of what a prediction of its own has.
const STEPS: u64 = 400_000;
/// Times that count as many rounds, where all would be equal.
const EQUAL_ROUNDS: usize = 3;

/// Runs `hawser tune --simulate`.
///
/// # Errors
/// The cluster cannot be, a file cannot be read or written, or Ctrl-C: the same command goes on then.
pub fn run(options: &Options, name: &str) -> Result<()> {
    let cluster = cluster::read(name)?;
    let simulator = Simulator::new(options, &cluster)?;
    match &options.check {
        Some(rules) => simulator.check(rules),
        None => simulator.tune(name),
    }
}

/// Ways, and the times of each.
type OfWays = Vec<(String, Vec<Sample>)>;

struct Simulator<'a> {
    options: &'a Options,
    cluster: &'a Cluster,
    twin: Twin<'a>,
    config: PlanConfig,
    stop: Arc<AtomicBool>,
}

impl<'a> Simulator<'a> {
    fn new(options: &'a Options, cluster: &'a Cluster) -> Result<Self> {
        if cluster.topology.size() < 2 {
            bail!("the cluster has one rank, and rules are for at least 2");
        }
        let config = cluster::settings(cluster)?;
        // What would decide instead of the rules.
        let config = PlanConfig { algorithms: [None; 8], routes: [None; 8], ..config };
        Ok(Self { options, cluster, twin: Twin::new(cluster), config, stop: interrupt::flag()? })
    }

    /// Collectives and sizes, in order.
    fn questions(&self) -> Vec<(Collective, u64)> {
        let (options, last) = (self.options, bench::last(self.options, false));
        let sizes =
            std::iter::successors(Some(options.min_bytes.min(last)), |b| b.checked_mul(options.factor));
        let sizes: Vec<u64> = sizes.take_while(|bytes| *bytes <= last).collect();
        options.collectives.iter().flat_map(|c| sizes.iter().map(|bytes| (*c, *bytes))).collect()
    }

    /// Finds rules, and writes them.
    fn tune(&self, name: &str) -> Result<()> {
        let options = self.options;
        super::check_outputs(options)?;
        let questions = self.questions();
        let mut state = State::open(&super::state_file(&options.out), &self.question(), options.restart)?;
        let say = |text: &str| if options.json { Ok(()) } else { output::print(text) };
        let lines: String = self.cluster.origins.iter().map(|line| format!("# {line}\n")).collect();
        say(&lines)?;
        let done = state.rounds() as usize;
        if done > 0 {
            say(&format!("# going on after {done} of {} sizes of an interrupted run\n", questions.len()))?;
        }
        let progress = Progress::new(questions.len() as u64, "sizes");
        progress.set(done as u64);
        for (collective, bytes) in questions.iter().skip(done) {
            progress.say(format!("{} of {bytes} bytes", collective.name()));
            self.add(&mut state, (*collective, *bytes), questions.len())?;
            progress.inc();
        }
        progress.end();
        let progress = Progress::waiting("where rules begin and end:");
        while let Some((collective, bytes)) = self.next_between(&state) {
            progress.say(format!("{} of {bytes} bytes", collective.name()));
            self.add(&mut state, (collective, bytes), questions.len())?;
        }
        progress.end();
        self.write(name, &state)?;
        state.remove();
        Ok(())
    }

    /// Simulates all ways for a size, and keeps what they take.
    fn add(&self, state: &mut State, (collective, bytes): (Collective, u64), all: usize) -> Result<()> {
        let found = self.ways_of(collective, bytes)?;
        let Some(found) = found.filter(|_| self.options.stop_after != Some(state.rounds())) else {
            let done = state.rounds();
            let all = all.max(done as usize + 1);
            bail!("interrupted after {done} of {all} sizes; the same command goes on from here");
        };
        state.add(found)
    }

    /// A size between two others, at which a rule would begin or end that nobody has looked at.
    fn next_between(&self, state: &State) -> Option<(Collective, u64)> {
        let ranks = self.cluster.topology.size();
        let edges = decide::edges(&decide::tables(state.samples()), self.options.gain / 100.0, NEAR);
        edges.iter().find_map(|edge| {
            let collective = *self.options.collectives.iter().find(|c| c.name() == edge.collective)?;
            // As many bytes as the call really has.
            let bytes = bench::call(collective, edge.middle, ranks).total_bytes(ranks);
            (edge.bytes.0 < bytes && bytes < edge.bytes.1).then_some((collective, bytes))
        })
    }

    /// Writes the rules and the picture, and prints what was found.
    fn write(&self, name: &str, state: &State) -> Result<()> {
        let options = self.options;
        let tables = decide::tables(state.samples());
        let found = decide::rules(&tables, options.gain / 100.0);
        let topology = &self.cluster.topology;
        let attributes = report::CallAttributes {
            device: name,
            ranks: topology.size(),
            hosts: topology.hosts(),
            rounds: self.seeds() as u32,
            gain: options.gain,
            files: "",
            simulated: &self.cluster.origins,
        };
        let text = report::rule_file(&tables, &found, &attributes);
        // What is written has to be what the library reads.
        RuleFile::named(&options.out)
            .parse(&text)
            .context("the rules that were found cannot be read: a bug")?;
        files::write(&options.out, &text)?;
        let plot = options.plot.clone().unwrap_or_else(|| options.out.with_extension("svg"));
        files::write(&plot, &plot::svg(&tables, &found, &attributes))?;
        if options.json {
            return output::print_json(&report::json(&tables, &found));
        }
        output::print(&report::summary(&tables, &found))?;
        let out = options.out.display();
        let rules = output::counted(found.len(), "rule");
        output::print(&format!("# written: {out} ({rules}), {}\n", plot.display()))
    }

    /// Simulates a rule file and the cost model beside each other.
    fn check(&self, rules: &Path) -> Result<()> {
        let text = fs::read_to_string(rules).with_context(|| format!("cannot read {}", rules.display()))?;
        RuleFile::named(rules).parse(&text).with_context(|| format!("{} cannot be used", rules.display()))?;
        let way = Way::Rules(rules.to_owned());
        let tuners = self.tuners(rules)?;
        let (mut samples, questions) = (Vec::new(), self.questions());
        let progress = Progress::new(questions.len() as u64, "sizes");
        let mut is_whole = true;
        for (collective, bytes) in questions {
            let call = bench::call(collective, bytes, self.cluster.topology.size());
            for (way, tuners) in [(&Way::Default, &Tuners::default()), (&way, &tuners)] {
                match self.samples(way, tuners, &call)? {
                    Some(found) => samples.extend(found.into_iter().map(|sample| (way.to_string(), sample))),
                    None => is_whole = false,
                }
            }
            if !is_whole {
                break;
            }
            progress.inc();
        }
        progress.end();
        let tables = decide::tables(samples.iter().map(|(way, sample)| (way.as_str(), sample)));
        let (text, slower) = report::comparison(&tables, self.options.gain / 100.0);
        match self.options.json {
            true => output::print_json(&report::json(&tables, &[]))?,
            false => output::print(&text)?,
        }
        if !is_whole {
            bail!("interrupted: the sizes above are done");
        }
        match slower {
            0 => Ok(()),
            _ => {
                bail!("the rules are slower than the cost model at {slower} sizes, on this simulated cluster")
            }
        }
    }

    /// The times of all ways for a size; None if the user has interrupted it.
    fn ways_of(&self, collective: Collective, bytes: u64) -> Result<Option<OfWays>> {
        let topology = &self.cluster.topology;
        let call = bench::call(collective, bytes, topology.size());
        let default = Tuners::default();
        let own = default.choose(&call, CallAttributes::default(), topology, &self.config)?.choice;
        let mut found = Vec::new();
        let ways = bench::ways_of(&call, topology, &self.config, &self.options.channels)?;
        for (way, us) in std::iter::once((Way::Default, 0.0)).chain(ways) {
            if us > own.predicted_us * HOPELESS {
                continue;
            }
            let is_default = matches!(way, Way::Default);
            let forced = if is_default { None } else { Some(self.forced(&way)?) };
            let Some(samples) = self.samples(&way, forced.as_ref().unwrap_or(&default), &call)? else {
                return Ok(None);
            };
            if !samples.is_empty() {
                found.push((way.to_string(), samples));
            }
        }
        Ok(Some(found))
    }

    /// The tuners of a rule that makes every call take a way.
    fn forced(&self, way: &Way) -> Result<Tuners> {
        let folder = Folder::new()?;
        let path: PathBuf = folder.path().join("rules.toml");
        fs::write(&path, format!("[[rule]]\nuse = {}\n", Way::action(&way.to_string())))
            .context("a rule file for a simulation")?;
        self.tuners(&path)
    }

    fn tuners(&self, rules: &Path) -> Result<Tuners> {
        let name = rules.to_str().context("the rule file's path is no text")?;
        Ok(explain::tuners(Some(name), &self.cluster.topology, &self.config)?.0)
    }

    /// Times to simulate: more than one only if ranks begin at different moments.
    fn seeds(&self) -> u64 {
        if self.cluster.start_skew_us > 0.0 { u64::from(self.options.rounds) } else { 1 }
    }

    /// The times of a way; empty where it cannot run so, None if the user has interrupted it.
    fn samples(&self, way: &Way, tuners: &Tuners, call: &Call) -> Result<Option<Vec<Sample>>> {
        let topology = &self.cluster.topology;
        let attributes = CallAttributes::default();
        let tuned = tuners.choose(call, attributes, topology, &self.config)?;
        let choice = &tuned.choice;
        if let Way::Forced { algorithm, route, .. } = way
            && (choice.key.algorithm != *algorithm || choice.route != *route)
        {
            return Ok(Some(Vec::new()));
        }
        let config = tuners.plan_config(call, attributes, topology, choice, &self.config);
        let stop = || self.stop.load(Ordering::Relaxed);
        let mut samples = Vec::new();
        for seed in 0..self.seeds() {
            let options = SimOptions { seed, most_steps: STEPS, stop: &stop, ..SimOptions::default() };
            let us = match self.twin.predict(call, choice, &config, &options) {
                Err(SimError::Interrupted) => return Ok(None),
                // What the twin cannot run is not known to be better.
                Err(SimError::NotSimulated(_)) if !matches!(way, Way::Default) => {
                    return Ok(Some(Vec::new()));
                }
                prediction => prediction?.us,
            };
            samples.push(Sample {
                collective: call.collective.name().to_owned(),
                bytes: call.total_bytes(topology.size()),
                us,
                ran: choice.to_string(),
            });
        }
        while samples.len() < EQUAL_ROUNDS {
            samples.extend(samples.last().cloned());
        }
        Ok(Some(samples))
    }

    /// The simulation in words: two runs with the same words can be put together.
    fn question(&self) -> String {
        let Options { collectives, min_bytes, factor, channels, .. } = self.options;
        let names: Vec<&str> = collectives.iter().map(|c| c.name()).collect();
        format!(
            "{} of {min_bytes}..{} by {factor}, channels {channels:?}, {} times, simulated on {:?}; hawser \
             {}",
            names.join(","),
            bench::last(self.options, false),
            self.seeds(),
            (
                &self.cluster.kinds,
                &self.cluster.hosts.len(),
                self.cluster.fabric,
                self.cluster.topology.digest()
            ),
            env!("CARGO_PKG_VERSION")
        )
    }
}

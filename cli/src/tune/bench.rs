//! The ways in which collectives can run here, and one measurement of one way.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use hawser_plan::Scalar;
use hawser_plan::choose::{self, Outcome};
use hawser_plan::{Algorithm, Call, Collective, DataType, PlanConfig, ReduceOp, Route, Topology};
use serde::{Deserialize, Serialize};

use hawser_tuner::write::quoted;

use super::Options;
use super::programs::Programs;
use crate::subprocess::{self, Folder, Row, Sweep};

/// A way to run: what a rule's `use` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// As the cost model has it.
    Default,
    /// As a rule file has it.
    Rules(PathBuf),
    /// By a program of the user's, of this name.
    Program(String),
    /// A choice that is forced.
    Forced {
        /// The family of algorithms.
        algorithm: Algorithm,
        /// The executor and the protocol.
        route: Route,
        /// The number of channels; None leaves it to the cost model.
        channels: Option<u32>,
    },
}

/// The beginning of the words for a program.
const PROGRAM: &str = "program ";

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Rules(_) => f.write_str("rules"),
            Self::Program(name) => write!(f, "{PROGRAM}{name}"),
            Self::Forced { algorithm, route, channels } => {
                write!(f, "{}/{}", algorithm.name(), route.name())?;
                channels.map_or(Ok(()), |channels| write!(f, "/{channels}"))
            }
        }
    }
}

impl Way {
    /// The words of a rule's `use`; empty for the default.
    pub fn action(name: &str) -> String {
        if let Some(program) = Self::program_of(name) {
            return format!("{{ program = {} }}", quoted(program));
        }
        let mut parts = name.split('/');
        let (Some(algorithm), Some(executor), Some(protocol)) = (parts.next(), parts.next(), parts.next())
        else {
            return String::new();
        };
        let channels = parts.next().map_or_else(String::new, |channels| format!(", channels = {channels}"));
        let (algorithm, protocol) = (snake(algorithm), protocol.to_lowercase());
        format!(
            "{{ algorithm = \"{algorithm}\", executor = \"{executor}\", protocol = \"{protocol}\"{channels} \
             }}"
        )
    }
}

impl Way {
    /// The program that the words of a way name.
    pub fn program_of(name: &str) -> Option<&str> {
        name.strip_prefix(PROGRAM)
    }
}

/// `AllPairs` as rules spell it.
fn snake(name: &str) -> String {
    let (mut text, mut before) = (String::new(), None);
    for c in name.chars() {
        // Of two words, not of letters that stand for words (PAT).
        if c.is_uppercase() && before.is_some_and(char::is_lowercase) {
            text.push('_');
        }
        text.extend(c.to_lowercase());
        before = Some(c);
    }
    text
}

/// A time that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The collective.
    pub collective: String,
    /// Bytes of the larger of input and output.
    pub bytes: u64,
    /// Microseconds of one operation.
    pub us: f64,
    /// The decision by which it ran.
    pub ran: String,
}

/// The job that measures.
pub struct Bench<'a> {
    options: &'a Options,
    is_host: bool,
    ranks: u32,
    ways: Vec<Way>,
    programs: &'a Programs,
}

impl<'a> Bench<'a> {
    /// Finds the ways in which any of the sizes can run.
    ///
    /// # Errors
    /// A program that cannot be made: a bug.
    pub fn new(
        options: &'a Options,
        is_host: bool,
        (topology, plan_config): (&Topology, &PlanConfig),
        programs: &'a Programs,
    ) -> Result<Self> {
        let ranks = topology.size();
        let plan_config = PlanConfig { algorithms: [None; 8], routes: [None; 8], ..plan_config.clone() };
        let mut ways = vec![Way::Default];
        let last = last(options, is_host);
        for &collective in &options.collectives {
            let mut bytes = options.min_bytes.min(last);
            while bytes <= last {
                let call = call(collective, bytes, ranks);
                for (way, _) in ways_of(&call, topology, &plan_config, &options.channels)? {
                    if !ways.contains(&way) {
                        ways.push(way);
                    }
                }
                bytes = bytes.saturating_mul(options.factor);
            }
        }
        ways.extend(programs.names().map(|name| Way::Program(name.to_owned())));
        Ok(Self { options, is_host, ranks, ways, programs })
    }

    /// The default and a rule file.
    pub fn of_rules(
        options: &'a Options,
        is_host: bool,
        ranks: u32,
        rules: &Path,
        programs: &'a Programs,
    ) -> Self {
        let ways = vec![Way::Default, Way::Rules(rules.to_owned())];
        Self { options, is_host, ranks, ways, programs }
    }

    /// The ways, the default first.
    pub fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// The measurement in words: two runs with the same words can be put together.
    pub fn question(&self, device: &str) -> String {
        let Options { collectives, min_bytes, factor, point_ms, .. } = self.options;
        let names: Vec<&str> = collectives.iter().map(|c| c.name()).collect();
        let ways: Vec<String> = self.ways.iter().map(Way::to_string).collect();
        format!(
            "{} of {min_bytes}..{} by {factor}, {point_ms} ms, {} ranks on {device}: {}; hawser {}",
            names.join(","),
            last(self.options, self.is_host),
            self.ranks,
            ways.join(" "),
            env!("CARGO_PKG_VERSION")
        )
    }

    /// Measures all collectives and sizes in some ways, or as a rule file has it. Every way has a
    /// communicator of its own in one process, and they take turns at every size. Sizes that cannot run so
    /// are left out.
    ///
    /// # Errors
    /// The run failed, or something else decides here.
    pub fn measure(&self, ways: &[&Way]) -> Result<Vec<(String, Vec<Sample>)>> {
        let folder = Folder::new()?;
        let words: Vec<String> = ways.iter().map(|way| way.to_string()).collect();
        // Words for communicators: those of ways may hold anything.
        let names: Vec<String> = (0..ways.len()).map(|at| format!("way-{at}")).collect();
        let rules = match ways {
            [Way::Rules(path)] => path.clone(),
            _ => {
                let path = folder.path().join("rules.toml");
                let forced = names.iter().zip(&words).filter(|(_, way)| !Way::action(way).is_empty());
                let text: String = forced.map(|(name, way)| rule(name, way)).collect();
                std::fs::write(&path, text).context("a rule file for a measurement")?;
                path
            }
        };
        let Options { collectives, min_bytes, factor, point_ms, .. } = self.options;
        let sweep = Sweep {
            collectives,
            names: &names,
            ranks: self.ranks,
            bytes: (*min_bytes, last(self.options, self.is_host)),
            factor: *factor,
            cycles: 1,
            point_ms: *point_ms,
            is_host: self.is_host,
        };
        // What would decide instead of the rules.
        let mut others = vec!["NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER", "HAWSER_EXPLAIN"];
        let files = match ways {
            [Way::Rules(_)] => self.programs.all_files(),
            _ => self.programs.files(words.iter().filter_map(|way| Way::program_of(way))),
        };
        if self.programs.are_asked_for() {
            others.push("MSCCL_");
        }
        let rows = subprocess::perf(&folder, &sweep, &others, |command| {
            command.env("HAWSER_RULES", &rules).env("HAWSER_RUNTIME_DIR", "none");
            if !files.is_empty() {
                command.env("MSCCL_XML_FILES", &files);
            }
        })?;
        ways.iter()
            .zip(names)
            .zip(words)
            .map(|((way, name), words)| samples(way, &rows, &name).map(|found| (words, found)))
            .collect()
    }
}

/// The rule that makes a communicator take a way.
fn rule(name: &str, way: &str) -> String {
    format!("[[rule]]\nmatch = {{ communicator = \"{name}\" }}\nuse = {}\n", Way::action(way))
}

/// The samples that a run has measured of a way, without sizes at which it was impossible.
fn samples(way: &Way, rows: &[Row], name: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let is_own = |row: &&Row| row.communicator.as_deref() == Some(name);
    for row in rows.iter().filter(is_own).filter(|row| row.count > 0 && row.out_of_place.time > 0.0) {
        let decision = row.decision.as_ref().context("hawser perf does not tell what ran")?;
        let is_forced = match way {
            Way::Default => {
                if let Some(rule) = &decision.rule {
                    bail!("\"{decision}\" by {rule}: a tuner decides; unset NCCL_TUNER_PLUGIN");
                }
                true
            }
            Way::Rules(_) => true,
            Way::Program(name) => decision.algorithm == *name,
            Way::Forced { algorithm, route, .. } => decision.is(*algorithm, *route),
        };
        if is_forced {
            let (collective, bytes, us) = (row.collective.clone(), row.size, row.out_of_place.time);
            samples.push(Sample { collective, bytes, us, ran: decision.to_string() });
        }
    }
    Ok(samples)
}

/// The ways in which a call can run and that rules have names for, each with what the cost model predicts
/// in µs.
///
/// # Errors
/// A program that cannot be made: a bug.
pub fn ways_of(
    call: &Call,
    topology: &Topology,
    plan_config: &PlanConfig,
    channels: &[u32],
) -> Result<Vec<(Way, f32)>> {
    let mut ways = Vec::new();
    for candidate in choose::candidates(call, topology, plan_config)? {
        let (algorithm, route) = (candidate.algorithm, candidate.route);
        // Rules cannot name all.
        let has_name = !matches!(algorithm, Algorithm::Imported(_))
            && !matches!(route, Route::COPY_ENGINE | Route::ZERO_COPY);
        let Outcome::Predicted { us, .. } = candidate.outcome else { continue };
        if has_name {
            let all = std::iter::once(None).chain(channels.iter().map(|c| Some(*c)));
            ways.extend(all.map(|channels| (Way::Forced { algorithm, route, channels }, us)));
        }
    }
    Ok(ways)
}

/// The last size to measure.
pub fn last(options: &Options, is_host: bool) -> u64 {
    options.max_bytes.unwrap_or(if is_host { 1 << 20 } else { 256 << 20 })
}

/// A call of about so many bytes.
pub fn call(collective: Collective, bytes: u64, ranks: u32) -> Call {
    let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
    let count = (bytes / 4 / u64::from(blocks)).max(1);
    let (dtype, op, scalar) = (DataType::Float32, ReduceOp::Sum, Scalar::Immediate(0));
    Call { collective, count, dtype, op, scalar, root: 0, input: 0, output: 0, gap: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::Decided;
    use crate::subprocess::Time;

    fn forced() -> Way {
        Way::Forced { algorithm: Algorithm::AllPairs, route: Route::FUSED_LL, channels: Some(4) }
    }

    fn decided(algorithm: &str, (executor, protocol): (&str, &str), rule: Option<&str>) -> Decided {
        Decided {
            algorithm: algorithm.into(),
            executor: executor.into(),
            protocol: protocol.into(),
            zero_copy: false,
            channels: 4,
            predicted_us: 1.0,
            rule: rule.map(str::to_owned),
        }
    }

    fn row(decision: &Decided) -> Row {
        let decision = Some(decision.clone());
        let out_of_place = Time { time: 5.0 };
        let communicator = Some("x".into());
        Row { communicator, collective: "all_reduce".into(), size: 4096, count: 1024, out_of_place, decision }
    }

    #[test]
    fn ways_are_actions_of_rules() {
        let way = forced().to_string();
        assert_eq!(way, "AllPairs/fused/LL/4");
        let action = Way::action(&way);
        assert_eq!(Way::action("default"), "");
        let program = Way::Program("a \"b\"/c/d".into()).to_string();
        assert_eq!(Way::program_of(&program), Some("a \"b\"/c/d"));
        assert_eq!(Way::action(&program), r#"{ program = "a \"b\"/c/d" }"#);
        assert_eq!(hawser_tuner::files::RuleFile::named("x").parse(&rule("w", &program)).unwrap().len(), 1);
        assert_eq!(hawser_tuner::files::RuleFile::named("x").parse(&rule("w", &way)).unwrap().len(), 1);
        assert_eq!(
            action,
            r#"{ algorithm = "all_pairs", executor = "fused", protocol = "ll", channels = 4 }"#
        );
        let rules = format!("[[rule]]\nuse = {action}\n");
        let file = hawser_tuner::files::RuleFile::named("x.toml");
        let known: Vec<&str> = hawser_plugin::tuner::Algorithm::NAMES.iter().map(|(_, name)| *name).collect();
        for algorithm in Algorithm::ALL.map(Algorithm::name) {
            assert!(known.contains(&snake(algorithm).as_str()) || algorithm == "CollNet", "{algorithm}");
        }
        for algorithm in ["Ring", "Tree", "HalvingDoubling", "Bruck", "OneShot", "PAT"] {
            let text = rules.replace("all_pairs", &snake(algorithm)).replace(
                "executor = \"fused\", protocol = \"ll\"",
                "executor = \"host\", protocol = \"simple\"",
            );
            assert_eq!(file.parse(&text).unwrap().len(), 1, "{text}");
        }
    }

    #[test]
    fn sizes_that_ran_otherwise_are_left_out() {
        let right = &decided("AllPairs", ("fused", "LL"), Some("tuner hawser-rules: rule at x:1:1"));
        let other = &decided("Ring", ("interpreter", "Simple"), None);
        let got = samples(&forced(), &[row(right), row(other)], "x").unwrap();
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].bytes, got[0].us, got[0].ran.as_str()), (4096, 5.0, "AllPairs/fused/LL x 4"));
        assert_eq!(samples(&Way::Default, &[row(other)], "x").unwrap().len(), 1);
        assert!(samples(&Way::Default, &[row(other)], "y").unwrap().is_empty(), "another communicator's");
        let error = samples(&Way::Default, &[row(right)], "x").unwrap_err().to_string();
        assert!(error.contains("NCCL_TUNER_PLUGIN"), "{error}");
    }
}

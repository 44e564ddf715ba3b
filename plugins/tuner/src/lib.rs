//! Tuner by rules: which algorithm, protocol, number of channels and chunk size a collective gets stands in
//! files.
//!
//! Rules are TOML (`docs/rules.md` of the project describes them) or NCCL's CSV. They are read for every
//! communicator, and those that can count there are kept. A question is answered by the first rule that fits
//! and of which something is possible; without one, the host's own choice stays.
//!
//! | file | holds |
//! |---|---|
//! | `files` | which files, what is wrong with one |
//! | `schema` | TOML to rules, complaints with their places |
//! | `csv` | NCCL's form |
//! | `rule`, `range`, `names` | what a rule is, and its words |
//! | `engine` | the answer to a question, and why |
//! | `adaptive` | rules that are learned while a job runs |
//! | `lint` | rules that can never count |
//! | `write` | rules back to TOML, and the layout of a file |
//!
//! ```
//! use hawser_plugin::tuner::{Algorithm, Candidate, Decision, Executor, Function, Protocol, Question};
//! use hawser_plugin::tuner::{SettingsFile, Tuner, TunerConfig};
//! use hawser_tuner::RuleTuner;
//!
//! let text = "[[rule]]\nuse = { algorithm = \"tree\", channels = 2 }\n".to_owned();
//! let file = SettingsFile { name: "rules.toml".to_owned(), text };
//! let config = TunerConfig::new(1, 8, 1, hawser_plugin::Log::silent());
//! let context = RuleTuner::new(Vec::new()).open_with(&config, &[file]).unwrap();
//!
//! let decision = |algorithm| Decision::new(algorithm, Executor::Interpreter, Protocol::Simple);
//! let mut candidates = [
//!     Candidate::predicted(decision(Algorithm::RING), 20.0),
//!     Candidate::predicted(decision(Algorithm::TREE), 30.0),
//! ];
//! let answer = context.tune(&Question::new(Function::AllReduce, 4096), &mut candidates).unwrap();
//! assert_eq!((answer.order, answer.channels), (Some(1), Some(2)));
//! ```

pub mod adaptive;
pub mod contents;
pub mod csv;
pub mod engine;
pub mod files;
pub mod lint;
mod names;
pub mod range;
pub mod rule;
pub mod schema;
mod settings;
pub mod write;

pub use names::matches_glob;

use std::sync::Arc;

use hawser_plugin::learner::Learner;
use hawser_plugin::tuner::{SettingsFile, TunerConfig, TunerContext};
use hawser_plugin::{BuiltIn, Component, Result, Subsys, Tuner, inventory};

use adaptive::Learning;
use contents::Contents;
use engine::Engine;
use files::{Absent, Form, RuleFile};
use rule::Job;

/// The file in which CSV rules are looked for by the plugin for NVIDIA's NCCL if nothing is set: NVIDIA's
/// example has the same name.
const DEFAULT_CSV: &str = "nccl_tuner.conf";

inventory::submit! {
    BuiltIn { name: "rules", priority: 10, make: || Component::Tuner(Arc::new(RuleTuner::built_in())) }
}

/// A tuner whose rules stand in files. They are read for every communicator.
#[derive(Debug, Clone)]
pub struct RuleTuner {
    files: Vec<RuleFile>,
}

impl RuleTuner {
    /// A tuner with these files, in this order.
    pub fn new(files: Vec<RuleFile>) -> Self {
        Self { files }
    }

    /// Its files.
    pub fn files(&self) -> &[RuleFile] {
        &self.files
    }

    /// The tuner that is part of the library: `HAWSER_RULES` or the usual places, then
    /// `NCCL_TUNER_CONFIG_FILE` unless the user named a tuner plugin, which that file is meant for.
    pub fn built_in() -> Self {
        let mut files = files::ours();
        if !settings::names_a_tuner() {
            files.extend(settings::rule_file().map(csv_file));
        }
        Self { files }
    }

    /// The tuner as a plugin of its own: as [`RuleTuner::built_in`], but `NCCL_TUNER_CONFIG_FILE` always
    /// counts, and stands for `nccl_tuner.conf` in the working folder.
    pub fn from_env() -> Self {
        let mut files = files::ours();
        files.push(match settings::rule_file() {
            Some(path) => csv_file(path),
            None => RuleFile { absent: Absent::Fine, ..csv_file(DEFAULT_CSV.into()) },
        });
        Self { files }
    }
}

fn csv_file(path: std::path::PathBuf) -> RuleFile {
    RuleFile { path, form: Form::Csv, absent: Absent::Odd }
}

impl Tuner for RuleTuner {
    fn name(&self) -> &str {
        "hawser-rules"
    }

    fn open(&self, config: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        let mut all: Vec<Contents> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        for file in &self.files {
            let name = file.path.display().to_string();
            match file.read()? {
                Some(read) => {
                    let say = |hint| config.log.info(Subsys::TUNING, format!("rules: {hint}"));
                    read.hints.iter().for_each(say);
                    all.push(read);
                    names.push(name);
                }
                None if file.absent == Absent::Odd => {
                    let variable = settings::RULE_FILE;
                    config.log.warn(format!(
                        "rules: there is no {name}, which {variable} names: it changes nothing"
                    ));
                }
                None => {}
            }
        }
        if names.is_empty() {
            let none = format!("rules: no file ({} is not set): nothing is changed", settings::RULES);
            config.log.info(Subsys::TUNING, none);
        }
        Ok(Box::new(engine(all, &names, config)))
    }

    fn open_with(&self, config: &TunerConfig, files: &[SettingsFile]) -> Result<Box<dyn TunerContext>> {
        let read = |file: &SettingsFile| RuleFile::named(&file.name).contents(&file.text);
        let all: Vec<Contents> = files.iter().map(read).collect::<std::result::Result<_, _>>()?;
        let names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
        Ok(Box::new(engine(all, &names, config)))
    }

    fn learner(&self, config: &TunerConfig) -> Result<Option<Box<dyn Learner>>> {
        let mut files = Vec::new();
        for file in &self.files {
            let name = file.path.display().to_string();
            files.extend(file.text()?.map(|text| SettingsFile { name, text }));
        }
        Ok(Some(Box::new(Learning::new(config, files))))
    }
}

/// The rules that count for a communicator, announced in its log.
fn engine(all: Vec<Contents>, names: &[String], config: &TunerConfig) -> Engine {
    let contents = Contents::join(all);
    let engine = Engine::new(&contents.rules, &names.join(", "), &Job::from(config), config.log.clone());
    let engine = engine.adaptive(contents.adaptive(), &contents.avoid);
    if !names.is_empty() {
        let (source, ranks, hosts) = (engine.source(), config.ranks, config.nodes);
        let text = format!("rules: {source} count for {ranks} ranks on {hosts} hosts");
        config.log.info(Subsys::TUNING, text);
    }
    engine
}

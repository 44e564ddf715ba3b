//! Tuner plugin that reads rules in NCCL's CSV form.
//!
//! A rule says for which collective, sizes and communicators which algorithm, protocol and number of channels are taken.
//! The first rule that fits a question counts: its combination gets the time 0. If that combination is impossible here,
//! the host's own choice stays, and the log says so once. `README.md` describes the file.

mod rules;
mod settings;

use std::fs::File;
use std::io::{ErrorKind as Io, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use hawser_plugin::tuner::{Answer, Candidate, Question, TunerConfig, TunerContext};
use hawser_plugin::{Error, ErrorKind, Log, Result, Subsys, Tuner};

pub use rules::{BadLine, Rule, parse};

/// Where rules are looked for if nothing is set: NVIDIA's example has the same name.
const DEFAULT_FILE: &str = "nccl_tuner.conf";
/// More rules than anybody writes.
const MOST_BYTES: u64 = 16 << 20;
/// So many bad lines are told in full.
const MOST_TOLD: usize = 20;

/// A tuner whose rules stand in a file. The file is read for every communicator.
#[derive(Debug, Clone)]
pub struct CsvTuner {
    file: PathBuf,
    /// The user named the file, so it should be there.
    named: bool,
}

impl CsvTuner {
    /// A tuner with a file of the user.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self { file: file.into(), named: true }
    }

    /// A tuner with the file of `NCCL_TUNER_CONFIG_FILE`, or `nccl_tuner.conf` in the working folder.
    pub fn from_env() -> Self {
        match settings::rule_file() {
            Some(file) => Self::new(file),
            None => Self { file: DEFAULT_FILE.into(), named: false },
        }
    }
}

impl Tuner for CsvTuner {
    fn name(&self) -> &str {
        "hawser-csv"
    }

    fn open(&self, config: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        let Some(text) = read(&self.file)? else {
            self.say_absent(&config.log);
            return Ok(Box::new(Context { rules: Vec::new(), log: config.log.clone() }));
        };
        let all = parse(&text).map_err(|bad| refusal(&self.file, &bad))?;
        let count = all.len();
        let fitting = all.into_iter().filter(|rule| rule.fits_communicator(config.ranks, config.nodes));
        let rules: Vec<_> = fitting.map(|rule| (rule, AtomicBool::new(false))).collect();
        config.log.info(
            Subsys::TUNING,
            format!(
                "tuner: {count} rules in {}, {} of them for {} ranks on {} hosts",
                self.file.display(),
                rules.len(),
                config.ranks,
                config.nodes
            ),
        );
        Ok(Box::new(Context { rules, log: config.log.clone() }))
    }
}

impl CsvTuner {
    fn say_absent(&self, log: &Log) {
        let file = self.file.display();
        if self.named {
            log.warn(format!(
                "tuner: there is no {file}, which {} names: it changes nothing",
                settings::RULE_FILE
            ));
        } else {
            let hint = settings::RULE_FILE;
            log.info(
                Subsys::TUNING,
                format!("tuner: no {file} here and {hint} is not set: it changes nothing"),
            );
        }
    }
}

/// The text of the file; None if there is none.
fn read(path: &Path) -> Result<Option<String>> {
    let failed = |what: &str, error: std::io::Error| {
        Error::system(format!("tuner: {what} the rule file {}", path.display()), error)
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == Io::NotFound => return Ok(None),
        Err(error) => return Err(failed("opening", error)),
    };
    let refused = |why: &str| {
        let text = format!("tuner: the rule file {} {why}", path.display());
        Error::new(ErrorKind::InvalidUsage, text)
    };
    let meta = file.metadata().map_err(|error| failed("reading", error))?;
    if !meta.is_file() {
        return Err(refused("is no regular file: write the rules into one"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| failed("reading", error))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(refused("is larger than 16 MiB: is it the right one?"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| refused("is not UTF-8: save it as plain text"))
}

fn refusal(path: &Path, bad: &[BadLine]) -> Error {
    let mut text = format!("tuner: {} cannot be used, {} lines are wrong", path.display(), bad.len());
    for line in bad.iter().take(MOST_TOLD) {
        text += &format!("\n{}:{line}", path.display());
    }
    if bad.len() > MOST_TOLD {
        text += &format!("\nand {} more", bad.len() - MOST_TOLD);
    }
    Error::new(ErrorKind::InvalidUsage, text)
}

/// The rules for a communicator, and whether it was said that one asks for the impossible.
struct Context {
    rules: Vec<(Rule, AtomicBool)>,
    log: Log,
}

impl TunerContext for Context {
    fn tune(&self, question: &Question, candidates: &mut [Candidate]) -> Result<Answer> {
        let Some((rule, said)) = self.rules.iter().find(|(rule, _)| rule.fits(question)) else {
            return Ok(Answer::default());
        };
        let wanted = candidates
            .iter_mut()
            .find(|candidate| candidate.algorithm == rule.algorithm && candidate.protocol == rule.protocol);
        let Some(wanted) = wanted.filter(|candidate| candidate.us >= 0.0) else {
            if !said.swap(true, Ordering::Relaxed) {
                self.log.warn(format!(
                    "tuner: the rule of line {} ({rule}) asks for what is impossible for {} of {} bytes here; the \
                     default counts. Said once",
                    rule.line,
                    question.function.name(),
                    question.bytes
                ));
            }
            return Ok(Answer::default());
        };
        wanted.us = 0.0;
        Ok(Answer { channels: rule.channels })
    }
}

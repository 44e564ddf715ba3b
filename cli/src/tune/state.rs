//! The measurements so far: a file beside the rules, rewritten after each round and removed when the rules
//! are there.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::bench::Sample;

/// Measurements, and what they are of.
pub struct State {
    path: PathBuf,
    kept: Kept,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// The question that the measurements answer, in words.
    question: String,
    /// By round: ways, and what was measured of each.
    rounds: Vec<Vec<(String, Vec<Sample>)>>,
}

impl State {
    /// Goes on where a run that asked the same was interrupted; `restart` forgets it.
    ///
    /// # Errors
    /// The file is of another question, or cannot be read.
    pub fn open(path: &Path, question: &str, restart: bool) -> Result<Self> {
        let name = path.display();
        let empty = Kept { question: question.to_owned(), rounds: Vec::new() };
        let kept = match std::fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => empty,
            _ if restart => empty,
            Err(error) => return Err(error).with_context(|| format!("cannot read {name}")),
            Ok(text) => {
                let kept: Kept = serde_json::from_slice(&text)
                    .with_context(|| format!("{name} cannot be read: --restart forgets it"))?;
                if kept.question != question {
                    bail!(
                        "{name} is of an interrupted run that measured something else:\n  there: {}\n  \
                         here:  {question}\n\
                         Use its options again, or forget it with --restart",
                        kept.question
                    );
                }
                kept
            }
        };
        Ok(Self { path: path.to_owned(), kept })
    }

    /// Returns the number of rounds that were kept.
    pub fn rounds(&self) -> u32 {
        self.kept.rounds.len() as u32
    }

    /// Adds a round and keeps everything.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, round: Vec<(String, Vec<Sample>)>) -> Result<()> {
        self.kept.rounds.push(round);
        let text = serde_json::to_string(&self.kept).context("measurements as JSON")?;
        crate::files::write(&self.path, &text)
    }

    /// Everything: ways and what was measured of them, in the order of rounds.
    pub fn samples(&self) -> impl Iterator<Item = (&str, &Sample)> {
        let ways = self.kept.rounds.iter().flatten();
        ways.flat_map(|(way, samples)| samples.iter().map(move |sample| (way.as_str(), sample)))
    }

    /// The measurements are not needed any more.
    pub fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_only_with_its_own_question() {
        let path = std::env::temp_dir().join(format!("hawser-tune-state-{}.json", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let sample =
            Sample { collective: "all_reduce".into(), bytes: 8, us: 1.5, ran: "Ring/LL x 1x1".into() };
        let mut state = State::open(&path, "a", false).unwrap();
        state.add(vec![("default".into(), vec![sample.clone()]), ("Ring/LL".into(), Vec::new())]).unwrap();
        let again = State::open(&path, "a", false).unwrap();
        assert_eq!(again.rounds(), 1);
        assert_eq!(again.samples().collect::<Vec<_>>(), [("default", &sample)]);
        let error = State::open(&path, "b", false).err().unwrap().to_string();
        assert!(error.contains("something else") && error.contains("--restart"), "{error}");
        assert_eq!(State::open(&path, "b", true).unwrap().rounds(), 0);
        std::fs::write(&path, "{").unwrap();
        assert!(State::open(&path, "a", false).err().unwrap().to_string().contains("--restart forgets it"));
        again.remove();
        assert!(!path.exists());
    }
}

//! `hawser rules`: checks rule files, lays them out, imports those of others, shows what one makes of a call,
//! and changes the rules of processes that run.

mod apply;
mod doubtful;
mod explain;
mod import;
mod ompi;
mod ompi_json;
mod ucc;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use hawser_tuner::adaptive::describe;
use hawser_tuner::contents::Contents;
use hawser_tuner::files::{Form, RuleFile};
use hawser_tuner::lint::lint;
use hawser_tuner::rule::Rule;
use hawser_tuner::write;
use serde::Serialize;

use crate::output;

/// Options of `hawser rules`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say all that is wrong in rule files, and which rules can never count
    #[command(after_help = "Examples:
  hawser rules check --strict mine.toml")]
    Check {
        /// Rule files: TOML, or NCCL's CSV by the endings .csv and .conf
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Warnings fail too
        #[arg(long)]
        strict: bool,
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show which rules match a call, which wins, and what becomes of it
    #[command(after_help = "Examples:
  hawser rules explain mine.toml --collective all_reduce --bytes 64K --ranks 8")]
    Explain(explain::Options),
    /// Lay TOML rule files out: spaces, empty lines; comments and order stay
    #[command(after_help = "Examples:
  hawser rules fmt --check *.toml")]
    Fmt {
        /// Rule files, changed in place
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Change nothing, only fail if a file is not laid out
        #[arg(long)]
        check: bool,
        /// Print a list of the files as JSON, and whether each was laid out before
        #[arg(long)]
        json: bool,
    },
    /// Change the rules of processes that run: on all ranks of a communicator at one collective, or nowhere
    #[command(after_help = "Examples:
  hawser rules apply mine.toml --pid 4711
  hawser rules apply --none --job night")]
    Apply(apply::Options),
    /// Show the processes of this user on this host whose rules can be changed, and their communicators
    #[command(after_help = "Examples:
  hawser rules list --json")]
    List {
        #[command(flatten)]
        who: apply::Who,
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Turn rules of others into TOML: NCCL's tuner file (CSV), Open MPI's table or JSON
    /// (coll_tuned_dynamic_rules_filename), UCC's scores (UCC_TL_UCP_TUNE, ucc.conf)
    #[command(
        alias = "from-csv",
        after_help = "Examples:
  hawser rules import tuner.csv -o rules.toml
  hawser rules import ompi.json
  echo \"$UCC_TL_UCP_TUNE\" > scores && hawser rules import scores"
    )]
    Import(import::Options),
}

/// Runs `hawser rules`. Returns whether everything is right.
///
/// # Errors
/// A file cannot be read or written, or what is asked for makes no sense.
pub fn run(options: &Options) -> Result<bool> {
    let (text, right) = match &options.command {
        Command::Check { files, strict, json } => {
            let (findings, right) = check(files, *strict);
            match json {
                true => (serde_json::to_string_pretty(&findings).context("findings as JSON")? + "\n", right),
                false => (findings.iter().map(|finding| format!("{finding}\n")).collect(), right),
            }
        }
        Command::Explain(options) => (explain::text(options)?, true),
        Command::Fmt { files, check, json } => {
            let files = layout(files, *check)?;
            let right = !check || files.iter().all(|file| file.was_laid_out);
            match json {
                true => (serde_json::to_string_pretty(&files).context("the files as JSON")? + "\n", right),
                false => (files.iter().filter_map(|file| file.line(*check)).collect(), right),
            }
        }
        Command::Apply(options) => apply::apply(options)?,
        Command::List { who, json } => (apply::list(who, *json)?, true),
        Command::Import(options) => (import::run(options)?, true),
    };
    output::print(&text)?;
    Ok(right)
}

/// The rules of all files.
///
/// # Errors
/// All that is wrong in the first file that cannot be used.
pub fn read(files: &[RuleFile]) -> Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for file in files {
        rules.extend(file.read()?.unwrap_or_default().rules);
    }
    Ok(rules)
}

/// Something that `hawser rules check` says of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// The file, with line and column if it is about one.
    place: String,
    /// One of rules, hint, warning, error.
    kind: &'static str,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            "rules" => write!(f, "{}: {}", self.place, self.text),
            kind => write!(f, "{}: {kind}: {}", self.place, self.text),
        }
    }
}

fn check(files: &[PathBuf], strict: bool) -> (Vec<Finding>, bool) {
    let (mut findings, mut rules, mut right) = (Vec::new(), Vec::new(), true);
    let mut say = |place: String, kind, text| findings.push(Finding { place, kind, text });
    for path in files {
        match RuleFile::named(path).read() {
            Ok(read) => {
                let read = read.unwrap_or_default();
                let count = read.rules.len();
                let adaptive = read.adaptive().map_or_else(String::new, |a| format!(", {}", describe(a)));
                let word = if count == 1 { "rule" } else { "rules" };
                say(path.display().to_string(), "rules", format!("{count} {word}{adaptive}"));
                for hint in &read.hints {
                    say(hint.place.to_string(), "hint", hint.text.clone());
                }
                rules.extend(read.rules);
            }
            Err(_) if let Some(what) = of_others(path) => {
                right = false;
                let name = path.display();
                let text =
                    format!("this is {what}: hawser rules import {name} -o NEW.toml makes rules of it");
                say(name.to_string(), "error", text);
            }
            Err(unusable) => {
                right = false;
                for problem in unusable.problems {
                    let place = match problem.place.line {
                        0 => unusable.file.clone(),
                        _ => problem.place.to_string(),
                    };
                    say(place, "error", problem.text);
                }
            }
        }
    }
    for warning in doubtful::doubtful(&rules).into_iter().chain(lint(&rules)) {
        say(warning.place.to_string(), "warning", warning.text);
        right &= !strict;
    }
    (findings, right)
}

/// The name of another program's form of rules in which a file seems to be written.
fn of_others(path: &Path) -> Option<&'static str> {
    let text = std::fs::read_to_string(path).ok()?;
    let is_csv = || RuleFile { form: Form::Csv, ..RuleFile::named(path) }.parse(&text).is_ok();
    match RuleFile::named(path).form {
        _ if ompi::is_table(&text) => Some("a table of Open MPI"),
        _ if ompi_json::is_json(&text) => Some("a rule file of Open MPI"),
        Form::Toml if ucc::is_scores(&text) => Some("scores of UCC"),
        Form::Toml if text.contains(',') && is_csv() => Some("NCCL's CSV (whose name ends in .csv or .conf)"),
        _ => None,
    }
}

/// A file that `hawser rules fmt` has looked at.
#[derive(Debug, Serialize)]
struct LaidOut {
    file: String,
    /// True if nothing had to be changed.
    was_laid_out: bool,
}

impl LaidOut {
    /// The line about the file; None if there is nothing to say.
    fn line(&self, check: bool) -> Option<String> {
        let name = &self.file;
        match (self.was_laid_out, check) {
            (true, _) => None,
            (false, true) => Some(format!("{name}: is not laid out: hawser rules fmt {name} does it\n")),
            (false, false) => Some(format!("{name}: laid out\n")),
        }
    }
}

/// Lays files out, or only looks at them.
fn layout(files: &[PathBuf], check: bool) -> Result<Vec<LaidOut>> {
    let mut all = Vec::new();
    for path in files {
        let name = path.display();
        let file = RuleFile::named(path);
        if file.form == Form::Csv {
            bail!("{name} is CSV: hawser rules import turns it into TOML");
        }
        // A file that cannot be read or used is left as it is.
        let rules = file.read()?.unwrap_or_default();
        let before = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        let after = write::layout(&before);
        let again = file.contents(&after).with_context(|| format!("laying out {name}"))?;
        if !same(&rules, &again) {
            bail!("laying out {name} would change its rules: it stays as it is. Please report this file");
        }
        let was_laid_out = before == after;
        if !was_laid_out && !check {
            replace(path, &after)?;
        }
        all.push(LaidOut { file: name.to_string(), was_laid_out });
    }
    Ok(all)
}

/// True if files say the same, wherever it stands.
fn same(one: &Contents, other: &Contents) -> bool {
    let plain = |all: &Contents| -> Vec<_> {
        all.rules.iter().chain(&all.avoid).map(|r| (r.name.clone(), r.to_string())).collect()
    };
    let rest = |all: &Contents| (all.rules.len(), all.mode, all.budget);
    plain(one) == plain(other) && rest(one) == rest(other)
}

/// Writes a file anew, all of it or nothing.
fn replace(path: &Path, text: &str) -> Result<()> {
    let name = path.display();
    // A link stays a link.
    let path = path.canonicalize().with_context(|| format!("cannot find {name}"))?;
    let mut beside = path.clone().into_os_string();
    beside.push(format!(".{}.new", std::process::id()));
    let write = || -> std::io::Result<()> {
        std::fs::write(&beside, text)?;
        std::fs::set_permissions(&beside, std::fs::metadata(&path)?.permissions())?;
        std::fs::rename(&beside, &path)
    };
    write()
        .inspect_err(|_| drop(std::fs::remove_file(&beside)))
        .with_context(|| format!("cannot write {name}"))
}

/// Reads a rule file of somebody else, for a fuzz target.
pub fn fuzz_import(text: &str) {
    import::fuzz(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("hawser-rules-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn check_tells_faults_and_rules_that_cannot_count() {
        let folder = folder("check");
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let good = file("good.toml", "[[rule]]\nuse = [{ algorithm = \"ring\" }, \"default\"]\n");
        let late = file("late.toml", "[[rule]]\nmatch.bytes = \"..4K\"\nuse = { algorithm = \"tree\" }\n");
        let bad = file("bad.toml", "\n[[rule]]\nuse = { algorithm = \"rng\" }\n");
        let csv = file("some.csv", "allreduce,0,-1,tree,ll,2,1,-1\n");
        let (good_name, late_name, bad_name) = (good.display(), late.display(), bad.display());
        let check = |files: &[PathBuf], strict| {
            let (findings, right) = check(files, strict);
            (findings.iter().map(|finding| format!("{finding}\n")).collect::<String>(), right)
        };
        assert_eq!(check(std::slice::from_ref(&good), true), (format!("{good_name}: 1 rule\n"), true));
        let warned = format!(
            "{good_name}: 1 rule\n{late_name}: 1 rule\n{late_name}:1:1: warning: can never count: rule at \
             {good_name}:1:1 comes \
             before it and takes all its calls\n"
        );
        assert_eq!(check(&[good.clone(), late.clone()], false), (warned.clone(), true));
        assert_eq!(check(&[good.clone(), late.clone()], true), (warned, false));
        let (text, right) = check(&[bad.clone(), csv], false);
        let start = format!(
            "{bad_name}:3:21: error: algorithm \"rng\" is not known; did you mean \"ring\"? Known are tree,"
        );
        assert!(!right && text.starts_with(&start) && text.ends_with("some.csv: 1 rule\n"), "{text}");
        let old = file("old.toml", "[[rule]]\nuse = { algorithm = \"dma_ring\" }\n");
        let hint = "algorithm = \"ring\", executor = \"copy_engine\" now";
        let (text, right) = check(std::slice::from_ref(&old), true);
        let line = format!("{}:2:21: hint: \"dma_ring\" is written {hint}\n", old.display());
        assert!(right && text.contains(&line), "{text}");
        let table = file("ompi.rules", "1\n2\n1\n0 1\n0 3 0 0\n");
        let (text, right) = check(&[table], false);
        assert!(!right && text.lines().count() == 1, "{text}");
        assert!(text.contains("a table of Open MPI: hawser rules import"), "{text}");
        let (text, right) = check(&[file("nccl.txt", "allreduce,0,-1,tree,ll,2,1,-1\n")], false);
        assert!(!right && text.contains("NCCL's CSV") && text.contains("rules import"), "{text}");
        let ring = "[[rule]]\nmatch.collective = \"alltoall\"\nuse = { algorithm = \"ring\" }\n";
        let impossible = [file("impossible.toml", ring)];
        let (text, right) = check(&impossible, false);
        assert!(right && text.contains(":1:1: warning: ring is not there for alltoall"), "{text}");
        assert!(!check(&impossible, true).1);
        let (text, right) = check(&[folder.join("none.toml")], false);
        assert!(!right && text.ends_with("none.toml: error: there is no such file\n"), "{text}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn fmt_changes_files_in_place() {
        let folder = folder("fmt");
        let path = folder.join("a.toml");
        std::fs::write(&path, "# why\n[[rule]]\nuse={algorithm=\"ring\"}\n").unwrap();
        let all = std::slice::from_ref(&path);
        let lines = |check: bool| -> Vec<String> {
            layout(all, check).unwrap().iter().filter_map(|file| file.line(check)).collect()
        };
        assert!(lines(true)[0].contains("is not laid out"), "{:?}", lines(true));
        assert!(lines(false)[0].ends_with("a.toml: laid out\n"));
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "# why\n[[rule]]\nuse = { algorithm = \"ring\" }\n"
        );
        assert!(layout(all, true).unwrap()[0].was_laid_out && lines(true).is_empty());
        std::fs::write(&path, "[[rule]]\nuse={algorithm=\"rng\"}\n").unwrap();
        assert!(layout(all, false).unwrap_err().to_string().contains(":2:16: algorithm"));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left behind");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

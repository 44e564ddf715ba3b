//! `hawser lint`: the findings about program files in the form of a compiler, as JSON or as SARIF.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use hawser_msccl::{Dialect, Import, ImportError, MOST_SLOTS};
use hawser_plan::imported;
use hawser_program::{text, verify};
use serde::Serialize;
use serde_json::{Value, json};

use crate::output::{self, print, print_json};
use crate::plan::is_xml;

/// Options of `hawser lint`.
#[derive(Debug, Args)]
pub struct Options {
    /// Programs: MSCCL's XML, MSCCL++'s JSON or .plan files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Warnings fail too
    #[arg(long)]
    strict: bool,
    /// Print the findings as JSON
    #[arg(long, conflicts_with = "sarif")]
    json: bool,
    /// Print the findings as SARIF 2.1.0, which editors and code hosts show beside the lines
    #[arg(long)]
    sarif: bool,
}

/// The weight of a finding; the names are SARIF's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// The file is refused.
    Error,
    /// It runs here, and elsewhere it may not.
    Warning,
    /// It runs, in another form than the file says.
    Note,
}

/// Something to say of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    file: String,
    line: u32,
    column: u32,
    level: Level,
    class: String,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, style) = match self.level {
            Level::Error => ("error", output::BAD),
            Level::Warning => ("warning", output::HEADING),
            Level::Note => ("note", output::GOOD),
        };
        let Self { file, line, column, class, text, .. } = self;
        write!(f, "{file}:{line}:{column}: {}: {text} [{class}]", output::styled(style, level))
    }
}

/// Runs `hawser lint`. Returns whether every file is right.
///
/// # Errors
/// The findings cannot be written.
pub fn run(options: &Options) -> Result<bool> {
    let mut findings = Vec::new();
    let mut names = Vec::new();
    for path in &options.files {
        let (found, name) = look(path);
        findings.extend(found);
        names.extend(name.map(|name| (name, path.as_path())));
    }
    findings.extend(same_names(&names));
    let of_level = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (errors, warnings) = (of_level(Level::Error), of_level(Level::Warning));
    if options.json {
        print_json(&findings)?;
    } else if options.sarif {
        print_json(&sarif(&findings))?;
    } else {
        let lines: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
        let count = options.files.len();
        print(&format!("{lines}# {count} files: {errors} errors, {warnings} warnings\n"))?;
    }
    Ok(errors == 0 && !(options.strict && warnings > 0))
}

/// The findings about a file, and the name of its program if it is right.
fn look(path: &Path) -> (Vec<Finding>, Option<String>) {
    let finding = |(line, column): (u32, u32), level, class: &str, text: String| Finding {
        file: path.display().to_string(),
        line,
        column,
        level,
        class: class.replace(' ', "-"),
        text,
    };
    let source = match std::fs::read_to_string(path) {
        Ok(source) => source,
        Err(error) => {
            let text = format!("cannot be read: {error}");
            return (vec![finding((1, 1), Level::Error, "file", text)], None);
        }
    };
    if !imported::is_json(&source) && !is_xml(&source) {
        let read = text::from_text(&source).and_then(|_| imported::read(&source));
        return match read {
            Ok(plan) => (Vec::new(), Some(plan.program.shape.name)),
            Err(error) => {
                let (at, text) = place(&error.into_text());
                (vec![finding(at, Level::Error, "plan", text)], None)
            }
        };
    }
    let read = if imported::is_json(&source) { hawser_msccl::read_mscclpp } else { hawser_msccl::read };
    match read(&source) {
        Ok(import) => {
            let said = remarks(&import);
            let findings = said.into_iter().map(|(at, level, class, text)| finding(at, level, class, text));
            (findings.collect(), Some(import.imported.program.shape.name))
        }
        Err(ImportError { class, line, column, text }) => {
            (vec![finding((line, column), Level::Error, class.name(), text)], None)
        }
    }
}

/// The remarks about a file that is right.
fn remarks(import: &Import) -> Vec<((u32, u32), Level, &'static str, String)> {
    let mut remarks: Vec<_> = import
        .changes
        .iter()
        .map(|change| ((change.line, change.column), Level::Note, "changed", change.text.clone()))
        .collect();
    let (imported, start) = (&import.imported, import.start());
    let most = imported.bytes.1;
    if let Some(safe) = import.safe_bytes_of_msccl().filter(|safe| *safe < most)
        && import.dialect != Dialect::Mscclpp
    {
        let window = if most == u64::MAX { "no limit".to_owned() } else { format!("{most} bytes") };
        let above = if safe == 0 { "at every size".to_owned() } else { format!("above {safe} bytes") };
        let text = format!(
            "MSCCL's runtimes hang {above}, where their FIFOs have no room for what is sent before \
             anything is received; the file's window has {window}"
        );
        remarks.push((start, Level::Warning, "fifo", text));
    }
    let differs = |in_place| {
        verify::verify(&imported.program, MOST_SLOTS, in_place).is_ok_and(|verdict| !verdict.bitwise_equal)
    };
    if differs(false) {
        let text = "ranks add up in different orders: their results may differ in rounding";
        remarks.push((start, Level::Note, "rounding", text.to_owned()));
    }
    if !imported.right_in_place {
        let text = "wrong in place, and no copy of its input mends that: calls do not take it";
        remarks.push((start, Level::Warning, "in-place", text.to_owned()));
    }
    remarks
}

/// Programs that share a name: rules and `NCCL_ALGO` find the first.
fn same_names(names: &[(String, &Path)]) -> Vec<Finding> {
    let first = |name: &str| names.iter().find(|(other, _)| other == name);
    let later = names.iter().filter_map(|(name, path)| Some((name, *path, first(name)?.1)));
    let finding = |(name, path, first): (&String, &Path, &Path)| Finding {
        file: path.display().to_string(),
        line: 1,
        column: 1,
        level: Level::Warning,
        class: "name".to_owned(),
        text: format!("{name} is the name of {} too: this one becomes {name}@FILE", first.display()),
    };
    later.filter(|(_, path, first)| path != first).map(finding).collect()
}

/// A text that begins with `line:column:` as place and rest.
fn place(text: &str) -> ((u32, u32), String) {
    let mut parts = text.splitn(3, ':');
    let mut number = || parts.next()?.trim().parse().ok();
    match (number(), number()) {
        (Some(line), Some(column)) => ((line, column), parts.next().unwrap_or("").trim().to_owned()),
        _ => ((1, 1), text.to_owned()),
    }
}

/// The findings as SARIF.
fn sarif(findings: &[Finding]) -> Value {
    let classes: BTreeSet<&str> = findings.iter().map(|finding| finding.class.as_str()).collect();
    let rules: Vec<Value> = classes
        .into_iter()
        .map(|class| json!({ "id": class, "shortDescription": { "text": class.replace('-', " ") } }))
        .collect();
    let result = |finding: &Finding| {
        json!({
            "ruleId": finding.class, "level": finding.level, "message": { "text": finding.text },
            "locations": [{ "physicalLocation": {
                "artifactLocation": { "uri": finding.file },
                "region": { "startLine": finding.line, "startColumn": finding.column }
            } }]
        })
    };
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "hawser", "version": env!("CARGO_PKG_VERSION"), "rules": rules
            } },
            "columnKind": "unicodeCodePoints",
            "results": findings.iter().map(result).collect::<Vec<_>>()
        }]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Findings about files of a folder with these names and texts; folders are left out of their names.
    fn lint(test: &str, files: &[(&str, &str)]) -> Vec<Finding> {
        let folder = std::env::temp_dir().join(format!("hawser-lint-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut findings = Vec::new();
        let mut names = Vec::new();
        let paths: Vec<PathBuf> = files.iter().map(|(name, _)| folder.join(name)).collect();
        for (path, (_, text)) in paths.iter().zip(files) {
            std::fs::write(path, text).expect("a file");
            let (found, name) = look(path);
            findings.extend(found);
            names.extend(name.map(|name| (name, path.as_path())));
        }
        findings.extend(same_names(&names));
        std::fs::remove_dir_all(&folder).expect("a folder");
        let short = |finding: Finding| Finding {
            file: finding.file.rsplit('/').next().unwrap_or("").to_owned(),
            ..finding
        };
        findings.into_iter().map(short).collect()
    }

    macro_rules! file {
        ($name:literal) => {
            include_str!(concat!("../../core/plan/tests/msccl/", $name, ".xml"))
        };
    }

    #[test]
    fn findings_look_like_those_of_a_compiler() {
        let found = lint(
            "form",
            &[
                ("race.xml", file!("race.send_before_sum")),
                ("directions.xml", file!("valid.directions")),
                ("pair.xml", file!("valid.pair")),
            ],
        );
        let lines: Vec<String> =
            found.iter().map(|f| anstream::adapter::strip_str(&f.to_string()).to_string()).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        let place = file!("race.send_before_sum").split_whitespace().nth(1).expect("a place");
        assert!(lines[0].starts_with(&format!("race.xml:{place}: error: ")), "{lines:?}");
        assert!(lines[0].ends_with("[race]"), "{lines:?}");
        assert!(lines[1].starts_with("directions.xml:4:5: note: tb 0 of gpu 0 became two"), "{lines:?}");
    }

    #[test]
    fn sizes_that_hang_elsewhere_and_names_that_come_twice_are_warnings() {
        let pair = file!("valid.pair");
        let found = lint("names", &[("a.xml", pair), ("b.xml", pair), ("swap.xml", file!("valid.swap"))]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].class.as_str(), found[0].file.as_str(), found[0].line), ("fifo", "swap.xml", 2));
        assert!(found[0].text.contains("hang above 8388608 bytes"), "{found:?}");
        assert!(found.iter().all(|finding| finding.level == Level::Warning), "{found:?}");
        assert!(found[1].file == "b.xml" && found[1].text.contains("a.xml too"), "{found:?}");
    }

    #[test]
    fn plans_and_files_that_are_not_there_have_places() {
        let plan = "hawser-plan 1\nname copy\ncollective broadcast\nranks 2\nroot 0\nper_block 1\nscratch 0\n\
                    rank 0\nchannel 0\ncopy_send src in:0 dst out:0 to 1\n\
                    rank 1\nchannel 0\nrecv from 1 dst out:0\n";
        let found = lint("plan", &[("bad.plan", plan), ("worse.plan", "hawser-plan 1\nname\n")]);
        assert!(found[0].text.contains("receives from itself") && found[0].class == "plan", "{found:?}");
        assert_eq!((found[1].line, found.len()), (3, 2), "{found:?}");
        let (found, name) = look(Path::new("/nowhere/x.xml"));
        assert!(found[0].level == Level::Error && found[0].class == "file" && name.is_none(), "{found:?}");
    }

    #[test]
    fn sarif_names_rules_places_and_levels() {
        let found = lint("sarif", &[("race.xml", file!("race.send_before_sum"))]);
        let sarif = sarif(&found);
        let run = &sarif["runs"][0];
        assert_eq!(run["tool"]["driver"]["rules"][0]["id"], "race");
        let result = &run["results"][0];
        assert_eq!((&result["ruleId"], &result["level"]), (&json!("race"), &json!("error")));
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "race.xml");
        assert_eq!(place["region"]["startLine"], found[0].line);
    }
}

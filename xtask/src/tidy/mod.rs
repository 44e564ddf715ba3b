//! The house rules that no lint checks. One file per family of rules; each rule is a function from
//! file contents to findings, so the tests plant violations in strings.

mod layout;
mod length;
mod rust;
mod settings;
mod text;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{fmt, fs};

const EXCEPTIONS: &str = "xtask/tidy-exceptions.txt";

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// From 1; 0 for the file as a whole.
    line: usize,
    rule: &'static str,
    text: String,
    /// Printed, but not a failure.
    warning: bool,
}

impl Finding {
    fn new(source: &Source, line: usize, rule: &'static str, text: impl Into<String>) -> Self {
        Self { path: source.path.clone(), line, rule, text: text.into(), warning: false }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warning { "warning" } else { "error" };
        write!(f, "{kind}: {}:{}: {}: {}", self.path, self.line, self.rule, self.text)
    }
}

/// A text file of the repository.
struct Source {
    /// From the workspace root, with slashes.
    path: String,
    text: String,
}

impl Source {
    fn extension(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    #[cfg(test)]
    fn planted(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }
}

/// Checks every file that git tracks or would track. Prints what it finds.
pub fn run(root: &Path) -> Result<(), String> {
    let sources = sources(root)?;
    let exceptions = match fs::read_to_string(root.join(EXCEPTIONS)) {
        Ok(text) => parse_exceptions(&text)?,
        Err(e) => return Err(format!("cannot read {EXCEPTIONS}: {e}")),
    };
    let findings = apply_exceptions(check(&sources), &exceptions);
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| !finding.warning).count();
    println!("tidy: {} files, {errors} errors, {} warnings", sources.len(), findings.len() - errors);
    if errors == 0 { Ok(()) } else { Err(format!("{errors} broken rules; the rules are in CONTRIBUTING.md")) }
}

fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = layout::check(sources);
    findings.extend(settings::check(sources));
    for source in sources {
        findings.extend(length::check(source));
        findings.extend(text::check(source));
        if source.extension() == "rs" {
            findings.extend(rust::check(source));
        }
    }
    findings.sort();
    findings
}

/// The text files of the repository; what is not UTF-8 is not text.
fn sources(root: &Path) -> Result<Vec<Source>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cannot run git: {e}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths: BTreeSet<&str> = names.split('\0').filter(|name| !name.is_empty()).collect();
    let read = |path: &str| fs::read_to_string(root.join(path)).ok().map(|text| (path.to_string(), text));
    Ok(paths.into_iter().filter_map(read).map(|(path, text)| Source { path, text }).collect())
}

/// A rule that a file may break.
#[derive(Debug, PartialEq, Eq)]
struct Exception {
    path: String,
    rule: String,
}

/// One exception a line: `path | rule | date | reason`; all four are needed.
fn parse_exceptions(text: &str) -> Result<Vec<Exception>, String> {
    let mut exceptions = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [path, rule, date, reason] = fields[..] else {
            return Err(format!("{EXCEPTIONS}:{}: want path | rule | date | reason", index + 1));
        };
        let is_date = date.len() == 10 && date.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        if path.is_empty() || rule.is_empty() || !is_date || reason.is_empty() {
            return Err(format!("{EXCEPTIONS}:{}: a field is empty, or the date not YYYY-MM-DD", index + 1));
        }
        exceptions.push(Exception { path: path.into(), rule: rule.into() });
    }
    Ok(exceptions)
}

/// Drops what is excepted, adds an error for each exception that excepts nothing.
fn apply_exceptions(mut findings: Vec<Finding>, exceptions: &[Exception]) -> Vec<Finding> {
    for exception in exceptions {
        let before = findings.len();
        findings.retain(|finding| finding.path != exception.path || finding.rule != exception.rule);
        if findings.len() == before {
            findings.push(Finding {
                path: EXCEPTIONS.into(),
                line: 0,
                rule: "stale-exception",
                text: format!("{} no longer breaks {}: remove the line", exception.path, exception.rule),
                warning: false,
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(path: &str, rule: &'static str) -> Finding {
        Finding::new(&Source::planted(path, ""), 3, rule, "text")
    }

    #[test]
    fn exceptions_need_all_four_fields() {
        let good = "# comment\n\na/b.rs | file-length | 2025-01-31 | one table\n";
        let exception = Exception { path: "a/b.rs".into(), rule: "file-length".into() };
        assert_eq!(parse_exceptions(good), Ok(vec![exception]));
        for bad in ["a | b | 2025-01-31", "a | b | 2025-01-31 | ", "a | b | soon | reason"] {
            assert!(parse_exceptions(bad).unwrap_err().contains(":1:"), "{bad}");
        }
    }

    #[test]
    fn exceptions_match_path_and_rule_and_may_not_be_stale() {
        let findings = vec![finding("a.rs", "x"), finding("a.rs", "y"), finding("b.rs", "x")];
        let exceptions = parse_exceptions("a.rs | x | 2025-01-31 | r\nc.rs | x | 2025-01-31 | r").unwrap();
        let left = apply_exceptions(findings, &exceptions);
        let rules: Vec<_> = left.iter().map(|finding| (finding.path.as_str(), finding.rule)).collect();
        assert_eq!(rules, [("a.rs", "y"), ("b.rs", "x"), (EXCEPTIONS, "stale-exception")]);
    }

    #[test]
    fn one_pass_runs_every_family() {
        let long = "x\n".repeat(601) + "mod m { /* no end";
        let findings = check(&[Source::planted("core/capi/src/a.rs", &long)]);
        let rules: Vec<_> = findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, ["file-length", "parse"]);
    }
}

//! The house rules that no lint checks. One file per family of rules; each rule is a function from
//! file contents to findings, so the tests plant violations in strings.

mod imports;
mod layout;
mod length;
mod links;
mod riddles;
mod rust;
mod settings;
mod source;
mod stops;
mod text;
mod width;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use source::{Finding, Source};

const EXCEPTIONS: &str = "xtask/tidy-exceptions.txt";

/// Rules that the tree does not keep everywhere yet, and the beginnings of the paths where breaking them is
/// an error already. Elsewhere they are warnings, of which `cargo xtask tidy` prints the number and `cargo
/// xtask tidy --all` each. Add a folder when it is clean; `""` stands for the whole tree.
const BEING_MENDED: [(&str, &[&str]); 1] = [(
    "width",
    &[
        "ARCHITECTURE",
        "CONTRIBUTING",
        "README",
        "SECURITY",
        "cli/",
        "core/",
        "docs/",
        "kernels/",
        "plugins/example-net/",
        "plugins/net-ib/",
        "plugins/net-socket/",
        "tests/oracle/",
        "tests/src/",
        "tests/tests/",
        "xtask/",
    ],
)];

/// Checks every file that git tracks or would track. Prints what it finds; warnings of rules that are being
/// mended only if `all` is set, else their number.
pub fn run(root: &Path, all: bool) -> Result<(), String> {
    let sources = sources(root)?;
    let exceptions = match fs::read_to_string(root.join(EXCEPTIONS)) {
        Ok(text) => parse_exceptions(&text)?,
        Err(e) => return Err(format!("cannot read {EXCEPTIONS}: {e}")),
    };
    let findings = soften(apply_exceptions(check(&sources), &exceptions));
    let is_counted = |finding: &&Finding| finding.warning && is_being_mended(finding.rule) && !all;
    findings.iter().filter(|finding| !is_counted(finding)).for_each(|finding| println!("{finding}"));
    for (rule, _) in BEING_MENDED {
        let count = findings.iter().filter(is_counted).filter(|finding| finding.rule == rule).count();
        if count > 0 {
            println!("warning: {rule}: {count} times (cargo xtask tidy --all prints them)");
        }
    }
    let errors = findings.iter().filter(|finding| !finding.warning).count();
    println!("tidy: {} files, {errors} errors, {} warnings", sources.len(), findings.len() - errors);
    if errors == 0 { Ok(()) } else { Err(format!("{errors} broken rules; the rules are in CONTRIBUTING.md")) }
}

/// Prints the circles of imports of all crates, or of the one in this folder.
pub fn print_circles(root: &Path, folder: Option<&str>) -> Result<(), String> {
    print!("{}", imports::report(&sources(root)?, folder));
    Ok(())
}

fn is_being_mended(rule: &str) -> bool {
    BEING_MENDED.iter().any(|(name, _)| *name == rule)
}

/// Makes warnings of findings where the rule is not kept yet.
fn soften(mut findings: Vec<Finding>) -> Vec<Finding> {
    for finding in &mut findings {
        let rule = BEING_MENDED.iter().find(|(name, _)| *name == finding.rule);
        let is_strict =
            rule.is_none_or(|(_, strict)| strict.iter().any(|start| finding.path.starts_with(start)));
        finding.warning |= !is_strict;
    }
    findings
}

fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = layout::check(sources);
    findings.extend(settings::check(sources));
    findings.extend(imports::check(sources));
    findings.extend(stops::check(sources));
    findings.extend(links::check(sources));
    for source in sources {
        findings.extend(length::check(source));
        findings.extend(text::check(source));
        findings.extend(width::check(source));
        findings.extend(riddles::check(source));
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
    fn rules_that_are_being_mended_are_errors_where_the_tree_is_clean() {
        let softened = soften(vec![
            finding("xtask/src/a.rs", "width"),
            finding("else/a.rs", "width"),
            finding("a", "parse"),
        ]);
        assert_eq!(softened.iter().map(|finding| finding.warning).collect::<Vec<_>>(), [false, true, false]);
    }

    #[test]
    fn one_pass_runs_every_family() {
        let long = "x\n".repeat(601) + "mod m { /* no end";
        let findings = check(&[Source::planted("core/capi/src/a.rs", &long)]);
        let rules: Vec<_> = findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, ["file-length", "parse"]);
    }
}

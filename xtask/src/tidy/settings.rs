//! Rule `settings`: every variable of our own (`HAWSER_…`) that `core` or `plugins` names is documented in
//! some page, and every one that a page has in the first column of a table stands in some source.
//!
//! That docs/settings.md has all settings of the library is tested beside their table
//! (`core/base/src/env/table.rs`).

use std::collections::BTreeSet;

use super::{Finding, Source};

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pages: Vec<&Source> = sources.iter().filter(|source| source.extension() == "md").collect();
    for source in sources.iter().filter(|source| is_of_the_library(&source.path)) {
        let is_unknown =
            |name: &&str| name.starts_with("HAWSER_") && !pages.iter().any(|p| p.text.contains(*name));
        let unknown: BTreeSet<&str> = literals(without_tests(&source.text)).filter(is_unknown).collect();
        findings
            .extend(unknown.iter().map(|name| finding(source, format!("{name} stands in no page of docs"))));
    }
    let is_in_code = |name: &str| {
        let quoted = format!("\"{name}\"");
        sources.iter().any(|source| source.extension() == "rs" && source.text.contains(&quoted))
    };
    for page in
        pages.iter().filter(|page| page.path.starts_with("docs/") || page.path.starts_with("plugins/"))
    {
        let unread =
            in_tables(&page.text).into_iter().filter(|name| name.starts_with("HAWSER_") && !is_in_code(name));
        findings.extend(unread.map(|name| finding(page, format!("no source reads {name}"))));
    }
    findings
}

fn finding(source: &Source, text: String) -> Finding {
    Finding::new(source, 0, "settings", text)
}

fn is_of_the_library(path: &str) -> bool {
    let is_first_party = path.starts_with("core/") || path.starts_with("plugins/");
    is_first_party && path.ends_with(".rs") && path.contains("/src/") && !path.contains("/tests")
}

fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or_default()
}

/// Whole string literals that are names of variables.
fn literals(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').filter(|part| is_name(part))
}

/// Names in the first column of tables.
fn in_tables(text: &str) -> BTreeSet<&str> {
    let cells = text.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let words = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    words.map(|word| word.split('=').next().unwrap_or_default()).filter(|word| is_name(word)).collect()
}

fn is_name(word: &str) -> bool {
    let rest = ["NCCL_", "HAWSER_", "MSCCL_"].iter().find_map(|prefix| word.strip_prefix(prefix));
    rest.is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::planted(path, text)).collect();
        check(&sources).into_iter().map(|finding| format!("{}: {}", finding.path, finding.text)).collect()
    }

    #[test]
    fn own_names_are_documented_and_documented_ones_are_read() {
        let plugin = "var(\"HAWSER_X\") \"HAWSER_Y is wrong\" #[cfg(test)] \"HAWSER_Z\"";
        let found = texts(&[("plugins/p/src/config.rs", plugin), ("docs/p.md", "| `HAWSER_W` | |\n")]);
        assert_eq!(
            found,
            [
                "plugins/p/src/config.rs: HAWSER_X stands in no page of docs",
                "docs/p.md: no source reads HAWSER_W",
            ]
        );
        let page = ("plugins/p/README.md", "| `HAWSER_X` | |\n");
        assert_eq!(texts(&[("plugins/p/src/config.rs", plugin), page]), [""; 0]);
    }
}

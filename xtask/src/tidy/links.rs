//! Rules about links in Markdown.
//!
//! | rule | says |
//! |---|---|
//! | `link` | a link within the repository leads to a file, a folder, and a heading that are there |
//! | `book` | `docs/SUMMARY.md`, the contents of the book, has every page of `docs` |

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Source};

const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks the links of all pages, and the contents of the book.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let pages: BTreeMap<&str, &Source> =
        sources.iter().filter(|s| s.extension() == "md").map(|s| (s.path.as_str(), s)).collect();
    let mut places: BTreeSet<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    for source in sources {
        let folders = source.path.match_indices('/').map(|(end, _)| &source.path[..end]);
        places.extend(folders);
    }
    let mut findings = Vec::new();
    for source in pages.values() {
        for (line, target) in links(&source.text) {
            if let Some(text) = broken(&source.path, target, &places, &pages) {
                findings.push(Finding::new(source, line, "link", text));
            }
        }
    }
    findings.extend(missing_pages(&pages));
    findings
}

/// The pages of `docs` that the contents of the book do not name.
fn missing_pages(pages: &BTreeMap<&str, &Source>) -> Vec<Finding> {
    let Some(summary) = pages.get(SUMMARY) else { return Vec::new() };
    let named: BTreeSet<&str> = links(&summary.text).into_iter().map(|(_, target)| target).collect();
    let of_book =
        pages.keys().filter_map(|path| path.strip_prefix("docs/")).filter(|path| *path != "SUMMARY.md");
    let missing = of_book.filter(|path| !named.contains(path));
    missing.map(|path| Finding::new(summary, 0, "book", format!("docs/{path} is not in the book"))).collect()
}

/// The text about a link that leads nowhere, on the page at `from`; None if it is right.
fn broken(
    from: &str,
    target: &str,
    places: &BTreeSet<&str>,
    pages: &BTreeMap<&str, &Source>,
) -> Option<String> {
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let Some(path) = (if path.is_empty() { Some(from.to_string()) } else { joined(from, path) }) else {
        return Some(format!("{target} leads out of the repository"));
    };
    if !path.is_empty() && !places.contains(path.as_str()) {
        return Some(format!("{target}: there is no {path}"));
    }
    let page = pages.get(path.as_str()).filter(|_| !heading.is_empty())?;
    let is_there = anchors(&page.text).contains(heading);
    (!is_there).then(|| format!("{target}: {path} has no heading for #{heading}"))
}

/// The path from the root of the repository; None if it leads out of it.
fn joined(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The targets of links within the repository, with their lines. Code has no links.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code ^= true;
        } else if !in_code {
            found.extend(links_of(line).map(|target| (index + 1, target)));
        }
    }
    found
}

fn links_of(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.match_indices("](").filter_map(|(at, _)| {
        let is_in_code = line[..at].matches('`').count() % 2 == 1;
        let target = line[at + 2..].split(')').next()?;
        let is_ours = !target.contains(':') && !target.is_empty();
        (is_ours && !is_in_code).then_some(target)
    });
    targets.collect::<Vec<_>>().into_iter()
}

/// The anchors that links to a page may have behind `#`: its headings as GitHub and mdBook write them, and
/// named anchors.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings =
        text.lines().filter(|line| line.starts_with('#')).map(|line| slug(line.trim_start_matches('#')));
    let named = text.split("<a name=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(String::from);
    headings.chain(named).collect()
}

fn slug(heading: &str) -> String {
    let heading = heading.rsplit("</a>").next().unwrap_or(heading).trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(page: &str) -> Vec<String> {
        let other = "# Title\n## What it says, `now`\n<a name=\"named\"></a>\n";
        let sources = [
            Source::planted("docs/a.md", page),
            Source::planted("docs/b.md", other),
            Source::planted("core/x/src/lib.rs", ""),
        ];
        check(&sources).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn links_that_lead_somewhere_are_right() {
        let good = "# A\n[b](b.md) [b](../docs/b.md#what-it-says-now) [n](b.md#named) [f](../core/x)\n\
                    [s](#a) [w](https://example.org/no.md)\n```\n[c](no.md)\n```\n`[c](no.md)`\n";
        assert_eq!(findings(good), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        assert_eq!(findings("[n](no.md)"), ["no.md: there is no docs/no.md"]);
        assert_eq!(findings("[n](b.md#other)"), ["b.md#other: docs/b.md has no heading for #other"]);
        assert_eq!(findings("[n](../../b.md)"), ["../../b.md leads out of the repository"]);
    }

    #[test]
    fn every_page_is_in_the_book() {
        let sources = [Source::planted(SUMMARY, "- [a](a.md)"), Source::planted("docs/a.md", "")];
        assert!(check(&sources).is_empty());
        let sources = [Source::planted(SUMMARY, ""), Source::planted("docs/adr/1.md", "")];
        assert_eq!(check(&sources)[0].text, "docs/adr/1.md is not in the book");
    }
}

//! Rule `way-of-a-call`: the table of that name in ARCHITECTURE.md has at most nine stops, and the files and
//! functions that it names exist.

use super::{Finding, Source};

const MAP: &str = "ARCHITECTURE.md";
const HEADING: &str = "## The way of a call";
const MOST_STOPS: usize = 9;

/// Checks the table against the sources.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(map) = sources.iter().find(|source| source.path == MAP) else { return Vec::new() };
    let rows = rows(&map.text);
    let mut findings = Vec::new();
    if rows.is_empty() {
        findings.push(finding(map, 0, format!("no table follows \"{HEADING}\"")));
    }
    if rows.len() > MOST_STOPS {
        let text = format!("{} stops, at most {MOST_STOPS} are wanted", rows.len());
        findings.push(finding(map, rows[0].0, text));
    }
    for (line, row) in &rows {
        findings.extend(check_row(sources, row).into_iter().map(|text| finding(map, *line, text)));
    }
    findings
}

fn finding(map: &Source, line: usize, text: String) -> Finding {
    Finding::new(map, line, "way-of-a-call", text)
}

/// The rows of the table below its two lines of heading, with their lines.
fn rows(text: &str) -> Vec<(usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let section = lines.skip_while(|(_, line)| *line != HEADING).skip(1);
    let section = section.take_while(|(_, line)| !line.starts_with("## "));
    section.filter(|(_, line)| line.starts_with('|')).skip(2).collect()
}

/// The faults of a row: files that do not exist, functions that none of its files defines.
fn check_row(sources: &[Source], row: &str) -> Vec<String> {
    let names: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
    let (functions, files): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.ends_with("()"));
    let files: Vec<&str> =
        files.into_iter().filter(|name| name.contains('/') || name.ends_with(".rs")).collect();
    let mut wrong = Vec::new();
    for name in &files {
        let is_there =
            sources.iter().any(|source| source.path == *name || source.path.starts_with(&folder(name)));
        if !is_there {
            wrong.push(format!("{name} does not exist: name it from the root of the repository"));
        }
    }
    for function in functions {
        let path = function.trim_end_matches("()");
        let name = path.rsplit("::").next().unwrap_or(path);
        let mut texts = sources.iter().filter(|source| files.contains(&source.path.as_str()));
        if !texts.any(|source| defines(&source.text, name)) {
            wrong.push(format!("no file of the row defines fn {name}"));
        }
    }
    wrong
}

fn folder(name: &str) -> String {
    format!("{}/", name.trim_end_matches('/'))
}

fn defines(text: &str, function: &str) -> bool {
    let follows = |at: usize| text[at..].starts_with(['(', '<']);
    let head = format!("fn {function}");
    text.match_indices(&head).any(|(at, _)| follows(at + head.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rows: &[&str]) -> Vec<String> {
        let table = format!(
            "# Map\n\n{HEADING}\n\n| stop | file | does |\n|---|---|---|\n{}\n\n## Next\n| a |",
            rows.join("\n")
        );
        let sources = [
            Source::planted(
                "core/runtime/src/group.rs",
                "pub fn end() {}\nimpl A { fn hand_over<T>(&self) {} }",
            ),
            Source::planted(MAP, &table),
        ];
        check(&sources).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn files_and_functions_of_the_table_exist() {
        assert_eq!(
            found(&["| 1 group | `core/runtime/src/group.rs`: `end()`, `Batch::hand_over()` | what |"]),
            [""; 0]
        );
        assert_eq!(found(&["| 1 group | `core/runtime/src` | `Call` |"]), [""; 0]);
        let gone = found(&["| 1 group | `core/runtime/src/groups.rs` | what |", "| 2 | `group.rs` | `x` |"]);
        assert!(
            gone.len() == 2 && gone[0].starts_with("core/runtime/src/groups.rs does not exist"),
            "{gone:?}"
        );
        let renamed = found(&["| 1 group | `core/runtime/src/group.rs`: `hand()` | what |"]);
        assert_eq!(renamed, ["no file of the row defines fn hand"]);
    }

    #[test]
    fn the_table_has_at_most_nine_stops() {
        let row = "| 1 | `core/runtime/src/group.rs` | what |";
        assert_eq!(found(&[row; 9]), [""; 0]);
        assert_eq!(found(&[row; 10]), ["10 stops, at most 9 are wanted"]);
        assert!(found(&[])[0].starts_with("no table follows"));
    }
}

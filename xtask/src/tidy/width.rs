//! Rule `width`: lines of Rust and Python have at most 110 columns; a paragraph of Markdown is one line, or
//! lines of at most 120 columns.

use super::{Finding, Source};

const CODE_COLUMNS: usize = 110;
const PROSE_COLUMNS: usize = 120;

/// Checks the widths of a file's lines.
pub fn check(source: &Source) -> Vec<Finding> {
    let (wide, limit) = match source.extension() {
        "rs" | "py" => (wide_code(&source.text), CODE_COLUMNS),
        "md" => (wide_prose(&source.text), PROSE_COLUMNS),
        _ => return Vec::new(),
    };
    let text = |columns: usize| format!("{columns} columns, the limit is {limit}");
    wide.into_iter().map(|(line, columns)| Finding::new(source, line, "width", text(columns))).collect()
}

fn columns(line: &str) -> usize {
    line.chars().count()
}

fn wide_code(text: &str) -> Vec<(usize, usize)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, columns(line)));
    lines.filter(|(_, columns)| *columns > CODE_COLUMNS).collect()
}

/// The wide lines of paragraphs that have several lines.
fn wide_prose(text: &str) -> Vec<(usize, usize)> {
    let mut wide = Vec::new();
    let mut paragraph: Vec<(usize, usize)> = Vec::new();
    let mut in_code = false;
    let mut end = |paragraph: &mut Vec<(usize, usize)>| {
        if paragraph.len() > 1 {
            wide.extend(paragraph.iter().filter(|(_, columns)| *columns > PROSE_COLUMNS));
        }
        paragraph.clear();
    };
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let is_fence = start.starts_with("```");
        if is_fence || in_code || start.is_empty() || is_of_its_own(start) {
            end(&mut paragraph);
            in_code ^= is_fence;
            continue;
        }
        if is_item(start) {
            end(&mut paragraph);
        }
        paragraph.push((index + 1, columns(line)));
    }
    end(&mut paragraph);
    wide
}

/// Headings, rows of tables and tags.
fn is_of_its_own(start: &str) -> bool {
    start.starts_with(['#', '|', '<'])
}

/// An item of a list begins a paragraph.
fn is_item(start: &str) -> bool {
    let after_number = start.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = after_number.len() < start.len() && after_number.starts_with(". ");
    is_numbered || ["- ", "* ", "+ "].iter().any(|mark| start.starts_with(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Source::planted(path, text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn code_has_at_most_110_columns() {
        for path in ["a.rs", "a.py"] {
            assert_eq!(lines(path, &format!("{}\n{}\n", "x".repeat(110), "ü".repeat(110))), [0; 0]);
            assert_eq!(lines(path, &format!("x\n{}\n", "x".repeat(111))), [2], "{path}");
        }
        assert_eq!(lines("a.toml", &"x".repeat(200)), [0; 0]);
    }

    #[test]
    fn a_paragraph_is_one_line_or_narrow_lines() {
        let (wide, narrow) = ("w".repeat(121), "n".repeat(120));
        assert_eq!(lines("a.md", &format!("{wide}\n\n{wide}\n- {wide}\n- {wide}\n1. {wide}\n")), [0; 0]);
        assert_eq!(lines("a.md", &format!("{narrow}\n{narrow}\n")), [0; 0]);
        assert_eq!(lines("a.md", &format!("{narrow}\n{wide}\n{narrow}\n")), [2]);
        assert_eq!(lines("a.md", &format!("- {wide}\n  more\n- {wide}\n")), [1]);
    }

    #[test]
    fn tables_headings_and_code_in_prose_may_be_wide() {
        let wide = "w".repeat(121);
        let text = format!("# {wide}\n| {wide} |\n| {wide} |\n```\n{wide}\n{wide}\n```\n");
        assert_eq!(lines("a.md", &text), [0; 0]);
    }
}

//! The means by which all commands print: text whose loss is an error, tables of one layout, JSON, and
//! colours.
//!
//! Colours are for terminals only, and not where `NO_COLOR` is set: `anstream` takes them out of everything
//! else, so the commands need not ask.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use comfy_table::{CellAlignment, presets};
use serde::Serialize;

/// The style of what is as it should be.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// The style of what is wrong.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// The style of headings.
pub const HEADING: Style = Style::new().bold();

/// A text in a style.
pub fn styled(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// A text in a style for standard error, or without if that is no terminal.
pub fn styled_for_errors(style: Style, text: &str) -> String {
    match anstream::AutoStream::choice(&std::io::stderr()) {
        anstream::ColorChoice::Never => text.to_owned(),
        _ => styled(style, text),
    }
}

/// Writes to the standard output. A reader that went away (`| head`) is no error: it has what it wanted.
///
/// # Errors
/// The text did not get there, for example because the disk is full.
pub fn print(text: &str) -> Result<()> {
    let mut out = anstream::AutoStream::auto(std::io::stdout().lock());
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to the standard output")
        }
        _ => Ok(()),
    }
}

/// Writes a value as JSON to the standard output.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("the result as JSON")?;
    print(&(text + "\n"))
}

/// A size that says all of its bytes.
pub fn exact(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 9) { size(bytes) } else { format!("{bytes} B") }
}

/// A size as people write it: `64 KiB`, `1.5 MiB`, `12 B`.
pub fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

/// A number of things: `1 rule`, `2 rules`, `2 processes`.
pub fn counted(count: usize, name: &str) -> String {
    let end = match (count, name.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {name}{end}")
}

/// The side on which the text of a column stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A table with a line of headings, whose columns are as wide as what stands in them.
pub struct Table {
    table: comfy_table::Table,
}

impl Table {
    /// A table with these columns.
    pub fn new<const N: usize>(columns: [(&str, Align); N]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(columns.map(|(name, _)| name));
        for (column, (_, align)) in table.column_iter_mut().zip(columns) {
            column.set_padding((0, 2));
            column.set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        Self { table }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.table.add_row(cells);
    }

    /// The lines: the headings, then the rows. No line ends in spaces.
    pub fn lines(&self) -> Vec<String> {
        self.table.lines().map(|line| line.trim_end().to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new([("algorithm", Align::Left), ("µs", Align::Right)]);
        table.row(["RecursiveDoubling".into(), "1.5".into()]);
        table.row(["Ring".into(), "1234.0".into()]);
        let wanted = [
            "algorithm              µs", //
            "RecursiveDoubling     1.5",
            "Ring               1234.0",
        ];
        assert_eq!(table.lines(), wanted);
    }

    #[test]
    fn one_thing_is_not_many() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "rule")), ["0 rules", "1 rule", "2 rules"]);
        assert_eq!([1, 2].map(|count| counted(count, "process")), ["1 process", "2 processes"]);
    }

    #[test]
    fn sizes_have_binary_units() {
        let texts = [0, 12, 1 << 10, 3 << 19, 64 << 20, 1 << 30].map(size);
        assert_eq!(texts, ["0 B", "12 B", "1 KiB", "1.5 MiB", "64 MiB", "1 GiB"]);
    }
}

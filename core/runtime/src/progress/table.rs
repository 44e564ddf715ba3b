//! A verdict as text: the sentence, what to do, and a line for every rank.

use std::fmt::Write as _;

use super::operation::seconds;
use super::verdict::Verdict;
use super::verdict::rows::Row;

/// The most lines of a table; ranks that are as their neighbours are left out first.
const MOST_LINES: usize = 64;

impl Verdict {
    /// The verdict as lines of text.
    pub fn text(&self) -> String {
        let name = if self.name.is_empty() { &self.comm_id } else { &self.name };
        let mut text = format!("communicator {name} ({}, {} ranks)\n", self.comm_id, self.ranks);
        let _ = writeln!(text, "  {}", self.sentence);
        let _ = writeln!(text, "  what to do: {}", self.remedy);
        let head = ["rank", "process", "state", "called", "operation", "stage", "since", "waits for"];
        let mut lines = vec![head.map(String::from)];
        lines.extend(self.shown().map(cells));
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        for line in &lines {
            let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            let _ = writeln!(text, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
        let hidden = self.rows.len() - self.shown().count();
        if hidden > 0 {
            let _ = writeln!(text, "  ({hidden} more ranks; --json has all)");
        }
        text
    }

    /// The lines that are worth reading: those of the guilty, and the first of all others.
    fn shown(&self) -> impl Iterator<Item = &Row> {
        let mut of_guilty = self.guilty.len().min(MOST_LINES / 2);
        let mut of_others = MOST_LINES - of_guilty;
        self.rows.iter().filter(move |row| {
            let left = if self.guilty.contains(&row.rank) { &mut of_guilty } else { &mut of_others };
            let is_shown = *left > 0;
            *left = left.saturating_sub(1);
            is_shown
        })
    }
}

fn cells(row: &Row) -> [String; 8] {
    let process = if row.pid == 0 { "?".into() } else { format!("{}:{}", row.host, row.pid) };
    let since = if row.operation.is_empty() { String::new() } else { seconds(row.age_ms) };
    [
        row.rank.to_string(),
        process,
        row.state.clone(),
        row.collectives.to_string(),
        row.operation.clone(),
        row.stage.clone(),
        since,
        row.waits_for.clone(),
    ]
}

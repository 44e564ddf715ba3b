//! The picture of `hawser top`.

use std::cmp::Reverse;

use hawser_runtime::progress::operation::seconds;
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};

use super::figures::{Pool, Rail};
use super::job::{Comm, Job, Mood, Rank};
use crate::output::{counted, size};

/// Communicators that are listed above the one that is shown.
const MOST_COMMS: usize = 6;
/// Ranks in a line of the map.
const MAP_WIDTH: usize = 64;
/// Rails and pools that have a line.
const MOST_RAILS: usize = 4;
const MOST_POOLS: usize = 2;
/// Lines of a verdict.
const VERDICT_LINES: u16 = 4;

/// The user's choices.
#[derive(Debug, Default)]
pub struct View {
    /// The communicator that is shown.
    pub comm: usize,
    /// The first rank of the table.
    pub from: usize,
    /// Ranks stand in their order; else the worst come first.
    pub by_rank: bool,
}

impl View {
    /// Takes a key.
    pub fn press(&mut self, key: KeyCode, job: &Job) {
        match key {
            KeyCode::Down | KeyCode::Tab => self.comm += 1,
            KeyCode::Up | KeyCode::BackTab => self.comm = self.comm.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.from += 16,
            KeyCode::PageUp => self.from = self.from.saturating_sub(16),
            KeyCode::Home => self.from = 0,
            KeyCode::Char('s') => self.by_rank = !self.by_rank,
            _ => return,
        }
        self.keep_within(job);
    }

    fn keep_within(&mut self, job: &Job) {
        self.comm = self.comm.min(job.comms.len().saturating_sub(1));
        let ranks = job.comms.get(self.comm).map_or(0, |comm| comm.ranks.len());
        self.from = self.from.min(ranks.saturating_sub(1));
    }
}

/// The keys.
const KEYS: &str = "q end  up/down communicator  PgUp/PgDn ranks  s order";
/// The meaning of the signs.
const SIGNS: &str = ". idle  > inside  c called  ! to blame  z stopped";

/// Keys and signs: in one line where it has room for both.
fn keys(width: u16) -> Vec<Line<'static>> {
    let both = format!("{KEYS}  |  {SIGNS}");
    match both.len() <= usize::from(width) {
        true => vec![Line::from(both)],
        false => vec![Line::from(KEYS), Line::from(SIGNS)],
    }
}

/// Draws the job.
pub fn draw(frame: &mut Frame<'_>, job: &Job, view: &mut View) {
    view.keep_within(job);
    let comms = job.comms.len().min(MOST_COMMS) as u16;
    let joining = job.joining.len().min(3) as u16;
    let figures = figure_lines(job);
    let keys = keys(frame.area().width);
    let rows = [
        Constraint::Length(1),
        Constraint::Length(joining),
        Constraint::Length(comms + 2),
        Constraint::Length(figures.len() as u16),
        Constraint::Fill(1),
        Constraint::Length(keys.len() as u16),
    ];
    let [head, waiting, list, carried, rest, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(figures), carried);
    frame.render_widget(Line::from(title(job)).style(bold()), head);
    let sentence = |text: &'_ String| Line::from(text.clone()).style(style(Mood::Guilty));
    let sentences: Vec<Line<'_>> = job.joining.iter().map(sentence).collect();
    frame.render_widget(Paragraph::new(sentences), waiting);
    frame.render_widget(comm_table(job, view), list);
    match job.comms.get(view.comm) {
        Some(comm) => draw_comm(frame, comm, view, rest),
        None => {
            let text = match job.is_dead {
                true => "no communicator was open when these files were written last",
                false => "no process of this user on this host has a communicator",
            };
            frame.render_widget(Paragraph::new(text), rest);
        }
    }
    frame.render_widget(Paragraph::new(keys).style(Style::new().fg(Color::DarkGray)), foot);
}

fn title(job: &Job) -> String {
    let ranks: usize = job.comms.iter().map(|comm| comm.ranks.len()).sum();
    let of = if job.is_dead { "files of " } else { "" };
    let (processes, comms) = (counted(job.processes, "process"), counted(job.comms.len(), "communicator"));
    format!("hawser top: {of}{processes}, {comms}, {}", counted(ranks, "rank"))
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn style(mood: Mood) -> Style {
    match mood {
        Mood::Guilty => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        Mood::Stopped => Style::new().fg(Color::Magenta).add_modifier(Modifier::BOLD),
        Mood::Called => Style::new().fg(Color::Yellow),
        Mood::Busy => Style::new().fg(Color::Green),
        Mood::Idle => Style::new().fg(Color::DarkGray),
    }
}

fn sign(mood: Mood) -> &'static str {
    match mood {
        Mood::Guilty => "!",
        Mood::Stopped => "z",
        Mood::Called => "c",
        Mood::Busy => ">",
        Mood::Idle => ".",
    }
}

/// The list of communicators, around the one that is shown.
fn comm_table<'a>(job: &'a Job, view: &View) -> Table<'a> {
    let from = view.comm.saturating_sub(MOST_COMMS - 1).min(job.comms.len().saturating_sub(MOST_COMMS));
    let row = |(at, comm): (usize, &'a Comm)| {
        let slowest = comm.slowest().map_or_else(String::new, |rank| {
            format!("rank {} (+{})", rank.rank, seconds(rank.late_ms.unwrap_or(0)))
        });
        let here = match comm.ranks.len() as u32 == comm.size {
            true => comm.size.to_string(),
            false => format!("{} of {}", comm.ranks.len(), comm.size),
        };
        let calls = comm.ranks.iter().map(|rank| rank.called).max().unwrap_or(0);
        let cells = [
            format!("{} {}", if at == view.comm { '>' } else { ' ' }, comm.name),
            here,
            calls.to_string(),
            format!("{:.1}", comm.rate()),
            bandwidth(comm.busbw()),
            comm.predicted().map_or_else(String::new, bandwidth),
            comm.open_ms().map_or_else(String::new, seconds),
            slowest,
        ];
        let mood = if comm.verdict.is_some() { Some(Mood::Guilty) } else { None };
        Row::new(cells).style(mood.map_or_else(Style::new, style))
    };
    let rows = job.comms.iter().enumerate().skip(from).take(MOST_COMMS).map(row);
    let longest = job.comms.iter().map(|comm| comm.name.chars().count()).max().unwrap_or(0);
    let name = Constraint::Length((longest as u16 + 2).clamp(14, 32));
    let [here, called, rate, bus, predicted, open] = [9, 8, 8, 8, 10, 8].map(Constraint::Length);
    let widths = [name, here, called, rate, bus, predicted, open, Constraint::Fill(1)];
    let heads =
        ["  communicator", "ranks", "called", "calls/s", "bus GB/s", "pred. GB/s", "open", "slowest rank"];
    Table::new(rows, widths).header(Row::new(heads).style(bold())).column_spacing(1)
}

/// A line for each rail and pool, those first that have lost something or hold most, and an empty one.
fn figure_lines(job: &Job) -> Vec<Line<'_>> {
    let mut rails: Vec<&Rail> = job.rails.iter().collect();
    rails.sort_by_key(|rail| (rail.counts.is_empty(), Reverse(rail.sent + rail.received)));
    let mut pools: Vec<&Pool> = job.pools.iter().filter(|pool| pool.committed > 0).collect();
    pools.sort_by_key(|pool| (pool.refusals == 0, Reverse(pool.committed)));
    let lines = |shown: usize, all: usize, name: &str| {
        (all > shown).then(|| Line::from(format!("  and {} {name} more", all - shown)))
    };
    let mut text: Vec<Line<'_>> = rails.iter().take(MOST_RAILS).map(|rail| rail_line(rail)).collect();
    text.extend(lines(text.len(), rails.len(), "rails"));
    let shown: Vec<Line<'_>> = pools.iter().take(MOST_POOLS).map(|pool| pool_line(pool)).collect();
    let more = lines(shown.len(), pools.len(), "pools");
    text.extend(shown.into_iter().chain(more));
    if !text.is_empty() {
        text.push(Line::default());
    }
    text
}

fn rail_line(rail: &Rail) -> Line<'_> {
    let speed =
        |rate: Option<f64>| rate.map_or_else(String::new, |rate| format!(" ({} GB/s)", bandwidth(rate)));
    let Rail { host, net, name, sent, received, open, .. } = rail;
    let (sent, received) = (size(*sent), size(*received));
    let (out, back) = (speed(rail.sent_rate), speed(rail.received_rate));
    let text =
        format!("  rail {host} {net} {name}: sent {sent}{out}, received {received}{back}, {open} sends open");
    let counts: String = rail.counts.iter().map(|(what, count)| format!(", {count} {what}")).collect();
    Line::from(vec![Span::raw(text), Span::styled(counts, style(Mood::Called))])
}

fn pool_line(pool: &Pool) -> Line<'_> {
    let Pool { host, device, committed, used, refusals } = pool;
    let text = format!("  pool {host} {device}: {} of {} in use", size(*used), size(*committed));
    let refused = if *refusals > 0 { format!(", {refusals} refusals") } else { String::new() };
    Line::from(vec![Span::raw(text), Span::styled(refused, style(Mood::Called))])
}

fn draw_comm(frame: &mut Frame<'_>, comm: &Comm, view: &View, area: Rect) {
    let verdict = comm.verdict.as_ref().map_or(0, |verdict| {
        let length = verdict.sentence.len() + verdict.remedy.len() + 20;
        (length as u16 / area.width.max(1) + 1).min(VERDICT_LINES) + 1
    });
    // A map where a table cannot show all ranks.
    let all_fit = comm.ranks.len() + 1 + usize::from(verdict) <= usize::from(area.height);
    let lines = comm.ranks.len().div_ceil(MAP_WIDTH) as u16;
    let map = if all_fit { 0 } else { (lines + 1).min(area.height / 2) };
    let rows = [Constraint::Length(verdict), Constraint::Length(map), Constraint::Fill(1)];
    let [said, map_area, table] = Layout::vertical(rows).areas(area);
    if let Some(verdict) = &comm.verdict {
        let text = format!("{}. What to do: {}", verdict.sentence, verdict.remedy);
        frame.render_widget(Paragraph::new(text).style(style(Mood::Guilty)).wrap(Wrap { trim: true }), said);
    }
    frame.render_widget(Paragraph::new(map_lines(comm)), map_area);
    frame.render_widget(rank_table(comm, view, all_fit), table);
}

/// A sign for each rank, 64 in a line.
fn map_lines(comm: &Comm) -> Vec<Line<'_>> {
    let line = |ranks: &[Rank]| {
        let first = ranks.first().map_or(0, |rank| rank.rank);
        let mut spans = vec![Span::raw(format!("{first:>6} "))];
        spans.extend(ranks.iter().map(|rank| Span::styled(sign(rank.mood), style(rank.mood))));
        Line::from(spans)
    };
    comm.ranks.chunks(MAP_WIDTH).map(line).collect()
}

fn rank_table<'a>(comm: &'a Comm, view: &View, all_fit: bool) -> Table<'a> {
    let mut ranks: Vec<&Rank> = comm.ranks.iter().collect();
    if !all_fit && !view.by_rank {
        // The worst first: who is to blame, then who is behind, then who is late.
        ranks.sort_by_key(|rank| (rank.mood, rank.called, Reverse(rank.late_ms), rank.rank));
    }
    let row = |rank: &&'a Rank| {
        let cells = [
            format!("{} {}", sign(rank.mood), rank.rank),
            rank.process.clone(),
            rank.called.to_string(),
            bandwidth(rank.busbw),
            rank.predicted.map_or_else(String::new, bandwidth),
            rank.late_ms.map_or_else(String::new, |late| format!("+{}", seconds(late))),
            seconds(rank.age_ms),
            rank.operation.clone(),
            match rank.mood {
                Mood::Stopped => rank.state.clone(),
                _ => rank.waits_for.clone(),
            },
        ];
        let mut cells: Vec<Cell<'_>> = cells.into_iter().map(Cell::from).collect();
        cells[0] = std::mem::take(&mut cells[0]).style(style(rank.mood));
        Row::new(cells)
    };
    let rows = ranks.iter().skip(view.from).map(row);
    let longest = ranks.iter().map(|rank| rank.process.chars().count()).max().unwrap_or(0);
    let waits = ranks.iter().any(|rank| !rank.waits_for.is_empty() || rank.mood == Mood::Stopped);
    let widths = [
        Constraint::Length(6),
        Constraint::Length((longest as u16).clamp(8, 16)),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Fill(3),
        if waits { Constraint::Fill(2) } else { Constraint::Length(9) },
    ];
    let heads =
        ["  rank", "process", "called", "bus GB/s", "pred. GB/s", "late", "since", "operation", "waits for"];
    Table::new(rows, widths).header(Row::new(heads).style(bold())).column_spacing(1)
}

fn bandwidth(bytes: f64) -> String {
    // Of a counter that went back, or of -0, nothing is told.
    match bytes.max(0.0).abs() / 1e9 {
        gigabytes if gigabytes >= 100.0 => format!("{gigabytes:.0}"),
        gigabytes if gigabytes >= 1.0 => format!("{gigabytes:.1}"),
        gigabytes => format!("{gigabytes:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::job;
    use super::super::printed;
    use super::*;

    fn picture(ranks: u32, late: Option<(u32, u64)>, missing: Option<u32>, size: (u16, u16)) -> String {
        printed(&Job::new(job(ranks, late, missing), None, false), size).unwrap()
    }

    #[test]
    fn eight_ranks_are_a_table() {
        let text = picture(8, Some((5, 40)), None, (110, 24));
        assert!(text.starts_with("hawser top: 8 processes, 1 communicator, 8 ranks\n"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let world = lines.iter().find(|line| line.starts_with("> world")).unwrap();
        assert!(world.contains(" 8 ") && world.contains("rank 5 (+40 ms)"), "{text}");
        for rank in 0..8 {
            let begin = format!(". {rank} ");
            let line = lines.iter().find(|line| line.starts_with(&begin)).unwrap();
            assert!(
                line.contains(&format!("node00:{}", 1000 + rank)) && line.contains("19, all_reduce(262144"),
                "{text}"
            );
        }
        assert!(lines.iter().any(|line| line.starts_with(". 5 ") && line.contains("+40 ms")), "{text}");
        assert!(lines.last().unwrap().contains("! to blame"), "{text}");
    }

    /// A terminal as most people have it: headings whole, operations with their type, all keys.
    #[test]
    fn a_hundred_columns_hold_what_matters() {
        let text = picture(8, Some((5, 40)), None, (100, 30));
        for part in ["  communicator ", " bus GB/s ", " pred. GB/s ", " slowest rank", "z stopped"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let row = text.lines().find(|line| line.starts_with(". 3 ")).unwrap();
        assert!(row.contains("19, all_reduce(262144 "), "{text}");
        assert!(picture(8, None, None, (80, 30)).contains("z stopped"), "two lines of keys");
    }

    #[test]
    fn of_512_ranks_all_are_in_the_map_and_the_guilty_one_stands_first() {
        let text = picture(512, None, Some(300), (110, 30));
        let lines: Vec<&str> = text.lines().collect();
        let map: Vec<&&str> = lines.iter().filter(|line| line.ends_with(&">".repeat(10))).collect();
        assert_eq!(map.len(), 8, "{text}");
        assert_eq!(lines.iter().filter(|line| line.trim_start().starts_with("256 >")).count(), 1, "{text}");
        let marked = lines.iter().find(|line| line.trim_start().starts_with("256 >")).unwrap();
        assert_eq!(marked.find('!'), Some(7 + 300 - 256), "{text}");
        assert!(text.contains("rank 300 (host node37, process 1300) has not called"), "{text}");
        let head = lines.iter().position(|line| line.starts_with("  rank")).unwrap();
        assert!(lines[head + 1].starts_with("! 300 "), "{text}");
    }

    #[test]
    fn rails_and_pools_have_lines_and_what_was_lost_comes_first() {
        let text = printed(&Job::new(super::super::figures::tests::reports(1 << 20), None, false), (120, 30))
            .unwrap();
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
        let first = at("rail node00 IB mlx5_1: sent 40 B, received 0 B, 0 sends open, 8 losses");
        assert!(first < at("rail node00 IB mlx5_0: sent 8 MiB, received 16 MiB, 24 sends open\n"), "{text}");
        at("pool node00 GPU 0: 384 MiB of 512 MiB in use\n");
    }

    #[test]
    fn small_terminals_and_empty_jobs_are_drawn_too() {
        for size in [(20, 5), (1, 1), (400, 3), (80, 24)] {
            for ranks in [1, 8, 512] {
                picture(ranks, None, None, size);
                picture(ranks, None, Some(0), size);
            }
        }
        let empty = printed(&Job::new(Vec::new(), None, false), (80, 10)).unwrap();
        assert!(empty.contains("no process of this user on this host has a communicator"), "{empty}");
        // A job that has ended in order leaves files without communicators.
        let over = printed(&Job::new(Vec::new(), None, true), (80, 10)).unwrap();
        assert!(over.contains("no communicator was open when these files were written last"), "{over}");
    }

    #[test]
    fn keys_stay_within_the_job() {
        let job = Job::new(job(8, None, None), None, false);
        let mut view = View::default();
        for key in
            [KeyCode::Down, KeyCode::PageDown, KeyCode::PageDown, KeyCode::Char('s'), KeyCode::Char('x')]
        {
            view.press(key, &job);
        }
        assert_eq!((view.comm, view.from, view.by_rank), (0, 7, true));
        view.press(KeyCode::Up, &job);
        view.press(KeyCode::Home, &job);
        assert_eq!((view.comm, view.from), (0, 0));
    }
}

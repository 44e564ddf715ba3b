//! `hawser top`: a live view of the communicators and ranks on this host, and of those that files tell of.
//!
//! All that is shown comes from journals, which are read without the help of the processes: the view costs a
//! job nothing, and shows processes that are stopped as well.

mod draw;
mod figures;
mod job;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use hawser_runtime::progress::reader;
use hawser_runtime::progress::report::ProcessReport;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::output;
use draw::View;
use job::Job;

/// Options of `hawser top`.
#[derive(Debug, Args)]
pub struct Options {
    /// Only the communicators of this process
    #[arg(long)]
    pid: Option<u32>,
    /// Files of `HAWSER_PROGRESS_DIR`, also of processes that have ended, instead of processes of this host
    #[arg(long, conflicts_with = "pid", num_args = 1.., value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    every: f64,
    /// Print one picture and end, as where the output is no terminal
    #[arg(long)]
    once: bool,
    /// Print what is seen as JSON and end
    #[arg(long)]
    json: bool,
}

/// The size of a picture that is printed.
const PRINTED: (u16, u16) = (120, 50);

/// Runs `hawser top`.
///
/// # Errors
/// There is nothing to look at, or the terminal cannot be used.
pub fn run(options: &Options) -> Result<()> {
    if !(0.05..=3600.0).contains(&options.every) {
        bail!("--every {} is no time between looks; write seconds from 0.05 to 3600", options.every);
    }
    let first = look(options)?;
    if options.json {
        return output::print_json(&first);
    }
    if options.once || !std::io::stdout().is_terminal() {
        return output::print(&printed(&first, PRINTED)?);
    }
    let mut terminal = ratatui::try_init().context("the terminal cannot be used; --once prints a picture")?;
    let outcome = watch(&mut terminal, options, first);
    ratatui::restore();
    outcome
}

/// Reads the journals.
fn look(options: &Options) -> Result<Job> {
    let reports: Vec<ProcessReport> = if options.files.is_empty() {
        let pids = match options.pid {
            Some(pid) => {
                reader::read(pid)?;
                reader::processes()
            }
            None => reader::processes(),
        };
        pids.into_iter().filter_map(|pid| reader::read(pid).ok()).collect()
    } else {
        let read = |path: &PathBuf| reader::read_file(path).with_context(|| format!("{}", path.display()));
        options.files.iter().map(read).collect::<Result<_>>()?
    };
    Ok(Job::new(reports, options.pid, !options.files.is_empty()))
}

/// Shows what there is until the user ends it.
fn watch(terminal: &mut ratatui::DefaultTerminal, options: &Options, first: Job) -> Result<()> {
    let every = Duration::from_secs_f64(options.every);
    let (mut view, mut job, mut seen) = (View::default(), first, Instant::now());
    let mut next = Instant::now() + every;
    loop {
        terminal.draw(|frame| draw::draw(frame, &job, &mut view)).context("drawing")?;
        if event::poll(next.saturating_duration_since(Instant::now())).context("waiting for a key")? {
            if let Event::Key(key) = event::read().context("reading a key")?
                && key.kind == KeyEventKind::Press
            {
                let ends = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
                if ends || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(());
                }
                view.press(key.code, &job);
            }
            continue;
        }
        next = Instant::now() + every;
        // A process that was named may have ended: what was seen last stays.
        if let Ok(mut now) = look(options) {
            figures::compare(&mut now.rails, &job.rails, seen.elapsed().as_secs_f64());
            (job, seen) = (now, Instant::now());
        }
    }
}

/// A picture as text.
fn printed(job: &Job, (width, height): (u16, u16)) -> Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    let mut view = View::default();
    terminal.draw(|frame| draw::draw(frame, job, &mut view))?;
    let buffer = terminal.backend().buffer();
    let line = |row: u16| {
        let cells = (0..width).map(|column| buffer[(column, row)].symbol()).collect::<String>();
        cells.trim_end().to_owned() + "\n"
    };
    let mut lines: Vec<String> = (0..height).map(line).collect();
    // What stands at the bottom of a terminal need not do so on paper.
    lines.dedup_by(|line, before| line.trim().is_empty() && before.trim().is_empty());
    Ok(lines.concat().trim_end().to_owned() + "\n")
}

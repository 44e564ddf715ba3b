//! Progress bars, for everything that may take more than two seconds: on terminals only.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that is drawn on standard error if that is a terminal.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of so many steps, and what a step is called.
    pub fn new(steps: u64, unit: &str) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos} of {len} {prefix} {msg} ({eta} left)");
        Self::of(ProgressBar::new(steps), style).called(unit)
    }

    /// A sign that something of unknown length is going on.
    pub fn waiting(what: &str) -> Self {
        let style = ProgressStyle::with_template("{spinner} {prefix} {msg} {elapsed}");
        Self::of(ProgressBar::new_spinner(), style).called(what)
    }

    fn of(bar: ProgressBar, style: Result<ProgressStyle, indicatif::style::TemplateError>) -> Self {
        bar.set_draw_target(match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        });
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(bar)
    }

    fn called(self, name: &str) -> Self {
        self.0.set_prefix(name.to_owned());
        self
    }

    /// Says what is done now.
    pub fn say(&self, text: String) {
        self.0.set_message(text);
    }

    /// Moves the bar to a step.
    pub fn set(&self, step: u64) {
        self.0.set_position(step);
    }

    /// A step is done.
    pub fn inc(&self) {
        self.0.inc(1);
    }

    /// Prints something without the bar in between.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    /// Takes the bar away.
    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

//! A case of a suite, how it is run, and what is expected of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// One thing that a plugin has to do right.
pub struct Case<T: ?Sized> {
    /// Name of the function.
    pub name: &'static str,
    /// The behaviour that is wanted of the plugin.
    pub wants: &'static str,
    pub(super) run: fn(&Trial<T>) -> Outcome,
}

/// The outcome of a case: the reason if it failed.
pub(super) type Outcome = Result<(), String>;

/// The options with which cases are run.
#[derive(Debug, Clone)]
pub struct Options {
    known_failures: Vec<String>,
    deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { known_failures: Vec::new(), deadline: Duration::from_secs(60) }
    }
}

impl Options {
    /// Names of cases that the plugin must fail.
    #[must_use]
    pub fn known_failures(mut self, names: &[&str]) -> Self {
        self.known_failures = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// The time that a case may wait for the plugin. The default is a minute.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// Runs the cases and says for each whether it is as expected.
///
/// # Panics
/// With a list of what is not.
pub fn all<T: ?Sized + Send + Sync + 'static>(cases: &'static [Case<T>], plugin: &Arc<T>, options: &Options) {
    let judge = |case| judge(case, cases, plugin.clone(), options).err();
    let failed: Vec<String> = cases.iter().filter_map(judge).collect();
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// Runs the case of a name.
pub(super) fn only<T: ?Sized + Send + Sync + 'static>(
    cases: &'static [Case<T>],
    name: &str,
    plugin: Arc<T>,
    options: &Options,
) {
    let case = cases.iter().find(|case| case.name == name);
    let case = case.unwrap_or_else(|| panic!("there is no case {name}"));
    if let Err(why) = judge(case, cases, plugin, options) {
        panic!("{why}");
    }
}

/// True if a case came out as expected.
fn judge<T: ?Sized + Send + Sync + 'static>(
    case: &'static Case<T>,
    cases: &[Case<T>],
    plugin: Arc<T>,
    options: &Options,
) -> Outcome {
    if let Some(unknown) = options.known_failures.iter().find(|name| !cases.iter().any(|c| c.name == **name))
    {
        return Err(format!("known_failures names {unknown}, which is no case of this suite"));
    }
    let known = options.known_failures.iter().any(|name| name == case.name);
    let name = case.name;
    match (run(case, plugin, options.deadline), known) {
        (Ok(()), false) | (Err(_), true) => Ok(()),
        (Ok(()), true) => Err(format!("{name}: passes now: take it off the known failures")),
        (Err(why), false) => Err(format!("{name}: {why} ({})", case.wants)),
    }
}

/// Runs a case in a thread of its own, which is left behind if the plugin does not return from a call.
fn run<T: ?Sized + Send + Sync + 'static>(
    case: &'static Case<T>,
    plugin: Arc<T>,
    deadline: Duration,
) -> Outcome {
    let (done, outcome) = mpsc::channel();
    let trial = Trial { plugin, deadline };
    let thread = std::thread::Builder::new().name(case.name.to_owned()).spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| (case.run)(&trial)));
        drop(trial);
        let _ = done
            .send(outcome.unwrap_or_else(|_| Err("the plugin panicked; the message is above".to_owned())));
    });
    thread.map_err(|error| format!("no thread: {error}"))?;
    let patience = deadline.saturating_mul(3);
    let late = || Err("a call of the plugin does not return".to_owned());
    outcome.recv_timeout(patience).unwrap_or_else(|_| late())
}

/// A plugin on trial.
pub(super) struct Trial<T: ?Sized> {
    pub(super) plugin: Arc<T>,
    pub(super) deadline: Duration,
}

impl<T: ?Sized> Trial<T> {
    pub(super) fn patience(&self) -> Patience {
        Patience { end: Instant::now() + self.deadline, turns: 0 }
    }
}

/// The wait of a case.
pub(super) struct Patience {
    end: Instant,
    turns: u32,
}

impl Patience {
    /// Waits a little; fails when it has been too long.
    pub(super) fn turn(&mut self, what: impl FnOnce() -> String) -> Outcome {
        self.turns += 1;
        if self.turns.is_multiple_of(64) {
            std::thread::sleep(Duration::from_micros(200));
        } else {
            std::thread::yield_now();
        }
        if Instant::now() < self.end { Ok(()) } else { Err(format!("{} does not come to an end", what())) }
    }

    /// Waits until something comes of it.
    pub(super) fn until<R>(
        &mut self,
        what: &str,
        mut f: impl FnMut() -> hawser_plugin::Result<Option<R>>,
    ) -> Result<R, String> {
        loop {
            if let Some(result) = f().map_err(|error| format!("{what}: {error}"))? {
                return Ok(result);
            }
            self.turn(|| what.to_owned())?;
        }
    }
}

/// Fails with a text.
macro_rules! want {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
pub(super) use want;

pub(super) fn check_name(first: &str, second: &str) -> Outcome {
    want!(first == second, "the name changes from {first:?} to {second:?}");
    let fine = !first.is_empty() && first.len() < 128 && !first.contains([',', '\n', '\0']);
    want!(fine, "{first:?} is no name that a variable or a log line can hold");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_plugin::Env;
    use hawser_plugin::Log;
    use hawser_plugin::env::EnvContext;

    struct Nothing;

    impl Env for Nothing {
        fn name(&self) -> &str {
            "nothing"
        }
        fn open(&self, _: (u8, u8, u8), _: &Log) -> hawser_plugin::Result<Box<dyn EnvContext>> {
            panic!("never opened")
        }
    }

    const CASES: &[Case<dyn Env>] = &[
        Case { name: "good", wants: "nothing", run: |_| Ok(()) },
        Case { name: "bad", wants: "more", run: |_| Err("no".to_owned()) },
        Case { name: "panics", wants: "calm", run: |_| panic!("oh") },
        Case { name: "waits", wants: "an end", run: |trial| trial.patience().until("it", || Ok(None)) },
        Case {
            name: "hangs",
            wants: "an end",
            run: |_| loop {
                std::thread::park()
            },
        },
    ];

    fn outcome(name: &str, known: &[&str]) -> Outcome {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        let options = Options::default().known_failures(known).deadline(Duration::from_millis(300));
        judge(case, CASES, Arc::new(Nothing), &options)
    }

    #[test]
    fn failures_are_failures_unless_they_are_known() {
        assert_eq!(outcome("good", &["bad"]), Ok(()));
        assert_eq!(outcome("bad", &["bad"]), Ok(()));
        assert_eq!(outcome("bad", &[]), Err("bad: no (more)".to_owned()));
        assert_eq!(outcome("panics", &["panics"]), Ok(()));
        assert!(outcome("panics", &[]).unwrap_err().contains("panicked"));
        assert!(outcome("waits", &[]).unwrap_err().contains("it does not come to an end"));
        assert!(outcome("hangs", &[]).unwrap_err().contains("does not return"));
        assert!(outcome("good", &["good"]).unwrap_err().contains("take it off"));
        assert!(outcome("good", &["goood"]).unwrap_err().contains("no case"));
    }
}

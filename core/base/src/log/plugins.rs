//! The log as plugins write to it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hawser_plugin::host::Figure;
use hawser_plugin::{Level, Listener, Log};

/// The function that is told when a plugin remarks on stress.
static ON_STRESS: OnceLock<fn(&str)> = OnceLock::new();

/// The keeper of the figures of this process, once there are any.
static KEEPER: OnceLock<Keeper> = OnceLock::new();

/// The functions of who keeps the figures of this process: [`crate::figures`], which stands above the log.
pub struct Keeper {
    /// Adds to a figure of a name and labels.
    pub add: fn(&str, &[(&str, &str)], u64),
    /// Reads all figures.
    pub all: fn() -> Vec<Figure>,
}

/// Sets who keeps figures. The first one stays.
pub fn keep_figures(keeper: Keeper) {
    let _ = KEEPER.set(keeper);
}

/// Adds to a figure, if anybody keeps figures.
pub(super) fn count(name: &str, labels: &[(&str, &str)], by: u64) {
    if let Some(keeper) = KEEPER.get() {
        (keeper.add)(name, labels, by);
    }
}

/// The losses that are kept.
const KEPT: usize = 8;

/// The last losses that plugins have told of, the oldest first.
static LOSSES: Mutex<VecDeque<(Instant, String)>> = Mutex::new(VecDeque::new());

/// Returns what nets have lost of late and for how long that has been so, the last one first.
pub fn losses() -> Vec<(Duration, String)> {
    let ago = |(at, text): &(Instant, String)| (at.elapsed(), text.clone());
    lock_losses().iter().rev().map(ago).collect()
}

/// Keeps a loss; one that is told again counts from now on.
fn keep_loss(what: &str) {
    let mut losses = lock_losses();
    losses.retain(|(_, known)| known != what);
    losses.push_back((Instant::now(), what.to_owned()));
    if losses.len() > KEPT {
        losses.pop_front();
    }
}

fn lock_losses() -> MutexGuard<'static, VecDeque<(Instant, String)>> {
    LOSSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the log that plugins write to, which is the library's own.
pub fn for_plugins() -> Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| Log::to(OwnLog)).clone()
}

/// Sets who is told when a plugin says that it is under stress. The first one who asks is told.
pub fn on_stress(hear: fn(&str)) {
    // Everybody else is told by the lines.
    let _ = ON_STRESS.set(hear);
}

/// The library as its plugins reach it.
struct OwnLog;

impl Listener for OwnLog {
    fn line(&self, level: Level, subsys: hawser_plugin::Subsys, text: &str) {
        match level {
            Level::Warn | Level::Abort => super::warn(text),
            Level::Trace => super::trace(subsystem(subsys), || text.to_owned()),
            Level::Version | Level::Info => super::info(subsystem(subsys), || text.to_owned()),
        }
    }

    fn stress(&self, what: &str) {
        super::info(super::Subsys::Net, || what.to_owned());
        keep_loss(what);
        if let Some(hear) = ON_STRESS.get() {
            hear(what);
        }
    }

    fn count(&self, net: &str, rail: &str, what: &str, by: u64) {
        count(&format!("rail_{what}_total"), &[("net", net), ("rail", rail)], by);
    }

    fn figures(&self) -> Vec<Figure> {
        KEEPER.get().map_or_else(Vec::new, |keeper| (keeper.all)())
    }
}

fn subsystem(subsys: hawser_plugin::Subsys) -> super::Subsys {
    use hawser_plugin::Subsys as Theirs;
    match subsys {
        Theirs::INIT => super::Subsys::Init,
        Theirs::TUNING => super::Subsys::Tuning,
        Theirs::ENV => super::Subsys::Env,
        Theirs::PROXY => super::Subsys::Proxy,
        Theirs::REG => super::Subsys::Reg,
        Theirs::PROFILE => super::Subsys::Profile,
        _ => super::Subsys::Net,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_losses_are_kept_and_none_twice() {
        let log = for_plugins();
        (0..20).for_each(|rail| log.stress(format!("rail {rail} is stopped")));
        log.stress("rail 15 is stopped");
        let losses: Vec<String> = losses().into_iter().map(|(_, text)| text).collect();
        assert_eq!(losses.len(), KEPT);
        assert_eq!(losses[..3], ["rail 15 is stopped", "rail 19 is stopped", "rail 18 is stopped"]);
    }
}

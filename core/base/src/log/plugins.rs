//! The log as plugins write to it.

use std::sync::OnceLock;

use hawser_plugin::{Level, Listener, Log};

/// The function that is told when a plugin remarks on stress.
static ON_STRESS: OnceLock<fn(&str)> = OnceLock::new();

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
        if let Some(hear) = ON_STRESS.get() {
            hear(what);
        }
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

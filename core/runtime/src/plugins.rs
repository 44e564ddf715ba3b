//! The plugins of this process: what the search finds by `NCCL_NET_PLUGIN`, `NCCL_TUNER_PLUGIN`,
//! `NCCL_PROFILER_PLUGIN` and `NCCL_ENV_PLUGIN`, and what is built in.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use hawser_compat::search::probe::Probe;
use hawser_compat::search::{self, Candidate, NetCandidate, Request};
use hawser_plugin::env::EnvContext;
use hawser_plugin::{Level, Listener, Log, Profiler, Subsys, Tuner};

use crate::env;
use crate::error::{Error, Result};
use crate::log;

/// The NCCL version that this library stands for, told to env plugins.
const NCCL_VERSION: (u8, u8, u8) = (2, 32, 3);
/// The time that a plugin may take in a probe (`HAWSER_PLUGIN_PROBE`).
const PROBE_DEADLINE: Duration = Duration::from_secs(10);

/// The nets to be tried for a communicator, in order: what `NCCL_NET_PLUGIN` names, then the built-in ones;
/// only the one that `NCCL_NET` names, else `asked` (the communicator's `netName`), if one of them is set.
///
/// # Errors
/// They name no net that was found.
pub fn nets(asked: Option<&str>) -> Result<Vec<NetCandidate>> {
    let settings = env::settings();
    let log = log();
    let found = search::find_nets(&request(settings.net_plugin.as_deref(), &log));
    let mut nets = found.candidates;
    let (by, wanted) = match (&settings.net, asked) {
        (Some(wanted), _) => ("NCCL_NET=", wanted.as_str()),
        (None, Some(wanted)) => ("config->netName ", wanted),
        (None, None) => return Ok(nets),
    };
    let names: Vec<String> = nets.iter().map(|n| n.net.plugin.name().to_owned()).collect();
    nets.retain(|net| net.net.plugin.name().eq_ignore_ascii_case(wanted));
    if nets.is_empty() {
        let failed: String = found.failed.iter().map(|line| format!("; {line}")).collect();
        let text =
            format!("{by}{wanted} names no net that was found; found are: {}{failed}", names.join(", "));
        return Err(Error::invalid_usage(text).remedy("leave it unset, or correct NCCL_NET_PLUGIN"));
    }
    Ok(nets)
}

/// The tuners to be asked, in order.
pub fn tuners() -> Vec<Candidate<dyn Tuner>> {
    let log = log();
    // Tuners may be in net libraries, which are opened first.
    search::find_nets(&request(env::settings().net_plugin.as_deref(), &log));
    search::find_tuners(&request(env::settings().tuner_plugin.as_deref(), &log)).candidates
}

/// The profilers that watch every communicator.
pub fn profilers() -> Vec<Candidate<dyn Profiler>> {
    let log = log();
    search::find_profilers(&request(env::settings().profiler_plugin.as_deref(), &log)).candidates
}

/// The env plugin, if there is one. Called while settings are read, so it asks for none.
pub(crate) fn env(value: Option<&str>) -> Option<Box<dyn EnvContext>> {
    let log = log();
    search::find_envs(&Request::new(value, beside(), &log)).candidates.into_iter().find_map(|candidate| {
        let opened = candidate.plugin.open(NCCL_VERSION, &log);
        let complain = |error: &hawser_plugin::Error| {
            log::warn(&format!("env plugin {} is left out: {error}", candidate.plugin.name()));
        };
        opened.inspect_err(complain).ok()
    })
}

fn request<'a>(value: Option<&'a str>, log: &'a Log) -> Request<'a> {
    let probe = env::settings().plugin_probe.as_deref().map(|how| {
        let program = (how != "1").then(|| Path::new(how));
        Probe { program, deadline: PROBE_DEADLINE }
    });
    Request { probe, ..Request::new(value, beside(), log) }
}

/// The folder of the library that holds this code.
fn beside() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be asked for; `info` is valid for a write.
        let found = unsafe { libc::dladdr(beside as fn() -> _ as *const libc::c_void, info.as_mut_ptr()) };
        // SAFETY: zeroed, and filled by dladdr if it says so; all its fields are pointers.
        let name = unsafe { info.assume_init() }.dli_fname;
        if found == 0 || name.is_null() {
            return None;
        }
        // SAFETY: dladdr gives a terminated string that lives as long as the library.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
        path.canonicalize().ok()?.parent().map(Path::to_owned)
    };
    FOLDER.get_or_init(find).as_deref()
}

/// Returns the log that plugins write to, which is the library's own.
pub fn log() -> Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| Log::to(OwnLog)).clone()
}

/// The library as its plugins reach it.
struct OwnLog;

impl Listener for OwnLog {
    fn line(&self, level: Level, subsys: Subsys, text: &str) {
        match level {
            Level::Warn | Level::Abort => log::warn(text),
            Level::Trace => log::trace(subsystem(subsys), || text.to_owned()),
            Level::Version | Level::Info => log::info(subsystem(subsys), || text.to_owned()),
        }
    }

    fn stress(&self, what: &str) {
        log::info(log::Subsys::Net, || what.to_owned());
        crate::rules_update::stressed(what);
    }
}

fn subsystem(subsys: Subsys) -> log::Subsys {
    match subsys {
        Subsys::INIT => log::Subsys::Init,
        Subsys::TUNING => log::Subsys::Tuning,
        Subsys::ENV => log::Subsys::Env,
        Subsys::PROXY => log::Subsys::Proxy,
        Subsys::REG => log::Subsys::Reg,
        Subsys::PROFILE => log::Subsys::Profile,
        _ => log::Subsys::Net,
    }
}

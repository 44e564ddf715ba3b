//! The plugins of this process: what the search finds by `NCCL_NET_PLUGIN`, `NCCL_TUNER_PLUGIN`,
//! `NCCL_PROFILER_PLUGIN` and `NCCL_ENV_PLUGIN`, and what is built in.

use std::path::Path;
use std::time::Duration;

use hawser_compat::search::probe::Probe;
use hawser_compat::search::{self, Candidate, NetCandidate, Request};
use hawser_plugin::{Log, Profiler, Tuner};

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::library;
use hawser_base::log;

/// The time that a plugin may take in a probe (`HAWSER_PLUGIN_PROBE`).
const PROBE_DEADLINE: Duration = Duration::from_secs(10);

/// The nets to be tried for a communicator, in order: what `NCCL_NET_PLUGIN` names, then the built-in ones;
/// only the one that `NCCL_NET` names, else `asked` (the communicator's `netName`), if one of them is set.
///
/// # Errors
/// They name no net that was found.
pub fn nets(asked: Option<&str>) -> Result<Vec<NetCandidate>> {
    let settings = env::settings();
    let log = log::for_plugins();
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
    let log = log::for_plugins();
    // Tuners may be in net libraries, which are opened first.
    search::find_nets(&request(env::settings().net_plugin.as_deref(), &log));
    search::find_tuners(&request(env::settings().tuner_plugin.as_deref(), &log)).candidates
}

/// The profilers that watch every communicator.
pub fn profilers() -> Vec<Candidate<dyn Profiler>> {
    let log = log::for_plugins();
    search::find_profilers(&request(env::settings().profiler_plugin.as_deref(), &log)).candidates
}

fn request<'a>(value: Option<&'a str>, log: &'a Log) -> Request<'a> {
    let probe = env::settings().plugin_probe.as_deref().map(|how| {
        let program = (how != "1").then(|| Path::new(how));
        Probe { program, deadline: PROBE_DEADLINE }
    });
    Request { probe, ..Request::new(value, library::folder(), log) }
}

//! The plugins of this process.

use std::sync::Arc;

use hawser_plugin::builtin::built_in;
use hawser_plugin::{CollNet, Component, Level, Log, Net, Profiler, Subsys, Tuner};

use crate::env;
use crate::error::{Error, Result};
use crate::log;

/// The nets to be tried for a communicator, in order: what `NCCL_NET_PLUGIN` names, then the built-in ones; only the one
/// that `NCCL_NET` names, if it is set.
pub fn nets() -> Result<Vec<Arc<dyn Net>>> {
    let mut nets: Vec<Arc<dyn Net>> = Vec::new();
    for plugin in built_in() {
        if let Component::Net(net) = (plugin.make)() {
            nets.push(net);
        }
    }
    let Some(wanted) = &env::settings().net else { return Ok(nets) };
    let names: Vec<String> = nets.iter().map(|n| n.name().to_owned()).collect();
    nets.retain(|net| net.name().eq_ignore_ascii_case(wanted));
    if nets.is_empty() {
        let text = format!("NCCL_NET={wanted} names no net that was found; found are: {}", names.join(", "));
        return Err(Error::invalid_usage(text).remedy("unset NCCL_NET or correct NCCL_NET_PLUGIN"));
    }
    Ok(nets)
}

/// The collnet plugins to be tried for a communicator, in order.
pub fn collnets() -> Vec<Arc<dyn CollNet>> {
    built_in()
        .iter()
        .filter_map(|plugin| match (plugin.make)() {
            Component::CollNet(collnet) => Some(collnet),
            _ => None,
        })
        .collect()
}

/// The tuners to be asked, in order.
pub fn tuners() -> Result<Vec<Arc<dyn Tuner>>> {
    Ok(built_in()
        .iter()
        .filter_map(|plugin| match (plugin.make)() {
            Component::Tuner(tuner) => Some(tuner),
            _ => None,
        })
        .collect())
}

/// The profilers that watch every communicator.
pub fn profilers() -> Result<Vec<Arc<dyn Profiler>>> {
    Ok(built_in()
        .iter()
        .filter_map(|plugin| match (plugin.make)() {
            Component::Profiler(profiler) => Some(profiler),
            _ => None,
        })
        .collect())
}

/// Where plugins log: our own log.
pub fn log() -> Log {
    Log::new(|level, subsys, text| match level {
        Level::Warn | Level::Abort => log::warn(text),
        _ => log::info(subsystem(subsys), || text.to_owned()),
    })
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

//! A group of equal hosts: what the file says, and the preset's figures for the rest.

use hawser_plan::link_constants::Constants;
use hawser_types::{DeviceKind, Link};

use super::Host;
use super::file::HostsFile;
use super::preset::Preset;
use crate::error::{Result, SimError, wrong};

/// Most ranks, NICs, switches or processors of a host.
const MOST_PARTS: u32 = 1024;
/// MiB of the cache that a core has for itself, where nothing else is said: that of Xeons since 2023.
const CORE_CACHE_MIB: f64 = 2.0;

/// A group of equal hosts, but for what constants say.
pub struct Group {
    /// The number of hosts.
    pub count: u32,
    /// The device of their ranks.
    pub device: DeviceKind,
    wire_gbs: Option<f64>,
    /// One of the hosts.
    pub host: Host,
}

impl Group {
    /// Reads a group, and adds a line about it to `origins`.
    ///
    /// # Errors
    /// `Cluster`, with the figure that cannot be and what to write instead.
    pub fn new(file: &HostsFile, origins: &mut Vec<String>) -> Result<Self> {
        if let Some(topology) = file.topology_file.as_ref().filter(|_| file.ranks.is_none()) {
            return Err(wrong(
                format!("the figures of {topology} are missing"),
                "read it first, and put these hosts over it (HostsFile::over)",
            ));
        }
        let name = file.preset.as_deref().unwrap_or("cpu");
        let preset = Preset::of(name).ok_or_else(|| {
            wrong(format!("there is no preset \"{name}\""), format!("known are {}", Preset::names()))
        })?;
        let (device, link) = device_and_link(file, preset)?;
        let host = figures(file, preset, (device, link))?;
        let count = file.count.unwrap_or(1);
        if count == 0 {
            let remedy = "give count at least 1, or leave the group out";
            return Err(wrong("a group of 0 hosts cannot be", remedy));
        }
        let origin = match &file.topology_file {
            Some(topology) => format!("NCCL's topology in {topology}, else {}", preset.origin),
            None => preset.origin.into(),
        };
        let own = if file.topology_file.is_some()
            || *file == (HostsFile { count: file.count, preset: file.preset.clone(), ..HostsFile::default() })
        {
            ""
        } else {
            ", with the cluster's own figures"
        };
        origins.push(format!(
            "{count} host{} of {} ({origin}{own}): {} × {device} over {}, {} × {} Gb/s",
            if count == 1 { "" } else { "s" },
            file.topology_file.as_deref().unwrap_or(name),
            host.ranks,
            host.link.name(),
            host.nics,
            host.nic_gbps
        ));
        Ok(Self { count, device, wire_gbs: file.wire_gbs.or(preset.wire_gbs), host })
    }

    /// A host of the group, under the constants of the cost model.
    pub fn host(&self, constants: &Constants) -> Host {
        Host { wire_gbs: self.wire_gbs.unwrap_or(constants.wire_gbs), ..self.host.clone() }
    }
}

/// The multiprocessors of a GPU, whatever the preset says of hosts without any.
fn multiprocessors(file: &HostsFile, preset: &Preset, device: DeviceKind) -> Result<u32> {
    /// The number of a GPU of which nothing else is known.
    const USUAL: u32 = 132;
    match (device, file.multiprocessors, preset.multiprocessors) {
        (DeviceKind::Host, ..) => Ok(0),
        (_, None, 0) => Ok(USUAL),
        (_, own, known) => parts("multiprocessors", own.unwrap_or(known), 1),
    }
}

/// The device of the ranks, and the link between them.
fn device_and_link(file: &HostsFile, preset: &Preset) -> Result<(DeviceKind, Link)> {
    let unknown = |what: &str, known: &str, text: &str| -> SimError {
        wrong(format!("{what} = \"{text}\" is not known"), format!("write {known}"))
    };
    let device = match &file.device {
        Some(text) => DeviceKind::from_name(text)
            .ok_or_else(|| unknown("device", "host, or cuda:90 for a compute capability", text))?,
        None => preset.device,
    };
    let link = match &file.link {
        Some(text) => Link::from_name(text).ok_or_else(|| unknown("link", "nvlink, pcie or host", text))?,
        None if device == DeviceKind::Host => Link::HostMemory,
        None if preset.device == DeviceKind::Host => Link::NvLink,
        None => preset.link,
    };
    if device == DeviceKind::Host && link != Link::HostMemory {
        return Err(wrong("ranks on the host device have no other link than host", "leave link out"));
    }
    Ok((device, link))
}

/// Checks a number of parts of a host.
fn parts(what: &str, value: u32, least: u32) -> Result<u32> {
    if (least..=MOST_PARTS).contains(&value) {
        return Ok(value);
    }
    Err(wrong(format!("{what} = {value} cannot be"), format!("write {least} to {MOST_PARTS}")))
}

/// Checks a speed or a size.
/// The figures of a group's hosts: its own, else those of the preset.
fn figures(file: &HostsFile, preset: &Preset, (device, link): (DeviceKind, Link)) -> Result<Host> {
    Ok(Host {
        ranks: parts("ranks", file.ranks.unwrap_or(preset.ranks), 1)?,
        link,
        wire_gbs: speed("wire_gbs", file.wire_gbs.or(preset.wire_gbs).unwrap_or(1.0))?,
        pcie_switches: parts("pcie_switches", file.pcie_switches.unwrap_or(preset.pcie_switches), 0)?,
        pcie_gbs: speed("pcie_gbs", file.pcie_gbs.unwrap_or(preset.pcie_gbs))?,
        memory_gbs: speed("memory_gbs", file.memory_gbs.unwrap_or(preset.memory_gbs))?,
        cache_mib: speed("cache_mib", file.cache_mib.unwrap_or(preset.cache_mib))?,
        cores: file.cores.map(|cores| parts("cores", cores, 1)).transpose()?,
        core_cache_mib: speed("core_cache_mib", file.core_cache_mib.unwrap_or(CORE_CACHE_MIB))?,
        processors: parts("processors", file.processors.unwrap_or(preset.processors), 1)?,
        multiprocessors: multiprocessors(file, preset, device)?,
        nics: parts("nics", file.nics.unwrap_or(preset.nics), 1)?,
        nic_gbps: speed("nic_gbps", file.nic_gbps.unwrap_or(preset.nic_gbps))?,
        connection_gbps: file
            .connection_gbps
            .map_or(Ok(f64::INFINITY), |gbps| speed("connection_gbps", gbps))?,
        connection_wake_us: file.connection_wake_us.map_or(Ok(0.0), |us| time("connection_wake_us", us))?,
        gpu_direct: file.gpu_direct.unwrap_or(preset.gpu_direct),
    })
}

fn time(what: &str, us: f64) -> Result<f64> {
    if (0.0..=1e6).contains(&us) {
        return Ok(us);
    }
    Err(wrong(format!("{what} = {us} cannot be"), "write a number of µs from 0 to 1000000"))
}

fn speed(what: &str, value: f64) -> Result<f64> {
    if value > 0.0 && value <= 1e6 {
        return Ok(value);
    }
    Err(wrong(format!("{what} = {value} cannot be"), "write a number above 0, at most 1000000"))
}

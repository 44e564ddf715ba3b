//! The text of a cluster: TOML, or one sentence.

use std::fmt::Write as _;

use serde::Deserialize;

use super::preset::Preset;
use crate::error::{Result, SimError, wrong};

/// A cluster as it is written.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The whole cluster as a sentence: `64 hosts of hgx-h200, rail-optimised, 2:1`.
    pub cluster: Option<String>,
    /// Hosts, by groups of equal ones, in the order of their ranks.
    #[serde(default)]
    pub hosts: Vec<HostsFile>,
    /// The network that joins the hosts.
    pub fabric: Option<FabricFile>,
    /// A file that `hawser measure` wrote, beside this one.
    pub constants_file: Option<String>,
    /// Constants of the cost model, by the sections of such a file. They count before the file's.
    pub constants: Option<toml::Table>,
    /// All ranks are threads of one process, whose GPUs reach each other's memory; for clusters of one host.
    pub one_process: Option<bool>,
    /// Ranks begin an operation up to so many µs after each other, drawn by the seed.
    pub start_skew_us: Option<f64>,
}

/// A group of equal hosts. What is left out is the preset's.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostsFile {
    /// The number of these hosts; 1 if it is left out.
    pub count: Option<u32>,
    /// A kind of host that is known by name.
    pub preset: Option<String>,
    /// A file in which NCCL described such a host (`NCCL_TOPO_DUMP_FILE`), beside this one. Its figures count
    /// before those of the preset.
    pub topology_file: Option<String>,
    /// `host`, or `cuda:` and a compute capability.
    pub device: Option<String>,
    /// The link between the ranks of a host: nvlink, pcie or host.
    pub link: Option<String>,
    /// Ranks of a host, each with a GPU, or with a part of the processors on the host device.
    pub ranks: Option<u32>,
    /// GB/s of one GPU's (or, on the host device, one rank's) way to its peers, each way.
    pub wire_gbs: Option<f64>,
    /// PCIe switches, among which GPUs and NICs are spread evenly; 0 = all hang on the processors.
    pub pcie_switches: Option<u32>,
    /// GB/s of the PCIe way of a GPU, and of a switch to the processors, each way.
    pub pcie_gbs: Option<f64>,
    /// GB/s of the host's memory.
    pub memory_gbs: Option<f64>,
    /// MiB of the caches that its processors share.
    pub cache_mib: Option<f64>,
    /// Cores that its processors are threads of. Without it, data of one thread are as near to any other, and
    /// threads do not make each other slow.
    pub cores: Option<u32>,
    /// MiB of the cache that a core has for itself.
    pub core_cache_mib: Option<f64>,
    /// Processors that ranks on the host device share.
    pub processors: Option<u32>,
    /// Multiprocessors of a GPU.
    pub multiprocessors: Option<u32>,
    /// NICs of a host.
    pub nics: Option<u32>,
    /// Gb/s of a NIC, each way.
    pub nic_gbps: Option<f64>,
    /// Gb/s of one connection at most, each way; those of a NIC if left out.
    pub connection_gbps: Option<f64>,
    /// µs until the threads that feed such connections have woken up for a long message.
    pub connection_wake_us: Option<f64>,
    /// True if NICs read and write the memory of GPUs.
    pub gpu_direct: Option<bool>,
}

/// The network that joins the hosts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricFile {
    /// `switch`, `leaf-spine` or `rail-optimised`.
    pub kind: Option<String>,
    /// The bandwidth below a leaf by that above it: 2, or "2:1".
    pub oversubscription: Option<Ratio>,
    /// Hosts that share a leaf (a rail of leaves).
    pub hosts_per_leaf: Option<u32>,
    /// Gb/s of all that a single switch moves, as the memory of a machine whose processes count as hosts;
    /// without it, it never blocks.
    pub switch_gbps: Option<f64>,
}

/// A ratio: a number, or two with a colon between them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Ratio {
    /// `2` or `1.5`.
    Number(f64),
    /// `"2:1"`.
    Text(String),
}

impl File {
    /// Reads TOML.
    ///
    /// # Errors
    /// `Syntax`, with line and column; `Cluster` for a sentence within it.
    pub fn parse(text: &str) -> Result<Self> {
        let mut file: Self =
            toml::from_str(text).map_err(|error| SimError::Syntax(error.to_string().trim_end().into()))?;
        if let Some(sentence) = file.cluster.take() {
            if !file.hosts.is_empty() {
                return Err(wrong(
                    "cluster and [[hosts]] both say which hosts there are",
                    "keep one of them",
                ));
            }
            let said = Self::sentence(&sentence)?;
            file.hosts = said.hosts;
            file.fabric = file.fabric.or(said.fabric);
        }
        Ok(file)
    }

    /// Reads a sentence: a number of hosts of a preset, then, with commas between, a kind of fabric and a
    /// ratio. `and` joins several groups of hosts.
    ///
    /// # Errors
    /// `Cluster` that names the words which are not understood.
    pub fn sentence(text: &str) -> Result<Self> {
        let mut parts = text.split(',').map(str::trim);
        let hosts = parts.next().unwrap_or_default().split(" and ").map(group).collect::<Result<_>>()?;
        let mut fabric = FabricFile::default();
        for part in parts {
            if part.contains(':') {
                fabric.oversubscription = Some(Ratio::Text(part.into()));
            } else {
                fabric.kind = Some(part.into());
            }
        }
        let fabric = (fabric != FabricFile::default()).then_some(fabric);
        Ok(Self { hosts, fabric, ..Self::default() })
    }
}

impl HostsFile {
    /// These hosts, with what they do not say themselves from NCCL's topology ([`super::nccl::host`]).
    #[must_use]
    pub fn over(&self, below: Self) -> Self {
        let own = self.clone();
        // The speed of a link that these hosts do not have says nothing.
        let wire_gbs = if own.link.is_none() || own.link == below.link { below.wire_gbs } else { None };
        Self {
            count: own.count,
            preset: own.preset.or_else(|| Some(BELOW_TOPOLOGY.into())),
            topology_file: own.topology_file,
            device: own.device.or(below.device),
            link: own.link.or(below.link),
            ranks: own.ranks.or(below.ranks),
            wire_gbs: own.wire_gbs.or(wire_gbs),
            pcie_switches: own.pcie_switches.or(below.pcie_switches),
            pcie_gbs: own.pcie_gbs.or(below.pcie_gbs),
            memory_gbs: own.memory_gbs.or(below.memory_gbs),
            cache_mib: own.cache_mib.or(below.cache_mib),
            cores: own.cores.or(below.cores),
            core_cache_mib: own.core_cache_mib.or(below.core_cache_mib),
            processors: own.processors.or(below.processors),
            multiprocessors: own.multiprocessors.or(below.multiprocessors),
            nics: own.nics.or(below.nics),
            nic_gbps: own.nic_gbps.or(below.nic_gbps),
            connection_gbps: own.connection_gbps.or(below.connection_gbps),
            connection_wake_us: own.connection_wake_us.or(below.connection_wake_us),
            gpu_direct: own.gpu_direct.or(below.gpu_direct),
        }
    }
}

/// The preset of what NCCL's topology does not say.
const BELOW_TOPOLOGY: &str = "hgx-h200";

/// Reads `64 hosts of hgx-h200`.
fn group(text: &str) -> Result<HostsFile> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let read = |count: &str| count.replace('_', "").parse::<u32>().ok();
    match words[..] {
        [count, "host" | "hosts", "of", kind] if read(count).is_some() => {
            let (preset, topology_file) =
                if kind.ends_with(".xml") { (None, Some(kind.into())) } else { (Some(kind.into()), None) };
            Ok(HostsFile { count: read(count), preset, topology_file, ..HostsFile::default() })
        }
        _ => Err(wrong(
            format!("\"{text}\" is not understood"),
            format!(
                "write a number of hosts and their kind, such as \"64 hosts of hgx-h200\"; kinds are {}",
                Preset::names()
            ),
        )),
    }
}

impl Ratio {
    /// The ratio as a number.
    ///
    /// # Errors
    /// `Cluster` for what is no ratio of at least 1.
    pub fn value(&self) -> Result<f64> {
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let value = match self {
            Self::Number(value) => Some(*value),
            Self::Text(text) => match text.split_once(':') {
                Some((below, above)) => number(below).zip(number(above)).map(|(below, above)| below / above),
                None => number(text),
            },
        };
        value.filter(|value| (1.0..=1000.0).contains(value)).ok_or_else(|| {
            let text = match self {
                Self::Number(value) => value.to_string(),
                Self::Text(text) => text.clone(),
            };
            wrong(
                format!("an oversubscription of {text} cannot be"),
                "write a number from 1 to 1000, or a ratio such as \"2:1\"",
            )
        })
    }
}

/// Writes a table of constants the way `hawser measure` does: `[section]` and `key = value`.
pub fn text_of(constants: &toml::Table) -> String {
    let mut text = String::new();
    section(constants, "", &mut text);
    text
}

fn section(table: &toml::Table, name: &str, text: &mut String) {
    let is_table = |value: &toml::Value| value.is_table();
    if !name.is_empty() && table.values().any(|value| !is_table(value)) {
        let _ = writeln!(text, "[{name}]");
    }
    for (key, value) in table.iter().filter(|(_, value)| !is_table(value)) {
        let _ = match value {
            toml::Value::Float(number) => writeln!(text, "{key} = {number}"),
            toml::Value::Integer(number) => writeln!(text, "{key} = {number}"),
            toml::Value::String(word) => writeln!(text, "{key} = \"{word}\""),
            // The reader refuses it, with its name.
            other => writeln!(text, "{key} = {other:?}"),
        };
    }
    for (key, value) in table {
        if let toml::Value::Table(inner) = value {
            let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
            section(inner, &name, text);
        }
    }
}

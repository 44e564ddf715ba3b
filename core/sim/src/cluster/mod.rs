//! A cluster: hosts, what is in them, and what joins them.

mod file;
mod group;
pub mod nccl;
mod preset;

use std::collections::{BTreeMap, BTreeSet};

use hawser_plan::algo::MAX_RANKS;
use hawser_plan::link_constants::Constants;
use hawser_plan::topology::{RankInfo, Topology};
use hawser_types::{DeviceKind, Link};
use rustc_hash::FxHashMap;

pub use file::{FabricFile, File, HostsFile, Ratio};
pub use preset::{PRESETS, Preset};

use group::Group;

use crate::error::{Result, wrong};

/// One host.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Its ranks.
    pub ranks: u32,
    /// The link between its ranks.
    pub link: Link,
    /// GB/s of a rank's way to its peers, each way.
    pub wire_gbs: f64,
    /// PCIe switches; 0 = everything hangs on the processors.
    pub pcie_switches: u32,
    /// GB/s of a PCIe way, each way.
    pub pcie_gbs: f64,
    /// GB/s of the memory.
    pub memory_gbs: f64,
    /// MiB of the caches before it: ranks of the host device whose buffers fit leave the memory alone.
    pub cache_mib: f64,
    /// Cores that its processors are threads of, if that is known.
    pub cores: Option<u32>,
    /// MiB of the cache that a core has for itself.
    pub core_cache_mib: f64,
    /// The number of processors.
    pub processors: u32,
    /// The multiprocessors of a GPU; 0 without GPUs.
    pub multiprocessors: u32,
    /// The number of NICs.
    pub nics: u32,
    /// Gb/s of a NIC, each way.
    pub nic_gbps: f64,
    /// Gb/s of one connection at most: over TCP a processor moves its bytes. Infinite where nothing but the
    /// NIC limits it.
    pub connection_gbps: f64,
    /// µs until the threads that feed such connections have woken up for a long message.
    pub connection_wake_us: f64,
    /// True if NICs read and write the memory of GPUs.
    pub gpu_direct: bool,
}

/// The form of the network between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricKind {
    /// One switch.
    Switch,
    /// All NICs of a host on one leaf, leaves joined by spines.
    LeafSpine,
    /// NIC `i` of every host on leaf `i` of its group of hosts, leaves joined by spines.
    RailOptimised,
}

impl FabricKind {
    /// All kinds with their names.
    pub const ALL: [(FabricKind, &'static str); 3] =
        [(Self::Switch, "switch"), (Self::LeafSpine, "leaf-spine"), (Self::RailOptimised, "rail-optimised")];
}

/// The network between hosts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fabric {
    /// Its form.
    pub kind: FabricKind,
    /// The bandwidth below a leaf by that above it.
    pub oversubscription: f64,
    /// Hosts that share a leaf (a group of leaves, where rails have their own).
    pub hosts_per_leaf: u32,
    /// Gb/s of all that a single switch moves.
    pub switch_gbps: f64,
}

/// A cluster whose figures are all known.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// The kinds of hosts.
    pub kinds: Vec<Host>,
    /// The kind of every host, in the order of their ranks.
    pub hosts: Vec<u32>,
    /// The network that joins them.
    pub fabric: Fabric,
    /// The job as the planner sees it: as a real job's ranks would agree on it.
    pub topology: Topology,
    /// The constants that times are predicted with: those of the planner, but for hosts without GPUs that
    /// name none.
    pub times: Constants,
    /// Ranks begin up to so many µs after each other.
    pub start_skew_us: f64,
    /// The origin of the cost model's constants, in words.
    pub constants_from: String,
    /// Lines that say what everything is and where its figures are from.
    pub origins: Vec<String>,
}

/// The form of a communicator of the cluster: what the planner looks at. Communicators of one form run one
/// plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Form {
    /// The host of each rank, numbered in the order of their first ranks.
    pub hosts: Vec<u32>,
    /// Mb/s of a host's network as the planner knows it; 0 on one host.
    pub net_mbps: u32,
    /// Mb/s of the NICs of one rank, likewise.
    pub rank_mbps: u32,
}

/// The costs of a thread of a host without GPUs, as the twin fitted them to the times of
/// `bench/results/2026-11-27-host-ways.json`. The planner's built-in constants for CPUs are rough, and know
/// no turns on processors; they are kept for what it decides.
const OF_PROCESSORS: &str = "[link]\nwire_gbs = 17.6\nall_to_all = 1.0\n[host]\nfixed_us = 1.04\n\
                             hop_us = 1.67\nround_us = 0.67\nblock_gbs = 21.6\nwire_share = 1.0\n\
                             block_us = 0.2\n";

/// Hosts that share a leaf unless the cluster says otherwise.
const HOSTS_PER_LEAF: u32 = 32;

impl Cluster {
    /// A cluster from its file. `measured` is the text of the file that [`File::constants_file`] names.
    ///
    /// # Errors
    /// `Cluster`, with what is wrong and what to write; `Plan` for constants that cannot be.
    pub fn new(file: &File, measured: Option<&str>) -> Result<Self> {
        if file.hosts.is_empty() {
            let remedy = format!(
                "write [[hosts]] with count and preset ({}), or cluster = \"2 hosts of hgx-h200\"",
                Preset::names()
            );
            return Err(wrong("the cluster has no hosts", remedy));
        }
        let mut origins = Vec::new();
        let groups: Vec<Group> =
            file.hosts.iter().map(|hosts| Group::new(hosts, &mut origins)).collect::<Result<_>>()?;
        let (device, link) = weakest(&groups)?;
        let (constants, constants_from) = constants(file, measured, device, link)?;
        origins.push(format!("constants of the cost model: {constants_from}"));
        let mut times = constants;
        if device == DeviceKind::Host && file.constants_file.is_none() && file.constants.is_none() {
            times = constants.with(OF_PROCESSORS, device, link)?.unwrap_or(constants);
            origins.push("times of threads: as measured on one machine of two processors".into());
        }
        let hosts = hosts_of(&groups)?;
        let kinds: Vec<Host> = groups.iter().map(|group| group.host(&times)).collect();
        let fabric = fabric(file.fabric.as_ref(), hosts.len() as u32, &mut origins)?;
        let start_skew_us = file.start_skew_us.unwrap_or(0.0);
        if !(0.0..=1e9).contains(&start_skew_us) {
            return Err(wrong(
                format!("start_skew_us = {start_skew_us} cannot be"),
                "write µs from 0 on, or leave it out",
            ));
        }
        let mut topology = Topology::new(ranks_of(&kinds, &hosts), device, link);
        topology.constants = constants;
        topology.direct = file.one_process == Some(true);
        if topology.direct && hosts.len() > 1 {
            return Err(wrong("ranks of several hosts are not in one process", "leave one_process out"));
        }
        if hosts.len() > 1 {
            let speeds = kinds.iter().map(|kind| kind.net_mbps(0..kind.ranks));
            (topology.net_mbps, topology.rank_mbps) = slowest(speeds);
        }
        Ok(Self { kinds, hosts, fabric, topology, times, start_skew_us, constants_from, origins })
    }

    /// Most blocks that run at once on every rank's device; `u32::MAX` where there are enough for any launch.
    pub fn most_blocks(&self) -> u32 {
        match self.topology.device {
            DeviceKind::Host => self.kinds.iter().map(|kind| kind.processors).min().unwrap_or(1),
            DeviceKind::Cuda { .. } => u32::MAX,
        }
    }

    /// A communicator of these ranks, as the planner would see it.
    pub fn topology_of(&self, ranks: &[u32]) -> Topology {
        let Form { hosts, net_mbps, rank_mbps } = self.form(ranks);
        let device = |rank: &u32| self.topology.ranks[*rank as usize].device.clone();
        let infos = ranks.iter().zip(hosts).map(|(rank, host)| RankInfo { host, device: device(rank) });
        let mut topology = Topology::new(infos.collect(), self.topology.device, self.topology.link);
        (topology.constants, topology.direct) = (self.topology.constants, self.topology.direct);
        (topology.net_mbps, topology.rank_mbps) = (net_mbps, rank_mbps);
        topology
    }

    /// All that the planner looks at in a communicator of these ranks.
    pub fn form(&self, ranks: &[u32]) -> Form {
        let mut numbers: FxHashMap<u32, u32> = FxHashMap::default();
        // By host: the places of its ranks, in order.
        let mut places: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut hosts = Vec::with_capacity(ranks.len());
        for &rank in ranks {
            let host = self.topology.ranks[rank as usize].host;
            let next = numbers.len() as u32;
            hosts.push(*numbers.entry(host).or_insert(next));
            places.entry(host).or_default().push(rank - self.first_rank(host));
        }
        let speeds = places.iter().map(|(host, places)| self.host(*host).net_mbps(places.iter().copied()));
        let (net_mbps, rank_mbps) = if places.len() > 1 { slowest(speeds) } else { (0, 0) };
        Form { hosts, net_mbps, rank_mbps }
    }

    /// The first rank of a host.
    fn first_rank(&self, host: u32) -> u32 {
        self.topology.ranks.partition_point(|info| info.host < host) as u32
    }

    /// The host of a number.
    pub fn host(&self, host: u32) -> &Host {
        &self.kinds[self.hosts[host as usize] as usize]
    }

    /// True if its ranks have GPUs.
    pub fn has_gpus(&self) -> bool {
        self.topology.device != DeviceKind::Host
    }
}

impl Host {
    /// True if its threads are known to run on several cores, each with a cache of its own.
    pub fn has_several_cores(&self) -> bool {
        self.cores.is_some_and(|cores| cores > 1)
    }

    /// The part of its time for which each of so many threads, which are anywhere, shares its core with
    /// another one.
    pub fn shared_cores(&self, threads: u32) -> f64 {
        let Some(cores) = self.cores else { return 0.0 };
        let others = f64::from(threads.clamp(1, self.processors) - 1);
        let siblings = (f64::from(self.processors) / f64::from(cores) - 1.0).clamp(0.0, 1.0);
        siblings * others / f64::from(self.processors - 1).max(1.0)
    }

    /// The NICs that a rank uses, as a real one would choose them: those behind its own PCIe switch, else
    /// all.
    pub fn near_nics(&self, place: u32) -> std::ops::Range<u32> {
        let switch = self.switch_of_rank(place);
        let first = |switch: u32| (switch * self.nics).div_ceil(self.pcie_switches.max(1));
        match switch.map(|switch| first(switch)..first(switch + 1)) {
            Some(near) if !near.is_empty() => near,
            _ => 0..self.nics,
        }
    }

    /// The PCIe switch of a rank's GPU.
    pub fn switch_of_rank(&self, place: u32) -> Option<u32> {
        (self.pcie_switches > 0).then(|| place % self.ranks * self.pcie_switches / self.ranks)
    }

    /// The PCIe switch of a NIC.
    pub fn switch_of_nic(&self, nic: u32) -> Option<u32> {
        (self.pcie_switches > 0).then(|| nic * self.pcie_switches / self.nics)
    }

    /// The speed, in Mb/s, of all NICs that ranks at these places use, and of those of the rank that has
    /// fewest.
    fn net_mbps(&self, places: impl IntoIterator<Item = u32>) -> (u32, u32) {
        let (mut used, mut fewest) = (BTreeSet::new(), self.nics as usize);
        for nics in places.into_iter().map(|place| self.near_nics(place)) {
            fewest = fewest.min(nics.len());
            used.extend(nics);
        }
        let mbps = |nics: usize| (nics as f64 * self.nic_gbps * 1e3) as u32;
        (mbps(used.len()), mbps(fewest))
    }
}

/// The slowest host's network and the slowest rank's.
fn slowest(speeds: impl IntoIterator<Item = (u32, u32)>) -> (u32, u32) {
    let least = |a: (u32, u32), b: (u32, u32)| (a.0.min(b.0), a.1.min(b.1));
    speeds.into_iter().reduce(least).unwrap_or((0, 0))
}

/// The device and the link that ranks agree on: the weakest.
fn weakest(groups: &[Group]) -> Result<(DeviceKind, Link)> {
    let sm = |group: &Group| match group.device {
        DeviceKind::Host => None,
        DeviceKind::Cuda { sm } => Some(sm),
    };
    let on_host = groups.iter().filter(|group| sm(group).is_none()).count();
    if on_host > 0 && on_host < groups.len() {
        return Err(wrong(
            "some hosts have GPUs and others have none",
            "a communicator has one kind of device: split the cluster into two files",
        ));
    }
    let device = groups.iter().filter_map(sm).min().map_or(DeviceKind::Host, |sm| DeviceKind::Cuda { sm });
    let strength = |link: &Link| Link::ALL.iter().position(|known| known == link);
    let link = groups.iter().map(|group| group.host.link).max_by_key(strength).unwrap_or(Link::HostMemory);
    Ok((device, link))
}

/// The constants of the cost model: built in, then those of a file, then those of the cluster itself.
fn constants(
    file: &File,
    measured: Option<&str>,
    device: DeviceKind,
    link: Link,
) -> Result<(Constants, String)> {
    let mut constants = Constants::builtin(device, link);
    let mut from = vec!["built-in".to_owned()];
    if let (Some(name), Some(text)) = (&file.constants_file, measured) {
        // It is no TOML: its `link` is a word, and a section.
        constants = constants.with(text, device, link)?.ok_or_else(|| {
            let what = format!("{name} is not for {device} over {}", link.name());
            wrong(what, "name a file that hawser measure wrote on such hosts")
        })?;
        from.push(name.clone());
    }
    if let Some(own) = &file.constants {
        let read = constants.with(&file::text_of(own), device, link);
        let read = read.map_err(|error| wrong(format!("[constants]: {}", error.text), "mend that entry"))?;
        constants = read.ok_or_else(|| {
            wrong("[constants] are for another device or link", "leave device and link out of them")
        })?;
        from.push("the cluster's own".into());
    }
    Ok((constants, from.join(", then ")))
}

fn hosts_of(groups: &[Group]) -> Result<Vec<u32>> {
    let ranks: u64 = groups.iter().map(|group| u64::from(group.count) * u64::from(group.host.ranks)).sum();
    if ranks > u64::from(MAX_RANKS) {
        return Err(wrong(
            format!("the cluster has {ranks} ranks, a communicator has {MAX_RANKS} at most"),
            "take fewer hosts, or fewer ranks of each",
        ));
    }
    Ok((0..).zip(groups).flat_map(|(kind, group)| (0..group.count).map(move |_| kind)).collect())
}

fn ranks_of(kinds: &[Host], hosts: &[u32]) -> Vec<RankInfo> {
    let of = |(host, kind): (u32, &u32)| {
        (0..kinds[*kind as usize].ranks).map(move |place| RankInfo { host, device: place.to_string() })
    };
    (0..).zip(hosts).flat_map(of).collect()
}

fn fabric(file: Option<&FabricFile>, hosts: u32, origins: &mut Vec<String>) -> Result<Fabric> {
    let file = file.cloned().unwrap_or_default();
    let name = file.kind.as_deref().unwrap_or("switch").replace('_', "-").replace("optimized", "optimised");
    let found = FabricKind::ALL.iter().find(|(_, known)| *known == name);
    let &(kind, name) = found.ok_or_else(|| {
        let known = FabricKind::ALL.map(|(_, name)| name).join(", ");
        wrong(format!("\"{name}\" is no kind of fabric"), format!("known are {known}"))
    })?;
    let oversubscription = file.oversubscription.as_ref().map_or(Ok(1.0), Ratio::value)?;
    let hosts_per_leaf = file.hosts_per_leaf.unwrap_or(HOSTS_PER_LEAF);
    if hosts_per_leaf == 0 {
        return Err(wrong("hosts_per_leaf = 0 cannot be", "write a number of hosts, or leave it out"));
    }
    if kind == FabricKind::Switch && oversubscription > 1.0 {
        return Err(wrong(
            "a single switch has no oversubscription",
            "take fabric leaf-spine or rail-optimised, or leave the ratio out",
        ));
    }
    let switch_gbps = file.switch_gbps.unwrap_or(f64::INFINITY);
    if switch_gbps.is_nan() || switch_gbps <= 0.0 {
        return Err(wrong("switch_gbps is not above 0", "write the Gb/s of the switch, or leave it out"));
    }
    if kind != FabricKind::Switch && file.switch_gbps.is_some() {
        return Err(wrong(
            format!("a fabric that is {name} has no single switch"),
            "leave switch_gbps out; oversubscription says how wide the way up is",
        ));
    }
    if hosts > 1 {
        origins.push(match kind {
            FabricKind::Switch if switch_gbps.is_finite() => {
                format!("fabric: one switch of {switch_gbps} Gb/s in all")
            }
            FabricKind::Switch => "fabric: one switch that never blocks".into(),
            _ => format!("fabric: {name}, {hosts_per_leaf} hosts to a leaf, {oversubscription}:1 above it"),
        });
    }
    Ok(Fabric { kind, oversubscription, hosts_per_leaf, switch_gbps })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(text: &str) -> Result<Cluster> {
        Cluster::new(&File::parse(text)?, None)
    }

    #[test]
    fn a_sentence_and_its_table_are_one_cluster() {
        let said = cluster("cluster = \"300 hosts of hgx-h200, rail-optimised, 2:1\"").unwrap();
        let written = cluster(
            "[[hosts]]\ncount = 300\npreset = \"hgx-h200\"\n[fabric]\nkind = \"rail-optimised\"\n\
             oversubscription = 2\n",
        );
        assert_eq!(said, written.unwrap());
        assert_eq!((said.topology.size(), said.topology.hosts()), (2400, 300));
        assert_eq!((said.topology.net_mbps, said.topology.rank_mbps), (3_200_000, 400_000));
        assert_eq!(said.fabric.oversubscription, 2.0);
        assert!(said.origins.iter().any(|line| line.contains("cuda:90 over nvlink")));
    }

    #[test]
    fn every_preset_makes_hosts() {
        for preset in PRESETS {
            let one = cluster(&format!("cluster = \"2 hosts of {}\"", preset.name)).unwrap();
            assert_eq!(one.topology.size(), 2 * preset.ranks);
            assert_eq!(one.topology.per_host(), Some(preset.ranks));
        }
        let a100 = cluster("cluster = \"2 hosts of dgx-a100\"").unwrap();
        assert_eq!(a100.topology.net_mbps, 1_600_000);
        assert_eq!(a100.topology.rank_mbps, 400_000, "two NICs hang on the switch of each GPU");
        assert_eq!(a100.host(0).near_nics(3), 2..4);
    }

    #[test]
    fn figures_of_the_file_count_before_those_of_the_preset() {
        let text = "[[hosts]]\npreset = \"hgx-h200\"\nranks = 4\nnic_gbps = 200\n[[hosts]]\ndevice = \
                    \"cuda:80\"\nlink = \"pcie\"\n[constants.net]\nhop_us = 8.5\n[constants.interpreter.LL]\n\
                    hop_us = 9\n";
        let mixed = cluster(text).unwrap();
        assert_eq!((mixed.topology.size(), mixed.topology.device), (5, DeviceKind::Cuda { sm: 80 }));
        assert_eq!((mixed.topology.link, mixed.topology.net_mbps), (Link::Pcie, 25_000));
        assert_eq!(mixed.topology.constants.net_hop_us, 8.5);
        assert_eq!(mixed.topology.constants.path(hawser_types::Route::LL).hop_us, 9.0);
    }

    #[test]
    fn constants_of_a_file_count_before_built_in_ones() {
        let file = File::parse(
            "cluster = \"2 hosts of hgx-h200\"\nconstants_file = \"links.toml\"\n\
             [constants.net]\nround_us = 1",
        )
        .unwrap();
        // As hawser measure writes it, all sections and keys.
        let (device, link) = (DeviceKind::Cuda { sm: 90 }, Link::NvLink);
        let mut measured = Constants::builtin(device, link);
        (measured.wire_gbs, measured.net_hop_us, measured.net_round_us) = (123.0, 7.0, 3.0);
        let made = Cluster::new(&file, Some(&measured.text(device, link))).unwrap();
        let constants = made.topology.constants;
        assert_eq!(constants.wire_gbs, 123.0);
        assert_eq!((constants.net_hop_us, constants.net_round_us), (7.0, 1.0));
        assert!(made.origins.iter().any(|line| line.contains("links.toml, then the cluster's own")));
        let other = Cluster::new(&file, Some("device = \"host\"\nlink = \"host\"\n")).unwrap_err();
        assert!(other.to_string().contains("links.toml is not for cuda:90"), "{other}");
    }

    /// The planner decides as on the real machine; only the times are those of threads.
    #[test]
    fn threads_whose_constants_nobody_names_have_times_of_their_own() {
        let built_in = Constants::builtin(DeviceKind::Host, Link::HostMemory);
        let made = |text: &str| Cluster::new(&File::parse(text).unwrap(), None).unwrap();
        let plain = made("[[hosts]]\nranks = 4\n");
        assert_eq!(plain.topology.constants, built_in);
        assert!(plain.times.named().contains(&("host.fixed_us".to_owned(), 1.04)), "{:?}", plain.times);
        assert_eq!(plain.kinds[0].wire_gbs, plain.times.wire_gbs);
        let own = made("[[hosts]]\nranks = 4\n[constants.host]\nfixed_us = 7\n");
        assert_eq!(own.times, own.topology.constants);
        let gpus = made("cluster = \"2 hosts of hgx-h200\"\n");
        assert_eq!(gpus.times, gpus.topology.constants);
    }

    #[test]
    fn bad_input_is_an_error_that_says_what_to_write() {
        for (text, words) in [
            ("", "no hosts"),
            ("cluster = \"many hosts\"", "\"many hosts\" is not understood"),
            ("cluster = \"2 hosts of hgx-b900\"", "known are hgx-h200"),
            ("cluster = \"2 hosts of cpu, torus\"", "known are switch, leaf-spine"),
            ("cluster = \"2 hosts of cpu, 2:1\"", "no oversubscription"),
            ("cluster = \"2 hosts of cpu, leaf-spine, 0:1\"", "oversubscription of 0:1"),
            ("cluster = \"4000 hosts of hgx-h200\"", "32000 ranks"),
            ("cluster = \"4000000000 hosts of hgx-h200\"", "ranks, a communicator has"),
            ("cluster = \"1 host of cpu\"\n[[hosts]]", "keep one of them"),
            ("[[hosts]]\nnics = 0", "nics = 0"),
            ("[[hosts]]\ncount = 0", "0 hosts"),
            ("[[hosts]]\nnic_gbps = -1", "nic_gbps = -1"),
            ("[[hosts]]\nnic_gbps = nan", "nic_gbps = NaN"),
            ("[[hosts]]\nconnection_gbps = 0", "connection_gbps = 0"),
            ("[[hosts]]\nconnection_wake_us = -1", "connection_wake_us = -1"),
            ("[[hosts]]\n[fabric]\nswitch_gbps = 0", "switch_gbps is not above 0"),
            ("[[hosts]]\n[fabric]\nkind = \"leaf-spine\"\nswitch_gbps = 9", "no single switch"),
            ("[[hosts]]\nlink = \"nvlink\"", "leave link out"),
            ("[[hosts]]\ndevice = \"tpu\"", "device = \"tpu\""),
            ("[[hosts]]\npreset = \"cpu\"\n[[hosts]]\npreset = \"hgx-h200\"", "some hosts have GPUs"),
            ("start_skew_us = -1\n[[hosts]]", "start_skew_us"),
            ("[[hosts]]\n[fabric]\nhosts_per_leaf = 0", "hosts_per_leaf"),
            ("[[hosts]]\n[constants.net]\nhop = 1", "net.hop"),
            ("[[hosts]]\n[constants.net]\nhop_us = -1", "at least 0"),
            ("[[hosts]]\nnic = 2", "line 2"),
            ("one_process = true\ncluster = \"2 hosts of cpu\"", "leave one_process out"),
            ("[[hosts", "line 1"),
        ] {
            let error = cluster(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}

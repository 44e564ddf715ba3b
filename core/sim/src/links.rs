//! The links of a cluster, and the ways over them.
//!
//! Every link has one direction. What is not here has bandwidth enough: NVSwitches do not block, nor do
//! spines (what is narrow is the way from a leaf up to them, and down again).

use std::fmt;
use std::ops::Range;

use hawser_types::{DeviceKind, Link};

use crate::cluster::{Cluster, FabricKind, Host};
use crate::engine::Hop;
use crate::engine::flows::LinkId;

/// A link, by what it joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// A rank's way out to its peers of the host: NVLink, or shared memory on the host device.
    RankOut(u32),
    /// A rank's way in from its peers of the host.
    RankIn(u32),
    /// A GPU's PCIe way out.
    PcieOut(u32),
    /// A GPU's PCIe way in.
    PcieIn(u32),
    /// A PCIe switch's way to the processors: host and switch.
    SwitchUp(u32, u32),
    /// A PCIe switch's way from the processors.
    SwitchDown(u32, u32),
    /// A host's memory.
    Memory(u32),
    /// A NIC's way out: host and NIC.
    NicOut(u32, u32),
    /// A NIC's way in.
    NicIn(u32, u32),
    /// A leaf's way up to the spines: group of hosts and rail.
    LeafUp(u32, u32),
    /// A leaf's way down from the spines.
    LeafDown(u32, u32),
    /// The switch that joins all hosts.
    Fabric,
}

impl Name {
    /// The kinds of links, in the order of the ways of data.
    pub const KINDS: [&'static str; 12] = [
        "rank out",
        "rank in",
        "PCIe out",
        "PCIe in",
        "PCIe switch up",
        "PCIe switch down",
        "memory",
        "NIC out",
        "NIC in",
        "leaf up",
        "leaf down",
        "switch",
    ];

    /// The link's kind, a place in [`Name::KINDS`].
    pub const fn kind(&self) -> usize {
        match self {
            Self::RankOut(_) => 0,
            Self::RankIn(_) => 1,
            Self::PcieOut(_) => 2,
            Self::PcieIn(_) => 3,
            Self::SwitchUp(..) => 4,
            Self::SwitchDown(..) => 5,
            Self::Memory(_) => 6,
            Self::NicOut(..) => 7,
            Self::NicIn(..) => 8,
            Self::LeafUp(..) => 9,
            Self::LeafDown(..) => 10,
            Self::Fabric => 11,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RankOut(rank) => write!(f, "rank {rank} out"),
            Self::RankIn(rank) => write!(f, "rank {rank} in"),
            Self::PcieOut(rank) => write!(f, "PCIe of rank {rank} out"),
            Self::PcieIn(rank) => write!(f, "PCIe of rank {rank} in"),
            Self::SwitchUp(host, switch) => write!(f, "PCIe switch {switch} of host {host} up"),
            Self::SwitchDown(host, switch) => write!(f, "PCIe switch {switch} of host {host} down"),
            Self::Memory(host) => write!(f, "memory of host {host}"),
            Self::NicOut(host, nic) => write!(f, "NIC {nic} of host {host} out"),
            Self::NicIn(host, nic) => write!(f, "NIC {nic} of host {host} in"),
            Self::LeafUp(group, rail) => write!(f, "leaf {group}.{rail} up"),
            Self::LeafDown(group, rail) => write!(f, "leaf {group}.{rail} down"),
            Self::Fabric => write!(f, "the switch"),
        }
    }
}

/// The links of a cluster.
#[derive(Debug)]
pub struct Links<'a> {
    cluster: &'a Cluster,
    names: Vec<Name>,
    /// GB/s of every link.
    speeds: Vec<f64>,
    hosts: Vec<Place>,
    /// Host, and place on it, of every rank.
    ranks: Vec<(u32, u32)>,
    /// The first link of the leaves, and the number of rails.
    leaves: (LinkId, u32),
    /// The single switch, where it may be full.
    switch: Option<LinkId>,
    /// By link: the one that stands for it, where a period of hosts stands for all; empty if none does.
    images: Vec<LinkId>,
}

/// The first links of a host.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Four for each rank: out, in, PCIe out, PCIe in.
    ranks: LinkId,
    /// Two for each PCIe switch: up, down.
    switches: LinkId,
    memory: LinkId,
    /// Two for each NIC: out, in.
    nics: LinkId,
}

/// A way over links, to which hops are added.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Way(Vec<Hop>);

impl Way {
    /// Forgets all hops.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The hops; no link is there twice.
    pub fn hops(&self) -> &[Hop] {
        &self.0
    }

    /// Adds a link of somebody else.
    pub fn through(&mut self, link: LinkId, weight: f64) {
        self.add(link, weight);
    }

    fn add(&mut self, link: LinkId, weight: f64) {
        match self.0.iter_mut().find(|hop| hop.link == link) {
            Some(hop) => hop.weight += weight,
            None => self.0.push(Hop { link, weight }),
        }
    }
}

impl<'a> Links<'a> {
    /// The links of a cluster.
    pub fn new(cluster: &'a Cluster) -> Self {
        let mut links = Self {
            cluster,
            names: Vec::new(),
            speeds: Vec::new(),
            hosts: Vec::new(),
            ranks: Vec::new(),
            leaves: (0, 1),
            switch: None,
            images: Vec::new(),
        };
        for number in 0..cluster.hosts.len() as u32 {
            links.add_host(number);
        }
        if cluster.hosts.len() > 1 {
            links.add_leaves();
        }
        links
    }

    /// The links of a cluster whose first `ranks` ranks, those of whole hosts, stand for all others: ways
    /// take the links of their images.
    pub fn of_period(cluster: &'a Cluster, ranks: u32) -> Self {
        let mut links = Self::new(cluster);
        let hosts = links.ranks[ranks as usize - 1].0 + 1;
        // All hosts have equally many links, one host after the other.
        let next = links.hosts.get(hosts as usize);
        let of_period = next.map_or(links.count(), |next| next.ranks);
        let (first, rails) = links.leaves;
        let end_of_hosts = links.switch.unwrap_or(if first == 0 { links.count() } else { first });
        if let Some(switch) = links.switch {
            // What crosses it is that of all periods.
            links.speeds[switch as usize] *= f64::from(hosts) / cluster.hosts.len() as f64;
        }
        let of_host = (0..end_of_hosts).map(|link| link % of_period);
        let of_fabric = |link: LinkId| match links.switch {
            Some(switch) => switch,
            None => first + (link - first) % (2 * rails),
        };
        links.images = of_host.chain((end_of_hosts..links.count()).map(of_fabric)).collect();
        links
    }

    /// The link that stands for a link: itself, unless a period of hosts stands for all.
    pub fn image(&self, link: LinkId) -> LinkId {
        self.images.get(link as usize).copied().unwrap_or(link)
    }

    /// The number of links.
    pub fn count(&self) -> u32 {
        self.names.len() as u32
    }

    /// The name of a link.
    pub fn name(&self, link: LinkId) -> Name {
        self.names[link as usize]
    }

    /// GB/s of a link.
    pub fn speed(&self, link: LinkId) -> f64 {
        self.speeds[link as usize]
    }

    /// Bytes per picosecond of all links.
    pub fn capacities(&self) -> impl Iterator<Item = f64> {
        self.speeds.iter().map(|gbs| gbs * 1e-3)
    }

    /// The host of a rank.
    pub fn host_of(&self, rank: u32) -> u32 {
        self.ranks[rank as usize].0
    }

    /// The host of a rank, as the cluster describes it.
    pub fn description(&self, rank: u32) -> &'a Host {
        self.cluster.host(self.host_of(rank))
    }

    /// The processor that a rank's thread runs on, or that of its proxy: a number of its own, whatever the
    /// host, which has at most two for each rank.
    pub fn processor_of(&self, rank: u32, is_proxy: bool) -> u32 {
        let (host, place) = self.ranks[rank as usize];
        let kind = self.cluster.host(host);
        2 * (rank - place) + (place + if is_proxy { kind.ranks } else { 0 }) % kind.processors
    }

    /// True if ranks take turns on the processors of their hosts: on the host device, where they are more.
    pub fn are_crowded(&self) -> bool {
        let has_few = |kind: &u32| {
            let kind = &self.cluster.kinds[*kind as usize];
            kind.ranks > kind.processors
        };
        self.cluster.topology.device == DeviceKind::Host && self.cluster.hosts.iter().any(has_few)
    }

    /// The way of data that a rank writes to peers of its host at once, `weight` bytes on each link for a
    /// byte of data. `buffers`: bytes that each rank of the host reads and writes.
    pub fn near(&self, (from, buffers): (u32, u64), to: &[u32], weight: f64, way: &mut Way) {
        way.clear();
        let (host, place) = self.ranks[from as usize];
        let (kind, at) = (self.cluster.host(host), self.hosts[host as usize]);
        let is_cached = buffers as f64 * f64::from(kind.ranks) <= kind.cache_mib * f64::from(1 << 20);
        for &peer in to {
            let peer_place = self.ranks[peer as usize].1;
            let (out, into) = (at.ranks + 4 * place, at.ranks + 4 * peer_place);
            match kind.link {
                Link::NvLink => {
                    way.add(out, weight);
                    way.add(into + 1, weight);
                }
                _ if self.cluster.topology.device == DeviceKind::Host => {
                    // On several cores the time of what crosses is that of the threads that move it.
                    if !kind.has_several_cores() {
                        way.add(out, weight);
                    }
                    if !is_cached {
                        way.add(at.memory, weight);
                    }
                }
                Link::Pcie => {
                    way.add(out, weight);
                    let (own, other) = (kind.switch_of_rank(place), kind.switch_of_rank(peer_place));
                    if own != other {
                        self.over_processors(host, (own, other), weight, way);
                    }
                    way.add(into + 1, weight);
                }
                Link::HostMemory => {
                    way.add(out, weight);
                    self.over_processors(
                        host,
                        (kind.switch_of_rank(place), kind.switch_of_rank(peer_place)),
                        weight,
                        way,
                    );
                    way.add(at.memory, weight);
                    way.add(into + 1, weight);
                }
            }
        }
    }

    /// The way of data from a rank to one of another host, on a lane.
    pub fn far(&self, from: u32, to: u32, lane: u32, way: &mut Way) {
        self.over_network((from, to), lane, false, way);
    }

    /// Bytes per picosecond of a connection between two ranks of different hosts at most.
    pub fn of_connection(&self, from: u32, to: u32) -> f64 {
        let of_host = |rank| self.cluster.host(self.host_of(rank)).connection_gbps;
        of_host(from).min(of_host(to)) / 8.0 * 1e-3
    }

    /// The way of data from a slot of copy engines, which lies in the memory of the host, to one of another
    /// host.
    pub fn far_by_slots(&self, from: u32, to: u32, lane: u32, way: &mut Way) {
        self.over_network((from, to), lane, true, way);
    }

    /// The way of data between a GPU and a slot of copy engines in its host's memory. False if there are no
    /// GPUs.
    pub fn to_slot(&self, rank: u32, is_out: bool, way: &mut Way) -> bool {
        let (host, place) = self.ranks[rank as usize];
        let kind = self.cluster.host(host);
        way.clear();
        if self.cluster.topology.device == DeviceKind::Host {
            return false;
        }
        way.add(self.pcie(host, place, is_out), 1.0);
        let switch = kind.switch_of_rank(place);
        self.over_processors(host, if is_out { (switch, None) } else { (None, switch) }, 1.0, way);
        way.add(self.hosts[host as usize].memory, 1.0);
        true
    }

    fn over_network(&self, (from, to): (u32, u32), lane: u32, by_slots: bool, way: &mut Way) {
        way.clear();
        let (from_host, from_nic) = self.between_rank_and_nic((from, lane), true, by_slots, way);
        let (to_host, to_nic) = {
            let (host, place) = self.ranks[to as usize];
            (host, nic_of(self.cluster.host(host), place, lane))
        };
        way.add(self.hosts[from_host as usize].nics + 2 * from_nic, 1.0);
        let (leaf, other) = (self.leaf(from_host, from_nic), self.leaf(to_host, to_nic));
        if leaf != other {
            leaf.into_iter().for_each(|leaf| way.add(leaf, 1.0));
            other.into_iter().for_each(|leaf| way.add(leaf + 1, 1.0));
        }
        self.switch.into_iter().for_each(|switch| way.add(switch, 1.0));
        way.add(self.hosts[to_host as usize].nics + 2 * to_nic + 1, 1.0);
        self.between_rank_and_nic((to, lane), false, by_slots, way);
        if !self.images.is_empty() {
            let hops = std::mem::take(&mut way.0);
            hops.into_iter().for_each(|hop| way.add(self.image(hop.link), hop.weight));
        }
    }

    /// The part of a way that is within a host. Returns host and NIC.
    fn between_rank_and_nic(
        &self,
        (rank, lane): (u32, u32),
        is_out: bool,
        by_slots: bool,
        way: &mut Way,
    ) -> (u32, u32) {
        let (host, place) = self.ranks[rank as usize];
        let (kind, at) = (self.cluster.host(host), self.hosts[host as usize]);
        let nic = nic_of(kind, place, lane);
        let is_cpu = self.cluster.topology.device == DeviceKind::Host;
        if by_slots && !is_cpu {
            let card = kind.switch_of_nic(nic);
            way.add(at.memory, 1.0);
            self.over_processors(host, if is_out { (None, card) } else { (card, None) }, 1.0, way);
            return (host, nic);
        }
        if !is_cpu {
            way.add(self.pcie(host, place, is_out), 1.0);
        }
        let (gpu, card) = (kind.switch_of_rank(place), kind.switch_of_nic(nic));
        if is_cpu || !kind.gpu_direct {
            way.add(at.memory, 1.0);
        }
        if !is_cpu && (gpu != card || !kind.gpu_direct) {
            self.over_processors(host, if is_out { (gpu, card) } else { (card, gpu) }, 1.0, way);
        }
        (host, nic)
    }

    /// The PCIe link of a GPU. Without NVLink, GPUs reach each other and the NICs by the same way.
    fn pcie(&self, host: u32, place: u32, is_out: bool) -> LinkId {
        let pcie = if self.cluster.host(host).link == Link::NvLink { 2 } else { 0 };
        self.hosts[host as usize].ranks + 4 * place + pcie + u32::from(!is_out)
    }

    /// From under one PCIe switch to under another, by way of the processors.
    fn over_processors(&self, host: u32, (from, to): (Option<u32>, Option<u32>), weight: f64, way: &mut Way) {
        let at = self.hosts[host as usize];
        from.into_iter().for_each(|switch| way.add(at.switches + 2 * switch, weight));
        to.into_iter().for_each(|switch| way.add(at.switches + 2 * switch + 1, weight));
    }

    /// The way up of the leaf that a NIC hangs on; None where there are no leaves.
    fn leaf(&self, host: u32, nic: u32) -> Option<LinkId> {
        let fabric = self.cluster.fabric;
        let (first, rails) = self.leaves;
        let rail = match fabric.kind {
            FabricKind::Switch => return None,
            FabricKind::LeafSpine => 0,
            FabricKind::RailOptimised => nic % rails,
        };
        Some(first + 2 * (host / fabric.hosts_per_leaf * rails + rail))
    }

    fn add(&mut self, name: Name, gbs: f64) -> LinkId {
        self.names.push(name);
        self.speeds.push(gbs);
        self.names.len() as LinkId - 1
    }

    fn add_host(&mut self, number: u32) {
        let kind = self.cluster.host(number);
        let first = self.ranks.len() as u32;
        let ranks = self.names.len() as LinkId;
        for place in 0..kind.ranks {
            let rank = first + place;
            self.add(Name::RankOut(rank), kind.wire_gbs);
            self.add(Name::RankIn(rank), kind.wire_gbs);
            self.add(Name::PcieOut(rank), kind.pcie_gbs);
            self.add(Name::PcieIn(rank), kind.pcie_gbs);
            self.ranks.push((number, place));
        }
        let switches = self.names.len() as LinkId;
        for switch in 0..kind.pcie_switches {
            self.add(Name::SwitchUp(number, switch), kind.pcie_gbs);
            self.add(Name::SwitchDown(number, switch), kind.pcie_gbs);
        }
        let memory = self.add(Name::Memory(number), kind.memory_gbs);
        let nics = self.names.len() as LinkId;
        for nic in 0..kind.nics {
            self.add(Name::NicOut(number, nic), kind.nic_gbps / 8.0);
            self.add(Name::NicIn(number, nic), kind.nic_gbps / 8.0);
        }
        self.hosts.push(Place { ranks, switches, memory, nics });
    }

    /// Adds the ways between leaves and spines, as wide as the NICs below them by the oversubscription, or a
    /// switch that may be full.
    fn add_leaves(&mut self) {
        let (cluster, fabric) = (self.cluster, self.cluster.fabric);
        let rails = match fabric.kind {
            FabricKind::Switch => {
                if fabric.switch_gbps.is_finite() {
                    self.switch = Some(self.add(Name::Fabric, fabric.switch_gbps / 8.0));
                }
                return;
            }
            FabricKind::LeafSpine => 1,
            FabricKind::RailOptimised => cluster.kinds.iter().map(|kind| kind.nics).max().unwrap_or(1),
        };
        self.leaves = (self.names.len() as LinkId, rails);
        for (group, hosts) in (0..).zip(cluster.hosts.chunks(fabric.hosts_per_leaf as usize)) {
            for rail in 0..rails {
                let below: f64 = hosts
                    .iter()
                    .map(|kind| {
                        let kind = &cluster.kinds[*kind as usize];
                        let nics = (0..kind.nics).filter(|nic| nic % rails == rail || rails == 1).count();
                        nics as f64 * kind.nic_gbps / 8.0
                    })
                    .sum();
                // A rail that no host has carries nothing.
                let gbs = (below / fabric.oversubscription).max(1e-3);
                self.add(Name::LeafUp(group, rail), gbs);
                self.add(Name::LeafDown(group, rail), gbs);
            }
        }
    }
}

/// The NIC that a rank uses for a lane, as a real one would.
fn nic_of(host: &Host, place: u32, lane: u32) -> u32 {
    let Range { start, end } = host.near_nics(place);
    start + (place + lane) % (end - start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::File;

    fn names(links: &Links<'_>, way: &Way) -> Vec<String> {
        way.hops().iter().map(|hop| format!("{} {}", links.name(hop.link), hop.weight)).collect()
    }

    fn cluster(text: &str) -> Cluster {
        Cluster::new(&File::parse(text).unwrap(), None).unwrap()
    }

    #[test]
    fn ways_within_a_host_follow_its_link() {
        let mut way = Way::default();
        let nvlink = cluster("cluster = \"1 host of hgx-h200\"");
        let links = Links::new(&nvlink);
        links.near((1, 1 << 40), &[2, 3], 2.0, &mut way);
        assert_eq!(names(&links, &way), ["rank 1 out 4", "rank 2 in 2", "rank 3 in 2"]);
        let pcie = cluster("[[hosts]]\npreset = \"dgx-a100\"\nlink = \"pcie\"");
        let links = Links::new(&pcie);
        links.near((0, 1 << 40), &[1], 1.0, &mut way);
        assert_eq!(names(&links, &way), ["rank 0 out 1", "rank 1 in 1"]);
        links.near((0, 1 << 40), &[2], 1.0, &mut way);
        let up = ["PCIe switch 0 of host 0 up 1", "PCIe switch 1 of host 0 down 1"];
        assert_eq!(names(&links, &way), ["rank 0 out 1", up[0], up[1], "rank 2 in 1"]);
        let cpu = cluster("[[hosts]]\nranks = 2");
        let links = Links::new(&cpu);
        links.near((0, 1 << 40), &[1], 1.0, &mut way);
        assert_eq!(names(&links, &way), ["rank 0 out 1", "memory of host 0 1"]);
    }

    #[test]
    fn rails_keep_what_stays_on_one_rail_below_the_spines() {
        let rails = cluster("cluster = \"64 hosts of hgx-h200, rail-optimised, 2:1\"");
        let links = Links::new(&rails);
        let mut way = Way::default();
        links.far(1, 8 * 31 + 1, 0, &mut way);
        let ends = ["PCIe of rank 1 out 1", "NIC 1 of host 0 out 1"];
        assert_eq!(names(&links, &way), [ends[0], ends[1], "NIC 1 of host 31 in 1", "PCIe of rank 249 in 1"]);
        links.far(1, 8 * 32 + 2, 0, &mut way);
        let middle = ["leaf 0.1 up 1", "leaf 1.2 down 1"];
        assert_eq!(
            names(&links, &way),
            [ends[0], ends[1], middle[0], middle[1], "NIC 2 of host 32 in 1", "PCIe of rank 258 in 1"]
        );
        let leaf = way.hops()[2].link;
        assert_eq!(links.speed(leaf), 32.0 * 50.0 / 2.0);
    }

    #[test]
    fn a_switch_that_may_be_full_is_on_every_way_between_hosts() {
        let hosts = cluster("[[hosts]]\ncount = 4\nranks = 1\nnics = 1\n[fabric]\nswitch_gbps = 80\n");
        let (links, mut way) = (Links::new(&hosts), Way::default());
        links.far(1, 3, 0, &mut way);
        assert_eq!(names(&links, &way)[2], "the switch 1");
        let switch = way.hops()[2].link;
        assert_eq!(links.speed(switch), 10.0);
        // What crosses it within a period is a fourth of all.
        let links = Links::of_period(&hosts, 1);
        links.far(0, 3, 0, &mut way);
        assert_eq!((way.hops()[2].link, links.speed(switch)), (switch, 2.5));
    }

    #[test]
    fn without_gpu_direct_data_pass_the_memory() {
        let text = "[[hosts]]\ncount = 2\npreset = \"hgx-h200\"\nranks = 2\nnics = 1\npcie_switches = 2\n\
                    gpu_direct = false\n";
        let hosts = cluster(text);
        let links = Links::new(&hosts);
        let mut way = Way::default();
        links.far(1, 2, 0, &mut way);
        assert_eq!(
            names(&links, &way),
            [
                "PCIe of rank 1 out 1",
                "memory of host 0 1",
                "PCIe switch 1 of host 0 up 1",
                "PCIe switch 0 of host 0 down 1",
                "NIC 0 of host 0 out 1",
                "NIC 0 of host 1 in 1",
                "PCIe of rank 2 in 1",
                "memory of host 1 1",
                "PCIe switch 0 of host 1 up 1",
                "PCIe switch 0 of host 1 down 1",
            ]
        );
    }
}

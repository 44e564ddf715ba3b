//! The facts about the job and the machine that the planner may use. Equal on all ranks.

use hawser_types::Digest;
pub use hawser_types::{DeviceKind, Link};

use crate::link_constants::Constants;

/// One rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankInfo {
    /// Index of the host, dense from 0 in order of first rank. Ranks that share no memory count as hosts of
    /// their own.
    pub host: u32,
    /// PCI bus id of the device, or its index as text on the host device.
    pub device: String,
}

/// The job as the planner sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// One entry per rank.
    pub ranks: Vec<RankInfo>,
    /// The device kind, the same on all ranks (the weakest one if they differ).
    pub device: DeviceKind,
    /// The slowest link between two ranks of one host.
    pub link: Link,
    /// Megabits per second of a host's network: of all NICs that its ranks use, the slowest host's; 0 = not
    /// known.
    pub net_mbps: u32,
    /// Megabits per second of the NICs that one rank uses, the slowest rank's; 0 = the host's.
    pub rank_mbps: u32,
    /// The reductions of the network itself: bit `5 * type + operation`, with NCCL's numbers; 0 = nothing.
    pub collnet: u64,
    /// True if all ranks are in one process and their devices reach each other's ordinary memory
    /// ([`crate::executor::fused::zero_copy`]).
    pub direct: bool,
    /// Hardware queues of a process on its device, the fewest that a rank has
    /// (`CUDA_DEVICE_MAX_CONNECTIONS`): a stream that waits for a word holds one.
    pub queues: u32,
    /// The constants of the cost model for device and link.
    pub constants: Constants,
}

/// [`Topology::queues`] where nobody has said otherwise.
pub const QUEUES: u32 = 8;

impl Topology {
    /// True if ranks may read the words of LL while the network still writes them: GPUs, whose words carry
    /// their own flags.
    pub fn reads_words_as_they_arrive(&self) -> bool {
        self.device != DeviceKind::Host
    }

    /// A topology of these ranks, without a network, with the built-in constants.
    pub fn new(ranks: Vec<RankInfo>, device: DeviceKind, link: Link) -> Self {
        let constants = Constants::builtin(device, link);
        Self {
            ranks,
            device,
            link,
            net_mbps: 0,
            rank_mbps: 0,
            collnet: 0,
            direct: false,
            queues: QUEUES,
            constants,
        }
    }

    /// A topology of `ranks` ranks on one host, for tests, `hawser plan` and offline questions.
    pub fn single_host(ranks: u32, device: DeviceKind, link: Link) -> Self {
        Self::of_hosts(ranks, ranks.max(1), device, link)
    }

    /// A topology of `ranks` ranks, `per_host` on each host, rank 0 first.
    pub fn of_hosts(ranks: u32, per_host: u32, device: DeviceKind, link: Link) -> Self {
        let info = |r: u32| RankInfo { host: r / per_host.max(1), device: (r % per_host.max(1)).to_string() };
        Self::new((0..ranks).map(info).collect(), device, link)
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// True if each rank of a host has a NIC, or a part of one, that the others do not use.
    pub fn has_own_nics(&self) -> bool {
        self.rank_mbps > 0 && self.rank_mbps < self.net_mbps
    }

    /// Number of hosts.
    pub fn hosts(&self) -> u32 {
        self.ranks.iter().map(|r| r.host + 1).max().unwrap_or(1)
    }

    /// True if two ranks are on different hosts: what passes between them goes through the network. So does
    /// what passes between a rank and a network that reduces, "rank" [`Topology::size`].
    pub fn is_far(&self, a: u32, b: u32) -> bool {
        let host = |rank: u32| self.ranks.get(rank as usize).map(|r| r.host);
        host(a) != host(b)
    }

    /// The place of each rank among the ranks of its host, and the ranks of the largest host.
    pub fn places(&self) -> (Vec<u32>, u32) {
        let mut seen = vec![0; self.hosts() as usize];
        let mut take = |r: &RankInfo| {
            seen[r.host as usize] += 1;
            seen[r.host as usize] - 1
        };
        let places: Vec<u32> = self.ranks.iter().map(&mut take).collect();
        let most = seen.into_iter().max().unwrap_or(1);
        (places, most)
    }

    /// The ranks of the device that most of them share.
    pub fn most_on_a_device(&self) -> usize {
        let mut devices: Vec<(u32, &str)> = self.ranks.iter().map(|r| (r.host, r.device.as_str())).collect();
        devices.sort_unstable();
        devices.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap_or(1)
    }

    /// Ranks per host where every host has equally many and they follow one another; None otherwise.
    pub fn per_host(&self) -> Option<u32> {
        let (size, hosts) = (self.size(), self.hosts());
        let local = size / hosts.max(1);
        let regular = local > 0 && (0..size).zip(&self.ranks).all(|(rank, info)| info.host == rank / local);
        (regular && local * hosts == size).then_some(local)
    }

    /// A number that differs when topologies differ; compared between ranks at init.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        digest.add(self.ranks.len() as u64);
        for rank in &self.ranks {
            digest.add(u64::from(rank.host));
            digest.add(rank.device.len() as u64);
            digest.add_bytes(rank.device.as_bytes());
        }
        digest.add(match self.device {
            DeviceKind::Host => 0,
            DeviceKind::Cuda { sm } => 1 + u64::from(sm),
        });
        digest.add(self.link as u64);
        digest.add(u64::from(self.net_mbps));
        digest.add(u64::from(self.rank_mbps));
        digest.add(self.collnet);
        digest.add(u64::from(self.direct));
        self.constants.add_to(&mut digest);
        digest.value()
    }
}

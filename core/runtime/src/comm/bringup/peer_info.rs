//! The record that every rank sends to all others at bring-up, and the agreement checks on it.

use std::sync::OnceLock;

use hawser_base::env::{CheckMode, Settings};
use hawser_base::error::{Error, Result};
use hawser_plan::topology::{DeviceKind, Link, RankInfo};
use hawser_plan::{PlanConfig, Topology};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use hawser_device::{Device, HeapKind};

use crate::record;

/// The number of the protocol between ranks, which changes whenever ranks of two builds could not work
/// together.
const PROTOCOL: u32 = 14;

/// The record in which a rank describes itself and its device to all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// The digest of the planner's settings.
    plan_config: u64,
    /// A random number; rank 0's names the communicator.
    nonce: u64,
    /// A number that only ranks of one process have in common.
    pub process: u64,
    /// Bytes that the rank's pool may still give (`NCCL_CUMEM_MAX_SIZE`).
    room: u64,
    /// The pool's number in its process.
    pool: u64,
    host: String,
    device: String,
    peers: Vec<String>,
    sm: u32,
    multiprocessors: u32,
    queues: u32,
    nvlink: bool,
    p2p: bool,
    shm: bool,
    /// True if ranks compare every collective (`NCCL_CHECK_MODE=DEBUG_GLOBAL`).
    compares: bool,
}

impl PeerInfo {
    /// The record of this rank. The name of its host and the number of its process may be given.
    pub fn new(
        device: &dyn Device,
        settings: &Settings,
        plan_config: &PlanConfig,
        (host, process): (Option<&str>, Option<u64>),
    ) -> Self {
        let caps = device.caps();
        Self {
            room: device.pool().room(),
            pool: device.pool().id(),
            plan_config: plan_config.digest(),
            nonce: random(),
            process: process_identity().wrapping_add(process.unwrap_or(0)),
            host: host_identity(host.or(settings.host_id.as_deref())),
            device: caps.id.clone(),
            peers: caps.peers.clone(),
            sm: caps.kind.sm(),
            multiprocessors: caps.multiprocessors,
            queues: caps.queues,
            nvlink: caps.nvlink,
            p2p: !settings.p2p_disable && settings.direct_path != Some(false),
            shm: !settings.shm_disable,
            compares: settings.check_mode() == CheckMode::Global,
        }
    }

    /// The record as bytes: the number of the protocol, which every build can read, then the rest.
    pub fn encode(&self) -> Vec<u8> {
        [&PROTOCOL.to_le_bytes()[..], &record::encode(self)].concat()
    }

    /// Reads a record that [`PeerInfo::encode`] made.
    ///
    /// # Errors
    /// The rank runs another build, or what it sent is no record.
    pub fn decode(bytes: &[u8], rank: usize) -> Result<Self> {
        let bad = || {
            Error::remote(format!(
                "rank {rank} sent a bring-up record that this version does not understand; use the same \
                 build everywhere"
            ))
        };
        let (protocol, rest) = bytes.split_first_chunk().ok_or_else(bad)?;
        match u32::from_le_bytes(*protocol) {
            PROTOCOL => record::decode(rest).ok_or_else(bad),
            _ => Err(Error::invalid_usage(format!(
                "rank {rank} runs another build than this one (its bring-up record is not of protocol \
                 {PROTOCOL}); use the same build everywhere"
            ))),
        }
    }
}

/// The consequences of the records of all ranks: the planner's topology, the process of every rank, and where
/// heaps lie.
pub struct Agreement {
    /// The topology.
    pub topology: Topology,
    /// Process of each rank.
    pub processes: Vec<u64>,
    /// The kind of memory that heaps lie in.
    pub heap: HeapKind,
    /// A number that names the communicator, equal on all ranks.
    pub comm_id: u64,
}

/// Checks that the ranks fit together. The same on every rank, since all see the same records.
pub fn agree(peer_infos: &[PeerInfo], multi_rank_gpu: bool) -> Result<Agreement> {
    for (rank, peer_info) in peer_infos.iter().enumerate() {
        let first = &peer_infos[0];
        if peer_info.plan_config != first.plan_config {
            let text = format!(
                "rank {rank} has other settings than rank 0: NCCL_ALGO, NCCL_PROTO, NCCL_BUFFSIZE, \
                 NCCL_PASS_SM, NCCL_PSM_BUFFER_SIZE, the CTA limits and policy, HAWSER_FUSE, \
                 HAWSER_REPRODUCIBLE and HAWSER_SM_FREE_CTAS must be equal on all ranks"
            );
            return Err(Error::invalid_usage(text));
        }
        if peer_info.compares != first.compares {
            let (with, without) = if first.compares { (0, rank) } else { (rank, 0) };
            let text = format!(
                "rank {with} compares calls (NCCL_CHECK_MODE=DEBUG_GLOBAL) and rank {without} does not"
            );
            return Err(Error::invalid_usage(text).remedy("set NCCL_CHECK_MODE alike on all ranks"));
        }
        if (peer_info.sm == 0) != (first.sm == 0) {
            return Err(Error::invalid_usage(format!(
                "rank {rank} and rank 0 differ: one runs on a GPU, the other on the host device; set \
                 HAWSER_DEVICE alike"
            )));
        }
    }
    check_duplicates(peer_infos, multi_rank_gpu)?;
    let (device, link, heap) = links(peer_infos);
    // Without memory that they share, ranks of one host are as far from each other as hosts.
    let together = heap.is_some();
    let mut hosts: FxHashMap<(&str, usize), u32> = FxHashMap::default();
    let mut ranks = Vec::with_capacity(peer_infos.len());
    for (rank, peer_info) in peer_infos.iter().enumerate() {
        let name = (peer_info.host.as_str(), if together { 0 } else { rank });
        let next = hosts.len() as u32;
        let host = *hosts.entry(name).or_insert(next);
        ranks.push(RankInfo { host, device: peer_info.device.clone() });
    }
    let processes = peer_infos.iter().map(|c| c.process).collect();
    let mut topology = Topology::new(ranks, device, link);
    topology.queues = peer_infos.iter().map(|peer_info| peer_info.queues).min().unwrap_or(0);
    Ok(Agreement { topology, processes, heap: heap.unwrap_or(HeapKind::Host), comm_id: peer_infos[0].nonce })
}

/// Bytes that each rank may take: what the poorest has, where ranks share a pool its part.
pub fn room(peer_infos: &[PeerInfo]) -> u64 {
    let pool = |peer_info: &PeerInfo| (peer_info.process, peer_info.pool);
    let mut sharing: FxHashMap<(u64, u64), u64> = FxHashMap::default();
    for peer_info in peer_infos {
        *sharing.entry(pool(peer_info)).or_default() += 1;
    }
    let part = |peer_info: &PeerInfo| peer_info.room / sharing[&pool(peer_info)];
    peer_infos.iter().map(part).min().unwrap_or(u64::MAX)
}

/// CTAs of every rank that run at once on the weakest device, beside those of other ranks on the same GPU:
/// they wait for each other.
pub fn most_ctas(peer_infos: &[PeerInfo]) -> u32 {
    let sharing = |peer_info: &PeerInfo| match peer_info.sm {
        0 => 1,
        _ => peer_infos
            .iter()
            .filter(|other| (&other.host, &other.device) == (&peer_info.host, &peer_info.device))
            .count(),
    };
    let each = |peer_info: &PeerInfo| (peer_info.multiprocessors / sharing(peer_info) as u32).max(1);
    peer_infos.iter().map(each).min().unwrap_or(1)
}

fn check_duplicates(peer_infos: &[PeerInfo], allowed: bool) -> Result<()> {
    if allowed {
        return Ok(());
    }
    let mut first: FxHashMap<(&str, &str), usize> = FxHashMap::default();
    for (b, second) in peer_infos.iter().enumerate() {
        if let Some(a) = first.insert((&second.device, &second.host), b) {
            let text = format!("ranks {a} and {b} both use device {}: duplicate GPU", second.device);
            return Err(Error::invalid_usage(text).remedy(
                "give every rank a GPU of its own (cudaSetDevice, CUDA_VISIBLE_DEVICES), or set \
                     NCCL_MULTI_RANK_GPU_ENABLE=1",
            ));
        }
    }
    Ok(())
}

/// The weakest device, the slowest link between ranks of one host, and where their heaps lie: None if they
/// share no memory.
fn links(peer_infos: &[PeerInfo]) -> (DeviceKind, Link, Option<HeapKind>) {
    let sm = peer_infos.iter().map(|c| c.sm).min().unwrap_or(0);
    let shm = peer_infos.iter().all(|c| c.shm);
    let device = DeviceKind::from_sm(sm);
    let mut hosts: FxHashMap<&str, Vec<&PeerInfo>> = FxHashMap::default();
    peer_infos.iter().for_each(|peer_info| hosts.entry(&peer_info.host).or_default().push(peer_info));
    let reaches = |a: &PeerInfo, b: &PeerInfo| a.device == b.device || a.peers.contains(&b.device);
    let all_reach = hosts.values().all(|near| near.iter().all(|a| near.iter().all(|b| reaches(a, b))));
    if sm > 0 && all_reach && peer_infos.iter().all(|c| c.p2p) {
        // Ranks that share a GPU meet in its memory, which is faster than any link.
        let on_one_gpu = hosts.values().all(|near| near.iter().all(|a| a.device == near[0].device));
        let nvlink = on_one_gpu || peer_infos.iter().all(|c| c.nvlink);
        return (device, if nvlink { Link::NvLink } else { Link::Pcie }, Some(HeapKind::Device));
    }
    (device, Link::HostMemory, shm.then_some(HeapKind::Host))
}

/// A number that no other process of the job has. Process ids alone do not do: containers of one host may
/// count from 1 each.
fn process_identity() -> u64 {
    static NONCE: OnceLock<u64> = OnceLock::new();
    let nonce = *NONCE.get_or_init(random);
    // A forked child has the parent's nonce but an id of its own.
    nonce.wrapping_add(u64::from(std::process::id()))
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => 0,
    }
}

/// The name given (`NCCL_HOSTID`), else host name and boot id.
fn host_identity(given: Option<&str>) -> String {
    if let Some(name) = given {
        return name.to_owned();
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {}", rustix::system::uname().nodename().to_string_lossy(), boot.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer_info(device: &str, peers: &[&str]) -> PeerInfo {
        PeerInfo {
            plan_config: 7,
            nonce: 11,
            process: 1,
            room: u64::MAX,
            pool: 0,
            host: "h".into(),
            device: device.into(),
            peers: peers.iter().map(|p| (*p).to_owned()).collect(),
            sm: 90,
            multiprocessors: 132,
            queues: 8,
            nvlink: true,
            p2p: true,
            shm: true,
            compares: false,
        }
    }

    #[test]
    fn records_survive_the_wire() {
        let original = peer_info("a", &["b", "c"]);
        let bytes = original.encode();
        assert_eq!(PeerInfo::decode(&bytes, 0).unwrap(), original);
        for short in 0..bytes.len() {
            assert!(PeerInfo::decode(&bytes[..short], 3).unwrap_err().text.contains("rank 3"), "{short}");
        }
        let of_before = b"7\n5\n1\n2\n";
        assert!(PeerInfo::decode(of_before, 3).unwrap_err().text.contains("rank 3 runs another build"));
    }

    proptest::proptest! {
        /// Bytes that another rank sends are an error at worst.
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let of_this_build = [&PROTOCOL.to_le_bytes()[..], &bytes].concat();
            for bytes in [bytes, of_this_build] {
                if let Ok(peer_info) = PeerInfo::decode(&bytes, 3) {
                    let _ = agree(&[peer_info.clone(), peer_info], true);
                }
            }
        }
    }

    #[test]
    fn disagreement_names_the_rank() {
        let mut other = peer_info("b", &["a"]);
        other.plan_config = 8;
        let error = agree(&[peer_info("a", &["b"]), other], false).err().unwrap();
        assert!(error.text.contains("rank 1") && error.text.contains("NCCL_ALGO"));
    }

    #[test]
    fn ranks_of_one_pool_share_what_is_left() {
        let with = |process, pool, room| PeerInfo { process, pool, room, ..peer_info("a", &[]) };
        assert_eq!(room(&[with(1, 1, 90), with(1, 1, 90), with(1, 2, 50), with(2, 1, 60)]), 45);
        assert_eq!(room(&[with(1, 1, 90), with(1, 2, 50), with(2, 1, 40)]), 40);
        assert!(room(&[with(1, 1, u64::MAX), with(2, 1, u64::MAX)]) == u64::MAX);
    }

    #[test]
    fn hosts_are_told_apart_by_name() {
        let mut far = peer_info("a", &[]);
        far.host = "elsewhere".into();
        let agreement = agree(&[peer_info("a", &["b"]), peer_info("b", &["a"]), far], false).unwrap();
        assert_eq!((agreement.topology.hosts(), agreement.topology.per_host()), (2, None));
        assert_eq!((agreement.heap, agreement.topology.link), (HeapKind::Device, Link::NvLink));
        assert!(agreement.topology.is_far(1, 2) && !agreement.topology.is_far(0, 1));
    }

    #[test]
    fn two_ranks_on_one_gpu_are_refused_unless_allowed() {
        let peer_infos = [peer_info("a", &[]), peer_info("a", &[])];
        let error = agree(&peer_infos, false).err().unwrap();
        assert_eq!(error.kind, hawser_base::error::ErrorKind::InvalidUsage);
        assert!(error.text.contains("ranks 0 and 1"));
        assert!(agree(&peer_infos, true).is_ok());
    }

    #[test]
    fn the_weakest_device_limits_ctas() {
        let on = |device, multiprocessors| PeerInfo { multiprocessors, ..peer_info(device, &[]) };
        assert_eq!(most_ctas(&[on("a", 132), on("b", 8)]), 8);
        assert_eq!(most_ctas(&[on("a", 132), on("b", 80), on("a", 132), on("a", 132)]), 44);
        assert_eq!(most_ctas(&vec![on("a", 132); 200]), 1);
        assert_eq!(most_ctas(&vec![PeerInfo { sm: 0, ..on("host", 2) }; 3]), 2, "cores are shared as always");
        let far = PeerInfo { host: "elsewhere".into(), ..on("a", 132) };
        assert_eq!(most_ctas(&[on("a", 132), far]), 132);
    }

    #[test]
    fn who_compares_calls_does_so_with_all() {
        let compares = |compares| PeerInfo { compares, ..peer_info("a", &["b"]) };
        let ranks = [compares(true), PeerInfo { compares: true, ..peer_info("b", &["a"]) }];
        agree(&ranks, false).unwrap();
        let error = agree(&[compares(false), compares(true)], true).err().unwrap();
        assert!(
            error.text.contains("rank 1 compares calls") && error.text.contains("rank 0 does not"),
            "{error}"
        );
    }

    #[test]
    fn links_fall_back_from_nvlink_to_host_memory() {
        let near = [peer_info("a", &["b"]), peer_info("b", &["a"])];
        assert_eq!(agree(&near, false).unwrap().topology.link, Link::NvLink);
        let mut shared = [peer_info("a", &[]), peer_info("a", &[])];
        shared.iter_mut().for_each(|rank| rank.nvlink = false);
        assert_eq!(agree(&shared, true).unwrap().topology.link, Link::NvLink, "they share a GPU");
        shared[1] = PeerInfo { nvlink: false, ..peer_info("b", &["a"]) };
        shared[0].peers = vec!["b".into()];
        assert_eq!(agree(&shared, true).unwrap().topology.link, Link::Pcie);
        let mut far = [peer_info("a", &[]), peer_info("b", &["a"])];
        assert_eq!(agree(&far, false).unwrap().heap, HeapKind::Host);
        far[0].shm = false;
        assert_eq!(agree(&far, false).unwrap().topology.hosts(), 2);
    }
}

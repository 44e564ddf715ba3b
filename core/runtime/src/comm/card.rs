//! What every rank tells all others at bring-up, and the agreement checks on it.

use std::sync::OnceLock;

use hawser_plan::world::{DeviceKind, Link, RankInfo};
use hawser_plan::{Knobs, World};

use crate::device::{Caps, HeapKind};
use crate::env::Settings;
use crate::error::{Error, ErrorKind, Result};

/// Changes whenever ranks of two builds could not work together.
const PROTOCOL: u32 = 1;

/// One rank's card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    protocol: u32,
    knobs: u64,
    /// Equal for ranks of one process only.
    pub process: u64,
    host: String,
    device: String,
    peers: Vec<String>,
    sm: u32,
    nvlink: bool,
    p2p: bool,
    shm: bool,
}

impl Card {
    /// The card of this rank.
    pub fn new(caps: &Caps, settings: &Settings, knobs: &Knobs) -> Self {
        Self {
            protocol: PROTOCOL,
            knobs: knobs.digest(),
            process: process_identity(),
            host: host_identity(settings),
            device: caps.id.clone(),
            peers: caps.peers.clone(),
            sm: match caps.kind {
                DeviceKind::Host => 0,
                DeviceKind::Cuda { sm } => sm,
            },
            nvlink: caps.nvlink,
            p2p: !settings.p2p_disable,
            shm: !settings.shm_disable,
        }
    }

    /// Lines of text, one per field.
    pub fn encode(&self) -> Vec<u8> {
        let flags = [self.nvlink, self.p2p, self.shm].map(u8::from);
        let head = format!(
            "{}\n{}\n{}\n{}\n{}\n",
            self.protocol,
            self.knobs,
            self.process,
            self.sm,
            flags.map(|f| f.to_string()).join(" ")
        );
        format!("{head}{}\n{}\n{}", self.host, self.device, self.peers.join("\n")).into_bytes()
    }

    /// Inverse of [`Card::encode`].
    pub fn decode(bytes: &[u8], rank: usize) -> Result<Self> {
        let bad = || {
            Error::remote(format!(
                "rank {rank} sent a bring-up record that this version does not understand; use the same build everywhere"
            ))
        };
        let text = std::str::from_utf8(bytes).map_err(|_| bad())?;
        let mut lines = text.split('\n');
        let mut next = || lines.next().ok_or_else(bad);
        let mut number = |_: &str| -> Result<u64> { next()?.parse().map_err(|_| bad()) };
        let (protocol, knobs, process, sm) =
            (number("protocol")?, number("knobs")?, number("process")?, number("sm")?);
        let flags: Vec<bool> = next()?.split(' ').map(|f| f == "1").collect();
        let [nvlink, p2p, shm] = flags[..] else { return Err(bad()) };
        let (host, device) = (next()?.to_owned(), next()?.to_owned());
        let peers = lines.filter(|l| !l.is_empty()).map(str::to_owned).collect();
        Ok(Self {
            protocol: protocol as u32,
            knobs,
            process,
            host,
            device,
            peers,
            sm: sm as u32,
            nvlink,
            p2p,
            shm,
        })
    }
}

/// What follows from all cards: the planner's world, the process of every rank, and where heaps lie.
pub struct Agreement {
    /// The world.
    pub world: World,
    /// Process of each rank.
    pub processes: Vec<u64>,
    /// Where heaps lie.
    pub heap: HeapKind,
}

/// Checks that the ranks fit together. The same on every rank, since all see the same cards.
pub fn agree(cards: &[Card], multi_rank_gpu: bool) -> Result<Agreement> {
    for (rank, card) in cards.iter().enumerate() {
        let first = &cards[0];
        if card.protocol != first.protocol {
            return Err(Error::invalid_usage(format!(
                "rank {rank} runs another build than rank 0 (protocol {} and {})",
                card.protocol, first.protocol
            )));
        }
        if card.knobs != first.knobs {
            let text = format!(
                "rank {rank} has other settings than rank 0: NCCL_ALGO, NCCL_PROTO, NCCL_BUFFSIZE and the CTA limits must be equal on all ranks"
            );
            return Err(Error::invalid_usage(text));
        }
        if (card.sm == 0) != (first.sm == 0) {
            return Err(Error::invalid_usage(format!(
                "rank {rank} and rank 0 differ: one runs on a GPU, the other on the host device; set HAWSER_DEVICE alike"
            )));
        }
    }
    let mut hosts: Vec<&str> = Vec::new();
    let mut ranks = Vec::with_capacity(cards.len());
    for card in cards {
        let host = hosts.iter().position(|h| *h == card.host).unwrap_or_else(|| {
            hosts.push(&card.host);
            hosts.len() - 1
        });
        ranks.push(RankInfo { host: host as u32, device: card.device.clone() });
    }
    if hosts.len() > 1 {
        let other = ranks.iter().position(|r| r.host != 0).unwrap_or(0);
        let text = format!(
            "ranks 0 and {other} run on different hosts ({} and {}): this version joins ranks of one host only",
            hosts[0], hosts[1]
        );
        return Err(Error::invalid_usage(text)
            .remedy("start all ranks on one host, or unset NCCL_HOSTID if they are on one"));
    }
    check_duplicates(&ranks, multi_rank_gpu)?;
    let (device, link, heap) = links(cards)?;
    let processes = cards.iter().map(|c| c.process).collect();
    Ok(Agreement { world: World { ranks, device, link }, processes, heap })
}

fn check_duplicates(ranks: &[RankInfo], allowed: bool) -> Result<()> {
    for (b, second) in ranks.iter().enumerate() {
        let first = ranks[..b].iter().position(|r| r.device == second.device);
        if let (Some(a), false) = (first, allowed) {
            let text = format!("ranks {a} and {b} both use device {}: duplicate GPU", second.device);
            return Err(Error::invalid_usage(text)
                .remedy("give every rank a GPU of its own (cudaSetDevice, CUDA_VISIBLE_DEVICES)"));
        }
    }
    Ok(())
}

fn links(cards: &[Card]) -> Result<(DeviceKind, Link, HeapKind)> {
    let sm = cards.iter().map(|c| c.sm).min().unwrap_or(0);
    if sm == 0 {
        return Ok((DeviceKind::Host, Link::HostMemory, HeapKind::Host));
    }
    let device = DeviceKind::Cuda { sm };
    let reaches = |a: &Card, b: &Card| a.device == b.device || a.peers.contains(&b.device);
    let all_reach = cards.iter().all(|a| cards.iter().all(|b| reaches(a, b)));
    if all_reach && cards.iter().all(|c| c.p2p) {
        let nvlink = cards.len() == 1 || cards.iter().all(|c| c.nvlink);
        return Ok((device, if nvlink { Link::NvLink } else { Link::Pcie }, HeapKind::Device));
    }
    if cards.iter().all(|c| c.shm) {
        return Ok((device, Link::HostMemory, HeapKind::Host));
    }
    let text = "GPUs cannot reach each other's memory (or NCCL_P2P_DISABLE is set) and NCCL_SHM_DISABLE forbids host memory: no transport is left";
    Err(Error::new(ErrorKind::InvalidUsage, text).remedy("unset NCCL_SHM_DISABLE or NCCL_P2P_DISABLE"))
}

/// A number that no other process of the job has. Process ids alone do not do: containers of one host may
/// count from 1 each.
fn process_identity() -> u64 {
    static NONCE: OnceLock<u64> = OnceLock::new();
    let nonce = *NONCE.get_or_init(|| {
        let mut bytes = [0; 8];
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(8) => u64::from_le_bytes(bytes),
            _ => 0,
        }
    });
    // A forked child has the parent's nonce but an id of its own.
    nonce.wrapping_add(u64::from(std::process::id()))
}

/// Host name and boot id, or `NCCL_HOSTID`.
fn host_identity(settings: &Settings) -> String {
    if let Some(id) = &settings.host_id {
        return id.replace('\n', " ");
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {}", rustix::system::uname().nodename().to_string_lossy(), boot.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(device: &str, peers: &[&str]) -> Card {
        Card {
            protocol: PROTOCOL,
            knobs: 7,
            process: 1,
            host: "h".into(),
            device: device.into(),
            peers: peers.iter().map(|p| (*p).to_owned()).collect(),
            sm: 90,
            nvlink: true,
            p2p: true,
            shm: true,
        }
    }

    #[test]
    fn cards_survive_the_wire() {
        let original = card("a", &["b", "c"]);
        assert_eq!(Card::decode(&original.encode(), 0).unwrap(), original);
        assert!(Card::decode(b"\xff\xfe", 3).unwrap_err().text.contains("rank 3"));
        assert!(Card::decode(b"1\n2", 3).is_err());
    }

    #[test]
    fn disagreement_names_the_rank() {
        let mut other = card("b", &["a"]);
        other.knobs = 8;
        let error = agree(&[card("a", &["b"]), other], false).err().unwrap();
        assert!(error.text.contains("rank 1") && error.text.contains("NCCL_ALGO"));
        let mut far = card("b", &["a"]);
        far.host = "elsewhere".into();
        assert!(agree(&[card("a", &["b"]), far], false).err().unwrap().text.contains("elsewhere"));
    }

    #[test]
    fn two_ranks_on_one_gpu_are_refused_unless_allowed() {
        let cards = [card("a", &[]), card("a", &[])];
        let error = agree(&cards, false).err().unwrap();
        assert_eq!(error.kind, ErrorKind::InvalidUsage);
        assert!(error.text.contains("ranks 0 and 1"));
        assert!(agree(&cards, true).is_ok());
    }

    #[test]
    fn links_fall_back_from_nvlink_to_host_memory() {
        let near = [card("a", &["b"]), card("b", &["a"])];
        assert_eq!(agree(&near, false).unwrap().world.link, Link::NvLink);
        let mut far = [card("a", &[]), card("b", &["a"])];
        assert_eq!(agree(&far, false).unwrap().heap, HeapKind::Host);
        far[0].shm = false;
        assert!(agree(&far, false).err().unwrap().text.contains("NCCL_SHM_DISABLE"));
    }
}

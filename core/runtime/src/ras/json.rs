//! A job as JSON, in the form of NCCL 2.28 and later: the same names and types, so that readers of NCCL's
//! RAS find what they look for. Collectives that NCCL does not count stand behind those that it counts.

use std::time::SystemTime;

use hawser_base::library::NCCL_VERSION;
use hawser_plan::Collective;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::census::{COLLECTIVES, RankCensus};
use super::clock;
use super::job::{Communicator, Job, Missing, Presence, Process};

/// The collectives with the names that clients know, those of NCCL first.
pub const COLLECTIVE_NAMES: [(Collective, &str); COLLECTIVES] = [
    (Collective::Broadcast, "Broadcast"),
    (Collective::Reduce, "Reduce"),
    (Collective::AllGather, "AllGather"),
    (Collective::ReduceScatter, "ReduceScatter"),
    (Collective::AllReduce, "AllReduce"),
    (Collective::AllToAll, "AlltoAll"),
    (Collective::Gather, "Gather"),
    (Collective::Scatter, "Scatter"),
];

#[derive(Serialize)]
struct Document<'a> {
    nccl_version: String,
    cuda_runtime_version: i32,
    cuda_driver_version: i32,
    timestamp: String,
    communicators_count: usize,
    communicators: Vec<Comm<'a>>,
    ras: Ras,
}

#[derive(Serialize)]
struct Comm<'a> {
    hash: String,
    secondary_hash: String,
    size: u32,
    ranks_count: usize,
    missing_ranks_count: usize,
    ranks: Vec<Rank<'a>>,
    missing_ranks: Vec<Absent<'a>>,
}

#[derive(Serialize)]
struct Rank<'a> {
    rank: u32,
    host: &'a str,
    pid: i64,
    cuda_dev: i64,
    nvml_dev: i64,
    status: RankStatus,
    collective_counts: Counts<'a>,
}

#[derive(Serialize)]
struct RankStatus {
    init_state: u8,
    async_error: u8,
    finalize_called: bool,
    destroy_flag: bool,
    abort_flag: bool,
}

struct Counts<'a>(&'a RankCensus);

#[derive(Serialize)]
struct Absent<'a> {
    rank: u32,
    host: &'a str,
    pid: i64,
    cuda_dev: i64,
    nvml_dev: i64,
    status: AbsentStatus,
}

#[derive(Serialize)]
struct AbsentStatus {
    unresponsive: bool,
    considered_dead: bool,
}

#[derive(Serialize)]
struct Ras {
    collection_time_sec: f64,
    timeouts_count: u32,
}

impl Serialize for Counts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(COLLECTIVES))?;
        for (collective, name) in COLLECTIVE_NAMES {
            map.serialize_entry(name, &self.0.counts[collective as usize])?;
        }
        map.end()
    }
}

/// The state of a job.
pub fn status(job: &Job) -> String {
    let (major, minor, patch) = NCCL_VERSION;
    let document = Document {
        nccl_version: format!("{major}.{minor}.{patch}"),
        cuda_runtime_version: 0,
        cuda_driver_version: 0,
        timestamp: clock::local(SystemTime::now()),
        communicators_count: job.comms.len(),
        communicators: job.comms.iter().map(|comm| of_comm(comm, &job.processes)).collect(),
        ras: Ras {
            collection_time_sec: (job.took.as_secs_f64() * 1000.0).round() / 1000.0,
            timeouts_count: job.timeouts,
        },
    };
    written(&document)
}

fn of_comm<'a>(comm: &'a Communicator, processes: &'a [Process]) -> Comm<'a> {
    Comm {
        hash: format!("{:#x}", comm.id),
        secondary_hash: "0x0:0x0".into(),
        size: comm.size,
        ranks_count: comm.ranks.len(),
        missing_ranks_count: comm.missing.len(),
        ranks: comm.ranks.iter().map(|(at, rank)| of_rank(rank, &processes[*at])).collect(),
        missing_ranks: comm.missing.iter().map(|missing| of_missing(missing, processes)).collect(),
    }
}

fn of_rank<'a>(rank: &'a RankCensus, process: &'a Process) -> Rank<'a> {
    Rank {
        rank: rank.rank,
        host: &process.node,
        pid: process.key.pid.into(),
        cuda_dev: rank.device.into(),
        nvml_dev: rank.device.into(),
        status: RankStatus {
            init_state: 0,
            async_error: rank.async_error,
            finalize_called: rank.is_finalized,
            destroy_flag: false,
            abort_flag: rank.is_aborted,
        },
        collective_counts: Counts(rank),
    }
}

fn of_missing<'a>(missing: &Missing, processes: &'a [Process]) -> Absent<'a> {
    let process = missing.process.map(|at| &processes[at]);
    Absent {
        rank: missing.rank,
        host: process.map_or("unknown", |process| &process.node),
        pid: process.map_or(-1, |process| process.key.pid.into()),
        // Nobody tells the devices of others.
        cuda_dev: -1,
        nvml_dev: -1,
        status: AbsentStatus {
            unresponsive: !missing.has_no_comm(),
            considered_dead: missing.presence == Presence::Dead,
        },
    }
}

/// An event of a process, for clients that monitor.
#[derive(Serialize)]
struct Event<'a> {
    timestamp: String,
    group: &'a str,
    event: &'a str,
    peer: Peer<'a>,
    details: &'a str,
}

#[derive(Serialize)]
struct Peer<'a> {
    host: &'a str,
    pid: u32,
    cuda_devs: Vec<u32>,
    nvml_devs: Vec<u32>,
}

/// An event of a process of the job.
pub fn event(name: &str, (node, pid): (&str, u32), details: &str) -> String {
    let peer = Peer { host: node, pid, cuda_devs: Vec::new(), nvml_devs: Vec::new() };
    let timestamp = clock::local(SystemTime::now());
    written(&Event { timestamp, group: "LIFECYCLE", event: name, peer, details })
}

/// Names of no field are missing and no number is none, so this cannot fail; if it did, there is no answer.
fn written(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).map_or_else(|_| String::new(), |text| text + "\n")
}

//! Bring-up of a communicator: named steps, each with a deadline.

use std::sync::Arc;

use hawser_plan::Knobs;
use hawser_plan::layout::HeapLayout;
use hawser_plan::world::DeviceKind;

use super::Config;
use super::card::{Card, agree};
use super::live::{Live, warm_up};
use crate::bootstrap::{self, Bootstrap, UniqueId};
use crate::device::{self, Device};
use crate::env::{self, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{self, Subsys};
use crate::transport::{Fabric, Peers};
use crate::wait::{AbortFlag, Wait};

/// Device memory that the FIFOs of one communicator may take, in bytes per rank.
const HEAP_BUDGET: u64 = 121 << 20;

/// Programs have up to this many channels, each on a lane of its own.
const MIN_LANES: u32 = 8;

/// How a rank meets the others.
pub enum Meeting {
    /// By unique ids.
    Ids {
        /// One id, or several for `ncclCommInitRankScalable`.
        ids: Vec<UniqueId>,
        /// Number of ranks.
        nranks: u32,
    },
    /// Through the control connections of a parent communicator.
    Child {
        /// The child's control connections, already up.
        bootstrap: Box<Bootstrap>,
    },
}

/// Brings a communicator up. Collective over its ranks.
pub fn bring_up(
    meeting: Meeting,
    rank: u32,
    ordinal: u32,
    config: &Config,
    abort: &AbortFlag,
) -> Result<Arc<Live>> {
    let settings = env::settings();
    log::version_once();
    log::set_device(ordinal);
    let step = |name: &str| {
        log::info(Subsys::Init, || format!("rank {rank}: {name}"));
        Wait::new(abort.clone(), Some(settings.init_timeout))
    };
    let bootstrap = meet(meeting, rank, &step("bootstrap"))?;
    let device = device::open(ordinal)?;
    let knobs = knobs(bootstrap.nranks(), device.as_ref(), settings, config)?;
    let card = Card::new(device.caps(), settings, &knobs);
    let cards = bootstrap.all_gather(&card.encode(), &step("agreement"))?;
    let cards: Vec<Card> =
        cards.iter().enumerate().map(|(r, c)| Card::decode(c, r)).collect::<Result<_>>()?;
    let agreement = agree(&cards, settings.multi_rank_gpu)?;
    let layout = HeapLayout::new(bootstrap.nranks(), &knobs);
    let peers = Peers {
        rank,
        processes: &agreement.processes,
        kind: agreement.heap,
        deadline_ns: settings.op_timeout.map_or(0, |t| t.as_nanos() as u64),
    };
    let fabric = Fabric::connect(device.as_ref(), &bootstrap, &peers, &layout, &step("transport"))?;
    let name = config.name.clone().unwrap_or_else(|| "world".into());
    let live = Live {
        rank,
        world: agreement.world,
        knobs,
        layout,
        name,
        bootstrap,
        device,
        fabric,
        abort: abort.clone(),
        programs: Default::default(),
        bounds: Default::default(),
        scratch: Default::default(),
        next_op: Default::default(),
        broken: Default::default(),
        last_stream: Default::default(),
    };
    if live.device.caps().kind != DeviceKind::Host {
        warm_up(&live)?;
    }
    live.bootstrap.barrier(&step("ready"))?;
    log::info(Subsys::Init, || announcement(&live));
    Ok(Arc::new(live))
}

/// The control connections to the other ranks.
fn meet(meeting: Meeting, rank: u32, wait: &Wait) -> Result<Bootstrap> {
    match meeting {
        Meeting::Ids { ids, nranks } => {
            let joined = Bootstrap::join(&ids, rank, nranks, &env::bootstrap_settings(), wait);
            joined.inspect_err(|error| release_root(error, &ids))
        }
        Meeting::Child { bootstrap } => Ok(*bootstrap),
    }
}

fn announcement(live: &Live) -> String {
    let (size, link, device) = (live.world.size(), live.world.link, &live.device.caps().name);
    let (lanes, memory) = (live.layout.lanes, live.memory_bytes() >> 10);
    format!(
        "{} rank {} of {size} up on {device}: {link:?}, {lanes} lanes, {memory} KiB",
        live.name, live.rank
    )
}

/// A rank that was aborted may not have reached its root, which would wait for it as long as this process lives.
fn release_root(error: &Error, ids: &[UniqueId]) {
    if error.kind == ErrorKind::Aborted {
        for id in ids {
            bootstrap::stop_root(id);
        }
    }
}

/// Settings of the planner, sized so that the heap stays within its budget.
fn knobs(ranks: u32, device: &dyn Device, settings: &Settings, config: &Config) -> Result<Knobs> {
    let mut knobs = Knobs::default();
    if device.caps().kind == DeviceKind::Host {
        knobs.slot_bytes = [0, 0, 32 << 10];
        knobs.lanes = MIN_LANES;
    }
    if let Some(bytes) = settings.buffsize {
        let slot = (bytes / u64::from(knobs.depth)).clamp(512, 4 << 20) & !511;
        knobs.slot_bytes[2] = slot as u32;
    }
    let most = device.caps().multiprocessors.min(hawser_plan::device_plan::MAX_BLOCKS as u32);
    knobs.max_ctas = settings.max_ctas.or(config.max_ctas).unwrap_or(most).clamp(1, 64);
    knobs.min_ctas = settings.min_ctas.or(config.min_ctas).unwrap_or(1).clamp(1, knobs.max_ctas);
    if let Some(text) = &settings.algo {
        knobs.algorithms = Knobs::parse_algo(text).map_err(|e| Error::from(e).context("NCCL_ALGO"))?;
    }
    if let Some(text) = &settings.proto {
        knobs.protocols = Knobs::parse_proto(text).map_err(|e| Error::from(e).context("NCCL_PROTO"))?;
    }
    while knobs.lanes > MIN_LANES && HeapLayout::new(ranks, &knobs).heap_bytes() > HEAP_BUDGET {
        knobs.lanes -= 1;
    }
    while knobs.slot_bytes[2] > 4096 && HeapLayout::new(ranks, &knobs).heap_bytes() > HEAP_BUDGET {
        knobs.slot_bytes = knobs.slot_bytes.map(|b| b / 2);
    }
    Ok(knobs)
}

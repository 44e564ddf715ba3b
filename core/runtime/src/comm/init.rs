//! Bring-up of a communicator: named steps, each with a deadline.

use std::sync::Arc;

use hawser_plan::layout::HeapLayout;
use hawser_plan::world::DeviceKind;
use hawser_plan::{Knobs, World};

use super::Config;
use super::card::{Agreement, Card, agree};
use super::live::{Live, warm_up};
use super::tune::Tuners;
use super::watch::Watch;
use crate::bootstrap::{self, Bootstrap, UniqueId};
use crate::device::{self, Device};
use crate::env::{self, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{self, Subsys};
use crate::transport::net::{self, Chosen, Net, Rail, Setup};
use crate::transport::{Fabric, Peers};
use crate::wait::{AbortFlag, Wait};

/// Device memory that the FIFOs of one communicator may take, in bytes per rank.
const HEAP_BUDGET: u64 = 121 << 20;

/// Bytes of a slot that crosses a network, at least.
const NET_SLOT: u32 = 128 << 10;

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
    let mut knobs = knobs(device.as_ref(), settings, config)?;
    let card = Card::new(device.caps(), settings, &knobs, config.host.as_deref());
    let cards = bootstrap.all_gather(&card.encode(), &step("agreement"))?;
    let cards: Vec<Card> =
        cards.iter().enumerate().map(|(r, c)| Card::decode(c, r)).collect::<Result<_>>()?;
    let Agreement { mut world, processes, heap, comm_id } = agree(&cards, settings.multi_rank_gpu)?;
    let (bootstrap, abort) = (Arc::new(bootstrap), abort.clone());
    let chosen = match world.hosts() {
        1 => None,
        _ => Some(choose_net(comm_id, device.as_ref(), &bootstrap, &mut world, &mut knobs, &step("net"))?),
    };
    let tuners = Tuners::open(comm_id, &world);
    check_tuners(&bootstrap.all_gather(tuners.names().as_bytes(), &step("tuners"))?)?;
    let watch = Arc::new(Watch::open(comm_id, config.name.as_deref(), &world, rank));
    let (places, local) = world.places();
    fit(&mut knobs, world.size(), local);
    let layout = HeapLayout::new(world.size(), local, &knobs);
    let hosts: Vec<u32> = world.ranks.iter().map(|r| r.host).collect();
    let peers = Peers {
        rank,
        processes: &processes,
        hosts: &hosts,
        places: &places,
        kind: heap,
        deadline_ns: settings.op_timeout.map_or(0, |t| t.as_nanos() as u64),
    };
    let fabric = Fabric::connect(device.as_ref(), &bootstrap, &peers, &layout, &step("transport"))?;
    let setup = |fabric: &Fabric| Setup {
        device: device.clone(),
        bootstrap: bootstrap.clone(),
        control: fabric.control.clone(),
        layout: &layout,
        place: places[rank as usize],
        rail: rail(&hosts, &places, rank),
        wires: fabric.wires(),
        gpu_direct: settings.gpu_direct,
        deadline: settings.op_timeout,
        init_timeout: settings.init_timeout,
    };
    let net = chosen.map(|chosen| Net::start(chosen, setup(&fabric))).transpose()?;
    let name = config.name.clone().unwrap_or_else(|| "world".into());
    let live = Live {
        rank,
        world,
        knobs,
        layout,
        name,
        tuners,
        watch,
        bootstrap,
        net,
        device,
        fabric,
        abort,
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

/// Opens this rank's net and checks that it is everybody's.
fn choose_net(
    comm_id: u64,
    device: &dyn Device,
    bootstrap: &Bootstrap,
    world: &mut World,
    knobs: &mut Knobs,
    wait: &Wait,
) -> Result<Chosen> {
    let with_collnet = env::settings().collnet && world.per_host().is_some();
    let chosen = Chosen::open(comm_id, device, with_collnet);
    // The others wait for this rank's record, also if it has no net.
    let none = |error: &Error| format!("0\n0\nnone ({})\n0\n", error.text.replace('\n', " ")).into_bytes();
    let card = chosen.as_ref().map_or_else(none, Chosen::card);
    let cards = bootstrap.all_gather(&card, wait)?;
    let mut chosen = chosen?;
    let agreed = net::agree(&cards)?;
    (world.net_mbps, world.collnet) = (agreed.mbps, agreed.collnet);
    if agreed.collnet == 0 {
        chosen.without_collnet();
    }
    // Only Simple crosses a network, and a slot is one message.
    knobs.slot_bytes = [0, 0, knobs.slot_bytes[2].max(NET_SLOT)];
    let most = u32::try_from(agreed.most_bytes).unwrap_or(u32::MAX) & !511;
    if most < 512 {
        let text =
            format!("net {} sends at most {} bytes at once, 512 are needed", chosen.name, agreed.most_bytes);
        return Err(Error::invalid_usage(text));
    }
    knobs.slot_bytes[2] = knobs.slot_bytes[2].min(most);
    knobs.depth = knobs.depth.min(net::MOST_SLOTS);
    Ok(chosen)
}

/// The ranks with this rank's place on every host, where every host has one.
fn rail(hosts: &[u32], places: &[u32], rank: u32) -> Option<Rail> {
    let place = places[rank as usize];
    let of_place = (0..).zip(places).filter(|(_, p)| **p == place);
    let mut ranks: Vec<u32> = of_place.map(|(rank, _)| rank).collect();
    ranks.sort_by_key(|r| hosts[*r as usize]);
    let own = ranks.iter().position(|r| *r == rank)?;
    let host_count = hosts.iter().max().map_or(0, |h| h + 1);
    (ranks.len() as u32 == host_count).then_some(Rail { ranks, own })
}

/// Ranks with different tuners would decide differently.
fn check_tuners(names: &[Vec<u8>]) -> Result<()> {
    let Some(rank) = names.iter().position(|n| *n != names[0]) else { return Ok(()) };
    let [first, other] = [0, rank].map(|r| String::from_utf8_lossy(&names[r]).into_owned());
    let text = format!("rank 0 has the tuners \"{first}\", rank {rank} has \"{other}\"");
    Err(Error::invalid_usage(text).remedy("give all ranks the same NCCL_TUNER_PLUGIN, readable everywhere"))
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

/// Settings of the planner, before anything is known of the other ranks.
fn knobs(device: &dyn Device, settings: &Settings, config: &Config) -> Result<Knobs> {
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
    Ok(knobs)
}

/// Lowers lanes, then slots, until the heap stays within its budget.
fn fit(knobs: &mut Knobs, ranks: u32, local: u32) {
    let is_over = |knobs: &Knobs| HeapLayout::new(ranks, local, knobs).heap_bytes() > HEAP_BUDGET;
    while knobs.lanes > MIN_LANES && is_over(knobs) {
        knobs.lanes -= 1;
    }
    while knobs.slot_bytes[2] > 4096 && is_over(knobs) {
        knobs.slot_bytes = knobs.slot_bytes.map(|b| b / 2);
    }
}

//! The decisions that all ranks of a communicator make together at bring-up: who is where, which net joins
//! the hosts, what the tuners are, and the planner's settings. Every decision follows from records that all
//! ranks exchange, so all decide alike.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use hawser_base::env::{self, Settings};
use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_base::wait::Wait;
use hawser_device::pool::GRANULARITY;
use hawser_device::{Device, HeapKind, size_text};
use hawser_kernels_abi::MAX_BLOCKS;
use hawser_oob::wire::Wire;
use hawser_plan::config::{MIN_LANES, NET_LL_BYTES, NET_SLOT_BYTES, OWN_NIC_SLOT_BYTES};
use hawser_plan::executor::fused;
use hawser_plan::executor::fused::zero_copy;
use hawser_plan::layout::HeapLayout;
use hawser_plan::topology::DeviceKind;
use hawser_plan::{PlanConfig, Routes, Topology, reproducible};
use hawser_plugin::net::NetConfig;
use serde::{Deserialize, Serialize};

use super::peer_info::{self, Agreement, PeerInfo, agree};
use crate::bootstrap::Bootstrap;
use crate::comm::config::Config;
use crate::comm::link_constants;
use crate::comm::programs::{self, Programs};
use crate::plugins;
use crate::record::{self, SharedRecord};
use crate::rules_update::Known;
use crate::transport::net::{self, ChosenNet, NetRecord};
use crate::tuning::Tuners;
use crate::tuning::tuners;

/// Device memory that the FIFOs of one communicator may take, in bytes per rank.
const HEAP_BUDGET: u64 = 71 << 20;
/// The same where copy engines move what is large: they have staging.
const SM_FREE_HEAP_BUDGET: u64 = 31 << 20;
/// The same where slots cross a network: eight lanes for eight ranks of a host, and as many for messages; 16
/// where ranks have NICs of their own.
const NET_HEAP_BUDGET: u64 = 193 << 20;

/// The result of the negotiation.
pub struct Decided {
    /// Control connections to the other ranks.
    pub bootstrap: Arc<Bootstrap>,
    /// The places of the ranks, and what joins them.
    pub topology: Topology,
    /// Settings of the planner.
    pub plan_config: PlanConfig,
    /// Process of each rank.
    pub processes: Vec<u64>,
    /// Buffers of captured calls are mapped by all ranks, each in a process of its own.
    pub to_graphs: bool,
    /// The kind of memory that heaps lie in.
    pub heap: HeapKind,
    /// A number that names the communicator, equal on all ranks.
    pub comm_id: u64,
    /// Tuner plugins, the same on all ranks.
    pub tuners: Arc<Tuners>,
    /// The versions of the watched files that the tuners have read, until somebody takes them.
    pub known: Option<Known>,
    /// The net that joins the hosts, if there are several.
    pub chosen: Option<ChosenNet>,
}

/// Decides with all other ranks. `step` starts the clock of a named step.
pub fn decide(
    bootstrap: Arc<Bootstrap>,
    device: &dyn Device,
    config: &Config,
    step: &dyn Fn(&str) -> Wait,
) -> Result<Decided> {
    let settings = env::settings();
    let caps = device.caps();
    let mut plan_config = plan_config(caps.kind, settings, config)?;
    let own = PeerInfo::new(device, settings, &plan_config, (config.host.as_deref(), config.process));
    let peer_infos = bootstrap.all_gather(&own.encode(), &step("agreement"))?;
    let peer_infos: Vec<PeerInfo> =
        peer_infos.iter().enumerate().map(|(r, c)| PeerInfo::decode(c, r)).collect::<Result<_>>()?;
    let room = peer_info::room(&peer_infos);
    limit_ctas(&mut plan_config, &peer_infos);
    let Agreement { mut topology, processes, heap, comm_id } = agree(&peer_infos, settings.multi_rank_gpu)?;
    let chosen = agree_on_net(&bootstrap, device, config, (&mut topology, &mut plan_config), comm_id, step)?;
    let to_graphs = agree_on_links(&bootstrap, device, &mut topology, (&plan_config, &processes), step)?;
    let programs = programs::load(settings, topology.size());
    let most_slots = if topology.hosts() > 1 { net::MOST_SLOTS } else { hawser_msccl::MOST_SLOTS };
    programs.take(&mut plan_config, most_slots);
    let known = Known::now(settings);
    let tuners = Tuners::open(comm_id, &topology, &plan_config, config.name.as_deref());
    compare_shared(&bootstrap, &tuners, &programs, step)?;
    // Rules that count are equal on all ranks by now.
    plan_config.copy_engines = settings.dma_enable && tuners.wants_copy_engines();
    fit(&mut plan_config, topology.size(), topology.places().1, programs.lanes());
    plan_config.late_parts &= heap == HeapKind::Device;
    fit_room(&mut plan_config, &topology, room, programs.lanes())?;
    let (tuners, known) = (Arc::new(tuners), Some(known));
    Ok(Decided {
        bootstrap,
        topology,
        plan_config,
        processes,
        to_graphs,
        heap,
        comm_id,
        tuners,
        known,
        chosen,
    })
}

/// Opens the net that all ranks have, if there are several hosts.
fn agree_on_net(
    bootstrap: &Bootstrap,
    device: &dyn Device,
    config: &Config,
    (topology, plan_config): (&mut Topology, &mut PlanConfig),
    comm_id: u64,
    step: &dyn Fn(&str) -> Wait,
) -> Result<Option<ChosenNet>> {
    if topology.hosts() == 1 {
        tell_unused_net(config);
        return Ok(None);
    }
    let mut net_config = NetConfig::new(comm_id, log::for_plugins());
    net_config.traffic_class = config.traffic_class;
    net_config.profiler = Some(net::report);
    let wanted = config.net.as_deref();
    choose_net(&net_config, wanted, device, bootstrap, topology, plan_config, &step("net")).map(Some)
}

/// Logs the net that the user asked for, where ranks need none.
fn tell_unused_net(config: &Config) {
    if config.net.is_none() && env::settings().net.is_none() {
        return;
    }
    log::info(Subsys::Init, || {
        match plugins::nets(config.net.as_deref()).map(|nets| nets.into_iter().next()) {
            Ok(Some(first)) => {
                format!("Using network {} between hosts; all ranks are on one", first.net.plugin.name())
            }
            Ok(None) => "no network between hosts; all ranks are on one".to_owned(),
            Err(error) => format!("no network between hosts; all ranks are on one: {error}"),
        }
    });
}

/// The links of a rank, as it tells the others.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct OfLinks {
    /// The constants that it offers.
    constants: Vec<u8>,
    /// It reaches the buffers of all others.
    direct: bool,
    /// It maps buffers of captured calls.
    to_graphs: bool,
}

/// Takes rank 0's constants of the links, and finds out whether all ranks reach each other's buffers. Returns
/// whether all map buffers of captured calls, each in a process of its own.
fn agree_on_links(
    bootstrap: &Bootstrap,
    device: &dyn Device,
    topology: &mut Topology,
    (plan_config, processes): (&PlanConfig, &[u64]),
    step: &dyn Fn(&str) -> Wait,
) -> Result<bool> {
    let settings = env::settings();
    let offers = link_constants::offer(bootstrap.rank(), settings, &device.caps().name, topology);
    let direct = settings.direct
        && zero_copy::is_wanted(topology, plan_config, processes)
        && reaches_all(device, topology)?;
    let own = OfLinks { constants: offers, direct, to_graphs: settings.graph_register && settings.direct };
    let records = bootstrap.all_gather(&record::encode(&own), &step("links"))?;
    let records = record::decode_all::<OfLinks>(&records, "record of its links")?;
    link_constants::take(&records[0].constants, topology)?;
    topology.direct = records.iter().all(|record| record.direct);
    let are_apart = processes.iter().collect::<HashSet<_>>().len() == processes.len();
    Ok(are_apart && records.iter().all(|record| record.to_graphs))
}

/// Compares what tuners and imported programs need to have in common; both go round together.
fn compare_shared(
    bootstrap: &Bootstrap,
    tuners: &Tuners,
    programs: &Programs,
    step: &dyn Fn(&str) -> Wait,
) -> Result<()> {
    let own = (tuners.shared(), programs.shared());
    let (is_fine, own) = (own.0.is_ok() && own.1.is_ok(), record::encode(&own));
    let records = bootstrap.all_gather(&own, &step("tuners"))?;
    // Each of many ranks would read the same from each of them.
    if is_fine && records.iter().all(|record| *record == own) {
        return Ok(());
    }
    let (of_tuners, of_programs): (Vec<SharedRecord>, Vec<SharedRecord>) =
        record::decode_all::<(SharedRecord, SharedRecord)>(&records, "record of its tuners and programs")?
            .into_iter()
            .unzip();
    tuners::check(&of_tuners)?;
    programs::check(&of_programs)
}

/// The topology and the settings of a communicator whose ranks have these devices of this process, without
/// making one.
///
/// # Errors
/// A device cannot be opened, or settings are wrong.
pub fn outlook(ordinals: &[u32]) -> Result<(Topology, PlanConfig)> {
    let settings = env::settings();
    let devices = ordinals.iter().map(|&ordinal| hawser_device::open(ordinal)).collect::<Result<Vec<_>>>()?;
    let Some(first) = devices.first() else { return Err(Error::invalid_argument("no devices")) };
    let caps = first.caps();
    let mut plan_config = plan_config(caps.kind, settings, &Config::default())?;
    let peer_info = |device: &Arc<dyn Device>| PeerInfo::new(&**device, settings, &plan_config, (None, None));
    let peer_infos: Vec<PeerInfo> = devices.iter().map(peer_info).collect();
    let Agreement { mut topology, processes, .. } = agree(&peer_infos, settings.multi_rank_gpu)?;
    limit_ctas(&mut plan_config, &peer_infos);
    link_constants::take(&link_constants::offer(0, settings, &caps.name, &topology), &mut topology)?;
    topology.direct = settings.direct && zero_copy::is_wanted(&topology, &plan_config, &processes);
    for device in &devices {
        topology.direct = topology.direct && reaches_all(device.as_ref(), &topology)?;
    }
    if topology.hosts() > 1 {
        limit_to_network(&mut plan_config, &topology, settings.wire);
    }
    finish(&mut plan_config, &topology, settings)?;
    Ok((topology, plan_config))
}

/// The settings that ranks of `topology` would have, on devices that need not be here. Where this machine has
/// such a device, the processors, the memory and the net of this machine are taken for those of every host,
/// and, if `measured`, the constants that a job here would take.
///
/// # Errors
/// Settings are wrong.
pub fn plan_config_of(topology: &mut Topology, measured: bool) -> Result<PlanConfig> {
    let settings = env::settings();
    let mut plan_config = plan_config(topology.device, settings, &Config::default())?;
    let here = hawser_device::open(0)
        .inspect_err(|error| {
            log::info(Subsys::Tuning, || format!("the devices of this machine are left aside: {error}"));
        })
        .ok()
        .filter(|device| device.caps().kind == topology.device);
    if topology.hosts() > 1 {
        limit_to_network(&mut plan_config, topology, settings.wire);
    }
    topology.direct &= settings.direct;
    let mut room = u64::MAX;
    if let Some(device) = &here {
        let own = PeerInfo::new(&**device, settings, &plan_config, (None, None));
        let own = vec![own; topology.most_on_a_device()];
        limit_ctas(&mut plan_config, &own);
        room = peer_info::room(&own);
        topology.queues = device.caps().queues;
        if topology.hosts() > 1 {
            net_of_here(&**device, topology, &mut plan_config)?;
        }
        if measured {
            link_constants::take(
                &link_constants::offer(0, settings, &device.caps().name, topology),
                topology,
            )?;
        }
    }
    let least_lanes = finish(&mut plan_config, topology, settings)?;
    fit_room(&mut plan_config, topology, room, least_lanes)?;
    Ok(plan_config)
}

/// The settings that ranks of `topology` would have on machines that are not here, whose devices run at most
/// `most_ctas` CTAs at once: those of the environment, and nothing else of this machine.
///
/// # Errors
/// Settings are wrong.
pub fn plan_config_elsewhere(topology: &Topology, most_ctas: u32) -> Result<PlanConfig> {
    let settings = env::settings();
    let mut plan_config = plan_config(topology.device, settings, &Config::default())?;
    if topology.hosts() > 1 {
        limit_to_network(&mut plan_config, topology, settings.wire);
        limit_to_nics(&mut plan_config, topology);
    }
    plan_config.max_ctas = plan_config.max_ctas.min(most_ctas.max(1));
    plan_config.min_ctas = plan_config.min_ctas.min(plan_config.max_ctas);
    finish(&mut plan_config, topology, settings)?;
    Ok(plan_config)
}

/// Takes the net that a job on this machine would choose, if there is one.
fn net_of_here(device: &dyn Device, topology: &mut Topology, plan_config: &mut PlanConfig) -> Result<()> {
    let settings = env::settings();
    let with_collnet = settings.collnet && topology.per_host().is_some() && !settings.wire.is_sealed();
    let net_config = NetConfig::new(1, log::for_plugins());
    match ChosenNet::open(&net_config, None, device, with_collnet, settings.wire) {
        Ok(chosen) => {
            let agreed = net::agree(&[record::encode(&chosen.record())], |_| 0)?;
            take_net(&agreed, &chosen.name, (topology, plan_config))
        }
        Err(error) => {
            log::info(Subsys::Net, || format!("without a net of this machine: {error}"));
            Ok(())
        }
    }
}

/// The names of the programs that the user brought, which `NCCL_ALGO` may have among its words.
pub fn program_names() -> Vec<String> {
    programs::names(env::settings())
}

/// Completes the settings for a topology that no ranks have met in. Returns the lanes that programs need.
fn finish(plan_config: &mut PlanConfig, topology: &Topology, settings: &Settings) -> Result<u32> {
    let far = topology.hosts() > 1;
    let programs = programs::load(settings, topology.size());
    programs::check(&[programs.shared()])?;
    programs.take(plan_config, if far { net::MOST_SLOTS } else { hawser_msccl::MOST_SLOTS });
    fit(plan_config, topology.size(), topology.places().1, programs.lanes());
    Ok(programs.lanes())
}

/// True if this rank's device and those of all ranks, in this process, use each other's memory from now on.
fn reaches_all(device: &dyn Device, topology: &Topology) -> Result<bool> {
    let ids: Vec<&str> = topology.ranks.iter().map(|rank| rank.device.as_str()).collect();
    device.kernels().map_or(Ok(false), |kernels| kernels.reach_all(&ids))
}

/// The file in which `hawser measure` leaves its constants for so many ranks of a host on a device of this
/// name.
pub fn cache_file(device: &str, ranks: u32) -> Option<PathBuf> {
    link_constants::cache_file(env::settings(), device, ranks)
}

/// Opens this rank's net and checks that it is everybody's.
fn choose_net(
    net_config: &NetConfig,
    asked: Option<&str>,
    device: &dyn Device,
    bootstrap: &Bootstrap,
    topology: &mut Topology,
    plan_config: &mut PlanConfig,
    wait: &Wait,
) -> Result<ChosenNet> {
    let wire = bootstrap.wire();
    // A network that reduces has to read what it reduces.
    let with_collnet = env::settings().collnet && topology.per_host().is_some() && !wire.is_sealed();
    let chosen = ChosenNet::open(net_config, asked, device, with_collnet, wire);
    // The others wait for this rank's record, also if it has no net.
    let own = chosen.as_ref().map_or_else(NetRecord::none, ChosenNet::record);
    let records = bootstrap.all_gather(&record::encode(&own), wait)?;
    let mut chosen = chosen?;
    let host_of = |rank: u32| topology.ranks.get(rank as usize).map_or(0, |info| info.host);
    let agreed = net::agree(&records, host_of)?;
    if agreed.collnet == 0 {
        chosen.without_collnet();
    }
    limit_to_network(plan_config, topology, wire);
    take_net(&agreed, &chosen.name, (topology, plan_config))?;
    Ok(chosen)
}

/// Takes what the net of all ranks can do: its speed, its largest message, its own reductions.
fn take_net(
    agreed: &net::Agreed,
    name: &str,
    (topology, plan_config): (&mut Topology, &mut PlanConfig),
) -> Result<()> {
    (topology.net_mbps, topology.rank_mbps) = (agreed.host_mbps, agreed.rank_mbps);
    topology.collnet = agreed.collnet;
    limit_to_nics(plan_config, topology);
    let most = u32::try_from(agreed.most_bytes).unwrap_or(u32::MAX);
    let most = most.saturating_sub(plan_config.slot_lead) & !511;
    if most < 512 {
        let text = format!("net {name} sends at most {} bytes at once, 512 are needed", agreed.most_bytes);
        return Err(Error::invalid_usage(text));
    }
    plan_config.slot_bytes[2] = plan_config.slot_bytes[2].min(most);
    plan_config.slot_bytes[0] = plan_config.slot_bytes[0].min((most / 2) & !511);
    plan_config.message_bytes = most.into();
    Ok(())
}

/// Slots are smaller, and so there are more FIFOs, where ranks have NICs of their own.
fn limit_to_nics(plan_config: &mut PlanConfig, topology: &Topology) {
    if topology.has_own_nics() && env::settings().buffsize.is_none() {
        plan_config.slot_bytes[2] = plan_config.slot_bytes[2].min(OWN_NIC_SLOT_BYTES);
    }
}

/// Only LL and Simple cross a network, and a slot is one message. A GPU reads LL's words as they arrive, so
/// they have to be the sender's from the first: neither sealed, nor still to be compared with a checksum.
fn limit_to_network(plan_config: &mut PlanConfig, topology: &Topology, wire: Wire) {
    let settings = env::settings();
    let simple = if settings.buffsize.is_some() { plan_config.slot_bytes[2] } else { NET_SLOT_BYTES };
    let carries_ll = topology.reads_words_as_they_arrive() && !wire.is_sealed() && !settings.checksum;
    plan_config.slot_bytes = [if carries_ll { NET_LL_BYTES } else { 0 }, 0, simple];
    plan_config.slot_lead = if settings.checksum { net::LEAD } else { 0 };
    plan_config.depth = plan_config.depth.min(net::MOST_SLOTS);
}

/// Settings of the planner, before anything is known of the other ranks.
fn plan_config(device: DeviceKind, settings: &Settings, config: &Config) -> Result<PlanConfig> {
    let mut plan_config = PlanConfig::for_device(device);
    if let Some(bytes) = settings.buffsize {
        let slot = (bytes / u64::from(plan_config.depth)).clamp(512, 4 << 20) & !511;
        plan_config.slot_bytes[2] = slot as u32;
    }
    (plan_config.pass_sm, plan_config.staging_bytes) = (pass_sm(settings, config)?, settings.staging_bytes);
    if plan_config.pass_sm > 0 && settings.buffsize.is_none() {
        plan_config.leave_room_for_staging(device);
    }
    plan_config.reducing_ctas = settings.reducing_ctas.unwrap_or(plan_config.reducing_ctas);
    plan_config.fuse = settings.fuse;
    plan_config.reproducible = settings.reproducible.unwrap_or(config.reproducible).min(reproducible::MOST);
    plan_config.late_parts = settings.runtime_connect;
    plan_config.relays = settings.pxn_disable != Some(true);
    let most = MAX_BLOCKS as u32;
    plan_config.max_ctas = settings.max_ctas.or(config.max_ctas).unwrap_or(most).clamp(1, most);
    plan_config.min_ctas = settings.min_ctas.or(config.min_ctas).unwrap_or(1).clamp(1, plan_config.max_ctas);
    if let Some(text) = &settings.algo {
        let masks = PlanConfig::parse_algo_with(text, &programs::names(settings));
        plan_config.algorithms = masks?;
    }
    if let Some(text) = &settings.proto {
        for (old, new) in PlanConfig::old_protos(text) {
            log::info(Subsys::Init, || format!("NCCL_PROTO: {old} is written {new} now"));
        }
        plan_config.routes = PlanConfig::parse_proto(text)?;
    } else if plan_config.pass_sm > 0 {
        // What is large enough for tiles is moved by copy engines.
        leave_out(&mut plan_config, fused::tile_routes());
    }
    Ok(plan_config)
}

/// Limits the CTAs of a rank to those that run at once.
fn limit_ctas(plan_config: &mut PlanConfig, peer_infos: &[PeerInfo]) {
    plan_config.max_ctas = plan_config.max_ctas.min(peer_info::most_ctas(peer_infos));
    plan_config.min_ctas = plan_config.min_ctas.min(plan_config.max_ctas);
}

/// Lowers lanes, but not below what programs need, then slots, until the heap stays within its budget.
fn fit(plan_config: &mut PlanConfig, ranks: u32, local: u32, least_lanes: u32) {
    let budget = match plan_config.pass_sm {
        _ if local < ranks => NET_HEAP_BUDGET,
        0 => HEAP_BUDGET,
        _ => SM_FREE_HEAP_BUDGET,
    };
    let is_over = |plan_config: &PlanConfig| HeapLayout::new(ranks, local, plan_config).heap_bytes() > budget;
    while plan_config.lanes > MIN_LANES.max(least_lanes) && is_over(plan_config) {
        plan_config.lanes -= 1;
    }
    while plan_config.slot_bytes[2] > 4096 && is_over(plan_config) {
        plan_config.slot_bytes = plan_config.slot_bytes.map(|b| b / 2);
    }
}

/// `NCCL_PASS_SM`, or what the communicator's own options ask for, if `NCCL_DMA_ENABLE` lets copy engines
/// move data.
fn pass_sm(settings: &Settings, config: &Config) -> Result<u8> {
    match settings.pass_sm.max(settings.no_ctas.unwrap_or(config.sm_free).into()) {
        level if settings.dma_enable || level == 0 => Ok(level),
        1 => {
            log::warn("NCCL_PASS_SM=1 has no effect: NCCL_DMA_ENABLE=0 forbids copy engines");
            Ok(0)
        }
        level => {
            let text = format!("NCCL_PASS_SM={level} needs copy engines, NCCL_DMA_ENABLE=0 forbids them");
            Err(Error::invalid_usage(text).remedy("take one of the two back"))
        }
    }
}

/// Lowers staging, lanes, fused kernels and slots until a rank's memory fits what is left under
/// `NCCL_CUMEM_MAX_SIZE` on the poorest rank.
fn fit_room(plan_config: &mut PlanConfig, topology: &Topology, room: u64, least_lanes: u32) -> Result<()> {
    /// The bytes of tables and counters, for which the pool may need a segment of its own.
    const TABLES: u64 = 2 * GRANULARITY;
    /// Smaller staging slots are slower than FIFOs with fewer lanes.
    const USEFUL_SLOT: u64 = 256 << 10;
    // Where memory is limited, what is agreed on now must be there later as well.
    plan_config.late_parts &= room == u64::MAX;
    let layout = |plan_config: &PlanConfig| HeapLayout::of(topology, plan_config);
    let need =
        |plan_config: &PlanConfig| layout(plan_config).heap_bytes().next_multiple_of(GRANULARITY) + TABLES;
    while need(plan_config) > room {
        let halved = |least| layout(plan_config).staging.and_then(|staging| staging.halved(least));
        if let Some(bytes) = halved(USEFUL_SLOT) {
            plan_config.staging_bytes = bytes;
        } else if plan_config.lanes > MIN_LANES.max(least_lanes) {
            plan_config.lanes -= 1;
        } else if layout(plan_config).area.is_some() {
            leave_out(plan_config, fused::area_routes());
        } else if plan_config.slot_bytes[2] > 4096 {
            plan_config.slot_bytes = plan_config.slot_bytes.map(|bytes| bytes / 2);
        } else if let Some(bytes) = halved(0) {
            plan_config.staging_bytes = bytes;
        } else {
            let text = format!(
                "a communicator of {} ranks needs {} of device memory at least, NCCL_CUMEM_MAX_SIZE leaves \
                 {} on one of them",
                topology.size(),
                size_text(need(plan_config)),
                size_text(room)
            );
            return Err(
                Error::invalid_usage(text).remedy("raise it, or destroy communicators that are not needed")
            );
        }
    }
    Ok(())
}

/// Removes routes from those that may be chosen.
fn leave_out(plan_config: &mut PlanConfig, routes: Routes) {
    plan_config.routes = plan_config.routes.map(|some| Some(some.unwrap_or(Routes::ALL).without(&routes)));
}

#[cfg(test)]
mod tests {
    use hawser_plan::topology::Link;

    use super::*;

    fn bytes(topology: &Topology, plan_config: &PlanConfig) -> u64 {
        HeapLayout::of(topology, plan_config).heap_bytes()
    }

    /// With tables and what the driver rounds up: 200 MiB, and 300 where copy engines move.
    #[test]
    fn eight_ranks_take_what_was_promised() {
        let topology = Topology::single_host(8, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
        for (sm_free, least, limit) in [(false, 9, 196), (true, 8, 294)] {
            let config = Config { sm_free, ..Config::default() };
            let mut plan_config = plan_config(topology.device, env::settings(), &config).unwrap();
            fit(&mut plan_config, 8, 8, 0);
            let found = bytes(&topology, &plan_config);
            let lanes = plan_config.lanes;
            assert!(lanes >= least && found <= limit << 20, "{sm_free}: {found}, {lanes} lanes");
        }
    }

    #[test]
    fn memory_fits_what_is_left_or_the_limit_is_named() {
        let topology = Topology::single_host(8, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
        let mut full = PlanConfig { pass_sm: 1, ..PlanConfig::default() };
        leave_out(&mut full, fused::tile_routes());
        fit(&mut full, 8, 8, 0);
        let unlimited = bytes(&topology, &full);
        for room in [u64::MAX, 1 << 30, 256 << 20, 128 << 20, 64 << 20, 12 << 20] {
            let mut plan_config = full.clone();
            fit_room(&mut plan_config, &topology, room, 0).unwrap();
            assert!(bytes(&topology, &plan_config) <= room, "{room}");
            assert_eq!(plan_config == full, room > unlimited + (8 << 20), "{room}");
        }
        let error = fit_room(&mut full.clone(), &topology, 1 << 20, 0).unwrap_err();
        assert!(error.text.contains("NCCL_CUMEM_MAX_SIZE leaves 1 MiB"), "{error}");
    }
}

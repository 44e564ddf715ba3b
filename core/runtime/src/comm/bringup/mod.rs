//! Bring-up of a communicator: named steps, each with a deadline.

pub mod negotiate;
pub mod peer_info;

use std::sync::{Arc, Mutex, OnceLock};

use hawser_base::env;
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::files::keep_standard_descriptors;
use hawser_base::log::{self, Subsys};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_device::Device;
use hawser_plan::Topology;
use hawser_plan::executor::copy_engine::{Bases, inter_node};
use hawser_plan::executor::fused::zero_copy;
use hawser_plan::layout::HeapLayout;

use self::negotiate::{Decided, decide};
use super::config::Config;
use super::{hangs, lost_waits};
use crate::bootstrap::{self, Bootstrap, UniqueId};
use crate::classes;
use crate::comm_state::sm_free::{self, SmFree};
use crate::comm_state::{BusyProbe, Choices, CommState, warm_up};
use crate::executor::copy_engine::{CopyEngines, Rendezvous};
use crate::lsa::{self, Lends, Lsa};
use crate::profiling::Profiling;
use crate::progress::journal::{self, Journal};
use crate::rma::{Rma, Sums};
use crate::rules_update::{Epoch, Participant, Place, ServedParticipant, Staged};
use crate::stream_order::Order;
use crate::transport::control::Control;
use crate::transport::net::{Net, Rail, Setup};
use crate::transport::{PeerMemory, Peers};
use crate::tuning::OpTimings;
use crate::tuning::tuner_config;

/// The ways in which a rank meets the others.
pub enum Joining {
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

/// Makes a unique id and starts its meeting point in this process.
pub fn unique_id() -> Result<UniqueId> {
    keep_standard_descriptors();
    env::settings();
    UniqueId::create(&bootstrap::Settings::of_process())
}

/// Brings a communicator up. Collective over its ranks.
pub fn bring_up(
    joining: Joining,
    rank: u32,
    ordinal: u32,
    config: &Config,
    abort: &AbortFlag,
) -> Result<Arc<CommState>> {
    let settings = env::settings();
    settings.check().inspect_err(|error| {
        if let Joining::Ids { ids, .. } = &joining {
            bootstrap::cannot_join(ids, rank, error, &bootstrap::Settings::of_process());
        }
    })?;
    log::version_once();
    log::set_device(ordinal);
    let _span = log::communicator_span(None, config.name.as_deref(), rank).entered();
    let step = |name: &str| {
        log::info(Subsys::Init, || format!("rank {rank}: {name}"));
        Wait::new(abort.clone(), Some(settings.init_timeout()))
    };
    log::info(Subsys::Init, || format!("rank {rank}: bootstrap"));
    let bootstrap = meet(joining, rank, &Wait::new(abort.clone(), Some(settings.join_timeout())))?;
    let bootstrap = Arc::new(bootstrap);
    bootstrap.doom(abort);
    let own = |device| Own { rank, device, config, abort, step: &step };
    let brought = hawser_device::open(ordinal).and_then(|device| own(device).bring_up(bootstrap.clone()));
    brought.map_err(|error| {
        let error = bootstrap.blame(error);
        bootstrap.report(&error);
        error
    })
}

/// The part of a communicator that is this rank's own.
struct Own<'a> {
    rank: u32,
    device: Arc<dyn Device>,
    config: &'a Config,
    abort: &'a AbortFlag,
    /// Starts the clock of a named step.
    step: &'a dyn Fn(&str) -> Wait,
}

/// The ways to the other ranks.
struct Paths {
    layout: HeapLayout,
    peer_memory: PeerMemory,
    net: Option<Net>,
    copy_engines: Option<CopyEngines>,
}

impl Own<'_> {
    /// Carries out all steps of bring-up that follow the meeting of the ranks.
    fn bring_up(self, bootstrap: Arc<Bootstrap>) -> Result<Arc<CommState>> {
        let mut decided = decide(bootstrap, self.device.as_ref(), self.config, self.step)?;
        let name = self.config.name.as_deref();
        let profiling = Profiling::open(decided.comm_id, name, &decided.topology, self.rank);
        let paths = self.connect(&mut decided)?;
        let step = self.step;
        let state = self.assemble(decided, paths, profiling)?;
        make_ready(&state, &step("ready"))?;
        let state = Arc::new(state);
        lost_waits::end_from_first_news(&state);
        hangs::let_be_asked(&state);
        Ok(state)
    }

    /// Opens the ways to the other ranks: memory within the host, the network, and copy engines.
    fn connect(&self, decided: &mut Decided) -> Result<Paths> {
        let (settings, rank) = (env::settings(), self.rank);
        let chosen = decided.chosen.take();
        let Decided { bootstrap, topology, plan_config, processes, heap: kind, .. } = &*decided;
        let (places, layout) = (&topology.places().0[..], HeapLayout::of(topology, plan_config));
        let hosts: Vec<u32> = topology.ranks.iter().map(|r| r.host).collect();
        let hosts = &hosts[..];
        let deadline_ns = settings.op_timeout.map_or(0, |t| t.as_nanos() as u64);
        let peers = Peers { rank, processes, hosts, places, kind: *kind, deadline_ns, abort: self.abort };
        let device = self.device.as_ref();
        let wait = (self.step)("transport");
        let peer_memory = PeerMemory::connect(&self.device, bootstrap, &peers, &layout, &wait)?;
        let net = chosen.map(|chosen| {
            let setup = Setup {
                device: self.device.clone(),
                bootstrap: bootstrap.clone(),
                control: peer_memory.control.clone(),
                layout: &layout,
                home: (self.config.host.as_deref().unwrap_or_default(), self.config.process),
                place: places[rank as usize],
                rail: rail(hosts, places, rank),
                connections: peer_memory.connections(device)?,
                abort: self.abort,
                staged: layout.staging.map(|_| inter_node::slot_bytes(topology, plan_config)),
            };
            Net::start(chosen, setup, settings)
        });
        let net = net.transpose()?;
        let copies = |bases: &Bases| {
            let wait = (self.step)("direct copies");
            let rendezvous = Rendezvous::connect(device, bootstrap, &peers, self.abort, &wait)?;
            let stage = net.as_ref().and_then(Net::stage).cloned();
            let ends = (rendezvous, stage);
            CopyEngines::new(bases.clone(), ends, &self.device, &peer_memory.control, self.is_host())
        };
        let copy_engines = peer_memory.staging().map(copies).transpose()?;
        Ok(Paths { layout, peer_memory, net, copy_engines })
    }

    /// Puts the communicator together from what was decided and connected.
    fn assemble(self, mut decided: Decided, paths: Paths, profiling: Profiling) -> Result<CommState> {
        let (settings, config) = (env::settings(), self.config);
        let name = config.name.clone().unwrap_or_else(|| "world".into());
        let control = &paths.peer_memory.control;
        let times = OpTimings::new(&self.device, decided.tuners.wants().times);
        let epoch = Arc::<Epoch<Staged>>::default();
        let mixes_graphs = settings.mixes_graphs.or(config.mixes_graphs).unwrap_or(true);
        let order = Arc::new(Order::new(paths.peer_memory.done(), mixes_graphs));
        let (lsa, with_windows) = self.windows(&decided, &paths.peer_memory, &order);
        let lsa = Arc::new(lsa);
        let participant = self.participant(&mut decided, &name, control, (&epoch, &times, &lsa))?;
        let journal = self.journal(&decided, &name);
        let rma = self.one_sided(&decided, control, paths.net.as_ref())?;
        let is_load_store = self.is_load_store(&decided);
        let Decided { bootstrap, topology, plan_config, comm_id, tuners, .. } = decided;
        let Paths { layout, peer_memory, net, copy_engines } = paths;
        Ok(CommState {
            rank: self.rank,
            topology,
            plan_config,
            layout,
            name,
            comm_id,
            epoch,
            participant,
            profiling: Arc::new(profiling),
            journal,
            asked: OnceLock::new(),
            counted: OnceLock::new(),
            bootstrap,
            net,
            busy_probe: BusyProbe::new(&*self.device)?,
            device: self.device,
            order,
            peer_memory,
            abort: self.abort.clone(),
            programs: Default::default(),
            choices: Mutex::new(Choices::new(tuners)),
            scratch: Default::default(),
            next_batch: Default::default(),
            broken: Default::default(),
            class: classes::Setting::new(settings.class.or(config.class)),
            copy_engines,
            sm_free: SmFree::new(settings.sm_free_verbose),
            windows: Default::default(),
            rma,
            lsa,
            with_windows,
            stream_ops: Default::default(),
            stream_watch: Default::default(),
            kernel_network: Default::default(),
            is_load_store,
            times,
            suspended: Default::default(),
            remains: Default::default(),
            alive: Arc::default(),
        })
    }

    /// This rank's part in changes of rules; None where it is alone.
    fn participant(
        &self,
        decided: &mut Decided,
        name: &str,
        control: &Arc<Control>,
        (epoch, times, lsa): (&Arc<Epoch<Staged>>, &Arc<OpTimings>, &Arc<Lsa>),
    ) -> Result<Option<ServedParticipant>> {
        let known = decided.known.take();
        let Decided { bootstrap, topology, plan_config, comm_id, tuners, .. } = &*decided;
        let place = Place {
            comm_id: *comm_id,
            name: name.to_owned(),
            bootstrap: bootstrap.clone(),
            control: control.clone(),
            abort: self.abort.clone(),
            tuners: tuners.clone(),
            config: tuner_config(*comm_id, topology, plan_config, self.config.name.as_deref()),
            epoch: epoch.clone(),
            times: times.clone(),
            lsa: lsa.clone(),
            limit: env::settings().rules_timeout,
        };
        let known = known.filter(|_| topology.size() > 1);
        known.map(|known| ServedParticipant::new(Participant::new(place, known))).transpose()
    }

    /// The journal of this rank, which other processes read.
    fn journal(&self, decided: &Decided, name: &str) -> Journal {
        let (roster, ranks) = (decided.bootstrap.roster(), decided.topology.size());
        let world = roster.members().get(self.rank as usize).map_or(self.rank, |own| own.world);
        let place = journal::Place { rank: self.rank, ranks, world };
        Journal::new(decided.comm_id, name, place, self.is_host())
    }

    /// The part for one-sided operations, which other ranks may ask from now on.
    fn one_sided(&self, decided: &Decided, control: &Arc<Control>, net: Option<&Net>) -> Result<Rma> {
        let Decided { bootstrap, topology, plan_config, processes, comm_id, .. } = decided;
        let near = is_near(topology, processes, self.rank as usize);
        let sums = if plan_config.slot_lead > 0 { Sums::Yes } else { Sums::No };
        let (limits, inbox) = ((self.config.rma, sums), net.map(|net| net.put_way().inbox()));
        Rma::open(bootstrap, *comm_id, near, limits, (&self.device, control), inbox)
    }

    /// True if each rank loads and stores the buffers of all others: they are in one process, whose devices
    /// reach each other's ordinary memory.
    fn is_load_store(&self, decided: &Decided) -> bool {
        let Decided { topology, processes, .. } = decided;
        let is_one_process = topology.hosts() == 1 && processes.windows(2).all(|pair| pair[0] == pair[1]);
        is_one_process && (self.is_host() || topology.direct)
    }

    /// The windows for kernels of the user; and the topology of calls once there are windows that kernels of
    /// all ranks reach, if that makes a difference.
    fn windows(
        &self,
        decided: &Decided,
        peer_memory: &PeerMemory,
        order: &Arc<Order>,
    ) -> (Lsa, Option<Topology>) {
        let Decided { bootstrap, topology, plan_config, processes, .. } = decided;
        let hosts: Vec<u32> = topology.ranks.iter().map(|rank| rank.host).collect();
        let missing = lsa::missing(&*self.device, peer_memory);
        let team = match missing {
            None => lsa::Team::of(self.rank, &hosts, processes),
            Some(_) => lsa::Team::alone(self.rank),
        };
        let is_lent = missing.is_none()
            && team.ranks() == topology.size()
            && !topology.direct
            && env::settings().direct
            && zero_copy::is_possible(topology, plan_config);
        let with_windows = is_lent.then(|| Topology { direct: true, ..topology.clone() });
        let is_apart = (0..).zip(&team.is_elsewhere).all(|(rank, elsewhere)| *elsewhere || rank == team.rank);
        let lends = Lends {
            to_collectives: is_lent,
            to_graphs: is_lent && decided.to_graphs,
            registered: is_lent && is_apart && env::settings().local_register,
        };
        (Lsa::new(team, (&self.device, bootstrap), missing, lends, order.clone()), with_windows)
    }

    /// True if the device is the host's CPU.
    fn is_host(&self) -> bool {
        self.device.kernels().is_none()
    }
}

/// Tells for each rank whether it is in this rank's process and counts as a rank of its host.
fn is_near(topology: &Topology, processes: &[u64], rank: usize) -> Vec<bool> {
    let is_near = |peer: usize| {
        processes[peer] == processes[rank] && topology.ranks[peer].host == topology.ranks[rank].host
    };
    (0..processes.len()).map(is_near).collect()
}

/// The last step: nothing is left to load, and all ranks are there.
fn make_ready(state: &CommState, wait: &Wait) -> Result<()> {
    warm_up(state)?;
    state.device.pool().fill()?;
    state.bootstrap.barrier(wait)?;
    log::info(Subsys::Init, || announcement(state));
    if state.plan_config.pass_sm > 0 || state.plan_config.copy_engines {
        log::info(Subsys::Init, || sm_free::announcement(state));
    }
    Ok(())
}

/// The control connections to the other ranks.
fn meet(joining: Joining, rank: u32, wait: &Wait) -> Result<Bootstrap> {
    match joining {
        Joining::Ids { ids, nranks } => {
            let joined = Bootstrap::join(&ids, rank, nranks, &bootstrap::Settings::of_process(), wait);
            joined.inspect_err(|error| release_root(error, &ids))
        }
        Joining::Child { bootstrap } => Ok(*bootstrap),
    }
}

/// The ranks with this rank's place on every host, where every host has one.
fn rail(hosts: &[u32], places: &[u32], rank: u32) -> Option<Rail> {
    let place = places[rank as usize];
    let of_place = (0..).zip(places).filter(|(_, p)| **p == place);
    let mut ranks: Vec<u32> = of_place.map(|(rank, _)| rank).collect();
    ranks.sort_by_key(|rank| hosts[*rank as usize]);
    let own = ranks.iter().position(|r| *r == rank)?;
    let host_count = hosts.iter().max().map_or(0, |h| h + 1);
    (ranks.len() as u32 == host_count).then_some(Rail { ranks, own })
}

fn announcement(state: &CommState) -> String {
    let (size, link, device) = (state.topology.size(), state.topology.link, &state.device.caps().name);
    let (lanes, memory) = (state.layout.lanes, state.memory_bytes() >> 10);
    format!(
        "{} rank {} of {size} up on {device}: {link:?}, {lanes} lanes, {memory} KiB",
        state.name, state.rank
    )
}

/// Tells the root of a rank that was aborted not to wait for it: the rank may not have reached its root,
/// which would wait as long as this process lives.
fn release_root(error: &Error, ids: &[UniqueId]) {
    if error.kind == ErrorKind::Aborted {
        for id in ids {
            bootstrap::stop_root(id);
        }
    }
}

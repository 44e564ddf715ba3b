//! The net transport: FIFOs between ranks that share no memory, carried by a net plugin.
//!
//! A connection is made when a launch first needs it ([`Net::want`]): both ends derive from the program which
//! lanes and peers it uses, so nobody has to ask. The receiver listens and sends its handle over the
//! bootstrap; everything else happens in the proxy, so no call waits for a peer to connect.
//!
//! When a connection fails, the communicator fails on this rank, and all other ranks are told over the
//! bootstrap. A rank that goes in peace says goodbye first, so that its closing connections are no failure,
//! and stays until all that it sent has come.

mod arena;
mod checksum;
mod coll;
mod drain;
mod end;
mod events;
mod fifo;
mod flags;
mod helper;
mod lending;
mod link;
mod links;
mod loss;
mod nic;
mod opening;
mod put_way;
mod puts;
mod recorder;
mod speeds;
mod stage;
mod task;
mod teller;
mod user_buffers;

pub use checksum::LEAD;
pub use coll::Rail;
pub use end::ConnectionKey;
pub use events::report;
pub use fifo::MOST_SLOTS;
pub use helper::Helper;
pub use put_way::{Announced, Inbox, PutWay, Windows, outcome};
pub use puts::{Area, Landing, Outgoing, Record, Ticket};
pub use recorder::EventRecorder;
pub use stage::Stage;

use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_base::env::{self, Settings};
use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_base::log::{self, Subsys};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_device::Device;
use hawser_kernels_abi::Conn;
use hawser_oob::wire::{self, Wire};
use hawser_plan::Class;
use hawser_plan::layout::HeapLayout;
use hawser_plugin::net::{Flows, NetAttributes, NetConfig, NetContext};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use super::control::Control;
use super::{ConnectionTable, bytes_of};
use crate::bootstrap::Bootstrap;
use crate::planted::{Bug, is_planted};
use crate::plugins;
use crate::profiling::Span;
use crate::progress::stall::Stall;
use crate::proxy::{Proxy, Task};
use crate::record;
use arena::{Arena, Piece};
use checksum::Checksum;
use coll::{CollLink, CollNet};
use fifo::Fifo;
use lending::{Lending, Offered};
use link::{RailFigures, RecvLink, SendLink};
use nic::Nics;
use speeds::Speeds;
use task::NetTask;

/// The time for which a destroy waits for data that are on their way, unless `HAWSER_OP_TIMEOUT` says
/// otherwise.
const DRAIN: Duration = Duration::from_secs(60);
/// The time after which a receiver that does not take its data is looked for, and that the search may take.
pub const LOOK: Duration = Duration::from_millis(500);
/// The time that sending a goodbye to one rank may take.
const GOODBYE: Duration = Duration::from_millis(500);
/// The longest time that a rank which leaves stays until others have received what it sent.
const PATIENCE: Duration = Duration::from_secs(10);

/// A net plugin that was chosen for a communicator, before connections are possible.
pub struct ChosenNet {
    /// The plugin's name.
    pub name: String,
    context: Box<dyn NetContext>,
    nics: Nics,
    collnet: Option<CollNet>,
}

impl ChosenNet {
    /// Opens the first usable net plugin, of the name `asked` if there is one.
    ///
    /// # Errors
    /// There is none, or the one that `NCCL_NET` or `asked` names cannot be used; the text says why for each.
    /// Or the first one cannot protect what it sends as `wire` wants it: a slower one is not taken in
    /// silence.
    pub fn open(
        config: &NetConfig,
        asked: Option<&str>,
        device: &dyn Device,
        with_collnet: bool,
        wire: Wire,
    ) -> Result<Self> {
        let mut reasons = String::new();
        for candidate in plugins::nets(asked)? {
            let net = &candidate.net.plugin;
            let (opened, is_protected) = wire::offer(wire, || net.open(config).map_err(Error::from));
            if wire.is_sealed() && !is_protected && opened.is_ok() {
                return Err(cannot_protect(net.name(), wire));
            }
            let chosen = opened.and_then(|context| {
                let nics = Nics::of(context.as_ref(), device.caps())?;
                let offered = candidate.collnet.as_ref().filter(|_| with_collnet);
                let collnet = offered.and_then(|offered| CollNet::open(offered, config.comm_id));
                Ok(Self { name: net.name().to_owned(), context, nics, collnet })
            });
            match chosen {
                Ok(chosen) => return Ok(chosen),
                Err(error) => {
                    log::info(Subsys::Net, || format!("net {} cannot be used: {error}", net.name()));
                    reasons.push_str(&format!("; {}: {error}", net.name()));
                }
            }
        }
        let text = format!("ranks on several hosts need a net plugin, and none can be used{reasons}");
        Err(Error::invalid_usage(text).remedy("see NCCL_NET, NCCL_NET_PLUGIN and NCCL_SOCKET_IFNAME"))
    }

    /// The record of the net, which the other ranks get.
    pub fn record(&self) -> NetRecord {
        let (collnet, reduces) = self.collnet.as_ref().map_or(("", 0), |c| (c.name.as_str(), c.reduces));
        NetRecord {
            nics: self.nics.speeds(),
            most_bytes: self.nics.most_bytes(),
            name: self.name.clone(),
            reduces,
            collnet: collnet.to_owned(),
            has_checksums: env::settings().checksum,
        }
    }

    /// Does without the network's own reductions: not all ranks have them.
    pub fn without_collnet(&mut self) {
        self.collnet = None;
    }
}

/// The error where a net has no protection and one is wanted.
fn cannot_protect(net: &str, wire: Wire) -> Error {
    let text = format!("the net {net} cannot protect what it sends, and HAWSER_WIRE={wire} asks for it");
    Error::invalid_usage(text).remedy(
        "set NCCL_NET=Socket, whose TCP connections are protected; or HAWSER_WIRE=plain, and keep strangers \
         off that network",
    )
}

/// The record in which a rank describes its net to the others.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NetRecord {
    /// The NICs that it uses: names, and megabits per second, 0 where one does not say.
    nics: Vec<(String, u32)>,
    /// The longest message in bytes.
    most_bytes: u64,
    /// The plugin's name.
    name: String,
    /// The reductions that the network makes, as in [`hawser_plan::Topology::collnet`].
    reduces: u64,
    /// The name of the collnet plugin; empty without one.
    collnet: String,
    /// True if the rank's slots have checksums (`HAWSER_CHECKSUM`).
    has_checksums: bool,
}

impl NetRecord {
    /// The record of a rank that has no net, with the reason.
    pub fn none(error: &Error) -> Self {
        Self { name: format!("none ({})", error.text), ..Self::default() }
    }
}

/// The properties that all ranks' nets have in common.
pub struct Agreed {
    /// Megabits per second of all NICs that ranks of a host use, the slowest host's; 0 = not known.
    pub host_mbps: u32,
    /// Megabits per second of the NICs of a rank, the slowest rank's; 0 = not known.
    pub rank_mbps: u32,
    /// The longest message that all take.
    pub most_bytes: u64,
    /// The reductions of the network, if all ranks have the same collnet plugin; see
    /// [`hawser_plan::Topology::collnet`].
    pub collnet: u64,
}

/// Checks that all ranks chose the same net. `host_of` says on which host a rank is.
///
/// # Errors
/// Ranks differ in it, or a rank sent what is no record.
pub fn agree(records: &[Vec<u8>], host_of: impl Fn(u32) -> u32) -> Result<Agreed> {
    let mut agreed = Agreed { host_mbps: 0, rank_mbps: 0, most_bytes: u64::MAX, collnet: u64::MAX };
    let mut speeds = Speeds::default();
    let mut first: Option<(String, String, bool)> = None;
    for (rank, bytes) in (0..).zip(records) {
        let Some(theirs) = record::decode(bytes) else {
            return Err(Error::remote(format!("rank {rank} sent a net record that does not parse")));
        };
        let NetRecord { nics, most_bytes, name, reduces, collnet, has_checksums } = theirs;
        let (expected, expected_collnet, expected_checksums) =
            first.get_or_insert((name.clone(), collnet.clone(), has_checksums));
        if !expected.eq_ignore_ascii_case(&name) {
            let text = format!("rank 0 chose the net \"{expected}\" and rank {rank} the net \"{name}\"");
            return Err(Error::invalid_usage(text).remedy(
                "give all ranks the same NCCL_NET and NCCL_NET_PLUGIN, and the same plugins (NCCL_DEBUG=INFO \
                 says what each found)",
            ));
        }
        if *expected_checksums != has_checksums {
            let has = |has: bool| if has { "checksums" } else { "no checksums" };
            let text = format!(
                "rank 0 has {} for what crosses the network and rank {rank} {}",
                has(*expected_checksums),
                has(has_checksums)
            );
            return Err(Error::invalid_usage(text).remedy("give all ranks the same HAWSER_CHECKSUM"));
        }
        speeds.add(host_of(rank), nics);
        agreed.most_bytes = agreed.most_bytes.min(most_bytes);
        agreed.collnet &= if collnet == *expected_collnet { reduces } else { 0 };
    }
    (agreed.host_mbps, agreed.rank_mbps) = speeds.slowest();
    Ok(agreed)
}

/// The network of a communicator on this rank.
pub struct Net {
    name: String,
    device: Arc<dyn Device>,
    layout: HeapLayout,
    place: u32,
    nics: Nics,
    collnet: Option<(CollNet, Rail)>,
    task: Arc<NetTask>,
    proxy: Arc<Proxy>,
    put_way: PutWay,
    /// Address of the device's table of connections.
    conns: u64,
    connections: Mutex<Connections>,
    stage: Option<Arc<Stage>>,
    lending: Lending,
    deadline: Option<Duration>,
    /// The time that a message of bring-up may take.
    init_timeout: Duration,
}

/// The connections that exist so far.
struct Connections {
    keys: FxHashSet<ConnectionKey>,
    /// Memory of ends, by the key of Simple's FIFO.
    pieces: FxHashMap<ConnectionKey, Piece>,
    table: Vec<Conn>,
    arena: Arena,
    offered: Offered,
}

/// The parts that [`Net::start`] needs besides the plugin.
pub struct Setup<'a> {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Carries handles, faults and goodbyes.
    pub bootstrap: Arc<Bootstrap>,
    /// Ends launches when the network fails.
    pub control: Arc<Control>,
    /// The places of FIFOs in a heap.
    pub layout: &'a HeapLayout,
    /// The name of this rank's host and the number of its process, if it was given such. Ranks of one process
    /// that count as ranks of several hosts or processes share no proxy, as those of different ones do not.
    pub home: (&'a str, Option<u64>),
    /// This rank's place on its host.
    pub place: u32,
    /// The ranks with the same place on all hosts; None where hosts differ in ranks.
    pub rail: Option<Rail>,
    /// The table that the local transport made.
    pub connections: ConnectionTable,
    /// Bytes of the slots that copy engines use, if they are asked for.
    pub staged: Option<u64>,
    /// Of the communicator.
    pub abort: &'a AbortFlag,
}

impl Net {
    /// Starts serving a communicator. No connection exists yet.
    pub fn start(chosen: ChosenNet, setup: Setup<'_>, settings: &Settings) -> Result<Self> {
        let Setup { device, bootstrap, control, layout, place, connections, staged, abort, .. } = setup;
        let (home, rail) = (setup.home, setup.rail);
        let on_gpu = device.kernels().is_some();
        let collnet_reaches = chosen.collnet.as_ref().is_none_or(|c| c.reaches_gpus);
        // A CPU cannot read memory of a GPU well enough to make sums of it.
        let has_checksums = layout.slot_lead > 0;
        let gpu_direct = settings.gpu_direct && !has_checksums;
        let in_device = gpu_direct && on_gpu && chosen.nics.reach_gpus() && collnet_reaches;
        let slot = u64::from(layout.slot_stride[2]);
        let bytes = (fifo::page_bytes(layout), slot * u64::from(layout.depth));
        let arena = Arena::new(device.as_ref(), bytes, in_device)?;
        // The network reaches what kernels of a GPU reach, or all that a CPU does.
        let asks = settings.local_register && !has_checksums && (in_device || !on_gpu);
        let stage =
            staged.map(|slot| Stage::new(device.as_ref(), (slot, layout.slot_lead), layout.lanes, asks));
        let stage = stage.transpose()?;
        let proxy =
            if on_gpu { Proxy::of(&device.caps().id)? } else { Proxy::of(&format!("host {home:?}"))? };
        log::info(Subsys::Init, || {
            let names: Vec<&str> = chosen.nics.properties.iter().map(|p| p.name.as_str()).collect();
            let memory = if in_device { "GPU memory" } else { "host memory" };
            let checksums = if has_checksums { ", with checksums" } else { "" };
            format!("Using network {} on {} from {memory}{checksums}", chosen.name, names.join(", "))
        });
        let flows = Flows {
            max_peers: layout.ranks as i32 - 1,
            min_peers: 1,
            max_flows: layout.lanes as i32,
            min_flows: 1,
        };
        let attributes = NetAttributes { send: flows, recv: flows, what: [u32::MAX; 3] };
        if let Err(error) = chosen.context.set_attributes(&attributes) {
            log::info(Subsys::Net, || format!("net {} does not take hints: {error}", chosen.name));
        }
        let inbox = Inbox::new((&chosen.name, &chosen.nics), layout, place, (&proxy, on_gpu));
        let inbox = Arc::new(inbox);
        let parts = (in_device, inbox.clone());
        let task = Arc::new(NetTask::new(chosen.context, bootstrap, control, parts, abort));
        let limits = (put_way::least_bytes(&chosen.name, settings.put_net), chosen.nics.most_bytes());
        let put_way = PutWay::new(&task, inbox, has_checksums, limits);
        proxy.add(task.clone());
        let conns = connections.conns;
        let (keys, pieces) = (FxHashSet::default(), FxHashMap::default());
        let offered = Offered::default();
        let connections = Connections { keys, pieces, table: connections.table, arena, offered };
        Ok(Self {
            name: chosen.name,
            device,
            layout: *layout,
            place,
            nics: chosen.nics,
            collnet: chosen.collnet.zip(rail),
            task,
            proxy,
            put_way,
            conns,
            connections: Mutex::new(connections),
            stage: stage.map(Arc::new),
            lending: Lending::default(),
            deadline: settings.op_timeout,
            init_timeout: settings.init_timeout(),
        })
    }

    /// Makes sure that these ends of connections exist or are on their way. Waits only for the bootstrap to
    /// take messages.
    ///
    /// # Errors
    /// Why the network failed. Afterwards the communicator is over on all ranks.
    pub fn want(&self, keys: &[ConnectionKey]) -> Result<()> {
        let mut connections = lock(&self.connections)?;
        for &key in keys {
            if !connections.keys.contains(&key) {
                let wired =
                    self.wire(&mut connections, key).map_err(|e| e.context(format!("net {}", self.name)));
                wired.map_err(|error| self.task.give_up(error))?;
            }
        }
        self.proxy.wake();
        Ok(())
    }

    fn wire(&self, connections: &mut Connections, key: ConnectionKey) -> Result<()> {
        if key.peer == self.layout.ranks {
            return self.wire_network(connections, key.lane);
        }
        let staged = self.stage.as_ref().and_then(|stage| Some((stage, stage.slot_of(key)?)));
        let fifo = match staged {
            Some((stage, slot)) => stage.fifo(self.device.as_ref(), key, slot)?,
            None => self.fifo(connections, key)?,
        };
        let lane = key.beside_ll(self.layout.lanes).map_or(key.lane, |beside| beside.lane);
        let nic = self.nics.name(self.place, lane);
        let through = (self.nics.device(self.place, lane), RailFigures::of(&self.name, nic));
        let checksum = (self.layout.slot_lead > 0).then(|| Checksum::of(key, self.task.rank()));
        if key.send {
            self.task.add_send(SendLink::new(key, through, fifo, checksum));
        } else {
            let wait = Wait::new(self.task.abort_flag(), Some(self.init_timeout));
            let trace = RefCell::default();
            let check = checksum.map(|checksum| (checksum, nic.into()));
            let link = RecvLink::new(key, through, (fifo, check), &self.task.around(&trace), &wait)?;
            self.task.add_recv(link);
        }
        connections.keys.insert(key);
        Ok(())
    }

    /// The FIFO of an end; LL's and Simple's share their memory.
    fn fifo(&self, connections: &mut Connections, key: ConnectionKey) -> Result<Fifo> {
        let beside = key.beside_ll(self.layout.lanes);
        let simple = beside.unwrap_or(key);
        let piece = match connections.pieces.get(&simple) {
            Some(piece) => *piece,
            None => {
                let piece = connections.arena.take(self.device.as_ref())?;
                let enter = |conn: &mut Conn| Fifo::enter(&piece, conn, key.send, &self.layout);
                self.enter(connections, simple.lane, key.peer, enter)?;
                connections.pieces.insert(simple, piece);
                piece
            }
        };
        let lay = if beside.is_some() { Fifo::of_ll } else { Fifo::new };
        Ok(lay(piece, &self.layout))
    }

    /// Both FIFOs between the device and a network that reduces.
    fn wire_network(&self, connections: &mut Connections, lane: u32) -> Result<()> {
        let missing = || Error::internal("a program for a network that reduces, and no collnet plugin");
        let (collnet, rail) = self.collnet.as_ref().ok_or_else(missing)?;
        let (send, recv) =
            (connections.arena.take(self.device.as_ref())?, connections.arena.take(self.device.as_ref())?);
        self.enter(connections, lane, self.layout.ranks, |conn| {
            Fifo::enter(&send, conn, true, &self.layout);
            Fifo::enter(&recv, conn, false, &self.layout);
        })?;
        let (send, recv) = (Fifo::new(send, &self.layout), Fifo::new(recv, &self.layout));
        let trace = RefCell::default();
        let around = self.task.around(&trace);
        let wait = Wait::new(self.task.abort_flag(), Some(self.init_timeout));
        let link = CollLink::new(lane, collnet, rail.clone(), (send, recv), around.bootstrap, &wait)?;
        self.task.add_coll(link);
        for send in [true, false] {
            connections.keys.insert(ConnectionKey { lane, peer: self.layout.ranks, send });
        }
        Ok(())
    }

    /// Changes an entry of the device's table.
    fn enter(
        &self,
        connections: &mut Connections,
        lane: u32,
        peer: u32,
        change: impl FnOnce(&mut Conn),
    ) -> Result<()> {
        let index = (lane * self.layout.columns() + peer) as usize;
        let conn = connections
            .table
            .get_mut(index)
            .ok_or_else(|| Error::internal("a connection outside the table"))?;
        change(conn);
        self.device
            .upload(self.conns + (index * size_of::<Conn>()) as u64, bytes_of(std::slice::from_ref(conn)))
    }

    /// The way of puts.
    pub fn put_way(&self) -> &PutWay {
        &self.put_way
    }

    /// The plugin's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The requests that the plugin has not carried out; waits no longer than the limit.
    pub fn stalls(&self, limit: Duration) -> Vec<Stall> {
        self.task.stalls(&self.name, limit)
    }

    /// Slots for copy engines, if they are asked for.
    pub fn stage(&self) -> Option<&Arc<Stage>> {
        self.stage.as_ref()
    }

    /// The next `slots` slots of a link belong to an operation that is watched.
    pub fn expect(&self, key: ConnectionKey, slots: u64, parent: &Arc<Span>) {
        self.task.expect(key, slots, parent);
    }

    /// Something was launched on a GPU; from the first capture on, more may be launched by replays.
    pub fn launched(&self, has_captures: bool) {
        if has_captures {
            self.task.expect_replays();
        }
        self.task.launched();
        self.proxy.wake();
    }

    /// An operation of this class is about to run.
    pub fn expect_class(&self, class: Class) {
        self.task.expect_class(class);
    }

    /// The calling thread waits for operations of this communicator, and moves their slots itself meanwhile.
    pub fn help(&self) -> Helper<'_> {
        Helper::new(self)
    }

    /// Waits until everything that the device wrote is on its way to where it belongs, unless who was to get
    /// it has gone.
    pub fn drain(&self) -> Result<()> {
        let wait = Wait::new(self.task.abort_flag(), Some(self.deadline.unwrap_or(DRAIN)));
        let (mut next_look, mut looks) = (Instant::now() + LOOK, 0);
        let is_drained = || {
            if self.has_sent_all() {
                return Some(());
            }
            if Instant::now() >= next_look {
                self.task.look_for_receivers(looks, &wait);
                (next_look, looks) = (Instant::now() + LOOK, looks + 1);
            }
            None
        };
        wait.until(is_drained, || "the last data are sent to other hosts".to_owned())
    }

    /// True if [`Net::drain`] has nothing to wait for.
    pub fn has_sent_all(&self) -> bool {
        self.task.is_over() || self.task.has_sent_all()
    }

    /// Host and device memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        let staged = self.stage.as_ref().map_or(0, |stage| stage.bytes());
        self.connections.lock().map_or(0, |w| w.arena.bytes()) + staged
    }

    /// Stops the proxy's work and closes all connections, but frees no memory: a kernel may still be using
    /// it.
    pub fn leak(self) {
        self.proxy.remove(&(self.task.clone() as Arc<dyn Task>));
        self.task.close();
        std::mem::forget(self);
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if is_planted(Bug::HastyGoodbye) {
            self.task.say_goodbye(GOODBYE, Duration::ZERO);
        } else if let Err(error) = self.drain() {
            log::warn(&error.context("net: data are lost at the end of a communicator").text);
        } else if !self.task.is_over() {
            self.task.say_goodbye(GOODBYE, PATIENCE);
        }
        self.proxy.remove(&(self.task.clone() as Arc<dyn Task>));
        self.task.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Bytes that another rank sends are an error at worst.
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, other: Vec<u8>) {
            let _ = agree(&[bytes, other], |rank| rank);
        }
    }

    #[test]
    fn ranks_must_choose_the_same_net() {
        let of = |mbps: u32, most_bytes: u64, name: &str, reduces, collnet: &str| {
            let (name, collnet) = (name.to_owned(), collnet.to_owned());
            let (nics, has_checksums) = (vec![("eth0".to_owned(), mbps)], false);
            record::encode(&NetRecord { nics, most_bytes, name, reduces, collnet, has_checksums })
        };
        let card = |mbps, bytes, name| of(mbps, bytes, name, 6, "sharp");
        let agree = |records: &[Vec<u8>]| agree(records, |rank| rank);
        let agreed = agree(&[card(100, 7, "Socket"), card(50, 9, "SOCKET")]).unwrap();
        assert_eq!((agreed.rank_mbps, agreed.most_bytes, agreed.collnet), (50, 7, 6));
        let other = of(1, 1, "Socket", 7, "other");
        assert_eq!(agree(&[card(100, 7, "Socket"), other]).unwrap().collnet, 0);
        let error = agree(&[card(1, 1, "IB"), card(1, 1, "Socket")]).err().unwrap();
        assert!(
            error.text.contains("\"IB\"")
                && error.text.contains("rank 1")
                && error.text.contains("\"Socket\"")
        );
        assert!(agree(&[b"x".to_vec()]).is_err());
    }
}

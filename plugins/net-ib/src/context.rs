//! The plugin opened for a communicator: devices, listeners and connectors.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use hawser_oob::interface;
use hawser_plugin::net::{
    Connector, Handle, Listener, MAX_RECVS, MAX_REQUESTS, MAX_VIRTUAL, MemoryKinds, NetConfig, NetContext,
    NetProperties, Receiver, Sender,
};
use hawser_plugin::{Error, ErrorKind, Result, Subsys};

use crate::config::Settings;
use crate::conn::{Conn, Parts};
use crate::ends::{IbReceiver, IbSender};
use crate::handle::{MOST_ADDRESSES, Place};
use crate::hello::{Block, MAX_PORTS, PortBlock};
use crate::keeper::{Keeper, Tended};
use crate::machine::Machine;
use crate::port::{Port, is_wanted, lock};
use crate::proto::rails::Role;
use crate::proto::rx::Rx;
use crate::proto::tx::Tx;
use crate::side::{Dial, Guest, Side, Visit};
use crate::stats;
use crate::verbs::Verbs;

/// Longest message.
const MOST_BYTES: u64 = 1 << 30;
/// Guests of a listener that have not proved anything.
const MOST_GUESTS: usize = 16;

/// What all connections of a context share.
struct Shop {
    settings: Settings,
    config: NetConfig,
    kinds: MemoryKinds,
    keeper: Arc<Keeper>,
}

/// See the module.
pub(crate) struct IbContext {
    /// None: there are no devices.
    shop: Option<Arc<Shop>>,
    ports: Vec<Arc<Port>>,
    devices: RwLock<Vec<Vec<usize>>>,
}

impl IbContext {
    /// Without devices.
    pub fn empty() -> Self {
        Self { shop: None, ports: Vec::new(), devices: RwLock::default() }
    }

    pub fn open(settings: Settings, config: &NetConfig, ports: Vec<Arc<Port>>) -> Result<Self> {
        let names: Vec<String> = ports.iter().map(|port| describe(port)).collect();
        config.log.info(Subsys::NET, format!("IB: using {}", names.join(", ")));
        let all = |kind: fn(&Port) -> bool| settings.gpu && ports.iter().all(|port| kind(port));
        let mut kinds = MemoryKinds::HOST;
        if all(|port| port.device.info().peer_memory) {
            kinds.0 |= MemoryKinds::CUDA.0;
        }
        if all(|port| port.device.info().dmabuf) {
            kinds.0 |= MemoryKinds::DMABUF.0;
        }
        let keeper = Keeper::start(ports.clone());
        let keeper = keeper.map_err(|error| Error::system("starting a thread of the IB plugin", error))?;
        let shop = Shop { settings, config: config.clone(), kinds, keeper: Arc::new(keeper) };
        let devices = RwLock::new((0..ports.len()).map(|at| vec![at]).collect());
        Ok(Self { shop: Some(Arc::new(shop)), ports, devices })
    }

    fn members(&self, device: u32) -> Result<Vec<usize>> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        let text = || format!("device {device} of {} does not exist", devices.len());
        devices.get(device as usize).cloned().ok_or_else(|| Error::internal(text()))
    }

    fn shop(&self) -> Result<&Arc<Shop>> {
        self.shop.as_ref().ok_or_else(|| Error::internal("there are no devices"))
    }

    /// Devices before this one that are other functions of the same card: they may have its GUID, and its number of the port.
    fn functions_before(&self, at: usize) -> u32 {
        let card = |port: &Port| Some(port.device.info().pci_path.as_ref()?.rsplit_once('.')?.0.to_owned());
        let own = &self.ports[at];
        let Some(this) = card(own) else { return 0 };
        let is_other = |port: &&Arc<Port>| port.number == own.number && card(port).as_ref() == Some(&this);
        self.ports[..at].iter().filter(is_other).count() as u32
    }

    /// The ports of a connection on a device: its own, and spare ones.
    fn ports_for(&self, device: u32) -> Result<(Vec<Arc<Port>>, Vec<u8>)> {
        let mut members = self.members(device)?;
        let own = members.len();
        let spares = self.shop()?.settings.spares.min(MAX_PORTS - own);
        let start = members.first().copied().unwrap_or(0);
        let others = (0..self.ports.len()).map(|n| (start + n) % self.ports.len());
        let state = |at: usize| self.ports[at].state();
        let fits = |at: &usize| {
            let (spare, own) = (state(*at), state(start));
            !members.contains(at) && spare.is_usable() && spare.info.ethernet == own.info.ethernet
        };
        let fits: Vec<usize> = others.filter(fits).take(spares).collect();
        members.extend(fits);
        let tiers = (0..members.len()).map(|at| u8::from(at >= own)).collect();
        Ok((members.iter().map(|&at| self.ports[at].clone()).collect(), tiers))
    }
}

/// The ports to use.
///
/// # Errors
/// A sentence that says why there are none.
pub(crate) fn find(settings: &Settings, verbs: &dyn Verbs) -> std::result::Result<Vec<Arc<Port>>, String> {
    if settings.disable {
        return Err("NCCL_IB_DISABLE is set".into());
    }
    let devices = verbs.open()?;
    let count = devices.len();
    let mut ports = Vec::new();
    for device in devices {
        for &number in &device.info().ports {
            if is_wanted(settings.hca.as_deref(), &device.info().name, number) {
                ports.extend(Port::new(device.clone(), number, settings).map(Arc::new));
            }
        }
    }
    ports.retain(|port| port.state().is_usable());
    if ports.is_empty() {
        return Err(format!(
            "none of {count} devices has an active port with an address that fits NCCL_IB_HCA and the other NCCL_IB_ settings"
        ));
    }
    Ok(ports)
}

fn describe(port: &Port) -> String {
    let state = port.state();
    let layer = if state.info.ethernet { "RoCE" } else { "IB" };
    let gid = state.gid.map_or(String::new(), |(index, gid)| format!(", GID {index} {}", gid.ip()));
    format!("{} ({layer}, {} Mb/s{gid})", port.name, port.speed_mbps)
}

impl Shop {
    fn block(&self, ports: &[Arc<Port>], tiers: &[u8]) -> Block {
        let port = |(port, &tier): (&Arc<Port>, &u8)| PortBlock {
            name: port.name.clone(),
            speed_mbps: port.speed_mbps,
            tier,
            ethernet: port.state().info.ethernet,
        };
        Block {
            ports: ports.iter().zip(tiers).map(port).collect(),
            qps: self.settings.qps,
            pairing: self.settings.pairing,
            failover: self.settings.failover,
        }
    }

    fn parts(&self, ports: &[Arc<Port>], tiers: &[u8], side: Side, peer: Block) -> Parts {
        let class = self.config.traffic_class.and_then(|class| u8::try_from(class).ok());
        Parts {
            ports: ports.to_vec(),
            tiers: tiers.to_vec(),
            side,
            peer,
            settings: self.settings.clone(),
            profiler: self.config.profiler,
            traffic_class: self.settings.traffic_class.or(class).unwrap_or(0),
            log: self.config.log.clone(),
        }
    }

    fn tend<M: Machine + Send + 'static>(&self, conn: Conn<M>) -> Arc<Mutex<Conn<M>>> {
        let conn = Arc::new(Mutex::new(conn));
        let tended: Arc<dyn Tended> = conn.clone();
        self.keeper.tend(Arc::downgrade(&tended) as Weak<dyn Tended>);
        conn
    }
}

impl NetContext for IbContext {
    fn devices(&self) -> Result<u32> {
        Ok(self.devices.read().unwrap_or_else(PoisonError::into_inner).len() as u32)
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        let members = self.members(device)?;
        let ports: Vec<&Arc<Port>> = members.iter().map(|&at| &self.ports[at]).collect();
        let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        let mut properties = NetProperties::new(names.join("+"), device);
        properties.guid = ports[0].device.info().guid;
        properties.port = u32::from(ports[0].number) + self.functions_before(members[0]);
        if ports.len() == 1 {
            properties.pci_path = ports[0].device.info().pci_path.clone();
        }
        properties.memory = self.shop()?.kinds;
        properties.speed_mbps = ports.iter().fold(0, |sum, port| sum.saturating_add(port.speed_mbps));
        properties.max_recvs = MAX_RECVS as u32;
        properties.members = members.iter().map(|&at| at as u32).collect();
        properties.outlives_members = self.shop()?.settings.failover;
        properties.max_multi_request = MAX_REQUESTS as u32;
        properties.max_p2p_bytes = MOST_BYTES;
        properties.max_collective_bytes = MOST_BYTES;
        Ok(properties)
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        let (ports, tiers) = self.ports_for(device)?;
        let shop = self.shop()?.clone();
        let addresses = interface::dial_addresses(
            &interface::list().unwrap_or_default(),
            shop.settings.ifname.as_deref(),
        );
        let any = if addresses.iter().any(IpAddr::is_ipv6) { "[::]:0" } else { "0.0.0.0:0" };
        let tcp = TcpListener::bind(any).or_else(|_| TcpListener::bind("0.0.0.0:0"));
        let tcp = tcp.map_err(|error| Error::system("listening for the IB plugin's handshake", error))?;
        tcp.set_nonblocking(true).map_err(|error| Error::system("a listening socket", error))?;
        let port = tcp.local_addr().map_err(|error| Error::system("a listening socket", error))?.port();
        let addresses: Vec<SocketAddr> =
            addresses.into_iter().take(MOST_ADDRESSES).map(|ip| SocketAddr::new(ip, port)).collect();
        let place = Place { listener: u64::from_le_bytes(random()?), secret: random()?, addresses };
        let handle = place.encode();
        Ok((handle, Box::new(IbListener { shop, ports, tiers, place, tcp, guests: Vec::new(), conn: None })))
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        let (ports, tiers) = self.ports_for(device)?;
        let place = Place::decode(handle).map_err(|text| {
            Error::new(ErrorKind::InvalidArgument, format!("IB: no connection to this handle: {text}"))
        })?;
        let shop = self.shop()?.clone();
        let deadline = shop.settings.deadline;
        let patience = if deadline.is_zero() {
            Duration::from_secs(1 << 30)
        } else {
            deadline.max(Duration::from_secs(60))
        };
        let dial = Some(Dial::new(place.addresses.clone(), patience));
        let nonce = random()?;
        Ok(Box::new(IbConnector { shop, ports, tiers, place, nonce, dial, conn: None }))
    }

    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        let wrong = |text: String| Err(Error::new(ErrorKind::InvalidUsage, text));
        if members.is_empty() || members.len() > MAX_VIRTUAL {
            return wrong(format!(
                "a virtual device of {} members; 1 to {MAX_VIRTUAL} can be",
                members.len()
            ));
        }
        let mut parts = Vec::new();
        for &member in members {
            let at = member as usize;
            if at >= self.ports.len() || parts.contains(&at) {
                return wrong(format!(
                    "device {member} is not a physical device, or is twice in a virtual one"
                ));
            }
            parts.push(at);
        }
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        devices.push(parts);
        Ok(devices.len() as u32 - 1)
    }
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(count) if count == N => Ok(bytes),
        Ok(_) => Err(Error::internal("getrandom gave too little")),
        Err(errno) => Err(Error::system("getrandom", errno)),
    }
}

/// Waits for the sender of a handle.
struct IbListener {
    shop: Arc<Shop>,
    ports: Vec<Arc<Port>>,
    tiers: Vec<u8>,
    place: Place,
    tcp: TcpListener,
    guests: Vec<Guest>,
    conn: Option<Arc<Mutex<Conn<Rx>>>>,
}

impl IbListener {
    fn welcome(&mut self) -> Result<()> {
        while let Ok((tcp, from)) = self.tcp.accept() {
            if self.guests.len() >= MOST_GUESTS {
                self.guests.remove(0);
            }
            self.guests.extend(Guest::new(tcp, from).ok());
        }
        let block = self.shop.block(&self.ports, &self.tiers);
        for guest in std::mem::take(&mut self.guests) {
            let from = guest.from;
            match guest.turn(self.place.listener, self.place.secret, random()?, &block) {
                Visit::Wait(guest) => self.guests.push(guest),
                Visit::Stranger(text) => {
                    stats::add(&stats::STRANGERS, 1);
                    self.shop
                        .config
                        .log
                        .info(Subsys::NET, format!("IB: refused a connection from {from}: {text}"));
                }
                Visit::Friend(side, peer) if self.conn.is_none() => {
                    let parts = self.shop.parts(&self.ports, &self.tiers, side, peer);
                    let conn = Conn::new(parts, Role::Receiver, |specs, rules| Rx::new(specs, rules, 0));
                    self.conn = Some(self.shop.tend(conn));
                }
                Visit::Friend(..) => {}
            }
        }
        Ok(())
    }
}

impl Listener for IbListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        if self.conn.is_none() {
            self.welcome()?;
        }
        let Some(shared) = &self.conn else { return Ok(None) };
        {
            let mut conn = lock(shared);
            conn.progress()?;
            if !conn.is_up() {
                return Ok(None);
            }
            conn.machine.opening = false;
        }
        let Some(conn) = self.conn.take() else { return Ok(None) };
        let Shop { kinds, keeper, settings, .. } = &*self.shop;
        Ok(Some(Box::new(IbReceiver::new(conn, *kinds, keeper.clone(), settings.clone()))))
    }
}

impl Drop for IbListener {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            lock(&conn).close();
            self.shop.keeper.close(conn);
        }
    }
}

/// A connection on its way.
struct IbConnector {
    shop: Arc<Shop>,
    ports: Vec<Arc<Port>>,
    tiers: Vec<u8>,
    place: Place,
    nonce: [u8; 32],
    dial: Option<Dial>,
    conn: Option<Arc<Mutex<Conn<Tx>>>>,
}

impl Connector for IbConnector {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        if let Some(dial) = self.dial.take() {
            let block = self.shop.block(&self.ports, &self.tiers);
            match dial.turn(self.place.listener, self.place.secret, self.nonce, &block) {
                Visit::Wait(dial) => {
                    self.dial = Some(dial);
                    return Ok(None);
                }
                Visit::Stranger(text) => return Err(Error::remote(format!("IB: {text}"))),
                Visit::Friend(side, peer) => {
                    let parts = self.shop.parts(&self.ports, &self.tiers, side, peer);
                    let conn = Conn::new(parts, Role::Sender, |specs, rules| Tx::new(specs, rules, 0));
                    self.conn = Some(self.shop.tend(conn));
                }
            }
        }
        let Some(shared) = &self.conn else {
            return Err(Error::internal("a connector was polled after its end"));
        };
        {
            let mut conn = lock(shared);
            conn.progress()?;
            if !conn.is_up() {
                return Ok(None);
            }
            conn.machine.opening = false;
        }
        let Some(conn) = self.conn.take() else { return Ok(None) };
        Ok(Some(Box::new(IbSender::new(conn, self.shop.kinds, self.shop.keeper.clone()))))
    }
}

impl Drop for IbConnector {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            lock(&conn).close();
            self.shop.keeper.close(conn);
        }
    }
}

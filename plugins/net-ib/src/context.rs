//! The plugin opened for a communicator: devices, listeners and connectors.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use hawser_oob::accept::{Accepted, Acceptor, Arrival, Limits, Unwanted, WRONG_KEY};
use hawser_oob::foreign;
use hawser_oob::handle::ConnectInfo;
use hawser_oob::strangers::Lines;
use hawser_oob::{interface, socket};
use hawser_plugin::net::{
    Connector, Handle, Listener, MAX_RECVS, MAX_REQUESTS, MAX_VIRTUAL, MemoryKinds, NetConfig, NetContext,
    NetProperties, Receiver, Sender,
};
use hawser_plugin::{Error, ErrorKind, Result, Subsys};

use crate::config::Settings;
use crate::conn::{Conn, Parts};
use crate::control_channel::{self, ControlChannel, Dial, Dialled};
use crate::endpoint::{IbReceiver, IbSender};
use crate::handshake::{self, Block, MAX_PORTS, PROTOCOL, PortBlock};
use crate::machine::Machine;
use crate::port::{Port, is_wanted, lock};
use crate::progress_thread::{ProgressThread, Tended};
use crate::proto::rails::Role;
use crate::proto::rx::Rx;
use crate::proto::tx::Tx;
use crate::stats;
use crate::verbs::Verbs;

/// Longest message.
const MOST_BYTES: u64 = 1 << 30;
/// Addresses of a listener that its handle has room for, whatever their families are.
const MOST_ADDRESSES: usize = 4;
/// The limits for connections that have not proved anything.
const LIMITS: Limits = Limits { pending: 16, grace: Duration::ZERO, patience: control_channel::PATIENCE };

/// The settings, the thread and the host's configuration that all connections of a context share.
struct Shared {
    settings: Settings,
    config: NetConfig,
    kinds: MemoryKinds,
    progress_thread: Arc<ProgressThread>,
}

/// The plugin opened for one communicator: its ports, and the devices made of them.
pub(crate) struct IbContext {
    /// None: there are no devices.
    shared: Option<Arc<Shared>>,
    ports: Vec<Arc<Port>>,
    devices: RwLock<Vec<Vec<usize>>>,
}

impl IbContext {
    /// Without devices.
    pub fn empty() -> Self {
        Self { shared: None, ports: Vec::new(), devices: RwLock::default() }
    }

    /// Opens the plugin on these ports.
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
        let progress_thread = ProgressThread::start(ports.clone());
        let progress_thread =
            progress_thread.map_err(|error| Error::system("starting a thread of the IB plugin", error))?;
        let shared =
            Shared { settings, config: config.clone(), kinds, progress_thread: Arc::new(progress_thread) };
        let devices = RwLock::new((0..ports.len()).map(|at| vec![at]).collect());
        Ok(Self { shared: Some(Arc::new(shared)), ports, devices })
    }

    fn members(&self, device: u32) -> Result<Vec<usize>> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        let text = || format!("device {device} of {} does not exist", devices.len());
        devices.get(device as usize).cloned().ok_or_else(|| Error::internal(text()))
    }

    fn shared(&self) -> Result<&Arc<Shared>> {
        self.shared.as_ref().ok_or_else(|| Error::internal("there are no devices"))
    }

    /// Devices before this one that are other functions of the same card: they may have its GUID, and its
    /// number of the port.
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
        let spares = self.shared()?.settings.spares.min(MAX_PORTS - own);
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
            "none of {count} devices has an active port with an address that fits NCCL_IB_HCA and the other \
             NCCL_IB_ settings"
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

impl Shared {
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

    fn parts(&self, ports: &[Arc<Port>], tiers: &[u8], control: ControlChannel, peer: Block) -> Parts {
        let class = self.config.traffic_class.and_then(|class| u8::try_from(class).ok());
        Parts {
            ports: ports.to_vec(),
            tiers: tiers.to_vec(),
            control,
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
        self.progress_thread.tend(Arc::downgrade(&tended) as Weak<dyn Tended>);
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
        properties.memory = self.shared()?.kinds;
        properties.speed_mbps = ports.iter().fold(0, |sum, port| sum.saturating_add(port.speed_mbps));
        properties.max_recvs = MAX_RECVS as u32;
        properties.members = members.iter().map(|&at| at as u32).collect();
        properties.outlives_members = self.shared()?.settings.failover;
        properties.max_multi_request = MAX_REQUESTS as u32;
        properties.max_p2p_bytes = MOST_BYTES;
        properties.max_collective_bytes = MOST_BYTES;
        Ok(properties)
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        let (ports, tiers) = self.ports_for(device)?;
        let shared = self.shared()?.clone();
        let all = interface::list().unwrap_or_default();
        let addresses = interface::dial_addresses(&all, shared.settings.ifname.as_deref());
        let (tcp, port) = open_listener(addresses.iter().any(IpAddr::is_ipv6))
            .map_err(|errno| Error::system("listening for the IB plugin's handshake", errno))?;
        let addresses =
            addresses.into_iter().take(MOST_ADDRESSES).map(|ip| SocketAddr::new(ip, port)).collect();
        let info = ConnectInfo { listener: u64::from_le_bytes(random()?), secret: random()?, addresses };
        let handle = info.encode(handshake::HANDLE);
        let acceptor = Acceptor::new(tcp, control_channel::options(), PROTOCOL, LIMITS);
        Ok((
            handle,
            Box::new(IbListener {
                shared,
                ports,
                tiers,
                info,
                acceptor,
                lines: Lines::default(),
                conn: None,
            }),
        ))
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        let (ports, tiers) = self.ports_for(device)?;
        let info = ConnectInfo::decode(handshake::HANDLE, handle).map_err(|text| {
            Error::new(ErrorKind::InvalidArgument, format!("IB: no connection to this handle: {text}"))
        })?;
        let shared = self.shared()?.clone();
        let deadline = shared.settings.deadline;
        let patience = if deadline.is_zero() {
            Duration::from_secs(1 << 30)
        } else {
            deadline.max(Duration::from_secs(60))
        };
        let dial = Some(Dial::new(info, patience));
        Ok(Box::new(IbConnector { shared, ports, tiers, dial, conn: None }))
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

/// A listening socket on all interfaces, and its port.
fn open_listener(with_ipv6: bool) -> std::result::Result<(OwnedFd, u16), rustix::io::Errno> {
    let v4 = || socket::listen((Ipv4Addr::UNSPECIFIED, 0).into(), &control_channel::options());
    let (fd, at) = match with_ipv6 {
        true => {
            socket::listen((Ipv6Addr::UNSPECIFIED, 0).into(), &control_channel::options()).or_else(|_| v4())
        }
        false => v4(),
    }?;
    Ok((fd, at.port()))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    socket::random().map_err(|errno| Error::system("getrandom", errno))
}

/// Waits for the sender of a handle.
struct IbListener {
    shared: Arc<Shared>,
    ports: Vec<Arc<Port>>,
    tiers: Vec<u8>,
    info: ConnectInfo,
    acceptor: Acceptor,
    lines: Lines,
    conn: Option<Arc<Mutex<Conn<Rx>>>>,
}

impl IbListener {
    fn welcome(&mut self) {
        let block = self.shared.block(&self.ports, &self.tiers).encode();
        let key = handshake::key(&self.info.secret);
        let listener = self.info.listener.to_le_bytes();
        let admit = |greeting: &[u8]| match greeting == listener {
            true => Ok(key.clone()),
            false => Err(Unwanted { code: None, why: "it wants another listener".into() }),
        };
        for arrival in self.acceptor.advance(admit, |_| block.to_vec()) {
            let text = match arrival {
                Arrival::Accepted(accepted) => match Block::decode(&accepted.answer) {
                    Ok(peer) => {
                        self.meet(accepted, peer);
                        continue;
                    }
                    Err(text) => format!("refused a connection from {}: {text}", accepted.from),
                },
                Arrival::Stranger(from, why) => {
                    stats::add(&stats::STRANGERS, 1);
                    format!("refused a connection from {from}: {why}")
                }
                Arrival::Foreign(from, protocol) => {
                    stats::add(&stats::STRANGERS, 1);
                    format!("refused a connection from {from}: {}", foreign::reason(protocol))
                }
                Arrival::WrongKey(from, _) => {
                    stats::add(&stats::STRANGERS, 1);
                    format!("refused a connection from {from}: {WRONG_KEY}")
                }
                Arrival::Trouble(why) => {
                    let line = self.lines.line(format!("IB: {why}"));
                    line.into_iter().for_each(|line| self.shared.config.log.warn(line));
                    continue;
                }
            };
            let line = self.lines.line(format!("IB: {text}"));
            line.into_iter().for_each(|line| self.shared.config.log.info(Subsys::NET, line));
        }
    }

    /// The first sender that comes gets the connection.
    fn meet(&mut self, accepted: Accepted, peer: Block) {
        let (None, Some(from)) = (&self.conn, accepted.from.0) else { return };
        let control = ControlChannel::new(accepted.stream, from);
        let parts = self.shared.parts(&self.ports, &self.tiers, control, peer);
        let conn = Conn::new(parts, Role::Receiver, |specs, rules| Rx::new(specs, rules, 0));
        self.conn = Some(self.shared.tend(conn));
    }
}

impl Listener for IbListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        if self.conn.is_none() {
            self.welcome();
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
        let Shared { kinds, progress_thread, settings, .. } = &*self.shared;
        Ok(Some(Box::new(IbReceiver::new(conn, *kinds, progress_thread.clone(), settings.clone()))))
    }
}

impl Drop for IbListener {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            lock(&conn).close();
            self.shared.progress_thread.close(conn);
        }
    }
}

/// A connection on its way.
struct IbConnector {
    shared: Arc<Shared>,
    ports: Vec<Arc<Port>>,
    tiers: Vec<u8>,
    dial: Option<Dial>,
    conn: Option<Arc<Mutex<Conn<Tx>>>>,
}

impl Connector for IbConnector {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        if let Some(dial) = self.dial.take() {
            let block = self.shared.block(&self.ports, &self.tiers);
            match dial.turn(&block) {
                Dialled::Wait(dial) => {
                    self.dial = Some(dial);
                    return Ok(None);
                }
                Dialled::Failed(text) => return Err(Error::remote(format!("IB: {text}"))),
                Dialled::Connected(control, peer) => {
                    let parts = self.shared.parts(&self.ports, &self.tiers, control, peer);
                    let conn = Conn::new(parts, Role::Sender, |specs, rules| Tx::new(specs, rules, 0));
                    self.conn = Some(self.shared.tend(conn));
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
        Ok(Some(Box::new(IbSender::new(conn, self.shared.kinds, self.shared.progress_thread.clone()))))
    }
}

impl Drop for IbConnector {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            lock(&conn).close();
            self.shared.progress_thread.close(conn);
        }
    }
}

//! The plugin opened for a communicator: devices, listeners and connectors.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hawser_oob::handle::ConnectInfo;
use hawser_oob::interface::{self, Interface};
use hawser_oob::socket;
use hawser_oob::wire;
use hawser_plugin::net::{
    Connector, Handle, Listener, NetConfig, NetContext, NetProperties, Receiver, Sender,
};
use hawser_plugin::{Error, ErrorKind, Result, Subsys};

use crate::config::Settings;
use crate::device::Device;
use crate::endpoint::{SocketReceiver, SocketSender};
use crate::greeting;
use crate::inbound::Listening;
use crate::pool::lock;
use crate::shared::Shared;
use crate::tx::TxConn;

/// The plugin opened for one communicator: its devices, and what its connections share.
pub(crate) struct SocketContext {
    settings: Settings,
    config: NetConfig,
    devices: RwLock<Vec<Device>>,
    lazy: Mutex<Lazy>,
}

/// The parts that are made with the first connection: a context that is only asked for its devices starts no
/// thread.
#[derive(Default)]
struct Lazy {
    shared: Option<Arc<Shared>>,
    /// One listening socket per address, for all listeners.
    places: Vec<(Interface, SocketAddr, Arc<OwnedFd>)>,
}

impl SocketContext {
    pub fn open(mut settings: Settings, config: &NetConfig) -> Result<Self> {
        let wanted = wire::take();
        if wanted.is_sealed() {
            settings.wire = wanted;
        }
        let interfaces = if settings.forced.is_empty() {
            find_interfaces(&settings)?
        } else {
            let forced = settings.forced.iter().cloned();
            forced.map(|(name, address)| Interface { name, index: 0, address, prefix: 128 }).collect()
        };
        let named: Vec<String> =
            interfaces.iter().map(|one| format!("{} ({})", one.name, one.address)).collect();
        let (threads, sockets) = (settings.threads, settings.sockets);
        let text = format!(
            "Socket: {threads} threads, {sockets} data sockets per connection, on {}{}",
            named.join(", "),
            if settings.wire.is_sealed() { ", encrypted" } else { "" }
        );
        config.log.info(Subsys::NET, text);
        let numbered = (0..).zip(interfaces);
        let devices = numbered.map(|(number, interface)| Device::physical(number, interface)).collect();
        Ok(Self { settings, config: config.clone(), devices: RwLock::new(devices), lazy: Mutex::default() })
    }

    fn device(&self, number: u32) -> Result<Device> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices
            .get(number as usize)
            .cloned()
            .ok_or_else(|| Error::internal(format!("device {number} of {} does not exist", devices.len())))
    }

    fn shared(&self, lazy: &mut Lazy) -> Result<Arc<Shared>> {
        if let Some(shared) = &lazy.shared {
            return Ok(shared.clone());
        }
        let (settings, log) = (self.settings.clone(), self.config.log.clone());
        let shared = Shared::open(settings, self.config.traffic_class, log)
            .map_err(|errno| Error::system("starting the threads of the Socket plugin", errno))?;
        Ok(lazy.shared.insert(shared).clone())
    }

    /// The address on which `interface` is listened to.
    fn listen_on(&self, lazy: &mut Lazy, interface: &Interface) -> Result<SocketAddr> {
        if let Some(known) = lazy.places.iter().find(|(known, ..)| known == interface) {
            return Ok(known.1);
        }
        let shared = self.shared(lazy)?;
        let at = interface.socket_address(0);
        let (fd, mut bound) = socket::listen(at, shared.service.options()).map_err(|errno| {
            Error::system(format!("listening on {} of {}", interface.address, interface.name), errno)
        })?;
        if let SocketAddr::V6(address) = &mut bound {
            address.set_scope_id(0);
        }
        let fd = Arc::new(fd);
        shared.service.listen(fd.clone());
        lazy.places.push((interface.clone(), bound, fd));
        Ok(bound)
    }
}

impl NetContext for SocketContext {
    fn devices(&self) -> Result<u32> {
        Ok(self.devices.read().unwrap_or_else(PoisonError::into_inner).len() as u32)
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        Ok(self.device(device)?.properties)
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        let device = self.device(device)?;
        let mut lazy = lock(&self.lazy);
        let shared = self.shared(&mut lazy)?;
        let addresses = device.interfaces.iter().map(|interface| self.listen_on(&mut lazy, interface));
        let addresses = addresses.collect::<Result<Vec<_>>>()?;
        let listener = u64::from_le_bytes(random()?);
        let info = ConnectInfo { listener, secret: random()?, addresses: addresses.clone() };
        let listening = Arc::new(Listening::new(listener, info.secret, addresses, shared.clone()));
        shared.service.registry.add(listening.clone());
        Ok((info.encode(greeting::HANDLE), Box::new(SocketListener(listening))))
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        let device = self.device(device)?;
        let info = ConnectInfo::decode(greeting::HANDLE, handle).map_err(|text| {
            Error::new(ErrorKind::InvalidArgument, format!("Socket: no connection to this handle: {text}"))
        })?;
        let shared = self.shared(&mut lock(&self.lazy))?;
        let number = u64::from_le_bytes(random()?);
        let connection = TxConn::new(shared, info, device.interfaces, number);
        Ok(Box::new(SocketConnector(Some(connection))))
    }

    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        let number = devices.len() as u32;
        let device = Device::combined(number, members, &devices)?;
        devices.push(device);
        Ok(number)
    }
}

impl Drop for SocketContext {
    fn drop(&mut self) {
        let shared = lock(&self.lazy).shared.take();
        if let Some(shared) = shared {
            shared.close();
        }
    }
}

/// The interfaces that become devices.
fn find_interfaces(settings: &Settings) -> Result<Vec<Interface>> {
    let found = interface::list()
        .and_then(|all| interface::devices(&all, settings.ifname.as_deref(), settings.family));
    found.map_err(|error| {
        let is_usage = error.kind == hawser_oob::ErrorKind::Usage;
        Error::new(if is_usage { ErrorKind::InvalidUsage } else { ErrorKind::System }, error.text)
    })
}

fn random<const N: usize>() -> Result<[u8; N]> {
    socket::random().map_err(|errno| Error::system("getrandom", errno))
}

/// Waits for the sender of a handle. Without a deadline of its own: that is the host's.
struct SocketListener(Arc<Listening>);

impl Listener for SocketListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        let Some(connection) = self.0.take() else { return Ok(None) };
        Ok(Some(Box::new(SocketReceiver::new(connection))))
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A connection on its way; None once it was handed out.
struct SocketConnector(Option<Arc<TxConn>>);

impl Connector for SocketConnector {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        let Some(connection) = &self.0 else {
            return Err(Error::internal("a connector was polled after it gave its connection"));
        };
        connection.check()?;
        if !connection.is_up() {
            return Ok(None);
        }
        let connection = self.0.take();
        Ok(connection.map(|connection| Box::new(SocketSender::new(connection)) as Box<dyn Sender>))
    }
}

impl Drop for SocketConnector {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.close();
        }
    }
}

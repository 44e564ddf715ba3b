//! The open objects of an exported plugin: contexts, and connections on their way.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hawser_plugin::net::{Connector, Handle, NetConfig, NetContext, Sender};
use hawser_plugin::{Error, ErrorKind, Log, Net, Result, Subsys};

use crate::net::abi::properties::RawProperties;
use crate::net::properties::export;

/// An exported plugin and all that is open of it.
pub struct State {
    name: &'static CStr,
    make: fn() -> Arc<dyn Net>,
    plugin: OnceLock<Arc<dyn Net>>,
    open: Mutex<Open>,
    /// The contexts of versions that know none. The lock is held while one is opened.
    process: Mutex<Option<Process>>,
}

struct Open {
    /// Of the last `init`.
    log: Option<Log>,
    /// Oldest first. NCCL knows them by address, and an address that is not here is not looked at.
    contexts: Vec<Arc<Context>>,
    /// Number of devices before any virtual one was made.
    physical: Option<u32>,
    /// The virtual devices in the order in which they were made. NCCL makes them once per process, so
    /// contexts that are opened later must get them too.
    virtuals: Vec<Vec<u32>>,
    /// True if `init` began anew, and nothing was asked since: NCCL calls `devices` then if it has unloaded
    /// us in between.
    begins: bool,
    /// Names and paths of devices that were asked for. NCCL keeps their addresses.
    strings: BTreeSet<CString>,
}

/// The one `init` of a process, and the contexts by traffic class.
struct Process {
    config: NetConfig,
    contexts: BTreeMap<Option<i32>, Arc<Context>>,
}

impl State {
    /// Nothing is open yet; `make` is called when a function of a table is called first.
    pub const fn new(name: &'static CStr, make: fn() -> Arc<dyn Net>) -> Self {
        let open = Open {
            log: None,
            contexts: Vec::new(),
            physical: None,
            virtuals: Vec::new(),
            begins: false,
            strings: BTreeSet::new(),
        };
        Self { name, make, plugin: OnceLock::new(), open: Mutex::new(open), process: Mutex::new(None) }
    }

    /// The name in the tables.
    pub(super) fn name(&self) -> &'static CStr {
        self.name
    }

    /// The log for errors.
    pub(super) fn log(&self) -> Log {
        self.open().log.clone().unwrap_or_else(Log::silent)
    }

    /// Opens a context of its own for a communicator and returns what NCCL calls it.
    pub(super) fn init(&self, config: &NetConfig) -> Result<*mut c_void> {
        let context = self.prepare(config)?;
        let address = Arc::as_ptr(&context).cast_mut().cast();
        let mut open = self.open();
        open.begins = open.contexts.is_empty();
        open.contexts.push(context);
        Ok(address)
    }

    /// Drops a context. Any address is allowed: NCCL 2.28 finalises after an `init` that failed too, with
    /// NULL or with what another plugin left there.
    pub(super) fn finalize(&self, address: *mut c_void) {
        let mut open = self.open();
        let known = open.contexts.iter().position(|context| is(context, address));
        let context = known.map(|at| open.contexts.remove(at));
        drop(open);
        drop(context); // runs the plugin's code, so not under the lock
    }

    /// The context with this address.
    pub(super) fn context(&self, address: *mut c_void) -> Result<Arc<Context>> {
        let mut open = self.open();
        open.begins = false;
        let context = open.contexts.iter().find(|context| is(context, address)).cloned();
        drop(open);
        let missing = || Error::internal("there is no such context: it was not opened, or is finalised");
        self.level(context.ok_or_else(missing)?)
    }

    /// The `init` of versions without contexts. Later ones change nothing, unless NCCL has unloaded us in
    /// between.
    pub(super) fn init_process(&self, config: NetConfig) -> Result<()> {
        let mut process = self.process();
        if let Some(process) = &mut *process {
            process.config = config;
        } else {
            let context = self.prepare(&config)?;
            *process = Some(Process { config, contexts: BTreeMap::from([(None, context)]) });
        }
        drop(process);
        self.open().begins = true;
        Ok(())
    }

    /// The context of the process for a traffic class.
    pub(super) fn process_context(&self, traffic_class: Option<i32>) -> Result<Arc<Context>> {
        let mut process = self.process();
        let process = process.as_mut().ok_or_else(|| Error::internal("called before init"))?;
        if let Some(context) = process.contexts.get(&traffic_class) {
            return self.level(context.clone());
        }
        let mut config = process.config.clone();
        config.traffic_class = traffic_class;
        let context = self.prepare(&config)?;
        process.contexts.insert(traffic_class, context.clone());
        self.level(context)
    }

    /// Number of devices.
    pub(super) fn devices(&self) -> Result<c_int> {
        self.forget_virtual()?;
        let devices = self.any()?.net.devices()?;
        let mut open = self.open();
        if open.virtuals.is_empty() {
            open.physical = Some(devices);
        }
        Ok(c_int::try_from(devices).unwrap_or(c_int::MAX))
    }

    /// Forgets the virtual devices if NCCL does not know them any more: it unloads plugins after the last
    /// communicator, while a library with threads stays in the process, and then counts the physical devices
    /// again. If it keeps the plugin, it does not count, and keeps the devices.
    fn forget_virtual(&self) -> Result<()> {
        let mut open = self.open();
        if !std::mem::take(&mut open.begins) || open.virtuals.is_empty() {
            return Ok(());
        }
        open.virtuals.clear();
        open.physical = None;
        drop(open);
        let mut process = self.process();
        if let Some(process) = &mut *process {
            let context = self.prepare(&process.config)?;
            process.contexts = BTreeMap::from([(None, context)]);
        }
        Ok(())
    }

    /// The properties of a device as C has them. The strings live as long as the process.
    pub(super) fn properties(&self, device: c_int) -> Result<RawProperties> {
        let number = device_number(device)?;
        let properties = self.any()?.net.properties(number)?;
        let mut open = self.open();
        let name = kept(&mut open.strings, &properties.name);
        let path = properties.pci_path.as_ref().map_or(null(), |path| kept(&mut open.strings, path));
        Ok(export(&properties, name, path, device))
    }

    /// Makes a virtual device, for all contexts: the others get it when they are used next.
    pub(super) fn make_virtual(&self, members: Vec<u32>) -> Result<u32> {
        let context = self.any()?;
        let before = context.net.devices()?;
        let device = context.net.make_virtual(&members)?;
        let mut open = self.open();
        open.physical.get_or_insert(before);
        open.virtuals.push(members);
        Ok(device)
    }

    /// Gives a context the virtual devices that were made through other ones: NCCL makes each once per
    /// process, and uses it in contexts that were open before too (one process with a rank per thread).
    fn level(&self, context: Arc<Context>) -> Result<Arc<Context>> {
        let mut made = context.made.lock().unwrap_or_else(PoisonError::into_inner);
        let (physical, virtuals) = {
            let open = self.open();
            if *made >= open.virtuals.len() {
                drop(made);
                return Ok(context);
            }
            (open.physical.unwrap_or(0), open.virtuals.clone())
        };
        // A plugin may share virtual devices between contexts by itself.
        let shared = context.net.devices()?.saturating_sub(physical) as usize;
        for (at, members) in virtuals.iter().enumerate().skip(shared) {
            let (device, wanted) = (context.net.make_virtual(members)?, physical + at as u32);
            if device != wanted {
                let text = format!("virtual device {wanted} of {members:?} came back as {device}");
                return Err(Error::internal(text));
            }
        }
        *made = virtuals.len();
        drop(made);
        Ok(context)
    }

    /// The plugin's own context.
    fn prepare(&self, config: &NetConfig) -> Result<Arc<Context>> {
        self.open().log = Some(config.log.clone());
        let plugin = self.plugin.get_or_init(self.make);
        if !self.name.to_bytes().eq_ignore_ascii_case(plugin.name().as_bytes()) {
            let table = self.name.to_string_lossy();
            let text =
                format!("net plugin '{}' is '{table}' to NCCL_NET: export it by its name", plugin.name());
            config.log.info(Subsys::INIT, text);
        }
        let net = plugin.open(config)?;
        Ok(Arc::new(Context { connecting: Mutex::new(Vec::new()), made: Mutex::new(0), net }))
    }

    /// A context to ask about devices, which are the same for all.
    fn any(&self) -> Result<Arc<Context>> {
        let mut open = self.open();
        open.begins = false;
        let last = open.contexts.last().cloned();
        drop(open);
        match last {
            Some(context) => self.level(context),
            None => self.process_context(None),
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A context of the plugin and the connections that are on their way.
pub(super) struct Context {
    connecting: Mutex<Vec<Connecting>>,
    /// Virtual devices of the process that it has.
    made: Mutex<usize>,
    pub net: Box<dyn NetContext>,
}

/// A connection on its way. NCCL calls `connect` with the same arguments until it gives a connection, and a
/// plugin must know by them which one is meant.
///
/// The address of the handle is what tells: NCCL 2.28.9 (v11) and 2.30 (v12) keep the handle in the memory of
/// the pending request (the proxy's request buffer; a local variable of the GPUDirect probe) until `connect`
/// succeeded or failed, also with their adapters for v8 to v10. The place may be used again after an attempt
/// that was given up, so device and bytes must agree as well; they name the listener, and no listener takes
/// two senders. Keeping our state *in* the handle, as plugins in C do, is not possible: a trait's handle may
/// use all 128 bytes, and a pointer in bytes that came over the network is one that a peer can choose.
struct Connecting {
    place: usize,
    device: u32,
    handle: Handle,
    connector: Box<dyn Connector>,
}

impl Context {
    /// One attempt to connect; `place` is the address of the handle.
    pub fn connect(&self, device: c_int, handle: &Handle, place: usize) -> Result<Option<Box<dyn Sender>>> {
        let device = device_number(device)?;
        let mut connecting = match self.take(place) {
            Some(known) if known.device == device && known.handle == *handle => known,
            _ => {
                let connector = self.net.connect(device, handle)?;
                Connecting { place, device, handle: *handle, connector }
            }
        };
        let sender = connecting.connector.poll()?;
        if sender.is_none() {
            self.connecting().push(connecting);
        }
        Ok(sender)
    }

    fn take(&self, place: usize) -> Option<Connecting> {
        let mut connecting = self.connecting();
        let at = connecting.iter().position(|known| known.place == place)?;
        Some(connecting.swap_remove(at))
    }

    fn connecting(&self) -> MutexGuard<'_, Vec<Connecting>> {
        self.connecting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device as the traits count them.
pub(super) fn device_number(device: c_int) -> Result<u32> {
    let text = || format!("there is no device {device}");
    u32::try_from(device).map_err(|_| Error::new(ErrorKind::InvalidArgument, text()))
}

fn is(context: &Arc<Context>, address: *mut c_void) -> bool {
    Arc::as_ptr(context).cast::<c_void>() == address.cast_const()
}

/// The address of a text as a string of C. The set never drops one, and its bytes stay where they are when
/// the set moves it.
fn kept(strings: &mut BTreeSet<CString>, text: &str) -> *const c_char {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    if let Some(known) = strings.get(&text) {
        return known.as_ptr();
    }
    let address = text.as_ptr();
    strings.insert(text);
    address
}

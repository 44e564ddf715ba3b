//! Ports of devices as connections use them: whether they are usable, with which address, and what is
//! registered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_plugin::net::Region;
use rustc_hash::FxHashMap;

use crate::config::Settings;
use crate::link_state::LinkState;
use crate::verbs::gid::{self, Gid};
use crate::verbs::{Device, Errno, Event, Mr, PortInfo};

/// A port of an opened device.
pub(crate) struct Port {
    /// The device that the port belongs to.
    pub device: Arc<dyn Device>,
    /// The number of the port at its device, from 1.
    pub number: u8,
    /// `mlx5_0:1`.
    pub name: String,
    /// The speed in megabits per second.
    pub speed_mbps: u32,
    settings: Settings,
    /// The rank of the first address: a worse one reaches fewer peers, so the port waits for one as good.
    rank: Option<u32>,
    state: Mutex<PortState>,
    link_state: Mutex<Option<LinkState>>,
    /// Grows with each change of the state.
    generation: AtomicU64,
    registered: Mutex<FxHashMap<Key, (Mr, usize)>>,
}

/// A port as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortState {
    /// The attributes of the port as the device tells them.
    pub info: PortInfo,
    /// The address that is used, and its index in the port's table.
    pub gid: Option<(u32, Gid)>,
    /// The device has failed for good.
    pub fatal: bool,
}

impl PortState {
    /// Tells whether rails can use the port.
    pub fn is_usable(&self) -> bool {
        self.info.active && self.gid.is_some() && !self.fatal
    }
}

/// Address, length, kind, descriptor and offset.
type Key = (u64, usize, u32, Option<(i32, u64)>);

impl Port {
    /// None: it cannot even be queried.
    pub fn new(device: Arc<dyn Device>, number: u8, settings: &Settings) -> Option<Self> {
        let name = format!("{}:{number}", device.info().name);
        let info = device.port(number).ok()?;
        let gid = gid::choose(&*device, number, &settings.wish()).ok();
        let link_state = gid.and_then(|(index, gid)| LinkState::of(&device.interface(number, index)?, &gid));
        Some(Self {
            number,
            name,
            speed_mbps: info.speed_mbps.max(1),
            settings: settings.clone(),
            rank: gid.and_then(|(_, gid)| settings.wish().rank(&gid, info.ethernet)),
            state: Mutex::new(PortState { info, gid, fatal: false }),
            link_state: Mutex::new(link_state),
            generation: AtomicU64::new(1),
            registered: Mutex::default(),
            device,
        })
    }

    /// The state of the port as it was seen last.
    pub fn state(&self) -> PortState {
        *lock(&self.state)
    }

    /// A number that grows with each change of the state.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Looks at the port again. True: it has changed.
    pub fn refresh(&self, event: Option<Event>) -> bool {
        let mut new = self.state();
        new.fatal |= event == Some(Event::Fatal);
        match self.device.port(self.number) {
            Ok(info) => new.info = info,
            Err(_) => new.info.active = false,
        }
        // The kernel may be a moment behind its own event.
        new.info.active &= event != Some(Event::PortDown(self.number));
        // The whole table is only read when the address is not what it was.
        let same = |&(index, gid): &(u32, Gid)| self.device.gid(self.number, index) == Some(gid);
        if event == Some(Event::Gid(self.number)) || !new.gid.as_ref().is_some_and(same) {
            let wish = self.settings.wish();
            let found = gid::choose(&*self.device, self.number, &wish).ok();
            new.gid = found.filter(|(_, gid)| wish.rank(gid, new.info.ethernet) >= self.rank);
            if let Some((index, gid)) = new.gid {
                let interface = self.device.interface(self.number, index);
                *lock(&self.link_state) = interface.and_then(|name| LinkState::of(&name, &gid));
            }
        }
        new.info.active &= self.is_link_up();
        let changed = std::mem::replace(&mut *lock(&self.state), new) != new;
        if changed {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        changed
    }

    /// True if the link is not what the state says: a look that costs one system call.
    pub fn is_stale(&self) -> bool {
        let active = self.state().info.active;
        lock(&self.link_state).as_ref().is_some_and(|link| link.is_on() != active)
    }

    fn is_link_up(&self) -> bool {
        lock(&self.link_state).as_ref().is_none_or(LinkState::is_on)
    }

    /// Registers memory, or finds it registered.
    ///
    /// # Safety
    /// The memory stays valid until it is deregistered as often.
    pub unsafe fn register(&self, region: &Region) -> Result<Mr, Errno> {
        let key = key(region);
        let mut registered = lock(&self.registered);
        if let Some((mr, users)) = registered.get_mut(&key) {
            *users += 1;
            return Ok(*mr);
        }
        // SAFETY: the caller vouches for the memory.
        let mr = unsafe { self.device.register(region, self.settings.relaxed_ordering) }?;
        registered.insert(key, (mr, 1));
        Ok(mr)
    }

    /// Ends the registration of a region.
    pub fn deregister(&self, region: &Region) -> Result<(), Errno> {
        let mut registered = lock(&self.registered);
        let Some((mr, users)) = registered.get_mut(&key(region)) else { return Err(libc::EINVAL) };
        *users -= 1;
        if *users > 0 {
            return Ok(());
        }
        let mr = *mr;
        registered.remove(&key(region));
        self.device.deregister(mr)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        for (mr, _) in lock(&self.registered).values() {
            let _ = self.device.deregister(*mr);
        }
    }
}

fn key(region: &Region) -> Key {
    (region.addr, region.bytes, region.kind.0, region.dmabuf)
}

/// Locks a mutex, also after a panic of another holder.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if `NCCL_IB_HCA` names a port: a list of `name[:port]`, names are prefixes; `=` in front asks for
/// whole names, `^` excludes. NCCL's further fields (rail and plane) are taken and not used.
pub(crate) fn is_wanted(filter: Option<&str>, device: &str, port: u8) -> bool {
    let Some(text) = filter.map(str::trim) else { return true };
    let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
    let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
    let fits = |item: &str| {
        let mut fields = item.split(':');
        let name = fields.next().unwrap_or_default().trim();
        let number = fields.next().and_then(|number| number.trim().parse::<i32>().ok()).filter(|&n| n >= 0);
        let named = if exact { name == device } else { device.starts_with(name) };
        !name.is_empty() && named && number.is_none_or(|number| number == i32::from(port))
    };
    let mut items = text.split(',').filter(|item| !item.trim().is_empty()).peekable();
    if items.peek().is_none() {
        return true;
    }
    items.any(fits) != exclude
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Verbs;
    use crate::verbs::soft::Fabric;
    use hawser_plugin::net::MemoryKinds;

    #[test]
    fn the_filter_is_nccls() {
        for (filter, device, port, wanted) in [
            (None, "mlx5_0", 1, true),
            (Some("mlx5"), "mlx5_7", 1, true),
            (Some("mlx5_1"), "mlx5_10", 1, true),
            (Some("=mlx5_1"), "mlx5_10", 1, false),
            (Some("=mlx5_1"), "mlx5_1", 2, true),
            (Some("=mlx5_1:2,mlx5_3:1"), "mlx5_1", 1, false),
            (Some("^mlx5_1"), "mlx5_1", 1, false),
            (Some("^=mlx5_1:1"), "mlx5_1", 2, true),
            (Some("mlx5_0:1:3:0"), "mlx5_0", 1, true),
            (Some(" "), "x", 1, true),
        ] {
            assert_eq!(is_wanted(filter, device, port), wanted, "{filter:?} {device}:{port}");
        }
    }

    #[test]
    fn ports_change_and_registrations_are_shared() {
        let fabric = Fabric::new(1);
        let device = fabric.host(0..1).open().unwrap().remove(0);
        let port = Port::new(device.clone(), 1, &Settings::default()).unwrap();
        assert!(port.state().is_usable() && !port.refresh(None));
        fabric.port(0, false);
        assert!(port.refresh(Some(Event::PortDown(1))) && !port.state().is_usable());
        fabric.port(0, true);
        assert!(port.refresh(Some(Event::PortUp(1))) && port.state().is_usable());
        assert_eq!(port.generation(), 3);
        assert!(port.refresh(Some(Event::Fatal)) && !port.refresh(None) && !port.state().is_usable());
        let bytes = [0u8; 64];
        let region = Region { addr: bytes.as_ptr() as u64, bytes: 64, kind: MemoryKinds::HOST, dmabuf: None };
        // SAFETY: the array outlives its registrations.
        let (first, second) = unsafe { (port.register(&region).unwrap(), port.register(&region).unwrap()) };
        assert_eq!(first, second);
        assert_eq!((port.deregister(&region), port.deregister(&region)), (Ok(()), Ok(())));
        assert_eq!(port.deregister(&region), Err(libc::EINVAL));
    }
}

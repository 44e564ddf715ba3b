//! The network interfaces of this host, and which of them to use.
//!
//! The choice is NCCL's. `NCCL_SOCKET_IFNAME` is a list of name prefixes; `^` in front excludes the list, `=`
//! asks for exact names. `NCCL_SOCKET_FAMILY` asks for one address family. Without a list, interfaces are
//! taken by their [`Class`]. There are three questions, with an answer each: [`listen_address`] for one
//! listener, [`devices`] for all interfaces that carry data, [`dial_addresses`] for all addresses at which
//! this host can be reached.

use crate::error::{Error, Result};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One address of one interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name, as `ip link` shows it.
    pub name: String,
    /// The kernel's number of the interface, which is also the scope of its link-local addresses.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// The number of leading bits of the address that name its subnet.
    pub prefix: u32,
}

impl Interface {
    /// Tells whether `other` is an address of the same subnet.
    pub fn is_near(&self, other: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        let same_family = self.address.is_ipv4() == other.is_ipv4();
        same_family && (bits(self.address) ^ bits(other)).leading_zeros() >= self.prefix
    }

    /// The interface's address with a port, and with the scope that a link-local address needs.
    pub fn socket_address(&self, port: u16) -> SocketAddr {
        self.scope(SocketAddr::new(self.address, port))
    }

    /// Gives a link-local address the scope of this interface: it means nothing without one.
    pub fn scope(&self, mut address: SocketAddr) -> SocketAddr {
        if let SocketAddr::V6(v6) = &mut address
            && v6.ip().is_unicast_link_local()
        {
            v6.set_scope_id(self.index);
        }
        address
    }
}

/// An address family, as `NCCL_SOCKET_FAMILY` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, `AF_INET`.
    V4,
    /// IPv6, `AF_INET6`.
    V6,
}

impl Family {
    /// Reads a value of `NCCL_SOCKET_FAMILY`.
    pub fn parse(text: &str) -> Option<Family> {
        match text {
            "AF_INET" => Some(Family::V4),
            "AF_INET6" => Some(Family::V6),
            _ => None,
        }
    }

    /// Tells whether an address is of this family.
    pub fn has(self, address: IpAddr) -> bool {
        (self == Family::V4) == address.is_ipv4()
    }

    fn words(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

/// A value of `NCCL_SOCKET_IFNAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

impl Filter {
    /// Reads a list. `None` if it names nothing, which is as good as no list.
    pub fn parse(text: &str) -> Option<Filter> {
        let text = text.trim();
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let names: Vec<String> =
            text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_string).collect();
        (!names.is_empty()).then_some(Filter { exclude, exact, names })
    }

    /// Tells whether the list lets an interface of this name through.
    pub fn accepts(&self, name: &str) -> bool {
        let fits = |wanted: &String| if self.exact { name == wanted } else { name.starts_with(wanted) };
        self.names.iter().any(fits) != self.exclude
    }
}

/// The kind of an interface, judged by its name. Without a list of the user's, an earlier class is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// IP over InfiniBand (`ib*`).
    InfiniBand,
    /// Every interface that is of no other class.
    Ordinary,
    /// A bridge of Docker's (`docker*`).
    Docker,
    /// The loopback (`lo`).
    Loopback,
    /// A bridge of libvirt's (`virbr*`).
    VirtualBridge,
}

impl Class {
    const ALL: [Class; 5] =
        [Class::InfiniBand, Class::Ordinary, Class::Docker, Class::Loopback, Class::VirtualBridge];

    /// The class of an interface with this name.
    pub fn of(name: &str) -> Class {
        match name {
            "lo" => Class::Loopback,
            _ if name.starts_with("ib") => Class::InfiniBand,
            _ if name.starts_with("docker") => Class::Docker,
            _ if name.starts_with("virbr") => Class::VirtualBridge,
            _ => Class::Ordinary,
        }
    }
}

/// The address for one listener that other hosts can reach. Without a list, an interface in the subnet of
/// `near` comes first, then the classes in their order. IPv6 link-local addresses are left out: they mean
/// something else on every host.
///
/// # Errors
/// `Usage` when no interface fits, naming what there is.
pub fn listen_address(
    all: &[Interface],
    ifname: Option<&str>,
    family: Option<Family>,
    near: Option<IpAddr>,
) -> Result<IpAddr> {
    let filter = ifname.and_then(Filter::parse);
    let fitting = all
        .iter()
        .filter(|one| !is_link_local(one.address))
        .filter(|one| family.is_none_or(|family| family.has(one.address)))
        .filter(|one| filter.as_ref().is_none_or(|filter| filter.accepts(&one.name)));
    let first = fitting.min_by_key(|one| {
        let class = filter.is_none().then(|| Class::of(&one.name));
        let is_far = filter.is_some() || !near.is_some_and(|near| one.is_near(near));
        (is_far, class, one.address.is_ipv6())
    });
    first.map(|one| one.address).ok_or_else(|| nothing_fits(all, ifname, family))
}

/// The interfaces that carry data, each once and with its first address that fits. Without a list these are
/// all interfaces of the first class that has any.
///
/// # Errors
/// `Usage` when the user's list fits none, naming what there is. Without a list there may be none.
pub fn devices(all: &[Interface], ifname: Option<&str>, family: Option<Family>) -> Result<Vec<Interface>> {
    let fits = |one: &&Interface| family.is_none_or(|family| family.has(one.address));
    let of_family: Vec<&Interface> = all.iter().filter(fits).collect();
    let Some(filter) = ifname.and_then(Filter::parse) else {
        let classes = Class::ALL.iter().map(|class| pick(&of_family, |name| Class::of(name) == *class));
        return Ok(classes.into_iter().find(|found| !found.is_empty()).unwrap_or_default());
    };
    let found = pick(&of_family, |name| filter.accepts(name));
    if found.is_empty() { Err(nothing_fits(all, ifname, family)) } else { Ok(found) }
}

fn pick(all: &[&Interface], accepts: impl Fn(&str) -> bool) -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    for &one in all.iter().filter(|one| accepts(&one.name)) {
        match found.iter_mut().find(|known| known.name == one.name) {
            // The kernel lists IPv4 first, but an address that only this link knows gives way to any other.
            Some(known) if is_link_local(known.address) && !is_link_local(one.address) => {
                *known = one.clone();
            }
            Some(_) => {}
            None => found.push(one.clone()),
        }
    }
    found
}

/// All addresses at which a listener on every interface can be dialled, the best ones first: IPv4 before
/// IPv6, never link-local ones, and bridges and the loopback only where there is nothing else. There is
/// always one.
pub fn dial_addresses(all: &[Interface], ifname: Option<&str>) -> Vec<IpAddr> {
    let filter = ifname.and_then(Filter::parse);
    let is_local = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let mut fitting: Vec<(Class, IpAddr)> = all
        .iter()
        .filter(|one| {
            !is_local(one.address) && filter.as_ref().is_none_or(|filter| filter.accepts(&one.name))
        })
        .map(|one| (Class::of(&one.name).max(Class::Ordinary), one.address))
        .collect();
    fitting.sort_by_key(|(class, address)| (*class, address.is_ipv6()));
    if fitting.iter().any(|(class, _)| *class == Class::Ordinary) {
        fitting.retain(|(class, _)| *class == Class::Ordinary);
    }
    if fitting.is_empty() {
        return vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
    }
    fitting.into_iter().map(|(_, address)| address).collect()
}

fn nothing_fits(all: &[Interface], ifname: Option<&str>, family: Option<Family>) -> Error {
    let there: Vec<String> = all.iter().map(|one| format!("{} ({})", one.name, one.address)).collect();
    let family = family.map_or(String::new(), |family| format!(" with an {} address", family.words()));
    let text = match ifname {
        Some(names) => format!("no network interface{family} fits NCCL_SOCKET_IFNAME={names}"),
        None => format!("no network interface{family} is up"),
    };
    Error::usage(text).remedy(format!("there is: {}", there.join(", ")))
}

/// Tells whether the address only means something together with an interface.
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// All addresses of interfaces that are up, in the kernel's order.
///
/// # Errors
/// `System` when the kernel does not say.
pub fn list() -> Result<Vec<Interface>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs writes one pointer to the place given, which is a live local.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        let reason = std::io::Error::last_os_error();
        return Err(Error::system("getifaddrs (listing the network interfaces)", reason));
    }
    let mut found = Vec::new();
    let mut next = head;
    // SAFETY: getifaddrs succeeded, so `next` walks its list: each element is valid until freeifaddrs below,
    // and null ends it.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: both pointers are null or point to socket addresses inside the list, as long as their
        // family says.
        let (address, mask) = unsafe { (ip_address(entry.ifa_addr), ip_address(entry.ifa_netmask)) };
        let Some(address) = address else { continue };
        let prefix = match mask {
            Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
            Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
            None => 128,
        };
        // SAFETY: ifa_name is a NUL-terminated string inside the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: as above; an interface that vanished meanwhile gives 0.
        let index = unsafe { libc::if_nametoindex(entry.ifa_name) };
        found.push(Interface { name: name.to_string_lossy().into_owned(), index, address, prefix });
    }
    // SAFETY: `head` came from getifaddrs and nothing borrowed from the list is left.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

/// The IP address in a socket address, if it is one.
///
/// # Safety
/// `address` is null or points to a socket address of the size its family says.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a sockaddr_in; read_unaligned asks for no alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a sockaddr_in6; read_unaligned asks for no alignment.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn one(name: &str, index: u32, address: &str, prefix: u32) -> Interface {
        Interface { name: name.into(), index, address: address.parse().unwrap(), prefix }
    }

    /// A host as the kernel lists it, without InfiniBand.
    fn host() -> Vec<Interface> {
        vec![
            one("lo", 1, "127.0.0.1", 8),
            one("docker0", 2, "172.17.0.1", 16),
            one("eth0", 3, "10.0.0.2", 24),
            one("eth1", 4, "10.0.1.2", 24),
            one("lo", 1, "::1", 128),
            one("eth0", 3, "fe80::2", 64),
            one("eth0", 3, "fd00::2", 64),
            one("eth2", 5, "fe80::3", 64),
        ]
    }

    fn host_with_ib() -> Vec<Interface> {
        [host(), vec![one("ibs1", 6, "192.168.5.2", 24)]].concat()
    }

    fn listen(ifname: Option<&str>, family: Option<Family>, near: Option<&str>) -> String {
        let near = near.map(|near| near.parse().unwrap());
        let found = listen_address(&host_with_ib(), ifname, family, near);
        found.map_or_else(|error| error.text, |address| address.to_string())
    }

    fn names(ifname: Option<&str>, family: Option<Family>) -> Vec<String> {
        let found = devices(&host(), ifname, family).unwrap();
        found.iter().map(|one| format!("{} {}", one.name, one.address)).collect()
    }

    #[test]
    fn a_listener_prefers_infiniband_then_others_and_the_local_ones_last() {
        assert_eq!(listen(None, None, None), "192.168.5.2");
        assert_eq!(listen(None, Some(Family::V6), None), "fd00::2");
        assert_eq!(listen(None, None, Some("10.0.1.77")), "10.0.1.2");
        assert_eq!(listen(None, None, Some("127.0.0.1")), "127.0.0.1");
        let local = [host()[0].clone(), host()[4].clone(), host()[1].clone()];
        assert_eq!(listen_address(&local, None, None, None).unwrap().to_string(), "172.17.0.1");
    }

    #[test]
    fn the_grammar_of_a_listener_knows_prefixes_exclusion_and_exact_names() {
        assert_eq!(listen(Some("eth"), None, None), "10.0.0.2");
        assert_eq!(listen(Some("=eth1"), None, None), "10.0.1.2");
        assert_eq!(listen(Some("^ib,eth,docker"), None, None), "127.0.0.1");
        assert_eq!(listen(Some("^=ibs1,lo,docker0"), None, None), "10.0.0.2");
        assert!(listen(Some("=eth"), None, None).contains("NCCL_SOCKET_IFNAME==eth"));
        assert!(listen(Some("wlan"), Some(Family::V6), None).contains("eth1 (10.0.1.2)"));
    }

    #[test]
    fn devices_are_by_default_every_real_interface_once() {
        assert_eq!(names(None, None), ["eth0 10.0.0.2", "eth1 10.0.1.2", "eth2 fe80::3"]);
        assert_eq!(names(None, Some(Family::V6)), ["eth0 fd00::2", "eth2 fe80::3"]);
        assert_eq!(devices(&host_with_ib(), None, None).unwrap().len(), 1);
        let local = [host()[0].clone(), host()[4].clone()];
        assert_eq!(devices(&local, None, None).unwrap(), [host()[0].clone()]);
        assert_eq!(devices(&local, None, Some(Family::V6)).unwrap(), [host()[4].clone()]);
        assert_eq!(devices(&[], None, None).unwrap(), []);
    }

    #[test]
    fn the_grammar_of_devices_is_the_same() {
        assert_eq!(names(Some("eth0,lo"), Some(Family::V4)), ["lo 127.0.0.1", "eth0 10.0.0.2"]);
        assert_eq!(names(Some("=eth1"), None), ["eth1 10.0.1.2"]);
        assert_eq!(names(Some("^eth,docker"), None), ["lo 127.0.0.1"]);
        assert_eq!(names(Some("^=eth0,lo"), Some(Family::V4)), ["docker0 172.17.0.1", "eth1 10.0.1.2"]);
        let error = devices(&host(), Some("=eth"), None).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(error.text.contains("NCCL_SOCKET_IFNAME==eth") && error.text.contains("eth1 (10.0.1.2)"));
    }

    #[test]
    fn there_is_always_an_address_to_dial() {
        let texts = |all: &[Interface], ifname: Option<&str>| -> Vec<String> {
            dial_addresses(all, ifname).iter().map(IpAddr::to_string).collect()
        };
        assert_eq!(texts(&host_with_ib(), None), ["10.0.0.2", "10.0.1.2", "192.168.5.2", "fd00::2"]);
        assert_eq!(texts(&host(), Some("=lo")), ["127.0.0.1", "::1"]);
        assert_eq!(texts(&host()[..2], None), ["172.17.0.1", "127.0.0.1"]);
        assert_eq!(texts(&host(), Some("=there-is-none")), ["127.0.0.1"]);
        assert_eq!(texts(&[], None), ["127.0.0.1"]);
    }

    #[test]
    fn lists_and_families_that_say_nothing_are_none() {
        assert_eq!((Filter::parse(""), Filter::parse(" ^= , ")), (None, None));
        assert_eq!(Filter::parse(" ^eth, lo "), Filter::parse("^eth,lo"));
        assert_eq!(Family::parse("AF_INET6"), Some(Family::V6));
        assert_eq!((Family::parse("ipv4"), Family::parse("")), (None, None));
    }

    #[test]
    fn neighbours_share_the_prefix() {
        let eth0 = &host()[2];
        assert!(eth0.is_near("10.0.0.77".parse().unwrap()));
        assert!(!eth0.is_near("10.0.1.77".parse().unwrap()));
        assert!(!eth0.is_near("fd00::1".parse().unwrap()));
    }

    #[test]
    fn link_local_addresses_get_the_scope_of_their_interface() {
        let eth2 = &host()[7];
        assert!(matches!(eth2.socket_address(5), SocketAddr::V6(v6) if v6.scope_id() == 5));
        let other = "[fd00::9]:5".parse().unwrap();
        assert_eq!(eth2.scope(other), other);
    }

    #[test]
    fn this_machine_has_a_loopback() {
        let all = list().unwrap();
        assert!(all.iter().any(|one| one.address.is_loopback() && one.index > 0));
        assert!(listen_address(&all, None, None, None).is_ok(), "{all:?}");
    }
}

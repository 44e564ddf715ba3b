//! Which network interfaces become devices.
//!
//! The choice is NCCL's: `NCCL_SOCKET_IFNAME` is a list of name prefixes, `^` in front excludes the list, `=` asks for
//! exact names. Without it: the `ib*` interfaces; if there are none all others except `lo`, `docker*` and `virbr*`; if
//! there are none of those either `docker*`, then `lo`, then `virbr*`. Each interface is one device, with its first
//! address of the wanted family.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hawser_plugin::{Error, ErrorKind, Result};

/// One address of one interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub name: String,
    /// The kernel's number of it: the scope of its link-local addresses.
    pub index: u32,
    pub address: IpAddr,
    /// Leading bits that name the subnet.
    pub prefix: u32,
}

impl Interface {
    /// Whether `other` is in the same subnet.
    pub fn is_near(&self, other: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        let same_family = self.address.is_ipv4() == other.is_ipv4();
        same_family && (bits(self.address) ^ bits(other)).leading_zeros() >= self.prefix
    }
}

/// The interfaces to use, each once.
///
/// # Errors
/// `InvalidUsage` when the user's list fits none, naming what there is.
pub(crate) fn select(all: &[Interface], ifname: Option<&str>, family: Option<u8>) -> Result<Vec<Interface>> {
    let of_family: Vec<&Interface> =
        all.iter().filter(|one| family.is_none_or(|family| (family == 4) == one.address.is_ipv4())).collect();
    let filter = ifname.map(Filter::parse).filter(|filter| !filter.names.is_empty());
    let found = match &filter {
        Some(filter) => pick(&of_family, |name| filter.accepts(name)),
        None => {
            let classes = (0..=4).map(|class| pick(&of_family, |name| default_class(name) == class));
            classes.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
        }
    };
    if found.is_empty() && filter.is_some() {
        return Err(nothing_fits(all, ifname.unwrap_or_default(), family));
    }
    Ok(found)
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

fn nothing_fits(all: &[Interface], names: &str, family: Option<u8>) -> Error {
    let there: Vec<String> = all.iter().map(|one| format!("{} ({})", one.name, one.address)).collect();
    let family = family.map_or(String::new(), |family| format!(" with an IPv{family} address"));
    let text =
        format!("no interface{family} fits NCCL_SOCKET_IFNAME={names}; there is: {}", there.join(", "));
    Error::new(ErrorKind::InvalidUsage, text)
}

struct Filter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

impl Filter {
    fn parse(text: &str) -> Filter {
        let text = text.trim();
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        Filter { exclude, exact, names: names.map(str::to_string).collect() }
    }

    fn accepts(&self, name: &str) -> bool {
        let fits = |wanted: &String| if self.exact { name == wanted } else { name.starts_with(wanted) };
        self.names.iter().any(fits) != self.exclude
    }
}

fn default_class(name: &str) -> u8 {
    match name {
        _ if name.starts_with("ib") => 0,
        "lo" => 3,
        _ if name.starts_with("docker") => 2,
        _ if name.starts_with("virbr") => 4,
        _ => 1,
    }
}

/// Whether the address only means something together with an interface.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// All addresses of interfaces that are up, in the kernel's order.
///
/// # Errors
/// `System` when the kernel does not say.
pub(crate) fn list() -> Result<Vec<Interface>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs writes one pointer to the place given, which is a live local.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        let reason = std::io::Error::last_os_error();
        return Err(Error::system("getifaddrs (listing the network interfaces)", reason));
    }
    let mut found = Vec::new();
    let mut next = head;
    // SAFETY: getifaddrs succeeded, so `next` walks its list: each element is valid until freeifaddrs below, null ends it.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: both pointers are null or point to socket addresses inside the list, as long as their family says.
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

    fn host() -> Vec<Interface> {
        let one = |name: &str, index, address: &str, prefix| Interface {
            name: name.into(),
            index,
            address: address.parse().unwrap(),
            prefix,
        };
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

    fn names(ifname: Option<&str>, family: Option<u8>) -> Vec<String> {
        let found = select(&host(), ifname, family).unwrap();
        found.iter().map(|one| format!("{} {}", one.name, one.address)).collect()
    }

    #[test]
    fn the_default_is_every_real_interface_once() {
        assert_eq!(names(None, None), ["eth0 10.0.0.2", "eth1 10.0.1.2", "eth2 fe80::3"]);
        assert_eq!(names(None, Some(6)), ["eth0 fd00::2", "eth2 fe80::3"]);
        let mut with_ib = host();
        with_ib.push(Interface { name: "ibs1".into(), ..host()[3].clone() });
        assert_eq!(select(&with_ib, None, None).unwrap().len(), 1);
        let local = [host()[0].clone(), host()[4].clone()];
        assert_eq!(select(&local, None, None).unwrap(), [host()[0].clone()]);
        assert_eq!(select(&local, None, Some(6)).unwrap(), [host()[4].clone()]);
        assert_eq!(select(&[], None, None).unwrap(), []);
    }

    #[test]
    fn the_grammar_knows_prefixes_exclusion_and_exact_names() {
        assert_eq!(names(Some("eth0,lo"), Some(4)), ["lo 127.0.0.1", "eth0 10.0.0.2"]);
        assert_eq!(names(Some("=eth1"), None), ["eth1 10.0.1.2"]);
        assert_eq!(names(Some("^eth,docker"), None), ["lo 127.0.0.1"]);
        assert_eq!(names(Some("^=eth0,lo"), Some(4)), ["docker0 172.17.0.1", "eth1 10.0.1.2"]);
        let error = select(&host(), Some("=eth"), None).unwrap_err();
        assert!(error.text.contains("NCCL_SOCKET_IFNAME==eth") && error.text.contains("eth1 (10.0.1.2)"));
    }

    #[test]
    fn neighbours_share_the_prefix() {
        let eth0 = &host()[2];
        assert!(eth0.is_near("10.0.0.77".parse().unwrap()));
        assert!(!eth0.is_near("10.0.1.77".parse().unwrap()));
        assert!(!eth0.is_near("fd00::1".parse().unwrap()));
    }

    #[test]
    fn this_machine_has_a_loopback() {
        assert!(list().unwrap().iter().any(|one| one.address.is_loopback() && one.index > 0));
    }
}

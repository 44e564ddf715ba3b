//! Which network interface the bootstrap listens on.
//!
//! The choice is NCCL's: `NCCL_SOCKET_IFNAME` is a list of name prefixes, `^` in front excludes the list, `=` asks for
//! exact names. Without it, `ib*` comes first, then all others except `lo`, `docker*` and `virbr*`, which come last.

use crate::error::{Error, ErrorKind, Result};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of one interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub name: String,
    pub address: IpAddr,
    /// Leading bits that name the subnet.
    pub prefix: u32,
}

/// The address to listen on. `near`, if given and reachable in one hop, wins over the default order (not over `ifname`).
///
/// # Errors
/// `InvalidUsage` when no interface fits, naming what there is.
pub(super) fn choose(ifname: Option<&str>, family: Option<u8>, near: Option<IpAddr>) -> Result<IpAddr> {
    select(&interfaces()?, ifname, family, near)
}

fn select(
    all: &[Interface],
    ifname: Option<&str>,
    family: Option<u8>,
    near: Option<IpAddr>,
) -> Result<IpAddr> {
    let filter = ifname.map(Filter::parse).filter(|filter| !filter.names.is_empty());
    let fitting = all
        .iter()
        .filter(|interface| family.is_none_or(|family| (family == 4) == interface.address.is_ipv4()))
        .filter(|interface| filter.as_ref().is_none_or(|filter| filter.accepts(&interface.name)));
    let first = fitting.min_by_key(|interface| {
        let order = if filter.is_some() { 0 } else { default_order(&interface.name) };
        let far = filter.is_some() || !near.is_some_and(|near| same_subnet(interface, near));
        (far, order, interface.address.is_ipv6())
    });
    first.map(|interface| interface.address).ok_or_else(|| nothing_fits(all, ifname, family))
}

fn nothing_fits(all: &[Interface], ifname: Option<&str>, family: Option<u8>) -> Error {
    let there: Vec<String> = all.iter().map(|one| format!("{} ({})", one.name, one.address)).collect();
    let family = family.map_or(String::new(), |family| format!(" of family IPv{family}"));
    let text = match ifname {
        Some(names) => format!("no network interface{family} fits NCCL_SOCKET_IFNAME={names}"),
        None => format!("no network interface{family} is up"),
    };
    Error::new(ErrorKind::InvalidUsage, text).remedy(format!("there is: {}", there.join(", ")))
}

struct Filter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

impl Filter {
    fn parse(text: &str) -> Filter {
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let names =
            text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_string).collect();
        Filter { exclude, exact, names }
    }

    fn accepts(&self, name: &str) -> bool {
        let listed = self
            .names
            .iter()
            .any(|wanted| if self.exact { name == wanted } else { name.starts_with(wanted) });
        listed != self.exclude
    }
}

fn default_order(name: &str) -> u8 {
    match name {
        _ if name.starts_with("ib") => 0,
        "lo" => 3,
        _ if name.starts_with("docker") || name.starts_with("virbr") => 2,
        _ => 1,
    }
}

fn same_subnet(interface: &Interface, other: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    let different = bits(interface.address) ^ bits(other);
    interface.address.is_ipv4() == other.is_ipv4() && different.leading_zeros() >= interface.prefix
}

/// All addresses of interfaces that are up, without IPv6 link-local ones (they mean something else on every host).
fn interfaces() -> Result<Vec<Interface>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs writes one pointer to the place given, which is a live local.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Err(Error::system(
            "getifaddrs (listing the network interfaces)",
            std::io::Error::last_os_error(),
        ));
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
        if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
            continue;
        }
        // SAFETY: ifa_name is a NUL-terminated string inside the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        found.push(Interface { name, address, prefix });
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
        let one = |name: &str, address: &str, prefix| Interface {
            name: name.into(),
            address: address.parse().unwrap(),
            prefix,
        };
        vec![
            one("lo", "127.0.0.1", 8),
            one("lo", "::1", 128),
            one("docker0", "172.17.0.1", 16),
            one("eth0", "fd00::2", 64),
            one("eth0", "10.0.0.2", 24),
            one("eth1", "10.0.1.2", 24),
            one("ibs1", "192.168.5.2", 24),
        ]
    }

    fn pick(ifname: Option<&str>, family: Option<u8>, near: Option<&str>) -> String {
        let near = near.map(|near| near.parse().unwrap());
        select(&host(), ifname, family, near)
            .map_or_else(|error| error.into_text(), |address| address.to_string())
    }

    #[test]
    fn the_default_order_is_infiniband_others_and_the_local_ones_last() {
        assert_eq!(pick(None, None, None), "192.168.5.2");
        assert_eq!(pick(None, Some(6), None), "fd00::2");
        assert_eq!(pick(None, None, Some("10.0.1.77")), "10.0.1.2");
        assert_eq!(pick(None, None, Some("127.0.0.1")), "127.0.0.1");
        let local = &host()[..3];
        assert_eq!(select(local, None, None, None).unwrap().to_string(), "172.17.0.1");
    }

    #[test]
    fn the_grammar_knows_prefixes_exclusion_and_exact_names() {
        assert_eq!(pick(Some("eth"), None, None), "10.0.0.2");
        assert_eq!(pick(Some("=eth1"), None, None), "10.0.1.2");
        assert_eq!(pick(Some("^ib,eth,docker"), None, None), "127.0.0.1");
        assert_eq!(pick(Some("^=ibs1,lo,docker0"), None, None), "10.0.0.2");
        assert!(pick(Some("=eth"), None, None).contains("NCCL_SOCKET_IFNAME==eth"));
        assert!(pick(Some("wlan"), Some(6), None).contains("eth1 (10.0.1.2)"));
    }

    #[test]
    fn this_machine_has_an_interface() {
        assert!(choose(None, None, None).is_ok(), "{:?}", interfaces());
    }
}

//! Addresses of this host at which its listeners can be dialled.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The best addresses first: those of other interfaces than the loopback, IPv4 before IPv6, never link-local ones.
/// `filter` is `NCCL_SOCKET_IFNAME`: prefixes, `=` for whole names, `^` to exclude.
pub(crate) fn own(filter: Option<&str>) -> Vec<IpAddr> {
    let rank = |(name, ip): &(String, IpAddr)| {
        let class = match name.as_str() {
            "lo" => 2,
            _ if name.starts_with("docker") || name.starts_with("virbr") => 1,
            _ => 0,
        };
        (class, ip.is_ipv6())
    };
    let mut all = Vec::new();
    for one in list().into_iter().filter(|(name, ip)| !is_link_local(*ip) && fits(filter, name)) {
        all.insert(all.partition_point(|other| rank(other) <= rank(&one)), one);
    }
    if all.iter().any(|one| rank(one).0 == 0) {
        all.retain(|one| rank(one).0 == 0);
    }
    let mut addresses: Vec<IpAddr> = all.into_iter().map(|(_, ip)| ip).collect();
    if addresses.is_empty() {
        addresses.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    addresses
}

fn fits(filter: Option<&str>, name: &str) -> bool {
    let Some(text) = filter.map(str::trim) else { return true };
    let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
    let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
    let matches = |item: &str| if exact { item == name } else { name.starts_with(item) };
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).any(matches) != exclude
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Interfaces that are up, with their addresses.
pub(crate) fn list() -> Vec<(String, IpAddr)> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the list is given back below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: an entry of the list, which lives until it is given back.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: the name is a C string.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        // SAFETY: the address has the type that its family says.
        let ip = unsafe {
            match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let v4 = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)))
                }
                libc::AF_INET6 => {
                    let v6 = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr))
                }
                _ => continue,
            }
        };
        found.push((name, ip));
    }
    // SAFETY: the list came from getifaddrs.
    unsafe { libc::freeifaddrs(first) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_an_address() {
        assert!(!own(None).is_empty());
        assert_eq!(own(Some("=lo"))[0], IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert!(!own(Some("=there-is-none")).is_empty());
    }

    #[test]
    fn the_filter_is_nccls() {
        assert!(fits(Some("eth"), "eth0") && !fits(Some("=eth"), "eth0"));
        assert!(!fits(Some("^eth,lo"), "lo") && fits(Some("^eth,lo"), "ib0"));
    }
}

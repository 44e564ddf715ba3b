//! Addresses of ports, and which of them a connection uses.

use std::net::{IpAddr, Ipv6Addr};

use super::Device;

/// An entry of a port's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gid {
    /// The bytes of the address.
    pub bytes: [u8; 16],
    /// RoCE version 1 or 2; 0 = InfiniBand.
    pub version: u8,
}

impl Gid {
    /// The IP address that a RoCE v2 address stands for.
    pub fn ip(&self) -> IpAddr {
        let address = Ipv6Addr::from(self.bytes);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }

    fn is_empty(&self) -> bool {
        self.bytes[8..].iter().all(|&byte| byte == 0)
    }

    fn is_link_local(&self) -> bool {
        self.bytes[0] == 0xfe && self.bytes[1] & 0xc0 == 0x80
    }
}

/// The wish of the user for a GID: `NCCL_IB_GID_INDEX`, `NCCL_IB_ROCE_VERSION_NUM`, `NCCL_IB_ADDR_FAMILY`,
/// `NCCL_IB_ADDR_RANGE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The index that the user wants, if any.
    pub index: Option<u32>,
    /// The version of RoCE that the user wants.
    pub version: u8,
    /// The user wants an IPv6 address.
    pub ipv6: bool,
    /// Network and its length.
    pub range: Option<(IpAddr, u8)>,
}

impl Wish {
    fn is_in_range(&self, ip: IpAddr) -> bool {
        let Some((network, length)) = self.range else { return true };
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
            IpAddr::V6(ip) => ip.to_bits(),
        };
        ip.is_ipv4() == network.is_ipv4() && (bits(ip) ^ bits(network)).leading_zeros() >= u32::from(length)
    }

    /// The rank of an address among those of its port; None: it is of no use.
    pub fn rank(&self, gid: &Gid, ethernet: bool) -> Option<u32> {
        if gid.is_empty() {
            return None;
        }
        if !ethernet {
            return Some(0);
        }
        let ip = gid.ip();
        if !self.is_in_range(ip) {
            return None;
        }
        let version = u32::from(gid.version == self.version) * 4;
        let family = u32::from(ip.is_ipv6() == self.ipv6) * 2;
        Some(version + family + u32::from(!gid.is_link_local()))
    }
}

/// The index and address to use on a port now.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn choose(device: &dyn Device, port: u8, wish: &Wish) -> Result<(u32, Gid), String> {
    let name = &device.info().name;
    let info = device.port(port).map_err(|errno| {
        format!("{name}:{port} cannot be queried: {}", std::io::Error::from_raw_os_error(errno))
    })?;
    // NCCL's setting is for RoCE too.
    if let Some(index) = wish.index.filter(|_| info.ethernet) {
        let gid = device.gid(port, index).ok_or_else(|| {
            format!(
                "{name}:{port} has no address with NCCL_IB_GID_INDEX={index}; it has {} entries",
                info.gids
            )
        })?;
        return Ok((index, gid));
    }
    if !info.ethernet {
        return device
            .gid(port, 0)
            .map(|gid| (0, gid))
            .ok_or_else(|| format!("{name}:{port} has no address"));
    }
    let all = (0..info.gids.min(256)).filter_map(|index| Some((index, device.gid(port, index)?)));
    let ranked = all.filter_map(|(index, gid)| Some((wish.rank(&gid, info.ethernet)?, index, gid)));
    // The first of the best.
    let best = ranked.max_by_key(|&(rank, index, _)| (rank, std::cmp::Reverse(index)));
    best.map(|(_, index, gid)| (index, gid)).ok_or_else(|| {
        format!(
            "{name}:{port} has no address that fits NCCL_IB_ADDR_RANGE; give its interface one, or unset it"
        )
    })
}

/// Reads a range such as `10.1.0.0/16`.
pub(crate) fn parse_range(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.trim().split_once('/')?;
    let (address, length) = (address.parse::<IpAddr>().ok()?, length.parse::<u8>().ok()?);
    (length <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> Wish {
        Wish { index: None, version: 2, ipv6: false, range: None }
    }

    fn gid(text: &str, version: u8) -> Gid {
        let bytes = match text.parse::<IpAddr>().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        Gid { bytes, version }
    }

    #[test]
    fn version_then_family_then_scope() {
        let order = [
            gid("fe80::1", 1),
            gid("2001::1", 1),
            gid("10.0.0.1", 1),
            gid("fe80::1", 2),
            gid("2001::1", 2),
            gid("10.0.0.1", 2),
        ];
        let ranks: Vec<_> = order.iter().map(|gid| wish().rank(gid, true).unwrap()).collect();
        assert!(ranks.is_sorted(), "{ranks:?}");
        let six = Wish { ipv6: true, ..wish() };
        assert!(six.rank(&gid("2001::1", 2), true) > six.rank(&gid("10.0.0.1", 2), true));
        assert_eq!(wish().rank(&Gid { bytes: [0; 16], version: 2 }, true), None);
    }

    #[test]
    fn ranges_exclude() {
        let wish = Wish { range: parse_range("10.1.0.0/16"), ..wish() };
        assert!(wish.rank(&gid("10.1.2.3", 2), true).is_some());
        assert!(wish.rank(&gid("10.2.2.3", 2), true).is_none());
        assert!(wish.rank(&gid("2001::1", 2), true).is_none());
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "::/129"] {
            assert_eq!(parse_range(bad), None, "{bad}");
        }
    }
}

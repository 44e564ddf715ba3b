//! The path of a socket: from an interface to an address of the peer.

use std::net::{IpAddr, SocketAddr};

use hawser_oob::interface::{self, Interface};
use hawser_oob::socket::Origin;

use crate::greeting::Socket;

/// Data socket `i` has its home: member `i` in turn, and an address of the peer in the same subnet if there
/// is one. Every third try, and every try for the control connection, goes another way. None: the peer has no
/// address.
pub(crate) fn choose(
    members: &[Interface],
    remotes: &[SocketAddr],
    socket: Socket,
    attempt: u32,
) -> Option<(Origin, SocketAddr)> {
    let attempt = attempt as usize;
    let turn = match socket {
        Socket::Control => attempt,
        Socket::Pipe(pipe) if attempt % 3 == 2 => usize::from(pipe) + attempt / 3 + 1,
        Socket::Pipe(pipe) => usize::from(pipe),
    };
    let (member, to) = pair(members, remotes, turn)?;
    let Some(member) = member else { return Some((Origin::default(), to)) };
    let to = member.scope(to);
    if members.len() == 1 {
        return Some((Origin::default(), to));
    }
    // Packets to an address of this host go through `lo`, whatever interface has the address.
    let interface = (!is_local(to.ip())).then(|| member.name.clone());
    Some((Origin { address: Some(member.socket_address(0)), interface }, to))
}

/// The member and the address for a turn.
fn pair<'a>(
    members: &'a [Interface],
    remotes: &[SocketAddr],
    turn: usize,
) -> Option<(Option<&'a Interface>, SocketAddr)> {
    let nth = |list: &[SocketAddr], n: usize| (!list.is_empty()).then(|| list[n % list.len()]);
    if members.is_empty() {
        return Some((None, nth(remotes, turn)?));
    }
    let member = &members[turn % members.len()];
    let select = |fits: &dyn Fn(&SocketAddr) -> bool| -> Vec<SocketAddr> {
        remotes.iter().copied().filter(|remote| fits(remote)).collect()
    };
    let near = select(&|remote| member.is_near(remote.ip()));
    let of_family = select(&|remote| remote.is_ipv4() == member.address.is_ipv4());
    // Home is the near one; members that share a subnet spread over its addresses.
    if turn < members.len() || near.len() > 1 {
        let index = members[..turn % members.len()].iter().filter(|m| m.address != member.address).count();
        if let Some(to) = nth(&near, index + turn / members.len()) {
            return Some((Some(member), to));
        }
    }
    if let Some(to) = nth(&of_family, turn) {
        return Some((Some(member), to));
    }
    // No member speaks the peer's family through its own address: let the routing table find a way.
    Some((None, nth(remotes, turn)?))
}

/// Tells whether an address belongs to this host.
pub(crate) fn is_local(address: IpAddr) -> bool {
    let is_own = |all: Vec<Interface>| all.iter().any(|one| one.address == address);
    address.is_loopback() || interface::list().is_ok_and(is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, address: &str) -> Interface {
        Interface { name: name.into(), index: 7, address: address.parse().unwrap(), prefix: 24 }
    }

    fn remotes(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_interface_leaves_the_choice_to_the_routing_table() {
        let members = [member("eth0", "10.0.0.2")];
        let (origin, to) = choose(&members, &remotes(&["10.0.0.3:5"]), Socket::Pipe(3), 0).unwrap();
        assert_eq!((origin.address, origin.interface, to.port()), (None, None, 5));
        assert!(choose(&members, &[], Socket::Control, 0).is_none());
    }

    #[test]
    fn two_interfaces_share_the_data_sockets() {
        let members = [member("eth0", "10.0.0.2"), member("eth1", "10.0.1.2")];
        let peer = remotes(&["10.0.1.3:6", "10.0.0.3:5"]);
        let way = |pipe, attempt| {
            let (origin, to) = choose(&members, &peer, Socket::Pipe(pipe), attempt).unwrap();
            (origin.interface.unwrap(), to.port())
        };
        assert_eq!(way(0, 0), ("eth0".into(), 5));
        assert_eq!(way(1, 0), ("eth1".into(), 6));
        assert_eq!(way(0, 1), ("eth0".into(), 5));
        assert_eq!(way(0, 2).0, "eth1");
    }

    #[test]
    fn members_in_one_subnet_reach_all_addresses_of_the_peer() {
        let members = [member("eth0", "10.0.0.2"), member("eth1", "10.0.0.3")];
        let peer = remotes(&["10.0.0.8:1", "10.0.0.9:2"]);
        let ports: Vec<u16> =
            (0..2).map(|pipe| choose(&members, &peer, Socket::Pipe(pipe), 0).unwrap().1.port()).collect();
        assert_eq!(ports, [1, 2]);
    }

    #[test]
    fn the_control_connection_tries_every_way() {
        let members = [member("eth0", "10.0.0.2"), member("eth1", "10.0.1.2")];
        let peer = remotes(&["10.0.0.3:5", "10.0.1.3:6"]);
        let ports: std::collections::BTreeSet<u16> = (0..4)
            .map(|attempt| choose(&members, &peer, Socket::Control, attempt).unwrap().1.port())
            .collect();
        assert_eq!(ports.len(), 2);
    }

    #[test]
    fn link_local_addresses_get_our_scope() {
        let members = [member("eth0", "fe80::2")];
        let (_, to) = choose(&members, &remotes(&["[fe80::3]:5"]), Socket::Control, 0).unwrap();
        assert!(matches!(to, SocketAddr::V6(v6) if v6.scope_id() == 7));
    }

    #[test]
    fn loopback_is_local() {
        assert!(is_local("127.0.0.9".parse().unwrap()));
        assert!(!is_local("203.0.113.1".parse().unwrap()));
    }
}

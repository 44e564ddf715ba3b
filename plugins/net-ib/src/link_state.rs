//! The state of a RoCE port's network interface, if it hears its link, asked of the kernel directly.
//!
//! Events of Ethernet ports come from Linux' link watch, which reports losses of all interfaces at most once
//! per second (`net/core/link_watch.c`): the second of two cables is missed for that long.
//! `/sys/class/net/*/carrier` is always true.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hawser_oob::interface as network;

use crate::verbs::gid::Gid;

/// The open file `carrier` of an interface.
#[derive(Debug)]
pub(crate) struct LinkState(File);

impl LinkState {
    /// None: there is no such interface in this network namespace, or it does not have the port's address.
    pub fn of(interface: &str, gid: &Gid) -> Option<Self> {
        let all = network::list().unwrap_or_default();
        let is_ours = all.iter().any(|one| one.name == interface && one.address == gid.ip());
        let path = Path::new("/sys/class/net").join(interface).join("carrier");
        is_ours.then(|| File::open(path).ok().map(Self)).flatten()
    }

    /// An interface that was taken down or removed cannot be read: it hears nothing.
    pub fn is_on(&self) -> bool {
        let mut byte = [0];
        self.0.read_at(&mut byte, 0).is_ok_and(|count| count == 1 && byte == *b"1")
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn gid(ip: Ipv4Addr) -> Gid {
        Gid { bytes: ip.to_ipv6_mapped().octets(), version: 2 }
    }

    #[test]
    fn the_loopback_is_on_and_strangers_are_not_asked() {
        assert!(LinkState::of("lo", &gid(Ipv4Addr::LOCALHOST)).is_some_and(|link| link.is_on()));
        assert!(LinkState::of("lo", &gid(Ipv4Addr::new(192, 0, 2, 1))).is_none());
        assert!(LinkState::of("there-is-none", &gid(Ipv4Addr::LOCALHOST)).is_none());
    }

    #[test]
    fn what_cannot_be_read_is_off() {
        let path = std::env::temp_dir().join(format!("hawser-carrier-{}", std::process::id()));
        for (text, on) in [("1\n", true), ("0\n", false), ("", false)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(LinkState(File::open(&path).unwrap()).is_on(), on, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        let folder = File::open(std::env::temp_dir()).unwrap();
        assert!(!LinkState(folder).is_on());
    }
}

//! The sockets that clients of RAS connect to.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};

use hawser_base::error::{Error, Result};
use hawser_base::liveness::forked::ClosedInChildren;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// Clients that may wait to be let in.
const BACKLOG: i32 = 128;

/// A socket that listens, also while other processes of this user listen at the same address.
pub struct Listener {
    // Before the descriptor, which its number is of.
    _closed_in_children: ClosedInChildren,
    /// The socket.
    pub fd: OwnedFd,
    /// Its address.
    pub address: SocketAddr,
}

/// Listens at every address that a text `host:port` means: `localhost` has one of each family.
///
/// # Errors
/// `InvalidUsage` if the text is no address; `System` if none of the addresses can be had.
pub fn open(text: &str) -> Result<Vec<Listener>> {
    let remedy = "set NCCL_RAS_ADDR to host:port, or NCCL_RAS_ENABLE=0";
    let addresses = text.to_socket_addrs().map_err(|error| {
        Error::invalid_usage(format!("NCCL_RAS_ADDR={text} is no address that is known here: {error}"))
            .remedy(remedy)
    })?;
    let (mut listeners, mut failed): (Vec<Listener>, Option<(SocketAddr, Errno)>) = (Vec::new(), None);
    for address in addresses {
        if listeners.iter().any(|listener| listener.address == address) {
            continue;
        }
        match one(address) {
            Ok(listener) => listeners.push(listener),
            Err(errno) => failed = failed.or(Some((address, errno))),
        }
    }
    match failed {
        Some((address, errno)) if listeners.is_empty() => {
            Err(Error::system(format!("listening at {address} for clients of RAS"), errno).remedy(remedy))
        }
        _ if listeners.is_empty() => {
            Err(Error::invalid_usage(format!("NCCL_RAS_ADDR={text} means no address")).remedy(remedy))
        }
        _ => Ok(listeners),
    }
}

fn one(address: SocketAddr) -> std::result::Result<Listener, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    sockopt::set_socket_reuseport(&fd, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    bind(&fd, &address)?;
    listen(&fd, BACKLOG)?;
    Ok(Listener { _closed_in_children: ClosedInChildren::new(fd.as_fd()), fd, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_refused_and_says_what_to_do() {
        for text in ["", "28028", "localhost", "localhost:99999", "no such host:1"] {
            let error = open(text).err().expect(text);
            assert!(error.to_string().contains("NCCL_RAS_ADDR"), "{error}");
        }
    }

    #[test]
    fn two_processes_may_have_one_port() {
        let first = open("127.0.0.1:0").unwrap();
        let port = sockopt_port(&first[0]);
        let second = open(&format!("127.0.0.1:{port}")).unwrap();
        assert_eq!(sockopt_port(&second[0]), port);
    }

    fn sockopt_port(listener: &Listener) -> u16 {
        let name = rustix::net::getsockname(&listener.fd).unwrap();
        SocketAddr::try_from(name).unwrap().port()
    }
}

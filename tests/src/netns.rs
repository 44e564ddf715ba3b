//! Hosts on one machine: a network namespace each, wired to switches in one more namespace.
//!
//! Needs Linux, root and the commands of iproute2. Nothing outside these namespaces is touched, and no packet
//! leaves them. Their names hold the number of this process: what a killed one left behind, the next one
//! removes.

use crate::skip::skipped;
use std::io::{Error, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The beginning of the names of namespaces.
const PREFIX: &str = "hawser-test-";

/// The addresses that hosts have. Never both kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// 10.77.NIC.HOST+1, in subnets of 24 bits.
    V4,
    /// fd77:0:0:NIC::HOST+1, in subnets of 64 bits.
    V6,
}

/// Hosts with NICs `eth0`, `eth1` and so on. Those with the same number are in one subnet. Removed when
/// dropped.
pub struct Network {
    name: String,
    hosts: u32,
    nics: u32,
    family: Family,
}

impl Network {
    /// Sets it up. None, with a line that says why, where that is not allowed.
    pub fn start(hosts: u32, nics: u32, family: Family) -> Option<Self> {
        // One at a time: the first namespace ever makes `ip` prepare their folder.
        static NUMBER: Mutex<u32> = Mutex::new(0);
        let mut number = NUMBER.lock().unwrap_or_else(PoisonError::into_inner);
        remove_leftovers();
        *number += 1;
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        if let Err(why) = ip(&["netns", "add", &format!("{name}-switch")], "") {
            skipped(format_args!(
                "no network namespace can be made here (it takes root and iproute2): {why}"
            ));
            return None;
        }
        let network = Self { name, hosts, nics, family };
        network.build().unwrap_or_else(|why| panic!("the network cannot be set up: {why}"));
        Some(network)
    }

    /// Does `work` in a thread on a host; threads and processes that it starts are on that host too.
    pub fn on<T: Send>(&self, host: u32, work: impl FnOnce() -> T + Send) -> T {
        let path = Path::new("/run/netns").join(self.host(host));
        std::thread::scope(|scope| {
            let moved = scope.spawn(move || {
                let namespace = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .unwrap_or_else(|e| panic!("{path:?} cannot be entered: {e}"));
                work()
            });
            moved.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The address of a NIC.
    pub fn address(&self, host: u32, nic: u32) -> IpAddr {
        let (host, nic) = (host as u16 + 1, nic as u16);
        match self.family {
            Family::V4 => Ipv4Addr::new(10, 77, nic as u8, host as u8).into(),
            Family::V6 => Ipv6Addr::new(0xfd77, 0, 0, nic, 0, 0, 0, host).into(),
        }
    }

    /// Takes a NIC's cable out of the switch.
    pub fn pull(&self, host: u32, nic: u32) {
        self.set_port(host, nic, "down");
    }

    /// Puts it back.
    pub fn plug(&self, host: u32, nic: u32) {
        self.set_port(host, nic, "up");
    }

    /// Drops what a host sends to TCP ports of other hosts, or lets it pass again.
    pub fn block(&self, host: u32, ports: &[u16], is_blocked: bool) {
        let verb = if is_blocked { "add" } else { "del" };
        for port in ports {
            let port = port.to_string();
            let rule = ["-n", &self.host(host), "rule", verb, "ipproto", "tcp", "dport", &port, "blackhole"];
            ip(&rule, "").unwrap_or_else(|why| panic!("the rules of host {host} cannot be changed: {why}"));
        }
    }

    /// The places where somebody on a host waits for TCP connections.
    pub fn listening(&self, host: u32) -> Vec<SocketAddr> {
        let read = || ["tcp", "tcp6"].map(|f| std::fs::read_to_string(format!("/proc/thread-self/net/{f}")));
        let tables = self.on(host, read);
        let tables = tables.map(|table| table.expect("the kernel lists its sockets"));
        tables.iter().flat_map(|table| table.lines()).filter_map(listener).collect()
    }

    /// Makes all cables bad: packets are late and get lost. None, with a line that says so, if the kernel
    /// cannot.
    pub fn spoil(&self) -> Option<()> {
        let ways = ["netem delay 2ms 1ms loss 2%", "tbf rate 200mbit burst 8kb limit 24kb"];
        let why = ways.map(|way| {
            let lines: String = self
                .cables()
                .map(|(h, n)| format!("qdisc replace dev {} root {way}\n", port(h, n)))
                .collect();
            run("tc", &["-n", &self.switch(), "-batch", "-"], &lines)
        });
        if why.iter().all(Result::is_err) {
            skipped(format_args!("this kernel spoils no packets: {why:?}"));
            return None;
        }
        Some(())
    }

    /// Packets that bad cables have lost.
    pub fn lost(&self) -> u64 {
        let text = run("tc", &["-s", "-n", &self.switch(), "qdisc", "show"], "").expect("tc worked before");
        let counts = text.split("(dropped ").skip(1).map(|rest| rest.split(',').next());
        counts.map(|count| count.and_then(|c| c.parse::<u64>().ok()).expect("a number")).sum()
    }

    fn build(&self) -> Result<(), Error> {
        ip(
            &["-batch", "-"],
            &self.host_names().map(|name| format!("netns add {name}\n")).collect::<String>(),
        )?;
        let mut lines = String::new();
        for nic in 0..self.nics {
            lines += &format!("link add br{nic} type bridge forward_delay 0\nlink set br{nic} up\n");
        }
        for (host, nic) in self.cables() {
            let (port, name) = (port(host, nic), self.host(host));
            lines += &format!("link add {port} type veth peer name eth{nic} netns {name}\n");
            lines += &format!("link set {port} master br{nic} up\n");
        }
        ip(&["-n", &self.switch(), "-batch", "-"], &lines)?;
        for host in 0..self.hosts {
            let mut lines = "link set lo up\n".to_owned();
            for nic in 0..self.nics {
                // Otherwise the address cannot be used for the first seconds.
                let (bits, at_once) = if self.family == Family::V4 { (24, "") } else { (64, "nodad") };
                lines += &format!("addr add {}/{bits} dev eth{nic} {at_once}\n", self.address(host, nic));
                lines += &format!("link set eth{nic} up\n");
            }
            ip(&["-n", &self.host(host), "-batch", "-"], &lines)?;
        }
        Ok(())
    }

    fn set_port(&self, host: u32, nic: u32, state: &str) {
        let set = ip(&["-n", &self.switch(), "link", "set", &port(host, nic), state], "");
        set.unwrap_or_else(|why| panic!("the cable of host {host} cannot be moved: {why}"));
    }

    fn cables(&self) -> impl Iterator<Item = (u32, u32)> {
        let nics = self.nics;
        (0..self.hosts).flat_map(move |host| (0..nics).map(move |nic| (host, nic)))
    }

    fn host_names(&self) -> impl Iterator<Item = String> {
        (0..self.hosts).map(|host| self.host(host))
    }

    fn host(&self, number: u32) -> String {
        format!("{}-{number}", self.name)
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.name)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(self.host_names().chain([self.switch()]));
    }
}

/// The switch's end of a cable.
fn port(host: u32, nic: u32) -> String {
    format!("host{host}nic{nic}")
}

/// Removes the namespaces of processes that are gone.
fn remove_leftovers() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    remove(names.filter(|name| {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        process.is_some_and(|number| !Path::new("/proc").join(number).exists())
    }));
}

fn remove(names: impl Iterator<Item = String>) {
    let lines: String = names.map(|name| format!("netns del {name}\n")).collect();
    // Another process may be faster; the names do no harm.
    let _ = if lines.is_empty() { Ok(String::new()) } else { ip(&["-force", "-batch", "-"], &lines) };
}

fn ip(args: &[&str], input: &str) -> Result<String, Error> {
    run("ip", args, input)
}

/// Runs a command to its end: what it wrote, or what it complained about.
fn run(program: &str, args: &[&str], input: &str) -> Result<String, Error> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // It may end without reading; then its status says why.
    let _ = child.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::other(format!("{program} {}: {}", args.join(" "), text.trim())))
}

/// The address in a line of the kernel's table of TCP sockets, if that socket listens.
fn listener(line: &str) -> Option<SocketAddr> {
    let mut fields = line.split_whitespace().skip(1);
    let (ip, port) = fields.next()?.split_once(':')?;
    if fields.nth(1)? != "0A" {
        return None;
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    // Words of four bytes in the order of the machine.
    let words = (0..ip.len() / 8).map(|i| u32::from_str_radix(ip.get(8 * i..8 * i + 8)?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<_>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match <[u8; 16]>::try_from(bytes.as_slice()) {
        Ok(bytes) => IpAddr::from(bytes),
        Err(_) => IpAddr::from(<[u8; 4]>::try_from(bytes.as_slice()).ok()?),
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_told_from_connections() {
        let (v4, v6) = if cfg!(target_endian = "little") {
            ("0200000A:1F90", "000077FD000000000000000001000000:0050")
        } else {
            ("0A000002:1F90", "FD770000000000000000000000000001:0050")
        };
        let line =
            |local: &str, state: &str| format!("   3: {local} 00000000:0000 {state} 00000000:00000000");
        assert_eq!(listener(&line(v4, "0A")), Some("10.0.0.2:8080".parse().unwrap()));
        assert_eq!(listener(&line(v6, "0A")), Some("[fd77::1]:80".parse().unwrap()));
        assert_eq!(listener(&line(v4, "01")), None);
        assert_eq!(listener("  sl  local_address rem_address   st tx_queue rx_queue"), None);
    }
}

//! Processes: what other ranks are told of one, and the descriptor that becomes readable when it ends.

use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use hawser_oob::sha256;
use hawser_oob::wait::poll;
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Bytes of a host's name that other ranks are told.
const NAME: usize = 32;

/// The knowledge of the ranks of a communicator about the process of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Equal for processes that see each other's process ids, and count as ranks of one host.
    machine: [u8; 16],
    /// The time at which the process began, in ticks since the host did: process ids are used again.
    start: u64,
    /// The process id.
    pub pid: u32,
    /// The rank in the first communicator that this one is a split of.
    pub world: u32,
    host: [u8; NAME],
}

impl Identity {
    /// Bytes of an encoded identity.
    pub const LEN: usize = 16 + 8 + 4 + 4 + NAME;

    /// This process, as `world` of the first communicator. `host_id` stands for the host if there is one.
    pub fn own(world: u32, host_id: Option<&str>) -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let said = format!("{boot}\n{}\n{}", namespace.display(), host_id.unwrap_or(&name));
        let (mut machine, mut host) = ([0; 16], [0; NAME]);
        machine.copy_from_slice(&sha256::hash(said.as_bytes())[..16]);
        let length = (0..=name.len().min(NAME)).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
        host[..length].copy_from_slice(&name.as_bytes()[..length]);
        let pid = std::process::id();
        Self { machine, start: start_of(pid).unwrap_or(0), pid, world, host }
    }

    /// The identity as bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.machine);
        bytes[16..24].copy_from_slice(&self.start.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.pid.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.world.to_le_bytes());
        bytes[32..].copy_from_slice(&self.host);
        bytes
    }

    /// Reads what [`Identity::encode`] wrote. Any bytes are some identity.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
            let mut field = [0; N];
            field.copy_from_slice(&bytes[at..at + N]);
            field
        }
        Self {
            machine: field(bytes, 0),
            start: u64::from_le_bytes(field(bytes, 16)),
            pid: u32::from_le_bytes(field(bytes, 24)),
            world: u32::from_le_bytes(field(bytes, 28)),
            host: field(bytes, 32),
        }
    }

    /// The name of its host, as far as it is printable.
    pub fn host(&self) -> String {
        let length = self.host.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        let name = String::from_utf8_lossy(&self.host[..length]);
        name.chars().filter(|letter| !letter.is_control()).collect()
    }

    /// Equal for processes that see each other's process ids, and count as ranks of one host.
    pub fn machine(&self) -> [u8; 16] {
        self.machine
    }

    /// True if the two are one process.
    pub fn is_same_process(&self, other: &Self) -> bool {
        (self.machine, self.pid, self.start) == (other.machine, other.pid, other.start)
    }

    /// True if this host has a process of this number that began at the same time, whatever stands for the
    /// host.
    pub fn is_seen_here(&self) -> bool {
        self.start != 0 && start_of(self.pid) == Some(self.start)
    }

    /// True if the end of one process can be noticed by the other through the kernel.
    pub fn is_near(&self, other: &Self) -> bool {
        self.machine == other.machine && !self.is_same_process(other)
    }
}

/// The result of a look for a process.
#[derive(Debug)]
pub enum Found {
    /// It runs; the descriptor becomes readable when it ends.
    Running(Arc<OwnedFd>),
    /// It has ended.
    Over,
    /// This kernel does not tell.
    Unknown(Errno),
}

/// Descriptors by process id and begin.
type Open = FxHashMap<(u32, u64), Weak<OwnedFd>>;

/// The descriptors of this process: all communicators share them.
static OPEN: LazyLock<Mutex<Open>> = LazyLock::new(Default::default);

/// Looks for a process that [`Identity::is_near`].
pub fn find(identity: &Identity) -> Found {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|_, descriptor| descriptor.strong_count() > 0);
    let key = (identity.pid, identity.start);
    if let Some(descriptor) = open.get(&key).and_then(Weak::upgrade) {
        return Found::Running(descriptor);
    }
    let Some(pid) = i32::try_from(identity.pid).ok().and_then(Pid::from_raw) else {
        return Found::Unknown(Errno::INVAL);
    };
    let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => Arc::new(descriptor),
        Err(Errno::SRCH) => return Found::Over,
        Err(errno) => return Found::Unknown(errno),
    };
    // Asked with the descriptor open: the number cannot pass to another process now.
    if identity.start != 0 && start_of(identity.pid).is_some_and(|start| start != identity.start) {
        return Found::Over;
    }
    open.insert(key, Arc::downgrade(&descriptor));
    Found::Running(descriptor)
}

/// Returns whether a process that [`Identity::is_near`] has ended, or ends within `limit`: the kernel closes
/// the sockets of a process that is killed before it tells of its end.
pub fn ends_within(identity: &Identity, limit: Duration) -> bool {
    match find(identity) {
        Found::Running(descriptor) => {
            let mut fds = [PollFd::new(&*descriptor, PollFlags::IN)];
            poll(&mut fds, Some(limit)).is_ok() && !fds[0].revents().is_empty()
        }
        Found::Over => true,
        Found::Unknown(_) => false,
    }
}

/// The time at which a process began: field 22 of `/proc/PID/stat`, behind the name in parentheses, which may
/// hold anything.
fn start_of(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let behind = &text[text.rfind(')')? + 1..];
    behind.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags};

    #[test]
    fn identities_survive_the_wire_and_know_themselves() {
        let own = Identity::own(3, None);
        assert_eq!(Identity::decode(&own.encode()), own);
        assert_eq!(own.pid, std::process::id());
        assert!(own.start > 0 && !own.host().is_empty());
        let (other, elsewhere) = (Identity { start: 1, ..own }, Identity::own(3, Some("elsewhere")));
        assert!(own.is_same_process(&Identity::own(5, None)) && !own.is_near(&own));
        assert!(own.is_near(&other) && !own.is_near(&elsewhere));
        let strange = Identity { host: [7; NAME], ..own };
        assert_eq!(strange.host(), "");
    }

    #[test]
    fn the_end_of_a_process_is_noticed_and_its_number_is_not_mistaken() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let identity = Identity { pid, start: start_of(pid).unwrap(), ..Identity::own(0, None) };
        let Found::Running(descriptor) = find(&identity) else { panic!("it runs") };
        let has_ended = |limit| {
            let mut fds = [PollFd::new(&*descriptor, PollFlags::IN)];
            hawser_oob::wait::poll(&mut fds, Some(limit)).unwrap() > 0
        };
        assert!(!has_ended(std::time::Duration::ZERO));
        let later = Identity { start: identity.start + 1, ..identity };
        assert!(matches!(find(&later), Found::Over), "another process with the same number");
        assert!(matches!(find(&identity), Found::Running(again) if Arc::ptr_eq(&again, &descriptor)));
        child.kill().unwrap();
        while !has_ended(std::time::Duration::from_secs(10)) {}
        child.wait().unwrap();
        drop(descriptor);
        assert!(matches!(find(&identity), Found::Over));
    }
}

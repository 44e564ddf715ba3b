//! The settings, and the one place that reads them from the environment.

use std::net::IpAddr;
use std::time::Duration;

use hawser_oob::interface::Family;
use hawser_oob::socket::{Keepalive, Options};
use hawser_oob::wire::Wire;

/// Sockets of a connection at most (NCCL's limit too).
pub const MAX_SOCKETS: usize = 64;
/// Threads of a context at most (NCCL's limit too).
pub const MAX_THREADS: usize = 16;

/// An idle socket asks its peer after 10 s, three times every 5 s.
const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(5), count: 3 };

const KIB: usize = 1 << 10;

/// The settings of the plugin. [`Settings::from_environment`] is what the library uses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// `NCCL_SOCKET_IFNAME`.
    pub ifname: Option<String>,
    /// `NCCL_SOCKET_FAMILY`; None = both families.
    pub family: Option<Family>,
    /// `NCCL_SOCKET_NTHREADS`: threads of a context that move long messages. 0: the calling thread moves
    /// everything.
    pub threads: usize,
    /// Data sockets of a connection: threads (at least 1) times `NCCL_NSOCKS_PERTHREAD`.
    pub sockets: usize,
    /// `NCCL_SOCKET_RCVBUF` in bytes; None = the kernel adapts it.
    pub receive_buffer: Option<usize>,
    /// `NCCL_SOCKET_SNDBUF` in bytes; None = the kernel adapts it.
    pub send_buffer: Option<usize>,
    /// `HAWSER_SOCKET_TIMEOUT`: how long a connection may be without any path to its peer.
    pub timeout: Duration,
    /// `HAWSER_SOCKET_ZEROCOPY`: `MSG_ZEROCOPY` for chunks of 64 KiB and more to other hosts.
    pub zero_copy: bool,
    /// `HAWSER_SOCKET_INLINE`: messages of up to this many bytes travel in the control connection.
    pub inline: usize,
    /// `HAWSER_SOCKET_CHUNK`: largest chunk in bytes.
    pub chunk: usize,
    /// `HAWSER_SOCKET_SPIN`: how long a thread looks for more work before it sleeps.
    pub spin: Duration,
    /// `HAWSER_SOCKET_HELP`: whether the calling threads move long messages beside the threads.
    pub help: Help,
    /// The protection of what connections carry. The program that opens the plugin asks for it
    /// ([`hawser_oob::wire::offer`]); both ends need the same.
    pub wire: Wire,
    /// Devices with these names and addresses instead of what the host has. For tests.
    #[doc(hidden)]
    pub forced: Vec<(String, IpAddr)>,
}

/// The condition under which the calling threads move long messages beside the plugin's threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Help {
    /// While those have to wait for processors.
    WhenCrowded,
    /// Never (0).
    Never,
    /// Always (1).
    Always,
}

impl Settings {
    /// The defaults on a machine with this many processors.
    pub fn new(processors: usize) -> Self {
        let threads = default_threads(processors);
        Self {
            ifname: None,
            family: None,
            threads,
            sockets: threads.max(1),
            receive_buffer: None,
            send_buffer: None,
            timeout: Duration::from_secs(60),
            zero_copy: false,
            inline: crate::frame::MAX_INLINE,
            chunk: 256 * KIB,
            spin: Duration::from_micros(if processors >= 16 { 20 } else { 0 }),
            help: Help::WhenCrowded,
            wire: Wire::Plain,
            forced: Vec::new(),
        }
    }

    /// The settings of the environment, and a sentence about each value that makes no sense.
    pub fn from_environment() -> (Self, Vec<String>) {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::read(processors, |name| hawser_plugin::setting(name)?.into_string().ok())
    }

    /// Tells whether a variable of this name is one of these settings.
    pub fn has(name: &str) -> bool {
        let is_read = std::cell::Cell::new(false);
        Self::read(1, |asked| {
            is_read.set(is_read.get() || asked == name);
            None
        });
        is_read.get()
    }

    /// The time in which a peer whose host refuses connections may still come back: 3 s unless the timeout is
    /// short. Its listener was there before its handle was, so its process is most likely gone.
    pub(crate) fn patience_with_refusals(&self) -> Duration {
        (self.timeout / 20).min(Duration::from_secs(3))
    }

    /// The time that a sender whose sockets were closed at its end may take to come back: 5 s unless the
    /// timeout is short. It dials at once if its process is alive.
    pub(crate) fn patience_with_silence(&self) -> Duration {
        (self.timeout / 12).min(Duration::from_secs(5))
    }

    /// The options of every socket of a context.
    pub(crate) fn socket_options(&self, traffic_class: Option<i32>) -> Options {
        Options {
            keepalive: Some(KEEPALIVE),
            receive_buffer: self.receive_buffer,
            send_buffer: self.send_buffer,
            traffic_class: traffic_class.and_then(|class| u8::try_from(class).ok()),
        }
    }

    fn read(processors: usize, value: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut settings = Self::new(processors);
        let mut numbers = Numbers { value: &value, complaints: Vec::new() };
        let threads = numbers.optional("NCCL_SOCKET_NTHREADS", 0, MAX_THREADS);
        let per_thread = numbers.optional("NCCL_NSOCKS_PERTHREAD", 1, MAX_SOCKETS);
        settings.threads = threads.unwrap_or(settings.threads);
        settings.sockets = (settings.threads.max(1) * per_thread.unwrap_or(1)).min(MAX_SOCKETS);
        settings.receive_buffer = numbers.optional("NCCL_SOCKET_RCVBUF", 4 * KIB, 1 << 30);
        settings.send_buffer = numbers.optional("NCCL_SOCKET_SNDBUF", 4 * KIB, 1 << 30);
        let seconds = numbers.optional("HAWSER_SOCKET_TIMEOUT", 1, 86_400);
        settings.timeout = seconds.map_or(settings.timeout, |s| Duration::from_secs(s as u64));
        settings.zero_copy = numbers.optional("HAWSER_SOCKET_ZEROCOPY", 0, 1) == Some(1);
        let inline = numbers.optional("HAWSER_SOCKET_INLINE", 0, crate::frame::MAX_INLINE);
        settings.inline = inline.unwrap_or(settings.inline);
        let chunk = numbers.optional("HAWSER_SOCKET_CHUNK", 4 * KIB, crate::frame::MAX_CHUNK);
        settings.chunk = chunk.unwrap_or(settings.chunk);
        let spin = numbers.optional("HAWSER_SOCKET_SPIN", 0, 10_000);
        settings.spin = spin.map_or(settings.spin, |us| Duration::from_micros(us as u64));
        settings.help = match numbers.optional("HAWSER_SOCKET_HELP", 0, 1) {
            None => Help::WhenCrowded,
            Some(0) => Help::Never,
            Some(_) => Help::Always,
        };
        let mut complaints = numbers.complaints;
        settings.ifname = value("NCCL_SOCKET_IFNAME").filter(|text| !text.trim().is_empty());
        settings.family = match value("NCCL_SOCKET_FAMILY").as_deref() {
            None | Some("") => None,
            Some(text) => {
                let family = Family::parse(text);
                if family.is_none() {
                    let why = "it is AF_INET or AF_INET6";
                    complaints.push(format!("NCCL_SOCKET_FAMILY={text} is ignored: {why}"));
                }
                family
            }
        };
        (settings, complaints)
    }
}

/// One rank of a host with eight gets about half of its share: 4 threads from 32 processors on, none below 8.
fn default_threads(processors: usize) -> usize {
    (processors / 8).min(4)
}

struct Numbers<'a> {
    value: &'a dyn Fn(&str) -> Option<String>,
    complaints: Vec<String>,
}

impl Numbers<'_> {
    /// None: not set, or NCCL's -1 and -2 for "choose yourself", or nonsense.
    fn optional(&mut self, name: &str, least: usize, most: usize) -> Option<usize> {
        let text = (self.value)(name)?;
        match text.trim().parse::<i64>() {
            Ok(-2 | -1) => None,
            Ok(number) if usize::try_from(number).is_ok_and(|n| (least..=most).contains(&n)) => {
                Some(number as usize)
            }
            Ok(_) => {
                self.complaints.push(format!("{name}={text} is ignored: it is from {least} to {most}"));
                None
            }
            Err(_) if text.trim().is_empty() => None,
            Err(_) => {
                self.complaints.push(format!("{name}={text} is ignored: it is not a number"));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let find = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_string());
        Settings::read(128, find)
    }

    #[test]
    fn the_environment_overrides_the_defaults() {
        let (plain, complaints) = read(&[]);
        assert_eq!((plain.clone(), complaints), (Settings::new(128), vec![]));
        assert_eq!((plain.threads, plain.sockets, plain.timeout.as_secs()), (4, 4, 60));
        let (settings, complaints) = read(&[
            ("NCCL_SOCKET_NTHREADS", "3"),
            ("NCCL_NSOCKS_PERTHREAD", "40"),
            ("NCCL_SOCKET_IFNAME", "=eth0"),
            ("NCCL_SOCKET_FAMILY", "AF_INET6"),
            ("HAWSER_SOCKET_TIMEOUT", "5"),
            ("HAWSER_SOCKET_ZEROCOPY", "1"),
            ("HAWSER_SOCKET_HELP", "1"),
            ("NCCL_SOCKET_RCVBUF", "-1"),
        ]);
        assert_eq!(complaints, Vec::<String>::new());
        assert_eq!((settings.threads, settings.sockets), (3, MAX_SOCKETS));
        assert_eq!((settings.ifname.as_deref(), settings.family), (Some("=eth0"), Some(Family::V6)));
        assert_eq!((settings.timeout.as_secs(), settings.zero_copy), (5, true));
        assert_eq!((settings.receive_buffer, settings.help), (None, Help::Always));
    }

    #[test]
    fn no_threads_is_one_thread_for_the_number_of_sockets() {
        let (settings, _) = read(&[("NCCL_SOCKET_NTHREADS", "0"), ("NCCL_NSOCKS_PERTHREAD", "3")]);
        assert_eq!((settings.threads, settings.sockets), (0, 3));
        assert_eq!(Settings::new(2).threads, 0);
        assert_eq!(Settings::new(2).sockets, 1);
    }

    #[test]
    fn its_names_are_known() {
        for name in ["NCCL_SOCKET_NTHREADS", "HAWSER_SOCKET_HELP", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_IFNAME"]
        {
            assert!(Settings::has(name), "{name}");
        }
        assert!(!Settings::has("NCCL_SOCKET_RETRY_CNT"));
    }

    #[test]
    fn nonsense_is_ignored_aloud() {
        for (name, text) in [
            ("NCCL_SOCKET_NTHREADS", "17"),
            ("NCCL_NSOCKS_PERTHREAD", "0"),
            ("HAWSER_SOCKET_TIMEOUT", "soon"),
            ("NCCL_SOCKET_FAMILY", "ipv4"),
            ("HAWSER_SOCKET_CHUNK", "-7"),
            ("HAWSER_SOCKET_HELP", "2"),
        ] {
            let (settings, complaints) = read(&[(name, text)]);
            assert_eq!(settings, Settings::new(128), "{name}");
            assert!(complaints.len() == 1 && complaints[0].contains(name), "{complaints:?}");
        }
    }
}

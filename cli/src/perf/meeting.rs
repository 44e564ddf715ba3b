//! The meeting of the processes of a job, which prove that they are of one job: connections to process 0.
//!
//! Both ends of a connection prove to know a secret ([`hawser_oob::handshake`]) before a byte of it counts;
//! whoever does not is turned away. On one host the secret is random and lies, with the address, in a file
//! that only this user can read. Between hosts it comes from `HAWSER_COMM_ID_KEY_FILE`; without that it
//! follows from the job's name, which others may guess, and process 0 says so. After the handshake everything
//! is encrypted with keys that follow from the secret ([`hawser_oob::seal`]), since the unique id goes this
//! way, which is the secret of the job's ranks.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hawser_base::env::settings;
use hawser_base::files::read_key;
use hawser_oob::accept::{Acceptor, Arrival, Limits, WRONG_KEY};
use hawser_oob::dial::{self, Offer, Retry};
use hawser_oob::error::ErrorKind;
use hawser_oob::foreign;
use hawser_oob::handshake::{Key, Protocol, SECRET};
use hawser_oob::sha256;
use hawser_oob::socket::{self, Address, Options};
use hawser_oob::stream::Stream;
use hawser_oob::wait::{self, Until};
use rustix::fs::OFlags;

use super::launcher::{Meeting, Place, unique};

/// A greeting adds the index of the process.
const PROTOCOL: Protocol = Protocol { magic: *b"HAWSperf", version: 2, greeting: 4, answer: 0, welcome: 0 };
/// Bytes that a process other than 0 sends in clear: its greeting and its answer.
#[cfg(test)]
pub const FIRST_WORDS: usize = PROTOCOL.greeting_bytes() + PROTOCOL.answer_bytes();
/// Ports tried from the first one on.
const PORTS: u16 = 16;
const DEADLINE: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(5);
const LIMITS: Limits = Limits { pending: 128, grace: Duration::from_millis(250), patience: PATIENCE };
/// The time that process 0 sleeps before it looks at its deadline again.
const SLICE: Duration = Duration::from_millis(100);
const KEY_FILE: &str = "HAWSER_COMM_ID_KEY_FILE";

type Secret = [u8; SECRET];

/// Meets the other processes. On process 0 there is a sealed connection for every other one, in order;
/// elsewhere the one to process 0.
///
/// # Errors
/// No meeting within two minutes, or the meeting point or the key cannot be used; the text says what to do.
pub fn meet(place: &Place) -> Result<Vec<Stream>> {
    match (&place.meeting, place.process) {
        (Meeting::Alone, _) => Ok(Vec::new()),
        (Meeting::File(path), 0) => {
            let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on 127.0.0.1")?;
            let secret: Secret = socket::random().context("the kernel has no random bytes")?;
            write_meeting_file(path, listener.local_addr()?, &secret)?;
            let streams = gather(listener, place.processes, &secret);
            let _ = std::fs::remove_file(path);
            streams
        }
        (Meeting::Host { port, job, .. }, 0) => {
            let key = key_of_user()?;
            let listener = listen(*port)?;
            if key.is_none() {
                let at = listener.local_addr()?.port();
                eprintln!(
                    "hawser: whoever reaches port {at} and guesses the job's name ({job}) can take part; set \
                     {KEY_FILE} to a file with the same random key on every host"
                );
            }
            gather(listener, place.processes, &secret_of(job, key.as_deref()))
        }
        (Meeting::File(path), process) => {
            let read = || read_meeting_file(path).map(|(address, secret)| (vec![address], secret));
            join(&place.meeting, process, &read).map(|stream| vec![stream])
        }
        (Meeting::Host { host, port, job }, process) => {
            let secret = secret_of(job, key_of_user()?.as_deref());
            join(&place.meeting, process, &|| Ok((resolve(host, *port)?, secret))).map(|stream| vec![stream])
        }
    }
}

/// The key in the user's file, if the settings name one.
fn key_of_user() -> Result<Option<Vec<u8>>> {
    let file = settings().comm_id_key_file.as_deref();
    file.map(|file| read_key(Path::new(file)).with_context(|| format!("{KEY_FILE}={file}"))).transpose()
}

/// The secret of a job's processes. Without a key it is no better than the job's name.
fn secret_of(job: &str, key: Option<&[u8]>) -> Secret {
    sha256::mac(key.unwrap_or(b"hawser perf without a key"), job.as_bytes())
}

fn listen(first: u16) -> Result<TcpListener> {
    let ports = first..first.saturating_add(PORTS);
    let listener = ports.clone().find_map(|port| {
        TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port))).ok()
    });
    listener.ok_or_else(|| {
        anyhow!("none of the ports {ports:?} is free on this host; choose another MASTER_PORT")
    })
}

/// Accepts until every other process has come. Strangers are turned away.
fn gather(listener: TcpListener, processes: u32, secret: &Secret) -> Result<Vec<Stream>> {
    let deadline = Instant::now() + DEADLINE;
    let key = Key::derive(secret, "perf");
    let mut streams: Vec<Option<Stream>> = (1..processes).map(|_| None).collect();
    listener.set_nonblocking(true)?;
    let mut acceptor = Acceptor::new(listener.into(), Options::default(), PROTOCOL, LIMITS);
    let mut trouble = None;
    while let Some(missing) = streams.iter().position(Option::is_none) {
        let mut fds = Vec::new();
        acceptor.register(&mut fds);
        wait::poll(&mut fds, Some(SLICE))?;
        for arrival in acceptor.advance(|_| Ok(key.clone()), |_| Vec::new()) {
            match arrival {
                Arrival::Accepted(accepted) => {
                    let process = accepted.greeting.try_into().map_or(0, u32::from_le_bytes);
                    if let Some(slot @ None) = streams.get_mut((process as usize).wrapping_sub(1)) {
                        *slot = Some(sealed(accepted.stream)?);
                    }
                }
                Arrival::Stranger(from, why) => trouble = Some(format!("{from} was turned away: {why}")),
                Arrival::Foreign(from, protocol) => {
                    trouble = Some(format!("{from} was turned away: {}", foreign::reason(protocol)));
                }
                Arrival::WrongKey(from, _) => trouble = Some(format!("{from} was turned away: {WRONG_KEY}")),
                Arrival::Trouble(why) => trouble = Some(why),
            }
        }
        if Instant::now() > deadline {
            let (missing, seconds) = (missing + 1, DEADLINE.as_secs());
            let trouble = trouble.map(|trouble| format!(" ({trouble})")).unwrap_or_default();
            bail!("process {missing} of {processes} did not come within {seconds} s{trouble}");
        }
    }
    Ok(streams.into_iter().flatten().collect())
}

/// Connects to process 0, which may not be there yet. `find` says where it may be, and the secret.
fn join(
    meeting: &Meeting,
    process: u32,
    find: &dyn Fn() -> Result<(Vec<SocketAddr>, Secret)>,
) -> Result<Stream> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let tried = find().and_then(|(addresses, secret)| try_all(&addresses, process, &secret));
        let reason = match tried {
            Ok(stream) => return Ok(stream),
            Err(reason) => reason,
        };
        if Instant::now() > deadline {
            return Err(reason.context(format!("process {process} did not reach process 0 ({meeting:?})")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The addresses at which process 0 may listen.
fn resolve(host: &str, first: u16) -> Result<Vec<SocketAddr>> {
    let found = (host, first).to_socket_addrs().with_context(|| format!("cannot find host {host}"))?;
    let found: Vec<SocketAddr> = found.collect();
    let ports = first..first.saturating_add(PORTS);
    Ok(ports.flat_map(|port| found.iter().map(move |at| SocketAddr::new(at.ip(), port))).collect())
}

/// Connects to the first of the addresses where somebody knows the secret.
fn try_all(addresses: &[SocketAddr], process: u32, secret: &Secret) -> Result<Stream> {
    let mut last: Option<hawser_oob::error::Error> = None;
    for address in addresses {
        let error = match greet(*address, process, secret) {
            Ok(stream) => return sealed(stream),
            Err(error) => error,
        };
        // Who answers, and knows another secret, tells more than ports where nobody listens.
        if last.as_ref().is_none_or(|last| last.kind != ErrorKind::Usage) {
            last = Some(error);
        }
    }
    Err(last.map_or_else(|| anyhow!("process 0 has no address"), Into::into))
}

fn greet(address: SocketAddr, process: u32, secret: &Secret) -> Result<Stream, hawser_oob::error::Error> {
    let key = Key::derive(secret, "perf");
    let offer = Offer { protocol: PROTOCOL, key: &key, greeting: &process.to_le_bytes(), answer: &[] };
    let retry = Retry {
        count: 0,
        sleep: Duration::ZERO,
        refused: false,
        when_refused: "process 0 does not listen there (yet)",
        when_strange: "all processes need the same key (HAWSER_COMM_ID_KEY_FILE), or none at all",
    };
    let describe = || format!("process {process} greets {address}");
    dial::connect(&Address::Tcp(address), &offer, retry, &Until::after(PATIENCE), &describe)
        .map(|(stream, _)| stream)
}

/// The connection after its handshake, encrypted from now on.
fn sealed(mut stream: Stream) -> Result<Stream> {
    stream.seal()?;
    Ok(stream)
}

/// Appears whole or not at all, readable by this user only.
fn write_meeting_file(path: &Path, address: SocketAddr, secret: &Secret) -> Result<()> {
    let staging = path.with_extension(format!("{:x}", unique()));
    let remedy = || format!("cannot write {}; remove it, or set MASTER_ADDR and MASTER_PORT", path.display());
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staging).with_context(remedy)?;
    let word: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    file.write_all(format!("{address} {word}").as_bytes()).with_context(remedy)?;
    std::fs::rename(&staging, path).with_context(remedy)
}

/// Believes only a file of this user, and not one that a link leads to.
fn read_meeting_file(path: &Path) -> Result<(SocketAddr, Secret)> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .with_context(|| format!("process 0 has not written {}", path.display()))?;
    let metadata = file.metadata()?;
    if metadata.uid() != rustix::process::geteuid().as_raw() || !metadata.is_file() {
        bail!("{} is no file of this user", path.display());
    }
    let mut text = String::new();
    Read::by_ref(&mut file).take(256).read_to_string(&mut text)?;
    let parsed =
        text.split_once(' ').and_then(|(address, word)| Some((address.parse().ok()?, secret(word)?)));
    parsed.ok_or_else(|| anyhow!("{} holds no address", path.display()))
}

/// The secret that 64 digits stand for.
fn secret(word: &str) -> Option<Secret> {
    let byte = |at: usize| u8::from_str_radix(word.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..SECRET).map(byte).collect::<Option<_>>()?;
    (word.len() == 2 * SECRET).then(|| bytes.try_into().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("address");
        (listener, address)
    }

    #[test]
    fn strangers_are_turned_away_and_hold_nobody_up() {
        let (listener, address) = listener();
        let thread = std::thread::spawn(move || {
            let mut garbage = TcpStream::connect(address).expect("connect");
            garbage.write_all(&[7; 64]).expect("write");
            let _silent = TcpStream::connect(address).expect("connect");
            let wrong = try_all(&[address], 1, &secret_of("job", Some(b"another key")));
            let without = try_all(&[address], 1, &secret_of("job", None));
            let right = try_all(&[address], 1, &secret_of("job", Some(b"the key")));
            ([wrong, without].map(|tried| tried.expect_err("a stranger").to_string()), right.is_ok())
        });
        let gathered = gather(listener, 2, &secret_of("job", Some(b"the key"))).expect("gather");
        assert_eq!(gathered.len(), 1);
        let (refused, is_in) = thread.join().expect("thread");
        assert!(is_in);
        for error in refused {
            assert!(error.contains("wrong secret") && error.contains(KEY_FILE), "{error}");
        }
    }

    #[test]
    fn a_wrong_secret_is_told_rather_than_a_port_where_nobody_listens() {
        let (first, address) = listener();
        let (closed, nobody) = listener();
        drop(closed);
        let thread = std::thread::spawn(move || gather(first, 2, &[1; SECRET]));
        for addresses in [[address, nobody], [nobody, address]] {
            let error = try_all(&addresses, 1, &[2; SECRET]).expect_err("a stranger").to_string();
            assert!(error.contains("wrong secret"), "{error}");
        }
        try_all(&[nobody, address], 1, &[1; SECRET]).expect("the right secret");
        assert_eq!(thread.join().expect("thread").expect("gather").len(), 1);
    }

    #[test]
    fn a_meeting_file_is_believed_only_if_it_is_this_users_own() {
        let path = std::env::temp_dir().join(format!("hawser-meeting-{:x}", unique()));
        let (_listener, address) = listener();
        write_meeting_file(&path, address, &[0xa5; SECRET]).expect("write");
        assert_eq!(std::fs::metadata(&path).expect("metadata").mode() & 0o777, 0o600);
        assert_eq!(read_meeting_file(&path).expect("read"), (address, [0xa5; SECRET]));
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).expect("link");
        assert!(read_meeting_file(&link).is_err());
        std::fs::write(&path, format!("{address} a5")).expect("write");
        assert!(read_meeting_file(&path).is_err());
        std::fs::remove_file(path).expect("remove");
        std::fs::remove_file(link).expect("remove");
    }
}

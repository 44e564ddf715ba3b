//! The processes of a job talk about addresses, times and counts here, apart from the library under test.
//!
//! A star: process 0 listens, everybody else connects and proves by a word that it belongs to the
//! job. [`Control::exchange`] is the only operation: everyone gives some bytes and gets everyone's.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::launcher::{Meeting, Place, unique};

const MAGIC: &[u8; 8] = b"hawser01";
/// Ports tried from the first one on.
const PORTS: u16 = 16;
const MEETING_DEADLINE: Duration = Duration::from_secs(120);
const STRANGER_DEADLINE: Duration = Duration::from_secs(1);
/// A message larger than this is nonsense.
const LIMIT: usize = 16 << 20;

/// Connections between process 0 and the others.
pub struct Control {
    process: u32,
    /// On process 0 one per other process, in order; elsewhere the one to process 0.
    streams: Vec<TcpStream>,
}

impl Control {
    /// Meets the other processes. `timeout` bounds every later wait.
    ///
    /// # Errors
    /// No meeting within two minutes, or the meeting point cannot be used; the text says what to do.
    pub fn meet(place: &Place, timeout: Duration) -> Result<Self> {
        let streams = match (&place.meeting, place.process) {
            (Meeting::Alone, _) => Vec::new(),
            (Meeting::File(path), 0) => {
                let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on 127.0.0.1")?;
                let word = format!("{:016x}{:016x}", unique(), unique());
                write_meeting_file(path, &format!("{} {word}", listener.local_addr()?))?;
                let streams = gather(&listener, place.processes, &word);
                let _ = std::fs::remove_file(path);
                streams?
            }
            (Meeting::Host { port, job, .. }, 0) => gather(&listen(*port)?, place.processes, job)?,
            (meeting, process) => vec![join(meeting, process)?],
        };
        for stream in &streams {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
        }
        Ok(Self { process: place.process, streams })
    }

    /// Gives `mine` and returns what every process gave, in order. Also a barrier.
    ///
    /// # Errors
    /// A process ended or did not answer in time.
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.streams.is_empty() {
            return Ok(vec![mine.to_vec()]);
        }
        if self.process != 0 {
            let stream = &mut self.streams[0];
            write_frame(stream, mine).context("process 0 is gone")?;
            let count = read_frame(stream).context("process 0 is gone, or still waits for another one")?;
            let count = u32::from_le_bytes(count.try_into().map_err(|_| anyhow!("process 0 sent nonsense"))?);
            return (0..count).map(|_| read_frame(stream).context("process 0 is gone")).collect();
        }
        let mut all = vec![mine.to_vec()];
        for (i, stream) in self.streams.iter_mut().enumerate() {
            all.push(read_frame(stream).with_context(|| format!("process {} is gone or hangs", i + 1))?);
        }
        for (i, stream) in self.streams.iter_mut().enumerate() {
            let mut answer = frame(&(all.len() as u32).to_le_bytes());
            answer.extend(all.iter().flat_map(|bytes| frame(bytes)));
            stream.write_all(&answer).with_context(|| format!("process {} is gone", i + 1))?;
        }
        Ok(all)
    }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

fn write_frame(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(&frame(bytes))
}

fn read_frame(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LIMIT {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("message of {length} bytes"),
        ));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
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
fn gather(listener: &TcpListener, processes: u32, word: &str) -> Result<Vec<TcpStream>> {
    let deadline = Instant::now() + MEETING_DEADLINE;
    let mut streams: Vec<Option<TcpStream>> = (1..processes).map(|_| None).collect();
    listener.set_nonblocking(true)?;
    while let Some(missing) = streams.iter().position(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Some((process, stream)) = admit(stream, word)
                    && let Some(slot @ None) = streams.get_mut((process as usize).wrapping_sub(1))
                {
                    *slot = Some(stream);
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(2))
            }
            Err(e) => return Err(e).context("cannot accept connections"),
        }
        if Instant::now() > deadline {
            bail!(
                "process {} of {processes} did not come within {} s",
                missing + 1,
                MEETING_DEADLINE.as_secs()
            );
        }
    }
    Ok(streams.into_iter().flatten().collect())
}

/// The process index of a connection that knows the word.
fn admit(mut stream: TcpStream, word: &str) -> Option<(u32, TcpStream)> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(STRANGER_DEADLINE)).ok()?;
    let mut hello = vec![0; MAGIC.len() + 4 + word.len()];
    stream.read_exact(&mut hello).ok()?;
    let process = u32::from_le_bytes(hello[8..12].try_into().ok()?);
    if &hello[..8] != MAGIC || &hello[12..] != word.as_bytes() {
        return None;
    }
    stream.write_all(MAGIC).ok()?;
    Some((process, stream))
}

/// Connects to process 0, which may not be there yet.
fn join(meeting: &Meeting, process: u32) -> Result<TcpStream> {
    let deadline = Instant::now() + MEETING_DEADLINE;
    loop {
        let reason = match try_join(meeting, process) {
            Ok(stream) => return Ok(stream),
            Err(reason) => reason,
        };
        if Instant::now() > deadline {
            return Err(reason.context(format!("process {process} did not reach process 0 ({meeting:?})")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn try_join(meeting: &Meeting, process: u32) -> Result<TcpStream> {
    let (addresses, word) = match meeting {
        Meeting::Alone => bail!("a single process has nobody to join"),
        Meeting::File(path) => read_meeting_file(path)?,
        Meeting::Host { host, port, job } => {
            let ports = *port..port.saturating_add(PORTS);
            (ports.map(|port| (host.clone(), port)).collect(), job.clone())
        }
    };
    let mut last = anyhow!("no address");
    for (host, port) in addresses {
        match greet(&host, port, process, &word) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn greet(host: &str, port: u16, process: u32, word: &str) -> Result<TcpStream> {
    let addresses = (host, port).to_socket_addrs().with_context(|| format!("cannot find host {host}"))?;
    let mut last = anyhow!("host {host} has no address");
    for address in addresses {
        let attempt = || -> Result<TcpStream> {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(&[MAGIC.as_slice(), &process.to_le_bytes(), word.as_bytes()].concat())?;
            let mut answer = [0; 8];
            stream.read_exact(&mut answer)?;
            if &answer != MAGIC {
                bail!("somebody else listens there");
            }
            Ok(stream)
        };
        match attempt() {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error.context(format!("connecting to {address}")),
        }
    }
    Err(last)
}

/// Appears whole or not at all, readable by this user only.
fn write_meeting_file(path: &Path, text: &str) -> Result<()> {
    let staging = path.with_extension(format!("{:x}", unique()));
    let remedy = || format!("cannot write {}; remove it, or set MASTER_ADDR and MASTER_PORT", path.display());
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staging).with_context(remedy)?;
    file.write_all(text.as_bytes()).with_context(remedy)?;
    std::fs::rename(&staging, path).with_context(remedy)
}

fn read_meeting_file(path: &Path) -> Result<(Vec<(String, u16)>, String)> {
    let mut file =
        std::fs::File::open(path).with_context(|| format!("process 0 has not written {}", path.display()))?;
    if file.metadata()?.uid() != rustix::process::geteuid().as_raw() {
        bail!("{} belongs to another user", path.display());
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let parsed = text.split_once(' ').and_then(|(address, word)| {
        let (host, port) = address.rsplit_once(':')?;
        Some((vec![(host.to_owned(), port.parse().ok()?)], word.to_owned()))
    });
    parsed.ok_or_else(|| anyhow!("{} holds no address", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(meeting: &Meeting, processes: u32) -> Vec<Place> {
        (0..processes)
            .map(|process| Place {
                process,
                processes,
                local: process,
                launched: true,
                meeting: meeting.clone(),
            })
            .collect()
    }

    fn exchange_everywhere(meeting: &Meeting) {
        let threads: Vec<_> = places(meeting, 4)
            .into_iter()
            .map(|place| {
                std::thread::spawn(move || {
                    let mut control = Control::meet(&place, Duration::from_secs(60)).expect("meeting");
                    let first = control.exchange(format!("p{}", place.process).as_bytes()).expect("exchange");
                    let second = control.exchange(&[]).expect("exchange");
                    (first, second)
                })
            })
            .collect();
        for thread in threads {
            let (first, second) = thread.join().expect("thread");
            assert_eq!(first, [b"p0", b"p1", b"p2", b"p3"]);
            assert_eq!(second, vec![Vec::<u8>::new(); 4]);
        }
    }

    fn scratch_file() -> std::path::PathBuf {
        std::env::temp_dir().join(format!("hawser-test-{:x}", unique()))
    }

    #[test]
    fn processes_meet_in_a_file() {
        let path = scratch_file();
        exchange_everywhere(&Meeting::File(path.clone()));
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_file_is_overcome() {
        let path = scratch_file();
        std::fs::write(&path, "127.0.0.1:1 old").expect("write");
        exchange_everywhere(&Meeting::File(path));
    }

    #[test]
    fn processes_meet_on_a_port_beside_strangers() {
        // Occupies the first port by somebody who answers nonsense.
        let stranger = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = stranger.local_addr().expect("address").port().min(u16::MAX - PORTS);
        exchange_everywhere(&Meeting::Host { host: "127.0.0.1".into(), port, job: "test".into() });
    }

    #[test]
    fn strangers_are_turned_away() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("address").port();
        let thread = std::thread::spawn(move || {
            let mut garbage = TcpStream::connect(("127.0.0.1", port)).expect("connect");
            garbage.write_all(&[7; 64]).expect("write");
            let wrong = greet("127.0.0.1", port, 1, "nope");
            let right = greet("127.0.0.1", port, 1, "word");
            (wrong.is_err(), right.is_ok())
        });
        assert_eq!(gather(&listener, 2, "word").expect("gather").len(), 1);
        assert_eq!(thread.join().expect("thread"), (true, true));
    }

    #[test]
    fn a_vanished_process_is_an_error() {
        let path = scratch_file();
        let mut places = places(&Meeting::File(path), 2);
        let gone = places.pop().expect("two places");
        let thread =
            std::thread::spawn(move || drop(Control::meet(&gone, Duration::from_secs(60)).expect("meeting")));
        let mut control = Control::meet(&places[0], Duration::from_secs(60)).expect("meeting");
        thread.join().expect("thread");
        let error = control.exchange(&[]).expect_err("process 1 is gone").to_string();
        assert!(error.contains("process 1"), "{error}");
    }
}

//! The processes of a job talk about addresses, times and counts here, apart from the library under test.
//!
//! A star: everybody has a connection to process 0 (see [`super::meeting`]). [`Control::exchange`] is the
//! only operation: everyone gives some bytes and gets everyone's.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use hawser_oob::stream::Stream;
use hawser_oob::wait::Until;

use super::launcher::Place;
use super::meeting;

/// A message larger than this is nonsense.
const LIMIT: usize = 16 << 20;

/// Connections between process 0 and the others.
pub struct Control {
    process: u32,
    /// On process 0 one per other process, in order; elsewhere the one to process 0.
    streams: Vec<Stream>,
    /// The time that a message of another process may take.
    timeout: Duration,
}

impl Control {
    /// Meets the other processes. `timeout` bounds every later wait.
    ///
    /// # Errors
    /// No meeting within two minutes, or the meeting point cannot be used; the text says what to do.
    pub fn meet(place: &Place, timeout: Duration) -> Result<Self> {
        Ok(Self { process: place.process, streams: meeting::meet(place)?, timeout })
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
            self.write(0, &frame(mine)).context("process 0 is gone")?;
            let count = self.read_frame(0).context("process 0 is gone, or still waits for another one")?;
            let count = u32::from_le_bytes(count.try_into().map_err(|_| anyhow!("process 0 sent nonsense"))?);
            return (0..count).map(|_| self.read_frame(0).context("process 0 is gone")).collect();
        }
        let mut all = vec![mine.to_vec()];
        for i in 0..self.streams.len() {
            all.push(self.read_frame(i).with_context(|| format!("process {} is gone or hangs", i + 1))?);
        }
        let mut answer = frame(&(all.len() as u32).to_le_bytes());
        answer.extend(all.iter().flat_map(|bytes| frame(bytes)));
        for i in 0..self.streams.len() {
            self.write(i, &answer).with_context(|| format!("process {} is gone", i + 1))?;
        }
        Ok(all)
    }

    fn write(&self, stream: usize, bytes: &[u8]) -> Result<()> {
        let until = Until::after(self.timeout);
        Ok(self.streams[stream].write_all(bytes, false, &until, &|| "sending a message".into())?)
    }

    fn read_frame(&self, stream: usize) -> Result<Vec<u8>> {
        let until = Until::after(self.timeout);
        let read = |into: &mut [u8]| {
            self.streams[stream].read_exact(into, &until, &|| "waiting for a message".into())
        };
        let mut length = [0; 4];
        read(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LIMIT {
            bail!("a message of {length} bytes");
        }
        let mut bytes = vec![0; length];
        read(&mut bytes)?;
        Ok(bytes)
    }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::super::launcher::{Meeting, unique};
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::fs::OpenOptionsExt;

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
        let port = stranger.local_addr().expect("address").port().min(u16::MAX - 16);
        exchange_everywhere(&Meeting::Host { host: "127.0.0.1".into(), port, job: "test".into() });
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

    /// A meeting of two processes by way of somebody who reads what process 1 sends, and changes a byte of
    /// what comes after the handshake if `spoils` says so. Returns what was read and what process 0 got.
    fn exchange_past_somebody(message: &[u8], spoils: bool) -> (Vec<u8>, Result<Vec<Vec<u8>>>) {
        let (file, other_file) = (scratch_file(), scratch_file());
        let mut first = places(&Meeting::File(file.clone()), 2);
        let mut second = places(&Meeting::File(other_file.clone()), 2);
        let (first, second) = (first.swap_remove(0), second.swap_remove(1));
        let meet = |place: Place| Control::meet(&place, Duration::from_secs(60)).expect("meeting");
        std::thread::scope(|scope| {
            let centre = scope.spawn(move || meet(first).exchange(b"process 0"));
            let text = loop {
                match std::fs::read_to_string(&file) {
                    Ok(text) => break text,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
            let (address, secret) = text.split_once(' ').expect("address and secret");
            let to = TcpStream::connect(address).expect("connect");
            let here = listener.local_addr().expect("address");
            let reader = scope.spawn(move || {
                let (from, _) = listener.accept().expect("accept");
                let (back_from, back_to) = (to.try_clone().expect("clone"), from.try_clone().expect("clone"));
                std::thread::spawn(move || relay(back_from, back_to, false));
                relay(from, to, spoils)
            });
            std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&other_file)
                .and_then(|mut file| file.write_all(format!("{here} {secret}").as_bytes()))
                .expect("write");
            let _ = meet(second).exchange(message);
            std::fs::remove_file(other_file).expect("remove");
            (reader.join().expect("reader"), centre.join().expect("process 0"))
        })
    }

    /// Carries bytes of one connection to another until it ends, and returns them.
    fn relay(mut from: TcpStream, mut to: TcpStream, spoils: bool) -> Vec<u8> {
        let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            seen.extend_from_slice(&buffer[..count]);
            let is_after_handshake = seen.len() > meeting::FIRST_WORDS;
            buffer[count - 1] ^= u8::from(spoils && is_after_handshake);
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        seen
    }

    #[test]
    fn somebody_on_the_path_reads_nothing_and_changes_nothing() {
        let id = b"the unique id of a job";
        let (seen, got) = exchange_past_somebody(id, false);
        assert_eq!(got.expect("exchange"), [b"process 0".as_slice(), id]);
        assert!(seen.len() > meeting::FIRST_WORDS + id.len());
        assert!(!seen.windows(8).any(|window| window == &id[..8]), "the id went over in clear");
        let (_, got) = exchange_past_somebody(id, true);
        let error = format!("{:#}", got.expect_err("a byte was changed"));
        assert!(error.contains("wrong seal") && error.contains("process 1"), "{error}");
    }
}

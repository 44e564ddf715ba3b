//! The processes of a job talk about addresses, times and counts here, apart from the library under test.
//!
//! A star: everybody has a connection to process 0 (see [`super::meeting`]). [`Control::exchange`] is the
//! only operation: everyone gives some bytes and gets everyone's.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::launcher::Place;
use super::meeting;

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
        let streams = meeting::meet(place)?;
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

#[cfg(test)]
mod tests {
    use super::super::launcher::{Meeting, unique};
    use super::*;
    use std::net::TcpListener;

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
}

//! A client of RAS, from its first line to the end of its answer. Its connection never blocks.

use std::io::{ErrorKind as Io, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use hawser_oob::strangers::Place;
use rustix::event::{PollFd, PollFlags};

use super::protocol::{Command, Format, Lines, VERSION};

/// The time that a client that has spoken may think about its next line.
const THINKS: Duration = Duration::from_secs(120);
/// The time that a client may take to read an answer.
const READS: Duration = Duration::from_secs(30);
/// The most bytes that a client may leave unread; a larger job is more than anybody reads.
const MOST_UNREAD: usize = 256 << 20;
/// With so many bytes unread nothing more is taken from a client.
const ENOUGH_UNREAD: usize = 16 << 10;
/// The most times that a client is read before others have their turn.
const MOST_READS: usize = 16;
/// The time that processes may take to answer, unless the client says another (as in NCCL).
const TIMEOUT: Duration = Duration::from_secs(5);
/// The same where a client wants JSON and says no time: a program, which may give up after a second in which
/// nothing comes (SGLang's reader does). It is told which ranks were silent instead of nothing.
const OF_PROGRAMS: Duration = Duration::from_millis(750);

/// A client that is connected.
pub struct Client {
    /// Its number among the clients of this process.
    pub number: u64,
    stream: TcpStream,
    _place: Place,
    lines: Lines,
    output: Vec<u8>,
    /// The time that it said that processes may take to answer it; the inner `None`: as long as they want.
    timeout: Option<Option<Duration>>,
    /// The form of its answer.
    pub format: Format,
    state: State,
    is_half_closed: bool,
    until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has not said a word.
    Silent,
    /// It may send lines.
    Asks,
    /// Its answer is being made.
    Waits,
    /// It has all of its answer, but for what it has not read yet.
    Leaves,
    /// It is there for events; true if it wants those of processes that come and go.
    Monitors(bool),
}

/// Something to do for a client, which it does not do itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The state of the job; true if more groups of ranks are to be named.
    Status(bool),
    /// There is nothing to do.
    Nothing,
}

impl Client {
    /// A client that has just come, and may be silent for a while.
    pub fn new(number: u64, stream: TcpStream, place: Place, silence: Duration) -> Self {
        Self {
            number,
            stream,
            _place: place,
            lines: Lines::default(),
            output: Vec::new(),
            timeout: None,
            format: Format::default(),
            state: State::Silent,
            is_half_closed: false,
            until: Instant::now() + silence,
        }
    }

    /// True if it has not said a word yet.
    pub fn is_silent(&self) -> bool {
        self.state == State::Silent
    }

    /// The time that processes may take to answer it; `None`: as long as they want.
    pub fn patience(&self) -> Option<Duration> {
        let usual = if self.format == Format::Json { OF_PROGRAMS } else { TIMEOUT };
        self.timeout.unwrap_or(Some(usual))
    }

    /// True if it wants events.
    pub fn monitors(&self) -> bool {
        self.state == State::Monitors(true)
    }

    /// Its connection with the events that it waits for; `None` if it waits for none.
    pub fn interest(&self) -> Option<PollFd<'_>> {
        let (mut flags, may_write) = (PollFlags::empty(), !self.output.is_empty());
        flags.set(PollFlags::IN, self.may_read());
        flags.set(PollFlags::OUT, may_write);
        (!flags.is_empty()).then(|| PollFd::new(&self.stream, flags))
    }

    /// The moment at which it has to go, unless something happens before.
    pub fn until(&self) -> Option<Instant> {
        (!matches!(self.state, State::Monitors(_) | State::Waits)).then_some(self.until)
    }

    /// Sends something: its answer, or an event.
    pub fn send(&mut self, text: &str) {
        self.output.extend_from_slice(text.as_bytes());
    }

    /// Ends its answer: it goes when it has read all of it.
    pub fn finish(&mut self, text: &str) {
        self.send(text);
        self.state = State::Leaves;
        self.until = Instant::now() + READS;
    }

    /// Reads and writes what can be now. `None`: it has gone, or has to.
    pub fn go_on(&mut self) -> Option<Wanted> {
        let wanted = self.read()?;
        self.write()?;
        let is_late = self.until().is_some_and(|until| Instant::now() >= until);
        if is_late || self.is_over() || self.output.len() > MOST_UNREAD {
            // The end is told also where a child of fork(2) has the connection too.
            let _ = self.stream.shutdown(Shutdown::Both);
            return None;
        }
        Some(wanted)
    }

    fn read(&mut self) -> Option<Wanted> {
        let mut wanted = Wanted::Nothing;
        for _ in 0..MOST_READS {
            let mut part = [0; 2048];
            if !self.may_read() {
                break;
            }
            match self.stream.read(&mut part) {
                // It may have closed its side only: `echo status | nc` does.
                Ok(0) if matches!(self.state, State::Waits | State::Leaves) => self.is_half_closed = true,
                Ok(0) => return None,
                Ok(count) => {
                    self.lines.push(&part[..count]);
                    wanted = self.read_lines(wanted)?;
                }
                Err(error) if error.kind() == Io::WouldBlock => break,
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(wanted)
    }

    /// Returns true if its bytes are of interest now.
    fn may_read(&self) -> bool {
        !self.is_half_closed && self.output.len() < ENOUGH_UNREAD
    }

    fn is_over(&self) -> bool {
        self.state == State::Leaves && self.output.is_empty()
    }

    fn read_lines(&mut self, wanted: Wanted) -> Option<Wanted> {
        let mut wanted = wanted;
        // What comes after the question is nobody's.
        while matches!(self.state, State::Silent | State::Asks | State::Monitors(_)) {
            let Some(line) = self.lines.take().ok()? else { return Some(wanted) };
            if !matches!(self.state, State::Monitors(_)) {
                self.state = State::Asks;
                self.until = Instant::now() + THINKS;
            }
            match Command::parse(&line) {
                Command::Hello => self.send(&format!("SERVER PROTOCOL {VERSION}\n")),
                Command::Timeout(timeout) => {
                    self.timeout = Some(timeout);
                    self.send("OK\n");
                }
                Command::SetFormat(format) => {
                    self.format = format;
                    self.send("OK\n");
                }
                Command::Status { is_verbose } => {
                    self.state = State::Waits;
                    wanted = Wanted::Status(is_verbose);
                }
                Command::Monitor { lifecycle } => {
                    self.state = State::Monitors(lifecycle);
                    self.send("OK\n");
                }
                Command::Wrong(why) => self.send(&format!("ERROR: {why}\n")),
            }
        }
        self.lines = Lines::default();
        Some(wanted)
    }

    fn write(&mut self) -> Option<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return None,
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == Io::WouldBlock => break,
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(())
    }
}

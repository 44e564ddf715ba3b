//! The control socket of a process: a unix-domain socket through which other programs of the same user list
//! its communicators and change their rules. Nobody else is answered (see `same_user`).
//!
//! A question is a line of words, then perhaps bytes, then the end of the stream. Answers are lines of fields
//! with tabs between them, the last of which is `end`:
//!
//! ```text
//! list             communicator ID NAME RANK RANKS COLLECTIVES; job NAME
//! hang             verdict JSON, one for each communicator (see `progress/verdict.rs`)
//! explain JSON     decision JSON, or refused WHY, one for each communicator (see `progress/decision.rs`)
//! apply ID,ID..    changed ID NAME COLLECTIVE; unchanged ID NAME WHY; unknown ID NAME WHY
//!                  (the bytes are the rules)
//! ```

use std::fmt::Write as _;
use std::io::{ErrorKind as Io, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hawser_base::env::Settings;
use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};

use super::address::{Address, Listener};
use super::participant::Participant;
use super::protocol::Outcome;
use super::{same_user, wire};
use crate::progress::{decision, hang_watch, members};

/// The longest question, in bytes: rules, their names, and the line before them.
const LONGEST: usize = wire::MOST_RULES + (64 << 10);
/// The most that are asking or waiting at once; who comes then takes the place of who came first.
const MOST_CLIENTS: usize = 16;
/// The time that somebody may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The listening socket, and who is connected.
pub struct ControlSocket {
    listener: Listener,
    job: String,
    clients: Vec<Client>,
    patience: Duration,
}

/// A program that has connected. Nobody waits for it: its connection never blocks.
struct Client {
    stream: UnixStream,
    state: State,
    /// The bytes of the answer that it has not taken yet.
    answer: Vec<u8>,
    until: Instant,
}

/// The stage of its request that a client is in.
enum State {
    /// The client asks; this much of the question has come.
    Asks(Vec<u8>),
    /// The client waits for this many outcomes.
    Waits(usize, Receiver<String>),
    /// The whole answer is made; the client leaves once it has taken it.
    Leaves,
}

impl ControlSocket {
    /// Opens the socket; None if the settings want none.
    ///
    /// # Errors
    /// `System` or `InvalidUsage`: the folder cannot be made or is somebody else's, or the socket cannot be
    /// made.
    pub fn open(settings: &Settings) -> Result<Option<Self>> {
        let Some(address) = Address::of(settings) else { return Ok(None) };
        let socket = Self::at(&address, settings.job().unwrap_or_default(), settings.rules_timeout * 8)?;
        log::info(Subsys::Init, || {
            format!("rules of this process can be changed through {}", socket.listener.text)
        });
        Ok(Some(socket))
    }

    fn at(address: &Address, job: String, patience: Duration) -> Result<Self> {
        Ok(Self { listener: address.listen()?, job, clients: Vec::new(), patience })
    }

    /// The descriptors for poll(2): the listener, and who is asking.
    pub fn readable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let asking = self.clients.iter().filter(|client| matches!(client.state, State::Asks(_)));
        std::iter::once(self.listener.socket.as_fd()).chain(asking.map(|client| client.stream.as_fd()))
    }

    /// Serves all clients as far as possible without waiting. Returns whether there are any.
    pub fn serve(&mut self, participants: &[Arc<Participant>]) -> bool {
        while let Ok((stream, _)) = self.listener.socket.accept() {
            match admit(stream) {
                Ok(client) => self.clients.push(client),
                Err(error) => log::info(Subsys::Init, || format!("nobody is told about rules: {error}")),
            }
            if self.clients.len() > MOST_CLIENTS {
                self.clients.remove(0);
            }
        }
        let mut clients = std::mem::take(&mut self.clients);
        clients.retain_mut(|client| match self.go_on(client, participants) {
            Ok(stays) => stays,
            Err(error) => {
                log::info(Subsys::Init, || format!("somebody asked about rules, but: {error}"));
                false
            }
        });
        self.clients = clients;
        !self.clients.is_empty()
    }

    /// Serves a client as far as possible without waiting; false once it has its answer.
    fn go_on(&self, client: &mut Client, participants: &[Arc<Participant>]) -> std::io::Result<bool> {
        if let State::Asks(question) = &mut client.state {
            if read_all(&mut client.stream, question)? {
                let question = std::mem::take(question);
                self.answer(client, &question, participants);
            } else if Instant::now() >= client.until {
                return Err(std::io::Error::new(Io::TimedOut, "the question did not end in time"));
            }
        }
        client.go_on()
    }

    /// Answers a question, or begins to.
    fn answer(&self, client: &mut Client, question: &[u8], participants: &[Arc<Participant>]) {
        let line = question.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let content = question.get(line.len() + 1..).unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        client.state = State::Leaves;
        client.until = Instant::now() + PATIENCE;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("list", _) => client.answer = self.list(participants).into_bytes(),
            ("apply", wanted) => match wire::unpack(content) {
                Some(files) => {
                    client.state = apply(wanted, &files, participants);
                    client.until = Instant::now() + self.patience;
                }
                None => {
                    let text = b"refused\tthe rules came damaged, or from another version of the tool\nend\n";
                    client.answer = text.into();
                }
            },
            ("hang", _) => {
                client.state = judge();
                client.until = Instant::now() + hang_watch::LIMIT + PATIENCE;
            }
            ("explain", asked) => client.answer = decide(asked).into_bytes(),
            (other, _) => {
                let other = plain(other);
                let text = format!("refused\tthis version of the library does not know \"{other}\"\nend\n");
                client.answer = text.into_bytes();
            }
        }
    }

    fn list(&self, participants: &[Arc<Participant>]) -> String {
        let mut text = format!("job\t{}\n", plain(&self.job));
        for participant in participants {
            let Participant { comm_id, name, rank, ranks, .. } = &**participant;
            let begun = participant.begun();
            let _ = writeln!(text, "communicator\t{comm_id:016x}\t{}\t{rank}\t{ranks}\t{begun}", plain(name));
        }
        text + "end\n"
    }
}

/// Makes a client of a connection, if that is from a process of this user.
fn admit(stream: UnixStream) -> Result<Client> {
    same_user::check_peer(&stream)?;
    stream.set_nonblocking(true).map_err(|error| Error::system("a socket", error))?;
    let until = Instant::now() + PATIENCE;
    Ok(Client { stream, state: State::Asks(Vec::new()), answer: Vec::new(), until })
}

/// Reads what has come of a question; true when that was all.
fn read_all(stream: &mut UnixStream, question: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut part = [0; 16 << 10];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return Ok(true),
            Ok(count) => question.extend(&part[..count]),
            Err(error) if error.kind() == Io::WouldBlock => return Ok(false),
            Err(error) if error.kind() == Io::Interrupted => {}
            Err(error) => return Err(error),
        }
        if question.len() > LONGEST {
            let text = format!("the question is longer than {LONGEST} bytes");
            return Err(std::io::Error::new(Io::InvalidData, text));
        }
    }
}

/// Proposes rules to the communicators that are named, each by its lowest rank here.
fn apply(
    wanted: &str,
    files: &[hawser_plugin::tuner::SettingsFile],
    participants: &[Arc<Participant>],
) -> State {
    let (tell, outcomes) = channel();
    let mut open = 0;
    for id in wanted.split(',').filter(|id| !id.is_empty()) {
        let of = |participant: &&Arc<Participant>| format!("{:016x}", participant.comm_id) == id;
        let Some(participant) = participants.iter().filter(of).min_by_key(|participant| participant.rank)
        else {
            let _ = tell.send(format!("unchanged\t{}\t?\tit is not there any more\n", plain(id)));
            open += 1;
            continue;
        };
        let (tell, id, name) = (tell.clone(), id.to_owned(), plain(&participant.name));
        let done = move |outcome| {
            let line = match outcome {
                Outcome::Changed(at) => format!("changed\t{id}\t{name}\t{at}\n"),
                Outcome::Unchanged(why) => format!("unchanged\t{id}\t{name}\t{}\n", plain(&why)),
                Outcome::Unknown(why) => format!("unknown\t{id}\t{name}\t{}\n", plain(&why)),
            };
            let _ = tell.send(line);
            super::service::ring();
        };
        participant.propose(files, Box::new(done));
        open += 1;
    }
    State::Waits(open, outcomes)
}

/// Asks the ranks of all communicators of this process how they are, each in a thread of its own.
fn judge() -> State {
    let (tell, verdicts) = channel();
    let members = members::lowest();
    let open = members.len();
    for member in members {
        let tell = tell.clone();
        let judge = move || {
            let verdict = member.judge(hang_watch::LIMIT);
            let text = verdict.and_then(|verdict| serde_json::to_string(&verdict).ok());
            let _ = tell.send(text.map_or_else(String::new, |text| format!("verdict\t{}\n", plain(&text))));
            super::service::ring();
        };
        if std::thread::Builder::new().name("hawser-judge".into()).spawn(judge).is_err() {
            // The client hears of all others, and of this one nothing.
            continue;
        }
    }
    State::Waits(open, verdicts)
}

/// The decisions that all communicators of this process would take now.
fn decide(asked: &str) -> String {
    let asked: decision::Asked = match serde_json::from_str(asked) {
        Ok(asked) => asked,
        Err(error) => {
            return format!("refused\tthe question is damaged: {}\nend\n", plain(&error.to_string()));
        }
    };
    let told = members::lowest().into_iter().filter_map(|member| member.decide(&asked));
    let line = |told: Result<decision::Told>| {
        let text = told.and_then(|told| {
            serde_json::to_string(&told)
                .map_err(|error| Error::internal(format!("decisions as JSON: {error}")))
        });
        match text {
            Ok(text) => format!("decision\t{}\n", plain(&text)),
            Err(error) => format!("refused\t{}\n", plain(&error.to_string())),
        }
    };
    told.map(line).collect::<String>() + "end\n"
}

impl Client {
    /// Passes on what there is to tell; false when there is nothing left.
    fn go_on(&mut self) -> std::io::Result<bool> {
        if let State::Waits(open, outcomes) = &mut self.state {
            while let Ok(line) = outcomes.try_recv() {
                *open -= 1;
                self.answer.extend(line.as_bytes());
            }
            if *open == 0 || Instant::now() >= self.until {
                self.answer.extend(b"end\n");
                self.state = State::Leaves;
                self.until = Instant::now() + PATIENCE;
            }
        }
        while !self.answer.is_empty() {
            match self.stream.write(&self.answer) {
                Ok(count) => drop(self.answer.drain(..count)),
                Err(error) if error.kind() == Io::WouldBlock => break,
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let has_all = matches!(self.state, State::Leaves) && self.answer.is_empty();
        Ok(!has_all && Instant::now() < self.until)
    }
}

/// Text as one field of a line.
fn plain(text: &str) -> String {
    text.replace('\t', " ").replace('\n', "\u{b}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A control socket in a folder of its own.
    fn control(name: &str) -> (ControlSocket, PathBuf) {
        let folder = std::env::temp_dir().join(format!("hawser-clients-{}-{name}", std::process::id()));
        let address = Address::Folder(folder.clone());
        (ControlSocket::at(&address, "some\tjob".into(), PATIENCE).unwrap(), folder)
    }

    fn knock(folder: &std::path::Path) -> UnixStream {
        Address::Folder(folder.to_owned()).connect(std::process::id()).unwrap()
    }

    /// The whole answer to a question.
    fn ask(control: &mut ControlSocket, mut stream: UnixStream, question: &[u8]) -> String {
        stream.write_all(question).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        while control.serve(&[]) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn who_says_nothing_keeps_nobody_waiting() {
        let (mut control, folder) = control("silent");
        let silent: Vec<UnixStream> = (0..MOST_CLIENTS).map(|_| knock(&folder)).collect();
        assert!(control.serve(&[]), "they may still ask");
        assert_eq!(control.clients.len(), MOST_CLIENTS);
        let talks = knock(&folder);
        let mut slow = talks.try_clone().unwrap();
        slow.write_all(b"li").unwrap();
        assert!(control.serve(&[]));
        assert_eq!(control.clients.len(), MOST_CLIENTS, "the first has left for the last");
        drop(silent);
        assert_eq!(ask(&mut control, talks, b"st\n"), "job\tsome job\nend\n");
        drop(control);
        std::fs::remove_dir(folder).expect("the socket is gone");
    }

    #[test]
    fn a_question_without_end_is_cut_off() {
        let (mut control, folder) = control("long");
        let mut stream = knock(&folder);
        let writer = std::thread::spawn(move || {
            let some = [b'x'; 64 << 10];
            (0..).take_while(|_| stream.write_all(&some).is_ok()).count()
        });
        while !writer.is_finished() {
            control.serve(&[]);
            assert!(control.clients.iter().all(|client| match &client.state {
                State::Asks(question) => question.len() <= LONGEST,
                _ => true,
            }));
        }
        let sent = writer.join().unwrap() * (64 << 10);
        assert!(sent <= LONGEST + (1 << 20), "{sent} bytes were taken");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

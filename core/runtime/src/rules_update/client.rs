//! Asking another process about its communicators, and changing their rules.

use std::io::{ErrorKind as Io, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_plugin::tuner::SettingsFile;

use super::address::Address;
use super::same_user::printable;
use super::wire;
use crate::progress::decision::{Asked, Told};
use crate::progress::verdict::Verdict;

/// The longest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 4 << 20;

/// A process, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its job; empty = none.
    pub job: String,
    /// Its communicators of more than one rank, one entry for each rank in the process.
    pub communicators: Vec<Communicator>,
}

/// A rank of a communicator in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Communicator {
    /// The same number on all ranks.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// Collectives that this rank has begun.
    pub begun: u64,
}

/// The outcome of a change for a communicator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its number.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The outcome of the change.
    pub outcome: super::Outcome,
}

/// Processes of this user on this host that may be asked. Some may have ended.
///
/// # Errors
/// The folder of the sockets is not one of this user alone.
pub fn processes() -> Result<Vec<u32>> {
    Address::of(env::settings()).map_or_else(|| Ok(Vec::new()), |address| address.processes())
}

/// Asks a process about its communicators.
///
/// # Errors
/// It is not there, is another user's, does not use this library, or does not answer within `limit`.
pub fn list(pid: u32, limit: Duration) -> Result<Process> {
    let lines = ask(pid, "list", &[], limit)?;
    let mut process = Process { pid, job: String::new(), communicators: Vec::new() };
    for fields in lines {
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        match fields[..] {
            ["job", job] => process.job = job.to_owned(),
            ["communicator", id, name, rank, ranks, begun, ..] => {
                let number = |text: &str| text.parse::<u64>().map_err(|_| nonsense(pid, text));
                process.communicators.push(Communicator {
                    id: id.to_owned(),
                    name: name.to_owned(),
                    rank: number(rank)? as u32,
                    ranks: number(ranks)? as u32,
                    begun: number(begun)?,
                });
            }
            _ => {}
        }
    }
    Ok(process)
}

/// Asks a process why nothing moves in its communicators; it asks their other ranks. An answer takes up to
/// 1.5 s where somebody does not answer.
///
/// # Errors
/// As [`list`].
pub fn hang(pid: u32) -> Result<Vec<Verdict>> {
    let lines = ask(pid, "hang", &[], Duration::from_secs(4))?;
    let mut verdicts = Vec::new();
    for fields in lines {
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        match fields[..] {
            ["verdict", json] => {
                let read = serde_json::from_str(json);
                verdicts.push(read.map_err(|error| nonsense(pid, &error.to_string()))?);
            }
            ["refused", why] => return Err(Error::invalid_usage(format!("process {pid}: {why}"))),
            _ => {}
        }
    }
    Ok(verdicts)
}

/// Asks a process how calls would run now, in each of its communicators that can say: a small one does not
/// have every root.
///
/// # Errors
/// As [`list`], or no communicator can say, with what one of them refuses.
pub fn decide(pid: u32, asked: &Asked, limit: Duration) -> Result<Vec<Told>> {
    let asked = serde_json::to_string(asked).map_err(|error| Error::internal(error.to_string()))?;
    let (mut all, mut refused) = (Vec::new(), None);
    for fields in ask(pid, &format!("explain {asked}"), &[], limit)? {
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        match fields[..] {
            ["decision", json] => {
                let read = serde_json::from_str(json);
                all.push(read.map_err(|error| nonsense(pid, &error.to_string()))?);
            }
            ["refused", why] => refused = Some(Error::invalid_usage(format!("process {pid}: {why}"))),
            _ => {}
        }
    }
    match refused {
        Some(refused) if all.is_empty() => Err(refused),
        _ => Ok(all),
    }
}

/// Has a process propose rules for communicators of which it holds ranks; waits for the outcome of each.
///
/// # Errors
/// As [`list`].
pub fn apply(pid: u32, ids: &[String], files: &[SettingsFile], limit: Duration) -> Result<Vec<Answer>> {
    let content = wire::pack(files);
    if content.len() > wire::MOST_RULES {
        let most = wire::MOST_RULES;
        let text = format!("{} bytes of rules are more than the {most} of a change", content.len());
        return Err(Error::invalid_usage(text).remedy("are these the right files?"));
    }
    let lines = ask(pid, &format!("apply {}", ids.join(",")), &content, limit)?;
    let mut answers = Vec::new();
    for fields in lines {
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        let (id, name, outcome) = match fields[..] {
            ["changed", id, name, at] => {
                (id, name, super::Outcome::Changed(at.parse().map_err(|_| nonsense(pid, at))?))
            }
            ["unchanged", id, name, why] => (id, name, super::Outcome::Unchanged(why.to_owned())),
            ["unknown", id, name, why] => (id, name, super::Outcome::Unknown(why.to_owned())),
            ["refused", why] => return Err(Error::invalid_usage(format!("process {pid}: {why}"))),
            _ => continue,
        };
        answers.push(Answer { id: id.to_owned(), name: name.to_owned(), outcome });
    }
    for id in ids {
        if !answers.iter().any(|answer| answer.id == *id) {
            let outcome = super::Outcome::Unknown("the process has not told in time".to_owned());
            answers.push(Answer { id: id.clone(), name: String::new(), outcome });
        }
    }
    Ok(answers)
}

/// The lines of an answer without the last, by their fields, which can be printed.
fn ask(pid: u32, question: &str, bytes: &[u8], limit: Duration) -> Result<Vec<Vec<String>>> {
    let address = Address::of(env::settings())
        .ok_or_else(|| Error::invalid_usage("HAWSER_RUNTIME_DIR=none: no process can be asked"))?;
    ask_at(&address, pid, question, bytes, limit)
}

fn ask_at(
    address: &Address,
    pid: u32,
    question: &str,
    bytes: &[u8],
    limit: Duration,
) -> Result<Vec<Vec<String>>> {
    let until = Instant::now() + limit;
    let mut stream = address.connect(pid)?;
    let what = |error: std::io::Error| Error::system(format!("asking process {pid}"), error);
    stream.set_write_timeout(Some(limit)).map_err(what)?;
    let asked = stream.write_all(format!("{question}\n").as_bytes()).and_then(|()| stream.write_all(bytes));
    let asked = asked.and_then(|()| stream.shutdown(Shutdown::Write));
    // Who hangs up in the middle of a question may have said why.
    asked.or_else(|error| if error.kind() == Io::BrokenPipe { Ok(()) } else { Err(error) }).map_err(what)?;
    let answer = read_answer(&mut stream, until).map_err(what)?;
    let mut lines = Vec::new();
    for line in String::from_utf8_lossy(&answer).lines() {
        if line == "end" {
            return Ok(lines);
        }
        lines.push(line.split('\t').map(|field| printable(&field.replace('\u{b}', "\n"))).collect());
    }
    Err(Error::remote(format!("process {pid} hung up in the middle of its answer: has it ended?")))
}

/// All that comes until the other end hangs up.
fn read_answer(stream: &mut UnixStream, until: Instant) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    while !answer.ends_with(b"\nend\n") && answer != b"end\n" {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Io::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => answer.extend(&part[..count]),
            Err(error) if error.kind() == Io::Interrupted => {}
            Err(error) if error.kind() == Io::WouldBlock => return Err(Io::TimedOut.into()),
            Err(error) => return Err(error),
        }
        if answer.len() > LONGEST_ANSWER {
            let text = format!("the answer is longer than {LONGEST_ANSWER} bytes");
            return Err(std::io::Error::new(Io::InvalidData, text));
        }
    }
    Ok(answer)
}

fn nonsense(pid: u32, text: &str) -> Error {
    Error::remote(format!("process {pid} answered \"{text}\", which is no number: another version?"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::path::{Path, PathBuf};

    use super::super::address::tests::socket_of;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A folder of its own, of this user alone.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("hawser-ask-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
        folder
    }

    /// Somebody who gives an answer to whatever is asked.
    fn answering(folder: &Path, pid: u32, answer: &'static [u8]) -> std::thread::JoinHandle<()> {
        let listener = UnixListener::bind(socket_of(folder, pid)).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(answer);
        })
    }

    #[test]
    fn a_folder_that_others_can_look_into_is_not_asked() {
        let folder = folder("open");
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let listener = UnixListener::bind(socket_of(&folder, 7)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let error = ask_at(&Address::Folder(folder.clone()), 7, "list", &[], LIMIT).unwrap_err();
        assert!(error.text.contains("mode 700"), "{error}");
        assert!(listener.accept().is_err(), "nobody was asked, so rules went to nobody");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_an_answer_does_to_a_terminal_is_left_out() {
        let folder = folder("escapes");
        let there = answering(&folder, 7, b"job\t\x1b]0;owned\x07\x1b[2Jx\nend\n");
        let lines = ask_at(&Address::Folder(folder.clone()), 7, "list", &[], LIMIT).unwrap();
        assert_eq!(lines, [["job", "?]0;owned??[2Jx"]]);
        there.join().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn more_rules_than_anybody_writes_are_not_sent() {
        let files = [SettingsFile { name: "a.toml".into(), text: "#".repeat(wire::MOST_RULES) }];
        let error = apply(std::process::id(), &[], &files, LIMIT).unwrap_err();
        assert!(error.text.contains("are more than the 1048576"), "{error}");
    }

    #[test]
    fn an_endless_answer_is_an_error() {
        let folder = folder("endless");
        let there = answering(&folder, 7, Vec::leak(vec![b'x'; LONGEST_ANSWER + (1 << 20)]));
        let error = ask_at(&Address::Folder(folder.clone()), 7, "list", &[], LIMIT).unwrap_err();
        assert!(error.to_string().contains("the answer is longer"), "{error}");
        there.join().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}

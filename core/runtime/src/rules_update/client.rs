//! Asking another process about its communicators, and changing their rules.

use std::io::{BufRead, BufReader, ErrorKind as Io, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_plugin::tuner::SettingsFile;

use super::{control_socket, wire};

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
pub fn processes() -> Vec<u32> {
    env::settings().runtime_folder().as_deref().map_or_else(Vec::new, control_socket::processes_in)
}

/// Asks a process about its communicators.
///
/// # Errors
/// It is not there, is another user's, does not use this library, or does not answer.
pub fn list(pid: u32) -> Result<Process> {
    let lines = ask(pid, "list", &[], Duration::from_secs(10))?;
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

/// Has a process propose rules for communicators of which it holds ranks; waits for the outcome of each.
///
/// # Errors
/// As [`list`].
pub fn apply(pid: u32, ids: &[String], files: &[SettingsFile], limit: Duration) -> Result<Vec<Answer>> {
    let lines = ask(pid, &format!("apply {}", ids.join(",")), &wire::pack(files), limit)?;
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

/// The lines of an answer without the last, by their fields.
fn ask(pid: u32, question: &str, bytes: &[u8], limit: Duration) -> Result<Vec<Vec<String>>> {
    let folder = env::settings().runtime_folder();
    let folder = folder
        .as_deref()
        .ok_or_else(|| Error::invalid_usage("HAWSER_RUNTIME_DIR=none: no process can be asked"))?;
    let path = control_socket::socket_of(folder, pid);
    let what = |error: std::io::Error| {
        let gone = matches!(error.kind(), Io::NotFound | Io::ConnectionRefused);
        let text = format!("asking process {pid} through {}", path.display());
        let remedy = "is it there, on this host, of this user, with the same HAWSER_RUNTIME_DIR, and does it \
                      have a \
                      communicator of more than one rank?";
        if gone { Error::system(text, error).remedy(remedy) } else { Error::system(text, error) }
    };
    let mut stream = UnixStream::connect(&path).map_err(what)?;
    let set = stream.set_read_timeout(Some(limit)).and_then(|()| stream.set_write_timeout(Some(limit)));
    set.map_err(what)?;
    let asked = stream.write_all(format!("{question}\n").as_bytes()).and_then(|()| stream.write_all(bytes));
    asked.and_then(|()| stream.shutdown(Shutdown::Write)).map_err(what)?;
    let mut lines = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(what)?;
        if line == "end" {
            return Ok(lines);
        }
        lines.push(line.split('\t').map(|field| field.replace('\u{b}', "\n")).collect());
    }
    Err(Error::remote(format!("process {pid} hung up in the middle of its answer: has it ended?")))
}

fn nonsense(pid: u32, text: &str) -> Error {
    Error::remote(format!("process {pid} answered \"{text}\", which is no number: another version?"))
}

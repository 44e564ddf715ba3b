//! Reading the journals of another process of the same user and host, without its help.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hawser_base::error::{Error, Result};
use hawser_base::figures;
use hawser_base::liveness::Identity;
use hawser_base::readable_memory::{FORMAT, IDENTITY_AT, NAME, SLOT_BYTES, SLOT_WORDS};

use super::joining::JoiningReport;
use super::journal::{View, keep_equal, now_ms};
use super::process_state::ProcessState;
use super::report::ProcessReport;

/// The most slots that are read.
const MOST_SLOTS: usize = 1 << 14;

/// Processes of this host whose journals can be read.
pub fn processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<u32> = pids.filter(|pid| journals_of(*pid).is_some()).collect();
    found.sort_unstable();
    found
}

/// Reads what a process says of itself through its journals.
///
/// # Errors
/// There is no such process, it is another user's, or it does not use this library.
pub fn read(pid: u32) -> Result<ProcessReport> {
    let (path, file) = journals_of(pid).ok_or_else(|| {
        let text = format!("process {pid} has no journals that can be read");
        let remedy = "is it there, on this host, of this user, and does it use this library?";
        Error::invalid_usage(text).remedy(remedy)
    })?;
    let mut report = read_open(&file, &path)?;
    report.state = ProcessState::of(pid);
    Ok(report)
}

/// The report that a process has left in a file of `HAWSER_PROGRESS_DIR`.
///
/// # Errors
/// The file cannot be read, or is none of these.
pub fn read_file(path: &Path) -> Result<ProcessReport> {
    let failed = |error: std::io::Error| Error::system(format!("reading {}", path.display()), error);
    read_open(&File::open(path).map_err(failed)?, path)
}

fn read_open(file: &File, path: &Path) -> Result<ProcessReport> {
    let failed = |error: std::io::Error| Error::system(format!("reading {}", path.display()), error);
    let foreign = || {
        let name = path.display();
        let remedy = "name a file that this version wrote into the folder of HAWSER_PROGRESS_DIR";
        Error::invalid_usage(format!("{name} holds no journals of this version; {remedy}"))
    };
    let slots = file.metadata().map_err(failed)?.len() as usize / SLOT_BYTES;
    if slots == 0 {
        return Err(foreign());
    }
    let identity = identity_in(file).map_err(failed)?.ok_or_else(foreign)?;
    let (mut comms, mut joining, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..slots.min(MOST_SLOTS) {
        let mut before = read_slot(file, number).map_err(failed)?;
        let after = read_slot(file, number).map_err(failed)?;
        keep_equal(&mut before, &after);
        comms.extend(View::new(&before[..], now_ms()));
        joining.extend(JoiningReport::new(&before[..], now_ms()));
        figures.extend(figures::of_slot(&after));
    }
    Ok(ProcessReport { joining, figures, ..ProcessReport::of_journals(&identity, comms) })
}

/// The journals of a process, with the name by which they were opened. The file is opened once: a descriptor
/// of another process may be closed, and its number given to something else, at any time.
fn journals_of(pid: u32) -> Option<(PathBuf, File)> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let is_journals = |path: &PathBuf| {
        let Ok(target) = std::fs::read_link(path) else { return false };
        let name = target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_memory = name.strip_prefix("memfd:").is_some_and(|name| name.starts_with(NAME));
        is_memory || (name.starts_with(&format!("{NAME}-")) && name.ends_with(&format!("-{pid}")))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_journals).find_map(|path| {
        let file = File::open(&path).ok()?;
        // A child of fork(2) has its parent's.
        (identity_in(&file).ok()??.pid == pid).then_some((path, file))
    })
}

/// The identity of the process whose journals a file holds; None if it holds none of this version.
fn identity_in(file: &File) -> std::io::Result<Option<Identity>> {
    let first = read_slot(file, 0)?;
    let mut identity = [0; Identity::LEN];
    for (part, word) in identity.chunks_mut(8).zip(&first[IDENTITY_AT / 8..]) {
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
    Ok((first[0] == FORMAT).then(|| Identity::decode(&identity)))
}

fn read_slot(file: &File, number: usize) -> std::io::Result<Box<[u64; SLOT_WORDS]>> {
    let mut bytes = vec![0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, (number * SLOT_BYTES) as u64)?;
    let mut words = Box::new([0; SLOT_WORDS]);
    for (word, part) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(part);
        *word = u64::from_le_bytes(eight);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_base::readable_memory::Slot;

    /// Each reader holds a descriptor of the same file for a moment, which another one may find before the
    /// process's own, and whose number is something else's soon after.
    #[test]
    fn threads_of_a_process_read_it_at_once() {
        let lower: Vec<File> = (0..16).map(|_| File::open("/dev/null").unwrap()).collect();
        let _slot = Slot::new();
        drop(lower);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        drop(File::open("/dev/null").unwrap());
                        assert_eq!(read(std::process::id()).unwrap().pid, std::process::id());
                    }
                });
            }
        });
    }
}

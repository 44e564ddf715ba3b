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
    let path = journals_of(pid).ok_or_else(|| {
        let text = format!("process {pid} has no journals that can be read");
        let remedy = "is it there, on this host, of this user, and does it use this library?";
        Error::invalid_usage(text).remedy(remedy)
    })?;
    let mut report = read_file(&path)?;
    report.state = ProcessState::of(pid);
    Ok(report)
}

/// The report that a process has left in a file of `HAWSER_PROGRESS_DIR`.
///
/// # Errors
/// The file cannot be read, or is none of these.
pub fn read_file(path: &Path) -> Result<ProcessReport> {
    let failed = |error: std::io::Error| Error::system(format!("reading {}", path.display()), error);
    let foreign = || {
        let name = path.display();
        let remedy = "name a file that this version wrote into the folder of HAWSER_PROGRESS_DIR";
        Error::invalid_usage(format!("{name} holds no journals of this version; {remedy}"))
    };
    let file = File::open(path).map_err(failed)?;
    let slots = file.metadata().map_err(failed)?.len() as usize / SLOT_BYTES;
    if slots == 0 {
        return Err(foreign());
    }
    let first = read_slot(&file, 0).map_err(failed)?;
    let mut identity = [0; Identity::LEN];
    for (part, word) in identity.chunks_mut(8).zip(&first[IDENTITY_AT / 8..]) {
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
    if first[0] != FORMAT {
        return Err(foreign());
    }
    let identity = Identity::decode(&identity);
    let (mut comms, mut joining, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..slots.min(MOST_SLOTS) {
        let mut before = read_slot(&file, number).map_err(failed)?;
        let after = read_slot(&file, number).map_err(failed)?;
        keep_equal(&mut before, &after);
        comms.extend(View::new(&before[..], now_ms()));
        joining.extend(JoiningReport::new(&before[..], now_ms()));
        figures.extend(figures::of_slot(&after));
    }
    Ok(ProcessReport { joining, figures, ..ProcessReport::of_journals(&identity, comms) })
}

/// The place of a process's journals.
fn journals_of(pid: u32) -> Option<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let is_journals = |path: &PathBuf| {
        let Ok(target) = std::fs::read_link(path) else { return false };
        let name = target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_memory = name.strip_prefix("memfd:").is_some_and(|name| name.starts_with(NAME));
        is_memory || (name.starts_with(&format!("{NAME}-")) && name.ends_with(&format!("-{pid}")))
    };
    let path = entries.flatten().map(|entry| entry.path()).find(is_journals)?;
    // A child of fork(2) has its parent's.
    let first = read_slot(&File::open(&path).ok()?, 0).ok()?;
    let mut identity = [0; Identity::LEN];
    for (part, word) in identity.chunks_mut(8).zip(&first[IDENTITY_AT / 8..]) {
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
    (first[0] == FORMAT && Identity::decode(&identity).pid == pid).then_some(path)
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

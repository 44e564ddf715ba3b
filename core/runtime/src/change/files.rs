//! Rule files that are watched (`HAWSER_RULES_WATCH`): when one changes, the new text is proposed to the communicators of
//! which this process holds rank 0. Looked at by time stamps, which works on network file systems too.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hawser_plugin::tuner::SettingsFile;

use super::protocol::Outcome;
use super::seat::Seat;
use crate::env::Settings;
use crate::log::{self, Subsys};

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(500);
/// More rules than anybody writes, in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// Files and what was seen of them.
pub struct Watched {
    paths: Vec<PathBuf>,
    /// As they were when they counted last.
    known: Vec<Stamp>,
    /// As they were at the last look: a file that is being written is left alone.
    seen: Vec<Stamp>,
    next: Duration,
}

/// Differs when a file has been written: device, inode, size, time in nanoseconds; None: it is not there.
type Stamp = Option<(u64, u64, u64, i128)>;

impl Watched {
    /// The files that the settings name; None without any. What stood in them when [`note`] was called counts already.
    pub fn new(settings: &Settings) -> Option<Self> {
        let paths = settings.rules_watch.clone();
        if paths.is_empty() {
            return None;
        }
        let known = note(settings).clone();
        Some(Self { paths, seen: known.clone(), known, next: EVERY })
    }

    /// Looks, if it is time; says when to come again.
    pub fn look(&mut self, seats: &[Arc<Seat>], now: Duration) -> Duration {
        if now < self.next {
            return self.next - now;
        }
        self.next = now + EVERY;
        if self.is_changed()
            && let Some(files) = self.read()
        {
            seats.iter().filter(|seat| seat.rank == 0).for_each(|seat| propose(seat, &files));
        }
        EVERY
    }

    /// Whether files are other than they were, and have been so for one look.
    fn is_changed(&mut self) -> bool {
        let now: Vec<Stamp> = self.paths.iter().map(stamp).collect();
        let is_still = now == self.seen;
        self.seen = now;
        let changed = is_still && self.seen != self.known;
        if changed {
            self.known.clone_from(&self.seen);
        }
        changed
    }

    /// What stands in them; None, with a line in the log, if one cannot be read.
    fn read(&self) -> Option<Vec<SettingsFile>> {
        let read = |path: &PathBuf| -> std::io::Result<SettingsFile> {
            let mut text = String::new();
            File::open(path)?.take(MOST_BYTES).read_to_string(&mut text)?;
            Ok(SettingsFile { name: path.display().to_string(), text })
        };
        let complain = |path: &PathBuf, error: &std::io::Error| {
            log::warn(&format!("rules stay as they are: {} has changed, but: {error}", path.display()));
        };
        self.paths.iter().map(|path| read(path).inspect_err(|error| complain(path, error)).ok()).collect()
    }
}

/// What the files are like before this process reads rules from them for the first time. What is written from then on is a
/// change, however late the thread that watches comes to look.
pub fn note(settings: &Settings) -> &'static Vec<Stamp> {
    static FIRST: OnceLock<Vec<Stamp>> = OnceLock::new();
    FIRST.get_or_init(|| settings.rules_watch.iter().map(stamp).collect())
}

fn stamp(path: &PathBuf) -> Stamp {
    let of = |meta: Metadata| {
        let time = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        (meta.dev(), meta.ino(), meta.size(), time)
    };
    std::fs::metadata(path).ok().filter(Metadata::is_file).map(of)
}

fn propose(seat: &Arc<Seat>, files: &[SettingsFile]) {
    let name = seat.name.clone();
    let done = move |outcome| match outcome {
        Outcome::Changed(at) => log::info(Subsys::Tuning, || {
            format!("communicator {name}: the rule files have changed and count from collective {at} on")
        }),
        Outcome::Unchanged(why) | Outcome::Unknown(why) => {
            log::warn(&format!("communicator {name}: the rule files have changed but do not count: {why}"));
        }
    };
    seat.propose(files, Box::new(done));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_when_it_has_been_still() {
        let folder = std::env::temp_dir().join(format!("hawser-watch-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("r.toml");
        std::fs::write(&path, "a").unwrap();
        let known = vec![stamp(&path)];
        let mut watched = Watched { paths: vec![path.clone()], seen: known.clone(), known, next: EVERY };
        assert!(!watched.is_changed());
        std::fs::write(&path, "more").unwrap();
        assert!(!watched.is_changed(), "it may still be written");
        assert!(watched.is_changed());
        assert!(!watched.is_changed(), "once");
        assert_eq!(watched.read().unwrap()[0].text, "more");
        std::fs::remove_file(&path).unwrap();
        assert!(!watched.is_changed());
        assert!(watched.is_changed() && watched.read().is_none(), "without the file rules stay as they are");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

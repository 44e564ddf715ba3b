//! Rule files that are watched (`HAWSER_RULES_WATCH`): when one changes, the new text is proposed to the
//! communicators of which this process holds rank 0. Looked at by time stamps, which works on network file
//! systems too.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hawser_base::env::Settings;
use hawser_base::files;
use hawser_base::log::{self, Subsys};
use hawser_plugin::tuner::SettingsFile;

use super::participant::Participant;
use super::protocol::Outcome;

/// The time between two looks at the files.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// The most bytes that are read of a file: more rules than anybody writes.
const MOST_BYTES: u64 = 16 << 20;

/// The pause before files whose rules were not taken are proposed again; it doubles each time.
const FIRST_RETRY: Duration = Duration::from_secs(10);

/// The watched files of a process, and how they were at the last look.
pub struct Watched {
    paths: Vec<PathBuf>,
    /// As they were at the last look: a file that is being written is left alone.
    seen: Vec<Stamp>,
    next: Duration,
}

/// The versions of the files that a communicator has, on its rank 0.
pub struct Known {
    /// The stamps of the files when they were last read or proposed.
    stamps: Vec<Stamp>,
    /// True if the last proposal of these files failed, so that their rules do not count.
    pub(super) failed: bool,
    /// The time at which the files are proposed again.
    again: Option<Duration>,
    pause: Duration,
}

/// The device, inode, size and time in nanoseconds of a file, one of which differs once the file has been
/// written; None if there is no file.
type Stamp = Option<(u64, u64, u64, i128)>;

impl Known {
    /// The versions of now, for a communicator that is about to read its rules for the first time: whatever
    /// is written from now on is a change.
    pub fn now(settings: &Settings) -> Self {
        Self::of(stamps(&settings.watched_files()))
    }

    fn of(stamps: Vec<Stamp>) -> Self {
        Self { stamps, failed: false, again: None, pause: FIRST_RETRY }
    }

    /// True if files with these stamps have to be proposed.
    fn is_due(&mut self, seen: &[Stamp], now: Duration) -> bool {
        if self.stamps != seen {
            *self = Self::of(seen.to_vec());
            return true;
        }
        if std::mem::take(&mut self.failed) {
            self.again = Some(now + self.pause);
            self.pause *= 2;
        }
        self.again.take_if(|again| now >= *again).is_some()
    }
}

impl Watched {
    /// The files that the settings name; None without any.
    pub fn new(settings: &Settings) -> Option<Self> {
        let paths = settings.watched_files();
        (!paths.is_empty()).then(|| Self { seen: stamps(&paths), paths, next: LOOK_PERIOD })
    }

    /// Looks at the files if it is time to, and proposes changed ones. Returns the time until the next look.
    pub fn look(&mut self, participants: &[Arc<Participant>], now: Duration) -> Duration {
        if now < self.next {
            return self.next - now;
        }
        self.next = now + LOOK_PERIOD;
        if !self.is_still() {
            return LOOK_PERIOD;
        }
        let is_due = |participant: &&Arc<Participant>| {
            participant.rank == 0 && participant.known().is_due(&self.seen, now)
        };
        let due: Vec<&Arc<Participant>> = participants.iter().filter(is_due).collect();
        let files = if due.is_empty() { None } else { self.read() };
        for participant in due {
            match &files {
                Some(files) => propose(participant, files),
                None => participant.known().failed = true,
            }
        }
        LOOK_PERIOD
    }

    /// Takes new stamps; true if they are those of the last look.
    fn is_still(&mut self) -> bool {
        let now = stamps(&self.paths);
        std::mem::replace(&mut self.seen, now) == self.seen
    }

    /// The content of the files; None, with a line in the log, if one cannot be read.
    fn read(&self) -> Option<Vec<SettingsFile>> {
        let read = |path: &PathBuf| -> std::io::Result<SettingsFile> {
            let text = files::read_text(path, MOST_BYTES)?;
            Ok(SettingsFile { name: path.display().to_string(), text })
        };
        let complain = |path: &PathBuf, error: &std::io::Error| {
            log::warn(&format!("rules stay as they are: {} has changed, but: {error}", path.display()));
        };
        self.paths.iter().map(|path| read(path).inspect_err(|error| complain(path, error)).ok()).collect()
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let of = |meta: Metadata| {
        let time = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        (meta.dev(), meta.ino(), meta.size(), time)
    };
    paths.iter().map(|path| std::fs::metadata(path).ok().filter(Metadata::is_file).map(of)).collect()
}

fn propose(participant: &Arc<Participant>, files: &[SettingsFile]) {
    let (name, weak) = (participant.name.clone(), Arc::downgrade(participant));
    let done = move |outcome| match outcome {
        Outcome::Changed(at) => log::info(Subsys::Tuning, || {
            format!("communicator {name}: the rule files have changed and count from collective {at} on")
        }),
        Outcome::Unchanged(why) | Outcome::Unknown(why) => {
            log::warn(&format!("communicator {name}: the rule files have changed but do not count: {why}"));
            if let Some(participant) = weak.upgrade() {
                participant.known().failed = true;
            }
        }
    };
    participant.propose(files, Box::new(done));
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
        let paths = vec![path.clone()];
        let mut known = Known::of(stamps(&paths));
        let mut watched = Watched { seen: stamps(&paths), paths, next: LOOK_PERIOD };
        let now = Duration::ZERO;
        let mut due = |watched: &mut Watched, now| watched.is_still() && known.is_due(&watched.seen, now);
        assert!(!due(&mut watched, now));
        std::fs::write(&path, "more").unwrap();
        assert!(!due(&mut watched, now), "it may still be written");
        assert!(due(&mut watched, now));
        assert!(!due(&mut watched, now + FIRST_RETRY * 100), "once");
        assert_eq!(watched.read().unwrap()[0].text, "more");
        std::fs::File::create(&path).unwrap().set_len(MOST_BYTES + 1).unwrap();
        assert!(watched.read().is_none(), "half of the rules are none");
        std::fs::remove_file(&path).unwrap();
        assert!(!due(&mut watched, now));
        assert!(
            due(&mut watched, now) && watched.read().is_none(),
            "without the file rules stay as they are"
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_could_not_count_is_tried_again_less_and_less_often() {
        let mut known = Known::of(vec![None]);
        let mut now = Duration::ZERO;
        for pause in [FIRST_RETRY, FIRST_RETRY * 2, FIRST_RETRY * 4] {
            known.failed = true;
            assert!(!known.is_due(&[None], now));
            assert!(!known.is_due(&[None], now + pause / 2));
            now += pause;
            assert!(known.is_due(&[None], now) && !known.is_due(&[None], now));
        }
        known.failed = true;
        assert!(known.is_due(&[Some((1, 2, 3, 4))], now), "it has changed");
        assert_eq!((known.again, known.pause), (None, FIRST_RETRY));
    }
}

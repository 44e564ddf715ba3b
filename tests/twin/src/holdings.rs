//! The things that a process holds, which a world must give back.

use std::time::{Duration, Instant};

/// Counts of what a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holdings {
    descriptors: usize,
    threads: usize,
    heaps: usize,
}

impl Holdings {
    /// The counts of this moment.
    pub fn now() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: threads(),
            heaps: maps.lines().filter(|line| line.contains("hawser-heap")).count(),
        }
    }

    /// Returns true if nothing is there that was not there before.
    fn is_within(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors && self.threads <= before.threads && self.heaps <= before.heaps
    }

    /// Waits until all is given back that was not there before. What was told to end may still be at it, so
    /// it gets some time.
    ///
    /// # Errors
    /// A sentence about what is still held.
    pub fn given_back(before: &Self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let now = Self::now();
            if now.is_within(before) {
                return Ok(());
            }
            if begin.elapsed() > Duration::from_secs(10) {
                return Err(format!("leak: before the world {before:?}, after it {now:?}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The threads of this process but the one that watches copy engines, which stays once it is there.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let name = |path: std::path::PathBuf| std::fs::read_to_string(path.join("comm")).unwrap_or_default();
    tasks.filter(|task| name(task.path()).trim() != "hawser-dma").count()
}

/// Resident memory of this process in KiB, without what is free but kept for later (malloc_trim(3)): one
/// world with large buffers makes that grow for good.
pub fn resident_kib() -> usize {
    // SAFETY: it may be called at any time, by any thread.
    unsafe { libc::malloc_trim(0) };
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4
}

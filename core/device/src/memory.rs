//! Memory that is owned, and its size in words.

use std::any::Any;

/// Memory that is freed when dropped.
pub struct Memory {
    /// Device address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The owner of the memory, which must stay alive; dropping it frees the memory.
    pub owner: Box<dyn Any + Send + Sync>,
}

impl Memory {
    /// Takes the memory out and leaves none: it lives as long as the answer.
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self { addr: 0, bytes: 0, owner: Box::new(()) })
    }
}

/// `96 MiB`, for people.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

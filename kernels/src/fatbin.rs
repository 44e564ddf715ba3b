//! Reads which architectures a fat binary holds.
//!
//! The layout is not documented by NVIDIA; these offsets were read off nvcc's output (12.x and
//! 13.0 agree). All fields are little-endian.
//!
//! | where | field |
//! |---|---|
//! | file @0, u32 | magic |
//! | file @6, u16 | header bytes, entries follow |
//! | file @8, u64 | bytes of all entries |
//! | entry @0, u16 | kind: 1 PTX, 2 machine code |
//! | entry @4, u32 | entry header bytes, the payload follows |
//! | entry @8, u64 | payload bytes |
//! | entry @28, u32 | compute capability, e.g. 90 |

use std::fmt;

const MAGIC: u32 = 0xBA55_ED50;
const ENTRY_FIELDS: usize = 32;

/// One piece of code in a fat binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    /// Machine code for this compute capability, e.g. 90 for 9.0.
    Cubin(u32),
    /// PTX, which the driver compiles for this compute capability or any newer one.
    Ptx(u32),
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arch::Cubin(arch) => write!(f, "sm_{arch}"),
            Arch::Ptx(arch) => write!(f, "compute_{arch}"),
        }
    }
}

/// The code a fat binary holds, in file order. What does not look like a fat binary gives an empty
/// list, a truncated one gives the entries that are whole: this is for log lines, the driver
/// decides what loads.
pub fn archs(image: &[u8]) -> Vec<Arch> {
    let mut found = Vec::new();
    let Some((mut at, end)) = entries_range(image) else { return found };
    while let Some((arch, next)) = entry(image, at, end) {
        found.extend(arch);
        at = next;
    }
    found
}

/// The offsets in `image` where the entries start and end.
fn entries_range(image: &[u8]) -> Option<(usize, usize)> {
    if read_u32(image, 0)? != MAGIC {
        return None;
    }
    let start = usize::from(read_u16(image, 6)?);
    let payload = usize::try_from(read_u64(image, 8)?).ok()?;
    Some((start, start.checked_add(payload)?.min(image.len())))
}

/// The entry at `at` (`None` inside for an unknown kind) and where the next one starts.
fn entry(image: &[u8], at: usize, end: usize) -> Option<(Option<Arch>, usize)> {
    let header = image.get(at..end)?;
    let header_bytes = usize::try_from(read_u32(header, 4)?).ok()?;
    let payload_bytes = usize::try_from(read_u64(header, 8)?).ok()?;
    let total = header_bytes.checked_add(payload_bytes)?;
    if header_bytes < ENTRY_FIELDS || total > header.len() {
        return None;
    }
    let capability = read_u32(header, 28)?;
    let arch = match read_u16(header, 0)? {
        1 => Some(Arch::Ptx(capability)),
        2 => Some(Arch::Cubin(capability)),
        _ => None,
    };
    Some((arch, at + total))
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_le_bytes(*chunk))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_entry(kind: u16, capability: u32, payload: &[u8]) -> Vec<u8> {
        let mut entry = vec![0u8; 64];
        entry[0..2].copy_from_slice(&kind.to_le_bytes());
        entry[4..8].copy_from_slice(&64u32.to_le_bytes());
        entry[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        entry[28..32].copy_from_slice(&capability.to_le_bytes());
        entry.extend_from_slice(payload);
        entry
    }

    fn sample(entries: &[Vec<u8>]) -> Vec<u8> {
        let body: Vec<u8> = entries.concat();
        let mut image = Vec::new();
        image.extend_from_slice(&MAGIC.to_le_bytes());
        image.extend_from_slice(&1u16.to_le_bytes());
        image.extend_from_slice(&16u16.to_le_bytes());
        image.extend_from_slice(&(body.len() as u64).to_le_bytes());
        image.extend_from_slice(&body);
        image
    }

    fn two_entries() -> Vec<u8> {
        sample(&[sample_entry(2, 90, &[7; 24]), sample_entry(1, 100, &[9; 40])])
    }

    #[test]
    fn lists_entries_in_order() {
        let names: Vec<String> = archs(&two_entries()).iter().map(Arch::to_string).collect();
        assert_eq!(names, ["sm_90", "compute_100"]);
    }

    #[test]
    fn unknown_kinds_are_skipped() {
        let image = sample(&[sample_entry(77, 1, &[0; 8]), sample_entry(2, 80, &[0; 8])]);
        assert_eq!(archs(&image), [Arch::Cubin(80)]);
    }

    #[test]
    fn bytes_after_the_payload_are_not_read() {
        let mut image = two_entries();
        image.extend_from_slice(&sample_entry(2, 75, &[0; 8]));
        assert_eq!(archs(&image).len(), 2);
    }

    #[test]
    fn a_foreign_magic_gives_nothing() {
        let mut image = two_entries();
        image[0] ^= 1;
        assert_eq!(archs(&image), []);
    }

    #[test]
    fn every_truncation_keeps_only_whole_entries() {
        let image = two_entries();
        let first_ends = 16 + 64 + 24;
        for length in 0..image.len() {
            let expected = usize::from(length >= first_ends);
            assert_eq!(archs(&image[..length]).len(), expected, "cut to {length} bytes");
        }
        assert_eq!(archs(&image).len(), 2);
    }

    #[test]
    fn hostile_sizes_end_the_walk() {
        let huge = u64::MAX.to_le_bytes();
        let mut image = two_entries();
        image[8..16].copy_from_slice(&huge); // payload of the file
        assert_eq!(archs(&image), []);
        let mut image = two_entries();
        image[16 + 8..16 + 16].copy_from_slice(&huge); // payload of the first entry
        assert_eq!(archs(&image), []);
        let mut image = two_entries();
        image[16 + 4..16 + 8].copy_from_slice(&0u32.to_le_bytes()); // an entry that never advances
        assert_eq!(archs(&image), []);
    }
}

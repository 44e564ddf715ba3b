//! The size bars of the stripped library.
//!
//! The part without kernels is computed, not built a second time: the embedded fat binaries are
//! found by their header and taken off.

use std::fs;
use std::path::Path;

const LIMIT: usize = 16_000_000;
const LIMIT_WITHOUT_KERNELS: usize = 6_900_000; // docs/adr/0018

/// First eight bytes of a fat binary: magic, version 1, header of 16 bytes. Little-endian. Made at
/// run time so that this program does not hold the bytes it looks for.
fn fatbin_start() -> [u8; 8] {
    let mut start = 0xBA55_ED50u64.to_le_bytes();
    start[4..].copy_from_slice(&[1, 0, 16, 0]);
    start
}

/// Prints both sizes in bytes and fails if one is over its limit.
pub fn run(library: &Path) -> Result<(), String> {
    let bytes = fs::read(library).map_err(|e| format!("cannot read {}: {e}", library.display()))?;
    let kernels = kernel_bytes(&bytes);
    let without = bytes.len() - kernels;
    println!("size: {} has {} bytes, {kernels} of them kernels", library.display(), bytes.len());
    check("with kernels", bytes.len(), LIMIT)?;
    check("without kernels", without, LIMIT_WITHOUT_KERNELS)
}

fn check(what: &str, size: usize, limit: usize) -> Result<(), String> {
    if size < limit {
        return Ok(());
    }
    Err(format!("the library {what} has {size} bytes, the limit is {limit}"))
}

/// Bytes of all fat binaries in `library`, which start at multiples of eight.
fn kernel_bytes(library: &[u8]) -> usize {
    let (start, mut at, mut sum) = (fatbin_start(), 0, 0);
    while let Some(header) = library.get(at..at + 16) {
        let payload = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
        let whole = usize::try_from(payload).ok().and_then(|payload| payload.checked_add(16));
        match whole {
            Some(whole) if header[..8] == start && whole <= library.len() - at => {
                sum += whole;
                at += whole.next_multiple_of(8);
            }
            _ => at += 8,
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload: usize) -> Vec<u8> {
        let mut image = fatbin_start().to_vec();
        image.extend_from_slice(&(payload as u64).to_le_bytes());
        image.resize(16 + payload, 0xEE);
        image
    }

    #[test]
    fn finds_every_image() {
        let library = [vec![0; 64], image(48), vec![1; 64], image(16), image(8)].concat();
        assert_eq!(kernel_bytes(&library), 64 + 32 + 24);
    }

    #[test]
    fn an_image_longer_than_the_file_does_not_count() {
        let mut library = [vec![0; 64], image(48)].concat();
        library.pop();
        assert_eq!(kernel_bytes(&library), 0);
        library[72..80].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(kernel_bytes(&library), 0);
    }

    #[test]
    fn limits_are_exclusive() {
        assert!(check("x", 9, 10).is_ok());
        assert!(check("x", 10, 10).unwrap_err().contains("10 bytes"));
    }
}

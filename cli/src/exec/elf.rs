//! The head of a file and what it says: an ELF file (elf(5)), for whom, and whether the dynamic loader starts
//! it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The part of a file that is read: the head, and room for the table of segments of any linker.
const MOST: u64 = 64 << 10;
/// The type of the segment that names the dynamic loader.
const PT_INTERP: u32 = 3;

/// A kind of file, as far as running it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A 64-bit ELF file.
    Elf {
        /// True if the dynamic loader starts it; a library needs no loader, a static program has none.
        has_loader: bool,
    },
    /// A 32-bit ELF file.
    Elf32,
    /// A script, and the program that reads it with its argument.
    Script(String),
    /// Something else.
    Other,
}

/// Reads the head of a file.
///
/// # Errors
/// It cannot be read.
pub fn kind(path: &Path) -> Result<Kind> {
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    file.take(MOST).read_to_end(&mut bytes).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(parse(&bytes))
}

/// Checks that a file can be preloaded into 64-bit programs.
///
/// # Errors
/// It cannot.
pub fn check_library(path: &Path) -> Result<()> {
    match kind(path)? {
        Kind::Elf { .. } => Ok(()),
        Kind::Elf32 => bail!("{} is a library for 32-bit programs: name the 64-bit one", path.display()),
        _ => bail!("{} is no shared library: name libnccl.so.2 with --library", path.display()),
    }
}

/// The kind of a file that begins with these bytes.
pub fn parse(bytes: &[u8]) -> Kind {
    if let Some(rest) = bytes.strip_prefix(b"#!") {
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        return Kind::Script(String::from_utf8_lossy(line).trim().to_owned());
    }
    match bytes.strip_prefix(b"\x7fELF").and_then(|rest| rest.first()) {
        Some(2) => Kind::Elf { has_loader: has_loader(bytes).unwrap_or(false) },
        Some(1) => Kind::Elf32,
        _ => Kind::Other,
    }
}

/// Looks for the loader's name in the table of segments. Files are little-endian, as all machines with GPUs
/// are.
fn has_loader(bytes: &[u8]) -> Option<bool> {
    let number = |at: usize, length: usize| -> Option<usize> {
        let field = bytes.get(at..at.checked_add(length)?)?;
        Some(field.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for entry in 0..count {
        let kind = number(table.checked_add(entry.checked_mul(size)?)?, 4)?;
        if kind == PT_INTERP as usize {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file of this class with segments of these types.
    fn elf(class: u8, segments: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        bytes[32] = 64;
        (bytes[54], bytes[56]) = (56, segments.len() as u8);
        for segment in segments {
            bytes.extend(segment.to_le_bytes());
            bytes.extend([0; 52]);
        }
        bytes
    }

    #[test]
    fn programs_are_told_apart() {
        assert_eq!(parse(&elf(2, &[6, PT_INTERP, 1])), Kind::Elf { has_loader: true });
        assert_eq!(parse(&elf(2, &[6, 1])), Kind::Elf { has_loader: false });
        assert_eq!(parse(&elf(1, &[PT_INTERP])), Kind::Elf32);
        assert_eq!(parse(b"#! /usr/bin/env python3\nprint()"), Kind::Script("/usr/bin/env python3".into()));
        assert_eq!((parse(b""), parse(b"text")), (Kind::Other, Kind::Other));
        // Cut off anywhere, or pointing anywhere, it is read without a fault.
        let whole = elf(2, &[6, PT_INTERP]);
        for end in 0..whole.len() {
            let _ = parse(&whole[..end]);
        }
        let mut far = whole;
        far[32..40].fill(0xff);
        assert_eq!(parse(&far), Kind::Elf { has_loader: false });
    }

    #[test]
    fn this_program_has_a_loader() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(kind(&own).unwrap(), Kind::Elf { has_loader: true });
        check_library(&own).unwrap();
        assert!(kind(Path::new("/nonexistent")).is_err());
    }
}

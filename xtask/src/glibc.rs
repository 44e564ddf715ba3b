//! The check that built files run with the glibc that packages promise (`packaging/glibc`).

use std::fmt;
use std::fs;
use std::path::Path;

use elf::ElfBytes;
use elf::endian::AnyEndian;

/// The oldest glibc that what is built may need, as the packages read it.
const FLOOR: &str = include_str!("../../packaging/glibc");

/// A version of glibc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    /// Reads `2.17` or `2.2.5`.
    fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.split('.').map(str::parse);
        let version =
            Version(numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next().unwrap_or(Ok(0)).ok()?);
        numbers.next().is_none().then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.2 {
            0 => write!(f, "{}.{}", self.0, self.1),
            patch => write!(f, "{}.{}.{patch}", self.0, self.1),
        }
    }
}

/// Prints the glibc that each file needs and the symbol that needs it, and fails if one is above the floor.
pub fn run(files: &[&str]) -> Result<(), String> {
    let floor = Version::parse(FLOOR.trim()).ok_or("packaging/glibc holds no version such as 2.17")?;
    let mut above = Vec::new();
    for file in files {
        let (version, symbol) = newest(Path::new(file))?;
        println!("glibc: {file} needs {version} ({symbol}), {floor} is promised");
        if version > floor {
            above.push(*file);
        }
    }
    if above.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} need a newer glibc than the {floor} that packaging/glibc promises: build with Zig, as `make lib \
         plugins` does without HAWSER_GLIBC=host, or take a function that is older",
        above.join(", ")
    ))
}

/// The newest version of glibc that a symbol of `file` asks for, and that symbol.
fn newest(file: &Path) -> Result<(Version, String), String> {
    let wrong = |what: &dyn fmt::Display| format!("cannot read {}: {what}", file.display());
    let bytes = fs::read(file).map_err(|e| wrong(&e))?;
    let elf = ElfBytes::<AnyEndian>::minimal_parse(&bytes).map_err(|e| wrong(&e))?;
    let none = || wrong(&"it has no symbols with versions, so it is no program or library for glibc");
    let (symbols, names) = elf.dynamic_symbol_table().map_err(|e| wrong(&e))?.ok_or_else(none)?;
    let versions = elf.symbol_version_table().map_err(|e| wrong(&e))?.ok_or_else(none)?;
    let mut newest: Option<(Version, String)> = None;
    for (index, symbol) in symbols.iter().enumerate() {
        let Some(needed) = versions.get_requirement(index).map_err(|e| wrong(&e))? else { continue };
        let Some(text) = needed.name.strip_prefix("GLIBC_") else { continue };
        let name = names.get(symbol.st_name as usize).map_err(|e| wrong(&e))?;
        // GLIBC_PRIVATE, GLIBC_ABI_…: names that no older glibc has.
        let version = Version::parse(text).ok_or_else(|| {
            wrong(&format!("{name} needs {}, which is no version that others have", needed.name))
        })?;
        if newest.as_ref().is_none_or(|(so_far, _)| version > *so_far) {
            newest = Some((version, name.into()));
        }
    }
    newest.ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let version = |text| Version::parse(text).expect("a version");
        assert!(version("2.17") > version("2.2.5") && version("2.34") > version("2.17"));
        assert_eq!(version("2.2.5").to_string(), "2.2.5");
        for wrong in ["", "2", "2.x", "PRIVATE", "2.3.4.5"] {
            assert_eq!(Version::parse(wrong), None, "{wrong}");
        }
        assert!(Version::parse(FLOOR.trim()).is_some());
    }

    #[test]
    fn the_newest_symbol_of_this_program_is_found() {
        let own = std::env::current_exe().expect("the test runs from a file");
        let (version, symbol) = newest(&own).expect("the test is a program for glibc");
        assert!(version >= Version(2, 2, 5) && !symbol.is_empty(), "{version} {symbol}");
        assert!(newest(Path::new("Cargo.toml")).unwrap_err().contains("cannot read"));
    }
}

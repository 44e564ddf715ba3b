//! Files that commands write: whole or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Writes a file; readers see the old one or the new one, never a part.
///
/// # Errors
/// It cannot be written; the text says what to do about a folder that is not there.
pub fn write(path: &Path, text: &str) -> Result<()> {
    write_by(path, &mut |to| Ok(to.write_all(text.as_bytes())?))
}

/// Writes a file that is too large for memory, by a function, as [`write()`] does.
///
/// # Errors
/// As [`write()`], or the function fails.
pub fn write_by(path: &Path, fill: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
    check_place(path)?;
    let mut fill_file = |path: &Path| -> Result<()> {
        let mut to = BufWriter::with_capacity(1 << 20, File::create(path)?);
        fill(&mut to)?;
        Ok(to.flush()?)
    };
    let name = path.display();
    // A device such as /dev/stdout is no file that another one could take the place of.
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return fill_file(path).with_context(|| format!("cannot write {name}"));
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = Path::new(&beside);
    let written = fill_file(beside).and_then(|()| Ok(std::fs::rename(beside, path)?));
    if written.is_err() {
        let _ = std::fs::remove_file(beside);
    }
    written.with_context(|| format!("cannot write {name}"))
}

/// Checks that a file can be written there, before anything is measured that would be lost.
///
/// # Errors
/// The folder is not there, or the path is one.
pub fn check_place(path: &Path) -> Result<()> {
    let name = path.display();
    if path.is_dir() {
        bail!("cannot write {name}: it is a folder; name a file in it");
    }
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) if !folder.exists() => {
            bail!("cannot write {name}: there is no folder {0}; make it with mkdir -p {0}", folder.display())
        }
        Some(folder) if !folder.is_dir() => {
            bail!("cannot write {name}: {} is a file, not a folder; name another place", folder.display())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_whole_and_folders_are_not_made() {
        let folder = std::env::temp_dir().join(format!("hawser-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("a");
        write(&file, "one").unwrap();
        write(&file, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left behind");
        for (path, remedy) in [
            (folder.join("b/c"), "make it with mkdir -p"),
            (folder.clone(), "name a file in it"),
            (file.join("c"), "name another place"),
        ] {
            let error = write(&path, "x").unwrap_err().to_string();
            assert!(error.contains("cannot write") && error.contains(remedy), "{error}");
        }
        let full = write(Path::new("/dev/full"), "x").unwrap_err();
        assert!(format!("{full:#}").contains("No space left"), "{full:#}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

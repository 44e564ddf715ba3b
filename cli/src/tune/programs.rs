//! The programs of a folder: which of them are right, and which are for what is to be measured.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use hawser_plan::{Collective, imported};

use crate::progress::Progress;

/// A program that can be measured.
struct Program {
    /// The name that rules and logs have for it where all files of its own name are there.
    name: String,
    /// The name that its file says.
    own: String,
    path: PathBuf,
}

/// Programs that fit, and what became of the other files.
#[derive(Default)]
pub struct Programs {
    fitting: Vec<Program>,
    /// Files that are wrong, each with the reason.
    refused: Vec<String>,
    /// The number of right programs for other collectives or numbers of ranks.
    others: usize,
    is_asked_for: bool,
}

impl Programs {
    /// Proves every program of a folder, and of the folders in it, and keeps those for these collectives on
    /// so many ranks.
    ///
    /// # Errors
    /// The folder cannot be read, or a path cannot be told to the library.
    pub fn below(folder: &Path, collectives: &[Collective], ranks: u32) -> Result<Self> {
        let folder = std::path::absolute(folder).context("the folder of programs")?;
        let mut paths = Vec::new();
        list(&folder, &mut paths).with_context(|| format!("cannot read {}", folder.display()))?;
        paths.sort();
        let mut programs = Self { is_asked_for: true, ..Self::default() };
        let mut known = BTreeSet::new();
        let bar = Progress::new(paths.len() as u64, "programs proved");
        for path in paths {
            bar.say(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            programs.prove(path, (collectives, ranks), &mut known)?;
            bar.inc();
        }
        bar.end();
        Ok(programs)
    }

    fn prove(
        &mut self,
        path: PathBuf,
        (collectives, ranks): (&[Collective], u32),
        known: &mut BTreeSet<String>,
    ) -> Result<()> {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                self.refused.push(format!("{}: cannot be read: {error}", path.display()));
                return Ok(());
            }
        };
        let (head, read) = match imported::head(&text).and_then(|head| Ok((head, imported::read(&text)?))) {
            Ok(both) => both,
            Err(error) => {
                self.refused.push(format!("{}:{}", path.display(), error.into_text()));
                return Ok(());
            }
        };
        let shape = &read.program.shape;
        if shape.ranks != ranks || !collectives.contains(&shape.collective) {
            self.others += 1;
            return Ok(());
        }
        if path.to_str().is_none_or(|path| path.contains(':')) {
            bail!("{}: MSCCL_XML_FILES cannot name a path with a colon", path.display());
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = imported::distinct(&head.name, &stem, |name| known.contains(name));
        known.insert(name.to_ascii_lowercase());
        self.fitting.push(Program { name, own: head.name, path });
        Ok(())
    }

    /// Names of those that can be measured.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fitting.iter().map(|program| program.name.as_str())
    }

    /// True if a folder was given: then no other programs are measured.
    pub const fn are_asked_for(&self) -> bool {
        self.is_asked_for
    }

    /// Files that are wrong, each with the reason, and the number of right ones that are for something else.
    pub fn left_out(&self) -> (&[String], usize) {
        (&self.refused, self.others)
    }

    /// The value of `MSCCL_XML_FILES` by which a job has the programs of these names: their files, and those
    /// whose programs have the same names, since those decide what a program is called.
    pub fn files<'a>(&self, names: impl Iterator<Item = &'a str>) -> String {
        let names: BTreeSet<&str> = names.collect();
        let is_asked = |program: &&Program| names.contains(&*program.name);
        let own: BTreeSet<String> =
            self.fitting.iter().filter(is_asked).map(|program| program.own.to_ascii_lowercase()).collect();
        self.joined(|program| own.contains(&program.own.to_ascii_lowercase()))
    }

    /// The same of all.
    pub fn all_files(&self) -> String {
        self.joined(|_| true)
    }

    /// Leaves only the programs of these names, and those that they share names with.
    pub fn keep(&mut self, names: &BTreeSet<String>) {
        let files = self.files(names.iter().map(String::as_str));
        let kept: BTreeSet<&str> = files.split(':').collect();
        self.fitting.retain(|program| program.path.to_str().is_some_and(|path| kept.contains(path)));
    }

    fn joined(&self, is_wanted: impl Fn(&Program) -> bool) -> String {
        let paths = self.fitting.iter().filter(|program| is_wanted(program));
        paths.filter_map(|program| program.path.to_str()).collect::<Vec<_>>().join(":")
    }
}

/// Files below a folder that may be programs.
fn list(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            list(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "xml" || e == "plan" || e == "json") {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_msccl::{Window, to_xml};
    use hawser_plan::algo::{self, ProgramKey};
    use hawser_plan::{Algorithm, Protocol};

    #[test]
    fn what_is_right_and_fits_is_kept_with_the_names_that_the_library_has() {
        let folder = std::env::temp_dir().join(format!("hawser-tune-programs-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("more")).unwrap();
        let window = Window { protocol: Protocol::Simple, bytes: (0, u64::MAX) };
        let of = |ranks| {
            let key = ProgramKey::new(Collective::AllReduce, Algorithm::Ring, ranks, 0);
            to_xml(&algo::program(&key).unwrap(), &window).unwrap()
        };
        std::fs::write(folder.join("a.xml"), of(2)).unwrap();
        std::fs::write(folder.join("more/b.xml"), of(2)).unwrap();
        std::fs::write(folder.join("c.xml"), of(2).replace("ring_all_reduce", "own")).unwrap();
        std::fs::write(folder.join("d.xml"), of(3)).unwrap();
        std::fs::write(folder.join("e.xml"), of(2).replacen("type=\"r\"", "type=\"rcs\"", 1)).unwrap();
        std::fs::write(folder.join("readme.txt"), "no program").unwrap();
        let mut programs = Programs::below(&folder, &[Collective::AllReduce], 2).unwrap();
        let names: Vec<&str> = programs.names().collect();
        assert_eq!(names, ["ring_all_reduce", "own", "ring_all_reduce@b"]);
        let (refused, others) = programs.left_out();
        assert!(refused.len() == 1 && refused[0].contains("e.xml:") && others == 1, "{refused:?}");
        // The second of a name needs the first, which takes the name.
        let files = programs.files(["ring_all_reduce@b"].into_iter());
        assert!(files.contains("a.xml:") && files.ends_with("more/b.xml"), "{files}");
        assert_eq!(programs.all_files().split(':').count(), 3);
        programs.keep(&BTreeSet::from(["own".to_owned()]));
        assert!(programs.all_files().ends_with("c.xml"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}

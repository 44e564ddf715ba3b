//! Programs that users bring: `MSCCL_XML_FILES` and `MSCCL_ALGO_DIR`. Files are read once per process and
//! proved when a communicator of their number of ranks is made; ranks compare what they have.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hawser_kernels_abi::MAX_BLOCKS;
use hawser_plan::PlanConfig;
use hawser_plan::imported::{self, Handle};
use rustc_hash::FxHashSet;

use hawser_base::env::Settings;
use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};

use crate::record::{Shared, SharedRecord};

/// Longest file that is read, in bytes.
const MOST_BYTES: u64 = 64 << 20;
const REMEDY: &str =
    "correct the file, or take it out of MSCCL_XML_FILES; hawser plan verify FILE tells more";

/// A file that was read.
struct Program {
    path: PathBuf,
    text: String,
    /// The name of the algorithm, unlike all others.
    name: String,
    ranks: u32,
    /// The user named the file: it has to be right.
    is_named: bool,
    proved: OnceLock<std::result::Result<Handle, String>>,
}

/// All files of the process, in the order in which their programs are tried.
#[derive(Default)]
struct Files {
    programs: Vec<Program>,
    /// The reason why a file that the user named cannot be used.
    failed: Option<String>,
}

/// The programs for communicators of some size.
#[derive(Default)]
pub struct Programs {
    handles: Vec<(Handle, PathBuf)>,
    failed: Option<String>,
}

/// Names of all programs, for `NCCL_ALGO`.
pub fn names(settings: &Settings) -> Vec<String> {
    files(settings).programs.iter().map(|program| program.name.clone()).collect()
}

/// The programs for communicators of `ranks` ranks. Files that are wrong are left out unless the user named
/// them.
pub fn load(settings: &Settings, ranks: u32) -> Programs {
    let files = files(settings);
    let mut programs = Programs { failed: files.failed.clone(), ..Programs::default() };
    for (place, file) in (0..).zip(&files.programs).filter(|(_, file)| file.ranks == ranks) {
        match file.proved.get_or_init(|| file.prove(place)) {
            Ok(handle) => programs.handles.push((*handle, file.path.clone())),
            Err(error) if file.is_named => {
                programs.failed.get_or_insert(error.clone());
            }
            Err(_) => {}
        }
    }
    programs
}

impl Programs {
    /// The record of this rank: the programs that it has.
    pub fn shared(&self) -> SharedRecord {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let shared = self.handles.iter().map(|(program, path)| Shared {
            name: program.name().to_owned(),
            digest: program.digest(),
            source: path.to_string_lossy().into_owned(),
        });
        Ok(shared.collect())
    }

    /// Makes them candidates: the settings get the lanes and slots that they need.
    pub fn take(&self, plan_config: &mut PlanConfig, most_slots: u32) {
        plan_config.imports = self.handles.iter().map(|(program, _)| *program).collect();
        plan_config.lanes = plan_config.lanes.max(self.lanes());
        let slots = self
            .handles
            .iter()
            .map(|(program, _)| imported::kept(*program).min_depth)
            .max()
            .unwrap_or(0)
            .min(most_slots);
        if slots > plan_config.depth {
            // The FIFOs of Simple keep their bytes.
            let slot = u64::from(plan_config.slot_bytes[2]) * u64::from(plan_config.depth) / u64::from(slots);
            plan_config.slot_bytes[2] = (slot as u32 & !511).max(512);
            plan_config.depth = slots;
        }
    }

    /// FIFO lanes that the largest of them needs.
    pub fn lanes(&self) -> u32 {
        self.handles
            .iter()
            .map(|(program, _)| imported::kept(*program).lanes().min(MAX_BLOCKS as u32))
            .max()
            .unwrap_or(0)
    }
}

/// Compares what all ranks told: with different programs they would hang.
///
/// # Errors
/// `InvalidUsage` that names ranks, programs and files.
pub fn check(records: &[SharedRecord]) -> Result<()> {
    let mut told: Vec<&[Shared]> = Vec::with_capacity(records.len());
    for (rank, record) in records.iter().enumerate() {
        let failed = |text: &String| Error::invalid_usage(format!("rank {rank}: {text}")).remedy(REMEDY);
        told.push(record.as_ref().map_err(failed)?);
    }
    let compared = |rank: usize, at: usize| told[rank].get(at).map(|program| (&program.name, program.digest));
    let name = |rank: usize, at: usize| match told[rank].get(at) {
        Some(Shared { name, digest, source }) => format!("{name} ({digest:016x}) from {source}"),
        None => "none".to_owned(),
    };
    for rank in 1..told.len() {
        let most = told[0].len().max(told[rank].len());
        let Some(at) = (0..most).find(|at| compared(0, *at) != compared(rank, *at)) else { continue };
        let text = format!(
            "the programs of MSCCL_XML_FILES and MSCCL_ALGO_DIR differ: number {} of rank 0 is {}, of rank \
             {rank} {}",
            at + 1,
            name(0, at),
            name(rank, at)
        );
        return Err(Error::invalid_usage(text).remedy("give all ranks the same files in the same order"));
    }
    Ok(())
}

fn files(settings: &Settings) -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(|| {
        Files::read(
            settings.msccl_files.as_deref().unwrap_or(""),
            settings.msccl_folder.as_deref().map(Path::new),
        )
    })
}

impl Files {
    /// Files that are named, in their order, then those of the folder, in the order of their names.
    fn read(named: &str, folder: Option<&Path>) -> Self {
        let mut files = Self::default();
        let mut known = FxHashSet::default();
        for path in named.split(':').map(str::trim).filter(|path| !path.is_empty()) {
            if let Err(error) = files.add(Path::new(path), true, &mut known) {
                files.failed.get_or_insert(error);
            }
        }
        for path in folder.map(listed).unwrap_or_default() {
            if let Err(error) = files.add(&path, false, &mut known) {
                log::warn(&format!("MSCCL_ALGO_DIR: {error}; the file is left out"));
            }
        }
        files
    }

    fn add(
        &mut self,
        path: &Path,
        is_named: bool,
        known: &mut FxHashSet<String>,
    ) -> std::result::Result<(), String> {
        let text = read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let head = imported::head(&text).map_err(|error| format!("{}:{error}", path.display()))?;
        let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let name = imported::distinct(&head.name, &stem, |name| known.contains(name));
        known.insert(name.to_ascii_lowercase());
        let proved = OnceLock::new();
        self.programs.push(Program {
            path: path.to_owned(),
            text,
            name,
            ranks: head.ranks,
            is_named,
            proved,
        });
        Ok(())
    }
}

impl Program {
    fn prove(&self, place: u32) -> std::result::Result<Handle, String> {
        let path = self.path.display();
        let mut program = imported::read(&self.text).map_err(|error| {
            let text = format!("{path}:{error}");
            if !self.is_named {
                log::warn(&format!("MSCCL_ALGO_DIR: {text}; the file is left out"));
            }
            text
        })?;
        program.program.shape.name = self.name.clone();
        log::info(Subsys::Tuning, || {
            let shape = &program.program.shape;
            let what = format!("{} on {} ranks", shape.collective.name(), shape.ranks);
            format!(
                "{path}: program {} for {what} is proved; needs {} FIFO slots",
                self.name, program.min_depth
            )
        });
        for change in &program.changes {
            log::info(Subsys::Tuning, || format!("{path}:{change}"));
        }
        Ok(imported::keep(program, place))
    }
}

/// Program files of a folder, sorted, so that all ranks have one order; JSON is among them so that its remedy
/// is told.
fn listed(folder: &Path) -> Vec<PathBuf> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            log::warn(&format!("MSCCL_ALGO_DIR={}: {error}", folder.display()));
            return Vec::new();
        }
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "xml" || e == "plan")).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> std::io::Result<String> {
    hawser_base::files::read_text(path, MOST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_other_programs_are_told_apart() {
        let one = |digest, source: &str| -> SharedRecord {
            Ok(vec![Shared { name: "x".into(), digest, source: source.into() }])
        };
        let (a, b) = (one(1, "/a/x.xml"), one(1, "/b/x.xml"));
        assert!(check(&[a.clone(), b, a.clone()]).is_ok(), "where a file lies does not matter");
        let error = check(&[a.clone(), a.clone(), one(2, "/c/x.xml")]).unwrap_err().to_string();
        for part in [
            "rank 0 is x (0000000000000001) from /a/x.xml",
            "of rank 2 x (0000000000000002) from /c/x.xml",
            "same files",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let error = check(&[a.clone(), Ok(Vec::new())]).unwrap_err().to_string();
        assert!(error.contains("of rank 1 none"), "{error}");
        let failed = Err("f.xml:1:2: syntax: bad".to_owned());
        let error = check(&[a, failed]).unwrap_err().to_string();
        assert!(
            error.contains("rank 1: f.xml:1:2: syntax: bad") && error.contains("hawser plan verify"),
            "{error}"
        );
    }

    #[test]
    fn files_are_read_in_order_and_get_names_of_their_own() {
        let folder = std::env::temp_dir().join(format!("hawser-programs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let algo = |name: &str, ranks: u32| {
            format!(
                "<algo name=\"{name}\" proto=\"LL\" nchannels=\"1\" nchunksperloop=\"2\" ngpus=\"{ranks}\" \
                 coll=\"allreduce\"></algo>"
            )
        };
        for (file, name, ranks) in [("b.xml", "pairs", 2), ("a.xml", "Pairs", 4), ("c.xml", "other", 2)] {
            std::fs::write(folder.join(file), algo(name, ranks)).unwrap();
        }
        std::fs::write(folder.join("readme.txt"), "no program").unwrap();
        std::fs::write(folder.join("a.json"), "{}").unwrap();
        let named = folder.join("c.xml");
        let files = Files::read(&format!("{}::/no/such.xml", named.display()), Some(&folder));
        let found: Vec<(&str, u32)> = files.programs.iter().map(|p| (p.name.as_str(), p.ranks)).collect();
        assert_eq!(found, [("other", 2), ("Pairs", 4), ("pairs@b", 2), ("other@c", 2)]);
        assert!(files.failed.unwrap().starts_with("/no/such.xml: "));
        let json = folder.join("a.json");
        let failed = Files::read(json.to_str().unwrap(), None).failed.unwrap();
        assert!(failed.contains("a.json:1:1: ") && failed.contains("hawser plan import"), "{failed}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

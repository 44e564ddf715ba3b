//! Finds nvcc and learns what it can do. Used by `build.rs` and by `tests/build_script.rs`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Turing, Ampere, Hopper, Blackwell. PTX is added for the first and the last.
pub const DEFAULT_ARCHS: [&str; 4] = ["75", "80", "90", "100"];

/// Everything the search depends on.
pub struct Surroundings {
    /// `NVCC`: if set, nothing else is tried.
    pub nvcc: Option<PathBuf>,
    /// `CUDA_HOME`, `CUDA_PATH`.
    pub homes: Vec<PathBuf>,
    /// `PATH`.
    pub path: OsString,
    /// Virtual environments are looked for here and in the folders above.
    pub start: PathBuf,
    /// The folder in which toolkits install themselves.
    pub usual: PathBuf,
}

/// The nvcc to use, or a text that lists where it was looked for and how to get one.
pub fn find(around: &Surroundings) -> Result<PathBuf, String> {
    if let Some(nvcc) = &around.nvcc {
        return which(nvcc, &around.path)
            .ok_or_else(|| format!("NVCC={} does not exist; correct or unset it", nvcc.display()));
    }
    let mut candidates: Vec<PathBuf> = around.homes.iter().map(|home| home.join("bin/nvcc")).collect();
    candidates.extend(env::split_paths(&around.path).map(|folder| folder.join("nvcc")));
    for folder in around.start.ancestors() {
        candidates.extend([".venv", "venv"].iter().flat_map(|name| in_virtual_env(&folder.join(name))));
    }
    candidates.push(around.usual.join("bin/nvcc"));
    if let Some(found) = candidates.iter().find(|candidate| candidate.is_file()) {
        return Ok(found.clone());
    }
    let homes: Vec<String> = around.homes.iter().map(|home| home.display().to_string()).collect();
    Err(format!(
        "no CUDA compiler (nvcc): NVCC is not set; CUDA_HOME/CUDA_PATH: {}; not in PATH; \
         no .venv or venv with it in or above {}; not in {}\n\
         `make setup` installs one into .venv",
        if homes.is_empty() { "not set".into() } else { homes.join(", ") },
        around.start.display(),
        around.usual.display(),
    ))
}

/// `name` itself if it is a path, else the first of that name in `path`.
fn which(name: &Path, path: &OsString) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return name.is_file().then(|| name.to_path_buf());
    }
    env::split_paths(path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// `lib/python*/site-packages/nvidia/*/bin/nvcc` below a virtual environment.
fn in_virtual_env(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for python in children(&root.join("lib")) {
        for package in children(&python.join("site-packages/nvidia")) {
            found.push(package.join("bin/nvcc"));
        }
    }
    found
}

/// The entries of a folder, newest name first; none if it cannot be read.
fn children(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries.reverse();
    entries
}

/// A compiler that answered.
pub struct Nvcc {
    /// The path of the compiler.
    pub path: PathBuf,
    /// The C++ compiler it calls.
    pub host_compiler: String,
    /// `nvcc 13.0`.
    pub version: String,
    /// Compute capabilities it can compile for, e.g. `90`.
    pub known: Vec<String>,
    /// `--compress-mode` exists.
    pub compress_mode: bool,
}

/// The architectures to compile for.
pub struct Archs {
    /// nvcc's `-gencode` values.
    pub targets: Vec<String>,
    /// Default architectures this nvcc is too old for.
    pub dropped: Vec<String>,
}

impl Nvcc {
    /// Asks the compiler what it can do. The host compiler is needed even for fat binaries.
    pub fn probe(path: PathBuf, host_compiler: &str) -> Result<Self, String> {
        if Command::new(host_compiler).arg("--version").output().is_err() {
            return Err(format!(
                "{} was found, but not {host_compiler}, the C++ compiler it needs: \
                 `apt-get install g++` or set NVCC_CCBIN, then run `make setup`",
                path.display()
            ));
        }
        let ask = |argument: &str| {
            let output = Command::new(&path).arg(argument).output();
            let output = output.map_err(|e| format!("cannot run {}: {e}", path.display()))?;
            if !output.status.success() {
                return Err(format!("{} {argument} failed ({})", path.display(), output.status));
            }
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let version = ask("--version")?;
        let release = version.split("release ").nth(1).and_then(|rest| rest.split(',').next());
        let codes = ask("--list-gpu-code")?;
        Ok(Self {
            version: format!("nvcc {}", release.unwrap_or("of unknown version")),
            known: codes.lines().filter_map(|l| l.trim().strip_prefix("sm_")).map(String::from).collect(),
            compress_mode: ask("--help")?.contains("--compress-mode"),
            host_compiler: host_compiler.into(),
            path,
        })
    }

    /// The `-gencode` values for `wanted` (comma- or space-separated, as in `HAWSER_CUDA_ARCHS`),
    /// or for those of the default list that this nvcc knows.
    pub fn archs(&self, wanted: Option<&str>) -> Result<Archs, String> {
        let (chosen, dropped) = match wanted.map(str::trim).filter(|text| !text.is_empty()) {
            Some(text) => (parse_archs(text)?, Vec::new()),
            None => DEFAULT_ARCHS.map(String::from).into_iter().partition(|arch| self.known.contains(arch)),
        };
        if let Some(arch) = chosen.iter().find(|arch| !self.known.contains(arch)) {
            return Err(format!(
                "HAWSER_CUDA_ARCHS: {} does not know sm_{arch}, only {}",
                self.version,
                self.known.join(" ")
            ));
        }
        let (Some(first), Some(last)) = (chosen.first(), chosen.last()) else {
            return Err(format!("{} knows none of sm_{}", self.version, DEFAULT_ARCHS.join(", sm_")));
        };
        let mut targets: Vec<String> =
            chosen.iter().map(|arch| format!("arch=compute_{arch},code=sm_{arch}")).collect();
        targets.push(format!("arch=compute_{last},code=compute_{last}"));
        if first != last {
            targets.push(format!("arch=compute_{first},code=compute_{first}"));
        }
        Ok(Archs { targets, dropped })
    }
}

/// `"90, 80"` becomes `["80", "90"]`; an optional `sm_` and the suffixes a and f are taken.
fn parse_archs(text: &str) -> Result<Vec<String>, String> {
    let mut archs = Vec::new();
    for word in text.split([',', ' ', ';']).filter(|word| !word.is_empty()) {
        let arch = word.trim_start_matches("sm_");
        let digits = arch.trim_end_matches(['a', 'f']);
        let number: u32 = digits
            .parse()
            .map_err(|_| format!("HAWSER_CUDA_ARCHS: {word:?} is not an architecture such as 90"))?;
        archs.push((number, arch.to_string()));
    }
    archs.sort();
    archs.dedup();
    Ok(archs.into_iter().map(|(_, arch)| arch).collect())
}

//! Runs nvcc over the translation units, several at a time. Used by `build.rs` and by
//! `tests/build_script.rs`.

use crate::nvcc::Nvcc;
use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{fs, process, thread};

/// One fat binary per `.cu` file of a folder; stems are unique.
pub struct Job<'a> {
    /// The compiler.
    pub nvcc: &'a Nvcc,
    /// `-gencode` values.
    pub archs: &'a [String],
    /// The folder with `.cu` files and the headers they include.
    pub sources: &'a Path,
    /// The path that `<stem>.fatbin` is written to.
    pub out: &'a Path,
    /// Results by content, shared by all profiles and feature sets. `None`: no cache.
    pub cache: Option<PathBuf>,
    /// The number of processes that may run at once.
    pub jobs: usize,
}

/// `<target>/kernel-cache`, seen from cargo's `<target>/<profile>/build/<package>/out`, or from
/// `<target>/<triple>/<profile>/…` where cargo was told to build for `triple`.
pub fn cache_dir(out: &Path, triple: &str) -> Option<PathBuf> {
    let above = out.ancestors().nth(4)?;
    let target = if above.ends_with(triple) { above.parent()? } else { above };
    Some(target.join("kernel-cache"))
}

impl Job<'_> {
    /// Compiles what is not in the cache and returns the stems, sorted. An error carries nvcc's
    /// output for the first unit that failed.
    pub fn run(&self) -> Result<Vec<String>, String> {
        let units = self.files(&["cu"])?;
        let workers = self.jobs.clamp(1, units.len().max(1));
        let threads = (self.jobs / workers).max(1);
        let queue = Mutex::new(units.iter());
        let failures = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let Some(unit) = queue.lock().expect("no panic inside").next() else { break };
                        if let Err(text) = self.unit(unit, threads) {
                            failures.lock().expect("no panic inside").push(text);
                        }
                    }
                });
            }
        });
        match failures.into_inner().expect("no panic inside").into_iter().next() {
            Some(text) => Err(text),
            None => Ok(units.iter().map(|unit| stem(unit)).collect()),
        }
    }

    /// Compiles one `.cu` file, or takes it from the cache. Of two builds at once one compiles, and the other
    /// waits for it.
    fn unit(&self, unit: &Path, threads: usize) -> Result<(), String> {
        let inputs = self.inputs(unit)?;
        let result = self.out.join(format!("{}.fatbin", stem(unit)));
        let cached =
            self.cache.as_ref().map(|cache| cache.join(format!("{}-{inputs:016x}.fatbin", stem(unit))));
        let is_there = || cached.as_ref().is_some_and(|cached| fs::copy(cached, &result).is_ok());
        if is_there() {
            return Ok(());
        }
        let _turn = cached.as_deref().and_then(turn);
        if is_there() {
            return Ok(());
        }
        let output = Command::new(&self.nvcc.path)
            .args(self.arguments())
            .args(["--threads", &threads.to_string(), "-o"])
            .args([&result, unit])
            .output()
            .map_err(|e| format!("cannot run {}: {e}", self.nvcc.path.display()))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let hint = if text.contains("No such file") && (text.contains("gcc") || text.contains("g++")) {
                "\nnvcc did not find its C++ compiler: `apt-get install g++` or set NVCC_CCBIN"
            } else {
                ""
            };
            let code = output.status;
            return Err(format!(
                "{} failed on {} ({code}):\n{text}{hint}",
                self.nvcc.version,
                unit.display()
            ));
        }
        if let Some(cached) = &cached {
            // Renamed into place: a build killed in between leaves no half file under the final name.
            let partial = cached.with_extension(format!("partial-{}", process::id()));
            let stored = fs::copy(&result, &partial).and_then(|_| fs::rename(&partial, cached));
            drop(stored); // the cache only saves time
        }
        Ok(())
    }

    /// All that decides about the result, but the file and the thread count.
    fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = ["-fatbin", "-O3", "-std=c++17"].map(String::from).into();
        if self.nvcc.compress_mode {
            arguments.push("--compress-mode=size".into());
        }
        arguments.push(format!("-ccbin={}", self.nvcc.host_compiler));
        for arch in self.archs {
            arguments.extend(["-gencode".into(), arch.clone()]);
        }
        arguments
    }

    /// A number that changes with the compiler, the arguments, the unit and the files of the folder that it
    /// includes.
    fn inputs(&self, unit: &Path) -> Result<u64, String> {
        let mut hasher = DefaultHasher::new();
        (&self.nvcc.path, &self.nvcc.version, self.arguments()).hash(&mut hasher);
        let (mut files, mut next) = (vec![unit.to_path_buf()], 0);
        while let Some(file) = files.get(next) {
            let text =
                fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
            (file.file_name(), &text).hash(&mut hasher);
            let folder = file.parent().unwrap_or(self.sources);
            let found: Vec<PathBuf> = included(&text).map(|name| folder.join(name)).collect();
            files.extend(
                found.into_iter().filter(|f| f.exists()).filter(|f| !files.contains(f)).collect::<Vec<_>>(),
            );
            next += 1;
        }
        Ok(hasher.finish())
    }

    /// The files below the source folder with one of these extensions, sorted by path.
    fn files(&self, extensions: &[&str]) -> Result<Vec<PathBuf>, String> {
        let (mut files, mut folders) = (Vec::new(), vec![self.sources.to_path_buf()]);
        while let Some(folder) = folders.pop() {
            let entries =
                fs::read_dir(&folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
            for path in entries.flatten().map(|entry| entry.path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| extensions.iter().any(|known| e == *known)) {
                    files.push(path);
                }
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Waits until nobody else compiles what will lie here, and keeps others away as long as the file is open.
/// None where files cannot be locked: then work is done twice.
fn turn(cached: &Path) -> Option<File> {
    fs::create_dir_all(cached.parent()?).ok()?;
    let file = File::create(cached.with_extension("lock")).ok()?;
    file.lock().ok().map(|()| file)
}

/// Names in lines `#include "name"`.
fn included(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("#include \"")?.split('"').next())
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

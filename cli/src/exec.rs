//! `hawser exec`: runs a program with our `libnccl.so.2` in place of any other.
//!
//! The library is preloaded (`LD_PRELOAD`, ld.so(8)): its functions come first, and whoever asks the loader
//! for `libnccl.so.2` by that name gets it. Without `--verify` the program takes the place of this process,
//! so signals and exit codes are its own. With `--verify` it runs as a child that [`verify`] watches.

mod elf;
mod verify;

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;

/// The name by which programs and frameworks ask for the library.
const NAME: &str = "libnccl.so.2";

/// Exit code if the program cannot be run, as of a shell.
const CANNOT_RUN: u8 = 126;
/// Exit code if there is no such program, as of a shell.
const NOT_FOUND: u8 = 127;

/// Options of `hawser exec`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hawser exec -- python train.py
  hawser exec --verify -- torchrun --nproc-per-node 8 train.py
  hawser exec --library /opt/hawser/lib/libnccl.so.2 -- ./all_reduce_perf -g 8

Exit codes: the program's own; 126 if it cannot be run, 127 if it is not found, 1 if --verify refuses.")]
pub struct Options {
    /// The library to preload [default: libnccl.so.2 beside this program, or in ../lib]
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Refuse to run a program that would use another libnccl: watch what it and its children load, and end
    /// it when that is another one
    #[arg(long)]
    verify: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs `hawser exec`. Comes back only with `--verify`, or if the program could not be started.
///
/// # Errors
/// There is no library, the program cannot be run, or it would use another library.
pub fn run(options: &Options) -> Result<ExitCode> {
    let library = library(options.library.as_deref())?;
    let (program, arguments) = options.command.split_first().context("no program to run")?;
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload(&library, std::env::var_os("LD_PRELOAD").as_deref())?);
    if options.verify {
        let path = find_program(program).with_context(|| not_found(program))?;
        verify::check_program(&path)?;
        return verify::run(command, &library);
    }
    let error = command.exec();
    let is_missing = error.kind() == ErrorKind::NotFound;
    match is_missing {
        true => eprintln!("hawser: {}", not_found(program)),
        false => eprintln!("hawser: cannot run {}: {error}", program.display()),
    }
    Ok(ExitCode::from(if is_missing { NOT_FOUND } else { CANNOT_RUN }))
}

fn not_found(program: &OsStr) -> String {
    format!("there is no program {}: give its path, or put its folder into PATH", program.display())
}

/// The library to preload, as an absolute path.
fn library(named: Option<&Path>) -> Result<PathBuf> {
    let places = match named {
        Some(path) => vec![path.to_owned()],
        None => usual_places(&std::env::current_exe().context("cannot find this program")?),
    };
    let Some(found) = places.iter().find(|path| path.is_file()) else {
        let list: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        bail!("there is no library at {}; name it with --library", list.join(" or "));
    };
    let path = std::path::absolute(found).context("the library's path")?;
    elf::check_library(&path)?;
    Ok(path)
}

/// The places of the library beside an installed program, or one that was built here.
fn usual_places(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent() else { return Vec::new() };
    let up = folder.parent().unwrap_or(folder);
    [folder.join(NAME), up.join("lib").join(NAME)].to_vec()
}

/// The value of `LD_PRELOAD`: the library first, then what is there already.
fn preload(library: &Path, before: Option<&OsStr>) -> Result<OsString> {
    let bytes = library.as_os_str().as_bytes();
    if bytes.iter().any(|byte| matches!(byte, b' ' | b':')) {
        bail!(
            "LD_PRELOAD cannot name {}: a space or a colon would end the name; move the library, or make a \
             link to it elsewhere",
            library.display()
        );
    }
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    Ok(value)
}

/// The file that a program's name stands for, as execvp(3) finds it.
fn find_program(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Reads the head of a file, for a fuzz target.
pub fn fuzz(bytes: &[u8]) {
    let _ = elf::parse(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_preloaded_before_others() {
        let library = Path::new("/opt/hawser/lib/libnccl.so.2");
        let value = |before: Option<&str>| preload(library, before.map(OsStr::new)).unwrap();
        assert_eq!(value(None), library.as_os_str());
        assert_eq!(value(Some("")), library.as_os_str());
        assert_eq!(value(Some("libjemalloc.so.2")), "/opt/hawser/lib/libnccl.so.2:libjemalloc.so.2");
        for path in ["/opt/my libraries/libnccl.so.2", "/a:b/libnccl.so.2"] {
            let error = preload(Path::new(path), None).unwrap_err().to_string();
            assert!(error.contains("make a link"), "{error}");
        }
    }

    #[test]
    fn libraries_lie_beside_the_program_or_in_lib() {
        let places = usual_places(Path::new("/opt/hawser/bin/hawser"));
        assert_eq!(
            places,
            ["/opt/hawser/bin/libnccl.so.2", "/opt/hawser/lib/libnccl.so.2"].map(PathBuf::from)
        );
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find_program(OsStr::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program(OsStr::new("/nonexistent/sh")), None);
        assert_eq!(find_program(OsStr::new("hawser-does-not-exist")), None);
    }
}

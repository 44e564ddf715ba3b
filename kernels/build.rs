//! Compiles `cuda/*.cu` with nvcc, one fat binary per file, and writes the table that `lib.rs`
//! embeds. Without nvcc the table is empty and the build goes on with a warning, or stops when
//! feature `require-kernels` asks for kernels. Debug builds embed none unless `HAWSER_CUDA_ARCHS` or
//! `require-kernels` asks for them: tests without a GPU do not pay for a compilation of minutes.
//!
//! Environment: `NVCC`, `NVCC_CCBIN`, `CUDA_HOME`, `CUDA_PATH` choose the compiler,
//! `HAWSER_CUDA_ARCHS` (e.g. `90`) replaces the list of architectures for quick builds.

#[path = "build/compile.rs"]
mod compile;
#[path = "build/nvcc.rs"]
mod nvcc;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

fn main() {
    // PATH is left out on purpose: it differs from shell to shell and would recompile everything.
    for name in ["NVCC", "NVCC_CCBIN", "CUDA_HOME", "CUDA_PATH", "HAWSER_CUDA_ARCHS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    for path in ["build.rs", "build", "cuda"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let names = match kernels(&out) {
        Ok(names) => names,
        Err(text) => {
            for line in text.lines() {
                println!("cargo::error={line}");
            }
            process::exit(1);
        }
    };
    fs::write(out.join("table.rs"), table(&names)).expect("OUT_DIR is writable");
}

/// The stems of the fat binaries now lying in `out`.
fn kernels(out: &Path) -> Result<Vec<String>, String> {
    let wanted = feature("REQUIRE_KERNELS") || env::var_os("HAWSER_CUDA_ARCHS").is_some();
    let debug = env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    if feature("NO_KERNELS") || (debug && !wanted) {
        return Ok(Vec::new());
    }
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let ready = nvcc::find(&surroundings(&manifest)).and_then(|path| {
        let host_compiler = env::var("NVCC_CCBIN").unwrap_or_else(|_| "g++".into());
        nvcc::Nvcc::probe(path, &host_compiler)
    });
    match ready {
        Ok(nvcc) => {
            let archs = nvcc.archs(env::var("HAWSER_CUDA_ARCHS").ok().as_deref())?;
            for dropped in &archs.dropped {
                println!("cargo::warning={} does not know sm_{dropped}: left out", nvcc.version);
            }
            compile::Job {
                nvcc: &nvcc,
                archs: &archs.targets,
                sources: &manifest.join("cuda"),
                out,
                cache: compile::cache_dir(out, &env::var("TARGET").expect("cargo sets it")),
                jobs: env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1),
            }
            .run()
        }
        Err(text) if feature("REQUIRE_KERNELS") => Err(text),
        Err(text) => {
            println!("cargo::warning=built WITHOUT GPU kernels, only the host device will work:");
            for line in text.lines() {
                println!("cargo::warning={line}");
            }
            Ok(Vec::new())
        }
    }
}

/// The environment's hints about where nvcc is.
fn surroundings(manifest: &Path) -> nvcc::Surroundings {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    nvcc::Surroundings {
        nvcc: set("NVCC"),
        homes: ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set).collect(),
        path: env::var_os("PATH").unwrap_or_default(),
        start: manifest.to_path_buf(),
        usual: PathBuf::from("/usr/local/cuda"),
    }
}

fn feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}

/// Rust source of the embedded tables: the library's kernels, and those of tools.
fn table(names: &[String]) -> String {
    let (tools, own): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| name.starts_with("t_"));
    let mut text = String::new();
    for (table, names) in [("TABLE", own), ("TOOLS", tools)] {
        writeln!(text, "pub static {table}: &[(&str, &[u8])] = &[").expect("writing to a String");
        for name in names {
            writeln!(
                text,
                "    ({name:?}, &Aligned(*include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin\"))).0),"
            )
            .expect("writing to a String");
        }
        text.push_str("];\n");
    }
    text
}

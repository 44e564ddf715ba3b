//! Runs the kernel source on the CPU (`cuda/emulated`): results, guards, barriers, leaving early.
//!
//! Needs a C++ compiler and CUDA's headers (for the fp8 and half types); says so and passes without them.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_kernels_are_right_under_emulation() {
    let Some(include) = cuda_headers() else {
        eprintln!("skipped: no CUDA headers (cuda_fp8.h); `make setup` installs them");
        return;
    };
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/emulated/main.cpp");
    let compiled = Command::new("g++")
        .args(["-std=c++17", "-O2", "-w", "-I"])
        .arg(include)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .output();
    let Ok(compiled) = compiled else {
        eprintln!("skipped: no g++");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    // Seed and number of rounds; a round takes some ten seconds.
    let run = Command::new(&program).args(["7", "1"]).output().expect("the emulation starts");
    assert!(
        run.status.success(),
        "{}{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr)
    );
}

/// The first folder with CUDA's fp8 header: of a toolkit, or of the project's own environment.
fn cuda_headers() -> Option<PathBuf> {
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let toolkits = toolkits.chain([PathBuf::from("/usr/local/cuda")]).map(|home| home.join("include"));
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.join(".venv/lib");
    let pythons = own.read_dir().into_iter().flatten().flatten();
    let own = pythons.map(|python| python.path().join("site-packages/nvidia/cu13/include"));
    toolkits.chain(own).find(|folder| folder.join("cuda_fp8.h").exists())
}

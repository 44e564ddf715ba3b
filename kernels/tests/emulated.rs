//! Runs the kernel source on the CPU (`cuda/emulated`): results, guards, barriers, launches in a row, leaving
//! early.
//!
//! Needs a C++ compiler and CUDA's headers (for the fp8 and half types); says so and passes without them.

use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[test]
fn the_kernels_are_right_under_emulation() {
    let Some(include) = cuda_headers() else {
        let _ = writeln!(stderr(), "skipped: no CUDA headers (cuda_fp8.h); `make setup` installs them");
        return;
    };
    let Some(program) = compiled(&include) else {
        let _ = writeln!(stderr(), "skipped: no g++");
        return;
    };
    // Seed and number of rounds; a round takes about half a second; rare orders need many.
    let run = Command::new(&program).args(["7", "25"]).output().expect("the emulation starts");
    assert!(
        run.status.success(),
        "{}{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr)
    );
}

/// The program, its files compiled side by side; none without a compiler.
fn compiled(include: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/emulated");
    let build = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let objects = ["main", "exchange", "fold"].map(|name| build.join(name).with_extension("o"));
    let compile = |object: &PathBuf| {
        let file = source.join(object.file_stem()?).with_extension("cpp");
        let flags = ["-std=c++17", "-O1", "-w", "-c", "-I"];
        let command = Command::new("g++")
            .args(flags)
            .arg(include)
            .arg("-o")
            .arg(object)
            .arg(file)
            .stderr(Stdio::piped())
            .spawn();
        command.ok()
    };
    let compilers = objects.iter().map(compile).collect::<Option<Vec<_>>>()?;
    for compiler in compilers {
        let output = compiler.wait_with_output().expect("the compiler ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let program = build.join("emulated");
    let linked =
        Command::new("g++").arg("-o").arg(&program).args(&objects).output().expect("the linker starts");
    assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
    Some(program)
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

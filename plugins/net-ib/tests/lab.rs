//! A choice of the cases of `tests/lab`: two virtual machines with soft-RoCE and faults between them, less
//! than five minutes. `make lab` gets what it needs; it says what is missing where it cannot run. All cases:
//! tests/lab/README.md.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn connections_between_virtual_machines_survive() {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lab/lab.py");
    // Cargo builds the examples of a crate with its tests; `make lab` unpacks a kernel beside its profiles.
    let here = std::env::current_exe().unwrap();
    let profile = here.parent().and_then(Path::parent).unwrap();
    let beside = || profile.parent().unwrap().join("lab/kernel");
    let kernel = std::env::var_os("HAWSER_LAB_KERNEL").map_or_else(beside, PathBuf::from);
    let mut command = Command::new("python3");
    command.arg(lab).args(["--only", "ci", "--kernel"]).arg(kernel);
    match command.arg("--program").arg(profile.join("examples/lab_end")).status() {
        Ok(status) => assert!(status.success(), "the lab failed: its text is above"),
        Err(error) => eprintln!("lab: not run: python3: {error}"),
    }
}

//! Hangs between two virtual machines with soft-RoCE (`tests/lab/hangs.py`): rails that are down or silent, a
//! net that never ends what it was given, ranks that are stopped or slow. `make lab` gets what it needs; it
//! says what is missing where it cannot run. Two cases by default, all with `HAWSER_TEST_LAB_HANGS=all`.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn hangs_between_virtual_machines_are_explained() {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/lab.py");
    let rank = Path::new(env!("CARGO_BIN_EXE_hawser-test-rank"));
    // `make lab` unpacks a kernel beside the profiles of the build.
    let beside = || rank.parent().and_then(Path::parent).unwrap_or(rank).join("lab/kernel");
    let kernel = std::env::var_os("HAWSER_LAB_KERNEL").map_or_else(beside, PathBuf::from);
    let mut command = Command::new("python3");
    command.arg(lab).args(["--run", "hangs", "--kernel"]).arg(kernel);
    if std::env::var_os("HAWSER_TEST_LAB_HANGS").is_none() {
        command.args(["--case", "cables", "--case", "stopped"]);
    }
    match command.arg("--rank").arg(rank).arg("--program").arg(rank).status() {
        Ok(status) => assert!(status.success(), "the lab failed: its text is above"),
        Err(error) => eprintln!("lab: not run: python3: {error}"),
    }
}

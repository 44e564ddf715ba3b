//! A short run of `tests/lab`: two virtual machines with soft-RoCE. It says what is missing where it cannot run; all cases:
//! see tests/lab/README.md.

use std::path::Path;
use std::process::Command;

#[test]
fn two_virtual_machines_meet() {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lab/lab.py");
    // Cargo builds the examples of a crate with its tests.
    let here = std::env::current_exe().unwrap();
    let program = here.parent().and_then(Path::parent).unwrap().join("examples/lab_end");
    let run = Command::new("python3").arg(lab).args(["--case", "quiet", "--program"]).arg(program).status();
    match run {
        Ok(status) => assert!(status.success(), "the lab failed: its text is above"),
        Err(error) => eprintln!("lab: not run: python3: {error}"),
    }
}

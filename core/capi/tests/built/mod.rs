//! The library as Cargo built it, and the C sources of tests: for tests that start programs of their own.

use std::path::{Path, PathBuf};

/// The library that Cargo built together with this test: it lies beside the test's executable.
pub fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let library = folder.join("libnccl.so");
    assert!(library.is_file(), "{} is missing: run cargo build -p hawser-capi", library.display());
    library
}

/// The folder of the C sources.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/abi")
}

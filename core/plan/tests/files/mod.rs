//! MSCCL files: those of this repository, and those of a folder that `HAWSER_MSCCL_DIR` names.

use std::path::{Path, PathBuf};

/// Files `CLASS.WHAT.xml`, whose first line says `LINE:COLUMN CLASS` or `right`: name and text.
pub fn own() -> Vec<(String, String)> {
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/msccl"))
}

/// Files from elsewhere, if there are any.
pub fn corpus() -> Option<Vec<(String, String)>> {
    std::env::var_os("HAWSER_MSCCL_DIR").map(|folder| files(Path::new(&folder)))
}

fn files(folder: &Path) -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "xml"));
    paths.sort();
    let named = |path: PathBuf| (path.file_stem().unwrap().to_string_lossy().into_owned(), path);
    paths.into_iter().map(named).map(|(name, path)| (name, std::fs::read_to_string(path).unwrap())).collect()
}

//! Project chores: `cargo xtask tidy` checks the source tree against the rules in CONTRIBUTING.md, `cargo
//! xtask circles` prints the circles of imports, `cargo xtask size FILE` checks the size of the library,
//! `cargo xtask glibc FILE...` the version of glibc that files need, `cargo xtask book FOLDER` the links of
//! the book.

mod book;
mod glibc;
mod size;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy [--all] | cargo xtask circles [FOLDER] | cargo xtask size \
                     LIBRARY | cargo xtask glibc FILE... | cargo xtask book FOLDER";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["tidy"] => tidy::run(root(), false),
        ["tidy", "--all"] => tidy::run(root(), true),
        ["circles"] => tidy::print_circles(root(), None),
        ["circles", folder] => tidy::print_circles(root(), Some(folder)),
        ["size", library] => size::run(Path::new(library)),
        ["book", folder] => book::run(root(), Path::new(folder)),
        ["glibc", ref files @ ..] if !files.is_empty() => glibc::run(files),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("xtask: {text}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace, wherever cargo was started.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

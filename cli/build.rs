//! The commit that `hawser --version` names: `HAWSER_COMMIT` where a package is built from sources without
//! git, else that of the work tree.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=HAWSER_COMMIT");
    let git = |args: &[&str]| -> Option<String> {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    let named = std::env::var("HAWSER_COMMIT").ok().filter(|commit| !commit.is_empty());
    // A release that lies in a repository of somebody else is not of that repository's commit.
    let is_ours = || git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    if named.is_none() && is_ours() {
        for file in ["HEAD", "logs/HEAD"] {
            if let Some(path) = git(&["rev-parse", "--git-path", file]) {
                println!("cargo::rerun-if-changed={path}");
            }
        }
    }
    let commit = named.or_else(|| is_ours().then(|| git(&["rev-parse", "--short=12", "HEAD"])).flatten());
    println!("cargo::rustc-env=HAWSER_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

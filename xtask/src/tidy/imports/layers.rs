//! The crates of ours that each of them may depend on: the layers of ARCHITECTURE.md as a table.

use super::super::{Finding, Source};

/// The crates that only the programs and tests at the top of the tree may use as they like.
const TOP: [&str; 5] = ["cli", "examples/rust", "fuzz", "tests", "xtask"];

/// A crate's folder, and the folders of the crates that it may depend on. `*` stands for all crates of a
/// folder.
const LAYERS: [(&str, &[&str]); 27] = [
    ("core/types", &[]),
    ("core/program", &["core/types"]),
    ("core/msccl", &["core/types", "core/program"]),
    ("kernels", &["core/types"]),
    ("kernels/abi", &["core/types"]),
    ("core/plan", &["core/types", "core/program", "core/msccl", "kernels/abi"]),
    ("core/oob", &["core/types"]),
    ("core/base", &["core/types", "core/oob", "plugins/api", "plugins/compat"]),
    ("core/device", &["core/base", "core/plan", "kernels", "kernels/abi"]),
    ("core/sim", &["core/types", "core/program", "core/plan", "kernels/abi"]),
    (
        "core/runtime",
        &[
            "core/base",
            "core/device",
            "core/msccl",
            "core/oob",
            "core/plan",
            "core/program",
            "core/types",
            "kernels",
            "kernels/abi",
            "plugins/api",
            "plugins/compat",
        ],
    ),
    (
        "core/capi",
        &["core/base", "core/device", "core/oob", "core/plan", "core/runtime", "core/types", "plugins/*"],
    ),
    ("plugins/api", &["core/types"]),
    ("plugins/compat", &["plugins/api"]),
    ("plugins/testkit", &["plugins/api"]),
    ("plugins/net-sim", &["plugins/api"]),
    ("plugins/net-socket", &["plugins/api", "core/oob"]),
    ("plugins/net-socket/export", &["plugins/api", "plugins/compat", "plugins/net-socket"]),
    ("plugins/net-ib", &["plugins/api", "core/oob"]),
    ("plugins/net-ib/export", &["plugins/api", "plugins/compat", "plugins/net-ib"]),
    ("plugins/tuner", &["plugins/api"]),
    ("plugins/tuner/export", &["plugins/api", "plugins/compat", "plugins/tuner"]),
    ("plugins/profiler", &["plugins/api"]),
    ("plugins/profiler/export", &["plugins/api", "plugins/compat", "plugins/profiler"]),
    ("plugins/example-net", &["plugins/api"]),
    ("examples/plugins/tuner", &["plugins/api"]),
    ("examples/plugins/profiler", &["plugins/api"]),
];

/// Checks the dependencies that each manifest names. What only tests use is free.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let manifests: Vec<(&Source, &str, String)> = sources.iter().filter_map(manifest).collect();
    let folder_of = |name: &str| manifests.iter().find(|(.., own)| own == name).map(|(_, folder, _)| *folder);
    let mut findings = Vec::new();
    for (source, folder, _) in &manifests {
        if TOP.iter().any(|top| *folder == *top || folder.starts_with(&format!("{top}/"))) {
            continue;
        }
        let Some((_, allowed)) = LAYERS.iter().find(|(own, _)| own == folder) else {
            let text =
                "the crate is not in the table of xtask/src/tidy/imports/layers.rs: say what it may import";
            findings.push(Finding::new(source, 0, "layers", text));
            continue;
        };
        for (line, name) in dependencies(&source.text) {
            let Some(used) = folder_of(&name) else { continue };
            if !allowed.iter().any(|pattern| matches(pattern, used)) {
                let text = format!("{folder} may not import {used}: see xtask/src/tidy/imports/layers.rs");
                findings.push(Finding::new(source, line, "layers", text));
            }
        }
    }
    findings
}

fn matches(pattern: &str, folder: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(parent) => folder.starts_with(parent),
        None => folder == pattern,
    }
}

/// A crate's manifest, its folder and the crate's name.
fn manifest(source: &Source) -> Option<(&Source, &str, String)> {
    let folder = source.path.strip_suffix("/Cargo.toml")?;
    let name = source.text.lines().find_map(|line| line.strip_prefix("name = "))?;
    Some((source, folder, name.trim_matches('"').to_string()))
}

/// The names of the crates that a manifest depends on outside tests, with their lines.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut counts = false;
    let mut names = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            counts = line.ends_with("dependencies]") && !line.ends_with("dev-dependencies]");
        } else if counts && line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            names.push((index + 1, name.to_string()));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(crates: &[(&str, &str, &str)]) -> Vec<(String, usize)> {
        let source = |(folder, name, rest): &(&str, &str, &str)| {
            let text = format!("[package]\nname = \"{name}\"\n\n{rest}");
            Source::planted(&format!("{folder}/Cargo.toml"), &text)
        };
        let sources: Vec<Source> = crates.iter().map(source).collect();
        check(&sources).into_iter().map(|finding| (finding.path, finding.line)).collect()
    }

    const PLAN: (&str, &str, &str) = ("core/plan", "hawser-plan", "");
    const RUNTIME: (&str, &str, &str) =
        ("core/runtime", "hawser-runtime", "[dependencies]\nhawser-plan.workspace = true\nlibc = \"1\"\n");

    #[test]
    fn no_crate_imports_a_crate_above_it() {
        assert_eq!(found(&[PLAN, RUNTIME]), []);
        let up = ("core/plan", "hawser-plan", "[dependencies]\nhawser-runtime = { workspace = true }\n");
        assert_eq!(found(&[up, RUNTIME]), [("core/plan/Cargo.toml".to_string(), 5)]);
        let build = ("core/plan", "hawser-plan", "[build-dependencies]\nhawser-runtime.workspace = true\n");
        assert_eq!(found(&[build, RUNTIME]).len(), 1);
    }

    #[test]
    fn what_tests_use_is_free_and_the_tools_use_what_they_like() {
        let tested = ("core/plan", "hawser-plan", "[dev-dependencies]\nhawser-runtime.workspace = true\n");
        let tool = ("cli", "hawser-cli", "[dependencies]\nhawser-plan.workspace = true\n");
        assert_eq!(found(&[tested, RUNTIME, tool]), []);
    }

    #[test]
    fn a_crate_that_the_table_does_not_know_is_asked_for() {
        assert_eq!(found(&[("core/new", "hawser-new", "")]), [("core/new/Cargo.toml".to_string(), 0)]);
    }

    #[test]
    fn a_star_stands_for_all_crates_of_a_folder() {
        let capi = ("core/capi", "hawser-capi", "[dependencies]\nhawser-tuner.workspace = true\n");
        assert_eq!(found(&[capi, ("plugins/tuner", "hawser-tuner", "")]), []);
    }
}

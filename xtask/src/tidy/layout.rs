//! Rule `architecture`: ARCHITECTURE.md names every crate and every module folder of the core.

use super::{Finding, Source};
use std::collections::BTreeSet;

const MAP: &str = "ARCHITECTURE.md";

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(map) = sources.iter().find(|source| source.path == MAP) else { return Vec::new() };
    let mut folders = BTreeSet::new();
    for source in sources {
        folders.extend(crate_folder(&source.path));
        folders.extend(module_folder(&source.path));
    }
    let missing = folders.into_iter().filter(|(_, wanted)| !is_named(&map.text, wanted));
    missing
        .map(|(folder, wanted)| {
            Finding::new(map, 0, "architecture", format!("{folder} is not on the map: name `{wanted}`"))
        })
        .collect()
}

/// The folder of a crate and the text that names it, from the path of its manifest.
fn crate_folder(path: &str) -> Option<(String, String)> {
    let folder = path.strip_suffix("/Cargo.toml")?;
    Some((folder.to_string(), folder.to_string()))
}

/// `core/<crate>/src/<folder>` and `<folder>/`, from the path of a file in it.
fn module_folder(path: &str) -> Option<(String, String)> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["core", krate, "src", folder, _, ..] => {
            Some((format!("core/{krate}/src/{folder}"), format!("{folder}/")))
        }
        _ => None,
    }
}

/// True if `name` stands in `text` and not as the end or start of another word.
fn is_named(text: &str, name: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || "_-".contains(c);
    text.match_indices(name).any(|(at, _)| {
        let after = &text[at + name.len()..];
        !text[..at].ends_with(is_letter) && (name.ends_with('/') || !after.starts_with(is_letter))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(map: &str) -> Vec<String> {
        let files =
            ["core/plan/Cargo.toml", "core/plan/src/lib.rs", "core/plan/src/ir/mod.rs", "cli/Cargo.toml"];
        let mut sources: Vec<Source> = files.iter().map(|path| Source::planted(path, "")).collect();
        sources.push(Source::planted(MAP, map));
        let text = |finding: &Finding| finding.text.split(' ').next().unwrap_or_default().to_string();
        check(&sources).iter().map(text).collect()
    }

    #[test]
    fn every_crate_and_module_folder_is_named() {
        assert_eq!(missing("core/plan has `ir/`; cli"), [""; 0]);
        assert_eq!(missing("core/plan has `dir/`; clippy"), ["cli", "core/plan/src/ir"]);
        assert_eq!(missing("core/planner, `plan/ir/`, cli"), ["core/plan"]);
    }

    #[test]
    fn without_a_map_nothing_is_asked() {
        assert_eq!(check(&[Source::planted("cli/Cargo.toml", "")]), []);
    }
}

//! The environment of the plugin, which looks here only.

use std::path::{Path, PathBuf};

use hawser_plugin::setting;

/// Names rule files.
pub const RULES: &str = "HAWSER_RULES";
/// Names a rule file in NCCL's CSV form.
pub const RULE_FILE: &str = "NCCL_TUNER_CONFIG_FILE";
/// Names other tuners.
const TUNERS: &str = "NCCL_TUNER_PLUGIN";

/// The files that the user named.
pub fn rules() -> Option<String> {
    Some(setting(RULES)?.to_string_lossy().into_owned())
}

/// The CSV file that the user named.
pub fn rule_file() -> Option<PathBuf> {
    setting(RULE_FILE).map(PathBuf::from)
}

/// True if the user named a tuner plugin: [`RULE_FILE`] is meant for that one then.
pub fn names_a_tuner() -> bool {
    setting(TUNERS).is_some_and(|value| value != "none")
}

/// The places of rule files if nobody names any.
pub fn usual_places() -> Vec<PathBuf> {
    let beside = folder().map(|folder| folder.join("hawser-rules.toml"));
    beside.into_iter().chain([PathBuf::from("/etc/hawser/rules.toml")]).collect()
}

/// The folder of the library (or program) that holds this code.
fn folder() -> Option<PathBuf> {
    let here = folder as fn() -> Option<PathBuf> as usize;
    library_at(here, &std::fs::read_to_string("/proc/self/maps").ok()?)?.parent().map(Path::to_owned)
}

/// The file that is mapped at an address, from the text of `/proc/self/maps`.
fn library_at(address: usize, maps: &str) -> Option<PathBuf> {
    let line = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        range.is_some_and(|(start, end)| {
            number(start).zip(number(end)).is_some_and(|(start, end)| (start..end).contains(&address))
        })
    })?;
    let path = line.find('/').map(|at| &line[at..])?;
    Some(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_code_lies_in_this_program() {
        // Under Miri code has no place in the memory of the process.
        if !cfg!(miri) {
            assert_eq!(folder(), std::env::current_exe().unwrap().parent().map(Path::to_owned));
        }
        let maps = "1000-2000 r-xp 00000000 fe:00 7 /lib/a b.so\n3000-4000 rw-p 00000000 00:00 0 \nx\n";
        assert_eq!(library_at(0x1fff, maps), Some("/lib/a b.so".into()));
        assert_eq!(library_at(0x2000, maps), None);
        assert_eq!(library_at(0x3000, maps), None);
    }
}

//! The rooms of a crate and their order: a room imports only rooms that stand below it.

use super::modules::{Crate, Import};

/// The crates whose rooms have an order: from the lowest floor to the highest, each with the beginnings of
/// its paths below `src`. The longest beginning that fits a path says where a file belongs.
const ROOMS: [(&str, &[&[&str]]); 2] = [
    ("core/runtime", RUNTIME),
    (
        "core/sim",
        &[
            &["error.rs", "engine/"],
            &["cluster/"],
            &["links.rs"],
            &["executor/steps/", "executor/exchange.rs", "executor/"],
            &["predict.rs"],
            &["step/"],
            &["lib.rs"],
        ],
    ),
];

const RUNTIME: &[&[&str]] = &[
    &[
        "classes.rs",
        "op_number.rs",
        "model.rs",
        "planted.rs",
        "record.rs",
        "plugin_types.rs",
        "progress/",
        "bootstrap/",
        "ras/",
        "plugins.rs",
        "proxy.rs",
        "stream_order",
    ],
    &["profiling.rs"],
    &["transport/"],
    &["tuning/", "rma/", "gin/", "lsa/"],
    &["rules_update/"],
    &["executor/copy_engine/"],
    &["comm_state/"],
    &["executor/"],
    &["submit.rs"],
    &["resolve.rs", "call_check.rs", "phases.rs", "messages.rs"],
    &["comm/"],
    &["partitioned/"],
    &["lib.rs"],
];

/// The imports that lead to a higher floor, and the files that have no room.
pub fn check(krate: &Crate) -> (Vec<&Import>, Vec<usize>) {
    let Some((_, floors)) = ROOMS.iter().find(|(folder, _)| *folder == krate.folder) else {
        return Default::default();
    };
    let below = format!("{}/src/", krate.folder);
    let floor = |file: usize| floor_of(floors, krate.files[file].path.strip_prefix(&below)?);
    let homeless = (0..krate.files.len()).filter(|file| floor(*file).is_none()).collect();
    let is_up = |import: &&Import| floor(import.from) < floor(import.to);
    (krate.imports.iter().filter(is_up).collect(), homeless)
}

fn floor_of(floors: &[&[&str]], path: &str) -> Option<usize> {
    let fits = |room: &&str| path.starts_with(*room);
    let longest = |rooms: &&[&str]| rooms.iter().copied().filter(fits).map(str::len).max();
    let found = floors.iter().enumerate().filter_map(|(floor, rooms)| Some((longest(rooms)?, floor)));
    found.max().map(|(_, floor)| floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_says_the_floor() {
        let floors: &[&[&str]] = &[&["executor/copy_engine/"], &["state/"], &["executor/", "submit.rs"]];
        let floor = |path| floor_of(floors, path);
        assert_eq!(floor("executor/copy_engine/mod.rs"), Some(0));
        assert_eq!(floor("executor/mod.rs"), Some(2));
        assert_eq!((floor("submit.rs"), floor("state/mod.rs"), floor("other.rs")), (Some(2), Some(1), None));
    }
}

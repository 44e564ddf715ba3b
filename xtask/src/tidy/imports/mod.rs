//! Rules about who imports whom.
//!
//! | rule | says |
//! |---|---|
//! | `layers` | a crate depends only on the crates of ours that the table in `layers.rs` allows |
//! | `circle` | files of different folders of a crate do not import each other in a circle |
//! | `rooms` | a room of a crate imports only those below it, by the table in `rooms.rs` |
//!
//! `cargo xtask circles` prints every circle with the imports that close it.

mod circles;
mod layers;
mod modules;
mod rooms;

use super::{Finding, Source};
use circles::Circle;
use modules::Crate;

/// Checks the dependencies between crates and the imports inside each crate.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = layers::check(sources);
    for krate in modules::crates(sources) {
        let circles = circles::between_folders(&krate);
        findings.extend(circles.iter().map(|circle| finding(&krate, circle)));
        findings.extend(rooms(&krate));
    }
    findings
}

fn rooms(krate: &Crate) -> Vec<Finding> {
    let (up, homeless) = rooms::check(krate);
    let finding = |file: usize, line, text| {
        let path = krate.files[file].path.clone();
        Finding { path, line, rule: "rooms", text, warning: false }
    };
    let up = up.into_iter().map(|import| {
        let to = &krate.files[import.to].path;
        let text = format!("imports {to}, which stands above it: see xtask/src/tidy/imports/rooms.rs");
        finding(import.from, import.line, text)
    });
    let no_room = "the file has no room: name it in xtask/src/tidy/imports/rooms.rs";
    up.chain(homeless.into_iter().map(|file| finding(file, 0, no_room.into()))).collect()
}

fn finding(krate: &Crate, circle: &Circle) -> Finding {
    let first = &krate.files[circle.files[0]];
    let closing = circle.crossing.first().map(|import| describe(krate, import)).unwrap_or_default();
    let (files, folders) = (circle.files.len(), circle.folders.len());
    let text = format!("{files} files of {folders} folders import each other in a circle, e.g. {closing}");
    Finding { path: first.path.clone(), line: 0, rule: "circle", text, warning: false }
}

fn describe(krate: &Crate, import: &modules::Import) -> String {
    let (from, to) = (&krate.files[import.from].path, &krate.files[import.to].path);
    format!("{from}:{} imports {to} ({})", import.line, import.name)
}

/// The report that `cargo xtask circles` prints: for each crate its circles, their files and the imports
/// between folders in them.
pub fn report(sources: &[Source], only: Option<&str>) -> String {
    let mut text = String::new();
    for krate in modules::crates(sources) {
        if only.is_some_and(|only| only.trim_end_matches('/') != krate.folder) {
            continue;
        }
        let circles = circles::between_folders(&krate);
        let (joined, all) = (circles.iter().map(|c| c.files.len()).sum::<usize>(), krate.files.len());
        text += &format!("{}: {joined} of {all} files in circles between folders\n", krate.folder);
        for circle in &circles {
            let files = circle.files.iter().map(|file| krate.files[*file].path.as_str());
            text += &format!("  circle of {}:\n", files.collect::<Vec<_>>().join(" "));
            for import in &circle.crossing {
                text += &format!("    {}\n", describe(&krate, import));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"hawser-plan\"\n";

    /// The circles of a crate `core/plan` with these files below `src`.
    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let mut sources = vec![Source::planted("core/plan/Cargo.toml", MANIFEST)];
        let path = |name: &str| format!("core/plan/src/{name}");
        sources.extend(files.iter().map(|(name, text)| Source::planted(&path(name), text)));
        let found = check(&sources);
        found.iter().filter(|finding| finding.rule == "circle").map(|finding| finding.text.clone()).collect()
    }

    #[test]
    fn two_folders_that_import_each_other_are_a_circle() {
        let found = circles(&[
            ("lib.rs", "pub mod a; pub mod b;"),
            ("a/mod.rs", "use crate::b::Thing;\npub struct Other;"),
            ("b/mod.rs", "pub struct Thing;\nfn f() { crate::a::Other; }"),
        ]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("2 files of 2 folders"), "{found:?}");
        assert!(
            found[0].contains("src/a/mod.rs:1 imports core/plan/src/b/mod.rs (crate::b::Thing)"),
            "{found:?}"
        );
    }

    #[test]
    fn a_circle_may_take_three_folders_and_relative_paths() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a/mod.rs", "mod inner;"),
            ("a/inner.rs", "use super::super::b::{self, B};\npub struct A;"),
            ("b/mod.rs", "pub struct B; mod deep { use super::super::c::C; }"),
            ("c/mod.rs", "pub struct C; fn f() -> crate::a::inner::A {}"),
        ];
        assert_eq!(circles(&files).len(), 1);
        assert_eq!(circles(&files[..4]), [""; 0], "without the last import there is none");
    }

    #[test]
    fn a_room_imports_no_room_above_it_and_each_file_has_one() {
        let manifest = Source::planted("core/runtime/Cargo.toml", MANIFEST);
        let file = |name: &str, text: &str| Source::planted(&format!("core/runtime/src/{name}"), text);
        let sources = [
            manifest,
            file("lib.rs", "mod transport; mod comm; mod attic;"),
            file("transport/mod.rs", "use crate::comm::Comm; pub struct Wire;"),
            file("comm/mod.rs", "pub struct Comm;"),
            file("attic.rs", "pub struct Dust;"),
        ];
        let found = check(&sources);
        let found: Vec<_> = found.iter().filter(|f| f.rule == "rooms").map(|f| (&*f.path, f.line)).collect();
        assert_eq!(found, [("core/runtime/src/transport/mod.rs", 1), ("core/runtime/src/attic.rs", 0)]);
    }

    #[test]
    fn files_of_one_folder_may_import_each_other() {
        let found = circles(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod x; mod y; pub struct Own; use x::X;"),
            ("a/x.rs", "use super::y::Y; use super::Own; pub struct X;"),
            ("a/y.rs", "use super::x::X; pub struct Y;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_file_beside_its_folder_belongs_to_it() {
        let found = circles(&[
            ("lib.rs", "mod a;"),
            ("a.rs", "mod x; use x::X; pub struct Own;"),
            ("a/x.rs", "use super::Own; pub struct X;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn names_are_followed_through_what_parents_pass_on() {
        let base = ("lib.rs", "mod a; mod b; pub use b::B; pub use a::*; fn own() {}");
        let found = circles(&[
            base,
            ("a/mod.rs", "mod x; pub use x::A;"),
            ("a/x.rs", "pub struct A;"),
            ("b/mod.rs", "use crate::A; pub struct B;"),
        ]);
        assert_eq!(found, [""; 0], "b takes A from a/x.rs, not from lib.rs");
        let found = circles(&[
            base,
            ("a/mod.rs", "mod x; pub use x::A;"),
            ("a/x.rs", "pub struct A(crate::B);"),
            ("b/mod.rs", "use crate::A; pub struct B;"),
        ]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("a/x.rs") && !found[0].contains("lib.rs"), "{found:?}");
    }

    #[test]
    fn a_parent_that_uses_what_it_passes_on_imports_it() {
        let child = ("t/net/task.rs", "use crate::t::Own; pub struct Task;");
        let files = |parent| {
            [
                ("lib.rs", "mod t;"),
                ("t/mod.rs", parent),
                ("t/net/mod.rs", "mod task; pub use task::Task;"),
                child,
            ]
        };
        assert_eq!(circles(&files("mod net; pub use net::Task; pub struct Own;")), [""; 0]);
        assert_eq!(circles(&files("mod net; pub use net::Task; pub struct Own; fn f(_: Task) {}")).len(), 1);
    }

    #[test]
    fn tests_and_strings_do_not_count() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "use crate::b::B; pub(crate) struct A; #[cfg(test)] mod tests;"),
            ("a/tests.rs", "use crate::b::B;"),
            (
                "b/mod.rs",
                "pub struct B; // crate::a::A\n#[cfg(test)]\nuse crate::a::A;\n\
                 #[cfg(test)]\nmod t { use super::A; }",
            ),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn exported_macros_lead_to_their_file() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b; fn f() { a::A; }"),
            ("b/mod.rs", "#[macro_export]\nmacro_rules! told { () => {} }"),
            ("a/mod.rs", "pub struct A; fn f() { crate::told!() }"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn the_report_lists_the_imports_that_close_a_circle() {
        let sources = [
            Source::planted("core/plan/Cargo.toml", MANIFEST),
            Source::planted("core/plan/src/lib.rs", "mod a; mod b;"),
            Source::planted("core/plan/src/a/mod.rs", "use crate::b::B; pub struct A;"),
            Source::planted("core/plan/src/b/mod.rs", "use crate::a::A; pub struct B;"),
        ];
        let text = report(&sources, None);
        assert!(text.starts_with("core/plan: 2 of 3 files in circles"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains(" imports ")).count(), 2, "{text}");
        assert_eq!(report(&sources, Some("core/runtime")), "");
    }
}

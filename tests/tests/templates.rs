//! The templates of plugins (`examples/templates`), instantiated by plain substitution: they are the examples
//! with their names left open, and build outside of the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hawser_tests::skip::skipped;

/// Kinds of plugins, the example that the template is made of, and the name that the example has.
const TEMPLATES: [(&str, &str, &str); 3] = [
    ("net", "plugins/example-net", "files"),
    ("tuner", "examples/plugins/tuner", "one_ring"),
    ("profiler", "examples/plugins/profiler", "counter"),
];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lies in the repository")
}

/// A file of a template with the words that cargo-generate asks for.
fn instance(kind: &str, file: &str, project: &str) -> String {
    let path = repository().join("examples/templates").join(kind).join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text = text
        .replace("{{project-name}}", project)
        .replace("{{crate_name}}", &project.replace('-', "_"))
        .replace("{{hawser}}", repository().to_str().expect("a path in UTF-8"));
    assert!(
        !text.contains("{{") && !text.contains("{%"),
        "{kind}/{file} has an unknown word left open:\n{text}"
    );
    text
}

#[test]
fn templates_are_the_examples_with_their_names_open() {
    for (kind, example, name) in TEMPLATES {
        let example = repository().join(example).join("src/lib.rs");
        let example = fs::read_to_string(example).expect("an example");
        assert!(instance(kind, "src/lib.rs", name) == example, "{kind}: make the template like its example");
    }
    let listed = repository().join("examples/templates/cargo-generate.toml");
    let listed = fs::read_to_string(listed).expect("the list of templates");
    TEMPLATES.iter().for_each(|(kind, ..)| assert!(listed.contains(&format!("\"{kind}\"")), "{kind}"));
}

#[test]
fn instances_build_against_the_crates_of_the_workspace() {
    let target = std::env::current_exe().expect("this test");
    let target = target.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("templates");
    let folder: PathBuf = target.join("instances");
    let members = TEMPLATES.map(|(kind, ..)| format!("my-{kind}"));
    for ((kind, ..), member) in TEMPLATES.iter().zip(&members) {
        let member_folder = folder.join(member);
        fs::create_dir_all(member_folder.join("src")).expect("a folder");
        for file in ["Cargo.toml.liquid", "src/lib.rs"] {
            let to = member_folder.join(file.trim_end_matches(".liquid"));
            fs::write(to, instance(kind, file, member)).expect("a file");
        }
    }
    // One workspace, so that what they share is built once; with the versions of ours, which are there.
    let workspace = format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n");
    fs::write(folder.join("Cargo.toml"), workspace).expect("a file");
    fs::copy(repository().join("Cargo.lock"), folder.join("Cargo.lock")).expect("versions");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--offline", "--manifest-path"]).arg(folder.join("Cargo.toml"));
    let output = build.arg("--target-dir").arg(&target).output().expect("cargo runs");
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("--offline") {
        return skipped(format!("crates are missing: {}", error.lines().next().unwrap_or_default()));
    }
    assert!(output.status.success(), "{error}");
    for (kind, ..) in TEMPLATES {
        let library = target.join(format!("debug/libmy_{kind}.so"));
        assert!(library.is_file(), "no {}", library.display());
    }
}

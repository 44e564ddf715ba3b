//! The library against the second judge (`src/judge`): no program that the library takes is wrong for the
//! judge, mutants included, and a sample of them runs with right results.
//!
//! `HAWSER_MSCCL_DIR` adds a folder of XML and JSON, `HAWSER_MUTANTS` says how many mutants every file gets.
//! The same with a table of its own for any folders is the binary `corpus`.

#[path = "../../core/plan/tests/plans/mod.rs"]
mod plans;

use std::path::{Path, PathBuf};

use hawser_tests::judge::corpus::{Options, Source, ask, below, examine};
use hawser_tests::judge::{Opinion, Rules, judge};
use hawser_tests::programs::exported;
use hawser_tests::world::on_host;

#[test]
fn nothing_wrong_is_taken() {
    let mut sources = below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/plan/tests/msccl")).unwrap();
    let own = sources.len();
    let named = |(name, text): (String, String)| Source { name, text };
    sources.extend(exported(2..=5).into_iter().map(named));
    sources.extend(plans::all().into_iter().map(named));
    let made = sources.len() - own;
    if let Some(folder) = std::env::var_os("HAWSER_MSCCL_DIR") {
        sources.extend(below(Path::new(&folder)).unwrap());
    }
    let mutants = std::env::var("HAWSER_MUTANTS").map_or(6, |text| text.parse().unwrap());
    let folder = std::env::temp_dir().join(format!("hawser-judged-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let options = Options {
        mutants,
        run_one_of: if on_host() { 60 } else { 0 },
        seed: 1,
        binary: PathBuf::from(env!("CARGO_BIN_EXE_corpus")),
        folder: folder.clone(),
        longest: 200_000,
    };
    let mut told = String::new();
    let table = examine(&sources, &options, |line| told += &format!("{line}\n"));
    assert_eq!(table.failures(), 0, "{told}{table}");
    // Both have something to say: files that are right are taken, and mistakes are mistakes for the judge.
    assert!(table.files_taken() as usize >= made, "{told}{table}");
    assert!(table.wrong_mutants() as usize > made * mutants / 3, "{table}");
    assert!(!on_host() || table.runs() > 0, "{table}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// The classes in which the judge and the library may differ: what it leaves to others to say.
#[test]
fn refused_files_of_this_repository_are_wrong_for_the_judge_too() {
    const NOT_JUDGED: [&str; 6] = [
        // Words, sizes and counts that the judge does not read, and files that only the library limits.
        "attribute.misspelled.xml",
        "attribute.window.xml",
        "bounds.input_chunks.xml",
        "collective.custom.xml",
        "dependency.nop_before_free_step.xml",
        "limit.slots.xml",
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/plan/tests/msccl");
    let mut differ = Vec::new();
    for source in below(&folder).unwrap() {
        let opinion = judge(&source.text, Rules::default());
        let is_valid = source.name.starts_with("valid");
        let is_as_said = if is_valid { opinion == Opinion::Right } else { opinion.is_wrong() };
        assert_eq!(ask(&source.text).refused.is_none(), is_valid, "{}", source.name);
        if !is_as_said {
            differ.push(source.name);
        }
    }
    assert_eq!(differ, NOT_JUDGED);
}

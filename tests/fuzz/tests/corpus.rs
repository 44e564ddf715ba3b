//! Every fuzz target over its corpus, and over some thousand mutations of it.

use std::fs;
use std::path::{Path, PathBuf};

use hawser_fuzz_targets::TARGETS;
use hawser_fuzz_targets::mutate::{Dice, mutate};

/// Mutated inputs for each target.
const ROUNDS: u64 = 3_000;
/// Larger files of a corpus are run as they are, and not mutated: a mutation of a large program takes long to
/// refuse.
const MOST_BYTES: usize = 16 << 10;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The files of a target's corpus, in the order of their names.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = folder().join("corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn every_target_survives_its_corpus_and_mutations_of_it() {
    let mut failed = Vec::new();
    for target in &TARGETS {
        let seeds = corpus(target.name);
        assert!(!seeds.is_empty(), "{} has no corpus", target.name);
        seeds.iter().for_each(|seed| (target.run)(seed));
        let small: Vec<&Vec<u8>> = seeds.iter().filter(|seed| seed.len() <= MOST_BYTES).collect();
        for round in 0..ROUNDS {
            let mut dice = Dice::new(round);
            let (seed, other) = (small[dice.below(small.len())], small[dice.below(small.len())]);
            let bytes = mutate(seed, other, &mut dice);
            let outcome = std::panic::catch_unwind(|| (target.run)(&bytes));
            if outcome.is_err() {
                failed.push(format!(
                    "{} in round {round} on {:?}",
                    target.name,
                    bytes.escape_ascii().to_string()
                ));
                break;
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Each target has a program for libFuzzer, which the manifest of `fuzz/` and the nightly job name.
#[test]
fn every_target_has_its_program() {
    let jobs = fs::read_to_string(folder().join("../.github/workflows/ci.yml")).unwrap();
    let manifest = fs::read_to_string(folder().join("Cargo.toml")).unwrap();
    for target in &TARGETS {
        let path = format!("fuzz_targets/{}.rs", target.name);
        let text = fs::read_to_string(folder().join(&path)).unwrap_or_default();
        assert!(text.contains(&format!("run(\"{}\", data)", target.name)), "{path}");
        assert!(manifest.contains(&format!("path = \"{path}\"")), "{path} is not in fuzz/Cargo.toml");
        assert!(jobs.contains(&format!("- {}\n", target.name)), "{} has no nightly job", target.name);
    }
}

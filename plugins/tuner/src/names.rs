//! The words of rule files, and what they stand for.

use hawser_plugin::collnet::DataType;
use hawser_plugin::tuner::{Algorithm, Executor, Function, Protocol};

/// The collectives and their names in TOML rules.
pub(crate) const COLLECTIVES: [(Function, &str); 8] = [
    (Function::AllReduce, "all_reduce"),
    (Function::AllGather, "all_gather"),
    (Function::ReduceScatter, "reduce_scatter"),
    (Function::Broadcast, "broadcast"),
    (Function::Reduce, "reduce"),
    (Function::AllToAll, "alltoall"),
    (Function::Scatter, "scatter"),
    (Function::Gather, "gather"),
];

/// The data types: first the name of nccl-tests, then other names that are read.
pub(crate) const DATA_TYPES: [(DataType, &[&str]); 12] = [
    (DataType::Int8, &["int8", "char"]),
    (DataType::Uint8, &["uint8"]),
    (DataType::Int32, &["int32", "int"]),
    (DataType::Uint32, &["uint32"]),
    (DataType::Int64, &["int64"]),
    (DataType::Uint64, &["uint64"]),
    (DataType::Float16, &["half", "float16", "fp16"]),
    (DataType::Float32, &["float", "float32", "fp32"]),
    (DataType::Float64, &["double", "float64", "fp64"]),
    (DataType::Bfloat16, &["bfloat16", "bf16"]),
    (DataType::Float8e4m3, &["f8e4m3", "float8_e4m3"]),
    (DataType::Float8e5m2, &["f8e5m2", "float8_e5m2"]),
];

/// Algorithms that fused kernels have a form of.
const FUSED: [Algorithm; 3] = [Algorithm::ONE_SHOT, Algorithm::ALL_PAIRS, Algorithm::DIRECT];

/// Algorithms that copy engines have a form of.
const COPIED: [Algorithm; 3] = [Algorithm::RING, Algorithm::ALL_PAIRS, Algorithm::DIRECT];

/// Names from when the executor was a part of the algorithm's name. TOML files should not use them any more;
/// NCCL's CSV, which has no column for the executor, still does.
pub(crate) const WITH_EXECUTOR: [(Algorithm, Executor, &str); 6] = [
    (Algorithm::ONE_SHOT, Executor::Fused, "sym_one_shot"),
    (Algorithm::ALL_PAIRS, Executor::Fused, "sym_all_pairs"),
    (Algorithm::DIRECT, Executor::Fused, "sym_direct"),
    (Algorithm::RING, Executor::CopyEngine, "dma_ring"),
    (Algorithm::ALL_PAIRS, Executor::CopyEngine, "dma_all_pairs"),
    (Algorithm::DIRECT, Executor::CopyEngine, "dma_direct"),
];

/// Names from when fused kernels had protocols of their own.
pub(crate) const FUSED_PROTOCOLS: [(Protocol, &str); 3] =
    [(Protocol::Ll, "symll"), (Protocol::Ll128, "symll128"), (Protocol::Simple, "symsimple")];

/// The word of rule files for every executor but copy engines.
pub(crate) const KERNELS: &str = "not_copy_engine";
/// The word that stood for [`KERNELS`] in earlier versions.
pub(crate) const OLD_KERNELS: &str = "sm";
/// The word that stood for [`Executor::CopyEngine`] in earlier versions.
pub(crate) const OLD_COPY_ENGINE: &str = "dma";

/// True if an executor may have a form of an algorithm.
pub(crate) fn can_run(executor: Executor, algorithm: Algorithm) -> bool {
    match executor {
        Executor::Fused => FUSED.contains(&algorithm),
        Executor::CopyEngine => COPIED.contains(&algorithm),
        Executor::Interpreter | Executor::Host => true,
    }
}

/// True if two words are the same: case, `_` and `-` do not count.
pub(crate) fn same(a: &str, b: &str) -> bool {
    plain(a).eq(plain(b))
}

fn plain(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase())
}

/// The name of a collective in rule files.
pub(crate) fn collective_name(function: Function) -> &'static str {
    COLLECTIVES.iter().find(|(known, _)| *known == function).map_or("", |(_, name)| name)
}

/// The word of a list that was probably meant by a wrong one.
pub(crate) fn nearest<'a>(wrong: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong: String = plain(wrong).collect();
    let limit = ((wrong.len() + 1) / 3).clamp(1, 3);
    let by_distance =
        words.into_iter().map(|word| (distance(&wrong, &plain(word).collect::<String>()), word));
    by_distance
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, w)| w)
}

/// The number of characters that have to be changed, put in or taken out to make one text of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let next = (diagonal + usize::from(from != *to)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

/// True if `text` is what a pattern with `*` (any text) and `?` (one character) describes.
pub fn matches_glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            // The last star takes one character more.
            _ => match star {
                Some((at, taken)) => {
                    (p, t) = (at + 1, taken + 1);
                    star = Some((at, taken + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_a_shell() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("tp*", "tp_3", true),
            ("tp*", "atp", false),
            ("*_?", "dp_1", true),
            ("*_?", "dp_10", false),
            ("a*b*c", "a--b-b-c", true),
            ("a*b*c", "a--b-b-", false),
            ("?", "é", true),
            ("**", "x", true),
        ] {
            assert_eq!(matches_glob(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn the_nearest_word_is_near() {
        let words = ["match", "use", "priority", "never_worse"];
        assert_eq!(nearest("prority", words), Some("priority"));
        assert_eq!(nearest("never-worse", words), Some("never_worse"));
        assert_eq!(nearest("usr", words), Some("use"));
        assert_eq!(nearest("something", words), None);
    }

    #[test]
    fn every_name_is_the_name_of_one_thing() {
        let mut all: Vec<&str> = Algorithm::NAMES.iter().map(|(_, name)| *name).collect();
        all.extend(WITH_EXECUTOR.iter().map(|(_, _, name)| *name));
        all.extend(FUSED_PROTOCOLS.iter().map(|(_, name)| *name));
        all.extend(Protocol::ALL.map(Protocol::name));
        all.extend(Executor::ALL.map(Executor::name));
        all.extend([KERNELS, OLD_KERNELS, OLD_COPY_ENGINE]);
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(WITH_EXECUTOR.iter().all(|(algorithm, executor, _)| can_run(*executor, *algorithm)));
    }
}

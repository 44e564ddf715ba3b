//! Words of rule files and what they stand for.

use hawser_plugin::collnet::DataType;
use hawser_plugin::tuner::{Algorithm, Function, Protocol};

/// Collectives: the name that is written out first, then other spellings (NCCL's and nccl-tests').
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

/// Data types: nccl-tests' names, then others.
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

/// Protocols as the three columns of NCCL's table, and whether they are those of a fused kernel.
pub(crate) const PROTOCOLS: [(Protocol, bool, &str); 6] = [
    (Protocol::Ll, false, "ll"),
    (Protocol::Ll128, false, "ll128"),
    (Protocol::Simple, false, "simple"),
    (Protocol::Ll, true, "symll"),
    (Protocol::Ll128, true, "symll128"),
    (Protocol::Simple, true, "symsimple"),
];

/// Families that also run as a fused kernel: the plain one, the fused one.
const FUSED: [(Algorithm, Algorithm); 3] = [
    (Algorithm::ONE_SHOT, Algorithm::SYM_ONE_SHOT),
    (Algorithm::ALL_PAIRS, Algorithm::SYM_ALL_PAIRS),
    (Algorithm::DIRECT, Algorithm::SYM_DIRECT),
];

/// Families that also run by copy engines: the plain one, that one.
const COPIED: [(Algorithm, Algorithm); 3] = [
    (Algorithm::RING, Algorithm::DMA_RING),
    (Algorithm::ALL_PAIRS, Algorithm::DMA_ALL_PAIRS),
    (Algorithm::DIRECT, Algorithm::DMA_DIRECT),
];

/// Whether an algorithm is one of copy engines.
pub(crate) fn is_copied(algorithm: Algorithm) -> bool {
    COPIED.iter().any(|(_, copied)| *copied == algorithm)
}

/// The form of a family for copy engines.
pub(crate) fn copied_form(algorithm: Algorithm) -> Option<Algorithm> {
    COPIED.iter().find(|(plain, _)| *plain == algorithm).map(|(_, copied)| *copied)
}

/// Whether an algorithm is one of a fused kernel.
pub(crate) fn is_fused(algorithm: Algorithm) -> bool {
    FUSED.iter().any(|(_, fused)| *fused == algorithm)
}

/// The fused form of a family.
pub(crate) fn fused_form(algorithm: Algorithm) -> Option<Algorithm> {
    FUSED.iter().find(|(plain, _)| *plain == algorithm).map(|(_, fused)| *fused)
}

/// Whether two words are the same: case, `_` and `-` do not count.
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

/// The name of an algorithm in rule files; `?` for one without.
pub(crate) fn algorithm_name(algorithm: Algorithm) -> &'static str {
    if algorithm.0 >= Algorithm::FIRST_PROGRAM {
        return "program";
    }
    Algorithm::NAMES.iter().find(|(known, _)| *known == algorithm).map_or("?", |(_, name)| name)
}

/// The name of a protocol with an algorithm.
pub(crate) fn protocol_name(algorithm: Algorithm, protocol: Protocol) -> &'static str {
    let wanted = (protocol, is_fused(algorithm));
    PROTOCOLS
        .iter()
        .find(|(protocol, fused, _)| (*protocol, *fused) == wanted)
        .map_or("", |(_, _, name)| name)
}

/// Of some words the one that was probably meant.
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

/// Edit distance.
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

/// Whether `text` is what a pattern with `*` (any text) and `?` (one character) describes.
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
    fn every_algorithm_and_protocol_has_a_name_of_its_own() {
        let mut all: Vec<String> = Vec::new();
        for (algorithm, name) in Algorithm::NAMES {
            for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
                all.push(format!("{name} {}", protocol_name(algorithm, protocol)));
            }
            assert_eq!(algorithm_name(algorithm), name);
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}

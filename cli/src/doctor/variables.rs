//! Which `NCCL_*` and `HAWSER_*` variables mean something.

use hawser_net_ib::{Regard, regard};
use hawser_runtime::env::HONOURED;

/// Names that NCCL 2.32 and its plugins know, one per line.
const NCCL: &str = include_str!("nccl_names.txt");

/// Variables of programs around NCCL, which no library reads.
const FOREIGN: &[&str] = &[
    "NCCL_TESTS_",
    "NCCL_INSPECTOR_",
    "NCCL_PROFILE_",
    "NCCL_PROFILER_",
    "NCCL_VERSION",
    "NCCL_ROOT",
    "NCCL_HOME",
];

/// Of the profiler plugin.
const PROFILER: &[&str] = &["HAWSER_PROFILER_FILE", "NCCL_PROFILE_EVENT_MASK"];

/// What a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It has an effect.
    Honoured,
    /// NCCL knows it, this version does nothing with it.
    Known,
    /// NCCL knows it, and it has no effect here for this reason.
    Refused(&'static str),
    /// Nobody knows it; perhaps this one was meant.
    Unknown(Option<&'static str>),
}

/// Judges a variable's name.
pub fn judge(name: &str) -> Judgement {
    if HONOURED.contains(&name) || PROFILER.contains(&name) || hawser_net_socket::Settings::has(name) {
        return Judgement::Honoured;
    }
    match regard(name) {
        Regard::Honoured => return Judgement::Honoured,
        Regard::Refused(why) => return Judgement::Refused(why),
        Regard::Foreign => {}
    }
    if NCCL.lines().any(|known| known == name) || FOREIGN.iter().any(|prefix| name.starts_with(prefix)) {
        return Judgement::Known;
    }
    let known = HONOURED.iter().chain(PROFILER).copied().chain(NCCL.lines());
    let nearest = known.map(|known| (distance(name, known), known)).min();
    Judgement::Unknown(nearest.filter(|(d, _)| *d <= 3).map(|(_, known)| known))
}

/// Insertions, deletions and replacements that turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged() {
        assert_eq!(judge("NCCL_ALGO"), Judgement::Honoured);
        assert_eq!(judge("NCCL_NVLS_ENABLE"), Judgement::Known);
        assert_eq!(judge("NCCL_IB_HCA"), Judgement::Honoured);
        let of_ib = NCCL.lines().filter(|name| name.starts_with("NCCL_IB_"));
        for name in of_ib {
            assert!(!matches!(judge(name), Judgement::Known), "nobody says what becomes of {name}");
        }
        for name in
            ["HAWSER_SOCKET_TIMEOUT", "NCCL_SOCKET_NTHREADS", "HAWSER_PROFILER_FILE", "MSCCL_ALGO_DIR"]
        {
            assert_eq!(judge(name), Judgement::Honoured, "{name}");
        }
        assert_eq!(judge("NCCL_TESTS_DEVICE"), Judgement::Known);
        assert_eq!(judge("NCCL_P2P_DISABEL"), Judgement::Unknown(Some("NCCL_P2P_DISABLE")));
        assert_eq!(judge("HAWSER_DEVISE"), Judgement::Unknown(Some("HAWSER_DEVICE")));
        assert_eq!(judge("NCCL_SOMETHING_ELSE_ENTIRELY"), Judgement::Unknown(None));
    }

    #[test]
    fn distances_are_symmetric_edit_distances() {
        for (a, b, d) in [("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3), ("ab", "ba", 2)] {
            assert_eq!((distance(a, b), distance(b, a)), (d, d), "{a} {b}");
        }
    }
}

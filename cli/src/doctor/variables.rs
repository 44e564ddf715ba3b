//! Which `NCCL_*` and `HAWSER_*` variables mean something.

/// Names that NCCL 2.32 and its plugins know, one per line.
const NCCL: &str = include_str!("nccl_names.txt");

/// Names with an effect in this version.
const HONOURED: &[&str] = &[
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_COMM_BLOCKING",
    "NCCL_COMM_ID",
    "NCCL_CONF_FILE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_HOSTID",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MAX_NRINGS",
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MIN_NRINGS",
    "NCCL_MULTI_RANK_GPU_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_FAMILY",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_RETRY_CNT",
    "NCCL_SOCKET_RETRY_SLEEP_MSEC",
    "HAWSER_DEVICE",
    "HAWSER_HANDSHAKE_TIMEOUT",
    "HAWSER_INIT_TIMEOUT",
    "HAWSER_OP_TIMEOUT",
];

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

/// What a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It has an effect.
    Honoured,
    /// NCCL knows it, this version does nothing with it.
    Known,
    /// Nobody knows it; perhaps this one was meant.
    Unknown(Option<&'static str>),
}

/// Judges a variable's name.
pub fn judge(name: &str) -> Judgement {
    if HONOURED.contains(&name) {
        return Judgement::Honoured;
    }
    if NCCL.lines().any(|known| known == name) || FOREIGN.iter().any(|prefix| name.starts_with(prefix)) {
        return Judgement::Known;
    }
    let known = HONOURED.iter().copied().chain(NCCL.lines());
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

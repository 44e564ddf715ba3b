//! Judges the names of `NCCL_*`, `HAWSER_*` and `MSCCL_*` variables.

use hawser_base::env::{self, Reader};
use hawser_net_ib::{Regard, regard};

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
const PROFILER: &[&str] = &["HAWSER_PROFILER_FILE", "HAWSER_PROFILER_MAX_SIZE", "NCCL_PROFILE_EVENT_MASK"];

/// The verdict on the name of a variable.
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
    if let Some(setting) = env::table_entry(name) {
        return match setting.reader {
            Reader::Library | Reader::Plugin(_) => Judgement::Honoured,
            Reader::Nobody => Judgement::Refused(setting.meaning.trim()),
        };
    }
    if PROFILER.contains(&name) || hawser_net_socket::Settings::has(name) {
        return Judgement::Honoured;
    }
    match regard(name) {
        Regard::Honoured => return Judgement::Honoured,
        Regard::Refused(why) => return Judgement::Refused(why),
        Regard::Foreign => {}
    }
    if env::nccl_names().any(|known| known == name) || FOREIGN.iter().any(|prefix| name.starts_with(prefix)) {
        return Judgement::Known;
    }
    let known = env::names().chain(PROFILER.iter().copied()).chain(env::nccl_names());
    let nearest = known.map(|known| (env::distance(name, known), known)).min();
    Judgement::Unknown(nearest.filter(|(d, _)| *d <= 3).map(|(_, known)| known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged() {
        assert_eq!(judge("NCCL_ALGO"), Judgement::Honoured);
        assert_eq!(judge("NCCL_MAX_NRINGS"), Judgement::Honoured);
        assert_eq!(judge("NCCL_PXN_DISABLE"), Judgement::Honoured);
        assert!(
            matches!(judge("NCCL_CUMEM_HOST_ENABLE"), Judgement::Refused(why) if why.contains("no name"))
        );
        assert_eq!(judge("NCCL_NVLS_ENABLE"), Judgement::Known);
        assert_eq!(judge("NCCL_IB_HCA"), Judgement::Honoured);
        let of_ib = env::nccl_names().filter(|name| name.starts_with("NCCL_IB_"));
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
}

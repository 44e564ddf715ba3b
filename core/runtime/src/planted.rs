//! Bugs that a test of the tester plants (`tests/twin`, feature `planted`). No library has the feature: there
//! nothing of this is left.

/// A bug that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Bug {
    /// Every second credit of a connection never comes.
    LostCredit = 1,
    /// Every fourth slot that comes counts twice.
    DoubleCompletion,
    /// A change of rules is taken one collective too late.
    EpochOffByOne,
    /// A change of rules puts up no fence.
    MissingFence,
    /// A rank whose network fails tells nobody.
    UntoldFailure,
    /// A rank that leaves does not wait until what it sent is on its way.
    HastyGoodbye,
    /// A rank that leaves waits for those that have left before.
    WaitsForGone,
    /// An abort gives nothing back.
    LeakingAbort,
    /// Rank 0 gives up a shrink that the others carry out.
    LonelyShrink,
    /// A signal that follows a first one is not counted.
    LostSignal,
    /// Nobody believes that a rank has died.
    DisbelievedDeath,
    /// The old ranks of a growth do not ask each other what came of it.
    UnagreedGrowth,
}

impl Bug {
    /// All bugs with their names.
    pub const ALL: [(Bug, &str); 12] = [
        (Bug::LostCredit, "lost-credit"),
        (Bug::DoubleCompletion, "double-completion"),
        (Bug::EpochOffByOne, "epoch-off-by-one"),
        (Bug::MissingFence, "missing-fence"),
        (Bug::UntoldFailure, "untold-failure"),
        (Bug::HastyGoodbye, "hasty-goodbye"),
        (Bug::WaitsForGone, "waits-for-gone"),
        (Bug::LeakingAbort, "leaking-abort"),
        (Bug::LonelyShrink, "lonely-shrink"),
        (Bug::LostSignal, "lost-signal"),
        (Bug::DisbelievedDeath, "disbelieved-death"),
        (Bug::UnagreedGrowth, "unagreed-growth"),
    ];
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Plants the bug of a name in this process; false if there is none.
#[cfg(feature = "planted")]
pub fn plant(name: &str) -> bool {
    let bug = Bug::ALL.iter().find(|(_, own)| *own == name).map(|(bug, _)| *bug as u32);
    PLANTED.store(bug.unwrap_or(0), std::sync::atomic::Ordering::Relaxed);
    bug.is_some()
}

/// True if a bug is planted.
#[inline(always)]
pub fn is_planted(bug: Bug) -> bool {
    #[cfg(feature = "planted")]
    return PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u32;
    #[cfg(not(feature = "planted"))]
    {
        let _ = bug;
        false
    }
}

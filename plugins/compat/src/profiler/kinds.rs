//! The kinds of events that come with others.

use hawser_plugin::profiler::EventMask;

const TASKS: u64 = EventMask::COLL.0 | EventMask::P2P.0;
const API: u64 = EventMask::GROUP_API.0;

/// Every kind with the kinds that its events may have above them.
const ABOVE: [(EventMask, u64); 14] = [
    (EventMask::COLL, EventMask::GROUP.0 | EventMask::COLL_API.0 | API),
    (EventMask::P2P, EventMask::GROUP.0 | EventMask::P2P_API.0 | API),
    (EventMask::PROXY_OP, TASKS),
    (EventMask::PROXY_STEP, EventMask::PROXY_OP.0),
    (EventMask::KERNEL_CH, TASKS),
    (EventMask::KERNEL_PHASE, EventMask::KERNEL_CH.0),
    (EventMask::NET_PLUGIN, EventMask::PROXY_STEP.0),
    (EventMask::COLL_API, API),
    (EventMask::P2P_API, API),
    (EventMask::KERNEL_LAUNCH, API),
    (EventMask::CE_COLL, EventMask::COLL_API.0 | API),
    (EventMask::CE_SYNC, EventMask::CE_COLL.0),
    (EventMask::CE_BATCH, EventMask::CE_COLL.0),
    (EventMask::GROUP, API),
];

/// The kinds that a host reports to a profiler with this mask: those in it, and all that may stand above one
/// of them.
pub fn with_ancestors(mask: EventMask) -> EventMask {
    if mask.contains(EventMask::ALONE) { mask } else { EventMask(closed(mask.0)) }
}

/// True if a host reports events of this kind to a profiler with this mask: somebody asks at every event, so
/// this is one comparison.
#[inline]
pub fn comes_along(mask: EventMask, kind: EventMask) -> bool {
    const { assert!(KINDS.is_power_of_two()) };
    let below =
        if mask.contains(EventMask::ALONE) { 0 } else { BELOW[kind.0.trailing_zeros() as usize % KINDS] };
    mask.0 & (below | kind.0) != 0
}

/// More kinds than there are.
const KINDS: usize = 32;

/// The kinds of events that may have one of the kind with this bit above them, itself among them.
const BELOW: [u64; KINDS] = {
    let (mut all, mut kind) = ([0; KINDS], 0);
    while kind < KINDS {
        let mut other = 0;
        while other < KINDS {
            if closed(1 << other) & 1 << kind != 0 {
                all[kind] |= 1 << other;
            }
            other += 1;
        }
        kind += 1;
    }
    all
};

/// Kinds with all that may stand above them.
const fn closed(kinds: u64) -> u64 {
    let mut all = kinds;
    loop {
        let (mut next, mut at) = (all, 0);
        while at < ABOVE.len() {
            if all & ABOVE[at].0.0 != 0 {
                next |= ABOVE[at].1;
            }
            at += 1;
        }
        if next == all {
            return all;
        }
        all = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_come_along_and_nothing_else() {
        let of = |kinds: &[EventMask]| kinds.iter().fold(0, |all, kind| all | kind.0);
        let api = [EventMask::GROUP_API, EventMask::COLL_API, EventMask::P2P_API];
        let tasks = [EventMask::GROUP, EventMask::COLL, EventMask::P2P];
        let common = of(&api) | of(&tasks);
        let cases = [
            (EventMask::NONE, 0),
            (EventMask(EventMask::COLL.0 | EventMask::ALONE.0), of(&[EventMask::COLL, EventMask::ALONE])),
            (EventMask::PROXY_CTRL, of(&[EventMask::PROXY_CTRL])),
            (EventMask::GROUP_API, of(&[EventMask::GROUP_API])),
            (
                EventMask::COLL,
                of(&[EventMask::COLL, EventMask::GROUP, EventMask::COLL_API, EventMask::GROUP_API]),
            ),
            (EventMask::KERNEL_CH, common | of(&[EventMask::KERNEL_CH])),
            (EventMask::KERNEL_PHASE, common | of(&[EventMask::KERNEL_PHASE, EventMask::KERNEL_CH])),
            (
                EventMask::NET_PLUGIN,
                common | of(&[EventMask::NET_PLUGIN, EventMask::PROXY_STEP, EventMask::PROXY_OP]),
            ),
            (
                EventMask::CE_SYNC,
                of(&[EventMask::CE_SYNC, EventMask::CE_COLL, EventMask::COLL_API, EventMask::GROUP_API]),
            ),
        ];
        for (mask, expected) in cases {
            assert_eq!(with_ancestors(mask).0, expected, "{mask:?}");
            for kind in (0..16).map(|bit| EventMask(1 << bit)) {
                assert_eq!(comes_along(mask, kind), expected & kind.0 != 0, "{mask:?} {kind:?}");
            }
        }
    }
}

//! The order of partitions by when they were ready: what is late is sent last.

/// The moment at which each partition was ready on a rank, in microseconds since the round began there; None
/// where that is not known.
pub type Moments = Vec<Option<u64>>;

/// The order in which partitions are ready on all ranks. Those of which some rank knows no moment keep their
/// places; the others share the remaining places by the moment of the last rank, and as before where that is
/// equal.
pub fn order_of(all: &[Moments], before: &[u32]) -> Vec<u32> {
    let moment = |partition: u32| -> Option<u64> {
        let moments = all.iter().map(|moments| moments.get(partition as usize).copied().flatten());
        moments.collect::<Option<Vec<u64>>>()?.into_iter().max()
    };
    let mut known: Vec<(u64, u32)> =
        before.iter().filter_map(|partition| Some((moment(*partition)?, *partition))).collect();
    known.sort_by_key(|(moment, _)| *moment);
    let mut known = known.into_iter().map(|(_, partition)| partition);
    let place = |partition: &u32| match moment(*partition) {
        Some(_) => known.next().unwrap_or(*partition),
        None => *partition,
    };
    before.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rank_says_when_a_partition_is_ready() {
        let all = [vec![Some(900), Some(10), Some(20)], vec![Some(1), Some(30), Some(5)]];
        assert_eq!(order_of(&all, &[0, 1, 2]), [2, 1, 0]);
        assert_eq!(order_of(&all, &[2, 1, 0]), [2, 1, 0]);
    }

    #[test]
    fn what_is_not_known_everywhere_keeps_its_place() {
        let all = [vec![Some(9), None, Some(2), Some(1)], vec![Some(9), Some(7), Some(2), Some(1)]];
        assert_eq!(order_of(&all, &[0, 1, 2, 3]), [3, 1, 2, 0]);
        assert_eq!(order_of(&all, &[1, 0, 3, 2]), [1, 3, 2, 0]);
        // A rank that says too little is one that knows nothing.
        assert_eq!(order_of(&[vec![], vec![Some(1), Some(0)]], &[0, 1]), [0, 1]);
    }

    #[test]
    fn equal_moments_change_nothing() {
        assert_eq!(order_of(&[vec![Some(4); 4]], &[2, 0, 3, 1]), [2, 0, 3, 1]);
        assert_eq!(order_of(&[], &[1, 0]), [1, 0]);
    }
}

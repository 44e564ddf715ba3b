//! The pairing of ports: which ports of the two ends make rails.

use crate::config::Pairing;
use crate::proto::MAX_RAILS;

/// Pairs of local and remote ports. Both ends call it alike: `sender` and `receiver` are numbers of ports.
pub(crate) fn pairs(sender: usize, receiver: usize, pairing: Pairing, qps: usize) -> Vec<(usize, usize)> {
    let most = sender.max(receiver);
    let mut pairs: Vec<(usize, usize)> = match pairing {
        Pairing::Same => (0..most).map(|n| (n % sender, n % receiver)).collect(),
        Pairing::Cross => (0..most).map(|n| (n % sender, (n + 1) % receiver)).collect(),
        Pairing::All => (0..sender).flat_map(|s| (0..receiver).map(move |r| (s, r))).collect(),
    };
    pairs = pairs.iter().copied().cycle().take(pairs.len() * qps.max(1)).collect();
    pairs.truncate(MAX_RAILS);
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ports_are_paired_whatever_their_numbers() {
        assert_eq!(pairs(2, 2, Pairing::Same, 1), [(0, 0), (1, 1)]);
        assert_eq!(pairs(2, 2, Pairing::Cross, 1), [(0, 1), (1, 0)]);
        assert_eq!(pairs(1, 3, Pairing::Same, 1), [(0, 0), (0, 1), (0, 2)]);
        assert_eq!(pairs(2, 2, Pairing::All, 1).len(), 4);
        assert_eq!(pairs(1, 1, Pairing::Same, 3), [(0, 0); 3]);
        for (sender, receiver) in [(1, 8), (9, 9), (3, 5)] {
            let all = pairs(sender, receiver, Pairing::Same, 1);
            assert!((0..sender).all(|s| all.iter().any(|pair| pair.0 == s)));
            assert!((0..receiver).all(|r| all.iter().any(|pair| pair.1 == r)));
            assert!(pairs(sender, receiver, Pairing::All, 16).len() <= MAX_RAILS);
        }
    }
}

//! Ranks that stand for others: where hosts are equal and a program is the same for all of them but for whom
//! it talks to, what happens on the first hosts happens on all others at the same time.
//!
//! A **period** is a number of ranks: those of as many hosts as the fabric repeats itself after. Moving
//! every rank on by a period, round the end, maps the cluster onto itself, links included, and a *symmetric*
//! program too. Then only the ranks of the first period act. Whoever they talk to outside of it does what its
//! image inside does: a slot that is sent to rank `r` of another period is a slot that comes from the period
//! as far behind. So is a flow: it takes the links of its own ends, and on the image of each link the flows
//! of its images take as much.
//!
//! This is exact but for ties: of two messages that reach a proxy at the same picosecond, the first is the
//! one whose event was made first, which may differ between a rank and its image when all are run.

use hawser_plan::algo::ProgramKey;
use hawser_plan::{Algorithm, Collective};

use crate::cluster::{Cluster, FabricKind};

/// The ranks after which a cluster repeats itself; None if it does not, or nothing is gained.
pub fn period(cluster: &Cluster) -> Option<u32> {
    let hosts = cluster.hosts.len() as u32;
    let is_even = cluster.hosts.iter().all(|kind| *kind == cluster.hosts[0]) && cluster.start_skew_us == 0.0;
    let per_leaf = cluster.fabric.hosts_per_leaf;
    let repeats_after = match cluster.fabric.kind {
        FabricKind::Switch => 1,
        // One leaf, from which nothing goes up.
        _ if hosts <= per_leaf => 1,
        _ if hosts.is_multiple_of(per_leaf) => per_leaf,
        _ => return None,
    };
    (is_even && repeats_after < hosts).then(|| repeats_after * cluster.host(0).ranks)
}

/// True if the program of a rank is that of the rank a period before it, with all peers moved on by as much:
/// for any number of ranks, and periods that are whole hosts.
pub fn is_symmetric(key: &ProgramKey) -> bool {
    match key.algorithm {
        Algorithm::Ring => matches!(
            key.collective,
            Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter
        ),
        Algorithm::Direct => key.collective == Collective::AllToAll,
        Algorithm::Bruck | Algorithm::Pat => true,
        Algorithm::Hierarchical | Algorithm::RailRing | Algorithm::RailRelay => key.per_host > 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_plan::algo;
    use hawser_program::RankProgram;

    /// A step as time sees it: peers that it takes from and sends to, how often, whether it reads and keeps.
    type Timed = (Vec<u32>, Vec<u32>, u32, bool, bool);

    /// The steps of a rank as time sees them, with all peers moved on; chunks are of no account to time.
    fn moved(program: &RankProgram, by: u32, ranks: u32) -> Vec<Vec<Timed>> {
        let on = |peers: &[u32]| {
            let mut peers: Vec<u32> = peers.iter().map(|peer| (peer + by) % ranks).collect();
            peers.sort_unstable();
            peers
        };
        let of = |step: &hawser_program::Step| {
            (on(&step.recv), on(&step.send), step.times, step.src.is_some(), step.dst.is_some())
        };
        program.channels.iter().map(|channel| channel.steps.iter().map(of).collect()).collect()
    }

    #[test]
    fn programs_that_are_called_symmetric_are() {
        let mut looked_at = 0;
        let (most_hosts, expected) = if cfg!(miri) { (2, 20) } else { (16, 300) };
        for hosts in 2..=most_hosts {
            for per_host in [1, 2, 3, 4, 8] {
                let ranks = hosts * per_host;
                for collective in Collective::ALL {
                    for &algorithm in algo::algorithms(collective) {
                        let mut key = ProgramKey::new(collective, algorithm, ranks, 0);
                        if algo::needs(algorithm) == algo::Needs::Hosts {
                            key.per_host = per_host;
                        }
                        if !is_symmetric(&key) || algo::shape(&key).is_err() {
                            continue;
                        }
                        looked_at += 1;
                        let first: Vec<_> =
                            (0..per_host).map(|rank| algo::rank_program(&key, rank).unwrap()).collect();
                        for rank in per_host..ranks {
                            let here = moved(&algo::rank_program(&key, rank).unwrap(), 0, ranks);
                            let image = rank % per_host;
                            let there = moved(&first[image as usize], rank - image, ranks);
                            assert_eq!(here, there, "{key:?}: rank {rank} and its image {image}");
                        }
                    }
                }
            }
        }
        assert!(looked_at > expected, "{looked_at} programs");
    }
}

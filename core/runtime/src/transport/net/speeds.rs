//! The speeds of the NICs that ranks use, by host and by rank.

/// The speeds of NICs.
#[derive(Default)]
pub struct Speeds {
    /// Megabits per second of each rank's together.
    ranks: Vec<u32>,
    /// Host, name and megabits per second of every NIC that a rank uses.
    nics: Vec<(u32, String, u32)>,
}

impl Speeds {
    /// Adds a rank.
    pub fn add(&mut self, host: u32, nics: Vec<(String, u32)>) {
        self.ranks.push(sum(nics.iter().map(|(_, mbps)| *mbps)));
        self.nics.extend(nics.into_iter().map(|(name, mbps)| (host, name, mbps)));
    }

    /// The slowest host's and the slowest rank's; 0 where one is not known.
    pub fn slowest(mut self) -> (u32, u32) {
        self.nics.sort_unstable();
        // Ranks that share one count it once.
        self.nics.dedup_by(|a, b| (a.0, &a.1) == (b.0, &b.1));
        let hosts = self.nics.chunk_by(|a, b| a.0 == b.0).map(|nics| sum(nics.iter().map(|nic| nic.2)));
        (hosts.min().unwrap_or(0), self.ranks.iter().copied().min().unwrap_or(0))
    }
}

/// Megabits per second of all together; 0 if one is not known.
fn sum(speeds: impl IntoIterator<Item = u32>) -> u32 {
    let add = |sum: u32, mbps: u32| (mbps > 0).then(|| sum.saturating_add(mbps));
    speeds.into_iter().try_fold(0, add).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_the_nics_of_all_their_ranks_once() {
        // Two ranks on each host.
        let slowest = |ranks: [&[(&str, u32)]; 4]| {
            let mut speeds = Speeds::default();
            for (rank, nics) in (0..).zip(ranks) {
                let nics = nics.iter().map(|(name, mbps)| ((*name).to_owned(), *mbps)).collect();
                speeds.add(rank / 2, nics);
            }
            speeds.slowest()
        };
        let (a, b): (&[_], &[_]) = (&[("a", 100)], &[("b", 100)]);
        assert_eq!(slowest([a, a, a, a]), (100, 100), "they share one");
        assert_eq!(slowest([a, b, a, b]), (200, 100), "each has its own");
        assert_eq!(slowest([a, b, a, a]), (100, 100), "the slowest host");
        assert_eq!(slowest([&[("a", 100), ("b", 100)], b, a, b]), (200, 100), "the slowest rank");
        assert_eq!(slowest([a, b, a, &[("b", 0)]]), (0, 0), "not known");
    }
}

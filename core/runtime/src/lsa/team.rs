//! The load-store team of a rank: those whose memory it maps.

/// The ranks that map each other's memory: neighbours of one host.
#[derive(Debug, Clone)]
pub struct Team {
    /// Rank of the first one in the communicator.
    pub first: u32,
    /// This rank in the team.
    pub rank: u32,
    /// By rank of the team: whether it is in another process.
    pub is_elsewhere: Vec<bool>,
}

impl Team {
    /// The team of a rank, by the hosts and processes of all: as many neighbours of its host as divide the
    /// ranks of each host's runs, so that all teams have one size (as NVIDIA's).
    pub fn of(rank: u32, hosts: &[u32], processes: &[u64]) -> Self {
        let runs = hosts.chunk_by(|before, after| before == after).map(<[u32]>::len);
        let ranks = runs.fold(0, greatest_common_divisor).max(1);
        let first = rank as usize / ranks * ranks;
        let is_elsewhere = processes[first..first + ranks].iter().map(|it| *it != processes[rank as usize]);
        Self { first: first as u32, rank: rank - first as u32, is_elsewhere: is_elsewhere.collect() }
    }

    /// A team of one rank.
    pub fn alone(rank: u32) -> Self {
        Self { first: rank, rank: 0, is_elsewhere: vec![false] }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.is_elsewhere.len() as u32
    }

    /// The other ranks, as ranks of the team.
    pub fn others(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.ranks()).filter(|rank| *rank != self.rank)
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

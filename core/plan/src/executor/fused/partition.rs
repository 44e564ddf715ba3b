//! The partition of a call's bytes among the exchanges of a program.

use hawser_kernels_abi::fused::{
    CUT, Flow, FusedArgs, NO_RANK, OWN, REDUCE, SAME, SECOND, SPREAD_DST, SPREAD_SRC,
};
use hawser_types::{Algorithm, Call, Collective};

use crate::executor::launch::PACK_BYTES;

/// Fills in what goes where.
pub(super) struct Parts {
    /// Offsets and lengths.
    pub args: FusedArgs,
    /// The masks of ranks, and the form of the exchanges.
    pub flow: Flow,
    /// By rank: whether `dst` is a place in the output.
    pub has_dst: u8,
    /// The same in few numbers.
    pub shape: Shape,
    rank: usize,
    ranks: usize,
    /// All peers, by k and by rank.
    all_k: u8,
    all_p: u8,
    /// Bytes from one block of a buffer to the next.
    step: u64,
}

/// The places of parts, in few numbers: offsets and lengths follow from them
/// (`kernels/cuda/exchange_bundle.cuh`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of a part; where `total` is cut into parts, of all but the last ones.
    pub part: u64,
    /// Bytes that are cut into parts.
    pub total: u64,
    /// [`SPREAD_SRC`], [`SPREAD_DST`], [`CUT`].
    pub flags: u8,
    /// The rank that has no part, or [`NO_RANK`].
    pub skipped: u8,
}

impl Parts {
    /// Nothing yet.
    pub fn new(rank: u32, ranks: u32) -> Self {
        let everyone = ((1u32 << ranks) - 1) as u8;
        let args = FusedArgs { rank: rank as u8, ranks: ranks as u8, ..FusedArgs::default() };
        let all_p = everyone & !(1 << rank);
        let shape = Shape { part: 0, total: 0, flags: 0, skipped: NO_RANK };
        let (rank, ranks) = (rank as usize, ranks as usize);
        let flow = Flow::default();
        Self { args, flow, has_dst: 0, shape, rank, ranks, all_k: everyone & !1, all_p, step: 0 }
    }

    /// Everything for a call by an algorithm.
    pub fn fill(&mut self, call: &Call, algorithm: Algorithm) {
        use Collective as C;
        let two_hops = algorithm == Algorithm::AllPairs;
        let (root, bytes) = (call.root as usize, call.block_bytes());
        self.step = call.step_bytes();
        match call.collective {
            C::AllReduce if two_hops => self.all_reduce_in_shards(bytes),
            C::Broadcast if two_hops => self.broadcast_in_shards(root, bytes),
            C::Reduce if two_hops => self.reduce_in_shards(root, bytes),
            C::AllReduce => self.all_reduce(bytes),
            C::Broadcast => self.broadcast(root, bytes),
            C::Reduce => self.reduce(root, bytes),
            C::AllGather => self.all_gather(bytes),
            C::ReduceScatter => self.reduce_scatter(bytes),
            C::AllToAll => self.all_to_all(bytes),
            C::Gather => self.gather(root, bytes),
            C::Scatter => self.scatter(root, bytes),
            C::SendRecv => {}
        }
    }

    fn all_reduce(&mut self, bytes: u64) {
        self.equal_parts(bytes);
        self.keep_at(self.rank, 0);
        (self.flow.form, self.flow.send1, self.flow.recv1) = (REDUCE | OWN | SAME, self.all_k, self.all_p);
    }

    fn broadcast(&mut self, root: usize, bytes: u64) {
        self.equal_parts(bytes);
        self.flow.form = SAME;
        self.keep_at(root, 0);
        if self.rank == root {
            (self.flow.send1, self.flow.keep) = (self.all_k, 1 << root);
        } else {
            self.flow.recv1 = 1 << root;
        }
    }

    fn reduce(&mut self, root: usize, bytes: u64) {
        self.equal_parts(bytes);
        if self.rank == root {
            self.keep_at(root, 0);
            (self.flow.form, self.flow.recv1) = (REDUCE | OWN, self.all_p);
        } else {
            self.flow.send1 = 1 << self.k_of(root);
        }
    }

    fn all_gather(&mut self, bytes: u64) {
        self.equal_parts(bytes);
        self.keep_blocks();
        (self.flow.form, self.flow.send1, self.flow.recv1) = (SAME, self.all_k, self.all_p);
        self.flow.keep = 1 << self.rank;
    }

    fn reduce_scatter(&mut self, bytes: u64) {
        self.equal_parts(bytes);
        self.send_blocks();
        self.keep_at(self.rank, 0);
        (self.flow.form, self.flow.send1, self.flow.recv1) = (REDUCE | OWN, self.all_k, self.all_p);
    }

    fn all_to_all(&mut self, bytes: u64) {
        self.equal_parts(bytes);
        self.send_blocks();
        self.keep_blocks();
        (self.flow.send1, self.flow.recv1) = (self.all_k, self.all_p);
        self.flow.keep = 1 << self.rank;
    }

    fn gather(&mut self, root: usize, bytes: u64) {
        self.equal_parts(bytes);
        if self.rank == root {
            self.keep_blocks();
            (self.flow.recv1, self.flow.keep) = (self.all_p, 1 << root);
        } else {
            self.flow.send1 = 1 << self.k_of(root);
        }
    }

    fn scatter(&mut self, root: usize, bytes: u64) {
        self.equal_parts(bytes);
        self.keep_at(root, 0);
        if self.rank == root {
            self.send_blocks();
            (self.flow.send1, self.flow.keep) = (self.all_k, 1 << root);
        } else {
            self.flow.recv1 = 1 << root;
        }
    }

    /// Reduce-scatter over the shards of all ranks, then all-gather.
    fn all_reduce_in_shards(&mut self, bytes: u64) {
        let owners: Vec<usize> = (0..self.ranks).collect();
        self.shards(&owners, bytes);
        owners.iter().for_each(|&p| self.has_dst |= 1 << p);
        self.flow.form = REDUCE | OWN | SECOND;
        (self.flow.send1, self.flow.send2) = (self.all_k, self.all_k);
        (self.flow.recv1, self.flow.recv2) = (self.all_p, self.all_p);
    }

    /// The root sends every other rank a shard, which that one passes on to all but the root.
    fn broadcast_in_shards(&mut self, root: usize, bytes: u64) {
        let owners: Vec<usize> = (0..self.ranks).filter(|&p| p != root).collect();
        self.shards(&owners, bytes);
        owners.iter().for_each(|&p| self.has_dst |= 1 << p);
        self.flow.form = REDUCE | SECOND;
        if self.rank == root {
            (self.flow.send1, self.flow.keep) = (self.all_k, self.all_p);
            return;
        }
        self.flow.recv1 = 1 << root;
        self.flow.send2 = self.all_k & !(1 << self.k_of(root));
        self.flow.recv2 = self.all_p & !(1 << root);
    }

    /// Every rank but the root reduces a shard and sends it to the root.
    fn reduce_in_shards(&mut self, root: usize, bytes: u64) {
        let owners: Vec<usize> = (0..self.ranks).filter(|&p| p != root).collect();
        self.shards(&owners, bytes);
        self.flow.form = REDUCE | SECOND;
        self.flow.send1 = self.all_k;
        if self.rank == root {
            owners.iter().for_each(|&p| self.has_dst |= 1 << p);
            self.flow.recv2 = self.all_p;
            return;
        }
        let root_k = 1 << self.k_of(root);
        self.flow.form |= OWN;
        (self.flow.send1, self.flow.send2) = (self.all_k & !root_k, root_k);
        self.flow.recv1 = self.all_p;
    }

    /// Every rank has a part of `bytes` bytes; what is sent lies at the start of the input.
    fn equal_parts(&mut self, bytes: u64) {
        self.args.len[..self.ranks].fill(bytes);
        self.args.src_len[..self.ranks].fill(bytes);
        self.args.least = bytes;
        (self.shape.part, self.shape.total) = (bytes, bytes);
    }

    /// Rank `p` gets block `p` of the input.
    fn send_blocks(&mut self) {
        self.shape.flags |= SPREAD_SRC;
        for k in 0..self.ranks {
            self.args.src[k] = ((self.rank + k) % self.ranks) as u64 * self.step;
        }
    }

    /// Keeps what comes from rank `p` as block `p` of the output.
    fn keep_blocks(&mut self) {
        self.shape.flags |= SPREAD_DST;
        (0..self.ranks).for_each(|p| self.keep_at(p, p as u64 * self.step));
    }

    /// Cuts `bytes` bytes of input and output into a shard for each owner.
    fn shards(&mut self, owners: &[usize], bytes: u64) {
        let shard = bytes.div_ceil(owners.len().max(1) as u64).next_multiple_of(PACK_BYTES);
        let skipped = (0..self.ranks).find(|p| !owners.contains(p)).map_or(NO_RANK, |p| p as u8);
        self.shape = Shape { part: shard, total: bytes, flags: CUT | SPREAD_SRC | SPREAD_DST, skipped };
        for (index, &p) in owners.iter().enumerate() {
            let at = index as u64 * shard;
            let (k, len) = (self.k_of(p), bytes.saturating_sub(at).min(shard));
            (self.args.src[k], self.args.src_len[k]) = (at, len);
            (self.args.dst[p], self.args.len[p], self.args.least) = (at, len, len);
        }
    }

    fn keep_at(&mut self, p: usize, offset: u64) {
        self.args.dst[p] = offset;
        self.has_dst |= 1 << p;
    }

    fn k_of(&self, p: usize) -> usize {
        (p + self.ranks - self.rank) % self.ranks
    }
}

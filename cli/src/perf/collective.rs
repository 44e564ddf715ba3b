//! The measured operations: their buffers, what must come out, and their bandwidth.
//!
//! Sizes and offsets follow nccl-tests, so that tables can be laid side by side: a size is that of
//! the larger buffer, and where a buffer is cut into one block per rank, blocks are rounded down to
//! 16 bytes.

use hawser_plan::{Call, Collective, DataType, ReduceOp};

/// An operation that `hawser perf` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// A collective with a call of its own, or a ring of send/recv.
    One(Collective),
    /// An all-gather made of pairwise exchanges along the edges of a hypercube.
    Hypercube,
}

/// Elements of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// NCCL's count argument: elements per block.
    pub count: u64,
    /// Elements in the send buffer of a rank that has one.
    pub send: u64,
    /// Elements in the receive buffer of a rank that has one.
    pub recv: u64,
}

/// A stretch of a receive buffer and what belongs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Length in elements.
    pub elements: u64,
    /// The ranks whose data the segment holds.
    pub source: Source,
    /// First element of that rank's input, or of the reduced one.
    pub first: u64,
}

/// The origin of a segment's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// This rank's input.
    Rank(u32),
    /// All inputs combined.
    All,
}

impl Test {
    /// All operations, in the order of `hawser perf all`.
    pub const ALL: [Test; 10] = [
        Self::One(Collective::AllReduce),
        Self::One(Collective::AllGather),
        Self::One(Collective::ReduceScatter),
        Self::One(Collective::Broadcast),
        Self::One(Collective::Reduce),
        Self::One(Collective::AllToAll),
        Self::One(Collective::Gather),
        Self::One(Collective::Scatter),
        Self::One(Collective::SendRecv),
        Self::Hypercube,
    ];

    /// Name as in nccl-tests' programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::One(collective) => collective.name(),
            Self::Hypercube => "hypercube",
        }
    }

    /// Inverse of [`Test::name`]; `all_to_all` and names with dashes are accepted too.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.replace('-', "_");
        let name = if name == "all_to_all" { "alltoall" } else { &name };
        Self::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Returns whether the operation combines values.
    pub fn reduces(self) -> bool {
        matches!(self, Self::One(collective) if collective.reduces())
    }

    /// Returns whether the operation has a root.
    pub fn rooted(self) -> bool {
        matches!(self, Self::One(collective) if collective.rooted())
    }

    /// True if the result of running in place is defined (nccl-tests prints N/A where it is not).
    pub fn checks_in_place(self) -> bool {
        !matches!(self, Self::One(Collective::AllToAll | Collective::SendRecv))
    }

    /// Elements for buffers of at most `bytes` bytes.
    pub fn geometry(self, bytes: u64, dtype: DataType, ranks: u32) -> Geometry {
        let total = bytes / dtype.size() as u64;
        let (inputs, outputs) = self.blocks(ranks);
        let count = if inputs == 1 && outputs == 1 {
            total
        } else {
            let per_line = 16 / dtype.size() as u64;
            total / u64::from(ranks) / per_line * per_line
        };
        Geometry { count, send: count * u64::from(inputs), recv: count * u64::from(outputs) }
    }

    /// Blocks of send and receive buffer.
    fn blocks(self, ranks: u32) -> (u32, u32) {
        match self {
            Self::One(collective) => (collective.input_blocks(ranks), collective.output_blocks(ranks)),
            Self::Hypercube => (1, ranks),
        }
    }

    /// Returns whether `rank` sends anything of its own.
    pub fn has_input(self, rank: u32, root: u32) -> bool {
        matches!(self, Self::Hypercube) || matches!(self, Self::One(c) if c.has_input(rank, root))
    }

    /// Returns whether `rank` receives a result.
    pub fn has_output(self, rank: u32, root: u32) -> bool {
        matches!(self, Self::Hypercube) || matches!(self, Self::One(c) if c.has_output(rank, root))
    }

    /// For a run in place: where in the one buffer the input and the output of `rank` start, in elements.
    pub fn in_place_offsets(self, rank: u32, count: u64) -> (u64, u64) {
        let own = u64::from(rank) * count;
        match self {
            Self::Hypercube | Self::One(Collective::AllGather | Collective::Gather) => (own, 0),
            Self::One(Collective::ReduceScatter | Collective::Scatter) => (0, own),
            Self::One(_) => (0, 0),
        }
    }

    /// The values that the receive buffer of `rank` must hold afterwards; empty if it gets nothing.
    pub fn expected(self, rank: u32, ranks: u32, root: u32, count: u64) -> Vec<Segment> {
        if !self.has_output(rank, root) {
            return Vec::new();
        }
        let own = u64::from(rank) * count;
        let one = |source, first| vec![Segment { elements: count, source, first }];
        let each =
            |first| (0..ranks).map(|r| Segment { elements: count, source: Source::Rank(r), first }).collect();
        match self {
            Self::Hypercube => each(0),
            Self::One(collective) => match collective {
                Collective::AllReduce | Collective::Reduce => one(Source::All, 0),
                Collective::ReduceScatter => one(Source::All, own),
                Collective::Broadcast => one(Source::Rank(root), 0),
                Collective::Scatter => one(Source::Rank(root), own),
                Collective::SendRecv => one(Source::Rank((rank + ranks - 1) % ranks), 0),
                Collective::AllGather | Collective::Gather => each(0),
                Collective::AllToAll => each(own),
            },
        }
    }

    /// Bandwidth of the algorithm and of the bus in GB/s (powers of ten).
    pub fn bandwidth(self, geometry: Geometry, dtype: DataType, ranks: u32, seconds: f64) -> (f64, f64) {
        let bytes = geometry.send.max(geometry.recv) * dtype.size() as u64;
        let n = f64::from(ranks);
        let factor = match self {
            Self::One(Collective::AllReduce) => 2.0 * (n - 1.0) / n,
            Self::One(Collective::Broadcast | Collective::Reduce | Collective::SendRecv) => 1.0,
            Self::Hypercube | Self::One(_) => (n - 1.0) / n,
        };
        let algorithm = if seconds > 0.0 { bytes as f64 / 1e9 / seconds } else { 0.0 };
        (algorithm, algorithm * factor)
    }

    /// The call of the API; None for operations made of several.
    pub fn call(self, count: u64, dtype: DataType, op: Option<ReduceOp>, root: u32) -> Option<Call> {
        let Self::One(collective) = self else { return None };
        if collective == Collective::SendRecv {
            return None;
        }
        let scalar = hawser_plan::Scalar::Immediate(0);
        Some(Call {
            collective,
            count,
            dtype,
            op: op.unwrap_or(ReduceOp::Sum),
            scalar,
            root,
            input: 0,
            output: 0,
            gap: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str) -> Test {
        Test::from_name(name).expect("a known name")
    }

    #[test]
    fn names_are_those_of_nccl_tests() {
        for t in Test::ALL {
            assert_eq!(Test::from_name(t.name()), Some(t));
        }
        assert_eq!(test("all-reduce"), Test::One(Collective::AllReduce));
        assert_eq!(test("all_to_all"), Test::One(Collective::AllToAll));
        assert_eq!(Test::from_name("allreduce2"), None);
    }

    #[test]
    fn geometry_rounds_blocks_to_16_bytes() {
        let float = DataType::Float32;
        assert_eq!(
            test("all_reduce").geometry(1000, float, 3),
            Geometry { count: 250, send: 250, recv: 250 }
        );
        assert_eq!(test("all_gather").geometry(1000, float, 3), Geometry { count: 80, send: 80, recv: 240 });
        assert_eq!(
            test("reduce_scatter").geometry(1000, float, 3),
            Geometry { count: 80, send: 240, recv: 80 }
        );
        assert_eq!(test("alltoall").geometry(8, float, 4), Geometry { count: 0, send: 0, recv: 0 });
        assert_eq!(
            test("hypercube").geometry(64, DataType::Int8, 2),
            Geometry { count: 32, send: 32, recv: 64 }
        );
    }

    #[test]
    fn bus_bandwidth_has_the_published_factors() {
        let seconds = 1e-3;
        for (name, factor) in [
            ("all_reduce", 1.5),
            ("all_gather", 0.75),
            ("reduce_scatter", 0.75),
            ("alltoall", 0.75),
            ("gather", 0.75),
            ("scatter", 0.75),
            ("broadcast", 1.0),
            ("reduce", 1.0),
            ("sendrecv", 1.0),
        ] {
            let geometry = test(name).geometry(1 << 20, DataType::Float32, 4);
            let (algorithm, bus) = test(name).bandwidth(geometry, DataType::Float32, 4, seconds);
            assert!((algorithm - 1.048_576).abs() < 1e-9, "{name} {algorithm}");
            assert!((bus - algorithm * factor).abs() < 1e-9, "{name} {bus}");
        }
    }

    #[test]
    fn expectations_cover_the_receive_buffer() {
        for t in Test::ALL {
            let geometry = t.geometry(4096, DataType::Int32, 4);
            for rank in 0..4 {
                let segments = t.expected(rank, 4, 1, geometry.count);
                let covered: u64 = segments.iter().map(|s| s.elements).sum();
                assert_eq!(covered, if t.has_output(rank, 1) { geometry.recv } else { 0 }, "{t:?}");
            }
        }
        let scatter = test("scatter").expected(2, 4, 1, 10);
        assert_eq!(scatter, [Segment { elements: 10, source: Source::Rank(1), first: 20 }]);
        assert_eq!(test("sendrecv").expected(0, 4, 0, 5)[0].source, Source::Rank(3));
        assert_eq!(
            test("alltoall").expected(1, 2, 0, 5)[0],
            Segment { elements: 5, source: Source::Rank(0), first: 5 }
        );
    }

    #[test]
    fn in_place_offsets_stay_inside() {
        for t in Test::ALL {
            let geometry = t.geometry(4096, DataType::Int32, 4);
            let whole = geometry.send.max(geometry.recv);
            for rank in 0..4 {
                let (input, output) = t.in_place_offsets(rank, geometry.count);
                assert!(input + geometry.send <= whole && output + geometry.recv <= whole, "{t:?}");
            }
        }
    }
}

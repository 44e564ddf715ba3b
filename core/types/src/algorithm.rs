//! The families of programs, and the names of programs that users bring.

/// Declares the families: one line with the name that users write. What is known of each is in the registry
/// of the planner.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Families of programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Algorithm {
            $($(#[$doc])* $name,)*
            /// A program that the user brought.
            Imported(Handle),
        }

        impl Algorithm {
            /// All built-in families, in the order in which ties are decided.
            pub const ALL: [Algorithm; [$($text),*].len()] = [$(Self::$name),*];

            /// The name in `NCCL_ALGO`, texts and files (any case is accepted).
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Imported(handle) => handle.name(),
                }
            }
        }
    };
}

algorithms! {
    /// Each rank passes on to the next: least traffic per link, latency grows with ranks.
    Ring = "Ring",
    /// Two complementary binary trees: latency grows with log2 of ranks.
    Tree = "Tree",
    /// Everyone to everyone, all at once, each rank reduces everything (one hop).
    OneShot = "OneShot",
    /// Everyone to everyone in two hops (reduce-scatter, then all-gather), or one for the halves.
    AllPairs = "AllPairs",
    /// Direct messages between root or peers: send/recv and its compositions.
    Direct = "Direct",
    /// Inside hosts, across hosts, inside hosts.
    Hierarchical = "Hierarchical",
    /// As `Hierarchical`, but the network itself reduces across hosts (a collnet plugin).
    CollNet = "CollNet",
    /// Everything to a partner at twice the distance each time: log2 hops, all bytes in each.
    RecursiveDoubling = "RecursiveDoubling",
    /// Rabenseifner's: halves to partners until every rank has one part, then back. log2 hops twice, bytes as
    /// a ring.
    HalvingDoubling = "HalvingDoubling",
    /// Blocks travel by the binary digits of their distance: log2 peers per rank.
    Bruck = "Bruck",
    /// Two by two: every rank exchanges with one other at a time.
    Pairwise = "Pairwise",
    /// Trees whose nodes have many children: fewer hops than binary ones.
    Knomial = "Knomial",
    /// Binomial trees from every rank at once, the largest distance first (NCCL's parallel aggregated trees).
    Pat = "PAT",
    /// Two rings in opposite directions, each for half of the data.
    DoubleRing = "DoubleRing",
    /// All pairs, whose owners add up along a balanced tree over ranks, rounding at every node.
    Nested = "Nested",
    /// A ring of hosts for each rank of a host, chains inside: all NICs of a host carry equal parts.
    RailRing = "RailRing",
    /// As `RailRing`, with a binary tree of hosts instead of each ring.
    RailTree = "RailTree",
    /// All-to-all: blocks for a rank on another host go through the rank of the own host on the same rail,
    /// which sends those of all its neighbours as one message.
    RailRelay = "RailRelay",
}

/// The places where an algorithm has been measured on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    /// Within a host and between hosts.
    Everywhere,
    /// Between hosts of one rank each. Where each rank of a host has a NIC of its own it counts as well, as
    /// [`Measured::OwnNics`] does.
    BetweenHosts,
    /// Not yet; but where each rank of a host has a NIC of its own nothing was measured, and there the cost
    /// model alone decides.
    OwnNics,
    /// Not yet.
    Nowhere,
}

/// Names a program that a user brought. The program itself is kept by the planner, which finds it by this
/// handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle {
    /// The name of the algorithm; it lives as long as the process.
    name: &'static str,
    /// The digest of the program and of when it may run.
    digest: u64,
    /// The place of the program in the list of all programs of the process.
    place: u32,
    /// The position of the program among those that the planner keeps.
    index: u32,
}

impl Handle {
    /// A handle for the program that the planner keeps at `index`.
    pub const fn new(name: &'static str, digest: u64, place: u32, index: u32) -> Self {
        Self { name, digest, place, index }
    }

    /// The name of the algorithm.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// A number that differs when programs, or when they may run, differ.
    pub const fn digest(self) -> u64 {
        self.digest
    }

    /// The place of the program in the list of all programs of the process, which gives it its bit in the
    /// settings.
    pub const fn place(self) -> u32 {
        self.place
    }

    /// The position of the program among those that the planner keeps.
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

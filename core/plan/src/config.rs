//! Settings that steer the choice. Equal on all ranks: their digest is compared at init.

use hawser_types::{
    Algorithm, Collective, DeviceKind, Digest, Executor, Handle, PlanError, Result, Route, Routes,
};

/// Settings of the planner, from `NCCL_*` variables and `ncclConfig_t`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanConfig {
    /// `NCCL_ALGO`: per collective (index of [`crate::Collective::ALL`]) a set of [`algorithm_bit`]s; None =
    /// all.
    pub algorithms: [Option<u64>; 8],
    /// Programs that the user brought, in the order in which they are tried.
    pub imports: Vec<Handle>,
    /// `NCCL_PROTO`: the routes that each collective may take; None = all.
    pub routes: [Option<Routes>; 8],
    /// Fewest and most CTAs of one operation (`NCCL_MIN_CTAS`, `NCCL_MAX_CTAS`).
    pub min_ctas: u32,
    /// See `min_ctas`.
    pub max_ctas: u32,
    /// Bytes of payload per FIFO slot for LL, LL128 and Simple.
    pub slot_bytes: [u32; 3],
    /// Slots per FIFO.
    pub depth: u32,
    /// FIFOs (lanes) per peer: the most blocks of one collective that talk to one peer.
    pub lanes: u32,
    /// The level of `HAWSER_REPRODUCIBLE`: 0 = reductions combine in any order that is fixed for a call, 1 =
    /// in one that depends on the number of ranks alone, 2 = along a tree that nests.
    pub reproducible: u8,
    /// `NCCL_PASS_SM`: 1 prefers copy engines for what they can do, 2 insists on them.
    pub pass_sm: u8,
    /// Ranks have staging for copy engines though `pass_sm` is 0: rules may ask for them.
    pub copy_engines: bool,
    /// `NCCL_PSM_BUFFER_SIZE`: bytes of staging per peer; 0 = as fits.
    pub staging_bytes: u64,
    /// `HAWSER_FUSE`: small collectives of a group share launches.
    pub fuse: bool,
    /// `HAWSER_SM_FREE_CTAS`: most CTAs of a reduction while copy engines do what only moves.
    pub reducing_ctas: u32,
    /// The longest message that the network between hosts takes.
    pub message_bytes: u64,
    /// Bytes in front of each Simple slot, for what the network says about it (`HAWSER_CHECKSUM`).
    pub slot_lead: u32,
    /// True if parts of heaps are made when operations first need them, where that is possible
    /// ([`crate::layout::HeapLayout::is_late`]).
    pub late_parts: bool,
    /// False if no rank may send what others of its host have for other hosts (`NCCL_PXN_DISABLE`).
    pub relays: bool,
    /// True where one thread runs the blocks of a launch in turns (the host device): then any number of them
    /// may wait for each other, whatever `max_ctas` is.
    pub blocks_take_turns: bool,
}

/// The lanes that a communicator has at least: programs have up to this many channels, each on a lane of its
/// own.
pub const MIN_LANES: u32 = 8;

/// Bytes of a FIFO slot that crosses a network, unless the user says otherwise: a slot is one message.
/// Measured over TCP, 128 KiB reach a third of what this does.
pub const NET_SLOT_BYTES: u32 = 512 << 10;
/// The same where each rank of a host has a NIC of its own: one block does not keep such a NIC busy, so there
/// are more FIFOs of half the size.
pub const OWN_NIC_SLOT_BYTES: u32 = 256 << 10;
/// Bytes of data in a slot of LL that crosses a network, twice as many on the wire: larger messages are as
/// fast with Simple or faster (`bench/results/2026-11-26-ll-between-hosts.txt`).
pub const NET_LL_BYTES: u32 = 512;

impl Default for PlanConfig {
    fn default() -> Self {
        Self {
            algorithms: [None; 8],
            imports: Vec::new(),
            routes: [None; 8],
            min_ctas: 1,
            max_ctas: 64,
            slot_bytes: [8 << 10, 15 << 10, 128 << 10],
            depth: 4,
            lanes: 24,
            reproducible: 0,
            pass_sm: 0,
            copy_engines: false,
            staging_bytes: 0,
            fuse: true,
            reducing_ctas: 2,
            message_bytes: u64::MAX,
            slot_lead: 0,
            late_parts: false,
            relays: true,
            blocks_take_turns: false,
        }
    }
}

impl PlanConfig {
    /// The settings for ranks on such devices, unless the user says otherwise.
    pub fn for_device(device: DeviceKind) -> Self {
        match device {
            DeviceKind::Host => Self {
                slot_bytes: [0, 0, 32 << 10],
                lanes: MIN_LANES,
                blocks_take_turns: true,
                ..Self::default()
            },
            DeviceKind::Cuda { .. } => Self::default(),
        }
    }

    /// Makes the slots of Simple smaller where copy engines carry what is large, whose staging takes memory
    /// of the GPU.
    pub fn leave_room_for_staging(&mut self, device: DeviceKind) {
        if device != DeviceKind::Host {
            self.slot_bytes[2] /= 2;
        }
    }

    /// Reads `NCCL_ALGO`: `list` or `list;function:list;…`; a list may begin with `^` (all but these).
    /// Any case. A list without a function holds for the five collectives that NCCL tunes (broadcast, reduce,
    /// all-gather, reduce-scatter, all-reduce). NCCL's other algorithms (NVLS, NVLSTree) are known words that
    /// select nothing here; `CollnetDirect` and `CollnetChain` are `CollNet`; `Ring` and `Tree` are
    /// `RailRing` and `RailTree` too. `MSCCL` is all programs that the user brought.
    ///
    /// # Errors
    /// `InvalidUsage` that names the unknown word.
    pub fn parse_algo(text: &str) -> Result<[Option<u64>; 8]> {
        Self::parse_algo_with(text, &[])
    }

    /// The same, where `programs` are the names of programs that the user brought, in the order of
    /// [`Handle::place`].
    ///
    /// # Errors
    /// As [`PlanConfig::parse_algo`].
    pub fn parse_algo_with(text: &str, programs: &[String]) -> Result<[Option<u64>; 8]> {
        let known = Algorithm::ALL.iter().map(|a| (a.name(), word_bits(*a)));
        let foreign = ["NVLS", "NVLSTree"].map(|name| (name, 0));
        let collnet = ["CollnetDirect", "CollnetChain"].map(|name| (name, algorithm_bit(Algorithm::CollNet)));
        let brought = (0..).zip(programs).map(|(place, name)| (name.as_str(), program_bit(place)));
        let words = known.chain(foreign).chain(collnet).chain([("MSCCL", ALL_PROGRAMS)]).chain(brought);
        parse_lists("NCCL_ALGO", text, &words.collect::<Vec<_>>(), &TUNED)
    }

    /// Reads `NCCL_PROTO`, with the grammar of [`PlanConfig::parse_algo`]; a list without a function holds
    /// for all collectives.
    ///
    /// # Errors
    /// `InvalidUsage` that names the unknown word.
    pub fn parse_proto(text: &str) -> Result<[Option<Routes>; 8]> {
        let bit = |route: Route| 1u64 << route.index();
        let mut words: Vec<(&str, u64)> = Route::ALL.map(|route| (route.name(), bit(route))).to_vec();
        words.extend(PROTO_WORDS.map(|(word, route)| (word, bit(route))));
        let of = |executor| Route::ALL.into_iter().filter(move |route| route.executor == executor);
        words.extend(Executor::ALL.map(|executor| (executor.name(), of(executor).map(bit).sum())));
        let masks = parse_lists("NCCL_PROTO", text, &words, &Collective::ALL)?;
        // The host device runs what the interpreter runs on GPUs: its words hold for both.
        let has = |mask: u64, route| mask & bit(route) != 0;
        let routes =
            |mask| Routes::that(|route| has(mask, route) || route == Route::HOST && has(mask, Route::SIMPLE));
        Ok(masks.map(|mask| mask.map(routes)))
    }

    /// The old words in a text for `NCCL_PROTO`, each with the word that took its place.
    pub fn old_protos(text: &str) -> Vec<(&'static str, &'static str)> {
        let words: Vec<&str> = text.split([';', ',', ':', '^']).map(str::trim).collect();
        let is_there = |old: &str| words.iter().any(|word| word.eq_ignore_ascii_case(old));
        let old = Route::ALL.into_iter().filter(|route| route.is_fused() || route.is_copied());
        old.map(|route| (route.old_name(), route.name())).filter(|(old, _)| is_there(old)).collect()
    }

    /// Most CTAs of an operation. Computing keeps the others when copy engines are asked for: what reduces
    /// gets few then.
    pub fn most_ctas(&self, collective: Collective) -> u32 {
        if self.pass_sm > 0 && collective.reduces() {
            self.max_ctas.min(self.reducing_ctas)
        } else {
            self.max_ctas
        }
    }

    /// Lanes per peer for messages, half of them for each direction. Few beside copy engines, which move most
    /// messages.
    pub fn message_lanes(&self) -> u32 {
        self.lanes.min(if self.pass_sm > 0 { 4 } else { 24 }).next_multiple_of(2)
    }

    /// A number that differs when settings differ; compared between ranks at init.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        let routes = self.routes.map(|some| some.map(|some| some.number()));
        for mask in self.algorithms.iter().chain(&routes) {
            digest.add(mask.unwrap_or(u64::MAX));
        }
        self.imports.iter().for_each(|program| digest.add(program.digest()));
        for number in [self.min_ctas, self.max_ctas, self.depth, self.lanes, u32::from(self.reproducible)] {
            digest.add(u64::from(number));
        }
        self.slot_bytes.iter().for_each(|&bytes| digest.add(u64::from(bytes)));
        digest.add(u64::from(self.pass_sm));
        digest.add(u64::from(self.copy_engines));
        digest.add(self.staging_bytes);
        digest.add(u64::from(self.fuse));
        digest.add(u64::from(self.reducing_ctas));
        digest.add(self.message_bytes);
        digest.add(u64::from(self.slot_lead));
        digest.add(u64::from(self.late_parts));
        digest.add(u64::from(self.relays));
        digest.add(u64::from(self.blocks_take_turns));
        digest.value()
    }
}

/// The collectives for which NCCL chooses an algorithm.
const TUNED: [Collective; 5] = [
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
];

/// Other words of `NCCL_PROTO` for a route: NCCL's protocols, which the interpreter runs, and those of
/// earlier versions.
const PROTO_WORDS: [(&str, Route); 9] = [
    (Route::LL.old_name(), Route::LL),
    (Route::LL128.old_name(), Route::LL128),
    (Route::SIMPLE.old_name(), Route::SIMPLE),
    (Route::FUSED_LL.old_name(), Route::FUSED_LL),
    (Route::FUSED_LL128.old_name(), Route::FUSED_LL128),
    (Route::FUSED_SIMPLE.old_name(), Route::FUSED_SIMPLE),
    (Route::ZERO_COPY.old_name(), Route::ZERO_COPY),
    ("fused/zero_copy", Route::ZERO_COPY),
    (Route::COPY_ENGINE.old_name(), Route::COPY_ENGINE),
];

fn parse_lists(
    variable: &str,
    text: &str,
    words: &[(&str, u64)],
    default: &[Collective],
) -> Result<[Option<u64>; 8]> {
    let mut masks = [None; 8];
    for (number, entry) in text.split(';').enumerate() {
        let entry = entry.trim();
        if entry.is_empty() {
            continue;
        }
        let (targets, list) = match entry.split_once(':') {
            Some((function, list)) => (vec![function_named(variable, function)?], list),
            None if number == 0 => (default.to_vec(), entry),
            None => {
                return Err(PlanError::usage(format!(
                    "{variable}: only the first list may lack a function, \"{entry}\" does: write \
                     function:list"
                )));
            }
        };
        let mask = parse_list(variable, list, words)?;
        for (slot, collective) in masks.iter_mut().zip(Collective::ALL) {
            if targets.contains(&collective) {
                *slot = Some(mask);
            }
        }
    }
    Ok(masks)
}

fn function_named(variable: &str, name: &str) -> Result<Collective> {
    let plain = |text: &str| text.trim().replace('_', "").to_ascii_lowercase();
    Collective::ALL.into_iter().find(|c| plain(c.name()) == plain(name)).ok_or_else(|| {
        PlanError::usage(format!(
            "{variable}: unknown function \"{}\": write Broadcast, Reduce, AllGather, ReduceScatter, \
             AllReduce, \
             AllToAll, Gather or Scatter",
            name.trim()
        ))
    })
}

fn parse_list(variable: &str, list: &str, words: &[(&str, u64)]) -> Result<u64> {
    let (exclude, list) = match list.trim().strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, list),
    };
    let mut mask = 0;
    for word in list.split(',') {
        let found = words.iter().find(|(name, _)| name.eq_ignore_ascii_case(word.trim()));
        let Some((_, bit)) = found else {
            let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
            return Err(PlanError::usage(format!(
                "{variable}: unknown word \"{}\": write some of {}",
                word.trim(),
                names.join(", ")
            )));
        };
        mask |= bit;
    }
    let all = words.iter().fold(0, |all, (_, bit)| all | bit);
    Ok(if exclude { all & !mask } else { mask })
}

/// Bit of an algorithm in [`PlanConfig::algorithms`].
pub fn algorithm_bit(algorithm: Algorithm) -> u64 {
    match algorithm {
        Algorithm::Imported(program) => program_bit(program.place()),
        _ => 1 << Algorithm::ALL.iter().position(|&a| a == algorithm).unwrap_or(0),
    }
}

/// Bits of what the name of an algorithm means in `NCCL_ALGO` and the like. NCCL's rings and trees use all
/// NICs of a host, as those of rails do.
pub(crate) fn word_bits(algorithm: Algorithm) -> u64 {
    let of_rails = match algorithm {
        Algorithm::Ring => algorithm_bit(Algorithm::RailRing),
        Algorithm::Tree => algorithm_bit(Algorithm::RailTree),
        _ => 0,
    };
    algorithm_bit(algorithm) | of_rails
}

/// Bits of all programs that users bring.
pub const ALL_PROGRAMS: u64 = !0 << FIRST_PROGRAM;

/// Bits below are those of built-in algorithms.
const FIRST_PROGRAM: u32 = 24;

/// Bit of the program at this place of the process's list; those beyond the set share the last one.
pub fn program_bit(place: u32) -> u64 {
    1 << place.saturating_add(FIRST_PROGRAM).min(u64::BITS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask<T: Copy>(masks: &[Option<T>; 8], collective: Collective) -> Option<T> {
        masks[Collective::ALL.iter().position(|&c| c == collective).unwrap()]
    }

    #[test]
    fn ncclalgo_grammar() {
        let programs = ["other".to_string(), "My".to_string()];
        let parse = |text| PlanConfig::parse_algo_with(text, &programs);
        let all = Algorithm::ALL.iter().fold(ALL_PROGRAMS, |all, a| all | algorithm_bit(*a));
        let (ring, tree) = (word_bits(Algorithm::Ring), word_bits(Algorithm::Tree));
        let masks = parse("ring;allreduce:tree,RING;broadcast:^tree").unwrap();
        assert_eq!(mask(&masks, Collective::AllGather), Some(ring));
        assert_eq!(mask(&masks, Collective::AllReduce), Some(ring | tree));
        assert_eq!(mask(&masks, Collective::Broadcast), Some(all & !tree));
        assert_eq!(mask(&masks, Collective::AllToAll), None);
        assert_eq!(mask(&parse("NVLS").unwrap(), Collective::Reduce), Some(0));
        let no_pat = mask(&parse("^nvls,pat").unwrap(), Collective::Reduce);
        assert_eq!(no_pat, Some(all & !algorithm_bit(Algorithm::Pat)));
        assert_eq!(mask(&parse("my,RING").unwrap(), Collective::Reduce), Some(ring | program_bit(1)));
        assert_eq!(mask(&parse("msccl").unwrap(), Collective::Reduce), Some(ALL_PROGRAMS));
        assert_eq!(mask(&parse("^MSCCL").unwrap(), Collective::Reduce), Some(all & !ALL_PROGRAMS));
        assert_eq!(parse("").unwrap(), [None; 8]);
        for wrong in ["rings", "ring;tree", "allreduces:ring", "ring,", "^"] {
            let error = parse(wrong).unwrap_err();
            assert!(error.text.contains("NCCL_ALGO"), "{error}");
        }
    }

    #[test]
    fn ncclproto_grammar() {
        let masks = PlanConfig::parse_proto("^LL;allreduce:ll128,simple;alltoall:LL").unwrap();
        assert_eq!(mask(&masks, Collective::Scatter), Some(Routes::that(|r| r != Route::LL)));
        let both = Routes::that(|r| [Route::LL128, Route::SIMPLE, Route::HOST].contains(&r));
        assert_eq!(mask(&masks, Collective::AllReduce), Some(both));
        assert_eq!(mask(&masks, Collective::AllToAll), Some(Routes::that(|r| r == Route::LL)));
        let parse = |text| mask(&PlanConfig::parse_proto(text).unwrap(), Collective::AllReduce);
        assert_eq!(parse("SymLL,symdirect,dma"), parse("fused/LL,fused/zero_copy,copy_engine"));
        assert_eq!(parse("fused"), Some(Routes::that(Route::is_fused)));
        assert_eq!(parse("host"), Some(Routes::that(|r| r == Route::HOST)));
        for route in Route::ALL {
            assert!(parse(route.name()).is_some_and(|routes| routes.contains(route)), "{route:?}");
        }
        let old = [("SymLL", "fused/LL"), ("DMA", "copy_engine/Simple")];
        assert_eq!(PlanConfig::old_protos("^LL;allreduce:dma, symll,Simple"), old);
        assert!(PlanConfig::parse_proto("LL64").unwrap_err().text.contains("LL64"));
    }

    #[test]
    fn digests_tell_settings_apart() {
        let base = PlanConfig::default();
        let others = [
            PlanConfig { depth: 8, ..base.clone() },
            PlanConfig { lanes: 8, ..base.clone() },
            PlanConfig { max_ctas: 8, ..base.clone() },
            PlanConfig { slot_bytes: [1, 2, 3], ..base.clone() },
            PlanConfig { pass_sm: 1, ..base.clone() },
            PlanConfig { copy_engines: true, ..base.clone() },
            PlanConfig { staging_bytes: 1, ..base.clone() },
            PlanConfig { fuse: false, ..base.clone() },
            PlanConfig { reducing_ctas: 1, ..base.clone() },
            PlanConfig { slot_lead: 128, ..base.clone() },
            PlanConfig { late_parts: true, ..base.clone() },
            PlanConfig { reproducible: 1, ..base.clone() },
            PlanConfig { algorithms: PlanConfig::parse_algo("ring").unwrap(), ..base.clone() },
            PlanConfig { routes: PlanConfig::parse_proto("ll").unwrap(), ..base.clone() },
        ];
        assert_eq!(base.digest(), PlanConfig::default().digest());
        assert!(others.iter().all(|other| other.digest() != base.digest()));
    }
}

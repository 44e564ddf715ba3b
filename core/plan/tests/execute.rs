//! Every generator gives the right result through `lower` and `bind`, for counts that do and do not
//! divide, on a plain machine that reads the device image as documented.

mod decisions;
mod files;
mod machine;

use decisions::decided;
use hawser_msccl::{Window, to_xml};
use hawser_plan::Scalar;
use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::executor::interpreter::{Lowered, bind, lower};
use hawser_plan::executor::launch::{LaunchPlan, device_op};
use hawser_plan::imported::{self, Handle};
use hawser_plan::{Algorithm, Call, Collective, DataType, PlanConfig, ReduceOp, Route};
use hawser_program::text::to_text;
use machine::{Launch, Machine};

/// Bytes of every element in these tests.
const ELEM: u64 = 8;
/// Guard bytes around buffers, which nothing may touch.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xee;

/// Small slots, so that few elements make many tiles.
fn config(key: &ProgramKey, lanes: u32) -> PlanConfig {
    let usual = PlanConfig { slot_bytes: [32, 240, 128], lanes, ..PlanConfig::default() };
    match key.algorithm {
        Algorithm::Imported(program) => {
            let depth = usual.depth.max(imported::kept(program).min_depth);
            PlanConfig { depth, lanes: lanes.max(imported::kept(program).lanes()), ..usual }
        }
        // Blocks that are moved by runs fit into a slot.
        _ if algo::run(key) > 1 => PlanConfig { slot_bytes: [8 << 10; 3], ..usual },
        _ => usual,
    }
}

struct Case {
    key: ProgramKey,
    count: u64,
    dtype: DataType,
    op: ReduceOp,
    route: Route,
    instances: u32,
    in_place: bool,
    lanes: u32,
}

impl Case {
    /// Element `index` of the input of `rank`; a multiple of 840 so that averages of up to 9 ranks are exact.
    fn input(&self, rank: u32, index: u64) -> i64 {
        840 * (i64::from(rank) * 131 + (index as i64 % 997) * 7 + 1)
    }

    fn blocks(&self) -> (u32, u32) {
        let collective = self.key.collective;
        (collective.input_blocks(self.key.ranks), collective.output_blocks(self.key.ranks))
    }

    /// Addresses of input and output and the bytes of a rank's memory.
    fn layout(&self, rank: u32) -> (u64, u64, usize) {
        let (inputs, outputs) = self.blocks();
        let block = self.count * ELEM;
        let bytes = |blocks: u32| block as usize * blocks as usize;
        let start = GUARD as u64;
        let own =
            |root_only: bool| if root_only && rank != self.key.root { 0 } else { u64::from(rank) * block };
        if !self.in_place || self.key.collective == Collective::AllToAll {
            let output = GUARD + bytes(inputs) + GUARD;
            return (start, output as u64, output + bytes(outputs) + GUARD);
        }
        let (input, output) = match self.key.collective {
            Collective::AllGather => (start + own(false), start),
            Collective::Gather => (start + own(true), start),
            Collective::ReduceScatter => (start, start + own(false)),
            Collective::Scatter => (start, start + own(true)),
            _ => (start, start),
        };
        (input, output, GUARD + bytes(inputs.max(outputs)) + GUARD)
    }

    fn encode(&self, value: i64) -> [u8; 8] {
        match self.dtype {
            DataType::Float64 => (value as f64).to_le_bytes(),
            _ => value.to_le_bytes(),
        }
    }

    fn memory(&self, rank: u32) -> Vec<u8> {
        let (input, output, bytes) = self.layout(rank);
        let mut memory = vec![GUARD_BYTE; bytes];
        let (inputs, outputs) = self.blocks();
        for byte in &mut memory[output as usize..][..(u64::from(outputs) * self.count * ELEM) as usize] {
            *byte = 0xcd;
        }
        if self.key.collective.has_input(rank, self.key.root) {
            for index in 0..u64::from(inputs) * self.count {
                let at = (input + index * ELEM) as usize;
                memory[at..at + 8].copy_from_slice(&self.encode(self.input(rank, index)));
            }
        }
        memory
    }

    /// Element `index` of the output of `rank`, from the definition of the collective.
    fn expected(&self, rank: u32, index: u64) -> i64 {
        let block = (index / self.count) as u32;
        let inner = index % self.count;
        let own = u64::from(rank) * self.count + inner;
        match self.key.collective {
            Collective::AllReduce | Collective::Reduce => self.reduced(index),
            Collective::ReduceScatter => self.reduced(own),
            Collective::Broadcast => self.input(self.key.root, index),
            Collective::AllGather | Collective::Gather => self.input(block, inner),
            Collective::AllToAll => self.input(block, own),
            Collective::Scatter => self.input(self.key.root, own),
            Collective::SendRecv => unreachable!("has no program"),
        }
    }

    fn reduced(&self, index: u64) -> i64 {
        let values = (0..self.key.ranks).map(|rank| self.input(rank, index));
        match self.op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Max => values.max().unwrap(),
            ReduceOp::Avg => values.sum::<i64>() / i64::from(self.key.ranks),
            ReduceOp::PreMulSum => values.sum::<i64>() * 3,
            other => panic!("{other:?} is not needed by these tests"),
        }
    }

    fn run(&self) {
        let ranks = 0..self.key.ranks;
        if algo::run(&self.key) > 1 && !(self.count * ELEM).is_multiple_of(16) {
            let error = self.bind(0).unwrap_err();
            assert!(error.text.contains("no multiple of 16"), "{error}");
            return;
        }
        let mut launches: Vec<Vec<Launch>> = ranks.clone().map(|rank| self.launch(rank)).collect();
        let mut memory: Vec<Vec<u8>> = ranks.clone().map(|rank| self.memory(rank)).collect();
        for (memory, launch) in memory.iter_mut().zip(&mut launches) {
            for launch in launch {
                launch.plan.set_base(2, memory.len() as u64);
                memory.resize(memory.len() + launch.plan.scratch_bytes as usize, 0xcd);
            }
        }
        let config = config(&self.key, self.lanes);
        let mut machine = Machine::new(memory, config.depth, config.slot_bytes);
        machine.run(&launches);
        for rank in ranks {
            self.check(rank, &machine.memory[rank as usize]);
        }
    }

    fn bind(&self, rank: u32) -> hawser_plan::Result<(LaunchPlan, Lowered)> {
        let (input, output, _) = self.layout(rank);
        let call = Call {
            collective: self.key.collective,
            count: self.count,
            dtype: self.dtype,
            op: self.op,
            scalar: Scalar::Immediate(3f64.to_bits()),
            root: self.key.root,
            input,
            output,
            gap: 0,
        };
        let choice = decided(self.key, self.route, self.instances, 1);
        let program = algo::rank_program(&self.key, rank).unwrap();
        let lowered = lower(&algo::shape(&self.key).unwrap(), &program, device_op(&call)).unwrap();
        let plan = bind(&lowered, &call, &choice, self.key.ranks, &config(&self.key, self.lanes))?;
        Ok((plan, lowered))
    }

    fn launch(&self, rank: u32) -> Vec<Launch> {
        let (plan, lowered) = self.bind(rank).unwrap();
        assert_eq!(plan.args.n_blocks == 0, self.count == 0, "only empty calls launch nothing");
        if plan.args.n_blocks == 0 {
            return Vec::new();
        }
        let mut lanes: Vec<u8> =
            plan.args.blocks[..usize::from(plan.args.n_blocks)].iter().map(|b| b.lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let blocks = usize::from(plan.args.n_blocks);
        let shares = matches!(self.key.algorithm, Algorithm::Imported(_)) || blocks > self.lanes as usize;
        let shares = shares || algo::lanes(&self.key) > 0;
        assert!(shares || lanes.len() == blocks, "every block has a lane of its own");
        vec![Launch { plan, steps: lowered.steps }]
    }

    fn check(&self, rank: u32, memory: &[u8]) {
        let (_, output, bytes) = self.layout(rank);
        let name = format!(
            "{:?} count {} {:?} {:?} {:?} × {} in place {} rank {rank}",
            self.key, self.count, self.dtype, self.op, self.route, self.instances, self.in_place
        );
        let guards = memory[..GUARD].iter().chain(&memory[bytes - GUARD..bytes]);
        assert!(guards.copied().all(|byte| byte == GUARD_BYTE), "{name}: wrote outside of its buffers");
        if !self.key.collective.has_output(rank, self.key.root) {
            return;
        }
        for index in 0..u64::from(self.blocks().1) * self.count {
            let at = (output + index * ELEM) as usize;
            let expected = self.encode(self.expected(rank, index));
            assert_eq!(memory[at..at + 8], expected, "{name}: element {index}");
        }
    }
}

fn kinds(collective: Collective) -> &'static [(DataType, ReduceOp)] {
    match collective.reduces() {
        true => &[
            (DataType::Int64, ReduceOp::Sum),
            (DataType::Int64, ReduceOp::Avg),
            (DataType::Float64, ReduceOp::PreMulSum),
            (DataType::Int64, ReduceOp::Max),
        ],
        false => &[(DataType::Int64, ReduceOp::Sum)],
    }
}

fn run_all(collective: Collective, algorithm: Algorithm) {
    let kinds = kinds(collective);
    for ranks in (1..=9).chain([17]).filter(|&n| n <= algo::max_ranks(collective, algorithm)) {
        let root = if collective.rooted() { ranks - 1 } else { 0 };
        let key = ProgramKey::new(collective, algorithm, ranks, root);
        // Channels that wait for each other have a lane each, always.
        let least = if algo::waits_across(&key) { algo::channels(&key).unwrap() } else { 1 };
        for (number, count) in [0, 1, 2, 3, 5, 17, 128, 331, 1000].into_iter().enumerate() {
            let large = u64::from(ranks) * count > 4000;
            for &(dtype, op) in kinds.iter().take(if large { 1 } else { kinds.len() }) {
                let route = Route::ALL[(number + ranks as usize) % 3];
                for (instances, in_place, lanes) in
                    [(1, true, 24), (1, false, least + number as u32), (3, true, 24)]
                {
                    Case { key, count, dtype, op, route, instances, in_place, lanes }.run();
                }
            }
        }
    }
}

macro_rules! results {
    ($($name:ident: $collective:ident;)*) => {
        $(#[test]
        fn $name() {
            for &algorithm in algo::algorithms(Collective::$collective) {
                run_all(Collective::$collective, algorithm);
            }
        })*
    };
}

results! {
    all_reduce: AllReduce;
    reduce: Reduce;
    broadcast: Broadcast;
    all_gather: AllGather;
    reduce_scatter: ReduceScatter;
    all_to_all: AllToAll;
    gather: Gather;
    scatter: Scatter;
}

/// An all-to-all of so many ranks has more blocks than there are lanes, so some share one.
#[test]
fn all_to_all_of_many_ranks_shares_lanes() {
    let key = ProgramKey::new(Collective::AllToAll, Algorithm::Direct, 1024, 0);
    let (dtype, op, route) = (DataType::Int64, ReduceOp::Sum, Route::SIMPLE);
    Case { key, count: 1, dtype, op, route, instances: 1, in_place: false, lanes: 8 }.run();
}

#[test]
fn averages_of_floating_point_types_are_multiplied_first() {
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::Ring, 4, 0);
    for in_place in [false, true] {
        let (dtype, op, route) = (DataType::Float64, ReduceOp::Avg, Route::SIMPLE);
        Case { key, count: 33, dtype, op, route, instances: 2, in_place, lanes: 24 }.run();
    }
}

fn run_imported(program: Handle) {
    let shape = &imported::kept(program).program.shape;
    let key = ProgramKey::new(shape.collective, Algorithm::Imported(program), shape.ranks, shape.root);
    for (number, count) in [0, 1, 5, 128, 331].into_iter().enumerate() {
        for &(dtype, op) in kinds(shape.collective) {
            let route = Route::ALL[number % 3];
            for (instances, in_place) in [(1, true), (1, false), (2, true)] {
                if in_place && !imported::kept(program).right_in_place {
                    continue;
                }
                // Averages are exact for these numbers of ranks only.
                if op != ReduceOp::Avg || shape.ranks <= 9 {
                    Case { key, count, dtype, op, route, instances, in_place, lanes: 24 }.run();
                }
            }
        }
    }
}

/// MSCCL files of this repository, and those of a folder that a variable names.
#[test]
fn imported_programs() {
    for (name, text) in files::own().into_iter().chain(files::corpus().into_iter().flatten()) {
        if let Ok(program) = imported::read(&text) {
            println!("{name}");
            run_imported(imported::keep(program, 0));
        }
    }
}

/// A program that was exported computes the same as before.
#[test]
fn exported_programs() {
    let window = Window { protocol: hawser_plan::Protocol::Ll, bytes: (0, u64::MAX) };
    for collective in Collective::ALL {
        for &algorithm in algo::algorithms(collective) {
            for ranks in [2, 3, 5, 8] {
                let root = if collective.rooted() { 1 } else { 0 };
                let key = ProgramKey::new(collective, algorithm, ranks, root);
                let program = algo::program(&key).unwrap();
                if algo::run(&key) > 1 {
                    // Neither form is taken: see the tests of MSCCL's and of the limits.
                    assert!(imported::read(&to_text(&program)).unwrap_err().text.contains("runs of chunks"));
                    continue;
                }
                let xml = imported::read(&to_xml(&program, &window).unwrap()).unwrap();
                run_imported(imported::keep(xml, 0));
                run_imported(imported::keep(imported::read(&to_text(&program)).unwrap(), 0));
            }
        }
    }
}

/// Relays of given hosts: blocks of up to a slot's size, those of a whole host in one or several tiles.
#[test]
fn relays_of_given_hosts() {
    let (dtype, op) = (DataType::Int64, ReduceOp::Sum);
    for (hosts, per_host) in [(2, 8), (3, 4), (5, 3), (12, 2), (20, 4)] {
        let key = ProgramKey::new(Collective::AllToAll, Algorithm::RailRelay, hosts * per_host, 0);
        let key = ProgramKey { per_host, ..key };
        for (count, route) in [(2, Route::LL), (130, Route::SIMPLE), (1024, Route::SIMPLE)] {
            let lanes = algo::lanes(&key);
            Case { key, count, dtype, op, route, instances: 3, in_place: false, lanes }.run();
        }
        let long = Case {
            key,
            count: 1026,
            dtype,
            op,
            route: Route::SIMPLE,
            instances: 1,
            in_place: false,
            lanes: 24,
        };
        let error = long.bind(0).unwrap_err();
        assert!(error.text.contains("do not fit into a slot"), "{error}");
    }
}

//! Reductions whose moves copy engines make, on simulated ranks that combine bytes in a way that tells their
//! order.

mod copies;

use copies::{Machine, OUTPUT, address, combined, settings, topology};
use hawser_kernels_abi::Step;
use hawser_plan::Scalar;
use hawser_plan::algo::{rank_program, shape};
use hawser_plan::choose::{self, Advice, Decision, Outcome, choose};
use hawser_plan::executor::copy_engine;
use hawser_plan::executor::interpreter::{bind, lower};
use hawser_plan::executor::launch::{LaunchPlan, device_op};
use hawser_plan::topology::{DeviceKind, Link, Topology};
use hawser_plan::{Call, Collective, DataType, PlanConfig, ReduceOp, Route};
use proptest::prelude::*;

const KINDS: [Collective; 3] = [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce];

/// The decision of a rule with `executor = "dma"`: copy engines for any size.
fn asked_for(call: &Call, topology: &Topology, config: &PlanConfig) -> Option<Decision> {
    let candidates = choose::candidates(call, topology, config).unwrap();
    let possible = |c: &choose::Candidate| {
        c.route == Route::COPY_ENGINE && matches!(c.outcome, Outcome::Predicted { .. })
    };
    let order = candidates.iter().position(possible);
    let us = vec![None; candidates.len()];
    let advice = Advice { source: "a test".into(), order, us, blocks: None };
    let choice = choose::decide(call, topology, config, candidates, Some(&advice)).unwrap();
    order.is_some().then_some(choice)
}

fn byte(seed: u64, rank: u32, i: u64) -> u8 {
    (seed ^ (u64::from(rank) * 31) ^ (i * 7) ^ (i >> 8)) as u8
}

/// One reduction of `count` elements of 4 bytes on all ranks.
#[derive(Debug, Clone, Copy)]
struct Reduction {
    kind: Collective,
    in_place: bool,
    count: u64,
    /// The address at which its buffers begin, from those of others on.
    base: u64,
    ctas: u32,
    seed: u64,
}

impl Reduction {
    fn bytes(&self) -> u64 {
        self.count * 4
    }

    fn root(&self, ranks: u32) -> u32 {
        (self.seed % u64::from(ranks)) as u32
    }

    /// Bytes from the result of a rank to that of the next one, where each has a part.
    fn part(&self) -> u64 {
        if self.kind == Collective::ReduceScatter { self.bytes() } else { 0 }
    }

    fn output(&self, rank: u32) -> u64 {
        match self.in_place {
            true => address(rank, self.base + self.part() * u64::from(rank)),
            false => address(rank, OUTPUT + self.base),
        }
    }

    /// Fills the buffers of a rank, and plans its launch.
    fn launch(&self, machine: &mut Machine, rank: u32) -> (LaunchPlan, Vec<Step>) {
        let (topology, ranks) = (machine.topology.clone(), machine.topology.size());
        let config = PlanConfig { reducing_ctas: self.ctas, ..settings() };
        let call = Call {
            collective: self.kind,
            count: self.count,
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            scalar: Scalar::Immediate(0),
            root: self.root(ranks),
            input: address(rank, self.base),
            output: self.output(rank),
            gap: 0,
        };
        let input = u64::from(self.kind.input_blocks(ranks)) * self.bytes();
        machine.at(address(rank, OUTPUT + self.base), self.bytes() + 64).fill(0xee);
        machine.at(call.input, input + 64).fill(0xee);
        let values = (0..input).map(|i| byte(self.seed, rank, i));
        machine.at(call.input, input).iter_mut().zip(values).for_each(|(at, value)| *at = value);
        let choice = asked_for(&call, &topology, &config).unwrap();
        assert_eq!(choice.route, Route::COPY_ENGINE, "{}", choice.why);
        let program = rank_program(&choice.key, rank).unwrap();
        let lowered = lower(&shape(&choice.key).unwrap(), &program, device_op(&call)).unwrap();
        let config = copy_engine::config_for(&choice.key, call.total_bytes(ranks), &topology, &config);
        (bind(&lowered, &call, &choice, ranks, &config).unwrap(), lowered.steps)
    }

    fn check(&self, machine: &mut Machine) {
        let (ranks, bytes, seed) = (machine.topology.size(), self.bytes(), self.seed);
        let input = u64::from(self.kind.input_blocks(ranks)) * bytes;
        for rank in 0..ranks {
            let gets = self.kind != Collective::Reduce || rank == self.root(ranks);
            let first = self.part() * u64::from(rank);
            let expected = |i: u64| match (gets, self.in_place) {
                (true, _) => (0..ranks).fold(0, |all, of| combined(all, byte(seed, of, first + i))),
                (false, true) => byte(seed, rank, i),
                (false, false) => 0xee,
            };
            let got = machine.at(self.output(rank), bytes).to_vec();
            let wrong = (0..bytes).find(|&i| got[i as usize] != expected(i));
            assert_eq!(wrong, None, "{self:?} rank {rank} of {ranks}");
            // What is nobody's result stays: other parts of the input, and what lies behind the buffers.
            let is_part = self.kind == Collective::ReduceScatter;
            let kept = machine.at(address(rank, self.base), input).to_vec();
            let stays = |i: u64| !self.in_place || is_part && !(first..first + bytes).contains(&i);
            assert_eq!((0..input).find(|&i| stays(i) && kept[i as usize] != byte(seed, rank, i)), None);
            let behind = match self.in_place {
                true => address(rank, self.base + input),
                false => self.output(rank) + bytes,
            };
            assert!(machine.at(behind, 64).iter().all(|byte| *byte == 0xee));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Launches that follow each other, with ranks as far apart as they let each other be.
    #[test]
    fn reductions_end_right_whatever_streams_do(
        ranks in 2u32..10, kinds in prop::collection::vec((0usize..3, any::<bool>(), 1u64..20_000), 1..4),
        ctas in 1u32..6, alias: bool, direct: bool, seed: u64
    ) {
        let mut machine = Machine::new(ranks);
        let each = |(number, (kind, in_place, count)): (usize, (usize, bool, u64))| {
            let (kind, base) = (KINDS[kind], number as u64 * (OUTPUT / 4));
            Reduction { kind, in_place, count, base, ctas, seed: seed ^ number as u64 }
        };
        let all: Vec<Reduction> = kinds.into_iter().enumerate().map(each).collect();
        let launches: Vec<Vec<_>> =
            (0..ranks).map(|rank| all.iter().map(|one| one.launch(&mut machine, rank)).collect()).collect();
        machine.run(&launches, (alias, direct), seed);
        all.iter().for_each(|one| one.check(&mut machine));
    }
}

fn call(collective: Collective, op: ReduceOp, count: u64) -> Call {
    let (dtype, scalar) = (DataType::Float32, Scalar::Immediate(0));
    Call { collective, count, dtype, op, scalar, root: 0, input: 0, output: 1 << 40, gap: 0 }
}

#[test]
fn what_copy_engines_cannot_prepare_is_left_to_kernels_with_a_reason() {
    let config = settings();
    let reason = |op, topology: &Topology| {
        let call = call(Collective::AllReduce, op, 1 << 20);
        let choice = choose(&call, topology, &config).unwrap();
        assert_ne!(choice.route, Route::COPY_ENGINE, "{}", choice.why);
        choice.why.to_string()
    };
    let sm80 = Topology::single_host(4, DeviceKind::Cuda { sm: 80 }, Link::NvLink);
    assert!(reason(ReduceOp::PreMulSum, &topology(4)).contains("factors of their own"));
    assert!(reason(ReduceOp::Sum, &copies::hosts(4, 2)).contains("between hosts kernels move"));
    assert!(reason(ReduceOp::Sum, &topology(10)).contains("at most 9 ranks"));
    assert!(reason(ReduceOp::Sum, &sm80).contains("needs sm_90"));
}

#[test]
fn small_reductions_and_those_nobody_asked_to_be_light_are_held_back() {
    for kind in KINDS {
        let route = |count, config: &PlanConfig| {
            choose(&call(kind, ReduceOp::Avg, count), &topology(4), config).unwrap().route
        };
        assert_ne!(route(1000, &settings()), Route::COPY_ENGINE);
        assert_eq!(route(1 << 20, &settings()), Route::COPY_ENGINE);
        assert_eq!(route(1 << 20, &PlanConfig { pass_sm: 2, ..settings() }), Route::COPY_ENGINE);
        assert_ne!(
            route(1 << 20, &PlanConfig { pass_sm: 0, copy_engines: true, ..settings() }),
            Route::COPY_ENGINE
        );
        assert!(asked_for(&call(kind, ReduceOp::Min, 1), &topology(2), &settings()).is_some());
    }
}

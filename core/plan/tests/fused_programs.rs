//! A fused kernel moves and combines what the program of its name says: who sends which bytes to whom, and in
//! which order values are combined, for every collective, 2 to 8 ranks, every root and odd sizes. (Copy
//! engines need no such test: their commands are made from the program's steps.)

mod decisions;

use std::collections::BTreeSet;

use decisions::decided;
use hawser_kernels_abi::Variant;
use hawser_plan::Scalar;
use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::executor::fused::{FusedPlan, NESTED};
use hawser_plan::executor::launch::PACK_BYTES;
use hawser_plan::{Algorithm, Call, Collective, DataType, PlanConfig, ReduceOp, Route};
use hawser_program::{Buf, Program, Ref, Step};

/// Bytes that go from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Transfer {
    /// True if they are combined or passed on, and no input of the sender's.
    is_second: bool,
    from: u32,
    to: u32,
    /// The place of the bytes in the sender's input, or in the output.
    at: u64,
    bytes: u64,
}

/// A call of integers for one rank; buffers are offsets from 0.
fn call(collective: Collective, count: u64, dtype: DataType, root: u32) -> Call {
    let (op, scalar) = (ReduceOp::Sum, Scalar::Immediate(0));
    Call { collective, count, dtype, op, scalar, root, input: 0, output: 0, gap: 0 }
}

/// Offset and length of a chunk in its buffer.
fn span(program: &Program, chunk: u32, block_bytes: u64) -> (u64, u64) {
    let per_block = u64::from(program.shape.per_block);
    let (block, part) = (u64::from(chunk) / per_block, u64::from(chunk) % per_block);
    let chunk_bytes = block_bytes.div_ceil(per_block).next_multiple_of(PACK_BYTES);
    let start = part * chunk_bytes;
    let end = (start + chunk_bytes).min(block_bytes);
    (block * block_bytes + start, end.saturating_sub(start))
}

/// The transfers of the steps of a program.
fn of_program(program: &Program, block_bytes: u64) -> BTreeSet<Transfer> {
    let mut all = BTreeSet::new();
    for (from, rank) in (0..).zip(&program.ranks) {
        for step in rank.channels.iter().flat_map(|channel| &channel.steps) {
            let is_second = !step.recv.is_empty();
            let Some(Ref { buf, chunk }) = (if is_second { step.dst.or(step.src) } else { step.src }) else {
                continue;
            };
            assert!(is_second || step.send.is_empty() || buf == Buf::Input, "what is sent first is input");
            for repetition in 0..step.times {
                let chunk = step.chunk_at(chunk, repetition, program.shape.chunks(buf));
                let (at, bytes) = span(program, chunk, block_bytes);
                all.extend(step.send.iter().map(|&to| Transfer { is_second, from, to, at, bytes }));
            }
        }
    }
    all.retain(|transfer| transfer.bytes > 0);
    all
}

/// The transfers of the exchanges of all ranks.
fn of_fused(plans: &[FusedPlan]) -> BTreeSet<Transfer> {
    let mut all = BTreeSet::new();
    let ranks = plans.len() as u32;
    for (from, plan) in (0..).zip(plans) {
        let args = plan.args();
        let own = from as usize;
        for k in 1..ranks {
            let to = (from + k) % ranks;
            if args.flow.send1 >> k & 1 == 1 {
                let (at, bytes) = (args.src[k as usize], args.src_len[k as usize]);
                all.insert(Transfer { is_second: false, from, to, at, bytes });
                assert_eq!(
                    plans[to as usize].args().len[to as usize],
                    bytes,
                    "the receiver knows the length"
                );
                assert_eq!(plans[to as usize].args().flow.recv1 >> from & 1, 1, "the receiver waits for it");
            }
            if args.flow.send2 >> k & 1 == 1 {
                let (at, bytes) = (args.dst[own], args.len[own]);
                all.insert(Transfer { is_second: true, from, to, at, bytes });
                assert_eq!(plans[to as usize].args().len[own], bytes, "the receiver knows the length");
                assert_eq!(plans[to as usize].args().flow.recv2 >> from & 1, 1, "the receiver waits for it");
            }
        }
    }
    all.retain(|transfer| transfer.bytes > 0);
    all
}

/// The ranks whose values a step combines, in its order.
fn operands(step: &Step, own: u32) -> Vec<u32> {
    let mut all = step.recv.clone();
    if step.src.is_some() && !step.recv.is_empty() {
        all.insert(step.order as usize, own);
    }
    all
}

fn compare(collective: Collective, algorithm: Algorithm, ranks: u32, root: u32, count: u64, dtype: DataType) {
    let key = ProgramKey::new(collective, algorithm, ranks, root);
    let program = algo::program(&key).unwrap();
    let call = call(collective, count, dtype, root);
    let choice = decided(key, Route::FUSED_LL, 8, 256);
    let config = PlanConfig::default();
    let plan = |rank| FusedPlan::new(&call, &choice, rank, ranks, &config);
    let plans: Vec<FusedPlan> = (0..ranks).map(plan).collect();
    let what = format!("{} of {ranks} ranks, root {root}, {count} {}", program.shape.name, dtype.name());
    let moved = of_fused(&plans);
    assert_eq!(moved.is_empty(), count == 0, "{what}");
    assert_eq!(moved, of_program(&program, call.block_bytes()), "{what}");
    for (rank, steps) in (0..).zip(&program.ranks) {
        for step in steps.channels.iter().flat_map(|channel| &channel.steps) {
            let operands = operands(step, rank);
            assert!(
                operands.is_sorted(),
                "{what}: fused kernels combine in the order of ranks: {operands:?}"
            );
        }
    }
}

/// Kernels are told of the tree where the order of ranks is another one.
#[test]
fn fused_kernels_are_told_of_the_declared_order() {
    for (level, ranks, dtype, wanted) in [
        (0, 8, DataType::Float32, 0),
        (1, 8, DataType::Float32, 0),
        (2, 2, DataType::Float16, 0),
        (2, 3, DataType::Float32, 0),
        (2, 3, DataType::Float16, NESTED),
        (2, 4, DataType::Float32, NESTED),
        (2, 8, DataType::Float16, NESTED),
        (2, 8, DataType::Int32, 0),
    ] {
        let config = PlanConfig { reproducible: level, ..PlanConfig::default() };
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce] {
            let key = ProgramKey::new(collective, Algorithm::AllPairs, ranks, 0);
            let call = call(collective, 1000, dtype, 0);
            let plan = FusedPlan::new(&call, &decided(key, Route::FUSED_LL, 8, 256), 1, ranks, &config);
            let what = format!("level {level}, {ranks} ranks, {}", dtype.name());
            assert_eq!((plan.args().flow.order, plan.kernel.variant), (wanted, Variant::One), "{what}");
            for route in [Route::FUSED_SIMPLE, Route::ZERO_COPY] {
                let plan = FusedPlan::new(&call, &decided(key, route, 8, 256), 1, ranks, &config);
                assert_eq!(plan.kernel.variant == Variant::Nested, wanted == NESTED, "{what}");
            }
        }
    }
}

#[test]
fn fused_kernels_move_what_their_programs_say() {
    let mut compared = 0;
    for collective in Collective::ALL {
        for &algorithm in algo::algorithms(collective) {
            if algo::generator(collective, algorithm).is_none_or(|generator| generator.exchanges == 0) {
                continue;
            }
            for ranks in 2..=8 {
                let roots = if collective.rooted() { ranks } else { 1 };
                for root in 0..roots {
                    for count in [0, 1, 2, 3, 5, 7, 31, 63, 64, 65, 257, 1000, 4099, 100_003] {
                        for dtype in [DataType::Uint8, DataType::Float16, DataType::Float32, DataType::Int64]
                        {
                            compare(collective, algorithm, ranks, root, count, dtype);
                            compared += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

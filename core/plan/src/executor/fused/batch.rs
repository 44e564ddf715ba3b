//! Batches: small collectives of a group that share one launch, each in blocks of its own.
//!
//! Three questions, and who answers them:
//!
//! * **Which calls belong together** ([`Gathering`]) and **in which blocks each one runs** ([`places`]): all
//!   ranks alike, since only what they have agreed on counts: the choices for the calls of the group, in the
//!   order of the calls. Blocks own slots and counters, so ranks that would answer otherwise would wait for
//!   each other.
//! * **In how many launches** ([`cut`]): each rank for itself. Operations of one launch run side by side, so
//!   those that use each other's buffers, or were put on different streams, get launches of their own on this
//!   rank; the blocks stay the same, and other ranks need not know.
//!
//! A block runs the operations that were placed in it in the order of the calls, so its exchanges have one
//! order everywhere.

use std::ops::Range;

pub use hawser_kernels_abi::fused::{
    BatchArgs, BatchOp, CUT, FusedArgs, MOST_BLOCKS, NO_RANK, OPS, SPREAD_DST, SPREAD_SRC,
};
use hawser_kernels_abi::fused::{REDUCE, THREADS};
use hawser_kernels_abi::{DeviceOp, KernelKey, Variant};
use hawser_types::{Call, Collective, DataType, Route};

use super::grid::rounds;
use super::launch::FusedPlan;
use crate::config::PlanConfig;

/// Calls that may share a launch, as they come.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gathering {
    calls: usize,
    /// Kernel of those that combine.
    kernel: Option<KernelKey>,
    /// Sizes of the elements of those that only move, or-ed: powers of two.
    moved: u64,
    /// Bytes of the longest part of all.
    most: u64,
}

impl Gathering {
    /// Takes a call in, if it may share a launch with those before. All ranks answer alike.
    pub fn take(&mut self, plan: &FusedPlan, config: &PlanConfig) -> bool {
        if !config.fuse || self.calls == OPS || !is_small(plan) {
            return false;
        }
        let mut next = Self { calls: self.calls + 1, most: self.most.max(plan.args.most), ..*self };
        match (plan.only_moves(), self.kernel) {
            (true, _) => next.moved |= plan.element,
            (false, Some(kernel)) if kernel != plan.kernel => return false,
            (false, _) => next.kernel = Some(plan.kernel),
        }
        // Kernels read pieces of elements: what they move must be made of whole ones.
        let fits = |kernel: KernelKey| next.moved & (kernel.dtype.size() as u64 - 1) == 0;
        let is_one_round = needed(next.most, THREADS) <= limit(next.kernel.is_some(), config);
        if !next.kernel.is_none_or(fits) || !is_one_round {
            return false;
        }
        *self = next;
        true
    }
}

/// True if a call needs its blocks only once, and its words are the protocol of batches.
fn is_small(plan: &FusedPlan) -> bool {
    plan.kernel.route == Route::FUSED_LL
        && !plan.is_apart
        && plan.args.most > 0
        && rounds(Route::FUSED_LL, plan.args.most, plan.blocks, plan.threads, 0) == 1
}

/// Most blocks of a launch. What reduces beside copy engines keeps few multiprocessors, together with others
/// too.
fn limit(reduces: bool, config: &PlanConfig) -> u32 {
    let most = config.most_ctas(if reduces { Collective::AllReduce } else { Collective::AllGather });
    most.clamp(1, MOST_BLOCKS as u32)
}

/// Blocks that an operation with parts of `most` bytes needs to go through once.
fn needed(most: u64, threads: u32) -> u32 {
    (most.div_ceil(8 * u64::from(threads)) as u32).max(1)
}

/// The blocks of an operation: [first, end).
pub type Place = Range<u32>;

/// The blocks of each operation, and the threads of all. All ranks answer alike.
pub fn places(plans: &[&FusedPlan], config: &PlanConfig) -> (Vec<Place>, u32) {
    let limit = limit(plans.iter().any(|plan| !plan.only_moves()), config);
    let all = |threads| plans.iter().map(|plan| needed(plan.args.most, threads)).sum::<u32>();
    let mut threads = plans.iter().map(|plan| plan.threads).max().unwrap_or(THREADS);
    // Where not everything has blocks of its own, more threads let more run side by side.
    if all(threads) > limit && all(THREADS) < all(threads) {
        threads = THREADS;
    }
    let mut end = 0;
    let place = |plan: &&FusedPlan| {
        let needed = needed(plan.args.most, threads);
        let first = if end + needed > limit { 0 } else { end };
        end = first + needed;
        first..end
    };
    (plans.iter().map(place).collect(), threads)
}

/// The facts that this rank knows of an operation of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The stream that it was put on.
    pub stream: u64,
    /// The memory that it reads, as (address, bytes): input and scalar.
    pub reads: [(u64, u64); 2],
    /// The memory that it writes.
    pub writes: (u64, u64),
    /// True if only the kernel of bytes can do it.
    pub is_odd: bool,
}

impl Member {
    /// Of a call.
    pub fn new(plan: &FusedPlan, call: &Call, stream: u64) -> Self {
        let [input, output] = plan.used;
        let scalar = if plan.args.flow.scalar_is_address == 1 { (plan.args.scalar, 8) } else { (0, 0) };
        let is_whole = (call.input | call.output).is_multiple_of(plan.element);
        let (reads, writes) = ([(call.input, input), scalar], (call.output, output));
        Self { stream, reads, writes, is_odd: plan.only_moves() && !is_whole }
    }

    /// True if it must run after `earlier`, which was called before.
    fn follows(&self, earlier: &Self) -> bool {
        let meet = |(a, a_bytes): (u64, u64), (b, b_bytes): (u64, u64)| {
            a_bytes > 0 && b_bytes > 0 && a < b.saturating_add(b_bytes) && b < a.saturating_add(a_bytes)
        };
        let one_reads = |reads: &[(u64, u64); 2], writes| reads.iter().any(|read| meet(*read, writes));
        meet(self.writes, earlier.writes)
            || one_reads(&self.reads, earlier.writes)
            || one_reads(&earlier.reads, self.writes)
    }
}

/// The launches of a batch on this rank, each a stretch of its operations.
pub fn cut(members: &[Member]) -> Vec<Range<usize>> {
    let mut launches: Vec<Range<usize>> = Vec::new();
    for (index, member) in members.iter().enumerate() {
        let joins = launches.last().is_some_and(|launch| {
            members[launch.clone()].iter().all(|earlier| {
                earlier.stream == member.stream && earlier.is_odd == member.is_odd && !member.follows(earlier)
            })
        });
        match launches.last_mut() {
            Some(launch) if joins => launch.end = index + 1,
            _ => launches.push(index..index + 1),
        }
    }
    launches
}

/// A launch of a batch, ready but for the word that counts its end.
#[derive(Debug, Clone)]
pub struct FusedBatch {
    /// The arguments that the kernel reads.
    pub args: BatchArgs,
    /// The kernel that runs the batch.
    pub kernel: KernelKey,
    /// Grid size.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
}

impl FusedBatch {
    /// A launch of these operations, of which there is at least one and at most [`OPS`]: plan, arguments for
    /// the call's buffers ([`FusedPlan::bind`]), call and place.
    pub fn new(ops: &[(&FusedPlan, FusedArgs, &Call, Place)], threads: u32) -> Self {
        let first = ops.iter().map(|(.., place)| place.start).min().unwrap_or(0);
        let end = ops.iter().map(|(.., place)| place.end).max().unwrap_or(first);
        let mut args = BatchArgs { first: first as u8, ..BatchArgs::default() };
        let mut kernel = None;
        for (index, (plan, bound, call, place)) in ops.iter().enumerate() {
            (args.to, args.mine, args.comm, args.epochs) = (bound.to, bound.mine, bound.comm, bound.epochs);
            (args.rank, args.ranks) = (bound.rank, bound.ranks);
            args.ops[index] = plan.in_batch(bound, call, place.start);
            place.clone().for_each(|block| args.todo[(block - first) as usize] |= 1 << index);
            if kernel.is_none() || !plan.only_moves() {
                kernel = Some(KernelKey { variant: Variant::Batch, ..plan.kernel });
            }
        }
        args.n_ops = ops.len() as u8;
        let moves = KernelKey {
            variant: Variant::Batch,
            ..KernelKey::new(DeviceOp::Copy, DataType::Uint8, Route::FUSED_LL)
        };
        Self { args, kernel: kernel.unwrap_or(moves), blocks: end - first, threads }
    }
}

impl FusedPlan {
    /// True if no value is combined, so that any kernel can do it.
    fn only_moves(&self) -> bool {
        self.kernel.op == DeviceOp::Copy && self.args.flow.form & REDUCE == 0
    }

    /// The same in few numbers. `bound`: the arguments for the buffers of `call`.
    fn in_batch(&self, bound: &FusedArgs, call: &Call, first: u32) -> BatchOp {
        BatchOp {
            input: call.input,
            output: call.output,
            scalar: bound.scalar,
            op_number: bound.op_number,
            part: self.shape.part as u32,
            total: self.shape.total as u32,
            flow: bound.flow,
            has_dst: self.has_dst,
            shape: self.shape.flags,
            skipped: self.shape.skipped,
            first: first as u8,
            pad: [0; 4],
        }
    }
}

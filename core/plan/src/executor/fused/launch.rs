//! One launch of a fused kernel.

use hawser_kernels_abi::fused::{ALIGNED, DIVIDE, EIGHTS, FusedArgs, NESTED, REDUCE, SCALE, TRY};
use hawser_kernels_abi::{DeviceOp, KernelKey, Variant};
use hawser_types::{Call, Collective, DataType, Route};

use super::area::{Area, index, slot};
use super::grid::{grid, longest_part};
use super::partition::{Parts, Shape};
use super::support::has_nested_kernel;
use super::zero_copy;
use crate::algo;
use crate::config::PlanConfig;
use crate::decision::Decision;
use crate::executor::launch::{PACK_BYTES, device_op, scalar};
use crate::executor::order::declared;
use crate::layout::Part;

/// One launch, ready but for addresses: `src` and `dst` are offsets in the call's buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedPlan {
    /// The kernel's arguments.
    pub args: FusedArgs,
    /// By rank: whether `dst` is a place in the output.
    pub(super) has_dst: u8,
    /// Offsets and lengths in few numbers.
    pub(super) shape: Shape,
    /// Bytes of an element.
    pub(super) element: u64,
    /// True if blocks of a buffer lie apart ([`Call::gap`]), which `shape` does not say.
    pub(super) is_apart: bool,
    /// True if all offsets are multiples of a pack.
    aligned: bool,
    /// Bytes of input and output that this rank has.
    pub(super) used: [u64; 2],
    /// Whether, in place, ranks would overwrite what has not been sent yet.
    needs_two_buffers: bool,
    /// The kernel that runs the call.
    pub kernel: KernelKey,
    /// Grid size.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
}

impl FusedPlan {
    /// Plans `call` for `rank`. The choice must be one that the fused executor supports.
    pub fn new(call: &Call, choice: &Decision, rank: u32, ranks: u32, config: &PlanConfig) -> Self {
        let op = device_op(call);
        let bytes = call.block_bytes();
        let mut parts = Parts::new(rank, ranks);
        parts.fill(call, choice.key.algorithm);
        let Parts { mut args, flow, has_dst, shape, .. } = parts;
        args.flow = flow;
        // Of few ranks the tree is their order.
        let declared = declared(call, ranks, config.reproducible);
        if declared.is_some_and(|declared| !algo::keeps(&choice.key, &declared)) {
            args.flow.order = NESTED;
        }
        args.most = longest_part(call.collective, choice.key.algorithm, bytes, ranks);
        let mut max_ctas = config.most_ctas(call.collective);
        if choice.instances > 0 {
            max_ctas = max_ctas.min(choice.instances);
        }
        let (blocks, threads, tile) = grid(choice.route, ranks, args.most, max_ctas);
        args.tile = tile;
        args.divisor = ranks;
        (args.scalar, args.flow.scalar_is_address) = scalar(call, ranks);
        args.flow.form |= match op {
            DeviceOp::PreMulSum => SCALE,
            DeviceOp::SumDiv => DIVIDE,
            _ => 0,
        };
        if args.len.iter().chain(&args.src_len).all(|len| len.is_multiple_of(8)) {
            args.flow.form |= EIGHTS;
        }
        if choice.route == Route::ZERO_COPY {
            args.direct = zero_copy::wish(&choice.key);
            // Where values are combined all data are read, also those of ranks that get none.
            args.flow.form |= if call.collective.reduces() { REDUCE } else { 0 };
        }
        let offsets = args.src.iter().chain(&args.dst);
        let aligned = offsets.fold(0, |all, offset| all | offset) % PACK_BYTES == 0;
        let kernel = kernel(call, choice.route, args.flow.order);
        let blocks_of = |some: bool, blocks: u32| if some { call.extent(blocks) } else { 0 };
        let (collective, root) = (call.collective, call.root);
        let used = [
            blocks_of(collective.has_input(rank, root), collective.input_blocks(ranks)),
            blocks_of(collective.has_output(rank, root), collective.output_blocks(ranks)),
        ];
        let needs_two_buffers = collective == Collective::AllToAll;
        let (element, is_apart) = (call.dtype.size() as u64, call.gap > 0);
        Self {
            args,
            has_dst,
            shape,
            element,
            is_apart,
            aligned,
            used,
            needs_two_buffers,
            kernel,
            blocks,
            threads,
        }
    }

    /// The part of the ranks' heaps that the plan's kernel uses.
    pub fn part(&self) -> Part {
        [Part::Words, Part::Lines, Part::Tiles][index(self.kernel.route)]
    }

    /// Takes the addresses at which that part begins, by rank, that of this rank's counters, and that of its
    /// image of the communicator.
    pub fn connect(&mut self, parts: &[u64], epochs: u64, comm: u64) {
        let args = &mut self.args;
        let (area, index, ranks) = (Area::new(parts.len() as u32), index(self.kernel.route), parts.len());
        let at = |rank: usize| parts.get(rank).copied().unwrap_or(0);
        let own = usize::from(args.rank);
        for (k, to) in args.to.iter_mut().enumerate().take(ranks) {
            *to = at((own + k) % ranks) + own as u64 * slot(index, ranks as u64);
        }
        args.mine = at(own);
        args.flags_at = (area.flags - area.slots[2]) as u32;
        args.epochs = epochs + area.epochs[index];
        args.comm = comm;
    }

    /// The arguments of a launch for these buffers.
    pub fn bind(&self, input: u64, output: u64, scalar: u64, op_number: u64) -> FusedArgs {
        let mut args = self.args;
        self.complete(&mut args, (input, output), scalar, op_number);
        args
    }

    /// Makes a copy of the plan's arguments those of a launch for these buffers. They are long: this copies
    /// nothing.
    pub fn complete(&self, args: &mut FusedArgs, (input, output): (u64, u64), scalar: u64, op_number: u64) {
        args.src.iter_mut().for_each(|src| *src += input);
        for (p, dst) in args.dst.iter_mut().enumerate() {
            *dst = if self.has_dst >> p & 1 == 1 { *dst + output } else { 0 };
        }
        if self.aligned && (input | output).is_multiple_of(PACK_BYTES) {
            args.flow.form |= ALIGNED;
        }
        // In place there is nothing to keep.
        if args.flow.keep != 0 {
            let p = args.flow.keep.trailing_zeros() as usize;
            let k = (p + usize::from(args.ranks) - usize::from(args.rank)) % usize::from(args.ranks);
            if args.src[k] == args.dst[p] {
                args.flow.keep = 0;
            }
        }
        (args.scalar, args.op_number) = (scalar, op_number);
    }

    /// True if a launch goes without staging where all ranks reach the buffers of all. All ranks answer
    /// alike, wherever their buffers are.
    pub fn may_reach(&self) -> bool {
        self.args.direct & TRY != 0
    }

    /// Input and output as (address, bytes), if a launch for them has to know whether other ranks reach them
    /// ([`hawser_kernels_abi::fused::READY`]).
    pub fn to_reach(&self, input: u64, output: u64) -> Option<[(u64, u64); 2]> {
        let possible = self.may_reach() && !(self.needs_two_buffers && input == output);
        possible.then_some([(input, self.used[0]), (output, self.used[1])])
    }

    /// The factor as planned, for calls that have no other.
    pub fn scalar(&self) -> u64 {
        self.args.scalar
    }

    /// The plan's arguments; `src` and `dst` are offsets.
    pub fn args(&self) -> &FusedArgs {
        &self.args
    }
}

/// The kernel of a call for an order of additions.
fn kernel(call: &Call, route: Route, order: u8) -> KernelKey {
    let op = device_op(call);
    let dtype = if op == DeviceOp::Copy { DataType::Uint8 } else { call.dtype };
    let key = KernelKey::new(op, dtype, route);
    let is_nested = order == NESTED && has_nested_kernel(&key);
    if is_nested { KernelKey { variant: Variant::Nested, ..key } } else { key }
}

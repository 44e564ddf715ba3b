//! From a program to the image that a device reads: [`lower`] once per program and operation,
//! [`bind`] once per call.

use crate::call::{Call, ReduceOp, Scalar};
use crate::choose::Choice;
use crate::device_plan::{
    ACC_DST, Args, Block, DeviceOp, HAS_DST, HAS_SRC, INLINE_STEPS, KernelKey, MAX_BLOCKS, NO_DEP, POST, PRE, SIGNAL,
    Step, Work,
};
use crate::error::{PlanError, Result};
use crate::ir::{self, Buf, MAX_FAN, Op, RankProgram, Shape};
use crate::knobs::{Knobs, Protocol};
use crate::DataType;

/// Most steps of one channel ([`Block::n_steps`] is a byte).
pub const MAX_CHANNEL_STEPS: u32 = 255;
/// Bytes of a pack: chunks, instances and tiles are multiples of it.
pub const PACK_BYTES: u64 = 16;
/// Chunks are cut over no more instances than leave each this many bytes.
const MIN_INSTANCE_BYTES: u64 = 512;

/// A rank's program as device steps; independent of size, buffers and protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lowered {
    /// The steps of all channels, channel after channel.
    pub steps: Vec<Step>,
    /// First step and number of steps of every channel; a channel may be empty.
    pub channels: Vec<(u16, u8)>,
    /// Chunks of scratch.
    pub scratch_chunks: u32,
    /// Whether some channel waits for another one.
    pub signals: bool,
    /// Chunks of input, output and scratch.
    pub chunks: [u32; 3],
    /// Chunks per block.
    pub per_block: u32,
}

/// One launch, ready but for what only the runtime knows: `args.comm`, `args.op_number`,
/// `args.steps` if the steps did not fit (`n_inline == 0`), and scratch in `works[0].base[2]`.
/// With `args.n_blocks == 0` there is nothing to launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchPlan {
    /// Kernel arguments.
    pub args: Box<Args>,
    /// Which kernel.
    pub kernel: KernelKey,
    /// Threads per block.
    pub threads: u32,
    /// Scratch memory needed, in bytes.
    pub scratch_bytes: u64,
}

/// What the device does to values for `call`: averages of floating-point types are sums of inputs
/// multiplied by 1/ranks, averages of integers are divided at the end.
pub fn device_op(call: &Call) -> DeviceOp {
    if !call.collective.reduces() {
        return DeviceOp::Copy;
    }
    match call.op {
        ReduceOp::Sum => DeviceOp::Sum,
        ReduceOp::Prod => DeviceOp::Prod,
        ReduceOp::Max => DeviceOp::Max,
        ReduceOp::Min => DeviceOp::Min,
        ReduceOp::Avg if call.dtype.is_float() => DeviceOp::PreMulSum,
        ReduceOp::Avg => DeviceOp::SumDiv,
        ReduceOp::PreMulSum => DeviceOp::PreMulSum,
    }
}

/// Lowers the program of one rank. Reads of the input get `PRE` for a pre-multiplied sum, finishing
/// steps get `POST` for a divided one.
///
/// # Errors
/// `BadProgram` for what the device image cannot say: more than [`MAX_FAN`] peers, more than
/// [`MAX_CHANNEL_STEPS`] steps per channel, two dependencies of one step, a native step.
pub fn lower(shape: &Shape, program: &RankProgram, reduces: DeviceOp) -> Result<Lowered> {
    let mut steps = Vec::new();
    let mut channels = Vec::new();
    for (index, channel) in program.channels.iter().enumerate() {
        let count = u8::try_from(channel.steps.len()).map_err(|_| {
            PlanError::program(format!(
                "{}: channel {index} has {} steps, a block takes {MAX_CHANNEL_STEPS}: spread them over more channels",
                shape.name,
                channel.steps.len()
            ))
        })?;
        let first = u16::try_from(steps.len())
            .map_err(|_| PlanError::program(format!("{}: more than 65,535 steps on one rank", shape.name)))?;
        channels.push((first, count));
        for (number, step) in channel.steps.iter().enumerate() {
            let lowered = lower_step(step, reduces).map_err(|what| {
                PlanError::program(format!("{}: channel {index} step {number}: {what}", shape.name))
            })?;
            steps.push(lowered);
        }
    }
    let mut lowered = Lowered {
        steps,
        channels,
        scratch_chunks: shape.scratch,
        signals: false,
        chunks: [Buf::Input, Buf::Output, Buf::Scratch].map(|buf| shape.chunks(buf)),
        per_block: shape.per_block,
    };
    signal(shape, &mut lowered)?;
    Ok(lowered)
}

/// Lays the lowered program over the data of one call.
///
/// The number of instances is `choice.instances`, lowered as far as lanes, blocks and the size ask
/// for: a function of (program, count, type, settings), so it is equal on all ranks. A call of
/// count 0 gives a plan with `n_blocks == 0`: nothing to launch.
///
/// # Errors
/// `InvalidUsage` when the settings leave too few lanes for the program's channels.
pub fn bind(
    lowered: &Lowered,
    call: &Call,
    choice: &Choice,
    world_ranks: u32,
    knobs: &Knobs,
) -> Result<LaunchPlan> {
    let op = device_op(call);
    let dtype = if op == DeviceOp::Copy { DataType::Uint8 } else { call.dtype };
    let elem = dtype.size() as u64;
    let count = call.count * call.dtype.size() as u64 / elem;
    let mut work = Work {
        base: [call.input, call.output, 0],
        count,
        per_block: lowered.per_block,
        chunks: lowered.chunks,
        ..Work::default()
    };
    let limit = instance_limit(lowered.channels.len() as u32, knobs)?;
    let instances = cut(&mut work, choice.instances.clamp(1, limit), choice.protocol, elem, knobs)?;
    let mut args = Box::new(Args { protocol: choice.protocol as u8, divisor: world_ranks, ..Args::default() });
    (args.scalar, args.scalar_is_address) = scalar(call, world_ranks);
    args.works[0] = work;
    blocks(&mut args, lowered, instances);
    if lowered.steps.len() <= INLINE_STEPS {
        args.inline_steps[..lowered.steps.len()].copy_from_slice(&lowered.steps);
        args.n_inline = lowered.steps.len() as u8;
    }
    let scratch_bytes = u64::from(lowered.scratch_chunks) * work.chunk * elem;
    let kernel = KernelKey { op, dtype, protocol: choice.protocol };
    Ok(LaunchPlan { args, kernel, threads: choice.threads, scratch_bytes })
}

/// Cuts `work.count` elements of `elem` bytes into chunks, at most `wanted` instances, and tiles.
/// Returns the number of instances, 0 when there is nothing to do.
pub(crate) fn cut(work: &mut Work, wanted: u32, protocol: Protocol, elem: u64, knobs: &Knobs) -> Result<u32> {
    let pack = PACK_BYTES / elem;
    let slot = u64::from(knobs.slot_bytes[protocol as usize]) / PACK_BYTES * pack;
    if slot == 0 {
        return Err(PlanError::usage(format!(
            "protocol {} has no FIFO slots (slot size {} bytes): choose another one",
            protocol.name(),
            knobs.slot_bytes[protocol as usize]
        )));
    }
    if work.count == 0 {
        return Ok(0);
    }
    work.chunk = work.count.div_ceil(u64::from(work.per_block)).next_multiple_of(pack);
    let useful = (work.chunk * elem).div_ceil(MIN_INSTANCE_BYTES);
    let instances = u64::from(wanted).min(useful).max(1);
    work.instance = work.chunk.div_ceil(instances).next_multiple_of(pack);
    let tile = slot.min(work.instance);
    work.tile = tile as u32;
    work.tiles = u32::try_from(work.instance.div_ceil(tile)).map_err(|_| {
        PlanError::argument(format!("{} elements are more than 2^32 tiles of {tile} elements", work.count))
    })?;
    Ok(work.chunk.div_ceil(work.instance) as u32)
}

/// Most instances of a program of `channels` channels.
pub(crate) fn instance_limit(channels: u32, knobs: &Knobs) -> Result<u32> {
    let blocks = knobs.lanes.min(MAX_BLOCKS as u32);
    if channels == 0 || channels > blocks {
        return Err(PlanError::usage(format!(
            "the program has {channels} channels, but there are {} FIFO lanes and {MAX_BLOCKS} blocks: \
             raise the number of lanes or choose another algorithm",
            knobs.lanes
        )));
    }
    Ok(blocks / channels)
}

fn blocks(args: &mut Args, lowered: &Lowered, instances: u32) {
    let channels = lowered.channels.len() as u32;
    let mut n = 0;
    for instance in 0..instances {
        for (channel, &(first_step, n_steps)) in lowered.channels.iter().enumerate() {
            if n_steps == 0 {
                continue;
            }
            let lane = (channel as u32 + instance * channels) as u8;
            args.blocks[n] =
                Block { first_step, n_steps, lane, instance: instance as u16, work: 0, channel: channel as u8 };
            n += 1;
        }
    }
    args.n_blocks = n as u8;
}

/// The factor of `PRE`, and 1 if it is an address.
fn scalar(call: &Call, ranks: u32) -> (u64, u8) {
    match (call.op, call.scalar) {
        (ReduceOp::Avg, _) if call.dtype == DataType::Float64 => ((1.0 / f64::from(ranks)).to_bits(), 0),
        (ReduceOp::Avg, _) if call.dtype.is_float() => (u64::from((1.0 / ranks as f32).to_bits()), 0),
        (ReduceOp::PreMulSum, Scalar::Immediate(bits)) => (bits, 0),
        (ReduceOp::PreMulSum, Scalar::Device(address)) => (address, 1),
        _ => (0, 0),
    }
}

fn lower_step(step: &ir::Step, reduces: DeviceOp) -> std::result::Result<Step, String> {
    let mut out = Step { after_channel: NO_DEP, times: step.times.max(1), stride: step.stride, ..Step::default() };
    if let Op::Native(id) = step.op {
        return Err(format!("native kernel {id} is not built in: use the steps that it stands for"));
    }
    if step.op == Op::Reduce {
        out.flags |= ACC_DST;
    }
    if let Some(src) = step.src {
        out.flags |= HAS_SRC;
        out.src_buf = src.buf as u8;
        out.src_chunk = src.chunk;
        if src.buf == Buf::Input && reduces == DeviceOp::PreMulSum {
            out.flags |= PRE;
        }
    }
    if let Some(dst) = step.dst {
        out.flags |= HAS_DST;
        out.dst_buf = dst.buf as u8;
        out.dst_chunk = dst.chunk;
    }
    if step.finish && reduces == DeviceOp::SumDiv {
        out.flags |= POST;
    }
    out.order = u8::try_from(step.order).map_err(|_| format!("order {} is more than 255", step.order))?;
    out.n_recv = peers(&step.recv, &mut out.recv)?;
    out.n_send = peers(&step.send, &mut out.send)?;
    match step.after.as_slice() {
        [] => {}
        [dep] => {
            out.after_channel = u16::try_from(dep.channel).map_err(|_| "awaited channel above 65,535".to_string())?;
            out.after_step = u16::try_from(dep.step).map_err(|_| "awaited step above 65,535".to_string())?;
        }
        more => {
            return Err(format!(
                "waits for {} steps, the device waits for one: chain the dependencies over several steps",
                more.len()
            ));
        }
    }
    Ok(out)
}

fn peers(list: &[u32], out: &mut [u16; MAX_FAN]) -> std::result::Result<u8, String> {
    if list.len() > MAX_FAN {
        return Err(format!("{} peers, at most {MAX_FAN} fit: use several steps", list.len()));
    }
    for (slot, &peer) in out.iter_mut().zip(list) {
        *slot = u16::try_from(peer).map_err(|_| format!("rank {peer} is above 65,535"))?;
    }
    Ok(list.len() as u8)
}

/// Marks the steps that others wait for.
fn signal(shape: &Shape, lowered: &mut Lowered) -> Result<()> {
    let awaited: Vec<(u16, u16)> = lowered
        .steps
        .iter()
        .filter(|step| step.after_channel != NO_DEP)
        .map(|step| (step.after_channel, step.after_step))
        .collect();
    for (channel, step) in awaited {
        let found = lowered.channels.get(usize::from(channel)).filter(|&&(_, n)| step < u16::from(n));
        let Some(&(first, _)) = found else {
            return Err(PlanError::program(format!(
                "{}: a step waits for step {step} of channel {channel}, which does not exist",
                shape.name
            )));
        };
        lowered.steps[usize::from(first) + usize::from(step)].flags |= SIGNAL;
        lowered.signals = true;
    }
    Ok(())
}

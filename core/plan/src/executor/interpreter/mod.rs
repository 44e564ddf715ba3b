//! From a program to the image that a device reads: [`lower`] once per program and operation,
//! [`bind`] once per call.

pub(crate) mod estimate;

pub use estimate::Interpreter;

use crate::algo::{self, ProgramKey};
use crate::config::PlanConfig;
use crate::decision::Decision;
use crate::executor::launch::{Direct, LaunchPlan, PACK_BYTES, device_op, scalar};
use crate::imported::{Imported, kept};
use hawser_kernels_abi::{
    ACC_DST, Args, Block, DeviceOp, HAS_DST, HAS_SRC, INLINE_STEPS, KernelKey, MAX_BLOCKS, NO_DEP, POST, PRE,
    SIGNAL, Step, Work, protocol_number, tag,
};
use hawser_program::limits::{awaited, device_steps};
use hawser_program::{Buf, MAX_CHANNEL_STEPS, MAX_FAN, Op, RankProgram, Shape};
use hawser_types::{Algorithm, Call, DataType, PlanError, Result, Route};

/// FIFO slots that every generated program gets by with (the tests prove it with the verifier).
pub const SLOTS_NEEDED: u32 = 2;
/// Chunks are cut over no more instances than leave each this many bytes.
const MIN_INSTANCE_BYTES: u64 = 512;

/// A rank's program as device steps; independent of size, buffers and protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lowered {
    /// The steps of all channels, channel after channel.
    pub steps: Vec<Step>,
    /// First step and number of steps of every channel; a channel may be empty.
    pub channels: Vec<(u16, u8)>,
    /// Lane of every channel within an instance.
    pub lanes: Vec<u8>,
    /// Chunks of scratch.
    pub scratch_chunks: u32,
    /// Chunks of input, output and scratch.
    pub chunks: [u32; 3],
    /// Chunks per block.
    pub per_block: u32,
    /// The chunks that every channel moves as one.
    pub runs: Vec<u32>,
}

/// Lowers the program of one rank. Reads of the input get `PRE` for a pre-multiplied sum, finishing
/// steps get `POST` for a divided one.
///
/// A device's step waits for one other step: one that waits for several gets steps that do nothing but wait
/// before it.
///
/// # Errors
/// `BadProgram` for what the device image cannot say: more than [`MAX_FAN`] peers, more than
/// [`MAX_CHANNEL_STEPS`] steps per channel, a native step.
pub fn lower(shape: &Shape, program: &RankProgram, reduces: DeviceOp) -> Result<Lowered> {
    let mut steps = Vec::new();
    let mut channels = Vec::new();
    for (index, channel) in program.channels.iter().enumerate() {
        let total = device_steps(channel);
        let count = u8::try_from(total).map_err(|_| {
            PlanError::program(format!(
                "{}: channel {index} has {total} steps, a block takes {MAX_CHANNEL_STEPS}: spread them over \
                 more channels",
                shape.name,
            ))
        })?;
        let first = u16::try_from(steps.len())
            .map_err(|_| PlanError::program(format!("{}: more than 65,535 steps on one rank", shape.name)))?;
        channels.push((first, count));
        for (number, step) in channel.steps.iter().enumerate() {
            let bad = |what: String| {
                PlanError::program(format!("{}: channel {index} step {number}: {what}", shape.name))
            };
            let mut lowered = lower_step(step, reduces).map_err(bad)?;
            let mut waits = awaited(program, step).map_err(bad)?;
            let last = waits.pop();
            let waits = waits.into_iter().map(|wait| (wait, Step { times: 1, ..Step::default() }));
            for ((channel, step), mut lowered) in waits.chain(last.map(|last| (last, lowered))) {
                (lowered.after_channel, lowered.after_step) = (channel, step);
                steps.push(lowered);
            }
            if last.is_none() {
                lowered.after_channel = NO_DEP;
                steps.push(lowered);
            }
        }
    }
    let mut lowered = Lowered {
        steps,
        channels,
        lanes: lanes(shape, program)?,
        scratch_chunks: shape.scratch,
        chunks: [Buf::Input, Buf::Output, Buf::Scratch].map(|buf| shape.chunks(buf)),
        per_block: shape.per_block,
        runs: (0..program.channels.len() as u32).map(|channel| program.run(channel)).collect(),
    };
    signal(&mut lowered);
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
    choice: &Decision,
    world_ranks: u32,
    config: &PlanConfig,
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
    let packing = packing(&choice.key, lowered.channels.len() as u32, config)?;
    let instances =
        cut(&mut work, choice.instances.clamp(1, packing.most_instances), choice.route, elem, config)?;
    work.slices = (config.depth / slots_needed(&choice.key)).max(1);
    work.tag = tag(dtype, op);
    let mut args =
        Box::new(Args { protocol: protocol_number(choice.route), divisor: world_ranks, ..Args::default() });
    (args.scalar, args.scalar_is_address) = scalar(call, world_ranks);
    args.works[0] = work;
    let run = lowered.runs.iter().copied().max().unwrap_or(1);
    if run > 1 && instances > 0 {
        args.works[WORK_OF_RUNS] = work_of_runs(&work, run, choice.route, elem, config)?;
    }
    blocks(&mut args, lowered, instances, &packing);
    if lowered.steps.len() <= INLINE_STEPS {
        args.inline_steps[..lowered.steps.len()].copy_from_slice(&lowered.steps);
        args.n_inline = lowered.steps.len() as u8;
    }
    let scratch_bytes = u64::from(lowered.scratch_chunks) * work.chunk * elem;
    let kernel = KernelKey::new(op, dtype, choice.route);
    let direct = Direct::of(&choice.key, work.chunk * elem);
    let ctas = config.reducing_ctas;
    Ok(LaunchPlan { args, kernel, threads: choice.threads, scratch_bytes, direct, ctas })
}

/// The work of channels that move runs of chunks.
const WORK_OF_RUNS: usize = 1;

/// The places of the data for channels that move runs of `run` chunks: as [`Work`] of larger chunks.
///
/// # Errors
/// `InvalidUsage`: the chunks are no single tiles, or do not lie side by side.
fn work_of_runs(work: &Work, run: u32, route: Route, elem: u64, config: &PlanConfig) -> Result<Work> {
    if let Some(reason) = refused_runs(work.count * elem, route, config) {
        return Err(PlanError::usage(reason));
    }
    let mut runs =
        Work { count: work.count * u64::from(run), chunks: work.chunks.map(|all| all / run), ..*work };
    cut(&mut runs, 1, route, elem, config)?;
    Ok(runs)
}

/// The reason why blocks of so many bytes cannot be moved by runs, if there is one. Channels wait for each
/// other tile by tile, and the tiles of a run are not those of its blocks: these are one tile each. They lie
/// side by side in scratch too, where each begins with a pack.
pub(crate) fn refused_runs(bytes: u64, route: Route, config: &PlanConfig) -> Option<String> {
    let slot = u64::from(config.slot_bytes[route.slots()]) / PACK_BYTES * PACK_BYTES;
    if !bytes.is_multiple_of(PACK_BYTES) {
        return Some(format!("blocks of {bytes} bytes are no multiple of {PACK_BYTES}"));
    }
    (bytes > slot).then(|| format!("blocks of {bytes} bytes do not fit into a slot of {slot}"))
}

fn slots_needed(key: &ProgramKey) -> u32 {
    match key.algorithm {
        Algorithm::Imported(program) => kept(program).min_depth.max(1),
        _ => SLOTS_NEEDED,
    }
}

/// Cuts `work.count` elements of `elem` bytes into chunks, at most `wanted` instances, and tiles.
/// Returns the number of instances, 0 when there is nothing to do.
pub(crate) fn cut(work: &mut Work, wanted: u32, route: Route, elem: u64, config: &PlanConfig) -> Result<u32> {
    let pack = PACK_BYTES / elem;
    let slot = u64::from(config.slot_bytes[route.slots()]) / PACK_BYTES * pack;
    if slot == 0 {
        return Err(PlanError::usage(format!(
            "protocol {} has no FIFO slots (slot size {} bytes): choose another one",
            route.name(),
            config.slot_bytes[route.slots()]
        )));
    }
    if work.count == 0 {
        return Ok(0);
    }
    let chunk = work.count.div_ceil(u64::from(work.per_block)).checked_next_multiple_of(pack);
    work.chunk = chunk.filter(|chunk| chunk.checked_mul(elem).is_some()).ok_or_else(|| {
        PlanError::argument(format!("{} elements are more than memory can hold", work.count))
    })?;
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

/// The way in which channels share blocks; equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packing {
    /// Channels that one block runs one after the other.
    pub channels_per_block: u32,
    /// Blocks of one instance.
    pub blocks: u32,
    /// Lanes of one instance.
    pub lanes: u32,
    /// Most instances.
    pub most_instances: u32,
}

/// Decides how many channels share a block when lanes, blocks or `NCCL_MAX_CTAS` are fewer than the
/// program's channels. Channels that follow one another on every rank in the same order, on the
/// same FIFOs, are programs run one after the other: what was free of deadlock stays so. Blocks whose
/// channels have no peer in common share lanes where there are too few: their FIFOs are others all the same.
pub(crate) fn packing(key: &ProgramKey, channels: u32, config: &PlanConfig) -> Result<Packing> {
    let channels = channels.max(1);
    if let Algorithm::Imported(program) = key.algorithm
        && key.ranks > 1
    {
        return packing_imported(kept(program), config);
    }
    let available = config.lanes.min(MAX_BLOCKS as u32);
    let (own_lanes, waits) = (algo::lanes(key), algo::waits_across(key));
    let most = if own_lanes > 0 { MAX_BLOCKS as u32 } else { available };
    let wanted = match waits && config.blocks_take_turns {
        true => most,
        false => most.min(config.most_ctas(key.collective)).max(1),
    };
    let most = (MAX_CHANNEL_STEPS / algo::most_channel_steps(key)).max(1);
    let channels_per_block = channels.div_ceil(wanted).min(most);
    if channels_per_block > 1 && waits {
        return Err(PlanError::usage(format!(
            "the program's {channels} channels wait for each other and need a block each, there are \
             {wanted}: raise the number of lanes and CTAs, or choose another algorithm"
        )));
    }
    let blocks = channels.div_ceil(channels_per_block);
    let lanes = match own_lanes {
        0 if algo::shares_lanes(key) => blocks.min(available),
        0 => blocks,
        lanes => lanes,
    };
    if lanes > available {
        return Err(PlanError::usage(format!(
            "the program's {channels} channels need {lanes} FIFO lanes, there are {}: \
             raise the number of lanes or choose another algorithm",
            config.lanes
        )));
    }
    if blocks > MAX_BLOCKS as u32 {
        return Err(PlanError::usage(format!(
            "the program's {channels} channels need {blocks} blocks, a launch has {MAX_BLOCKS}: choose \
             another algorithm"
        )));
    }
    let most_instances = match algo::run(key) {
        1 => (available / lanes).min(MAX_BLOCKS as u32 / blocks),
        _ => 1,
    };
    Ok(Packing { channels_per_block, blocks, lanes, most_instances })
}

/// The user's programs say which channels share lanes; every channel is a block.
fn packing_imported(program: &Imported, config: &PlanConfig) -> Result<Packing> {
    let (lanes, blocks) = (program.lanes(), program.channels());
    let instances = (config.lanes / lanes).min(MAX_BLOCKS as u32 / blocks);
    if instances > 0 {
        return Ok(Packing { channels_per_block: 1, blocks, lanes, most_instances: instances });
    }
    Err(PlanError::usage(format!(
        "needs {lanes} FIFO lanes and {blocks} blocks, there are {} and {MAX_BLOCKS}",
        config.lanes
    )))
}

fn blocks(args: &mut Args, lowered: &Lowered, instances: u32, packing: &Packing) {
    let mut n = 0;
    for instance in 0..instances {
        for (index, group) in lowered.channels.chunks(packing.channels_per_block as usize).enumerate() {
            let (first_step, _) = group[0];
            let n_steps = group.iter().map(|&(_, n)| n).sum();
            if n_steps == 0 {
                continue;
            }
            // Channels that share a block use its lane one after the other, as if they were one channel.
            let own =
                if packing.channels_per_block == 1 { u32::from(lowered.lanes[index]) } else { index as u32 };
            let lane = (own % packing.lanes + instance * packing.lanes) as u8;
            let work =
                if lowered.runs[index * packing.channels_per_block as usize] > 1 { WORK_OF_RUNS } else { 0 };
            args.blocks[n] = Block {
                first_step,
                n_steps,
                lane,
                instance: instance as u16,
                work: work as u8,
                channel: index as u8,
            };
            n += 1;
        }
    }
    args.n_blocks = n as u8;
}

fn lower_step(step: &hawser_program::Step, reduces: DeviceOp) -> std::result::Result<Step, String> {
    let mut out = Step { times: step.times.max(1), stride: step.stride, ..Step::default() };
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
    Ok(out)
}

fn lanes(shape: &Shape, program: &RankProgram) -> Result<Vec<u8>> {
    let lanes = (0..program.channels.len() as u32).map(|channel| u8::try_from(program.lane(channel)));
    lanes
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| PlanError::program(format!("{}: more than 256 lanes on one rank", shape.name)))
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
fn signal(lowered: &mut Lowered) {
    let awaited: Vec<(u16, u16)> = lowered
        .steps
        .iter()
        .filter(|step| step.after_channel != NO_DEP)
        .map(|step| (step.after_channel, step.after_step))
        .collect();
    for (channel, step) in awaited {
        let (first, _) = lowered.channels[usize::from(channel)];
        lowered.steps[usize::from(first) + usize::from(step)].flags |= SIGNAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_program::Channel;
    use hawser_program::build::{copy, input, output, recv_reduce_copy, reduce, scratch, send};
    use hawser_types::Collective;

    fn shape(collective: Collective) -> Shape {
        Shape { name: "test".into(), collective, ranks: 4, root: 0, per_block: 2, scratch: 1 }
    }

    #[test]
    fn flags_follow_operands_and_operation() {
        let steps = vec![
            recv_reduce_copy(vec![2, 1], input(1), 1, output(0)).finish(),
            reduce(output(1), scratch(0)),
            send(input(0), vec![3]).repeat(3, -1),
        ];
        let program = RankProgram::single(steps);
        let plain = lower(&shape(Collective::AllReduce), &program, DeviceOp::Sum).unwrap();
        let flags: Vec<u8> = plain.steps.iter().map(|step| step.flags).collect();
        assert_eq!(flags, [HAS_SRC | HAS_DST, HAS_SRC | HAS_DST | ACC_DST, HAS_SRC]);
        let first = &plain.steps[0];
        assert_eq!((first.order, first.n_recv, &first.recv[..2], first.src_chunk), (1, 2, &[2, 1][..], 1));
        assert_eq!((plain.steps[2].times, plain.steps[2].stride, plain.steps[2].send[0]), (3, -1, 3));
        assert_eq!((plain.chunks, plain.scratch_chunks), ([2, 2, 1], 1));
        let pre = lower(&shape(Collective::AllReduce), &program, DeviceOp::PreMulSum).unwrap();
        let with_pre: Vec<bool> = pre.steps.iter().map(|step| step.flags & PRE != 0).collect();
        assert_eq!(with_pre, [true, false, true]);
        let post = lower(&shape(Collective::AllReduce), &program, DeviceOp::SumDiv).unwrap();
        let with_post: Vec<bool> = post.steps.iter().map(|step| step.flags & POST != 0).collect();
        assert_eq!(with_post, [true, false, false]);
    }

    #[test]
    fn awaited_steps_signal() {
        let channels = vec![
            Channel { steps: vec![copy(input(0), output(0)), copy(input(1), output(1))] },
            Channel { steps: vec![send(output(0), vec![1]).after(0, 0)] },
        ];
        let program = RankProgram { channels, lanes: Vec::new(), runs: Vec::new() };
        let lowered = lower(&shape(Collective::AllReduce), &program, DeviceOp::Sum).unwrap();
        let signals: Vec<bool> = lowered.steps.iter().map(|step| step.flags & SIGNAL != 0).collect();
        assert_eq!(signals, [true, false, false]);
        assert_eq!((lowered.steps[2].after_channel, lowered.steps[2].after_step), (0, 0));
        assert_eq!((lowered.steps[0].after_channel, lowered.channels), (NO_DEP, vec![(0, 2), (2, 1)]));
    }

    #[test]
    fn a_step_that_waits_for_several_gets_steps_that_only_wait() {
        let one = |step| Channel { steps: vec![step] };
        let waiting = copy(output(0), scratch(0)).after(0, 0).after(1, 0).after(0, 1);
        let two = vec![copy(input(1), output(1)), copy(input(0), output(0)).after(1, 0)];
        let channels = vec![
            Channel { steps: two },
            one(copy(input(0), output(0))),
            Channel { steps: vec![waiting, copy(output(1), scratch(0))] },
            one(copy(input(0), output(0)).after(2, 1)),
        ];
        let program = RankProgram { channels, lanes: vec![0, 0, 1, 0], runs: Vec::new() };
        let lowered = lower(&shape(Collective::AllReduce), &program, DeviceOp::Sum).unwrap();
        assert_eq!(lowered.channels, [(0, 2), (2, 1), (3, 3), (6, 1)]);
        assert_eq!(lowered.lanes, [0, 0, 1, 0]);
        let waits: Vec<(u16, u16)> = lowered.steps.iter().map(|s| (s.after_channel, s.after_step)).collect();
        let none = (NO_DEP, 0);
        assert_eq!(waits, [none, (1, 0), none, (0, 1), (1, 0), none, (2, 2)]);
        let only_waits = &lowered.steps[3];
        assert_eq!((only_waits.flags, only_waits.n_recv, only_waits.n_send, only_waits.times), (0, 0, 0, 1));
        let signals: Vec<bool> = lowered.steps.iter().map(|step| step.flags & SIGNAL != 0).collect();
        assert_eq!(signals, [false, true, true, false, false, true, false]);
    }

    #[test]
    fn what_the_image_cannot_say_is_refused() {
        let cases = [
            (copy(input(0), output(0)).after(5, 0), "which does not exist"),
            (hawser_program::Step::new(Op::Native(7)), "native kernel 7"),
            (send(input(0), (0..9).collect()), "9 peers"),
            (send(input(0), vec![70_000]), "rank 70000"),
        ];
        for (step, text) in cases {
            let program = RankProgram::single(vec![step]);
            let error = lower(&shape(Collective::AllReduce), &program, DeviceOp::Sum).unwrap_err();
            assert!(error.text.contains(text), "{error}");
        }
        let long = RankProgram::single(vec![copy(input(0), output(0)); 256]);
        assert!(
            lower(&shape(Collective::AllReduce), &long, DeviceOp::Sum)
                .unwrap_err()
                .text
                .contains("256 steps")
        );
    }
}

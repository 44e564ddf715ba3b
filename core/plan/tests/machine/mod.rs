//! A slow and plain machine that runs launch plans: the meaning of the device image in one page.
//! Memory is bytes per rank, FIFOs are queues, blocks take turns.

use std::collections::{HashMap, VecDeque};

use hawser_kernels_abi::{
    ACC_DST, Block, DeviceOp, HAS_DST, HAS_SRC, INLINE_STEPS, NO_DEP, POST, PRE, Place, Step, Work,
};
use hawser_plan::DataType;
use hawser_plan::executor::launch::LaunchPlan;

/// One launch of a rank with its steps (which may not have fitted inline).
pub struct Launch {
    pub plan: LaunchPlan,
    pub steps: Vec<Step>,
}

impl Launch {
    #[allow(dead_code)] // only batches of messages are always inline
    pub fn inline(plan: LaunchPlan) -> Self {
        let n = usize::from(plan.args.n_inline);
        assert!(n > 0 && n <= INLINE_STEPS);
        let steps = plan.args.inline_steps[..n].to_vec();
        Self { plan, steps }
    }
}

/// All ranks with their memories; address `a` of a rank is byte `a` of its memory.
pub struct Machine {
    pub memory: Vec<Vec<u8>>,
    depth: usize,
    slot_bytes: [u32; 3],
    fifos: HashMap<(u8, u8, u32, u32), VecDeque<Vec<u8>>>,
}

impl Machine {
    pub fn new(memory: Vec<Vec<u8>>, depth: u32, slot_bytes: [u32; 3]) -> Self {
        Self { memory, depth: depth as usize, slot_bytes, fifos: HashMap::new() }
    }

    /// Runs every rank's launches one after the other; panics on a deadlock or a slot left over.
    pub fn run(&mut self, launches: &[Vec<Launch>]) {
        let mut current = vec![0; launches.len()];
        let mut states: Vec<Vec<Place>> = launches.iter().map(|list| start(list.first())).collect();
        loop {
            let mut moved = false;
            for rank in 0..launches.len() {
                let Some(launch) = launches[rank].get(current[rank]) else { continue };
                let mut ended = true;
                for index in 0..states[rank].len() {
                    while is_due(launch, &states[rank], index)
                        && self.advance(
                            rank as u32,
                            launch,
                            &launch.plan.args.blocks[index],
                            &mut states[rank][index],
                        )
                    {
                        moved = true;
                    }
                    let at = states[rank][index];
                    let work = launch.plan.args.works[usize::from(launch.plan.args.blocks[index].work)];
                    ended &= at.tile >= work.tiles;
                }
                if ended {
                    current[rank] += 1;
                    states[rank] = start(launches[rank].get(current[rank]));
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let stuck: Vec<usize> = (0..launches.len()).filter(|&r| current[r] < launches[r].len()).collect();
        assert!(stuck.is_empty(), "deadlock: ranks {stuck:?} are stuck in launches {current:?}");
        assert!(self.fifos.values().all(VecDeque::is_empty), "slots are left over");
    }

    /// Runs one repetition of a block's step if it can.
    fn advance(&mut self, rank: u32, launch: &Launch, block: &Block, at: &mut Place) -> bool {
        let args = &launch.plan.args;
        let work = &args.works[usize::from(block.work)];
        if at.tile >= work.tiles {
            return false;
        }
        let step = &launch.steps[usize::from(block.first_step) + at.step as usize];
        let key = |from: u16, to: u16| (args.protocol, block.lane, u32::from(from), u32::from(to));
        let me = rank as u16;
        let recv = &step.recv[..usize::from(step.n_recv)];
        let send = &step.send[..usize::from(step.n_send)];
        let slots = |from, to| self.fifos.get(&key(from, to)).map_or(0, VecDeque::len);
        if recv.iter().any(|&peer| slots(peer, me) == 0)
            || send.iter().any(|&peer| slots(me, peer) >= self.depth)
        {
            return false;
        }
        let mut operands: Vec<Vec<u8>> = recv
            .iter()
            .map(|&peer| self.fifos.get_mut(&key(peer, me)).unwrap().pop_front().unwrap())
            .collect();
        let range = Range::new(work, block, at, launch.plan.kernel.dtype.size());
        let slot = self.slot_bytes[usize::from(args.protocol)] as usize;
        assert!(range.nominal <= slot, "a tile exceeds a slot");
        let is_whole = |operand: &Vec<u8>| operand.len() == range.nominal;
        assert!(operands.iter().all(is_whole), "lengths differ between ranks");
        if step.flags & HAS_SRC != 0 {
            let chunk = moved(step.src_chunk, step, at.repetition, work.chunks[usize::from(step.src_buf)]);
            let mut local = self.load(rank, work, step.src_buf, chunk, &range);
            if step.flags & PRE != 0 {
                pre(&mut local, launch);
            }
            operands.insert(usize::from(step.order), local);
        }
        let dst = moved(step.dst_chunk, step, at.repetition, work.chunks[usize::from(step.dst_buf)]);
        if step.flags & ACC_DST != 0 {
            operands.insert(0, self.load(rank, work, step.dst_buf, dst, &range));
        }
        if operands.is_empty() {
            // A step that only waits.
            at.advance(work, step.times, u32::from(block.n_steps));
            return true;
        }
        let mut value = operands.remove(0);
        operands.iter().for_each(|operand| fold(&mut value, operand, launch));
        if step.flags & POST != 0 {
            post(&mut value, launch);
        }
        if step.flags & HAS_DST != 0 {
            self.store(rank, work, step.dst_buf, dst, &range, &value);
        }
        for &peer in send {
            self.fifos.entry(key(me, peer)).or_default().push_back(value.clone());
        }
        at.advance(work, step.times, u32::from(block.n_steps));
        true
    }

    fn load(&self, rank: u32, work: &Work, buf: u8, chunk: u32, range: &Range) -> Vec<u8> {
        let (at, real) = range.place(work, buf, chunk);
        let mut bytes = vec![0xab; range.nominal];
        bytes[..real].copy_from_slice(&self.memory[rank as usize][at..at + real]);
        bytes
    }

    fn store(&mut self, rank: u32, work: &Work, buf: u8, chunk: u32, range: &Range, value: &[u8]) {
        let (at, real) = range.place(work, buf, chunk);
        self.memory[rank as usize][at..at + real].copy_from_slice(&value[..real]);
    }
}

/// True if the step of another channel that a block waits for is over, in all its repetitions for the tile.
fn is_due(launch: &Launch, places: &[Place], index: usize) -> bool {
    let blocks = &launch.plan.args.blocks;
    let (block, at) = (&blocks[index], places[index]);
    let work = &launch.plan.args.works[usize::from(block.work)];
    if at.tile >= work.tiles {
        return false;
    }
    let step = &launch.steps[usize::from(block.first_step) + at.step as usize];
    if step.after_channel == NO_DEP {
        return true;
    }
    let awaited = |b: &Block| u16::from(b.channel) == step.after_channel && b.instance == block.instance;
    let Some(other) = blocks[..places.len()].iter().position(awaited) else { return true };
    let (slices, there) = (work.slices.max(1), places[other]);
    let their = &blocks[other];
    let tile = if their.work == block.work { at.tile } else { 0 };
    let group = |tile: u32| tile / slices;
    let times = launch.steps[usize::from(blocks[other].first_step) + usize::from(step.after_step)].times;
    let is_past = |there: Place| {
        let place = (group(there.tile), there.step, there.repetition, there.tile % slices);
        place > (group(tile), u32::from(step.after_step), times - 1, tile % slices)
    };
    there.tile >= launch.plan.args.works[usize::from(their.work)].tiles || is_past(there)
}

fn start(launch: Option<&Launch>) -> Vec<Place> {
    vec![Place::default(); launch.map_or(0, |launch| usize::from(launch.plan.args.n_blocks))]
}

fn moved(chunk: u32, step: &Step, repetition: u32, chunks: u32) -> u32 {
    let moved = i64::from(chunk) + i64::from(repetition) * i64::from(step.stride);
    moved.rem_euclid(i64::from(chunks.max(1))) as u32
}

/// The part of every chunk that a tile of an instance is.
struct Range {
    /// First element within the chunk.
    first: u64,
    elem: u64,
    /// Bytes of a transfer.
    nominal: usize,
}

impl Range {
    fn new(work: &Work, block: &Block, at: &Place, elem: usize) -> Self {
        let pack = 16 / elem as u64;
        assert!(work.chunk.is_multiple_of(pack) && work.instance.is_multiple_of(pack));
        assert!(u64::from(work.tile).is_multiple_of(pack));
        let within = u64::from(at.tile) * u64::from(work.tile);
        let nominal = u64::from(work.tile).min(work.instance - within) as usize * elem;
        Self { first: u64::from(block.instance) * work.instance + within, elem: elem as u64, nominal }
    }

    /// Byte address and real length in a chunk.
    fn place(&self, work: &Work, buf: u8, chunk: u32) -> (usize, usize) {
        let count = if buf == 2 { u64::from(work.per_block) * work.chunk } else { work.count };
        let block = u64::from(chunk / work.per_block);
        let inner = u64::from(chunk % work.per_block);
        let first = inner * work.chunk + self.first;
        let end = ((inner + 1) * work.chunk).min(count);
        let real = end.saturating_sub(first) * self.elem;
        let at = work.base[usize::from(buf)] + (block * count + first.min(end)) * self.elem;
        (at as usize, (real as usize).min(self.nominal))
    }
}

fn elements(bytes: &mut [u8], mut change: impl FnMut(usize, [u8; 8]) -> [u8; 8]) {
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        let new = change(index, word.try_into().unwrap());
        word.copy_from_slice(&new);
    }
}

fn fold(value: &mut [u8], operand: &[u8], launch: &Launch) {
    let kernel = launch.plan.kernel;
    elements(value, |index, word| {
        let other: [u8; 8] = operand[index * 8..index * 8 + 8].try_into().unwrap();
        match (kernel.op, kernel.dtype) {
            (DeviceOp::Sum | DeviceOp::SumDiv, DataType::Int64) => {
                i64::from_le_bytes(word).wrapping_add(i64::from_le_bytes(other)).to_le_bytes()
            }
            (DeviceOp::Sum | DeviceOp::PreMulSum, DataType::Float64) => {
                (f64::from_le_bytes(word) + f64::from_le_bytes(other)).to_le_bytes()
            }
            (DeviceOp::Max, DataType::Int64) => {
                i64::from_le_bytes(word).max(i64::from_le_bytes(other)).to_le_bytes()
            }
            other => panic!("{other:?} is not needed by these tests"),
        }
    });
}

fn pre(value: &mut [u8], launch: &Launch) {
    assert_eq!((launch.plan.kernel.op, launch.plan.kernel.dtype), (DeviceOp::PreMulSum, DataType::Float64));
    let factor = f64::from_bits(launch.plan.args.scalar);
    elements(value, |_, word| (f64::from_le_bytes(word) * factor).to_le_bytes());
}

fn post(value: &mut [u8], launch: &Launch) {
    assert_eq!((launch.plan.kernel.op, launch.plan.kernel.dtype), (DeviceOp::SumDiv, DataType::Int64));
    let divisor = i64::from(launch.plan.args.divisor);
    elements(value, |_, word| (i64::from_le_bytes(word) / divisor).to_le_bytes());
}

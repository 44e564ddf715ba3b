//! The host interpreter: runs the same lowered steps as the CUDA kernels, as polled state machines.
//!
//! Every block of a launch is a small state machine that never blocks: [`run`] polls all blocks of
//! all communicators that the calling thread drives, so one thread can run a whole group. The rules
//! of the FIFOs are those of [`hawser_kernels_abi::Conn`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::liveness::Roster;
use hawser_base::wait::Backoff;
use hawser_device::host::reduce::{Operand, Rule, reduce};
use hawser_kernels_abi::abort_word;
use hawser_kernels_abi::{
    ACC_DST, Args, Block, Conn, DevComm, DeviceOp, HAS_DST, HAS_SRC, KernelKey, NO_DEP, POST, PRE, Place,
    Span, Step, Variant,
};
use hawser_plan::{Class, DataType, Protocol};
use smallvec::SmallVec;

use super::fifo::Fifo;
use crate::classes::{self, Turns, Working};
use crate::executor::copy_engine::host::Copies;
use crate::op_number::{MESSAGES, operation as number_text};
use crate::progress::journal::Journal;
use crate::progress::operation;

/// The longest pause between two looks: a rank that is seconds late costs next to nothing of a processor.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);

/// The most operands and blocks of an operation that allocates no memory for them.
const FEW: usize = 4;

/// A wait is noted in the journal every so many looks, first after half as many.
const LOOKS: u32 = 256;

/// A launch for the interpreter. Launches of one communicator (`args.comm`) run in order.
pub struct HostLaunch<'a> {
    /// The kernel that a GPU would run: operation and data type.
    pub kernel: KernelKey,
    /// The arguments a GPU would get; addresses are host addresses.
    pub args: &'a Args,
    /// Name of the communicator, for errors.
    pub name: &'a str,
    /// Best-effort launches give way to more urgent ones of this process, between two steps.
    pub class: Class,
    /// The copies of the launch, if copy engines run it instead of a kernel.
    pub copies: Option<Copies>,
    /// The roster of the other ranks, which says who has gone.
    pub roster: &'a Roster,
    /// The journal, in which the launch notes what it waits for.
    pub journal: &'a Journal,
}

/// Runs launches to their end and returns the failures: address of the communicator's image, and `Aborted`,
/// `Timeout` or, where a rank is gone, `Remote` with a sentence that says who waits for whom.
///
/// Blocking: until all communicators are through, aborted or past their deadline. One that fails does not
/// hold up the others; its remaining launches are dropped. Between two looks the thread calls `help`, which
/// moves what launches wait for as far as this process has to move it, and says whether it did.
///
/// # Safety
/// All addresses in the arguments must be those of a communicator's live memory and of user buffers of
/// the promised lengths.
pub unsafe fn run<'a>(
    launches: impl IntoIterator<Item = HostLaunch<'a>>,
    help: impl Fn() -> bool,
) -> Vec<(u64, Error)> {
    let mut queues: Vec<Queue<'_>> = Vec::new();
    for launch in launches.into_iter().filter(|l| l.args.n_blocks > 0) {
        let (comm, class) = (launch.args.comm, launch.class);
        // SAFETY: passed on to the caller.
        let run = unsafe { Run::new(launch) };
        match queues.iter_mut().find(|q| q.comm == comm) {
            // What is more urgent waits for what comes before it.
            Some(queue) => {
                queue.class = queue.class.max(class);
                queue.runs.push_back(run);
            }
            None => queues.push(Queue::new(comm, class, run)),
        }
    }
    let mut failures = Vec::new();
    let mut backoff = Backoff::new();
    let most_urgent = queues.iter().map(|queue| queue.class).max().unwrap_or_default();
    let working = Working::begin(most_urgent);
    while !queues.is_empty() {
        let (mut moved, mut are_held) = (false, true);
        queues.retain_mut(|queue| {
            if queue.holds_back() {
                return true;
            }
            are_held = false;
            match queue.turn() {
                Ok(has_moved) => {
                    moved |= has_moved;
                    !queue.runs.is_empty()
                }
                Err(error) => {
                    failures.push((queue.comm, error));
                    false
                }
            }
        });
        if are_held {
            classes::rest();
        } else if moved | help() {
            backoff.reset();
            working.iter().for_each(Working::moved);
        } else {
            backoff.rest(LONGEST_PAUSE);
        }
    }
    failures
}

/// The launches of one communicator, in order.
struct Queue<'a> {
    /// The address of the communicator's image.
    comm: u64,
    /// The most urgent class of the launches.
    class: Class,
    turns: Turns,
    runs: VecDeque<Run<'a>>,
    /// The time since which nothing has moved, and how often the launch has been looked at meanwhile.
    waiting_since: Option<Instant>,
    looks: u32,
}

impl<'a> Queue<'a> {
    fn new(comm: u64, class: Class, run: Run<'a>) -> Self {
        let (turns, runs) = (Turns::default(), [run].into());
        Self { comm, class, turns, runs, waiting_since: None, looks: 0 }
    }

    /// True if the launches give way at this look.
    fn holds_back(&self) -> bool {
        self.class == Class::BestEffort && self.turns.hold_back()
    }

    /// Polls the first launch; says whether anything moved.
    fn turn(&mut self) -> Result<bool> {
        let gives_way = self.class == Class::BestEffort;
        let Some(current) = self.runs.front_mut() else { return Ok(false) };
        let moved = current.poll(gives_way);
        if moved || current.is_over() {
            (self.waiting_since, self.looks) = (None, 0);
        } else {
            self.looks = self.looks.wrapping_add(1);
            if self.looks % LOOKS == LOOKS / 2 {
                current.note_wait();
            }
            current.check(*self.waiting_since.get_or_insert_with(Instant::now))?;
        }
        if current.is_over() {
            self.runs.pop_front();
        }
        Ok(moved)
    }
}

/// A launch on its way.
struct Run<'a> {
    kernel: KernelKey,
    name: &'a str,
    args: &'a Args,
    comm: DevComm,
    steps: &'a [Step],
    blocks: SmallVec<[At; FEW]>,
    /// The copies of the launch, if copy engines run it instead of blocks.
    copies: Option<Copies>,
    roster: &'a Roster,
    journal: &'a Journal,
}

/// A block on its way.
#[derive(Debug, Clone, Copy)]
struct At {
    place: Place,
    over: bool,
}

impl<'a> Run<'a> {
    /// # Safety
    /// As [`run`].
    unsafe fn new(launch: HostLaunch<'a>) -> Self {
        let args = launch.args;
        let used = &args.blocks[..usize::from(args.n_blocks)];
        let n_steps =
            used.iter().map(|b| usize::from(b.first_step) + usize::from(b.n_steps)).max().unwrap_or(0);
        let steps = if args.steps == 0 {
            &args.inline_steps[..n_steps]
        } else {
            // SAFETY: `args.steps` is the address of at least the steps that the blocks name, alive as long
            // as the launch.
            unsafe { std::slice::from_raw_parts(args.steps as *const Step, n_steps) }
        };
        // SAFETY: `args.comm` is the address of the communicator's image.
        let comm = unsafe { *(args.comm as *const DevComm) };
        let at = |b: &Block| {
            let nothing = args.works[usize::from(b.work)].tiles == 0 || b.n_steps == 0;
            At { place: Place::default(), over: nothing }
        };
        let blocks = used.iter().map(at).collect();
        let copies = launch.copies;
        let (kernel, name, roster, journal) = (launch.kernel, launch.name, launch.roster, launch.journal);
        Self { kernel, name, args, comm, steps, blocks, copies, roster, journal }
    }

    fn is_over(&self) -> bool {
        if let Some(copies) = &self.copies {
            return copies.is_over();
        }
        self.blocks.iter().all(|b| b.over)
    }

    /// Runs every block until it has to wait; says whether anything moved. One that gives way comes back
    /// after a step if more urgent work moves.
    fn poll(&mut self, gives_way: bool) -> bool {
        if let Some(copies) = &mut self.copies {
            // SAFETY: the caller of `run` promised it.
            return unsafe { copies.poll(gives_way) };
        }
        let mut moved = false;
        for i in 0..self.blocks.len() {
            while !self.blocks[i].over && self.awaited(i).is_none() {
                self.execute(i);
                self.advance(i);
                moved = true;
                if gives_way && classes::is_urgent() {
                    return true;
                }
            }
        }
        moved
    }

    fn step(&self, i: usize) -> &'a Step {
        &self.steps[usize::from(self.args.blocks[i].first_step) + self.blocks[i].place.step as usize]
    }

    /// The slot that block `i` waits for; None when it can run its step.
    fn awaited(&self, i: usize) -> Option<Awaited> {
        let step = self.step(i);
        if step.after_channel != NO_DEP && !self.dependency_met(i, step) {
            return Some(Awaited { what: operation::Awaited::Channel, peer: self.comm.rank });
        }
        for &peer in &step.recv[..usize::from(step.n_recv)] {
            if !self.fifo(i, peer).receiver().has_data() {
                return Some(Awaited { what: operation::Awaited::Data, peer: u32::from(peer) });
            }
        }
        for &peer in &step.send[..usize::from(step.n_send)] {
            if !self.fifo(i, peer).sender().has_room() {
                return Some(Awaited { what: operation::Awaited::Room, peer: u32::from(peer) });
            }
        }
        None
    }

    fn dependency_met(&self, i: usize, step: &Step) -> bool {
        let mine = &self.args.blocks[i];
        let same = |b: &Block| b.instance == mine.instance && u16::from(b.channel) == step.after_channel;
        let Some(other) = self.args.blocks[..self.blocks.len()].iter().position(same) else { return true };
        let their = &self.args.blocks[other];
        // Channels of another work, whose tiles are not these, have one tile.
        let mine = if their.work == mine.work { self.blocks[i].place.tile } else { 0 };
        let awaited = &self.steps[usize::from(their.first_step) + usize::from(step.after_step)];
        let slices = self.args.works[usize::from(their.work)].slices.max(1);
        let at = &self.blocks[other].place;
        let target = (mine / slices, u32::from(step.after_step), awaited.times - 1, mine % slices);
        self.blocks[other].over || (at.tile / slices, at.step, at.repetition, at.tile % slices) > target
    }

    /// Runs one repetition of a step: everything it needs is there.
    fn execute(&self, i: usize) {
        let (step, at) = (self.step(i), self.blocks[i].place);
        let work = &self.args.works[usize::from(self.args.blocks[i].work)];
        let dtype = if self.kernel.op == DeviceOp::Copy { DataType::Uint8 } else { self.kernel.dtype };
        let span = Span::new(work, self.args.blocks[i].instance, at, step, dtype.size());
        let local = |buf: u8, chunk: u32, scaled| {
            let (addr, len) = span.local(work, buf, chunk);
            Operand { addr, len, scaled }
        };
        let received = |&peer: &u16| {
            let addr = self.fifo(i, peer).slot_to_take();
            Operand { addr, len: span.nominal, scaled: false }
        };
        let from = &step.recv[..usize::from(step.n_recv)];
        let mut operands: SmallVec<[Operand; FEW]> = from.iter().map(received).collect();
        let order = usize::from(step.order).min(operands.len());
        if step.flags & HAS_SRC != 0 {
            operands.insert(order, local(step.src_buf, step.src_chunk, step.flags & PRE != 0));
        }
        if step.flags & ACC_DST != 0 {
            operands.insert(order, local(step.dst_buf, step.dst_chunk, false));
        }
        let mut to: SmallVec<[(u64, usize); FEW]> = SmallVec::new();
        if step.flags & HAS_DST != 0 {
            to.push(span.local(work, step.dst_buf, step.dst_chunk));
        }
        to.extend(
            step.send[..usize::from(step.n_send)]
                .iter()
                .map(|&p| (self.fifo(i, p).slot_to_fill(), span.nominal)),
        );
        self.combine(dtype, step, &operands, &to);
        self.publish(i, step, (span.nominal * span.size) as u32 | work.tag);
    }

    fn combine(&self, dtype: DataType, step: &Step, operands: &[Operand], to: &[(u64, usize)]) {
        let divisor = if step.flags & POST != 0 { self.args.divisor } else { 1 };
        if let ([one], 1) = (operands, divisor)
            && !one.scaled
        {
            for &(addr, len) in to {
                let bytes = len.min(one.len) * dtype.size();
                // SAFETY: both ranges are within a FIFO slot or a user buffer (see `Span::local`); equal
                // ranges are allowed.
                unsafe { std::ptr::copy(one.addr as *const u8, addr as *mut u8, bytes) };
            }
            return;
        }
        let rule = Rule {
            op: self.kernel.op,
            scalar: self.args.scalar,
            scalar_is_address: self.args.scalar_is_address != 0,
            divisor,
            is_nested: self.kernel.variant == Variant::Nested,
        };
        // SAFETY: as above.
        unsafe { reduce(dtype, &rule, operands, to) };
    }

    /// Tells the peers: slots filled with `bytes` bytes (and the work's tag), slots free again.
    fn publish(&self, i: usize, step: &Step, bytes: u32) {
        for &peer in &step.recv[..usize::from(step.n_recv)] {
            self.fifo(i, peer).receiver().give_back();
        }
        for &peer in &step.send[..usize::from(step.n_send)] {
            self.fifo(i, peer).hand_over(bytes);
        }
    }

    fn advance(&mut self, i: usize) {
        let (times, n_steps) = (self.step(i).times, u32::from(self.args.blocks[i].n_steps));
        let work = &self.args.works[usize::from(self.args.blocks[i].work)];
        let at = &mut self.blocks[i];
        at.place.advance(work, times, n_steps);
        at.over = at.place.tile >= work.tiles;
    }

    fn fifo(&self, i: usize, peer: u16) -> Fifo {
        let index = usize::from(self.args.blocks[i].lane) * self.comm.ranks as usize + usize::from(peer);
        // SAFETY: lowering checked lane and peer against the communicator; the table has lanes * ranks
        // entries.
        let conn = unsafe { *(self.comm.conns as *const Conn).add(index) };
        let p = Protocol::Simple as usize;
        let (offset, stride) = (u64::from(self.comm.fifo_offset[p]), u64::from(self.comm.slot_stride[p]));
        Fifo { conn, offset, stride, depth: u64::from(self.comm.depth) }
    }

    /// Checks that the run may go on waiting.
    fn check(&self, waiting_since: Instant) -> Result<()> {
        // SAFETY: the abort word lives as long as the communicator.
        let aborted =
            unsafe { &*(self.comm.abort as *const AtomicU32) }.load(Ordering::Acquire) == abort_word::LEAVE;
        let limit = Duration::from_nanos(self.comm.deadline_ns);
        let late = self.comm.deadline_ns != 0 && waiting_since.elapsed() >= limit;
        let in_vain = if self.roster.is_quiet() { None } else { self.in_vain(waiting_since) };
        if !aborted && !late && in_vain.is_none() {
            return Ok(());
        }
        let (peer, sentence) = self.awaited_sentence().unzip();
        let sentence = sentence.unwrap_or_default();
        let who = format!(
            "communicator {}, rank {}, {}",
            self.name,
            self.comm.rank,
            number_text(self.args.op_number)
        );
        let with_peer = |error: Error| match peer {
            Some(peer) => error.or_peer(peer),
            None => error,
        };
        Err(with_peer(if let Some(why) = in_vain {
            let text = format!("{who}: {}; it happened{sentence}", why.text);
            why.with_text(text)
        } else if aborted {
            Error::new(ErrorKind::Aborted, format!("{who}: aborted{sentence}"))
        } else {
            let text = format!("{who}: deadline of {:?} passed{sentence}", limit);
            Error::new(ErrorKind::Timeout, text).remedy("look at that rank, or raise HAWSER_OP_TIMEOUT")
        }))
    }

    /// The rank that the run waits for, and the end of a sentence that says so.
    fn awaited_sentence(&self) -> Option<(u32, String)> {
        if let Some(copies) = &self.copies {
            // Copy engines use no FIFOs: there may be none.
            let peer = copies.awaited()?;
            return Some((peer, format!(" while copy engines waited for rank {peer}")));
        }
        (0..self.blocks.len()).filter(|i| !self.blocks[*i].over).find_map(|i| {
            let Awaited { what, peer } = self.awaited(i)?;
            let Place { step, tile, .. } = self.blocks[i].place;
            let text =
                format!(" while it waited for {what} of rank {peer} (block {i}, step {step}, tile {tile})");
            Some((peer, text))
        })
    }
}

impl Run<'_> {
    /// Notes in the journal what the first block that waits is waiting for.
    #[cold]
    fn note_wait(&self) {
        let number = self.args.op_number;
        if let Some(copies) = &self.copies {
            if let Some(peer) = copies.awaited() {
                self.journal.waits(number, peer, operation::Awaited::Copy, (0, 0));
            }
            return;
        }
        let waiting = (0..self.blocks.len()).filter(|i| !self.blocks[*i].over);
        let mut waiting = waiting.filter_map(|i| Some((i, self.awaited(i)?)));
        // What another rank has to do says more than what another channel has.
        let is_of_peer = |(_, awaited): &(usize, Awaited)| awaited.peer != self.comm.rank;
        if let Some((i, awaited)) = waiting.find(is_of_peer) {
            let place = (i as u32, self.blocks[i].place.step);
            self.journal.waits(number, awaited.peer, awaited.what, place);
        }
    }

    /// The reason why the run waits in vain, if it does: for a rank that has gone, or in an operation of all
    /// ranks one of which is dead.
    #[cold]
    fn in_vain(&self, waiting_since: Instant) -> Option<Error> {
        let of_all = self.args.op_number & MESSAGES == 0;
        let copies = self.copies.iter().filter_map(Copies::awaited);
        let blocks = (0..self.blocks.len()).filter(|i| self.copies.is_none() && !self.blocks[*i].over);
        let peers = blocks.filter_map(|i| self.awaited(i)).map(|awaited| awaited.peer);
        copies.chain(peers).find_map(|peer| self.roster.check(peer, waiting_since, of_all).err())
    }
}

/// The slot that a block waits for.
struct Awaited {
    what: operation::Awaited,
    peer: u32,
}

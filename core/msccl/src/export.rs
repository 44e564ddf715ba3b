//! Programs as MSCCL's XML.
//!
//! A block of MSCCL talks to one rank each way, so a channel becomes as many blocks as it has peers, and
//! every step waits for the one before it if that is in another block. What a step does with several peers is
//! spread over several steps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use rustc_hash::FxHashMap;

use super::MOST_SLOTS;
use super::xml::Kind;
use hawser_program::verify::verify;
use hawser_program::{Buf, Op, Program, RankProgram, Ref, Shape, Step};
use hawser_types::Collective;
use hawser_types::Protocol;
use hawser_types::{PlanError, Result};

/// Steps of a block, and channels, at most.
const MOST_STEPS: usize = 256;
const MOST_CHANNELS: u32 = 32;

/// The conditions under which a runtime may take the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The protocol.
    pub protocol: Protocol,
    /// Bytes, both included; `u64::MAX` = no limit.
    pub bytes: (u64, u64),
}

/// Writes `program` in the dialect of Azure's executor and RCCL, for calls out of place, and in place where
/// the program is right there too.
///
/// # Errors
/// `BadProgram` for what the format cannot say: a network, runs, native steps, a protocol without FIFOs, too
/// many channels or steps.
pub fn to_xml(program: &Program, window: &Window) -> Result<String> {
    let shape = &program.shape;
    let bad = |text: String| Err(PlanError::program(format!("{}: {text}", shape.name)));
    if program.ranks.len() as u32 != shape.ranks {
        return bad("MSCCL knows no networks that reduce".into());
    }
    if program.ranks.iter().any(|rank| rank.longest_run() > 1) {
        return bad("its runs of chunks travel as one, which MSCCL cannot say: export another one".into());
    }
    let lanes = program.ranks.iter().map(RankProgram::lane_count).max().unwrap_or(0).max(1);
    if lanes > MOST_CHANNELS {
        return bad(format!("{lanes} channels, MSCCL has {MOST_CHANNELS}"));
    }
    let blocks = shape.collective.input_blocks(shape.ranks).max(shape.collective.output_blocks(shape.ranks));
    let root = if shape.collective.rooted() { format!(" root=\"{}\"", shape.root) } else { String::new() };
    let (least, most) = window.bytes;
    let mut text = format!(
        "<algo name=\"{}\" proto=\"{}\" nchannels=\"{lanes}\" nchunksperloop=\"{}\" ngpus=\"{}\" \
         coll=\"{}\"{root} \
         inplace=\"{}\" outofplace=\"1\" minBytes=\"{least}\" maxBytes=\"{}\">\n",
        escaped(&shape.name),
        window.protocol.name(),
        blocks * shape.per_block,
        shape.ranks,
        collective(shape.collective),
        u32::from(runs_in_place(program)),
        if most == u64::MAX { 0 } else { most },
    );
    for (id, rank) in program.ranks.iter().enumerate() {
        let mut writer = Rank::new(shape);
        for number in 0..rank.channels.len() {
            writer.channel(rank, number)?;
        }
        writer.print(&mut text, id as u32)?;
    }
    text.push_str("</algo>\n");
    Ok(text)
}

/// True if a runtime may call the program in place. NCCL has no all-to-all in place, so nothing proves that
/// one survives it, and nothing says what a program of no collective promises there.
fn runs_in_place(program: &Program) -> bool {
    let has_none = matches!(program.shape.collective, Collective::AllToAll | Collective::SendRecv);
    !has_none && verify(program, MOST_SLOTS, true).is_ok()
}

fn collective(collective: Collective) -> &'static str {
    match collective {
        Collective::AllReduce => "allreduce",
        Collective::AllGather => "allgather",
        Collective::ReduceScatter => "reducescatter",
        Collective::AllToAll => "alltoall",
        Collective::Broadcast => "broadcast",
        Collective::Reduce => "reduce",
        Collective::Gather => "gather",
        Collective::Scatter => "scatter",
        Collective::SendRecv => "custom",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// A block on its way.
#[derive(Debug, Default)]
struct Block {
    send: Option<u32>,
    recv: Option<u32>,
    lane: u32,
    steps: Vec<Out>,
}

/// A step on its way; what it waits for are places before nops are put in.
#[derive(Debug)]
struct Out {
    kind: Kind,
    src: Ref,
    dst: Ref,
    after: BTreeMap<usize, usize>,
    /// Steps of other channels, by their number there.
    after_step: Vec<(u32, u32)>,
}

struct Rank<'a> {
    shape: &'a Shape,
    blocks: Vec<Block>,
    /// Block and step that end a step of a channel.
    ends: FxHashMap<(u32, u32), (usize, usize)>,
    scratch: u32,
    /// The latest step of the channel.
    last: Option<(usize, usize)>,
    /// The steps that the next step waits for.
    pending: Vec<(u32, u32)>,
    /// Blocks of the channel by peer.
    senders: FxHashMap<u32, usize>,
    receivers: FxHashMap<u32, usize>,
    local: usize,
}

impl<'a> Rank<'a> {
    fn new(shape: &'a Shape) -> Self {
        Self {
            shape,
            blocks: Vec::new(),
            ends: FxHashMap::default(),
            scratch: shape.scratch,
            last: None,
            pending: Vec::new(),
            senders: FxHashMap::default(),
            receivers: FxHashMap::default(),
            local: 0,
        }
    }

    fn channel(&mut self, rank: &RankProgram, number: usize) -> Result<()> {
        let channel = &rank.channels[number];
        if channel.steps.is_empty() {
            return Ok(());
        }
        self.make_blocks(&channel.steps, rank.lane(number as u32));
        self.last = None;
        let spare = Ref { buf: Buf::Scratch, chunk: self.scratch };
        for (index, step) in channel.steps.iter().enumerate() {
            self.pending = step.after.iter().map(|dep| (dep.channel, dep.step)).collect();
            for repetition in 0..step.times {
                let moved = |reference: Ref| Ref {
                    chunk: step.chunk_at(reference.chunk, repetition, self.shape.chunks(reference.buf)),
                    ..reference
                };
                let (src, dst) = (step.src.map(moved), step.dst.map(moved));
                self.step(step, src, dst, spare)?;
            }
            let last = self.last.unwrap_or_default();
            self.ends.insert((number as u32, index as u32), last);
        }
        Ok(())
    }

    /// One block per pair of peers that steps join, if neither is met in the other direction too, then one
    /// per peer that is left: so a rank talks to a peer on a channel in one block only.
    fn make_blocks(&mut self, steps: &[Step], lane: u32) {
        (self.senders, self.receivers) = (FxHashMap::default(), FxHashMap::default());
        self.local = self.blocks.len();
        let sends_to = |peer: u32| steps.iter().any(|step| step.send.contains(&peer));
        let receives_from = |peer: u32| steps.iter().any(|step| step.recv.contains(&peer));
        for step in steps {
            if let ([from], [to]) = (step.recv.as_slice(), step.send.as_slice())
                && (from == to || !(sends_to(*from) || receives_from(*to)))
                && !self.receivers.contains_key(from)
                && !self.senders.contains_key(to)
            {
                self.receivers.insert(*from, self.blocks.len());
                self.senders.insert(*to, self.blocks.len());
                self.blocks.push(Block { send: Some(*to), recv: Some(*from), lane, steps: Vec::new() });
            }
        }
        let peers: BTreeSet<u32> =
            steps.iter().flat_map(|step| step.send.iter().chain(&step.recv)).copied().collect();
        for peer in peers {
            let sends = sends_to(peer) && !self.senders.contains_key(&peer);
            let receives = receives_from(peer) && !self.receivers.contains_key(&peer);
            if !sends && !receives {
                continue;
            }
            if sends {
                self.senders.insert(peer, self.blocks.len());
            }
            if receives {
                self.receivers.insert(peer, self.blocks.len());
            }
            let (send, recv) = (sends.then_some(peer), receives.then_some(peer));
            self.blocks.push(Block { send, recv, lane, steps: Vec::new() });
        }
        if self.blocks.len() == self.local {
            self.blocks.push(Block { lane, ..Block::default() });
        }
    }

    /// One repetition of a step. `spare` keeps what has no place of its own.
    fn step(&mut self, step: &Step, src: Option<Ref>, dst: Option<Ref>, spare: Ref) -> Result<()> {
        let lacks = || PlanError::program(format!("{}: a step lacks an operand", self.shape.name));
        match step.op {
            Op::Native(id) => {
                let text = format!("{}: native kernel {id} is no step of MSCCL", self.shape.name);
                return Err(PlanError::program(text));
            }
            Op::Copy | Op::Reduce => {
                let kind = if step.op == Op::Copy { Kind::Cpy } else { Kind::Re };
                let block = self.last.map_or(self.local, |(block, _)| block);
                self.push(block, kind, src.ok_or_else(lacks)?, dst.ok_or_else(lacks)?);
            }
            Op::Send => self.send(&step.send, src.ok_or_else(lacks)?),
            Op::CopySend => {
                let (src, dst) = (src.ok_or_else(lacks)?, dst.ok_or_else(lacks)?);
                self.send(&step.send, src);
                let block = self.last.map_or(self.local, |(block, _)| block);
                self.push(block, Kind::Cpy, src, dst);
            }
            Op::Recv | Op::RecvCopySend => {
                let &from = step.recv.first().ok_or_else(lacks)?;
                let at = dst.unwrap_or(spare);
                self.keep(at);
                let block = self.receivers[&from];
                if let [to] = step.send.as_slice()
                    && self.senders[to] == block
                {
                    self.push(block, Kind::Rcs, at, at);
                } else {
                    self.push(block, Kind::R, at, at);
                    self.send(&step.send, at);
                }
            }
            Op::RecvReduceSend | Op::RecvReduceCopy | Op::RecvReduceCopySend => {
                self.reduce(step, src.ok_or_else(lacks)?, dst, spare)?;
            }
        }
        Ok(())
    }

    fn reduce(&mut self, step: &Step, src: Ref, dst: Option<Ref>, spare: Ref) -> Result<()> {
        let at = dst.unwrap_or(spare);
        let mut local = src;
        for (index, from) in step.recv.iter().enumerate() {
            let block = self.receivers[from];
            let is_last = index + 1 == step.recv.len();
            let fused = is_last && matches!(step.send.as_slice(), [to] if self.senders[to] == block);
            match (fused, dst) {
                (true, None) => self.push(block, Kind::Rrs, local, at),
                (true, Some(_)) => self.push(block, Kind::Rrcs, local, at),
                (false, _) => {
                    self.keep(at);
                    self.push(block, Kind::Rrc, local, at);
                    if is_last {
                        self.send(&step.send, at);
                    }
                }
            }
            local = at;
        }
        Ok(())
    }

    fn send(&mut self, to: &[u32], src: Ref) {
        to.iter().for_each(|peer| self.push(self.senders[peer], Kind::S, src, src));
    }

    /// A chunk of scratch that is written must exist.
    fn keep(&mut self, at: Ref) {
        if at.buf == Buf::Scratch {
            self.scratch = self.scratch.max(at.chunk + 1);
        }
    }

    fn push(&mut self, block: usize, kind: Kind, src: Ref, dst: Ref) {
        let mut after = BTreeMap::new();
        if let Some((other, step)) = self.last.filter(|(other, _)| *other != block) {
            after.insert(other, step);
        }
        let after_step = std::mem::take(&mut self.pending);
        self.blocks[block].steps.push(Out { kind, src, dst, after, after_step });
        self.last = Some((block, self.blocks[block].steps.len() - 1));
    }

    fn print(mut self, text: &mut String, id: u32) -> Result<()> {
        for out in self.blocks.iter_mut().flat_map(|block| &mut block.steps) {
            for key in std::mem::take(&mut out.after_step) {
                let Some(&(block, step)) = self.ends.get(&key) else { continue };
                let known = out.after.entry(block).or_insert(step);
                *known = step.max(*known);
            }
        }
        let [inputs, outputs] = [Buf::Input, Buf::Output].map(|buf| self.shape.chunks(buf));
        let scratch = self.scratch;
        let _ = writeln!(
            text,
            "  <gpu id=\"{id}\" i_chunks=\"{inputs}\" o_chunks=\"{outputs}\" s_chunks=\"{scratch}\">"
        );
        // Nops before a step shift its number.
        let numbers: Vec<Vec<usize>> = self.blocks.iter().map(numbers).collect();
        let awaited: BTreeSet<(usize, usize)> = self
            .blocks
            .iter()
            .flat_map(|b| &b.steps)
            .flat_map(|out| out.after.iter().map(|(b, s)| (*b, *s)))
            .collect();
        for (number, block) in self.blocks.iter().enumerate() {
            let total = numbers[number].last().map_or(0, |last| last + 1);
            if total > MOST_STEPS {
                let text = format!("{}: {total} steps in a block, MSCCL takes {MOST_STEPS}", self.shape.name);
                return Err(PlanError::program(text));
            }
            let peer = |peer: Option<u32>| peer.map_or(-1, i64::from);
            let (send, recv) = (peer(block.send), peer(block.recv));
            let _ = writeln!(
                text,
                "    <tb id=\"{number}\" send=\"{send}\" recv=\"{recv}\" chan=\"{}\">",
                block.lane
            );
            for (index, out) in block.steps.iter().enumerate() {
                let waits: Vec<(usize, usize)> =
                    out.after.iter().map(|(&b, &s)| (b, numbers[b][s])).collect();
                print_step(text, out, numbers[number][index], &waits, awaited.contains(&(number, index)));
            }
            text.push_str("    </tb>\n");
        }
        text.push_str("  </gpu>\n");
        Ok(())
    }
}

/// The numbers of a block's steps, nops counted.
fn numbers(block: &Block) -> Vec<usize> {
    let mut next = 0;
    let number = |out: &Out| {
        next += out.after.len().max(1);
        next - 1
    };
    block.steps.iter().map(number).collect()
}

fn print_step(text: &mut String, out: &Out, number: usize, waits: &[(usize, usize)], has_dep: bool) {
    let (last, nops) = waits.split_last().map_or((None, &[][..]), |(last, nops)| (Some(last), nops));
    for (index, (block, step)) in nops.iter().enumerate() {
        let s = number - nops.len() + index;
        let _ = writeln!(
            text,
            "      <step s=\"{s}\" type=\"nop\" srcbuf=\"i\" srcoff=\"-1\" dstbuf=\"o\" dstoff=\"-1\" \
             cnt=\"0\" \
             depid=\"{block}\" deps=\"{step}\" hasdep=\"0\"/>"
        );
    }
    let (depid, deps) = last.map_or((-1, -1), |&(block, step)| (block as i64, step as i64));
    let buf = |reference: Ref| ["i", "o", "s"][reference.buf as usize];
    let _ = writeln!(
        text,
        "      <step s=\"{number}\" type=\"{}\" srcbuf=\"{}\" srcoff=\"{}\" dstbuf=\"{}\" dstoff=\"{}\" \
         cnt=\"1\" \
         depid=\"{depid}\" deps=\"{deps}\" hasdep=\"{}\"/>",
        out.kind.name(),
        buf(out.src),
        out.src.chunk,
        buf(out.dst),
        out.dst.chunk,
        u8::from(has_dep)
    );
}

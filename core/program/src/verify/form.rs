//! First pass: every step by itself.

use super::fault::{At, Fault};
use crate::{Buf, Channel, MAX_FAN, Op, Program, RankProgram, Ref, Shape, Step};
use hawser_types::Collective;
use rustc_hash::FxHashMap;

/// Most chunks and executed steps of all ranks, so that a hostile text cannot exhaust memory.
const MOST: u64 = 1 << 25;

/// Most entries of clocks: of every channel of every rank, and of every step that others wait for.
const MOST_CLOCKS: u64 = 1 << 27;

/// Chunks of `buf` on `rank`: 0 where the rank has no such buffer.
pub(super) fn chunks_on(shape: &Shape, buf: Buf, rank: u32) -> u32 {
    if rank >= shape.ranks {
        return 0; // a network
    }
    let has = match buf {
        Buf::Input => shape.collective.has_input(rank, shape.root),
        Buf::Output => shape.collective.has_output(rank, shape.root),
        Buf::Scratch => true,
    };
    if has { shape.chunks(buf) } else { 0 }
}

/// Checks shape, operands, peers, bounds and dependencies.
pub(super) fn check(program: &Program) -> Result<(), Fault> {
    let shape = &program.shape;
    check_shape(program)?;
    for (rank, rank_program) in program.ranks.iter().enumerate() {
        check_lanes(rank as u32, rank_program)?;
        check_runs(shape, rank as u32, rank_program)?;
        for (channel, steps) in rank_program.channels.iter().enumerate() {
            for (number, step) in steps.steps.iter().enumerate() {
                let at =
                    At { rank: rank as u32, channel: channel as u32, step: number as u32, repetition: 0 };
                let bad = |what: String| Fault::BadStep { at, what };
                let is_network = at.rank >= shape.ranks;
                check_operands(step, is_network).map_err(|what| bad(what.to_string()))?;
                if shape.collective == Collective::SendRecv && step.op.reduces() {
                    return Err(bad("combines values, but a custom program only moves them".to_string()));
                }
                check_peers(step, program.ranks.len() as u32, at.rank, is_network).map_err(bad)?;
                if step.finish && !shape.collective.reduces() {
                    return Err(bad("finishes a value, but the collective reduces nothing".to_string()));
                }
                for dep in &step.after {
                    let awaited = rank_program.channels.get(dep.channel as usize);
                    let exists = awaited.is_some_and(|c| (dep.step as usize) < c.steps.len());
                    if rank_program.run(dep.channel) > 1 {
                        return Err(bad(format!("waits for channel {}, which moves runs", dep.channel)));
                    }
                    if !exists || dep.channel == at.channel {
                        return Err(bad(format!(
                            "waits for channel {} step {}, which is not a step of another channel",
                            dep.channel, dep.step
                        )));
                    }
                }
                for reference in step.src.into_iter().chain(step.dst) {
                    check_bounds(shape, at, reference, rank_program.run(at.channel))?;
                }
            }
        }
    }
    Ok(())
}

fn check_shape(program: &Program) -> Result<(), Fault> {
    let shape = &program.shape;
    let bad = |what: String| Err(Fault::BadShape(what));
    if shape.ranks == 0 || program.ranks.len() < shape.ranks as usize {
        return bad(format!("{} ranks are declared, {} have programs", shape.ranks, program.ranks.len()));
    }
    if shape.root >= shape.ranks {
        return bad(format!("root {} is not one of {} ranks", shape.root, shape.ranks));
    }
    if shape.per_block == 0 {
        return bad("a block of no chunks".to_string());
    }
    let blocks = [shape.collective.input_blocks(shape.ranks), shape.collective.output_blocks(shape.ranks)];
    let per_rank: u64 = blocks.iter().map(|&b| u64::from(b) * u64::from(shape.per_block)).sum();
    let chunks = (per_rank + u64::from(shape.scratch)).saturating_mul(u64::from(shape.ranks));
    let executions = program.ranks.iter().fold(0u64, |sum, rank| {
        let of_channel = |(channel, steps): (u32, &Channel)| {
            let times: u64 = steps.steps.iter().map(|step| u64::from(step.times)).sum();
            times.saturating_mul(rank.run(channel).into())
        };
        (0..).zip(&rank.channels).map(of_channel).fold(sum, u64::saturating_add)
    });
    if chunks > MOST || executions > MOST {
        return bad(format!(
            "{chunks} chunks and {executions} executed steps (one for each chunk of a run), the verifier \
             takes {MOST} of each"
        ));
    }
    let channels = program.ranks[0].channels.len();
    if let Some(rank) = program.ranks.iter().position(|rank| rank.channels.len() != channels) {
        let found = program.ranks[rank].channels.len();
        return bad(format!("rank {rank} has {found} channels, rank 0 has {channels}: add empty ones"));
    }
    check_clocks(program, (program.ranks.len() * channels) as u64)
}

/// Checks that the order of all steps can be kept track of.
fn check_clocks(program: &Program, processes: u64) -> Result<(), Fault> {
    let is_concurrent =
        |rank: &RankProgram| rank.channels.iter().filter(|channel| !channel.steps.is_empty()).count() > 1;
    let steps = program.ranks.iter().flat_map(|rank| &rank.channels).flat_map(|channel| &channel.steps);
    let awaited: u64 = steps.map(|step| step.after.len() as u64).sum();
    let clocks = processes.saturating_mul(processes.saturating_add(awaited));
    if clocks > MOST_CLOCKS && program.ranks.iter().any(is_concurrent) {
        return Err(Fault::BadShape(format!(
            "{processes} channels of all ranks and {awaited} waits between them are too many to prove: use \
             fewer channels"
        )));
    }
    Ok(())
}

/// A FIFO's counters belong to one channel of a rank.
fn check_lanes(rank: u32, program: &RankProgram) -> Result<(), Fault> {
    if program.lanes.is_empty() {
        return Ok(());
    }
    let channels = program.channels.len();
    if program.lanes.len() != channels {
        return Err(Fault::BadShape(format!(
            "rank {rank} names {} lanes for {channels} channels",
            program.lanes.len()
        )));
    }
    let mut users = FxHashMap::default();
    for (channel, steps) in program.channels.iter().enumerate() {
        let lane = program.lane(channel as u32);
        for &peer in steps.steps.iter().flat_map(|step| step.recv.iter().chain(&step.send)) {
            let user = *users.entry((lane, peer)).or_insert(channel);
            if user != channel {
                return Err(Fault::SharedLane { rank, peer, lane, channels: [user, channel] });
            }
        }
    }
    Ok(())
}

/// Runs cut every buffer evenly, and chunks lie side by side: each is a whole block.
fn check_runs(shape: &Shape, rank: u32, program: &RankProgram) -> Result<(), Fault> {
    if program.runs.is_empty() {
        return Ok(());
    }
    let bad = |what: String| Err(Fault::BadShape(format!("rank {rank} {what}")));
    let (channels, runs) = (program.channels.len(), program.runs.len());
    if runs != channels {
        return bad(format!("names {runs} runs for {channels} channels"));
    }
    if program.longest_run() > 1 && shape.per_block > 1 {
        return bad(format!("moves runs of blocks that are cut into {} chunks", shape.per_block));
    }
    let buffers = [Buf::Input, Buf::Output, Buf::Scratch];
    for &run in &program.runs {
        let is_even = |buf: &Buf| shape.chunks(*buf).is_multiple_of(run.max(1));
        if run == 0 || !buffers.iter().all(is_even) {
            return bad(format!("has a run of {run} chunks, which does not cut every buffer evenly"));
        }
    }
    Ok(())
}

fn check_bounds(shape: &Shape, at: At, reference: Ref, run: u32) -> Result<(), Fault> {
    let chunks = chunks_on(shape, reference.buf, at.rank) / run;
    if reference.chunk < chunks { Ok(()) } else { Err(Fault::OutOfBounds { at, reference, chunks }) }
}

fn check_operands(step: &Step, is_network: bool) -> Result<(), &'static str> {
    let (src, dst) = (step.src.is_some(), step.dst.is_some());
    let (recv, send) = (step.recv.len(), step.send.len());
    let fits = match step.op {
        Op::RecvReduceSend if is_network => !src && !dst && recv > 0 && send > 0,
        Op::Copy | Op::Reduce => src && dst && recv == 0 && send == 0,
        Op::Send => src && !dst && recv == 0 && send > 0,
        Op::CopySend => src && dst && recv == 0 && send > 0,
        Op::Recv => !src && dst && recv == 1 && send == 0,
        Op::RecvCopySend => !src && recv == 1 && send > 0,
        Op::RecvReduceSend => src && !dst && recv > 0 && send > 0,
        Op::RecvReduceCopy => src && dst && recv > 0 && send == 0,
        Op::RecvReduceCopySend => src && dst && recv > 0 && send > 0,
        Op::Native(_) => return Err("a native step cannot be proved: verify the program that it stands for"),
    };
    if !fits {
        return Err("has operands or peers that its operation does not take, or lacks some");
    }
    if step.times == 0 {
        return Err("runs zero times");
    }
    Ok(())
}

fn check_peers(step: &Step, ranks: u32, rank: u32, is_network: bool) -> Result<(), String> {
    if step.order as usize > step.recv.len() {
        return Err(format!("order {} is beyond its {} peers", step.order, step.recv.len()));
    }
    for (list, what) in [(&step.recv, "receives from"), (&step.send, "sends to")] {
        if list.len() > MAX_FAN && !is_network {
            return Err(format!("{what} {} ranks at once, at most {MAX_FAN} fit", list.len()));
        }
        for (place, &peer) in list.iter().enumerate() {
            if peer >= ranks {
                return Err(format!("{what} rank {peer}, there are {ranks}"));
            }
            if peer == rank {
                return Err(format!("{what} itself: use a copy"));
            }
            if list[..place].contains(&peer) {
                return Err(format!("{what} rank {peer} twice: use two steps"));
            }
        }
    }
    Ok(())
}

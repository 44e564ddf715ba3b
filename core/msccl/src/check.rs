//! The rules that every file must keep, seen step by step: numbering, peers, connections, bounds and
//! dependencies.

use super::fault::{Class, ImportError, Result};
use super::xml::{Algo, Block, Gpu, Kind, Step};
use hawser_program::Buf;
use hawser_types::Collective;
use rustc_hash::FxHashMap;

/// Most blocks of a rank in a file; those that a launch has no room for are folded.
const MOST_BLOCKS: usize = 256;

/// Most contributions to chunks of all ranks, chunks that steps move, and blocks times steps, so that the
/// proof of no file exhausts memory.
const MOST_VALUES: u64 = 1 << 26;
const MOST_MOVES: u64 = 1 << 24;
const MOST_ORDERS: u64 = 1 << 28;

/// Sorts ranks and blocks by their numbers, then checks everything that needs no execution.
pub(super) fn check(algo: &mut Algo) -> Result<()> {
    algo.gpus = in_order(&mut algo.gpus, |gpu| gpu.id);
    algo.gpus.iter_mut().for_each(|gpu| gpu.blocks = in_order(&mut gpu.blocks, |block| block.id));
    let algo = &*algo;
    shape(algo)?;
    size(algo)?;
    for gpu in &algo.gpus {
        counts(algo, gpu)?;
        for block in &gpu.blocks {
            peers(algo, gpu, block)?;
            for step in &block.steps {
                moves_only(algo, step)?;
                bounds(algo, gpu, step)?;
                dependency(gpu, block, step)?;
            }
            waits_end(block)?;
        }
    }
    connections(algo)
}

/// A program of no known collective may not combine values: nothing says which sum would be right.
fn moves_only(algo: &Algo, step: &Step) -> Result<()> {
    if algo.collective != Collective::SendRecv || !step.kind.reduces() {
        return Ok(());
    }
    let text = format!("{} combines values: a custom program only moves them", step.kind.name());
    Err(ImportError::new(Class::Collective, step.pos, text))
}

/// Chunks of input and output of a rank.
pub(super) fn chunks(algo: &Algo, buf: Buf) -> u32 {
    let blocks = match buf {
        Buf::Input => algo.collective.input_blocks(algo.ranks),
        Buf::Output => algo.collective.output_blocks(algo.ranks),
        Buf::Scratch => return 0,
    };
    blocks * per_block(algo)
}

/// Chunks of a block of the call's `count` elements.
pub(super) fn per_block(algo: &Algo) -> u32 {
    let (inputs, outputs) =
        (algo.collective.input_blocks(algo.ranks), algo.collective.output_blocks(algo.ranks));
    algo.chunks / inputs.max(outputs)
}

fn shape(algo: &Algo) -> Result<()> {
    let bad = |class, text: String| Err(ImportError::new(class, algo.pos, text));
    if algo.name.is_empty() {
        return bad(Class::Attribute, "the name is empty".into());
    }
    if algo.ranks < 2 {
        return bad(Class::Ranks, "one rank has nobody to talk to: ngpus is 2 or more".into());
    }
    for (expected, gpu) in (0..).zip(&algo.gpus) {
        if gpu.id != expected {
            let what = if gpu.id < expected { "comes twice" } else { "comes after a gap" };
            return Err(ImportError::new(Class::Ranks, gpu.pos, format!("gpu {} {what}", gpu.id)));
        }
    }
    if algo.gpus.len() as u32 != algo.ranks {
        return bad(
            Class::Ranks,
            format!("ngpus is {}, there are {} <gpu> elements", algo.ranks, algo.gpus.len()),
        );
    }
    let (inputs, outputs) =
        (algo.collective.input_blocks(algo.ranks), algo.collective.output_blocks(algo.ranks));
    if !algo.chunks.is_multiple_of(inputs.max(outputs)) || per_block(algo) == 0 {
        let text = format!("{} chunks do not divide into the blocks of {} ranks", algo.chunks, algo.ranks);
        return bad(Class::Bounds, text);
    }
    if let Some(root) = algo.root.filter(|root| *root >= algo.ranks) {
        return bad(Class::Attribute, format!("root {root} is not one of {} ranks", algo.ranks));
    }
    Ok(())
}

/// Checks that following every value and every block stays within limits.
fn size(algo: &Algo) -> Result<()> {
    let blocks = || algo.gpus.iter().flat_map(|gpu| &gpu.blocks);
    let steps = || blocks().flat_map(|block| &block.steps);
    let scratch: u64 = algo.gpus.iter().map(|gpu| u64::from(gpu.used[2])).sum();
    let ranks = u64::from(algo.ranks);
    let values =
        (2 * ranks * u64::from(algo.chunks) + scratch) * if algo.collective.reduces() { ranks } else { 1 };
    let moves: u64 = steps().map(|step| u64::from(step.count)).sum();
    let orders = blocks().count() as u64 * steps().count() as u64;
    for (found, most, what) in [
        (values, MOST_VALUES, "contributions to chunks"),
        (moves, MOST_MOVES, "moved chunks"),
        (orders, MOST_ORDERS, "blocks times steps"),
    ] {
        if found > most {
            let text = format!("too large to prove: {found} {what}, at most {most}");
            return Err(ImportError::new(Class::Limit, algo.pos, text));
        }
    }
    Ok(())
}

/// Counts of chunks are 0 (not used) or those that the collective has; blocks are numbered.
fn counts(algo: &Algo, gpu: &Gpu) -> Result<()> {
    for (buf, used, name) in [(Buf::Input, gpu.used[0], "i_chunks"), (Buf::Output, gpu.used[1], "o_chunks")] {
        let has = chunks(algo, buf);
        // In place, the one buffer that is named has the size of the larger one.
        let larger = algo.aliased && used == algo.chunks;
        // Both buffers of a program of no collective have the chunks of the larger one.
        let fewer = algo.collective == Collective::SendRecv && used <= has;
        if used != 0 && used != has && !larger && !fewer {
            let text =
                format!("{name}=\"{used}\" on gpu {}, but the collective has {has} chunks there", gpu.id);
            return Err(ImportError::new(Class::Bounds, gpu.pos, text));
        }
    }
    if gpu.blocks.len() > MOST_BLOCKS {
        let text = format!("gpu {} has {} blocks, at most {MOST_BLOCKS}", gpu.id, gpu.blocks.len());
        return Err(ImportError::new(Class::Limit, gpu.pos, text));
    }
    for (expected, block) in (0..).zip(&gpu.blocks) {
        if block.id != expected {
            let text = format!("tb {} of gpu {} where tb {expected} should come", block.id, gpu.id);
            return Err(ImportError::new(Class::Numbering, block.pos, text));
        }
        for (expected, step) in (0..).zip(&block.steps) {
            if step.number != expected {
                let text = format!("step {} where step {expected} should come", step.number);
                return Err(ImportError::new(Class::Numbering, step.pos, text));
            }
        }
    }
    Ok(())
}

fn peers(algo: &Algo, gpu: &Gpu, block: &Block) -> Result<()> {
    let bad = |at, text: String| Err(ImportError::new(Class::Peer, at, text));
    for (peer, what) in [(block.send, "send"), (block.recv, "recv")] {
        let Some(peer) = peer else { continue };
        if peer >= algo.ranks {
            return bad(block.pos, format!("{what}=\"{peer}\", but there are {} ranks", algo.ranks));
        }
        if peer == gpu.id {
            return bad(block.pos, format!("{what}=\"{peer}\" is the rank itself: use cpy"));
        }
    }
    if block.chan >= algo.channels {
        return bad(block.pos, format!("chan {}, but nchannels is {}", block.chan, algo.channels));
    }
    for step in &block.steps {
        let name = step.kind.name();
        if step.kind.sends() && block.send.is_none() {
            return bad(step.pos, format!("{name} sends, but the block has send=\"-1\""));
        }
        if step.kind.receives() && block.recv.is_none() {
            return bad(step.pos, format!("{name} receives, but the block has recv=\"-1\""));
        }
    }
    Ok(())
}

fn bounds(algo: &Algo, gpu: &Gpu, step: &Step) -> Result<()> {
    let bad = |text: String| Err(ImportError::new(Class::Bounds, step.pos, text));
    if step.kind == Kind::Nop {
        return Ok(());
    }
    if step.count == 0 {
        return bad(format!("{} moves cnt 0 chunks", step.kind.name()));
    }
    if step.kind.reduces() && !algo.collective.reduces() {
        let text =
            format!("{} combines values, but {} combines nothing", step.kind.name(), algo.collective.name());
        return Err(ImportError::new(Class::WrongResult, step.pos, text));
    }
    let operands = [(step.kind.reads(), step.src, "src"), (step.kind.writes(), step.dst, "dst")];
    for (_, (buf, offset), side) in operands.into_iter().filter(|(used, ..)| *used) {
        let (has, name) = match buf {
            Buf::Input => (chunks(algo, buf), "input"),
            Buf::Output => (chunks(algo, buf), "output"),
            Buf::Scratch => (gpu.used[2], "scratch"),
        };
        if offset < 0 || offset + i64::from(step.count) > i64::from(has) {
            let last = offset + i64::from(step.count) - 1;
            return bad(format!(
                "{side}: chunks {offset} to {last} of the {name}, which has {has} chunks on gpu {}",
                gpu.id
            ));
        }
    }
    Ok(())
}

fn dependency(gpu: &Gpu, block: &Block, step: &Step) -> Result<()> {
    let Some((on, number)) = step.dep else { return Ok(()) };
    let bad = |text: String| Err(ImportError::new(Class::Dependency, step.pos, text));
    let awaited = gpu.blocks.get(on as usize).and_then(|block| block.steps.get(number as usize));
    match awaited {
        None => bad(format!("waits for step {number} of tb {on}, which does not exist")),
        Some(_) if on == block.id => bad(format!("waits for step {number} of its own block")),
        Some(awaited) if awaited.kind == Kind::Nop => {
            bad(format!("waits for step {number} of tb {on}, which is a nop"))
        }
        Some(awaited) if !awaited.has_dep => {
            bad(format!("waits for step {number} of tb {on}, which has hasdep=\"0\" and tells nobody"))
        }
        Some(_) => Ok(()),
    }
}

/// A chain of nops ends in a step that waits too: only that one makes a device look at the chain.
fn waits_end(block: &Block) -> Result<()> {
    for (index, step) in block.steps.iter().enumerate().filter(|(_, step)| step.kind == Kind::Nop) {
        let bad = |text: &str| Err(ImportError::new(Class::Dependency, step.pos, text));
        if step.dep.is_none() {
            return bad("a nop that waits for nothing");
        }
        match block.steps.get(index + 1) {
            None => return bad("a nop at the end of its block: nothing waits with it"),
            Some(next) if next.dep.is_none() => return bad("a nop before a step that waits for nothing"),
            Some(_) => {}
        }
    }
    Ok(())
}

/// Every (sender, receiver, channel) has one block at each end, and what is sent is what is received.
fn connections(algo: &Algo) -> Result<()> {
    let mut ends: FxHashMap<(u32, u32, u32), [Option<&Block>; 2]> = FxHashMap::default();
    for gpu in &algo.gpus {
        for block in &gpu.blocks {
            let sends = block.send.filter(|_| block.steps.iter().any(|step| step.kind.sends()));
            let receives = block.recv.filter(|_| block.steps.iter().any(|step| step.kind.receives()));
            let out = sends.map(|to| ((gpu.id, to, block.chan), 0));
            let back = receives.map(|from| ((from, gpu.id, block.chan), 1));
            for (key, side) in out.into_iter().chain(back) {
                let end = &mut ends.entry(key).or_default()[side];
                if let Some(other) = end.replace(block) {
                    let verb = if side == 0 { "send to" } else { "receive from" };
                    let peer = if side == 0 { key.1 } else { key.0 };
                    let text = format!(
                        "tb {} and tb {} of gpu {} both {verb} rank {peer} on channel {}",
                        other.id, block.id, gpu.id, block.chan
                    );
                    return Err(ImportError::new(Class::Connection, block.pos, text));
                }
            }
        }
    }
    let mut ends: Vec<_> = ends.into_iter().collect();
    ends.sort_by_key(|(end, _)| *end);
    ends.into_iter().try_for_each(|((from, to, chan), sides)| connection(from, to, chan, sides))
}

/// The items in the order of their numbers.
fn in_order<T>(items: &mut Vec<T>, number: impl Fn(&T) -> u32) -> Vec<T> {
    items.sort_by_key(number);
    std::mem::take(items)
}

fn connection(from: u32, to: u32, chan: u32, [sender, receiver]: [Option<&Block>; 2]) -> Result<()> {
    let name = format!("from rank {from} to rank {to} on channel {chan}");
    let (sender, receiver) = match (sender, receiver) {
        (Some(sender), Some(receiver)) => (sender, receiver),
        (Some(block), None) => {
            let text = format!("nobody receives what is sent {name}");
            return Err(ImportError::new(Class::Connection, block.pos, text));
        }
        (None, block) => {
            let at = block.map(|block| block.pos).unwrap_or_default();
            return Err(ImportError::new(
                Class::Connection,
                at,
                format!("nobody sends what is received {name}"),
            ));
        }
    };
    let mut receives = receiver.steps.iter().filter(|step| step.kind.receives());
    for (k, send) in sender.steps.iter().filter(|step| step.kind.sends()).enumerate() {
        let Some(receive) = receives.next() else {
            let text = format!("send {k} {name} has no receive: the receiver has {k}");
            return Err(ImportError::new(Class::Mismatch, send.pos, text));
        };
        if send.count != receive.count {
            let text = format!(
                "transfer {k} {name}: {} chunks are sent, {} are received (line {})",
                send.count, receive.count, receive.pos.line
            );
            return Err(ImportError::new(Class::Mismatch, send.pos, text));
        }
    }
    match receives.next() {
        None => Ok(()),
        Some(extra) => {
            let text = format!("receives once more {name} than is sent");
            Err(ImportError::new(Class::Mismatch, extra.pos, text))
        }
    }
}

/// The root of a collective that has one: the one named, else the only rank that never receives (or sends).
pub(super) fn root(algo: &Algo) -> Result<u32> {
    if !algo.collective.rooted() {
        return Ok(0);
    }
    if let Some(root) = algo.root {
        return Ok(root);
    }
    let from_root = matches!(algo.collective, Collective::Broadcast | Collective::Scatter);
    let speaks = |step: &Step| if from_root { step.kind.receives() } else { step.kind.sends() };
    let silent = |gpu: &&Gpu| !gpu.blocks.iter().flat_map(|block| &block.steps).any(speaks);
    let mut roots = algo.gpus.iter().filter(silent);
    match (roots.next(), roots.next()) {
        (Some(root), None) => Ok(root.id),
        _ => {
            let text =
                format!("which rank is the root of this {}? Say root=\"RANK\"", algo.collective.name());
            Err(ImportError::new(Class::Attribute, algo.pos, text))
        }
    }
}

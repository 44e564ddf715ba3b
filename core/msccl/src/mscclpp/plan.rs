//! The file as it is written, in both dialects: ranks, threadblocks and the channels and buffers that each of
//! them names.

use std::collections::BTreeMap;

use super::json::{File, Node, Object};
use super::op::{self, Act, Op};
use crate::fault::{Change, Class, ImportError, Result};
use crate::xml::{Algo, Dialect, Gpu, Pos};
use hawser_program::Buf;
use hawser_types::Collective;
use hawser_types::Protocol;

/// Most ranks, threadblocks of a rank, chunks of a buffer, operations of all ranks.
pub(super) const MOST: u32 = 1024;
pub(super) const MOST_CHUNKS: u32 = 1 << 16;
const MOST_OPS: usize = 1 << 20;
/// Most channels of a kind and rank.
const MOST_CHANNELS: usize = 1 << 12;
/// Most parts into which groups of threadblocks cut a chunk.
const MOST_PARTS: u32 = 64;

/// A plan.
pub(super) struct Plan {
    /// The file's description of itself and its ranks, without blocks.
    pub algo: Algo,
    pub ranks: Vec<Rank>,
}

/// The operations of one rank.
pub(super) struct Rank {
    /// First values of its semaphores.
    pub semaphores: Vec<u32>,
    /// Operations of each threadblock.
    pub blocks: Vec<Vec<Op>>,
}

/// The ways in which data are carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Wire {
    Memory,
    Port,
}

/// One end of a channel: the `nth` of its kind to `peer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Channel {
    pub peer: u32,
    pub wire: Wire,
    pub nth: u32,
}

/// The buffers that a channel of the older dialect joins: here, and at the peer.
pub(super) type Ends = Option<(Buf, Buf)>;

/// The channels and buffers that the operations of a threadblock name by numbers.
#[derive(Default)]
pub(super) struct Wires {
    pub channels: BTreeMap<(Wire, Ends), Vec<Channel>>,
    pub buffers: BTreeMap<Wire, Vec<(u32, Buf)>>,
}

/// Reads a plan.
pub(super) fn read(text: &str) -> Result<Plan> {
    let file = File::new(text);
    let root = file.root()?.object()?;
    let gpus: Vec<Object<'_>> =
        root.required("gpus")?.list()?.into_iter().map(Node::object).collect::<Result<_>>()?;
    let is_old = gpus.first().is_some_and(|gpu| gpu.get("inputChunks").is_some());
    let mut algo = head(&root, gpus.len() as u32)?;
    let mut numbered = Vec::new();
    for gpu in &gpus {
        numbered.push((gpu.number("id", MOST)?, gpu));
    }
    numbered.sort_by_key(|(id, _)| *id);
    let mut ranks = Vec::new();
    let mut left = MOST_OPS;
    for (expected, (id, gpu)) in (0..).zip(numbered) {
        if id != expected {
            let text = format!("gpu {id} where gpu {expected} should come: ids are 0, 1, 2, …");
            return Err(gpu.error(Class::Ranks, text));
        }
        algo.gpus.push(Gpu { pos: gpu.pos(), id, used: used(gpu, is_old)?, blocks: Vec::new() });
        ranks.push(read_rank(gpu, id, algo.ranks, is_old, &mut left)?);
    }
    let mut plan = Plan { algo, ranks };
    cut(&mut plan)?;
    plan.algo.chunks = plan.algo.gpus.iter().map(|gpu| gpu.used[0].max(gpu.used[1])).max().unwrap_or(0);
    Ok(plan)
}

/// Adds to an error where it is.
pub(super) fn named(error: ImportError, place: &str) -> ImportError {
    ImportError { text: format!("{place}: {}", error.text), ..error }
}

fn head(root: &Object<'_>, ranks: u32) -> Result<Algo> {
    if ranks > MOST {
        return Err(root.error(Class::Limit, format!("{ranks} gpus, at most {MOST}")));
    }
    let protocol = root.required("protocol")?;
    let protocol = match protocol.word()?.as_str() {
        "Simple" => Protocol::Simple,
        "LL" => Protocol::Ll,
        "LL128" => Protocol::Ll128,
        _ => return Err(protocol.wrong("\"Simple\", \"LL\" or \"LL128\"")),
    };
    let bytes = |name: &str, default| root.get(name).map_or(Ok(default), |node| node.number(u64::MAX));
    let window = (bytes("min_message_size", 0)?, bytes("max_message_size", u64::MAX)?);
    if window.0 > window.1 {
        let text =
            format!("no size fits: min_message_size {} is above max_message_size {}", window.0, window.1);
        return Err(root.error(Class::Attribute, text));
    }
    let collective = collective(root.required("collective")?)?;
    let mut in_place = root.required("inplace")?.flag()?;
    let mut changes = Vec::new();
    if collective == Collective::SendRecv && in_place {
        changes.push(Change::new(root.pos(), crate::xml::TWO_BUFFERS));
        in_place = false;
    }
    Ok(Algo {
        pos: root.pos(),
        name: crate::xml::plain(&root.required("name")?.word()?),
        protocol,
        channels: 1,
        chunks: 0,
        ranks,
        collective,
        root: None,
        aliased: in_place,
        in_place,
        window,
        dialect: Dialect::Mscclpp,
        gpus: Vec::new(),
        changes,
        moved: None,
    })
}

fn collective(node: Node<'_>) -> Result<Collective> {
    match node.word()?.as_str() {
        "allreduce" => Ok(Collective::AllReduce),
        "allgather" => Ok(Collective::AllGather),
        "reducescatter" | "reduce_scatter" => Ok(Collective::ReduceScatter),
        "alltoall" => Ok(Collective::AllToAll),
        // What the plan moves is what it is for: a call of its own asks for it by name.
        "custom" | "sendrecv" | "test" => Ok(Collective::SendRecv),
        _ => Err(node.wrong("allreduce, allgather, reducescatter, alltoall, sendrecv, test or custom")),
    }
}

/// Chunks of input, output and scratch.
fn used(gpu: &Object<'_>, is_old: bool) -> Result<[u32; 3]> {
    let names = match is_old {
        true => ["inputChunks", "outputChunks", "scratchChunks"],
        false => ["input_chunks", "output_chunks", "scratch_chunks"],
    };
    let [input, output, scratch] = names.map(|name| gpu.number(name, MOST_CHUNKS));
    Ok([input?, output?, scratch?])
}

fn read_rank(gpu: &Object<'_>, id: u32, ranks: u32, is_old: bool, left: &mut usize) -> Result<Rank> {
    let joined = if is_old { old_channels(gpu, ranks) } else { channels(gpu, ranks) };
    let joined = joined.map_err(|error| named(error, &format!("gpu {id}")))?;
    let buffers = remote_buffers(gpu, ranks).map_err(|error| named(error, &format!("gpu {id}")))?;
    let semaphores = gpu.list("semaphores")?.into_iter();
    let semaphores =
        semaphores.map(|node| node.object()?.number("init_value", u32::MAX)).collect::<Result<_>>()?;
    let mut numbered = Vec::new();
    for block in gpu.required("threadblocks")?.list()? {
        let block = block.object()?;
        numbered.push((block.number("id", MOST)?, block));
    }
    numbered.sort_by_key(|(id, _)| *id);
    let mut blocks = Vec::new();
    for (expected, (number, block)) in (0..).zip(&numbered) {
        if *number != expected {
            let text = format!("threadblock {number} of gpu {id} where {expected} should come");
            return Err(block.error(Class::Numbering, text));
        }
        let place = format!("gpu {id} threadblock {number}");
        let wires = wires(block, &joined, &buffers, is_old).map_err(|error| named(error, &place))?;
        let nodes = block.list("ops")?;
        let reader = op::Reader { rank: id, place, wires: &wires, is_old };
        blocks.push(reader.read(&nodes, left)?);
    }
    Ok(Rank { semaphores, blocks })
}

/// All channels of a rank, by what joins them.
type Joined = BTreeMap<(Wire, Ends), Vec<Channel>>;

fn channels(gpu: &Object<'_>, ranks: u32) -> Result<Joined> {
    let mut joined = Joined::new();
    for node in gpu.list("channels")? {
        let node = node.object()?;
        if let Some(wire) = wire(node.required("channel_type")?)? {
            join(&mut joined, (wire, None), node.required("connected_to")?, ranks)?;
        }
    }
    Ok(joined)
}

fn old_channels(gpu: &Object<'_>, ranks: u32) -> Result<Joined> {
    let mut joined = Joined::new();
    for node in gpu.list("channels")? {
        let node = node.object()?;
        if let Some(wire) = wire(node.required("type")?)? {
            let ends = (buffer(node.required("srcbuff")?)?, buffer(node.required("dstbuff")?)?);
            join(&mut joined, (wire, Some(ends)), node.required("connectedTo")?, ranks)?;
        }
    }
    Ok(joined)
}

/// Both ends of a channel count those of its kind to the other rank.
fn join(joined: &mut Joined, key: (Wire, Ends), peers: Node<'_>, ranks: u32) -> Result<()> {
    for node in peers.list()? {
        let peer = node.number(u64::from(ranks.saturating_sub(1)))? as u32;
        let same = joined.iter().filter(|((wire, _), _)| *wire == key.0).flat_map(|(_, channels)| channels);
        let nth = same.filter(|channel| channel.peer == peer).count() as u32;
        let known = joined.entry(key).or_default();
        if known.len() >= MOST_CHANNELS {
            return Err(node.error(Class::Limit, format!("more than {MOST_CHANNELS} channels")));
        }
        known.push(Channel { peer, wire: key.0, nth });
    }
    Ok(())
}

fn remote_buffers(gpu: &Object<'_>, ranks: u32) -> Result<Vec<(u32, Buf)>> {
    let read = |node: Node<'_>| -> Result<(u32, Buf)> {
        let node = node.object()?;
        Ok((node.number("rank", ranks.saturating_sub(1))?, buffer(node.required("type")?)?))
    };
    gpu.list("remote_buffers")?.into_iter().map(read).collect()
}

/// Reads the list that the numbers of a threadblock stand for.
fn wires(block: &Object<'_>, joined: &Joined, buffers: &[(u32, Buf)], is_old: bool) -> Result<Wires> {
    let mut wires = Wires::default();
    let (kind, ids) = if is_old { ("ctype", "cids") } else { ("channel_type", "channel_ids") };
    for node in block.list("channels")? {
        let node = node.object()?;
        let Some(wire) = wire(node.required(kind)?)? else { continue };
        let ends = match is_old {
            true => Some((buffer(node.required("src")?)?, buffer(node.required("dst")?)?)),
            false => None,
        };
        let known = joined.get(&(wire, ends)).map_or(&[][..], Vec::as_slice);
        for id in node.numbers(ids, u32::MAX)? {
            let channel = known.get(id as usize).copied().ok_or_else(|| {
                let text = format!("channel {id}, but the gpu has {} of this kind", known.len());
                node.error(Class::Connection, text)
            })?;
            wires.channels.entry((wire, ends)).or_default().push(channel);
        }
    }
    for node in block.list("remote_buffer_refs")? {
        let node = node.object()?;
        let Some(wire) = wire(node.required("access_channel_type")?)? else { continue };
        for id in node.numbers("remote_buffer_ids", u32::MAX)? {
            let remote = buffers.get(id as usize).copied().ok_or_else(|| {
                let text = format!("remote buffer {id}, but the gpu has {}", buffers.len());
                node.error(Class::Connection, text)
            })?;
            wires.buffers.entry(wire).or_default().push(remote);
        }
    }
    Ok(wires)
}

/// The wire of a channel; None = through the switch, whose operations are refused where they stand.
pub(super) fn wire(node: Node<'_>) -> Result<Option<Wire>> {
    match node.word()?.as_str() {
        "memory" | "sm" => Ok(Some(Wire::Memory)),
        "port" | "proxy" => Ok(Some(Wire::Port)),
        "switch" | "nvls" | "none" => Ok(None),
        _ => Err(node.wrong("memory, port, switch or none")),
    }
}

pub(super) fn buffer(node: Node<'_>) -> Result<Buf> {
    match node.word()?.as_str() {
        "i" => Ok(Buf::Input),
        "o" => Ok(Buf::Output),
        "s" => Ok(Buf::Scratch),
        _ => Err(node.wrong("\"i\", \"o\" or \"s\"")),
    }
}

/// Threadblocks of a group share an operation, each a part of its bytes: chunks are cut until every part is
/// whole chunks.
fn cut(plan: &mut Plan) -> Result<()> {
    let places = plan.ranks.iter().flat_map(|rank| rank.blocks.iter().flatten()).flat_map(Op::places);
    let (mut parts, mut most, mut is_shared) = (1, 0, false);
    for (place, pos) in places {
        is_shared |= place.of != 1;
        let own = place.of / gcd(place.of, place.count);
        parts = parts / gcd(parts, own) * own;
        most = most.max(place.first.saturating_add(place.count));
        if parts > MOST_PARTS {
            return Err(too_fine(pos, parts));
        }
    }
    if !is_shared && most <= MOST_CHUNKS {
        return Ok(());
    }
    let used = plan.algo.gpus.iter().flat_map(|gpu| gpu.used).max().unwrap_or(0);
    if u64::from(used.max(most)) * u64::from(parts) > u64::from(MOST_CHUNKS) {
        return Err(too_fine(plan.algo.pos, parts));
    }
    plan.algo.gpus.iter_mut().flat_map(|gpu| &mut gpu.used).for_each(|chunks| *chunks *= parts);
    plan.each_place(|place| {
        let count = place.count * parts / place.of;
        *place =
            op::Place { first: place.first * parts + place.part * count, count, part: 0, of: 1, ..*place };
    });
    Ok(())
}

fn too_fine(pos: Pos, parts: u32) -> ImportError {
    let text = format!(
        "more than {MOST_CHUNKS} chunks of a buffer, or {parts} parts of a chunk (at most {MOST_PARTS})"
    );
    ImportError::new(Class::Limit, pos, text)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

impl Plan {
    fn each_place(&mut self, mut change: impl FnMut(&mut op::Place)) {
        let blocks = self.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
        for op in blocks.flatten() {
            if let Act::Data { moves, .. } = &mut op.act {
                moves.iter_mut().flat_map(|one| one.from.iter_mut().chain(&mut one.to)).for_each(&mut change);
            }
        }
    }
}

//! Operations of a threadblock, brought into one form: what is waited for, and which sums go where.

use super::json::{Node, Object};
use super::plan::{Channel, MOST, MOST_CHUNKS, Wire, Wires, buffer, named, wire};
use crate::fault::{Class, ImportError, Result};
use crate::xml::Pos;
use hawser_program::Buf;

/// Most channels, semaphores, sources or targets of an operation.
const MOST_OPERANDS: usize = 64;

/// An operation.
pub(super) struct Op {
    pub pos: Pos,
    /// `gpu 0 threadblock 1 op 2 (put)`.
    pub place: String,
    pub act: Act,
}

/// The acts of operations.
pub(super) enum Act {
    /// Tells the far ends of channels that all before is done; also after data.
    Signal(Vec<Channel>),
    /// Waits until the far ends told once more.
    Wait(Vec<Channel>),
    /// Waits until `of` threadblocks have come to the barrier.
    Barrier {
        id: u32,
        of: u32,
    },
    Acquire(Vec<u32>),
    Release(Vec<u32>),
    /// Moves, then signals.
    Data {
        moves: Vec<Move>,
        signals: Vec<Channel>,
    },
}

/// The sum of `from` (one value: a copy) is kept in all `to`.
#[derive(Clone)]
pub(super) struct Move {
    pub from: Vec<Place>,
    pub to: Vec<Place>,
}

/// Chunks of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub rank: u32,
    pub buf: Buf,
    pub first: u32,
    pub count: u32,
    /// With a flag beside the data: a reader waits until they are written.
    pub packet: bool,
    /// Part `part` of `of` equal parts.
    pub part: u32,
    pub of: u32,
}

impl Op {
    /// All places, each with that of the operation in the file.
    pub fn places(&self) -> impl Iterator<Item = (&Place, Pos)> {
        let moves = match &self.act {
            Act::Data { moves, .. } => moves.as_slice(),
            _ => &[],
        };
        moves.iter().flat_map(|one| one.from.iter().chain(&one.to)).map(|place| (place, self.pos))
    }
}

/// The kinds of memory that an operand may be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Here,
    HerePacket,
    There,
    TherePacket,
}

/// The operands of an operation with data.
struct Form {
    /// First source, the other sources.
    from: [Side; 2],
    /// First, second and the other targets.
    to: [Side; 3],
    /// One sum, not a copy for each target.
    sums: bool,
    signals: bool,
}

/// Reads the operations of a threadblock.
pub(super) struct Reader<'a> {
    pub rank: u32,
    pub place: String,
    pub wires: &'a Wires,
    pub is_old: bool,
}

impl Reader<'_> {
    /// All of them; `left` is how many more a file may have.
    pub fn read(&self, nodes: &[Node<'_>], left: &mut usize) -> Result<Vec<Op>> {
        let mut ops = Vec::new();
        self.read_into(nodes, &self.place, left, &mut ops)?;
        Ok(ops)
    }

    fn read_into(&self, nodes: &[Node<'_>], within: &str, left: &mut usize, ops: &mut Vec<Op>) -> Result<()> {
        for (number, node) in nodes.iter().enumerate() {
            let place = format!("{within} op {number}");
            let here = |error: ImportError| named(error, &place);
            *left =
                left.checked_sub(1).ok_or_else(|| here(node.error(Class::Limit, "too many operations")))?;
            let op = node.object().map_err(here)?;
            let name = op.required("name").and_then(Node::word).map_err(here)?;
            let name: String = name.chars().take(20).collect();
            let place = format!("{place} ({name})");
            // A pipeline does the same to one piece of the data after the other; here all programs run piece
            // by piece.
            if name == "pipeline" && !self.is_old {
                let inner = op.required("ops").and_then(Node::list).map_err(|error| named(error, &place))?;
                if inner.iter().any(|node| is_pipeline(*node)) {
                    return Err(named(node.error(Class::Attribute, "a pipeline within a pipeline"), &place));
                }
                self.read_into(&inner, &place, left, ops)?;
                continue;
            }
            let act = few(&op).and_then(|()| self.act(&name, &op)).map_err(|error| named(error, &place))?;
            ops.extend(act.map(|act| Op { pos: node.pos(), place, act }));
        }
        Ok(())
    }

    /// The effect of an operation; None = nothing that matters between threadblocks.
    fn act(&self, name: &str, op: &Object<'_>) -> Result<Option<Act>> {
        let count = if self.is_old { "nthread_blocks" } else { "num_threadblocks" };
        Ok(Some(match name {
            // All threads of a threadblock; a step is over for all of them anyway. What was put is on its way
            // anyway.
            "nop" | "flush" => return Ok(None),
            "signal" | "rlxsignal" => Act::Signal(self.channels(op, "o_cids", "o_buff")?),
            "wait" | "rlxwait" => Act::Wait(self.channels(op, "i_cids", "i_buff")?),
            "barrier" => {
                Act::Barrier { id: op.number("barrier_id", MOST)?, of: op.number(count, MOST)?.max(1) }
            }
            "sem_acquire" => Act::Acquire(op.numbers("semaphore_ids", MOST_CHUNKS)?),
            "sem_release" => Act::Release(op.numbers("semaphore_ids", MOST_CHUNKS)?),
            "glres" | "glre" | "gstore" | "gstorepkt" => {
                let text = "needs a multicast object of the switch, and this version uses no multicast";
                return Err(op.error(Class::Operation, text));
            }
            _ => self.data(name, op)?,
        }))
    }

    fn data(&self, name: &str, op: &Object<'_>) -> Result<Act> {
        let is_port = matches!(self.wire(op)?, Some(Wire::Port));
        let form = if self.is_old { old_form(name, is_port) } else { form(name, is_port) };
        let form = form
            .ok_or_else(|| op.error(Class::Operation, "no operation that can be imported has this name"))?;
        if let Some(reduction) = op.get("reduce_op")
            && reduction.word()? != "sum"
        {
            let text = "the plan fixes the reduction; here the call names it: \"sum\" stands for that";
            return Err(reduction.error(Class::Operation, text));
        }
        let (from, to) = if self.is_old { self.old_places(op, &form)? } else { self.places(op, &form)? };
        if from.is_empty() || to.is_empty() {
            return Err(op.error(Class::Attribute, "lacks a source or a target"));
        }
        if let Some(other) = from.iter().chain(&to).find(|place| place.count != from[0].count) {
            let text = format!("operands of {} and of {} chunks", from[0].count, other.count);
            return Err(op.error(Class::Mismatch, text));
        }
        if from[0].count == 0 {
            return Err(op.error(Class::Bounds, "moves no chunks"));
        }
        let signals = if form.signals { self.channels(op, "o_cids", "o_buff")? } else { Vec::new() };
        let moves = match (form.sums, from.len()) {
            (true, _) | (false, 1) => vec![Move { from, to }],
            (false, sources) if sources == to.len() => {
                from.into_iter().zip(to).map(|(from, to)| Move { from: vec![from], to: vec![to] }).collect()
            }
            (false, sources) => {
                let text = format!("{sources} sources for {} targets", to.len());
                return Err(op.error(Class::Mismatch, text));
            }
        };
        Ok(Act::Data { moves, signals })
    }

    /// Sources and targets.
    fn places(&self, op: &Object<'_>, form: &Form) -> Result<(Vec<Place>, Vec<Place>)> {
        let (part, of) = match op.get("tbg_info") {
            None => (0, 1),
            Some(group) => {
                let group = group.object()?;
                let of = group.number("tbg_size", MOST)?.max(1);
                (group.number("tb_id", of - 1)?, of)
            }
        };
        let wire = self.wire(op)?;
        let read = |list: &str, sides: &[Side]| -> Result<Vec<Place>> {
            let nodes = op.required(list)?.list()?.into_iter().enumerate();
            let one = |(index, node): (usize, Node<'_>)| -> Result<Place> {
                let side = sides[index.min(sides.len() - 1)];
                let node = node.object()?;
                let (rank, buf) = self.memory(&node, side, wire)?;
                let (first, count) = (node.number("index", MOST_CHUNKS)?, node.number("size", MOST_CHUNKS)?);
                Ok(Place { rank, buf, first, count, packet: side.is_packet(), part, of })
            };
            nodes.map(one).collect()
        };
        Ok((read("src_buff", &form.from)?, read("dst_buff", &form.to)?))
    }

    /// Rank and buffer of an operand.
    fn memory(&self, node: &Object<'_>, side: Side, wire: Option<Wire>) -> Result<(u32, Buf)> {
        match (side.is_here(), node.get("type"), node.get("buffer_id")) {
            (true, Some(kind), None) => Ok((self.rank, buffer(kind)?)),
            (false, None, Some(id)) => {
                let known =
                    wire.and_then(|wire| self.wires.buffers.get(&wire)).map_or(&[][..], Vec::as_slice);
                let number = id.number(u64::from(u32::MAX))? as usize;
                known.get(number).copied().ok_or_else(|| {
                    let text = format!("buffer_id {number}, but the threadblock has {}", known.len());
                    id.error(Class::Connection, text)
                })
            }
            (true, ..) => {
                Err(node.error(Class::Attribute, "where a buffer of this gpu (\"type\") should come"))
            }
            (false, ..) => {
                Err(node.error(Class::Attribute, "where a remote buffer (\"buffer_id\") should come"))
            }
        }
    }

    /// The same in the older dialect: operands lie in fields of their own.
    fn old_places(&self, op: &Object<'_>, form: &Form) -> Result<(Vec<Place>, Vec<Place>)> {
        let count = op.number("cnt", MOST_CHUNKS)?;
        let here = |buf: Node<'_>, off: Node<'_>, packet: bool| -> Result<Place> {
            let first = off.number(u64::from(MOST_CHUNKS))? as u32;
            Ok(Place { rank: self.rank, buf: buffer(buf)?, first, count, packet, part: 0, of: 1 })
        };
        let one = |buf: &str, off: &str, side: Side| -> Result<Option<Place>> {
            let Some(node) = op.get(buf) else { return Ok(None) };
            here(node, op.required(off)?, side.is_packet()).map(Some)
        };
        let many = |list: &str, side: Side| -> Result<Vec<Place>> {
            let read = |node: Node<'_>| {
                let node = node.object()?;
                here(node.required("buff")?, node.required("off")?, side.is_packet())
            };
            op.list(list)?.into_iter().map(read).collect()
        };
        let there = |list: &str, ends: &str, side: Side| -> Result<Vec<Place>> {
            let Some(found) = self.old_channels(op, list, ends)? else { return Ok(Vec::new()) };
            let place = |(channel, buf, first): (Channel, Buf, u32)| Place {
                rank: channel.peer,
                buf,
                first,
                count,
                packet: side.is_packet(),
                part: 0,
                of: 1,
            };
            Ok(found.into_iter().map(place).collect())
        };
        let mut from: Vec<Place> = one("srcbuff", "srcoff", form.from[0])?.into_iter().collect();
        let mut to: Vec<Place> = one("dstbuff", "dstoff", form.to[0])?.into_iter().collect();
        from.extend(many("srcs", form.from[1])?);
        to.extend(many("dsts", form.to[1])?);
        if !form.from[1].is_here() {
            from.extend(there("i_cids", "i_buff", form.from[1])?);
        }
        if !form.to[2].is_here() {
            to.extend(there("o_cids", "o_buff", form.to[2])?);
        }
        Ok((from, to))
    }

    fn wire(&self, op: &Object<'_>) -> Result<Option<Wire>> {
        let kind = if self.is_old { "ctype" } else { "channel_type" };
        op.get(kind).map_or(Ok(None), wire)
    }

    /// The channels that an operation names.
    fn channels(&self, op: &Object<'_>, old_list: &str, old_ends: &str) -> Result<Vec<Channel>> {
        if self.is_old {
            let found = self.old_channels(op, old_list, old_ends)?;
            let missing = || op.error(Class::Attribute, format!("\"{old_list}\" is missing"));
            return Ok(found.ok_or_else(missing)?.into_iter().map(|(channel, ..)| channel).collect());
        }
        let wire =
            self.wire(op)?.ok_or_else(|| op.error(Class::Operation, "needs a memory or port channel"))?;
        let known = self.wires.channels.get(&(wire, None)).map_or(&[][..], Vec::as_slice);
        let ids = op.numbers("channel_ids", u32::MAX)?;
        ids.into_iter().map(|id| channel(op, known, id)).collect()
    }

    /// Channels of the older dialect with the buffer at the far end and the offset there; None = there is no
    /// such list.
    fn old_channels(
        &self,
        op: &Object<'_>,
        list: &str,
        ends: &str,
    ) -> Result<Option<Vec<(Channel, Buf, u32)>>> {
        if op.get(list).is_none() {
            return Ok(None);
        }
        let wire =
            self.wire(op)?.ok_or_else(|| op.error(Class::Operation, "needs an sm or proxy channel"))?;
        let ends = op.required(ends)?.object()?;
        let ends = (buffer(ends.required("src")?)?, buffer(ends.required("dst")?)?);
        let known = self.wires.channels.get(&(wire, Some(ends))).map_or(&[][..], Vec::as_slice);
        let one = |node: Node<'_>| -> Result<(Channel, Buf, u32)> {
            let node = node.object()?;
            let first = node.get("off").map_or(Ok(0), |off| off.number(u64::from(MOST_CHUNKS)))? as u32;
            Ok((channel(op, known, node.number("id", u32::MAX)?)?, ends.1, first))
        };
        op.list(list)?.into_iter().map(one).collect::<Result<_>>().map(Some)
    }
}

/// Lists of operands are short.
fn few(op: &Object<'_>) -> Result<()> {
    let lists = ["channel_ids", "semaphore_ids", "src_buff", "dst_buff", "i_cids", "o_cids", "srcs", "dsts"]
        .map(|name| op.list(name));
    match lists.into_iter().collect::<Result<Vec<_>>>()?.iter().any(|list| list.len() > MOST_OPERANDS) {
        true => Err(op.error(Class::Limit, format!("more than {MOST_OPERANDS} channels or operands"))),
        false => Ok(()),
    }
}

fn channel(op: &Object<'_>, known: &[Channel], id: u32) -> Result<Channel> {
    known.get(id as usize).copied().ok_or_else(|| {
        let text = format!("channel {id}, but the threadblock has {} of this kind", known.len());
        op.error(Class::Connection, text)
    })
}

fn is_pipeline(node: Node<'_>) -> bool {
    let name = node.object().and_then(|op| op.required("name")?.word());
    name.is_ok_and(|name| name == "pipeline")
}

impl Side {
    fn is_here(self) -> bool {
        matches!(self, Self::Here | Self::HerePacket)
    }

    fn is_packet(self) -> bool {
        matches!(self, Self::HerePacket | Self::TherePacket)
    }
}

/// The operands of an operation of the present dialect.
fn form(name: &str, is_port: bool) -> Option<Form> {
    use Side::{Here, HerePacket, There, TherePacket};
    let copy = |from, to| Form { from: [from; 2], to: [to; 3], sums: false, signals: false };
    let sum = |other, second, rest| Form {
        from: [Here, other],
        to: [Here, second, rest],
        sums: true,
        signals: false,
    };
    Some(match name {
        "put" => copy(Here, There),
        "pws" | "pwsf" => Form { signals: true, ..copy(Here, There) },
        "get" => copy(There, Here),
        "copy" => copy(Here, Here),
        // A port carries packets as they lie.
        "ppkt" => copy(if is_port { HerePacket } else { Here }, TherePacket),
        "rppkt" => copy(HerePacket, TherePacket),
        "cpkt" => copy(Here, HerePacket),
        "upkt" => copy(HerePacket, Here),
        "re" => sum(Here, Here, Here),
        "res" => sum(Here, There, There),
        "rre" => sum(There, Here, Here),
        "rres" => sum(There, There, There),
        "repkt" => sum(HerePacket, Here, Here),
        "respkt" => sum(HerePacket, TherePacket, TherePacket),
        "recpkt" => sum(HerePacket, HerePacket, HerePacket),
        "recspkt" => sum(HerePacket, HerePacket, TherePacket),
        _ => return None,
    })
}

/// Those of the older dialect, whose names differ.
fn old_form(name: &str, is_port: bool) -> Option<Form> {
    match name {
        "rs" => form("res", is_port),
        "rrc" => form("rre", is_port),
        "rrcs" => form("rres", is_port),
        "rpkt" => form("repkt", is_port),
        "rspkt" => form("respkt", is_port),
        "cpkt" => form("upkt", is_port),
        "tpkt" => form("cpkt", is_port),
        "put" | "pws" | "pwsf" | "get" | "copy" | "ppkt" | "rppkt" | "re" => form(name, is_port),
        _ => None,
    }
}

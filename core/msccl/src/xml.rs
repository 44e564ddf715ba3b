//! The file as it is written: elements and attributes with their places, in the terms of MSCCL.

use std::borrow::Cow;
use std::str::FromStr;

use roxmltree::{Document, Node};

use super::fault::{Change, Class, ImportError, Result};
use hawser_program::Buf;
use hawser_types::Collective;
use hawser_types::Protocol;

/// A place in the file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub(super) struct Pos {
    pub line: u32,
    pub column: u32,
}

/// A text, and where its lines begin: places are asked for with every element.
pub(super) struct Lines<'a> {
    pub text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub fn of(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self { text, starts: std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect() }
    }

    /// The place of a byte.
    pub fn pos(&self, at: usize) -> Pos {
        let line = self.starts.partition_point(|start| *start <= at);
        let before = self.text.get(self.starts[line - 1]..at).unwrap_or("");
        Pos { line: line as u32, column: before.chars().count() as u32 + 1 }
    }
}

/// The incompatible forms of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// microsoft/msccl and msccl-tools: `inplace`, an optional window of sizes that excludes its end.
    Research,
    /// Azure's executor and RCCL: `inplace` and `outofplace`, a window that includes its end, 0 = no limit.
    Azure,
    /// Output of synthesizers: neither.
    Synthesizer,
    /// JSON of MSCCL++.
    Mscclpp,
}

impl Dialect {
    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Research => "research",
            Self::Azure => "Azure/RCCL",
            Self::Synthesizer => "synthesizer",
            Self::Mscclpp => "MSCCL++",
        }
    }
}

/// An `algo` element.
#[derive(Debug, Clone)]
pub(super) struct Algo {
    pub pos: Pos,
    pub name: String,
    pub protocol: Protocol,
    pub channels: u32,
    /// Chunks of the larger of input and output.
    pub chunks: u32,
    pub ranks: u32,
    pub collective: Collective,
    pub root: Option<u32>,
    /// Input and output are the same memory.
    pub aliased: bool,
    /// The file says that it may run in place.
    pub in_place: bool,
    /// Sizes in bytes (all ranks' data), both included.
    pub window: (u64, u64),
    pub dialect: Dialect,
    pub gpus: Vec<Gpu>,
    /// The things in the file that were read as something else than they say.
    pub changes: Vec<Change>,
    /// The contents of every rank's output in the end, where the file is made from a plan of no known
    /// collective.
    pub moved: Option<Vec<Outputs>>,
}

/// Chunks of the output of a rank, and whose input they have in the end: rank and chunk, or nobody's.
pub(super) type Outputs = Vec<(u32, Option<(u32, u32)>)>;

#[derive(Debug, Clone)]
pub(super) struct Gpu {
    pub pos: Pos,
    pub id: u32,
    /// Chunks of input, output and scratch.
    pub used: [u32; 3],
    pub blocks: Vec<Block>,
}

#[derive(Debug, Clone)]
pub(super) struct Block {
    pub pos: Pos,
    pub id: u32,
    pub send: Option<u32>,
    pub recv: Option<u32>,
    pub chan: u32,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(super) struct Step {
    pub pos: Pos,
    pub number: u32,
    pub kind: Kind,
    pub src: (Buf, i64),
    pub dst: (Buf, i64),
    pub count: u32,
    /// Block and step that must be over.
    pub dep: Option<(u32, u32)>,
    pub has_dep: bool,
}

/// The kinds of steps; the names are the file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    S,
    R,
    Rcs,
    Rrc,
    Rrs,
    Rrcs,
    Cpy,
    Re,
    Nop,
}

impl Kind {
    const NAMES: [(&'static str, Kind); 9] = [
        ("s", Self::S),
        ("r", Self::R),
        ("rcs", Self::Rcs),
        ("rrc", Self::Rrc),
        ("rrs", Self::Rrs),
        ("rrcs", Self::Rrcs),
        ("cpy", Self::Cpy),
        ("re", Self::Re),
        ("nop", Self::Nop),
    ];

    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    pub fn sends(self) -> bool {
        matches!(self, Self::S | Self::Rcs | Self::Rrs | Self::Rrcs)
    }

    pub fn receives(self) -> bool {
        matches!(self, Self::R | Self::Rcs | Self::Rrc | Self::Rrs | Self::Rrcs)
    }

    /// True if it combines values.
    pub fn reduces(self) -> bool {
        matches!(self, Self::Rrc | Self::Rrs | Self::Rrcs | Self::Re)
    }

    /// True if `src` names memory that it reads.
    pub fn reads(self) -> bool {
        matches!(self, Self::S | Self::Cpy) || self.reduces()
    }

    /// True if `dst` names memory that it writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::R | Self::Rcs | Self::Rrc | Self::Rrcs | Self::Cpy | Self::Re)
    }
}

/// Most steps of all ranks, so that a hostile file cannot exhaust memory.
const MOST_STEPS: usize = 1 << 20;
/// Most ranks, and most chunks.
const MOST: u32 = 1024;
const MOST_CHUNKS: u32 = 1 << 16;

/// The collective of a file that computes what no NCCL call asks for.
const CUSTOM: &str = "custom";

/// The change of such a file that is for one buffer.
pub(super) const TWO_BUFFERS: &str =
    "inplace does not count: hawserCustom has two buffers that do not overlap";

/// An element of some synthesizers, which no runtime reads: input that lies in the output already.
const COPY: &str = "copy";

/// Name and number of ranks.
pub(super) fn head(text: &str) -> Result<(String, u32)> {
    let text = without_surroundings(text);
    let (document, lines) = parse(&text)?;
    let algo = root(&document, &lines)?;
    Ok((plain(algo.required("name")?), algo.number("ngpus", 1, MOST)?))
}

/// Reads a file.
pub(super) fn read(text: &str) -> Result<Algo> {
    let bare = without_surroundings(text);
    let (document, lines) = parse(&bare)?;
    let algo = root(&document, &lines)?;
    let mut left = MOST_STEPS;
    let mut gpus: Vec<Gpu> =
        algo.children(&["gpu"])?.iter().map(|gpu| read_gpu(gpu, &mut left)).collect::<Result<_>>()?;
    let (collective, root) = collective(&algo)?;
    let (dialect, mut aliased, window) = dialect(&algo)?;
    let mut in_place = algo.attribute("inplace") == Some("1");
    let mut changes = Vec::new();
    let mut change = |pos: Pos, text: String| changes.push(Change::new(pos, text));
    if collective == Collective::SendRecv {
        if in_place {
            change(algo.pos(), TWO_BUFFERS.into());
        }
        (aliased, in_place) = (false, false);
    }
    if matches!(bare, Cow::Owned(_)) {
        change(Pos { line: 1, column: 1 }, "what stands before <algo> is no part of the file".into());
    }
    let written = algo.required("name")?.trim();
    let name = plain(written);
    if name != written {
        change(algo.pos(), format!("the name \"{written}\" became {name}: rules and logs need one word"));
    }
    let mut channels = algo.number("nchannels", 0, MOST)?;
    if channels == 0 {
        channels = gpus.iter().flat_map(|gpu| &gpu.blocks).map(|block| block.chan + 1).max().unwrap_or(1);
        change(algo.pos(), format!("nchannels=\"0\" became {channels}, the channels that blocks use"));
    }
    if let Some(copy) = algo.node.descendants().find(|node| node.has_tag_name(COPY)) {
        let text = "<copy> was left out, as by all runtimes: in place its chunks lie there already";
        change(Element { node: copy, lines: &lines }.pos(), text.into());
    }
    let steps = gpus.iter_mut().flat_map(|gpu| &mut gpu.blocks).flat_map(|block| &mut block.steps);
    let nops: Vec<&mut Step> = steps.filter(|step| step.kind == Kind::Nop && step.count > 0).collect();
    if let Some(first) = nops.first() {
        change(first.pos, format!("the cnt of {} nops was taken as 0: a nop moves nothing", nops.len()));
    }
    nops.into_iter().for_each(|nop| nop.count = 0);
    Ok(Algo {
        pos: algo.pos(),
        name,
        protocol: protocol(&algo)?,
        channels,
        chunks: algo.number("nchunksperloop", 1, MOST_CHUNKS)?,
        ranks: algo.number("ngpus", 1, MOST)?,
        collective,
        root,
        aliased,
        in_place,
        window,
        dialect,
        gpus,
        changes,
        moved: None,
    })
}

/// A name as one word of rules, variables and logs.
pub(super) fn plain(name: &str) -> String {
    let mut plain = String::new();
    for letter in name.trim().chars() {
        match letter.is_whitespace() || letter.is_control() || "#,;:".contains(letter) {
            true if plain.ends_with('_') => {}
            true => plain.push('_'),
            false => plain.push(letter),
        }
    }
    plain
}

/// The text without what stands in front of `<algo>`: a byte order mark, or lines that a generator has
/// printed, for which blanks come, so that lines and columns stay.
fn without_surroundings(text: &str) -> Cow<'_, str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('<') {
        return Cow::Borrowed(text);
    }
    let is_end = |c: char| c.is_whitespace() || c == '>';
    let mut starts = text.match_indices("<algo").map(|(at, _)| at);
    let Some(at) = starts.find(|at| text[at + "<algo".len()..].starts_with(is_end)) else {
        return Cow::Borrowed(text);
    };
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    Cow::Owned(text[..at].chars().map(blank).chain(text[at..].chars()).collect())
}

/// Generators print below the file what they think of it: that is no part of it.
fn parse(text: &str) -> Result<(Document<'_>, Lines<'_>)> {
    const END: &str = "</algo>";
    let text = text.rfind(END).map_or(text, |at| &text[..at + END.len()]);
    let document = Document::parse(text).map_err(|error| {
        let at = error.pos();
        ImportError::new(
            Class::Syntax,
            Pos { line: at.row, column: at.col },
            format!("the text is no XML: {error}"),
        )
    })?;
    Ok((document, Lines::of(text)))
}

fn root<'a>(document: &'a Document<'a>, lines: &'a Lines<'a>) -> Result<Element<'a>> {
    let algo = Element { node: document.root_element(), lines };
    if algo.node.tag_name().name() == "algo" {
        return Ok(algo);
    }
    Err(algo.error(Class::Syntax, format!("<{}> where <algo> should come", algo.node.tag_name().name())))
}

fn protocol(algo: &Element<'_>) -> Result<Protocol> {
    match algo.required("proto")? {
        "Simple" => Ok(Protocol::Simple),
        "LL" => Ok(Protocol::Ll),
        "LL128" => Ok(Protocol::Ll128),
        other => Err(algo.wrong("proto", other, "Simple, LL or LL128")),
    }
}

fn collective(algo: &Element<'_>) -> Result<(Collective, Option<u32>)> {
    let name = algo.required("coll")?;
    let collective = match name {
        "allreduce" => Collective::AllReduce,
        "allgather" => Collective::AllGather,
        "reduce_scatter" | "reducescatter" => Collective::ReduceScatter,
        "alltoall" => Collective::AllToAll,
        "broadcast" => Collective::Broadcast,
        "reduce" => Collective::Reduce,
        "gather" => Collective::Gather,
        "scatter" => Collective::Scatter,
        // Messages, in whatever way the program moves them: a call of its own asks for it by name.
        CUSTOM => Collective::SendRecv,
        "send" | "recv" | "sendrecv" | "alltoallv" => {
            let text = format!(
                "\"{name}\" is no collective that an NCCL call asks for: nothing could select this program"
            );
            return Err(algo.error(Class::Collective, text));
        }
        other => {
            return Err(algo.wrong(
                "coll",
                other,
                "allreduce, allgather, reducescatter, alltoall, broadcast, reduce, gather or scatter",
            ));
        }
    };
    let root = match algo.attribute("root") {
        Some(_) => Some(algo.number("root", 0, MOST)?),
        None => None,
    };
    Ok((collective, root))
}

/// The dialect, whether input and output are the same memory, and the window of sizes.
fn dialect(algo: &Element<'_>) -> Result<(Dialect, bool, (u64, u64))> {
    for known in ["inplace", "outofplace", "minBytes", "maxBytes", "root"] {
        let typo = |name: &str| name != known && name.eq_ignore_ascii_case(known);
        if let Some(found) = algo.node.attributes().find(|attribute| typo(attribute.name())) {
            return Err(algo
                .error(Class::Attribute, format!("unknown attribute \"{}\": write {known}", found.name())));
        }
    }
    let flag = |name: &str| match algo.attribute(name) {
        None => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        Some(other) => Err(algo.wrong(name, other, "0 or 1")),
    };
    let (in_place, out_of_place) = (flag("inplace")?, flag("outofplace")?);
    let bytes = |name: &str| -> Result<Option<u64>> {
        let Some(text) = algo.attribute(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| algo.wrong(name, text, "a number of bytes"))
    };
    let (least, most) = (bytes("minBytes")?, bytes("maxBytes")?);
    let dialect = match (in_place, out_of_place) {
        (_, Some(_)) => Dialect::Azure,
        (Some(_), None) => Dialect::Research,
        (None, None) => Dialect::Synthesizer,
    };
    let most = match (dialect, most) {
        (_, None) | (Dialect::Azure, Some(0)) => u64::MAX,
        (Dialect::Azure, Some(most)) => most,
        // Research excludes the end; 0 to 0 is an Azure window without `outofplace`.
        (_, Some(0)) if least.unwrap_or(0) == 0 => u64::MAX,
        (_, Some(most)) => most.saturating_sub(1),
    };
    let least = least.unwrap_or(0);
    if least > most {
        return Err(
            algo.error(Class::Attribute, format!("no size fits: minBytes {least} is above maxBytes {most}"))
        );
    }
    // Permission to run both ways is a promise that the program does not rely on either.
    let aliased = in_place.unwrap_or(false) && !out_of_place.unwrap_or(false);
    if in_place == Some(false) && out_of_place == Some(false) {
        return Err(algo.error(Class::Attribute, "inplace and outofplace are both 0: no call fits"));
    }
    Ok((dialect, aliased, (least, most)))
}

fn read_gpu(gpu: &Element<'_>, left: &mut usize) -> Result<Gpu> {
    let used = [("i_chunks"), ("o_chunks"), ("s_chunks")];
    let [i, o, s] = used.map(|name| gpu.number(name, 0, MOST_CHUNKS));
    let tbs: Vec<Element<'_>> = gpu.children(&["tb", COPY])?;
    let tbs = tbs.iter().filter(|element| element.node.tag_name().name() == "tb");
    let blocks = tbs.map(|block| read_block(block, left)).collect::<Result<_>>()?;
    Ok(Gpu { pos: gpu.pos(), id: gpu.number("id", 0, MOST)?, used: [i?, o?, s?], blocks })
}

fn read_block(block: &Element<'_>, left: &mut usize) -> Result<Block> {
    let steps = block.children(&["step"])?;
    *left = left
        .checked_sub(steps.len())
        .ok_or_else(|| block.error(Class::Limit, format!("more than {MOST_STEPS} steps")))?;
    Ok(Block {
        pos: block.pos(),
        id: block.number("id", 0, u32::MAX)?,
        send: block.or_none("send")?,
        recv: block.or_none("recv")?,
        chan: block.number("chan", 0, MOST)?,
        steps: steps.iter().map(read_step).collect::<Result<_>>()?,
    })
}

fn read_step(step: &Element<'_>) -> Result<Step> {
    let kind = step.required("type")?;
    let found = Kind::NAMES.iter().find(|(name, _)| *name == kind);
    let &(_, kind) =
        found.ok_or_else(|| step.wrong("type", kind, "s, r, rcs, rrc, rrs, rrcs, cpy, re or nop"))?;
    let operand = |buf: &str, off: &str| -> Result<(Buf, i64)> {
        let name = step.required(buf)?;
        let place = match name {
            "i" => Buf::Input,
            "o" => Buf::Output,
            "s" => Buf::Scratch,
            other => return Err(step.wrong(buf, other, "i, o or s")),
        };
        Ok((place, step.number(off, -1, i64::from(MOST_CHUNKS))?))
    };
    let dep: i64 = step.number("depid", -1, i64::from(u32::MAX))?;
    let on: i64 = step.number("deps", -1, i64::from(u32::MAX))?;
    if (dep < 0) != (on < 0) {
        let text = format!("depid {dep} with deps {on}: both name a step, or both are -1");
        return Err(step.error(Class::Dependency, text));
    }
    Ok(Step {
        pos: step.pos(),
        number: step.number("s", 0, u32::MAX)?,
        kind,
        src: operand("srcbuf", "srcoff")?,
        dst: operand("dstbuf", "dstoff")?,
        count: step.number("cnt", 0, MOST_CHUNKS)?,
        dep: (dep >= 0).then_some((dep as u32, on as u32)),
        has_dep: step.number("hasdep", 0, 1)? == 1,
    })
}

/// An element of the file.
#[derive(Clone, Copy)]
struct Element<'a> {
    node: Node<'a, 'a>,
    lines: &'a Lines<'a>,
}

impl<'a> Element<'a> {
    fn pos(&self) -> Pos {
        self.lines.pos(self.node.range().start)
    }

    fn error(&self, class: Class, text: impl Into<String>) -> ImportError {
        ImportError::new(class, self.pos(), text)
    }

    fn wrong(&self, name: &str, value: &str, expected: &str) -> ImportError {
        self.error(Class::Attribute, format!("{name}=\"{value}\" where {expected} should come"))
    }

    fn attribute(&self, name: &str) -> Option<&'a str> {
        self.node.attribute(name)
    }

    fn required(&self, name: &str) -> Result<&'a str> {
        self.attribute(name).ok_or_else(|| {
            self.error(
                Class::Attribute,
                format!("<{}> lacks the attribute {name}", self.node.tag_name().name()),
            )
        })
    }

    fn number<T: FromStr + PartialOrd + std::fmt::Display>(
        &self,
        name: &str,
        least: T,
        most: T,
    ) -> Result<T> {
        let text = self.required(name)?;
        let number = text.trim().parse().ok().filter(|number| (&least..=&most).contains(&number));
        number.ok_or_else(|| self.wrong(name, text, &format!("a number from {least} to {most}")))
    }

    /// A rank, or -1.
    fn or_none(&self, name: &str) -> Result<Option<u32>> {
        let number: i64 = self.number(name, -1, i64::from(u32::MAX))?;
        Ok(u32::try_from(number).ok())
    }

    /// The children, which must all have one of these names; complaints name the first.
    fn children(&self, names: &[&str]) -> Result<Vec<Element<'a>>> {
        let name = names.first().copied().unwrap_or("");
        let mut children = Vec::new();
        for node in self.node.children() {
            let element = Element { node, lines: self.lines };
            if node.is_element() && names.contains(&node.tag_name().name()) {
                children.push(element);
            } else if node.is_element() {
                let text = format!("<{}> where <{name}> should come", node.tag_name().name());
                return Err(element.error(Class::Syntax, text));
            } else if node.is_text() && !node.text().unwrap_or("").trim().is_empty() {
                return Err(element.error(Class::Syntax, format!("text where <{name}> should come")));
            }
        }
        Ok(children)
    }
}

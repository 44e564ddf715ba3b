//! MSCCL's words: an `algo` element as blocks of steps.

use super::Way;
use super::element::Element;

/// Most chunks that all steps of a file may move, so that following one takes no more than seconds.
const MOST_MOVES: usize = 4_000_000;
/// Most blocks times ranks' blocks: each block keeps a clock of all others.
const MOST_BLOCKS: usize = 6_000;

/// The reason why a file is not followed.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It says what cannot be.
    Wrong(String),
    /// It is beyond the judge.
    Open(String),
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Self::Wrong(text)
    }
}

/// The collectives whose results are defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    /// No collective: values are moved, and nothing says where to.
    Custom,
}

/// A file that can be followed.
#[derive(Debug)]
pub struct File {
    pub kind: Kind,
    pub ranks: usize,
    pub root: usize,
    /// Chunks of the part that is a rank's own (all of the buffer where nothing is split by ranks).
    pub part: usize,
    pub ways: Vec<Way>,
    pub gpus: Vec<Gpu>,
}

#[derive(Debug)]
pub struct Gpu {
    pub scratch: usize,
    pub blocks: Vec<Block>,
}

#[derive(Debug)]
pub struct Block {
    pub to: Option<usize>,
    pub from: Option<usize>,
    pub channel: usize,
    pub steps: Vec<Step>,
}

/// The buffers of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Input,
    Output,
    Scratch,
}

#[derive(Debug)]
pub struct Step {
    pub word: String,
    pub receives: bool,
    pub sends: bool,
    /// The place that is read: sent, copied, or added to what comes.
    pub reads: Option<(Memory, usize)>,
    pub adds: bool,
    pub writes: Option<(Memory, usize)>,
    pub count: usize,
    pub waits: Option<(usize, usize)>,
    pub tells: bool,
}

impl File {
    /// Chunks of input and output of every rank.
    pub fn sizes(&self) -> (usize, usize) {
        let all = self.part * self.ranks;
        match self.kind {
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::Custom => (self.part, self.part),
            Kind::AllGather | Kind::Gather => (self.part, all),
            Kind::ReduceScatter | Kind::Scatter => (all, self.part),
            Kind::AllToAll => (all, all),
        }
    }
}

/// Reads an `algo` element.
pub fn read(algo: &Element) -> Result<File, Refusal> {
    let kind = kind(word(algo, "coll")?)?;
    let ranks = number(algo, "ngpus")?;
    let chunks = number(algo, "nchunksperloop")?;
    let part = match kind {
        Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::Custom => chunks,
        _ if ranks > 0 && chunks.is_multiple_of(ranks) => chunks / ranks,
        _ => return Err(format!("{chunks} chunks are not {ranks} equal parts").into()),
    };
    if part == 0 || ranks < 2 {
        return Err(format!("{chunks} chunks on {ranks} ranks").into());
    }
    match word(algo, "proto")? {
        "Simple" | "LL" | "LL128" => {}
        other => return Err(format!("there is no protocol {other}").into()),
    }
    let mut gpus: Vec<Option<Gpu>> = (0..ranks).map(|_| None).collect();
    let channels = number(algo, "nchannels")?;
    for gpu in algo.children.iter().filter(|child| child.name == "gpu") {
        let id = number(gpu, "id")?;
        let place = gpus.get_mut(id).ok_or(format!("gpu {id} of {ranks}"))?;
        if place.replace(read_gpu(gpu, ranks, channels)?).is_some() {
            return Err(format!("gpu {id} comes twice").into());
        }
    }
    let gpus: Vec<Gpu> = gpus.into_iter().collect::<Option<_>>().ok_or("a gpu is missing".to_owned())?;
    let steps = || gpus.iter().flat_map(|gpu| &gpu.blocks).flat_map(|block| &block.steps);
    let moves: usize = steps().map(|step| step.count).sum();
    let blocks: usize = gpus.iter().map(|gpu| gpu.blocks.len()).sum();
    if moves > MOST_MOVES || blocks > MOST_BLOCKS {
        return Err(Refusal::Open(format!("{moves} chunks are moved by {blocks} blocks")));
    }
    if kind == Kind::Custom && steps().any(|step| step.adds) {
        return Err(Refusal::Open("which sums `custom` promises is not said".to_owned()));
    }
    let root = root(algo, kind, &gpus)?;
    let file = File { kind, ranks, root, part, ways: ways(algo, kind)?, gpus };
    bounds(&file)?;
    Ok(file)
}

fn kind(name: &str) -> Result<Kind, Refusal> {
    Ok(match name {
        "allreduce" => Kind::AllReduce,
        "allgather" => Kind::AllGather,
        "reduce_scatter" | "reducescatter" => Kind::ReduceScatter,
        "alltoall" => Kind::AllToAll,
        "broadcast" => Kind::Broadcast,
        "reduce" => Kind::Reduce,
        "gather" => Kind::Gather,
        "scatter" => Kind::Scatter,
        "custom" => Kind::Custom,
        other => return Err(format!("there is no collective {other}").into()),
    })
}

/// The root that is named, else the one rank that never receives (or never sends).
fn root(algo: &Element, kind: Kind, gpus: &[Gpu]) -> Result<usize, Refusal> {
    let gives = match kind {
        Kind::Broadcast | Kind::Scatter => true,
        Kind::Reduce | Kind::Gather => false,
        _ => return Ok(0),
    };
    if algo.get("root").is_some() {
        let root = number(algo, "root")?;
        return if root < gpus.len() { Ok(root) } else { Err(format!("root {root}").into()) };
    }
    let is_silent = |gpu: &Gpu| {
        let mut steps = gpu.blocks.iter().flat_map(|block| &block.steps);
        !steps.any(|step| if gives { step.receives } else { step.sends })
    };
    let silent: Vec<usize> = (0..gpus.len()).filter(|&rank| is_silent(&gpus[rank])).collect();
    match silent[..] {
        [root] => Ok(root),
        _ => Err(format!("ranks {silent:?} could all be the root").into()),
    }
}

/// Azure's files allow each way by itself; research files are made for one; others say nothing. No call of
/// NCCL asks for an all-to-all in place, so of files that allow both ways only the other one counts there.
fn ways(algo: &Element, kind: Kind) -> Result<Vec<Way>, Refusal> {
    let flag = |name: &str| match algo.get(name) {
        None => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        Some(other) => Err(Refusal::Wrong(format!("{name} is {other}"))),
    };
    match (flag("inplace")?, flag("outofplace")?) {
        // Its call has two buffers, whatever the file says.
        _ if kind == Kind::Custom => Ok(vec![Way::Apart]),
        (Some(true), Some(true)) if kind == Kind::AllToAll => Ok(vec![Way::Apart]),
        (Some(true), Some(true)) => Ok(vec![Way::Apart, Way::InPlace]),
        (Some(true), _) => Ok(vec![Way::InPlace]),
        (Some(false), Some(false)) => Err("it runs in no way".to_owned().into()),
        _ => Ok(vec![Way::Apart]),
    }
}

fn read_gpu(gpu: &Element, ranks: usize, channels: usize) -> Result<Gpu, Refusal> {
    let mut blocks = Vec::new();
    for tb in in_order(gpu, "tb", "id")? {
        let peer = |name: &str| match word(tb, name)?.trim() {
            "-1" => Ok(None),
            _ => match number(tb, name)? {
                peer if peer < ranks => Ok(Some(peer)),
                peer => Err(Refusal::Wrong(format!("{name} is {peer} of {ranks}"))),
            },
        };
        let (to, from, channel) = (peer("send")?, peer("recv")?, number(tb, "chan")?);
        if channel >= channels && channels > 0 {
            return Err(format!("channel {channel} of {channels}").into());
        }
        let steps: Vec<Step> =
            in_order(tb, "step", "s")?.into_iter().map(read_step).collect::<Result<_, _>>()?;
        for step in &steps {
            if step.sends && to.is_none() || step.receives && from.is_none() {
                return Err(format!("{} of a block without a peer for it", step.word).into());
            }
        }
        blocks.push(Block { to, from, channel, steps });
    }
    Ok(Gpu { scratch: number(gpu, "s_chunks")?, blocks })
}

/// Children whose numbers are 0, 1, 2, …, in this order.
fn in_order<'a>(parent: &'a Element, name: &str, by: &str) -> Result<Vec<&'a Element>, Refusal> {
    let mut found: Vec<(usize, &Element)> = Vec::new();
    for child in parent.children.iter().filter(|child| child.name == name) {
        found.push((number(child, by)?, child));
    }
    found.sort_by_key(|(number, _)| *number);
    match found.iter().enumerate().all(|(at, (number, _))| at == *number) {
        true => Ok(found.into_iter().map(|(_, child)| child).collect()),
        false => Err(format!("the numbers of {name} have a gap or come twice").into()),
    }
}

fn read_step(step: &Element) -> Result<Step, Refusal> {
    let word_of = word(step, "type")?;
    // (receives, sends, reads src, adds, writes dst)
    let (receives, sends, reads, adds, writes) = match word_of {
        "s" => (false, true, true, false, false),
        "r" => (true, false, false, false, true),
        "rcs" => (true, true, false, false, true),
        "rrc" => (true, false, true, true, true),
        "rrs" => (true, true, true, true, false),
        "rrcs" => (true, true, true, true, true),
        "cpy" => (false, false, true, false, true),
        "re" => (false, false, true, true, true),
        "nop" => (false, false, false, false, false),
        other => return Err(format!("there is no step {other}").into()),
    };
    let place = |used: bool, memory: &str, offset: &str| -> Result<Option<(Memory, usize)>, Refusal> {
        let memory = match word(step, memory)? {
            "i" => Memory::Input,
            "o" => Memory::Output,
            "s" => Memory::Scratch,
            other => return Err(format!("there is no buffer {other}").into()),
        };
        if used { Ok(Some((memory, number(step, offset)?))) } else { Ok(None) }
    };
    let waits = match (word(step, "depid")?.trim(), word(step, "deps")?.trim()) {
        ("-1", "-1") => None,
        _ => Some((number(step, "depid")?, number(step, "deps")?)),
    };
    let tells = number(step, "hasdep")? == 1;
    let count = if word_of == "nop" { 0 } else { number(step, "cnt")? };
    if count == 0 && word_of != "nop" {
        return Err(format!("{word_of} moves nothing").into());
    }
    let reads = place(reads, "srcbuf", "srcoff")?;
    let writes = place(writes, "dstbuf", "dstoff")?;
    Ok(Step { word: word_of.to_owned(), receives, sends, reads, adds, writes, count, waits, tells })
}

/// Every step stays within its buffers.
fn bounds(file: &File) -> Result<(), Refusal> {
    let (input, output) = file.sizes();
    for gpu in &file.gpus {
        for step in gpu.blocks.iter().flat_map(|block| &block.steps) {
            for (memory, first) in [step.reads, step.writes].into_iter().flatten() {
                let size = match memory {
                    Memory::Input => input,
                    Memory::Output => output,
                    Memory::Scratch => gpu.scratch,
                };
                if first + step.count > size {
                    return Err(format!(
                        "{} uses chunks {first} to {} of {memory:?}, which has {size}",
                        step.word,
                        first + step.count - 1
                    )
                    .into());
                }
            }
        }
    }
    Ok(())
}

fn word<'a>(element: &'a Element, name: &str) -> Result<&'a str, Refusal> {
    element.get(name).ok_or_else(|| format!("<{}> has no {name}", element.name).into())
}

fn number(element: &Element, name: &str) -> Result<usize, Refusal> {
    let text = word(element, name)?;
    text.trim().parse().map_err(|_| format!("{name} of <{}> is {text}", element.name).into())
}

//! Puts mistakes into files that are right: the kinds that authors and generators of programs make.

use super::element::Element;

/// Numbers that a seed draws (SplitMix64).
#[derive(Debug)]
pub struct Draw(u64);

impl Draw {
    /// Numbers of one seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`, which is above 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    /// One of some values.
    pub fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

/// A copy of a file with one to three mistakes, and what they are.
pub fn mutant(algo: &Element, draw: &mut Draw) -> (Element, String) {
    let mut changed = algo.clone();
    let mut told = Vec::new();
    let mistakes = draw.of(&[1, 1, 1, 2, 3]);
    while told.len() < mistakes {
        told.extend(mistake(&mut changed, draw));
    }
    (changed, told.join(", "))
}

/// One mistake; None where nothing of the drawn kind is there.
fn mistake(algo: &mut Element, draw: &mut Draw) -> Option<String> {
    match draw.below(20) {
        0 => head(algo, draw),
        1 => block(algo, draw),
        2 => order(algo, draw),
        3 => drop_or_repeat(algo, draw),
        4 => exchange_blocks(algo, draw),
        5..=8 => wait(algo, draw),
        _ => operand(algo, draw),
    }
}

/// An attribute of the algorithm.
fn head(algo: &mut Element, draw: &mut Draw) -> Option<String> {
    let chunks: usize = algo.get("nchunksperloop")?.parse().ok()?;
    let ranks: usize = algo.get("ngpus")?.parse().ok()?;
    let (name, value) = match draw.below(5) {
        0 => ("nchunksperloop", draw.of(&[chunks + 1, chunks * 2, chunks.div_ceil(2), ranks]).to_string()),
        1 => {
            let all = ["allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce"];
            ("coll", draw.of(&all).to_owned())
        }
        2 => ("inplace", draw.of(&["0", "1"]).to_owned()),
        3 => ("root", draw.below(ranks.max(1)).to_string()),
        _ => ("nchannels", draw.below(4).to_string()),
    };
    Some(put(algo, name, &value))
}

/// Peers or channel of a block, or the scratch of a rank.
fn block(algo: &mut Element, draw: &mut Draw) -> Option<String> {
    let ranks = algo.children.len().max(1);
    let gpu = child(algo, draw)?;
    if draw.below(4) == 0 {
        let scratch: usize = gpu.get("s_chunks")?.parse().ok()?;
        let scratch = draw.of(&[scratch.saturating_sub(1), scratch / 2, scratch + 1]);
        return Some(put(gpu, "s_chunks", &scratch.to_string()));
    }
    let tb = child(gpu, draw)?;
    let (name, value) = match draw.below(3) {
        0 => ("send", draw.below(ranks + 1) as i64 - 1),
        1 => ("recv", draw.below(ranks + 1) as i64 - 1),
        _ => ("chan", draw.below(3) as i64),
    };
    Some(put(tb, name, &value.to_string()))
}

/// Two neighbouring steps change places; others that wait for one of them now wait for the other.
fn order(algo: &mut Element, draw: &mut Draw) -> Option<String> {
    let tb = child(child(algo, draw)?, draw)?;
    let at = draw.below(tb.children.len().checked_sub(1).filter(|pairs| *pairs > 0)?);
    tb.children.swap(at, at + 1);
    number(tb);
    Some(format!("steps {at} and {} changed places", at + 1))
}

/// A step is left out, or comes twice.
fn drop_or_repeat(algo: &mut Element, draw: &mut Draw) -> Option<String> {
    let tb = child(child(algo, draw)?, draw)?;
    let at = draw.below(Some(tb.children.len()).filter(|steps| *steps > 0)?);
    let text = if draw.below(2) == 0 {
        let step = tb.children[at].clone();
        tb.children.insert(at, step);
        format!("step {at} comes twice")
    } else {
        tb.children.remove(at);
        format!("step {at} was left out")
    };
    number(tb);
    Some(text)
}

/// Two blocks of a rank change their numbers; what waits for them does not.
fn exchange_blocks(algo: &mut Element, draw: &mut Draw) -> Option<String> {
    let gpu = child(algo, draw)?;
    let count = Some(gpu.children.len()).filter(|blocks| *blocks > 1)?;
    let (one, two) = (draw.below(count), draw.below(count));
    gpu.children.swap(one, two);
    gpu.children.iter_mut().enumerate().for_each(|(at, tb)| tb.set("id", at));
    Some(format!("tb {one} and tb {two} changed places"))
}

/// Waits for something else, for nothing, or is not told of.
fn wait(algo: &mut Element, draw: &mut Draw) -> Option<String> {
    let gpu = child(algo, draw)?;
    let blocks = gpu.children.len();
    let step = child(child(gpu, draw)?, draw)?;
    let waits = step.get("depid").is_some_and(|on| on != "-1");
    match draw.below(5) {
        0 => {
            let tells = if step.get("hasdep") == Some("1") { "0" } else { "1" };
            Some(put(step, "hasdep", tells))
        }
        1 | 2 if waits => {
            step.set("deps", "-1");
            Some(put(step, "depid", "-1"))
        }
        3 if waits => {
            let at: i64 = step.get("deps")?.parse().ok()?;
            let at = (at + draw.of(&[-2, -1, 1])).max(0);
            Some(put(step, "deps", &at.to_string()))
        }
        _ => {
            step.set("deps", draw.below(4));
            Some(put(step, "depid", &draw.below(blocks).to_string()))
        }
    }
}

/// Kind, buffer, offset or count of a step.
fn operand(algo: &mut Element, draw: &mut Draw) -> Option<String> {
    let step = child(child(child(algo, draw)?, draw)?, draw)?;
    let near = |step: &Element, name: &str, draw: &mut Draw| -> Option<String> {
        let old: i64 = step.get(name)?.parse().ok()?;
        Some((old + draw.of(&[-4, -2, -1, 1, 1, 2, 4])).max(0).to_string())
    };
    match draw.below(8) {
        0 => {
            let kinds = ["s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop"];
            Some(put(step, "type", draw.of(&kinds)))
        }
        1 => Some(put(step, "srcbuf", draw.of(&["i", "o", "s"]))),
        2 => Some(put(step, "dstbuf", draw.of(&["i", "o", "s"]))),
        3 => near(step, "cnt", draw).map(|value| put(step, "cnt", &value)),
        4 | 5 => near(step, "srcoff", draw).map(|value| put(step, "srcoff", &value)),
        _ => near(step, "dstoff", draw).map(|value| put(step, "dstoff", &value)),
    }
}

/// Gives an attribute a value, and says so.
fn put(element: &mut Element, name: &str, value: &str) -> String {
    let known: Vec<&str> = ["id", "s"].iter().filter_map(|name| element.get(name)).collect();
    let text = format!("<{} {}> {name}={value}", element.name, known.join(" "));
    element.set(name, value);
    text
}

/// Any element within another.
fn child<'a>(parent: &'a mut Element, draw: &mut Draw) -> Option<&'a mut Element> {
    let count = Some(parent.children.len()).filter(|count| *count > 0)?;
    parent.children.get_mut(draw.below(count))
}

/// Numbers the steps of a block anew.
fn number(tb: &mut Element) {
    tb.children.iter_mut().enumerate().for_each(|(at, step)| step.set("s", at));
}

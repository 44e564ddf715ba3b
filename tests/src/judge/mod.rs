//! A second judge of MSCCL programs, written apart from the library: it reads XML by itself (`file`), runs
//! the steps on numbers of its own (`simulate`) and says whether every rank ends with what the collective
//! promises (`promise`), whatever the order in which blocks take their turns.
//!
//! It imports nothing of `core/msccl`, `core/program` or `core/plan`; what it says can be held against what
//! they say ([`corpus`]), for files as they are and for files with mistakes put in on purpose ([`mutate`]).

pub mod corpus;
pub mod element;
mod file;
pub mod mutate;
pub mod plan_json;
mod promise;
pub mod runs;
mod simulate;
pub mod table;

use element::Element;

/// The opinion of the judge about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opinion {
    /// Every rank ends with the right data in any order of blocks.
    Right,
    /// Something is wrong; the words say what.
    Wrong(String),
    /// The file asks for what the judge cannot follow (a collective without a definition, or too much).
    Open(String),
}

impl Opinion {
    /// True if the file was found wrong.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Self::Wrong(_))
    }
}

/// The ways in which a program is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Input and output are separate memory.
    Apart,
    /// They are the same memory, as NCCL defines it for the collective.
    InPlace,
}

/// Rules under which a file is judged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// Slots of every FIFO, in chunks; None is as many as are needed.
    pub slots: Option<usize>,
    /// True if the input of a call that is not in place must stay as it was, as NCCL promises to its callers.
    pub keeps_input: bool,
}

/// The opinion about the text of an MSCCL file, in the ways that it says it runs in.
pub fn judge(text: &str, rules: Rules) -> Opinion {
    match Element::read(text) {
        Ok(algo) => judge_element(&algo, rules),
        Err(error) => Opinion::Wrong(error),
    }
}

/// The same of a file that was read already.
pub fn judge_element(algo: &Element, rules: Rules) -> Opinion {
    let file = match file::read(algo) {
        Ok(file) => file,
        Err(file::Refusal::Wrong(text)) => return Opinion::Wrong(text),
        Err(file::Refusal::Open(text)) => return Opinion::Open(text),
    };
    for &way in &file.ways {
        if let Err(text) = simulate::run(&file, way, rules) {
            return Opinion::Wrong(format!("{way:?}: {text}"));
        }
    }
    Opinion::Right
}

/// For every chunk of the output of a rank: whose input it holds, and which chunk of that; None where nobody
/// wrote.
pub type Origins = Vec<Option<(usize, usize)>>;

/// The contents of the outputs of all ranks in the end, for a file that is right and of no collective.
pub fn moved(text: &str) -> Option<Vec<Origins>> {
    let file = file::read(&Element::read(text).ok()?).ok()?;
    let outputs = simulate::run(&file, Way::Apart, Rules::default()).ok()?;
    let of = |number: Option<u64>| number.and_then(|number| promise::origin(&file, number));
    Some(outputs.into_iter().map(|output| output.into_iter().map(of).collect()).collect())
}

#[cfg(test)]
mod tests;

//! MSCCL's XML files: [`read`] imports them in all three dialects, [`to_xml`] writes programs as such files.
//!
//! An import reads elements (`xml`), checks what can be checked step by step (`check`), finds an order of all
//! steps or the deadlock (`run`), then makes a program and follows every value (`translate`). What other
//! runtimes take and a program cannot say is changed, and [`Import::changes`] tells it: blocks become two
//! (`split`) or fewer (`fold`), inputs are copied (`apart`). The program is proved by
//! [`hawser_program::verify`] like any other; what that finds is told as a place in the file. At last steps
//! are joined where that changes nothing (`optimise`). In `rrc`, `rrs` and `rrcs` the local
//! operand is the source, as in every kernel that runs these files.
//!
//! ```
//! use hawser_msccl::{Window, read, to_xml};
//! use hawser_program::text::from_text;
//! use hawser_types::Protocol;
//!
//! let plan = "hawser-plan 1\nname mine\ncollective broadcast\nranks 2\nroot 0\nper_block 1\nscratch 0\n\
//!             rank 0\nchannel 0\ncopy_send src in:0 dst out:0 to 1\n\
//!             rank 1\nchannel 0\nrecv from 0 dst out:0\n";
//! let window = Window { protocol: Protocol::Simple, bytes: (0, u64::MAX) };
//! let xml = to_xml(&from_text(plan)?, &window)?;
//! let import = read(&xml).unwrap();
//! assert_eq!(import.imported.program.shape.ranks, 2);
//! # Ok::<(), hawser_types::PlanError>(())
//! ```

#![forbid(unsafe_code)]

mod apart;
mod check;
mod export;
mod fault;
mod fold;
mod lanes;
mod memory;
#[cfg(feature = "mscclpp")]
mod mscclpp;
mod optimise;
mod race;
mod run;
mod split;
mod translate;
mod xml;

pub use export::{Window, to_xml};
pub use fault::{Change, Class, ImportError};
#[cfg(feature = "mscclpp")]
pub use mscclpp::read as read_mscclpp;
pub use run::Fifos;
pub use xml::Dialect;

use fault::Result;
use translate::Translated;
use xml::{Algo, Pos};

use hawser_program::imported::{Imported, Traffic};
use hawser_program::limits;
use hawser_program::verify::{self, At, Fault, Verdict};
use hawser_types::{Collective, Protocol};

/// Most FIFO slots that a program may need.
pub const MOST_SLOTS: u32 = 64;

/// A file that was read and proved.
#[derive(Debug)]
pub struct Import {
    /// The program, and when it may run.
    pub imported: Imported,
    /// The form of the file.
    pub dialect: Dialect,
    /// The things in the file that were read as something else than they say.
    pub changes: Vec<Change>,
    algo: Algo,
}

impl Import {
    /// Line and column of the algorithm, from 1.
    pub fn start(&self) -> (u32, u32) {
        (self.algo.pos.line, self.algo.pos.column)
    }

    /// The largest call (bytes of the larger buffer) that the program survives in a runtime with these FIFOs;
    /// None = every size. Hawser itself moves chunk by chunk and gives every program the slots it was proved
    /// with.
    pub fn safe_bytes(&self, fifos: Fifos) -> Option<u64> {
        run::safe_bytes(&self.algo, fifos)
    }

    /// The same with the FIFOs that MSCCL's runtimes give its protocol by default.
    pub fn safe_bytes_of_msccl(&self) -> Option<u64> {
        self.safe_bytes(Fifos::of_msccl(self.algo.protocol))
    }
}

impl Fifos {
    /// Those of MSCCL's runtimes.
    pub const fn of_msccl(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Ll => Self { slots: 8, bytes: 32 << 10 },
            Protocol::Ll128 => Self { slots: 8, bytes: 576_000 },
            _ => Self { slots: 2, bytes: 2 << 20 },
        }
    }
}

/// The name of a file's algorithm and the number of ranks that it is for, without a proof.
///
/// # Errors
/// It is no XML, or has no `algo` with `name` and `ngpus`.
pub fn head(text: &str) -> Result<(String, u32)> {
    xml::head(text)
}

/// Reads a file and proves its program.
///
/// # Errors
/// The first fault, with its class, line and column.
pub fn read(text: &str) -> Result<Import> {
    finish(xml::read(text)?)
}

/// Proves what a file says.
fn finish(mut algo: Algo) -> Result<Import> {
    check::check(&mut algo)?;
    let mut changes = std::mem::take(&mut algo.changes);
    let mut whole = algo.clone();
    changes.extend(split::split(&mut whole));
    let translated = translate::translate(&whole)?;
    changes.extend(translated.folded.clone());
    let (Verdict { mut min_depth, keeps_places, .. }, mut right_in_place) = prove(&algo, &translated)?;
    let Translated { mut program, hops, .. } = translated;
    if !right_in_place {
        let copies = apart::with_copies(&program);
        let verify = |in_place| verify::verify(&copies, MOST_SLOTS, in_place);
        if let (Ok(verdict), Ok(_)) = (verify(false), verify(true)) {
            let text =
                "right out of place only: its input is copied to scratch first, so that it runs in place";
            changes.push(Change::new(algo.pos, text));
            (program, min_depth, right_in_place) = (copies, verdict.min_depth, true);
        }
    }
    // What nobody can check for its result stays as it is.
    if algo.collective != Collective::SendRecv
        && let Some(better) = optimise::optimise(&program, right_in_place)
    {
        (program, min_depth) = better;
    }
    limits::check(&program).map_err(|error| ImportError::new(Class::Limit, algo.pos, error.into_text()))?;
    let traffic = Traffic::of(&program, hops);
    let texts = changes.iter().map(Change::to_string).collect();
    let (protocol, bytes) = (algo.protocol, algo.window);
    let imported = Imported {
        program,
        protocol,
        bytes,
        min_depth,
        right_in_place,
        keeps_places,
        traffic,
        changes: texts,
    };
    Ok(Import { imported, dialect: algo.dialect, changes, algo })
}

/// The verdict on the program out of place, and whether it is right in place.
fn prove(algo: &Algo, translated: &Translated) -> Result<(Verdict, bool)> {
    let verify = |in_place| verify::verify(&translated.program, MOST_SLOTS, in_place);
    let refuse = |fault: Fault, how: &str| refusal(algo, translated, &fault, how);
    let apart: Verdict = verify(false).map_err(|fault| refuse(fault, "out of place"))?;
    if algo.collective == Collective::SendRecv {
        // Its call refuses buffers that overlap.
        return Ok((apart, true));
    }
    match verify(true) {
        Ok(_) => Ok((apart, true)),
        Err(_) if !algo.in_place => Ok((apart, false)),
        Err(fault) => Err(refuse(fault, "in place")),
    }
}

/// The error for what the verifier found, with the place in the file.
fn refusal(algo: &Algo, translated: &Translated, fault: &Fault, how: &str) -> ImportError {
    let place = |at: &At| -> Pos {
        let channel = translated.source.get(at.rank as usize).and_then(|rank| rank.get(at.channel as usize));
        channel.and_then(|steps| steps.get(at.step as usize)).copied().unwrap_or(algo.pos)
    };
    let first = |rank: u32, channel: usize| -> Pos {
        let channel = translated.source.get(rank as usize).and_then(|rank| rank.get(channel));
        channel.and_then(|steps| steps.first()).copied().unwrap_or(algo.pos)
    };
    let (class, at) = match fault {
        Fault::SharedLane { rank, channels, .. } => (Class::Connection, first(*rank, channels[1])),
        Fault::BadShape(_) | Fault::TooDeep { .. } => (Class::Limit, algo.pos),
        Fault::BadStep { at, .. } => (Class::Peer, place(at)),
        Fault::OutOfBounds { at, .. } => (Class::Bounds, place(at)),
        Fault::Deadlock { waits, .. } => {
            (Class::Deadlock, waits.first().map_or(algo.pos, |(at, _)| place(at)))
        }
        Fault::UnbalancedFifo { .. } => (Class::Mismatch, algo.pos),
        Fault::UndefinedRead { at, .. } => (Class::Undefined, place(at)),
        Fault::OverwrittenInput { at, .. } => {
            return ImportError::new(Class::InPlace, place(at), fault.to_string());
        }
        Fault::Race { at, other, .. } => {
            let (one, two) = (place(at), place(other));
            let text = format!("lines {} and {} ({how}): {fault}", two.line, one.line);
            return ImportError::new(Class::Race, one, text);
        }
        Fault::DoubleCount { .. } => (Class::DoubleCount, algo.pos),
        Fault::FinishedTwice { at } => (Class::DoubleCount, place(at)),
        Fault::OtherOrder { at, .. } => (Class::WrongResult, place(at)),
        Fault::WrongContribution { .. } | Fault::Missing { .. } | Fault::NotFinished { .. } => {
            (Class::WrongResult, algo.pos)
        }
    };
    ImportError::new(class, at, format!("{how}: {fault}"))
}

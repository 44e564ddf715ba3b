//! Programs that users bring: reads them from MSCCL's XML files and from `.plan` files, and keeps those in
//! use.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use hawser_msccl::MOST_SLOTS;
pub use hawser_program::imported::{Imported, Traffic};
pub use hawser_program::limits::check as fits_devices;
use hawser_program::verify::{self, Declared};
use hawser_program::{limits, text};
pub use hawser_types::Handle;
use hawser_types::{Call, Collective, PlanError, Protocol, Result};

use crate::config::PlanConfig;

/// The programs in use. It only grows: a program lives as long as the process, so that choices can name it.
static KEPT: RwLock<Vec<&'static Imported>> = RwLock::new(Vec::new());

/// Keeps a program for ever and returns its handle. `place` is its place in the list of all programs of the
/// process.
pub fn keep(program: Imported, place: u32) -> Handle {
    let digest = program.digest();
    let program: &'static Imported = Box::leak(Box::new(program));
    let mut kept = KEPT.write().unwrap_or_else(PoisonError::into_inner);
    kept.push(program);
    Handle::new(&program.program.shape.name, digest, place, kept.len() as u32 - 1)
}

/// The program that a handle of [`keep`] names.
pub fn kept(handle: Handle) -> &'static Imported {
    KEPT.read().unwrap_or_else(PoisonError::into_inner)[handle.index()]
}

/// Reads a program file: MSCCL's XML, or the `.plan` text.
///
/// # Errors
/// `BadProgram`: the text begins with `line:column:`, or says what the verifier found.
pub fn read(source: &str) -> Result<Imported> {
    refuse_json(source)?;
    if !is_plan(source) {
        let import = hawser_msccl::read(source).map_err(|error| PlanError::program(error.to_string()))?;
        return Ok(import.imported);
    }
    let program = text::from_text(without_mark(source))?;
    let at_start = |what: String| PlanError::program(format!("1:1: {what}"));
    limits::check(&program).map_err(|error| at_start(error.into_text()))?;
    let prove = |in_place| verify::verify(&program, MOST_SLOTS, in_place);
    let verdict = prove(false).map_err(|fault| at_start(fault.to_string()))?;
    // The call of a custom program refuses buffers that overlap.
    let right_in_place = program.shape.collective == Collective::SendRecv || prove(true).is_ok();
    let traffic = Traffic::of(&program, program.shape.ranks.max(2).ilog2() + 1);
    Ok(Imported {
        program,
        protocol: Protocol::Simple,
        bytes: (0, u64::MAX),
        min_depth: verdict.min_depth,
        right_in_place,
        keeps_places: verdict.keeps_places,
        traffic,
        changes: Vec::new(),
    })
}

/// The head of a program file, which says what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The name of the algorithm.
    pub name: String,
    /// Number of ranks.
    pub ranks: u32,
}

/// Name and ranks of a program file, without a proof.
///
/// # Errors
/// As [`read`], as far as it looks.
pub fn head(source: &str) -> Result<Head> {
    refuse_json(source)?;
    if is_plan(source) {
        let shape = text::from_text(without_mark(source))?.shape;
        return Ok(Head { name: shape.name, ranks: shape.ranks });
    }
    let head = hawser_msccl::head(source).map_err(|error| PlanError::program(error.to_string()))?;
    Ok(Head { name: head.0, ranks: head.1 })
}

/// The name by which the program of a file is known beside others: its own, or with the file's behind it
/// where another one has that name already.
pub fn distinct(name: &str, file: &str, is_known: impl Fn(&str) -> bool) -> String {
    let at_file = format!("{name}@{file}");
    let numbered = (2_u64..).map(|number| format!("{name}@{file}#{number}"));
    let names = [name.to_owned(), at_file.clone()].into_iter().chain(numbered);
    let mut free = names.filter(|name| !is_known(&name.to_ascii_lowercase()));
    free.next().unwrap_or(at_file)
}

/// True if a file is JSON, as MSCCL++ writes plans.
pub fn is_json(source: &str) -> bool {
    without_mark(source).trim_start().starts_with('{')
}

/// Only the tool reads MSCCL++'s plans, so that the library stays small.
fn refuse_json(source: &str) -> Result<()> {
    match is_json(source) {
        true => Err(PlanError::program(
            "1:1: syntax: JSON, as MSCCL++ writes plans: `hawser plan import FILE.json -o FILE.xml` proves \
             it and writes what is read here",
        )),
        false => Ok(()),
    }
}

/// The text behind a byte order mark, which some editors write.
fn without_mark(source: &str) -> &str {
    source.strip_prefix('\u{feff}').unwrap_or(source)
}

/// True if a file is a `.plan`; what is neither that nor JSON is read as XML.
pub fn is_plan(source: &str) -> bool {
    without_mark(source)
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .is_some_and(|l| l.starts_with("hawser-plan"))
}

/// A program by its number among those that are kept, and an order.
type Compared = (usize, Declared);

/// The findings about programs that were compared with a declared order.
static COMPARED: RwLock<BTreeMap<Compared, Option<String>>> = RwLock::new(BTreeMap::new());

/// The reason why a program does not combine in a declared order, if so: what the verifier finds, once per
/// process.
pub fn other_order(handle: Handle, declared: &Declared) -> Option<String> {
    let compared = (handle.index(), *declared);
    let known = COMPARED.read().unwrap_or_else(PoisonError::into_inner).get(&compared).cloned();
    known.unwrap_or_else(|| {
        let found = verify::keeps_order(&kept(handle).program, declared).err().map(|fault| fault.to_string());
        COMPARED.write().unwrap_or_else(PoisonError::into_inner).insert(compared, found.clone());
        found
    })
}

/// The reason why a program does not fit a call on `ranks` ranks, if so.
pub fn refuses(program: &Imported, call: &Call, ranks: u32, config: &PlanConfig) -> Option<String> {
    let shape = &program.program.shape;
    let (least, most) = program.bytes;
    let bytes = call.total_bytes(ranks);
    if shape.ranks != ranks {
        return Some(format!("made for {} ranks", shape.ranks));
    }
    if shape.root != call.root {
        return Some(format!("made for root {}", shape.root));
    }
    if !program.right_in_place {
        // Ranks cannot know of each other whether a call is in place.
        return Some("wrong in place, which any rank's call may be".into());
    }
    if bytes < least || bytes > most {
        let most = if most == u64::MAX { "any size".to_string() } else { format!("{most} bytes") };
        return Some(format!("made for {least} bytes to {most}"));
    }
    if program.min_depth > config.depth {
        return Some(format!("needs {} FIFO slots, there are {}", program.min_depth, config.depth));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_told_apart() {
        let plan = "# mine\n\nhawser-plan 1\nname copy\ncollective broadcast\nranks 2\nroot 0\nper_block \
                    1\nscratch 0\n\
                    rank 0\nchannel 0\ncopy_send src in:0 dst out:0 to 1\n\
                    rank 1\nchannel 0\nrecv from 0 dst out:0\n";
        assert_eq!(head(plan), Ok(Head { name: "copy".into(), ranks: 2 }));
        let program = read(plan).unwrap();
        assert!(program.right_in_place && program.min_depth == 1 && program.lanes() == 1);
        let changed = Imported { bytes: (1, 2), ..program.clone() };
        assert_ne!(changed.digest(), program.digest());
        let errors = [
            ("{\"name\": \"x\"}", "hawser plan import"),
            ("<algo>", "1:1: syntax"),
            ("nothing", "1:1: syntax"),
            (&plan.replace("recv from 0", "recv from 1"), "receives from itself"),
        ];
        for (text, part) in errors {
            let error = read(text).unwrap_err().into_text();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads and proves hundreds of steps, which takes minutes")]
    fn what_a_rank_could_not_launch_is_refused_for_all() {
        let head =
            "hawser-plan 1\nname own\ncollective all_reduce\nranks 2\nroot 0\nper_block 1\nscratch 1\n";
        let rank = |rank: u32, between: &str| {
            let peer = 1 - rank;
            format!(
                "rank {rank}\nchannel 0\nsend src in:0 to {peer}\n{between}recv_reduce_copy from {peer} src \
                 in:0 dst out:0 order {peer} finish\n"
            )
        };
        let with = |between: &str| format!("{head}{}{}", rank(0, between), rank(1, ""));
        assert!(read(&with("")).is_ok());
        // Only one rank has too many steps; the other would wait for it.
        let error = read(&with(&"copy src in:0 dst scratch:0\n".repeat(300))).unwrap_err().into_text();
        assert!(error.contains("rank 0: own: channel 0 has 302 steps"), "{error}");
        // A third rank would be a network, which only the library's own programs have.
        let network = "rank 2\nchannel 0\nrecv_reduce_send from 0,1 to 0,1 finish\n";
        let end = |rank: u32| format!("rank {rank}\nchannel 0\nsend src in:0 to 2\nrecv from 2 dst out:0\n");
        let error = read(&format!("{head}{}{}{network}", end(0), end(1))).unwrap_err().into_text();
        assert!(error.contains("2 ranks are declared, 3 have programs"), "{error}");
    }

    #[test]
    fn contributions_without_number_are_counted_to_the_end() {
        let rank = |rank: u32, times: u32| {
            let peer = 1 - rank;
            let doubled = format!("reduce src out:0 dst out:0 times {times}\n");
            format!(
                "rank {rank}\nchannel 0\nsend src in:0 to {peer}\ncopy src in:0 dst \
                 out:0\n{}recv_reduce_copy from {peer} src out:0 order 1 dst out:0 finish\n",
                if times > 0 { doubled } else { String::new() }
            )
        };
        for (times, is_right) in [(0, true), (1, false), (31, false), (32, false), (40, false)] {
            let text = format!(
                "hawser-plan 1\nname own\ncollective all_reduce\nranks 2\nroot 0\nper_block 1\nscratch \
                 0\n{}{}",
                rank(0, times),
                rank(1, times)
            );
            let found = read(&text).map_err(PlanError::into_text);
            assert_eq!(found.is_ok(), is_right, "{times}: {found:?}");
        }
    }
}

//! Runs a program on the host device, in a process of its own, since files are read once per process.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hawser_plan::imported;
use hawser_plan::{Collective, DataType, ReduceOp};
use serde_json::Value;

use hawser_runtime::{Comm, Stream, group};

use crate::oracle::{Case, RankBuffers};
use crate::world::call;

/// The word that tells the binary to be the process of one file.
pub const WORD: &str = "--run-one";
/// The time after which a process is said to hang.
const LIMIT: Duration = Duration::from_secs(300);

/// The outcome of running a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ran {
    /// All results were right; the number of calls.
    Right(u32),
    /// A result was wrong, a call failed, or nothing moved any more.
    Wrong(String),
    /// The communicator has no room for it, or it is for more ranks than are run.
    Not(String),
}

/// Most ranks that are run.
const MOST_RANKS: u32 = 16;

/// Starts a process for a file and hears from it. `binary` calls [`run_here`] when it is given [`WORD`].
pub fn run(binary: &Path, file: &Path) -> Ran {
    let rules = file.with_extension("toml");
    if let Err(error) = rule_for(file, &rules) {
        return Ran::Not(error);
    }
    let mut command = Command::new(binary);
    command.arg(WORD).arg(file).env("MSCCL_XML_FILES", file).env("HAWSER_DEVICE", "host");
    command.env("HAWSER_RULES", &rules).env_remove("NCCL_DEBUG").env_remove("NCCL_ALGO");
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ran::Not(format!("{} does not start: {error}", binary.display())),
    };
    let begin = Instant::now();
    while child.try_wait().is_ok_and(|ended| ended.is_none()) {
        if begin.elapsed() > LIMIT {
            // It may have ended just now.
            let _ = child.kill();
            return Ran::Wrong(format!("no end within {LIMIT:?}"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // A file that stays disturbs nobody.
    let _ = std::fs::remove_file(&rules);
    let Ok(output) = child.wait_with_output() else { return Ran::Not("its output is lost".to_owned()) };
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
    if let Some(calls) = last.strip_prefix("right ").and_then(|calls| calls.parse().ok()) {
        return Ran::Right(calls);
    }
    if let Some(why) = last.strip_prefix("not ") {
        return Ran::Not(why.to_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Ran::Wrong(format!("{} {last} {}", output.status, errors.lines().last().unwrap_or_default()))
}

/// Writes the rule that takes the program of a file wherever it fits, whatever else would be faster.
fn rule_for(file: &Path, rules: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let name = imported::head(&text).map_err(|error| error.to_string())?.name;
    let rule = format!("[[rule]]\nuse = {{ program = {} }}\n", Value::from(name));
    std::fs::write(rules, rule).map_err(|error| format!("{}: {error}", rules.display()))
}

/// Runs a file in this process and prints what came of it as the last line.
pub fn run_here(file: &Path) {
    let ran = match carry_out(file) {
        Ok(Ran::Right(calls)) => format!("right {calls}"),
        Ok(Ran::Not(why)) => format!("not {why}"),
        Ok(Ran::Wrong(why)) => format!("wrong {why}"),
        Err(error) => format!("wrong {error}"),
    };
    println!("{ran}");
}

fn carry_out(file: &Path) -> Result<Ran, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let imported = imported::read(&text).map_err(|error| error.to_string())?;
    let shape = &imported.program.shape;
    if shape.ranks > MOST_RANKS {
        return Ok(Ran::Not(format!("{} ranks", shape.ranks)));
    }
    let comms = Comm::init_all(&(0..shape.ranks).collect::<Vec<u32>>()).map_err(|error| error.to_string())?;
    if shape.collective == Collective::SendRecv {
        return carry_out_custom(&comms, &text, &shape.name, shape.per_block as usize)
            .map_err(|error| error.to_string());
    }
    let mut calls = 0;
    for case in cases(shape.collective, shape.ranks, shape.root) {
        for in_place in [false, true] {
            if in_place && case.collective == Collective::AllToAll {
                continue;
            }
            if let Some(fault) = one(&comms, &case, in_place).map_err(|error| error.to_string())? {
                return Ok(Ran::Wrong(fault));
            }
            let last = comms[0].last_decision().map_err(|error| error.to_string())?;
            let by = last.map_or_else(String::new, |last| last.algorithm);
            if by == shape.name {
                calls += 1;
            }
        }
    }
    match calls {
        0 => Ok(Ran::Not("no call took it".to_owned())),
        calls => Ok(Ran::Right(calls)),
    }
}

/// A program of no collective by its name; what it has to move is what the judge saw it move. Chunks are
/// whole 16 bytes, since they may come to other places.
fn carry_out_custom(comms: &[Comm], text: &str, name: &str, per_block: usize) -> hawser_runtime::Result<Ran> {
    let Some(moved) = super::moved(text) else {
        return Ok(Ran::Not("the judge cannot follow it".to_owned()));
    };
    let mut calls = 0;
    for each in [2, 38, 4002] {
        let count = per_block * each;
        let number = |rank: usize, at: usize| (rank << 40 | at) as u64;
        let inputs: Vec<Vec<u64>> =
            (0..comms.len()).map(|rank| (0..count).map(|at| number(rank, at)).collect()).collect();
        let mut outputs = vec![vec![u64::MAX; count]; comms.len()];
        group::start()?;
        for ((comm, input), output) in comms.iter().zip(&inputs).zip(&mut outputs) {
            let buffers = (input.as_ptr() as u64, output.as_mut_ptr() as u64);
            comm.custom(name, buffers, (count as u64, DataType::Uint64), Stream(0))?;
        }
        group::end()?;
        for (rank, output) in outputs.iter().enumerate() {
            let wanted = |at: usize| match moved[rank][at / each] {
                Some((from, chunk)) => number(from, chunk * each + at % each),
                None => u64::MAX,
            };
            if let Some(at) = (0..count).find(|&at| output[at] != wanted(at)) {
                let found = output[at];
                return Ok(Ran::Wrong(format!("element {at} of {count} of rank {rank} is {found:x}")));
            }
        }
        calls += 1;
    }
    Ok(Ran::Right(calls))
}

/// Counts that divide and that do not, small and of several tiles; sums and a maximum.
fn cases(collective: Collective, ranks: u32, root: u32) -> Vec<Case> {
    let case = |dtype, op, count| Case { collective, dtype, op, ranks, root, count };
    let mut cases = vec![
        case(DataType::Float32, ReduceOp::Sum, 1),
        case(DataType::Int64, ReduceOp::Sum, 1027),
        case(DataType::Float32, ReduceOp::Sum, 30_011),
    ];
    if collective.reduces() {
        cases.push(case(DataType::Uint8, ReduceOp::Max, 333));
        cases.push(case(DataType::Float32, ReduceOp::Avg, 96));
    }
    cases
}

fn one(comms: &[Comm], case: &Case, in_place: bool) -> hawser_runtime::Result<Option<String>> {
    let buffers: Vec<RankBuffers> =
        (0..case.ranks).map(|rank| RankBuffers::new(case, rank, in_place, 1)).collect();
    group::start()?;
    for ((rank, comm), buffers) in (0..case.ranks).zip(comms).zip(&buffers) {
        comm.collective(call(case, rank, buffers.addresses(case, rank)), Stream(0))?;
    }
    group::end()?;
    Ok((0..case.ranks).zip(&buffers).find_map(|(rank, buffers)| buffers.fault(case, rank)))
}

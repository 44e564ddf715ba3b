//! The checks of `NCCL_CHECK_MODE`: buffers that the device cannot use, and collectives that ranks call
//! differently.

use std::collections::BTreeMap;

use hawser_base::env::{self, CheckMode};
use hawser_base::error::{Error, Result};
use hawser_base::log;
use hawser_base::wait::Wait;
use hawser_plan::p2p::Message;
use hawser_plan::{Call, Class};
use serde::{Deserialize, Serialize};

use crate::comm_state::CommState;
use crate::op_number;
use crate::progress::operation::What;
use crate::record;

/// Ranks that an error names.
const NAMED: usize = 4;

/// True if ranks compare every collective, and so wait for each other in the call.
pub fn compares() -> bool {
    env::settings().check_mode() == CheckMode::Global
}

/// Checks the buffers of a collective, if that is wanted.
///
/// # Errors
/// `InvalidArgument`: the device cannot use one of them.
pub fn check_call(comm: &CommState, call: &Call) -> Result<()> {
    if env::settings().check_mode() == CheckMode::Default {
        return Ok(());
    }
    let (collective, ranks) = (call.collective, comm.topology.size());
    let name = collective.name();
    if collective.has_input(comm.rank, call.root) {
        let bytes = call.extent(collective.input_blocks(ranks));
        check_buffer(comm, (call.input, bytes), || format!("{name}: the send buffer"))?;
    }
    if collective.has_output(comm.rank, call.root) {
        let bytes = call.extent(collective.output_blocks(ranks));
        check_buffer(comm, (call.output, bytes), || format!("{name}: the receive buffer"))?;
    }
    Ok(())
}

/// Checks the buffer of a message, if that is wanted.
///
/// # Errors
/// As [`check_call`].
pub fn check_message(comm: &CommState, message: &Message) -> Result<()> {
    if env::settings().check_mode() == CheckMode::Default {
        return Ok(());
    }
    let verb = if message.send { "send to" } else { "recv from" };
    check_buffer(comm, (message.addr, message.bytes), || format!("{verb} rank {}: the buffer", message.peer))
}

fn check_buffer(comm: &CommState, (addr, bytes): (u64, u64), what: impl Fn() -> String) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let last = addr.checked_add(bytes - 1);
    for (at, part) in [(Some(addr), "begins"), (last, "ends")] {
        let is_usable = match at {
            Some(at) => comm.device.accepts(at)?,
            None => false,
        };
        if !is_usable {
            let device = &comm.device.caps().name;
            let text = format!(
                "{}, {bytes} bytes at {addr:#x}, {part} where {device} has no memory it can use",
                what()
            );
            return Err(Error::invalid_argument(text).remedy("pass memory of the communicator's device"));
        }
    }
    Ok(())
}

/// The call of a rank, as the others compare it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Compared {
    /// Tells these records from those of other collective operations.
    mark: [u8; 4],
    number: u64,
    what: What,
    /// The number of the class that the call or its communicator has, if one was said.
    class: Option<u8>,
}

const MARK: [u8; 4] = *b"call";

/// The word of a rank whose call, or whose group, failed before it was compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Failed {
    /// As [`Compared::mark`].
    mark: [u8; 4],
    /// The error of that rank.
    error: String,
}

const FAILED: [u8; 4] = *b"fail";
/// The most letters of an error that other ranks hear.
const LETTERS: usize = 400;

/// Tells the other ranks, which wait for the next collective of this one, that it will not come.
///
/// Waits for them as [`compare`] does, so that all of them are told, and takes a number as a call does.
pub fn tell_failure(comm: &CommState, error: &Error) {
    if comm.topology.size() < 2 || comm.begin().is_err() {
        return;
    }
    let error: String = error.to_string().chars().take(LETTERS).collect();
    let wait = Wait::new(comm.abort.clone(), env::settings().op_timeout);
    let told = comm.bootstrap.all_gather(&record::encode(&Failed { mark: FAILED, error }), &wait);
    if let Err(error) = told {
        let what = "telling other ranks of a failed call (NCCL_CHECK_MODE=DEBUG_GLOBAL)";
        log::warn(&format!("rank {}: {what}: {error}", comm.rank));
    }
}

/// A sentence about the ranks whose calls failed before they were compared; `None` if there are none.
fn failures(records: &[Vec<u8>]) -> Option<String> {
    let of = |(rank, bytes): (usize, &Vec<u8>)| {
        let failed = record::decode::<Failed>(bytes).filter(|failed| failed.mark == FAILED)?;
        Some(format!("it failed on rank {rank}: {}", failed.error))
    };
    let failed: Vec<String> = records.iter().enumerate().filter_map(of).collect();
    let more = failed.len().saturating_sub(NAMED);
    let more = if more > 0 { format!("; and on {more} more ranks") } else { String::new() };
    (!failed.is_empty()).then(|| failed[..failed.len().min(NAMED)].join("; ") + &more)
}

/// Compares a collective with those of all other ranks, for which it waits.
///
/// # Errors
/// `InvalidUsage`, on all ranks: they do not call the same, or the call of one has failed; `Timeout`,
/// `Remote` or `Aborted`: a rank did not come.
pub fn compare(comm: &CommState, (call, class): (&Call, Option<Class>), number: u64) -> Result<()> {
    let class = class.map(|class| class as u8);
    let own = Compared { mark: MARK, number, what: What::of_call(call), class };
    let wait = Wait::new(comm.abort.clone(), env::settings().op_timeout);
    let records = comm.bootstrap.all_gather(&record::encode(&own), &wait).map_err(|error| {
        let what = format!("{}, {}", op_number::operation(number), own.what);
        comm.bootstrap.blame(error.context(format!("ranks compare {what} (NCCL_CHECK_MODE=DEBUG_GLOBAL)")))
    })?;
    if let Some(text) = failures(&records) {
        let text = format!("{}, {}, does not run: {text}", op_number::operation(number), own.what);
        return Err(Error::invalid_usage(text).remedy("mend what that rank complains about"));
    }
    let calls = records.iter().map(|bytes| record::decode::<Compared>(bytes).filter(|it| it.mark == MARK));
    match difference(&calls.collect::<Vec<_>>()) {
        None => Ok(()),
        Some(text) => {
            let text = format!("{} is not the same on all ranks: {text}", op_number::operation(number));
            Err(Error::invalid_usage(text).remedy("let all ranks call the same, in the same order"))
        }
    }
}

/// A sentence about the ranks whose calls differ from what most ranks call; `None` if all call the same.
fn difference(calls: &[Option<Compared>]) -> Option<String> {
    let mut by_call: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (rank, call) in calls.iter().enumerate() {
        by_call.entry(format!("{call:?}")).or_default().push(rank);
    }
    if by_call.len() < 2 {
        return None;
    }
    // Of as many, those of the lowest rank.
    let usual = by_call.values().max_by_key(|ranks| (ranks.len(), std::cmp::Reverse(ranks[0])))?;
    let reference = usual[0];
    let others: Vec<usize> = (0..calls.len()).filter(|rank| !usual.contains(rank)).collect();
    let text = |rank: usize| calls[rank].as_ref().map(|call| call.what.to_string());
    let right = text(reference).unwrap_or_else(|| "no collective".into());
    let sentence = |rank: &usize| {
        let Some(wrong) = text(*rank) else {
            return format!("rank {rank} calls something else that ranks meet in (such as a split)");
        };
        let both = calls[*rank].as_ref().zip(calls[reference].as_ref());
        let class = |(a, b): (&Compared, &Compared)| (a.class != b.class).then_some("of another class");
        let how = both.and_then(|pair| pair.0.what.difference(&pair.1.what).or_else(|| class(pair)));
        let how = how.unwrap_or("another number of it");
        format!("rank {rank} called {wrong}, {how} than rank {reference}")
    };
    let sentences: Vec<String> = others.iter().take(NAMED).map(sentence).collect();
    let more = others.len().saturating_sub(NAMED);
    let more = if more > 0 { format!("; and so on for {more} more ranks") } else { String::new() };
    Some(format!("{}{more}; rank {reference} called {right}", sentences.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_plan::{Collective, DataType, ReduceOp, Scalar};

    fn call(collective: Collective, count: u64, op: ReduceOp, root: u32) -> Option<Compared> {
        let (dtype, scalar) = (DataType::Float32, Scalar::Immediate(0));
        let call = Call { collective, count, dtype, op, scalar, root, input: 64, output: 64, gap: 0 };
        Some(Compared { mark: MARK, number: 7, what: What::of_call(&call), class: None })
    }

    #[test]
    fn the_rank_that_differs_is_named_with_both_calls() {
        let usual = call(Collective::AllReduce, 1000, ReduceOp::Sum, 0);
        let same_but_root = call(Collective::AllReduce, 1000, ReduceOp::Sum, 2);
        assert_eq!(difference(&[usual.clone(), same_but_root, usual.clone()]), None, "it has no root");
        let cases = [
            (call(Collective::AllReduce, 999, ReduceOp::Sum, 0), "another count"),
            (call(Collective::AllReduce, 1000, ReduceOp::Max, 0), "another reduction"),
            (call(Collective::AllGather, 1000, ReduceOp::Sum, 0), "another collective"),
        ];
        for (other, how) in cases {
            // Whichever rank it is: most are right.
            for at in 0..3 {
                let mut calls = vec![usual.clone(); 3];
                calls[at] = other.clone();
                let text = difference(&calls).unwrap();
                let reference = u32::from(at == 0);
                let begin = format!("rank {at} called ");
                assert!(
                    text.starts_with(&begin) && text.contains(&format!("{how} than rank {reference}")),
                    "{text}"
                );
                assert!(text.ends_with("called all_reduce(1000 x float, sum)"), "{text}");
            }
        }
    }

    #[test]
    fn ranks_whose_calls_failed_are_named() {
        let fine = record::encode(&call(Collective::AllReduce, 5, ReduceOp::Sum, 0));
        let failed = record::encode(&Failed { mark: FAILED, error: "the receive buffer is NULL".into() });
        assert_eq!(failures(&[fine.clone(), fine.clone()]), None);
        let text = failures(&[fine.clone(), failed.clone(), fine.clone()]).unwrap();
        assert_eq!(text, "it failed on rank 1: the receive buffer is NULL");
        let text = failures(&vec![failed.clone(); 40]).unwrap();
        assert!(text.contains("rank 3") && text.ends_with("and on 36 more ranks"), "{text}");
        // A call is none of these, and these are no calls.
        assert!(record::decode::<Compared>(&failed).is_none_or(|it| it.mark != MARK));
    }

    #[test]
    fn other_meetings_and_many_ranks_have_words_too() {
        let usual = call(Collective::Broadcast, 5, ReduceOp::Sum, 1);
        let text = difference(&[usual.clone(), None]).unwrap();
        assert!(text.contains("rank 1 calls something else"), "{text}");
        let calls: Vec<_> = (0..40).map(|rank| call(Collective::Broadcast, 5, ReduceOp::Sum, rank)).collect();
        let text = difference(&calls).unwrap();
        assert!(text.contains("another root than rank 0") && text.contains("35 more ranks"), "{text}");
        let urgent = usual.clone().map(|call| Compared { class: Some(2), ..call });
        let text = difference(&[usual.clone(), usual.clone(), urgent]).unwrap();
        assert!(text.contains("of another class than rank 0"), "{text}");
        assert!(difference(&[]).is_none() && difference(&[usual]).is_none());
    }
}

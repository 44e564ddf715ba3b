//! A net that has lost a rail, or whose rail is silent: what nets say of themselves, beside what ranks wait
//! for.

use super::{Cause, Finding, seconds};
use crate::progress::report::Loss;

/// A loss counts if it came at most so many milliseconds before the oldest open operation was called.
pub const BEFORE_MS: u64 = 30_000;

/// Losses that a sentence holds.
const TOLD: usize = 3;

/// A part of a loss of which a net has only heard: the other end is where to look (net-ib's `Why::Peer`).
const HEARSAY: &str = "the peer says:";

/// Adds to a finding what nets have lost: where what was sent did not come, that is the reason; else it may
/// be one. `who` names a rank.
pub fn with_losses(found: Finding, losses: &[(u32, &Loss)], who: impl Fn(u32) -> String) -> Finding {
    if losses.is_empty() {
        return found;
    }
    let mut losses = losses.to_vec();
    if losses.iter().any(|(_, loss)| !loss.text.contains(HEARSAY)) {
        losses.retain(|(_, loss)| !loss.text.contains(HEARSAY));
    }
    // What was lost last is what counts now; one of each rank is told before the second of any.
    losses.sort_by_key(|(_, loss)| loss.age_ms);
    let ranks: Vec<u32> = losses.iter().map(|(rank, _)| *rank).collect();
    let before = |at: usize| ranks[..at].iter().filter(|rank| **rank == ranks[at]).count();
    let mut turns: Vec<(usize, (u32, &Loss))> = (0..losses.len()).map(before).zip(losses).collect();
    turns.sort_by_key(|(turn, _)| *turn);
    let losses: Vec<(u32, &Loss)> = turns.into_iter().map(|(_, loss)| loss).collect();
    let one = |(rank, loss): &(u32, &Loss)| {
        format!("the net of {} says since {}: {}", who(*rank), seconds(loss.age_ms), loss.text)
    };
    let mut text = losses.iter().take(TOLD).map(one).collect::<Vec<_>>().join("; ");
    if losses.len() > TOLD {
        text += &format!("; and {} more such losses", losses.len() - TOLD);
    }
    match found.cause {
        Cause::Lost | Cause::NetSilent | Cause::MessagesCross | Cause::NotSubmitted => {
            let mut guilty: Vec<u32> = losses.iter().map(|(rank, _)| *rank).collect();
            guilty.sort_unstable();
            guilty.dedup();
            Finding {
                cause: Cause::RailDown,
                guilty,
                sentence: format!("a net has lost a rail: {text}; {}", found.sentence),
                remedy: "look at that link and its peer: ip -s link, ibstat, the port of the switch",
            }
        }
        // These explain themselves.
        Cause::Mismatch | Cause::Stopped | Cause::Debugger | Cause::GroupOpen | Cause::OtherOrder => found,
        _ => Finding { sentence: format!("{}; beside that, {text}", found.sentence), ..found },
    }
}

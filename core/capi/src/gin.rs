//! The network in kernels (GIN): whether a program asks for it, and what it needs of it.
//!
//! There is one type, the proxy: kernels write descriptors, and a thread of the host carries them out.

use hawser_runtime::gin::Form;
use hawser_runtime::lsa::layout::MOST_SHORT_CONTEXTS;
use hawser_runtime::lsa::resources::NetworkWanted;
use hawser_runtime::{Error, Result};

use crate::types::DevCommRequirements;

/// `NCCL_GIN_TYPE_PROXY`.
pub const PROXY: i32 = 2;
/// `NCCL_GIN_CONNECTION_FULL`: all ranks are connected.
pub const FULL: i32 = 1;
/// `NCCL_GIN_CONNECTION_RAIL`: the rail team is.
const RAIL: i32 = 2;
/// `NCCL_GIN_CONNECTION_CUSTOM_STRIDE`: every so many ranks are.
const CUSTOM_STRIDE: i32 = 3;

/// Most contexts of a communicator for kernels.
const MOST_CONTEXTS: i32 = 256;

/// The teams of a communicator: how many load-store teams there are, their size, and the number of ranks.
#[derive(Debug, Clone, Copy)]
pub struct Teams {
    /// Load-store teams.
    pub rails: u32,
    /// Ranks of each.
    pub near: u32,
    /// All ranks.
    pub ranks: u32,
}

/// The layout of the contexts of a version, if its network is offered.
pub fn form(version: u32) -> Option<Form> {
    match version {
        22807..=22809 => Some(Form::Short),
        23003..=23004 => Some(Form::Bare),
        23005..=23007 => Some(Form::Counted),
        23203 => Some(Form::Promising),
        _ => None,
    }
}

/// The needs of a program that uses the network; None if it does not. `of_resources` says that one of its
/// resources has signals or counters.
///
/// # Errors
/// `InvalidArgument`: it needs the network and does not ask to be connected, or a number is out of range.
/// `InvalidUsage`: its version, or the type of network that it wants, is not offered.
pub fn wanted(
    given: &DevCommRequirements,
    version: u32,
    teams: Teams,
    of_resources: bool,
) -> Result<Option<NetworkWanted>> {
    let needs = [
        ("ginSignalCount", given.gin_signals != 0),
        ("ginCounterCount", given.gin_counters != 0),
        ("railGinBarrierCount", given.rail_barriers != 0 && teams.rails > 1),
        ("worldGinBarrierCount", given.world_barriers != 0 && teams.ranks > 1),
        ("barrierCount", given.barriers != 0 && teams.rails > 1),
        ("resourceRequirementsList", of_resources),
    ];
    let needed = needs.into_iter().find(|(_, is_needed)| *is_needed).map(|(name, _)| name);
    let form = form(version);
    // Before 2.30 whoever needs it has it, with all ranks connected.
    let is_full = given.gin_force_enable != 0 || form == Some(Form::Short) && needed.is_some();
    let connection = if is_full { FULL } else { given.gin_connection_type };
    let Some(form) = form else {
        let name = (connection != 0).then_some("ginConnectionType").or(needed);
        return name.map_or(Ok(None), |name| Err(not_in(version, name)));
    };
    match (connection, needed) {
        (0, None) => return Ok(None),
        (0, Some(name)) => {
            let text = format!("{name} needs the network in kernels (GIN), and ginConnectionType is NONE");
            return Err(Error::invalid_argument(text).remedy("set it to NCCL_GIN_CONNECTION_FULL"));
        }
        (RAIL, Some("worldGinBarrierCount")) => {
            return Err(Error::invalid_argument("worldGinBarrierCount, and ginConnectionType is RAIL")
                .remedy("set it to NCCL_GIN_CONNECTION_FULL, or use barriers of the rail team"));
        }
        _ => {}
    }
    if ![0, PROXY].contains(&given.gin_type) {
        let text = format!("ginType is {}, and kernels reach the network by type {PROXY}", given.gin_type);
        return Err(Error::invalid_usage(text).remedy("ask for NCCL_GIN_TYPE_NONE or NCCL_GIN_TYPE_PROXY"));
    }
    let stride = match connection {
        RAIL => teams.near.cast_signed(),
        CUSTOM_STRIDE => given.gin_custom_stride,
        _ => 1,
    };
    let most = i32::MAX;
    // The number is a hint in 2.28, which has few.
    let contexts = match form {
        Form::Short => given.gin_contexts.clamp(1, MOST_SHORT_CONTEXTS.cast_signed()),
        _ => given.gin_contexts.max(1),
    };
    Ok(Some(NetworkWanted {
        form,
        contexts: number("ginContextCount", contexts, 1, MOST_CONTEXTS)?,
        signals: number("ginSignalCount", given.gin_signals, 0, most)?,
        counters: number("ginCounterCount", given.gin_counters, 0, most)?,
        depth: number("ginQueueDepth", given.gin_queue_depth, 0, most)?,
        world_barriers: number("worldGinBarrierCount", given.world_barriers, 0, most)?,
        stride: number("ginCustomStride", stride, 1, teams.ranks.cast_signed())?,
        has_strong_signals: given.gin_strong_signals != 0,
    }))
}

/// A number of the needs that has to be in a range.
fn number(name: &str, value: i32, least: i32, most: i32) -> Result<u32> {
    if (least..=most).contains(&value) {
        return Ok(value.unsigned_abs());
    }
    Err(Error::invalid_argument(format!("{name} is {value}")).remedy(format!("pass {least} to {most}")))
}

fn not_in(version: u32, name: &str) -> Error {
    let (major, minor, patch) = (version / 10000, version / 100 % 100, version % 100);
    Error::invalid_usage(format!(
        "{name} asks for a network in kernels (GIN), which programs of NCCL {major}.{minor}.{patch} do not \
         have with Hawser"
    ))
    .remedy("compile the program with NCCL 2.28.7 to 2.28.9, 2.30.3 to 2.30.7, or 2.32.3")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dev_comm::NOTHING;

    const TEAMS: Teams = Teams { rails: 2, near: 4, ranks: 8 };

    fn of(version: u32, change: impl Fn(&mut DevCommRequirements)) -> Result<Option<NetworkWanted>> {
        let mut given = NOTHING;
        change(&mut given);
        wanted(&given, version, TEAMS, false)
    }

    #[test]
    fn a_program_has_the_network_that_it_asks_for() {
        let full = of(23007, |given| (given.gin_connection_type, given.gin_signals) = (FULL, 9)).unwrap();
        let full = full.unwrap();
        assert_eq!((full.form, full.signals, full.contexts, full.stride), (Form::Counted, 9, 1, 1));
        let rail = of(23203, |given| (given.gin_connection_type, given.gin_contexts) = (RAIL, 4));
        let rail = rail.unwrap().unwrap();
        assert_eq!((rail.form, rail.contexts, rail.stride), (Form::Promising, 4, 4));
        assert_eq!(of(23004, |given| given.gin_force_enable = 1).unwrap().unwrap().form, Form::Bare);
        assert_eq!(of(23007, |_| {}).unwrap(), None);
        assert_eq!(of(22907, |_| {}).unwrap(), None);
        let short = of(22809, |given| (given.gin_signals, given.gin_contexts) = (3, 9)).unwrap().unwrap();
        assert_eq!((short.form, short.signals, short.contexts, short.stride), (Form::Short, 3, 4, 1));
        assert_eq!(of(22809, |given| given.barriers = 1).unwrap().unwrap().contexts, 1);
        assert_eq!(of(22809, |given| given.lsa_barriers = 1).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        type Change = fn(&mut DevCommRequirements);
        let cases: [(u32, Change, &str); 7] = [
            (23007, |given| given.barriers = 1, "barrierCount needs"),
            (22903, |given| given.gin_force_enable = 1, "2.29.3 do not have"),
            (22907, |given| given.rail_barriers = 1, "railGinBarrierCount asks"),
            (23007, |given| (given.gin_connection_type, given.world_barriers) = (RAIL, 1), "is RAIL"),
            (23203, |given| (given.gin_connection_type, given.gin_type) = (FULL, 3), "ginType is 3"),
            (
                23203,
                |given| (given.gin_connection_type, given.gin_custom_stride) = (CUSTOM_STRIDE, 9),
                "is 9",
            ),
            (
                23007,
                |given| (given.gin_connection_type, given.gin_counters) = (FULL, -1),
                "ginCounterCount is -1",
            ),
        ];
        for (version, set, text) in cases {
            let error = of(version, set).unwrap_err();
            assert!(error.text.contains(text), "{text}: {error}");
        }
    }
}

//! The programs that a device can run: the limits of a launch, and how steps are counted against them.
//!
//! A program that is right may still be too large for a launch. What one rank could not launch, the others
//! would wait for, so [`check`] looks at all ranks before a program is taken.

use std::collections::BTreeMap;

use hawser_types::{PlanError, Result};

use crate::{Channel, Op, Program, RankProgram, Step};

/// Most peers of one step in each direction.
pub const MAX_FAN: usize = 8;

/// Most steps of one channel on one rank: a device's block counts them in a byte.
pub const MAX_CHANNEL_STEPS: u32 = 255;

/// Most channels of one rank: each is a block of a launch.
pub const MAX_CHANNELS: usize = 64;

/// Most lanes of one rank: a device's block counts them in a byte.
const MAX_LANES: u32 = 256;

/// Checks that every rank's part fits into a launch.
///
/// # Errors
/// `BadProgram`: more than devices take, or ranks that are none of the communicator.
pub fn check(program: &Program) -> Result<()> {
    let shape = &program.shape;
    if program.ranks.len() != shape.ranks as usize {
        return Err(PlanError::program(format!(
            "{} ranks are declared, {} have programs: only the library's own have a network for a rank",
            shape.ranks,
            program.ranks.len()
        )));
    }
    for (rank, steps) in program.ranks.iter().enumerate() {
        if steps.longest_run() > 1 {
            return Err(PlanError::program(format!(
                "rank {rank} moves runs of chunks, which only the library's own programs can: the chooser \
                 knows for which sizes"
            )));
        }
        if steps.channels.len() > MAX_CHANNELS {
            let count = steps.channels.len();
            return Err(PlanError::program(format!(
                "rank {rank} has {count} channels, each a block of a launch, which has {MAX_CHANNELS}"
            )));
        }
        check_rank(steps)
            .map_err(|what| PlanError::program(format!("rank {rank}: {}: {what}", shape.name)))?;
    }
    Ok(())
}

/// Checks that the part of one rank fits into a launch.
///
/// # Errors
/// The limit that it exceeds, in words.
pub fn check_rank(program: &RankProgram) -> std::result::Result<(), String> {
    let mut total = 0;
    for (index, channel) in program.channels.iter().enumerate() {
        let steps = device_steps(channel);
        if steps > MAX_CHANNEL_STEPS as usize {
            return Err(format!(
                "channel {index} has {steps} steps, a block takes {MAX_CHANNEL_STEPS}: spread them over more \
                 channels"
            ));
        }
        if total > usize::from(u16::MAX) {
            return Err("more than 65,535 steps on one rank".into());
        }
        total += steps;
        for (number, step) in channel.steps.iter().enumerate() {
            check_step(program, step).map_err(|what| format!("channel {index} step {number}: {what}"))?;
        }
    }
    if program.lane_count() > MAX_LANES {
        return Err("more than 256 lanes on one rank".into());
    }
    Ok(())
}

fn check_step(program: &RankProgram, step: &Step) -> std::result::Result<(), String> {
    if let Op::Native(id) = step.op {
        return Err(format!("native kernel {id} is not built in: use the steps that it stands for"));
    }
    if step.order > u32::from(u8::MAX) {
        return Err(format!("order {} is more than 255", step.order));
    }
    for peers in [&step.recv, &step.send] {
        if peers.len() > MAX_FAN {
            return Err(format!("{} peers, at most {MAX_FAN} fit: use several steps", peers.len()));
        }
        if let Some(peer) = peers.iter().find(|peer| **peer > u32::from(u16::MAX)) {
            return Err(format!("rank {peer} is above 65,535"));
        }
    }
    awaited(program, step).map(drop)
}

/// The last step of every channel that `step` waits for, as channel and device step.
///
/// # Errors
/// A step that does not exist, in words.
pub fn awaited(program: &RankProgram, step: &Step) -> std::result::Result<Vec<(u16, u16)>, String> {
    let mut last: BTreeMap<u32, u32> = BTreeMap::new();
    for dep in &step.after {
        let awaited = last.entry(dep.channel).or_insert(dep.step);
        *awaited = dep.step.max(*awaited);
    }
    let number = |(channel, step): (u32, u32)| {
        let missing = || format!("waits for step {step} of channel {channel}, which does not exist");
        let steps = &program.channels.get(channel as usize).ok_or_else(missing)?.steps;
        let before = steps.get(..=step as usize).ok_or_else(missing)?;
        let number = before.iter().map(device_steps_of).sum::<usize>() - 1;
        let narrow = |n: usize| u16::try_from(n).map_err(|_| format!("awaited step {n} is above 65,535"));
        Ok((narrow(channel as usize)?, narrow(number)?))
    };
    last.into_iter().map(number).collect()
}

/// The steps that a device runs for a channel.
pub fn device_steps(channel: &Channel) -> usize {
    channel.steps.iter().map(device_steps_of).sum()
}

/// The steps that a device runs for one step: a device's step waits for one other step, so one that waits for
/// several has steps before it that only wait.
fn device_steps_of(step: &Step) -> usize {
    let channel = |at: usize| step.after[at].channel;
    let is_first = |at: &usize| (0..*at).all(|before| channel(before) != channel(*at));
    (0..step.after.len()).filter(is_first).count().max(1)
}

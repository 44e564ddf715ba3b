//! Submitting: the one place where launches are put on streams.
//!
//! Here is what all executors share: the order of streams, profiler events, timing, and who goes first where
//! one thread serves several ranks. How a launch reaches its device is the executor's ([`crate::executor`]).

use std::sync::Arc;

use hawser_base::error::Result;

use crate::executor::rounds::CopyEngineLaunch;
use crate::executor::{Launch, Work, fused, host, interpreter, one_sided};

/// Submits a group's launches: GPUs get theirs on the streams, the host device's run to their end here.
///
/// Where there are several, all kernels are loaded before the first launch, since a kernel that is already
/// spinning can keep the driver from loading another one.
///
/// # Errors
/// The first failure. On the host device every communicator keeps its own, and refuses further operations.
pub fn submit(launches: &mut [Launch]) -> Result<()> {
    if launches.len() > 1 {
        load_kernels(launches)?;
    }
    let mut has_host = false;
    // One communicator after the other, in the order that all ranks have; its ranks in this thread side by
    // side.
    for of_comm in launches.chunk_by_mut(|a, b| a.comm.comm_id == b.comm.comm_id) {
        if is_of_host(&of_comm[0]) {
            has_host = true;
            continue;
        }
        of_comm.iter().for_each(expect_class);
        submit_in_turns(of_comm)?;
        for comm in of_comm.iter().map(|launch| &launch.comm) {
            if let Some(net) = &comm.net {
                net.launched(comm.order.has_captures());
            }
        }
    }
    if !has_host {
        return Ok(());
    }
    launches.iter().for_each(expect_class);
    let mut of_host: Vec<&mut Launch> = launches.iter_mut().filter(|launch| is_of_host(launch)).collect();
    host::run(&mut of_host)
}

/// Tells the proxy of a launch's class.
fn expect_class(launch: &Launch) {
    if let Some(net) = &launch.comm.net {
        net.expect_class(launch.class);
    }
}

/// Returns whether the host device runs a launch.
fn is_of_host(launch: &Launch) -> bool {
    launch.comm.device.kernels().is_none()
}

/// Loads the kernels of launches on GPUs.
fn load_kernels(launches: &[Launch]) -> Result<()> {
    for launch in launches {
        if let Some(kernel) = launch.work.kernel_to_load()
            && let Some(kernels) = launch.comm.device.kernels()
        {
            kernels.prepare(kernel)?;
        }
    }
    Ok(())
}

/// Submits the launches of one communicator: those of a rank in order, ranks in turns, since a device takes
/// only so much before another rank has to go on.
fn submit_in_turns(launches: &mut [Launch]) -> Result<()> {
    let has_rounds = |launch: &Launch| matches!(launch.work, Work::CopyEngine(..));
    let is_next_rank = |[a, b]: [&Launch; 2]| !Arc::ptr_eq(&a.comm, &b.comm);
    if !launches.iter().any(has_rounds) && launches.windows(2).all(|pair| is_next_rank([&pair[0], &pair[1]]))
    {
        return launches.iter_mut().try_for_each(|launch| submit_one(launch).map(|_| ()));
    }
    let ranks = launches.chunk_by_mut(|a, b| Arc::ptr_eq(&a.comm, &b.comm));
    let mut ranks: Vec<Rank<'_>> = ranks.map(|left| Rank { left: left.iter_mut(), current: None }).collect();
    let outcome = loop {
        match take_turns(&mut ranks) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if let Err(error) = &outcome {
        let current = ranks.into_iter().filter_map(|rank| rank.current);
        current.for_each(|launch| launch.give_up(error));
    }
    outcome
}

/// The launches of one rank, and the one that is half submitted.
struct Rank<'a> {
    left: std::slice::IterMut<'a, Launch>,
    current: Option<Box<CopyEngineLaunch<'a>>>,
}

/// Gives each rank a turn; false when nobody has anything left.
fn take_turns(ranks: &mut [Rank<'_>]) -> Result<bool> {
    let mut is_left = false;
    for rank in ranks {
        match rank.current.take() {
            Some(launch) => rank.current = launch.next_round()?,
            None => match rank.left.next() {
                Some(launch) => rank.current = submit_one(launch)?,
                None => continue,
            },
        }
        is_left = true;
    }
    Ok(is_left)
}

/// Submits a launch to its stream, or begins to.
fn submit_one(launch: &mut Launch) -> Result<Option<Box<CopyEngineLaunch<'_>>>> {
    let Launch { comm, work, number, sequence, stream, around, events, timed, .. } = launch;
    let launch_comm = &*comm;
    let (comm, device, stream, number) = (&**comm, &*comm.device, *stream, *number);
    comm.journal.submitted(*sequence);
    let before = match around {
        None => &[][..],
        Some(around) => {
            around.after.iter().try_for_each(|other| device.order(*other, stream))?;
            for event in around.record.iter() {
                device.needs_graphs()?.record_users_event(stream, *event)?;
            }
            &around.before
        }
    };
    let event = events.as_ref().and_then(|events| events.group.launch(stream));
    let timed = timed.take();
    match work {
        Work::CopyEngine(plan, program) => {
            let copies = events.as_ref().and_then(|events| events.copy_events(comm.topology.size()));
            let watched = (timed, copies);
            let begun = CopyEngineLaunch::begin(comm, (plan, program.as_deref()), (stream, before), watched);
            return begun.map(|begun| Some(Box::new(begun)));
        }
        Work::Steps(plan) => interpreter::submit(comm, plan, stream, timed)?,
        Work::Batch(batch) => interpreter::submit_batch(comm, batch, number, stream)?,
        Work::Fused(launch) => fused::submit(comm, launch, number, stream, timed)?,
        Work::FusedBatch(launch) => fused::submit_batch(comm, launch, stream)?,
        Work::Copies(copies) => copies.iter().try_for_each(|copy| comm.copy(copy, stream))?,
        Work::OneSided(ops) => {
            let operations = events.as_mut().map(|events| std::mem::take(&mut events.operations));
            one_sided::submit(launch_comm, ops, operations.unwrap_or_default(), stream)?;
        }
    }
    drop(event);
    before.iter().try_for_each(|other| device.order(stream, *other))?;
    Ok(None)
}

//! Names, properties, contexts, connections.

use hawser_plugin::net::{
    Flows, MAX_RECVS, MemoryKinds, Net, NetAttributes, NetConfig, NetContext, NetProperties, Region,
};
use hawser_plugin::{ErrorKind, Log};

use super::wire::{
    Fails, Meeting, Memory, Pair, connect, messages, register_receiver, register_sender, told,
};
use crate::conformance::case::{Outcome, Trial, check_name, want};

pub fn name_is_constant(trial: &Trial<dyn Net>) -> Outcome {
    let first = trial.plugin.name().to_owned();
    drop(trial.open(1)?);
    check_name(&first, trial.plugin.name())
}

pub fn properties_are_sane(trial: &Trial<dyn Net>) -> Outcome {
    let context = trial.open(1)?;
    let count = told("devices", context.devices())?;
    want!(count > 0, "there is no device here, so nothing can be tested");
    for device in 0..count {
        let properties = told("properties", context.properties(device))?;
        sane(&properties, device, count).map_err(|why| format!("device {device}: {why}"))?;
        let again = told("properties", context.properties(device))?;
        want!(again == properties, "device {device}: {properties:?} becomes {again:?}");
    }
    let again = told("devices", trial.open(2)?.devices())?;
    want!(again == count, "{count} devices, and {again} for another communicator");
    Ok(())
}

fn sane(p: &NetProperties, device: u32, count: u32) -> Outcome {
    want!(!p.name.is_empty(), "it has no name");
    want!(p.memory.contains(MemoryKinds::HOST), "it cannot use host memory ({:?})", p.memory);
    want!(p.memory.0 & !7 == 0, "unknown kinds of memory ({:?})", p.memory);
    want!(p.latency_us.is_finite() && p.latency_us >= 0.0, "a latency of {}", p.latency_us);
    want!(p.max_comms > 0, "it allows no connection");
    let groups = 1..=MAX_RECVS as u32;
    want!(groups.contains(&p.max_recvs), "max_recvs is {}, allowed are 1 to {MAX_RECVS}", p.max_recvs);
    want!(p.max_p2p_bytes > 0 && p.max_collective_bytes > 0, "messages of 0 bytes at most");
    want!(!p.members.is_empty() && p.members.iter().all(|m| *m < count), "members {:?}", p.members);
    let physical = p.members.len() > 1 || p.members == [device];
    want!(physical, "a physical device has itself as its member, not {:?}", p.members);
    Ok(())
}

pub fn devices_are_checked(trial: &Trial<dyn Net>) -> Outcome {
    let context = trial.open(1)?;
    let count = told("devices", context.devices())?;
    for device in [count, count + 1000, u32::MAX] {
        want!(context.properties(device).is_err(), "properties of device {device} of {count} are no error");
        want!(context.listen(device).is_err(), "listen on device {device} of {count} is no error");
    }
    Ok(())
}

pub fn many_connections(trial: &Trial<dyn Net>) -> Outcome {
    const COUNT: usize = 12;
    let ranks = [trial.open(3)?, trial.open(3)?];
    let mut patience = trial.patience();
    let begin = |n: usize| Meeting::new(&*ranks[n % 2], &*ranks[(n + 1) % 2], 0);
    let mut meetings = (0..COUNT).map(begin).collect::<Fails<Vec<Meeting>>>()?;
    let mut pairs: Vec<Option<Pair>> = (0..COUNT).map(|_| None).collect();
    while pairs.iter().any(Option::is_none) {
        // Receivers from the front, senders from the back.
        meetings.iter_mut().try_for_each(Meeting::accept)?;
        meetings.iter_mut().rev().try_for_each(Meeting::poll)?;
        let missing = pairs.iter_mut().zip(&mut meetings).filter(|(pair, _)| pair.is_none());
        missing.for_each(|(pair, meeting)| *pair = meeting.pair());
        let up = pairs.iter().filter(|pair| pair.is_some()).count();
        patience.turn(|| format!("connecting ({up} of {COUNT} connections are up)"))?;
    }
    for round in 0..2 {
        for (n, pair) in pairs.iter_mut().flatten().enumerate() {
            messages(pair, &[n + 1, 4096 + n + round], &mut patience)?;
        }
    }
    Ok(())
}

pub fn registrations_come_and_go(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(4)?;
    let memories: Vec<Memory> = (0..32).map(|n| Memory::pattern(4096 * (n + 1), n)).collect();
    for _ in 0..4 {
        let mut kept = Vec::new();
        for memory in &memories {
            let sender = register_sender(&mut *wire.pair.sender, memory)?;
            kept.push((sender, register_receiver(&mut *wire.pair.receiver, memory)?));
        }
        messages(&mut wire.pair, &[100, 5000], &mut trial.patience())?;
        for (sender, receiver) in kept.into_iter().rev() {
            told("deregister at the sender", wire.pair.sender.deregister(sender))?;
            told("deregister at the receiver", wire.pair.receiver.deregister(receiver))?;
        }
    }
    Ok(())
}

pub fn other_memory_is_refused(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(5)?;
    let offered = told("properties", wire.contexts[0].properties(0))?.memory;
    let memory = Memory::blank(4096);
    for (kind, dmabuf) in [(MemoryKinds::CUDA, None), (MemoryKinds::DMABUF, Some((-1, 0)))] {
        if offered.contains(kind) {
            continue; // not without a GPU
        }
        let region = Region { kind, dmabuf, ..memory.region() };
        // SAFETY: the memory is never given back.
        let tried = unsafe { [wire.pair.sender.register(&region), wire.pair.receiver.register(&region)] };
        for result in tried {
            let error = result.err().map(|error| error.kind);
            want!(error == Some(ErrorKind::Unsupported), "{kind:?} gives {error:?}, not Unsupported");
        }
    }
    messages(&mut wire.pair, &[1000], &mut trial.patience())
}

pub fn virtual_devices(trial: &Trial<dyn Net>) -> Outcome {
    let (one, two) = (trial.open(6)?, trial.open(6)?);
    let physical = told("devices", one.devices())?;
    let members: Vec<u32> = (0..physical.min(2)).collect();
    want!(one.make_virtual(&[]).is_err(), "a virtual device of nothing is no error");
    want!(one.make_virtual(&[physical + 7]).is_err(), "a virtual device of unknown ones is no error");
    let device = match one.make_virtual(&members) {
        Ok(device) => device,
        Err(error) if error.kind == ErrorKind::Unsupported => return Ok(()),
        // A plugin may make no device of one member.
        Err(_) if members.len() == 1 => return Ok(()),
        Err(error) => return Err(format!("make_virtual of {members:?}: {error}")),
    };
    let properties = told("properties", one.properties(device))?;
    want!(properties.members == members, "members are {:?}, asked for {members:?}", properties.members);
    let count = told("devices", one.devices())?;
    want!(device < count, "device {device} is made, and there are {count}");
    let other = told("make_virtual", two.make_virtual(&members))?;
    want!(told("properties", two.properties(other))?.members == members, "two contexts differ");
    let mut pair = connect(&*one, &*two, device.min(other), &mut trial.patience())?;
    messages(&mut pair, &[0, 1, 70_000, 1 << 20], &mut trial.patience())
}

pub fn attributes_are_hints(trial: &Trial<dyn Net>) -> Outcome {
    let contexts = [trial.open(7)?, trial.open(7)?];
    let few = Flows { max_peers: 1, min_peers: 1, max_flows: 1, min_flows: 1 };
    let attributes = [
        NetAttributes::default(),
        NetAttributes { send: few, recv: few, what: [1, 2, 4] },
        NetAttributes { send: Flows { max_peers: i32::MAX, ..few }, recv: few, what: [u32::MAX; 3] },
    ];
    for attributes in attributes {
        contexts.iter().for_each(|context| drop(context.set_attributes(&attributes)));
    }
    let mut pair = connect(&*contexts[0], &*contexts[1], 0, &mut trial.patience())?;
    messages(&mut pair, &[1, 100_000], &mut trial.patience())
}

pub fn contexts_side_by_side(trial: &Trial<dyn Net>) -> Outcome {
    let mut kept = trial.wire(8)?;
    for comm in 9..12 {
        let mut config = NetConfig::new(comm, Log::silent());
        config.traffic_class = Some(0);
        let contexts: [Box<dyn NetContext>; 2] =
            [told("open", trial.plugin.open(&config))?, told("open", trial.plugin.open(&config))?];
        let mut pair = connect(&*contexts[0], &*contexts[1], 0, &mut trial.patience())?;
        messages(&mut pair, &[10, 10_000], &mut trial.patience())?;
        messages(&mut kept.pair, &[20, 20_000], &mut trial.patience())?;
    }
    messages(&mut kept.pair, &[30], &mut trial.patience())
}

pub fn opened_again_and_again(trial: &Trial<dyn Net>) -> Outcome {
    for round in 0..10 {
        let context = trial.open(20 + round)?;
        let count = told("devices", context.devices())?;
        want!(count > 0, "no device in round {round}");
        if round % 5 == 4 {
            messages(&mut trial.wire(30 + round)?.pair, &[1000], &mut trial.patience())?;
        }
    }
    Ok(())
}

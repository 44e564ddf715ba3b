//! Closing, lost peers, nonsense.

use hawser_plugin::Result;
use hawser_plugin::net::{HANDLE_BYTES, Handle, Net, NetContext};

use super::wire::{
    Fails, Meeting, Memory, Receives, Sends, Wire, connect, messages, register_receiver, register_sender,
    told,
};
use crate::conformance::case::{Outcome, Patience, Trial, want};

/// Polls that a connector to nowhere gets.
const STUBBORN: usize = 200;

pub fn listeners_may_be_dropped(trial: &Trial<dyn Net>) -> Outcome {
    let contexts = [trial.open(1)?, trial.open(1)?];
    for round in 0..6 {
        let (handle, listener) = told("listen", contexts[0].listen(0))?;
        if round % 2 == 0 {
            drop(listener);
            // Nobody is there any more: an error, or patience.
            let Ok(mut connector) = contexts[1].connect(0, &handle) else { continue };
            let refused = (0..STUBBORN).find_map(|_| poll_slowly(&mut *connector).err());
            drop((refused, connector));
        } else {
            let mut meeting = Meeting::to(listener, &handle, &*contexts[1], 0)?;
            (0..round).try_for_each(|_| meeting.poll())?;
            drop(meeting);
        }
    }
    let mut pair = connect(&*contexts[0], &*contexts[1], 0, &mut trial.patience())?;
    messages(&mut pair, &[1, 10_000], &mut trial.patience())
}

fn poll_slowly(connector: &mut dyn hawser_plugin::net::Connector) -> Result<bool> {
    std::thread::sleep(std::time::Duration::from_micros(300));
    Ok(connector.poll()?.is_some())
}

pub fn garbage_handles(trial: &Trial<dyn Net>) -> Outcome {
    let contexts = [trial.open(2)?, trial.open(2)?];
    let (good, listener) = told("listen", contexts[0].listen(0))?;
    let mut bad: Vec<Handle> = vec![[0; HANDLE_BYTES], [0xff; HANDLE_BYTES]];
    bad.push(std::array::from_fn(|n| super::wire::pattern(99, n)));
    let mut flipped = good;
    flipped.iter_mut().for_each(|byte| *byte ^= 0x20);
    bad.push(flipped);
    for (n, handle) in bad.iter().enumerate() {
        let up = stranger(&*contexts[1], handle)?;
        want!(!up, "a connection to the handle {n}, which is garbage, is up");
    }
    let mut meeting = match Meeting::to(listener, &good, &*contexts[1], 0) {
        Ok(meeting) => meeting,
        Err(_) => Meeting::new(&*contexts[0], &*contexts[1], 0)?,
    };
    let mut patience = trial.patience();
    let mut pair = loop {
        meeting.accept()?;
        meeting.poll()?;
        if let Some(pair) = meeting.pair() {
            break pair;
        }
        patience.turn(|| "the connection after some strangers".to_owned())?;
    };
    messages(&mut pair, &[1, 10_000], &mut patience)
}

/// True if a connection comes up.
fn stranger(context: &dyn NetContext, handle: &Handle) -> Fails<bool> {
    let Ok(mut connector) = context.connect(0, handle) else { return Ok(false) };
    for _ in 0..STUBBORN {
        match poll_slowly(&mut *connector) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(_) => return Ok(false),
        }
    }
    Ok(false)
}

pub fn sent_data_arrive_after_closing(trial: &Trial<dyn Net>) -> Outcome {
    for size in [1000, 200_000] {
        let Wire { mut pair, contexts } = trial.wire(3)?;
        let (from, to) = (Memory::pattern(size, 5), Memory::blank(size));
        let mine = register_sender(&mut *pair.sender, &from)?;
        let theirs = register_receiver(&mut *pair.receiver, &to)?;
        let mut sends = Sends::new(vec![from.segment(mine, 0..size, 0)]);
        let group = vec![to.segment(theirs, 0..size, 0)];
        let mut receives = Receives::new(vec![group], vec![vec![size]]);
        let mut patience = trial.patience();
        while !sends.is_done() {
            receives.turn(&mut *pair.receiver)?;
            sends.turn(&mut *pair.sender)?;
            patience.turn(|| "a send".to_owned())?;
        }
        drop(pair.sender);
        while !receives.is_done() {
            receives.turn(&mut *pair.receiver)?;
            patience.turn(|| "a receive whose sender is done and gone".to_owned())?;
        }
        to.holds(5, 0..size)?;
        drop((pair.receiver, contexts));
    }
    Ok(())
}

pub fn closing_early(trial: &Trial<dyn Net>) -> Outcome {
    for round in 0..4 {
        let Wire { mut pair, contexts } = trial.wire(4)?;
        let (from, to) = (Memory::pattern(1 << 20, 1), Memory::blank(1 << 20));
        let mine = register_sender(&mut *pair.sender, &from)?;
        let theirs = register_receiver(&mut *pair.receiver, &to)?;
        for n in 0..8 {
            let range = n * 100_000..(n + 1) * 100_000;
            // SAFETY: the memory is never given back.
            let _ = unsafe { pair.sender.isend(&from.segment(mine, range.clone(), 0)) };
            if round != 1 {
                // SAFETY: as above.
                let _ = unsafe { pair.receiver.irecv(&[to.segment(theirs, range, 0)], false) };
            }
        }
        if round % 2 == 0 {
            drop(pair.sender);
            drop(pair.receiver);
        } else {
            drop(pair.receiver);
            drop(pair.sender);
        }
        drop(contexts);
        from.holds(1, 0..1 << 20)?;
        to.guards()?;
    }
    messages(&mut trial.wire(4)?.pair, &[1, 100_000], &mut trial.patience())
}

pub fn a_lost_sender_is_an_error(trial: &Trial<dyn Net>) -> Outcome {
    let Wire { mut pair, contexts } = trial.wire(5)?;
    messages(&mut pair, &[1000], &mut trial.patience())?;
    let to = Memory::blank(100_000);
    let theirs = register_receiver(&mut *pair.receiver, &to)?;
    let mut patience = trial.patience();
    // SAFETY: the memory is never given back.
    let begin = || unsafe { pair.receiver.irecv(&[to.segment(theirs, 0..100_000, 0)], false) };
    let request = patience.until("irecv", begin)?;
    drop(pair.sender);
    failure(&mut patience, "a receive from a sender that is gone", || {
        Ok(!pair.receiver.test(request, &mut [0])?)
    })?;
    want!(to.is_blank(0..100_000), "bytes arrived that nobody sent");
    drop((pair.receiver, contexts));
    Ok(())
}

pub fn a_lost_receiver_is_an_error(trial: &Trial<dyn Net>) -> Outcome {
    let Wire { mut pair, contexts } = trial.wire(6)?;
    messages(&mut pair, &[1000], &mut trial.patience())?;
    let from = Memory::pattern(1 << 20, 3);
    let mine = register_sender(&mut *pair.sender, &from)?;
    drop(pair.receiver);
    let mut flying = Vec::new();
    // What the system buffers may still go out: an error has to come in the end.
    failure(&mut trial.patience(), "sending to a receiver that is gone", || {
        if flying.len() < 8 {
            // SAFETY: the memory is never given back.
            flying.extend(unsafe { pair.sender.isend(&from.segment(mine, 0..1 << 20, 0)) }?);
        }
        if let Some(oldest) = flying.first()
            && pair.sender.test(*oldest)?.is_some()
        {
            flying.remove(0);
        }
        Ok(true)
    })?;
    drop((pair.sender, contexts));
    Ok(())
}

/// Waits for an error; `f` says whether things are still as they may be.
fn failure(patience: &mut Patience, what: &str, mut f: impl FnMut() -> Result<bool>) -> Outcome {
    loop {
        match f() {
            Err(error) => {
                want!(!error.text.trim().is_empty(), "{what}: an error without a text ({:?})", error.kind);
                return Ok(());
            }
            Ok(false) => return Err(format!("{what} succeeds")),
            Ok(true) => patience.turn(|| format!("{what}: there is no error; it"))?,
        }
    }
}

pub fn too_long_messages_are_refused(trial: &Trial<dyn Net>) -> Outcome {
    for (sent, room) in [(2, 1), (100_000, 50_000), (1 << 20, 4096)] {
        let Wire { mut pair, contexts } = trial.wire(7)?;
        let (from, to) = (Memory::pattern(sent, 1), Memory::blank(1 << 20));
        let mine = register_sender(&mut *pair.sender, &from)?;
        let theirs = register_receiver(&mut *pair.receiver, &to)?;
        let mut patience = trial.patience();
        // SAFETY: the memory is never given back.
        let begin = || unsafe { pair.receiver.irecv(&[to.segment(theirs, 0..room, 0)], false) };
        let receive = patience.until("irecv", begin)?;
        let (mut send, mut sent_it) = (None, false);
        failure(&mut patience, &format!("a message of {sent} bytes for a receive of {room}"), || {
            match send {
                // SAFETY: as above.
                None => send = unsafe { pair.sender.isend(&from.segment(mine, 0..sent, 0)) }?,
                Some(request) if !sent_it => sent_it = pair.sender.test(request)?.is_some(),
                Some(_) => {}
            }
            Ok(!pair.receiver.test(receive, &mut [0])?)
        })?;
        want!(to.is_blank(room..1 << 20), "bytes behind the receive were written");
        drop((pair.sender, pair.receiver, contexts));
    }
    Ok(())
}

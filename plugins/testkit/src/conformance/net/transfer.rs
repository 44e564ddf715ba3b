//! The cases about messages.

use hawser_plugin::net::{MAX_REQUESTS, Net, Segment};

use super::wire::{
    Fails, Memory, Pair, Receives, Sends, connect, exchange, messages, register_receiver, register_sender,
    told,
};
use crate::conformance::case::{Outcome, Trial, want};

/// Turns in which one end works alone.
const ALONE: usize = 300;

pub fn messages_of_all_sizes(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(1)?;
    let sizes = [0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 511, 513, 4095, 4096, 4097, 65_535, 65_536, 65_537];
    for size in sizes {
        messages(&mut wire.pair, &[size], &mut trial.patience())?;
    }
    for size in [(1 << 20) - 1, 1 << 20, (3 << 20) + 5, 8 << 20] {
        messages(&mut wire.pair, &[size], &mut trial.patience())?;
    }
    messages(&mut wire.pair, &[0, 5, 0, 0, 70_000, 0, 1], &mut trial.patience())
}

pub fn receives_may_be_longer(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(2)?;
    for (sent, room) in [(0, 1), (0, 100_000), (1, 4096), (1000, 1001), (65_536, 200_000), (1 << 20, 1 << 21)]
    {
        let (from, to) = (Memory::pattern(sent, sent), Memory::blank(room));
        let mine = register_sender(&mut *wire.pair.sender, &from)?;
        let theirs = register_receiver(&mut *wire.pair.receiver, &to)?;
        let mut sends = Sends::new(vec![from.segment(mine, 0..sent, 0)]);
        let mut receives = Receives::new(vec![vec![to.segment(theirs, 0..room, 0)]], vec![vec![sent]]);
        exchange(&mut wire.pair, &mut sends, &mut receives, &mut trial.patience())?;
        to.holds(sent, 0..sent)?;
        to.guards()?;
    }
    Ok(())
}

/// As many messages of these sizes as fit into one memory, ready to go.
fn prepared(pair: &mut Pair, sizes: &[usize]) -> Fails<(Sends, Receives, impl Fn() -> Outcome + use<>)> {
    let mut sends: Vec<Segment> = Vec::new();
    let (mut groups, mut kept) = (Vec::new(), Vec::new());
    for (seed, size) in sizes.iter().copied().enumerate() {
        let (from, to) = (Memory::pattern(size, seed), Memory::blank(size));
        let mine = register_sender(&mut *pair.sender, &from)?;
        let theirs = register_receiver(&mut *pair.receiver, &to)?;
        sends.push(from.segment(mine, 0..size, 0));
        groups.push(vec![to.segment(theirs, 0..size, 0)]);
        kept.push((to, size));
    }
    let receives = Receives::new(groups, sizes.iter().map(|size| vec![*size]).collect());
    let check = move || {
        kept.iter().enumerate().try_for_each(|(seed, (to, size))| {
            to.guards()?;
            to.holds(seed, 0..*size).map_err(|why| format!("message {seed}: {why}"))
        })
    };
    Ok((Sends::new(sends), receives, check))
}

pub fn many_requests_in_flight(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(3)?;
    let sizes: Vec<usize> = (0..3 * MAX_REQUESTS).map(|n| 1000 + 997 * (n % 13)).collect();
    let (mut sends, mut receives, check) = prepared(&mut wire.pair, &sizes)?;
    let mut patience = trial.patience();
    while receives.in_flight() < MAX_REQUESTS {
        receives.post(&mut *wire.pair.receiver)?;
        let count = receives.in_flight();
        patience.turn(|| format!("posting receives ({count} of {MAX_REQUESTS} accepted)"))?;
    }
    // The sender may need the receiver's turns to learn of them.
    while sends.in_flight() < MAX_REQUESTS && !receives.is_done() {
        sends.post(&mut *wire.pair.sender)?;
        let count = sends.in_flight();
        if count < MAX_REQUESTS {
            receives.turn(&mut *wire.pair.receiver)?;
        }
        patience.turn(|| format!("posting sends ({count} of {MAX_REQUESTS} accepted)"))?;
    }
    exchange(&mut wire.pair, &mut sends, &mut receives, &mut patience)?;
    check()
}

pub fn sends_may_come_first(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(4)?;
    let sizes = [10, 100_000, 0, 1 << 20, 7];
    let (mut sends, mut receives, check) = prepared(&mut wire.pair, &sizes)?;
    for _ in 0..ALONE {
        sends.turn(&mut *wire.pair.sender)?;
        std::thread::yield_now();
    }
    exchange(&mut wire.pair, &mut sends, &mut receives, &mut trial.patience())?;
    check()
}

pub fn receives_may_come_first(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(5)?;
    let sizes = [10, 100_000, 0, 1 << 20, 7];
    let (mut sends, mut receives, check) = prepared(&mut wire.pair, &sizes)?;
    for _ in 0..ALONE {
        receives.turn(&mut *wire.pair.receiver)?;
        std::thread::yield_now();
    }
    want!(!receives.is_done(), "receives are over although nothing was sent");
    exchange(&mut wire.pair, &mut sends, &mut receives, &mut trial.patience())?;
    check()
}

pub fn order_is_kept(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(6)?;
    let sizes: Vec<usize> = (0..200).map(|n| [8, 300_000, 1, 40_000, 0, 64][n % 6] + n % 3).collect();
    let (mut sends, mut receives, check) = prepared(&mut wire.pair, &sizes)?;
    exchange(&mut wire.pair, &mut sends, &mut receives, &mut trial.patience())?;
    check()
}

/// Groups of receives with these tags, and sends with those: each send names the segment that must get it.
fn groups(trial: &Trial<dyn Net>, tags: &[i32], sends: &[(i32, usize)], rounds: usize) -> Outcome {
    const ROOM: usize = 5000;
    let mut wire = trial.wire(7)?;
    let size = |round: usize, send: usize| 100 + 17 * round + 1000 * (send % 4);
    let to = Memory::blank(ROOM * tags.len() * rounds);
    let theirs = register_receiver(&mut *wire.pair.receiver, &to)?;
    let place = |round: usize, n: usize| (round * tags.len() + n) * ROOM;
    let (mut posted, mut flat, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let group = tags.iter().enumerate().map(|(n, tag)| {
            let start = place(round, n);
            to.segment(theirs, start..start + ROOM, *tag)
        });
        posted.push(group.collect::<Vec<Segment>>());
        let mut sizes = vec![0; tags.len()];
        for (n, (tag, target)) in sends.iter().enumerate() {
            let from = Memory::pattern(size(round, n), round * 31 + n);
            let mine = register_sender(&mut *wire.pair.sender, &from)?;
            flat.push(from.segment(mine, 0..size(round, n), *tag));
            sizes[*target] = size(round, n);
        }
        expected.push(sizes);
    }
    let (mut sending, mut receiving) = (Sends::new(flat), Receives::new(posted, expected));
    exchange(&mut wire.pair, &mut sending, &mut receiving, &mut trial.patience())?;
    for round in 0..rounds {
        for (n, (tag, target)) in sends.iter().enumerate() {
            let start = place(round, *target);
            let arrived = to.holds(round * 31 + n, start..start + size(round, n));
            arrived.map_err(|why| format!("group {round}, the send with tag {tag}: {why}"))?;
        }
    }
    to.guards()
}

fn max_recvs(trial: &Trial<dyn Net>) -> Fails<usize> {
    Ok(told("properties", trial.open(1)?.properties(0))?.max_recvs as usize)
}

pub fn grouped_receives(trial: &Trial<dyn Net>) -> Outcome {
    let most = max_recvs(trial)?;
    for count in 2..=most {
        let tags: Vec<i32> = (0..count as i32).map(|n| 1000 - 7 * n).collect();
        let forward: Vec<(i32, usize)> = tags.iter().copied().zip(0..).collect();
        let backward: Vec<(i32, usize)> = forward.iter().rev().copied().collect();
        groups(trial, &tags, &forward, 3)?;
        groups(trial, &tags, &backward, 20)?;
    }
    Ok(())
}

pub fn groups_with_equal_tags(trial: &Trial<dyn Net>) -> Outcome {
    match max_recvs(trial)? {
        0 | 1 => Ok(()),
        2 => groups(trial, &[5, 5], &[(5, 0), (5, 1)], 8),
        _ => groups(trial, &[5, 6, 5], &[(5, 0), (5, 2), (6, 1)], 8),
    }
}

pub fn optional_completion(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(8)?;
    for size in [8, 1024, 100_000] {
        let (from, to) = (Memory::pattern(size, size), Memory::blank(size));
        let mine = register_sender(&mut *wire.pair.sender, &from)?;
        let theirs = register_receiver(&mut *wire.pair.receiver, &to)?;
        let mut sends = Sends::new(vec![from.segment(mine, 0..size, 0)]);
        let group = vec![to.segment(theirs, 0..size, 0)];
        let mut receives = Receives::new(vec![group], vec![vec![size]]).optional();
        exchange(&mut wire.pair, &mut sends, &mut receives, &mut trial.patience())?;
        let mut patience = trial.patience();
        while let Err(why) = to.holds(size, 0..size) {
            patience.turn(|| format!("waiting for the data of a receive that is over: {why}"))?;
        }
    }
    Ok(())
}

pub fn flushes_end(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(9)?;
    let to = Memory::blank(4096);
    messages(&mut wire.pair, &[4096], &mut trial.patience())?;
    let theirs = register_receiver(&mut *wire.pair.receiver, &to)?;
    // SAFETY: the memory is never given back.
    let flush = unsafe { wire.pair.receiver.flush(&[to.segment(theirs, 0..4096, 0)]) };
    if let Some(request) = told("flush", flush)? {
        trial.patience().until("a flush", || Ok(wire.pair.receiver.test(request, &mut [])?.then_some(())))?;
    }
    messages(&mut wire.pair, &[100], &mut trial.patience())
}

pub fn both_directions_at_once(trial: &Trial<dyn Net>) -> Outcome {
    let ranks = [trial.open(10)?, trial.open(10)?];
    let mut patience = trial.patience();
    let mut there = connect(&*ranks[0], &*ranks[1], 0, &mut patience)?;
    let mut back = connect(&*ranks[1], &*ranks[0], 0, &mut patience)?;
    let sizes = [4 << 20, 1, 2 << 20];
    let (mut sends, mut receives, check) = prepared(&mut there, &sizes)?;
    let (mut sends_back, mut receives_back, check_back) = prepared(&mut back, &sizes)?;
    while !(sends.is_done() && sends_back.is_done() && receives.is_done() && receives_back.is_done()) {
        sends.turn(&mut *there.sender)?;
        sends_back.turn(&mut *back.sender)?;
        receives.turn(&mut *there.receiver)?;
        receives_back.turn(&mut *back.receiver)?;
        patience.turn(|| "an exchange in both directions".to_owned())?;
    }
    check().and_then(|()| check_back())
}

pub fn ends_in_two_threads(trial: &Trial<dyn Net>) -> Outcome {
    let mut wire = trial.wire(11)?;
    let sizes: Vec<usize> = (0..100).map(|n| 1 + 7919 * (n % 17)).collect();
    let (mut sends, mut receives, check) = prepared(&mut wire.pair, &sizes)?;
    let Pair { sender, receiver } = &mut wire.pair;
    let (mut here, mut there) = (trial.patience(), trial.patience());
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            while !sends.is_done() {
                sends.turn(&mut **sender)?;
                here.turn(|| "sending in a thread of its own".to_owned())?;
            }
            Ok(())
        });
        let received = loop {
            if receives.is_done() {
                break Ok(());
            }
            let turn = receives.turn(&mut **receiver);
            if let Err(why) = turn.and_then(|()| there.turn(|| "receiving beside a thread".to_owned())) {
                break Err(why);
            }
        };
        let sent = sending.join().unwrap_or_else(|_| Err("the sender panicked".to_owned()));
        received.and(sent)
    })?;
    check()
}

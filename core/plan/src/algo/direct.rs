//! Blocks go straight from owner to user: all-to-all, gather and scatter.

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic};
use hawser_program::build::{copy, input, output, recv, send};
use hawser_program::{MAX_CHANNEL_STEPS, RankProgram, Step};
use hawser_types::Collective;
use hawser_types::{Algorithm, Measured};

/// Direct messages between the root, or everybody, and the others.
pub const DIRECT: Entry = Entry {
    algorithm: Algorithm::Direct,
    measured: Measured::Everywhere,
    needs: Needs::Nothing,
    generators: &[
        generator(Collective::AllToAll, all_to_all, all_to_all_traffic),
        generator(Collective::Gather, gather, Load::pairs),
        generator(Collective::Scatter, scatter, Load::pairs),
    ],
};

const fn generator(
    collective: Collective,
    build: fn(&ProgramKey, u32) -> RankProgram,
    traffic: fn(&Load) -> Traffic,
) -> Generator {
    Generator {
        channels: |key| channels(key.collective, key.ranks),
        most_channel_steps: |key| most_channel_steps(key.collective, key.ranks),
        exchanges: 1,
        by_copies: true,
        ..Generator::new(collective, build, traffic, across)
    }
}

fn all_to_all_traffic(load: &Load) -> Traffic {
    Traffic { streamed: 2.0 * load.part(), ..load.pairs() }
}

fn across(load: &Across) -> NetTraffic {
    let far = load.far();
    let out = match load.key.collective {
        Collective::AllToAll => load.pairs(),
        _ => load.bytes * far / load.ranks(),
    };
    NetTraffic { busiest: far, more_messages: 2.0 * (far - 1.0), ..NetTraffic::new(out, 1.0) }
}

/// Peers served side by side, as far as steps per channel allow.
const CHANNELS: u32 = 8;

/// Channels of a program of `ranks` ranks: [`CHANNELS`], fewer for few ranks, more where a channel
/// would get more steps than a device's block can have.
fn channels(collective: Collective, ranks: u32) -> u32 {
    let peers_per_channel = (MAX_CHANNEL_STEPS - 1) / steps_per_peer(collective);
    let peers = ranks.saturating_sub(1).max(1);
    CHANNELS.min(peers).max(peers.div_ceil(peers_per_channel))
}

/// Steps of the longest channel of any rank: the copy and the steps of its peers.
fn most_channel_steps(collective: Collective, ranks: u32) -> u32 {
    let peers = ranks.saturating_sub(1);
    1 + steps_per_peer(collective) * peers.div_ceil(channels(collective, ranks))
}

fn steps_per_peer(collective: Collective) -> u32 {
    if collective == Collective::AllToAll { 2 } else { 1 }
}

/// At distance `d` every rank sends to `rank + d` and receives from `rank - d`: each distance is a
/// permutation, and all ranks take the distances in the same order.
fn all_to_all(key: &ProgramKey, rank: u32) -> RankProgram {
    let n = key.ranks;
    let mut program = RankProgram::with_channels(channels(key.collective, n) as usize);
    let count = program.channels.len();
    program.channels[0].push(copy(input(rank), output(rank)));
    for distance in 1..n {
        let to = (rank + distance) % n;
        let from = (rank + n - distance) % n;
        let channel = &mut program.channels[(distance as usize - 1) % count];
        channel.push(send(input(to), vec![to]));
        channel.push(recv(from, output(from)));
    }
    program
}

/// Everyone sends its block to the root.
fn gather(key: &ProgramKey, rank: u32) -> RankProgram {
    let copy_own = copy(input(0), output(rank));
    rooted(key, rank, copy_own, |peer| recv(peer, output(peer)), send(input(0), vec![key.root]))
}

/// The root sends every rank its block.
fn scatter(key: &ProgramKey, rank: u32) -> RankProgram {
    let copy_own = copy(input(rank), output(0));
    rooted(key, rank, copy_own, |peer| send(input(peer), vec![peer]), recv(key.root, output(0)))
}

/// The root runs `own` and `per_peer` for all others, each of which runs `other` in its channel.
fn rooted(
    key: &ProgramKey,
    rank: u32,
    own: Step,
    per_peer: impl Fn(u32) -> Step,
    other: Step,
) -> RankProgram {
    let n = key.ranks;
    let mut program = RankProgram::with_channels(channels(key.collective, n) as usize);
    let count = program.channels.len();
    if rank != key.root {
        let distance = (rank + n - key.root) % n;
        program.channels[(distance as usize - 1) % count].push(other);
        return program;
    }
    program.channels[0].push(own);
    for distance in 1..n {
        program.channels[(distance as usize - 1) % count].push(per_peer((key.root + distance) % n));
    }
    program
}

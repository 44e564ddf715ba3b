//! Blocks go straight from owner to user: all-to-all, gather and scatter.

use super::entry::{Across, Entry, Generator, Load, MAX_RANKS, Needs, NetTraffic, ProgramKey, Traffic};
use hawser_program::build::{copy, input, output, recv, send};
use hawser_program::limits::MAX_CHANNELS;
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
        max_ranks: most_ranks(collective),
        exchanges: 1,
        by_copies: true,
        shares_lanes,
        ..Generator::new(collective, build, traffic, across)
    }
}

fn all_to_all_traffic(load: &Load) -> Traffic {
    Traffic { streamed: 2.0 * load.part(), ..load.pairs() }
}

fn across(load: &Across) -> NetTraffic {
    let far = load.far();
    let net = match load.key.collective {
        Collective::AllToAll => NetTraffic::new(load.pairs(), 1.0).over(load.local),
        _ => NetTraffic::new(load.bytes * far / load.ranks(), 1.0),
    };
    NetTraffic { busiest: far, more_messages: 2.0 * (far - 1.0), ..net }
}

/// Peers served side by side, as far as steps per channel allow.
const CHANNELS: u32 = 8;

/// Channels of a program of `ranks` ranks: [`CHANNELS`], fewer for few ranks, more where a channel
/// would get more steps than a device's block can have.
fn channels(collective: Collective, ranks: u32) -> u32 {
    let peers = ranks.saturating_sub(1).max(1);
    let usual = CHANNELS.min(peers);
    let longest = 1 + steps_per_peer(collective) * peers.div_ceil(usual);
    if longest <= MAX_CHANNEL_STEPS {
        return usual;
    }
    (ranks / 2).div_ceil(pairs_per_channel(collective))
}

/// Peers of a channel where there are more than [`CHANNELS`]: pairs, one ahead and one behind.
const fn pairs_per_channel(collective: Collective) -> u32 {
    (MAX_CHANNEL_STEPS - 1) / (2 * steps_per_peer(collective))
}

/// Most ranks that the blocks of a launch serve.
const fn most_ranks(collective: Collective) -> u32 {
    let pairs = MAX_CHANNELS as u32 * pairs_per_channel(collective);
    if 2 * pairs + 1 < MAX_RANKS { 2 * pairs + 1 } else { MAX_RANKS }
}

/// The channel that serves the peers at distance `distance`, ahead and behind.
///
/// Where there are more channels than [`CHANNELS`], they share lanes, so no two may have a peer in common:
/// the rank at distance `d` ahead is the one at distance `ranks - d` behind, and one channel has both.
fn channel(distance: u32, collective: Collective, ranks: u32) -> usize {
    let count = channels(collective, ranks);
    let number = if count > CHANNELS { distance.min(ranks - distance) } else { distance };
    ((number - 1) % count) as usize
}

/// True if no two channels of a rank have a peer in common. Gather and scatter have one step for each peer.
fn shares_lanes(key: &ProgramKey) -> bool {
    key.collective != Collective::AllToAll || channels(key.collective, key.ranks) > CHANNELS
}

/// Steps of the longest channel of any rank: the copy and the steps of its peers.
fn most_channel_steps(collective: Collective, ranks: u32) -> u32 {
    let count = channels(collective, ranks);
    let peers = match count > CHANNELS {
        true => 2 * (ranks / 2).div_ceil(count),
        false => ranks.saturating_sub(1).div_ceil(count),
    };
    1 + steps_per_peer(collective) * peers
}

const fn steps_per_peer(collective: Collective) -> u32 {
    if matches!(collective, Collective::AllToAll) { 2 } else { 1 }
}

/// At distance `d` every rank sends to `rank + d` and receives from `rank - d`: each distance is a
/// permutation, and all ranks take the distances in the same order.
fn all_to_all(key: &ProgramKey, rank: u32) -> RankProgram {
    let n = key.ranks;
    let mut program = RankProgram::with_channels(channels(key.collective, n) as usize);
    program.channels[0].push(copy(input(rank), output(rank)));
    for distance in 1..n {
        let to = (rank + distance) % n;
        let from = (rank + n - distance) % n;
        let channel = &mut program.channels[channel(distance, key.collective, n)];
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
    if rank != key.root {
        let distance = (rank + n - key.root) % n;
        program.channels[channel(distance, key.collective, n)].push(other);
        return program;
    }
    program.channels[0].push(own);
    for distance in 1..n {
        program.channels[channel(distance, key.collective, n)].push(per_peer((key.root + distance) % n));
    }
    program
}

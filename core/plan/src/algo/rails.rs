//! Hosts of equally many ranks whose rails work side by side: rank `h * L + k` is rank `k` of host `h`, and
//! rail `k` is the ranks with equal `k` of all hosts, each with a NIC of its own if hosts have one for every
//! rank.
//!
//! Every rail carries its part of the data between the hosts, round a ring ([`RAIL_RING`]) or along a binary
//! tree ([`RAIL_TREE`]), in channels of its own. Inside a host a chain brings the part of rail `k` from rank
//! `k + 1` over `k + 2`, … to rank `k`, adding up on the way, and another one takes the result from rank `k`
//! to `k + 1`, `k + 2`, …. So every NIC of a host carries an equal part of what crosses, every rank sends as
//! much to its neighbours as in a ring, and a rank has a handful of steps for each rail, however many hosts
//! there are.
//!
//! Chunk `(i, k)` has number `i * L + k`: a step of a rail's ring moves by `L` chunks.

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic, one, ranks};
use super::tree::Node;
use hawser_program::build::{
    copy_send, input, output, recv, recv_copy_send, recv_reduce_copy, recv_reduce_copy_send,
    recv_reduce_send, send,
};
use hawser_program::{Channel, MAX_CHANNEL_STEPS, RankProgram, Step};
use hawser_types::{Algorithm, Collective, Measured, PlanError, Result};

/// A ring of hosts on every rail.
pub const RAIL_RING: Entry = Entry {
    algorithm: Algorithm::RailRing,
    measured: Measured::OwnNics,
    needs: Needs::Hosts,
    generators: &[
        Generator {
            per_block: ranks,
            channels: per_host,
            most_channel_steps: |_| 5,
            check,
            ..Generator::new(Collective::AllReduce, ring_all_reduce, all_reduce_traffic, all_reduce_across)
        },
        Generator {
            channels: per_host,
            most_channel_steps: |_| 3,
            check,
            ..Generator::new(Collective::AllGather, ring_all_gather, traffic, across)
        },
        Generator {
            channels: per_host,
            most_channel_steps: |_| 3,
            check,
            ..Generator::new(Collective::ReduceScatter, ring_reduce_scatter, reduce_traffic, across)
        },
    ],
};

/// A tree of hosts on every rail.
pub const RAIL_TREE: Entry = Entry {
    algorithm: Algorithm::RailTree,
    measured: Measured::OwnNics,
    needs: Needs::Hosts,
    generators: &[Generator {
        per_block: per_host,
        channels: |key| 2 * per_host(key),
        most_channel_steps: one,
        waits_across: true,
        check,
        ..Generator::new(Collective::AllReduce, tree_all_reduce, tree_traffic, tree_across)
    }],
};

/// The largest number of ranks of a host: a rank has a channel for each, or two.
const MOST_LOCAL: u32 = MAX_CHANNEL_STEPS / 2;

/// Checks that the ranks split into several hosts of several ranks.
pub(super) fn check(key: &ProgramKey) -> Result<()> {
    let local = per_host(key);
    let refuse = |why: String| Err(PlanError::program(format!("rails: {why}")));
    match local {
        _ if key.ranks == 1 => Ok(()),
        1 if key.per_host == 1 => refuse("hosts have one rank each: Ring and Tree are the same".into()),
        _ if !key.ranks.is_multiple_of(local) => {
            refuse(format!("{} ranks are not hosts of {local} ranks each", key.ranks))
        }
        _ if key.ranks == local && local > 1 => refuse("there is one host only".into()),
        _ if local > MOST_LOCAL => refuse(format!("{local} ranks per host, at most {MOST_LOCAL}")),
        _ => Ok(()),
    }
}

/// Ranks of a host, which is the number of rails: what the key says, or the smallest that makes several hosts
/// of several ranks, or else one.
pub(super) fn per_host(key: &ProgramKey) -> u32 {
    match key.per_host {
        0 => (2..=key.ranks / 2).find(|local| key.ranks.is_multiple_of(*local)).unwrap_or(1),
        local => local,
    }
}

/// The ranks of a host, for the cost model.
fn local(load: &Load) -> f64 {
    f64::from(load.key.per_host.max(1))
}

/// Hops of a rail's ring and of the chain inside a host; the part of each rail goes along the chain. The rank
/// of the rail sends everything twice, so its block is the busiest.
fn traffic(load: &Load) -> Traffic {
    let local = local(load);
    let inside = load.bytes * (local - 1.0) / local;
    let streamed = 2.0 * load.part();
    Traffic { hops: local - 1.0, waits: load.ranks() / local, out: inside, streamed, ..load.ring() }
}

/// The rank of the rail adds what two others send.
fn reduce_traffic(load: &Load) -> Traffic {
    Traffic { streamed: 1.5 * load.part(), ..traffic(load) }
}

fn all_reduce_traffic(load: &Load) -> Traffic {
    let Traffic { hops, waits, out, .. } = traffic(load);
    let streamed = 3.8 * load.part();
    Traffic { hops: 2.0 * hops, waits: 2.0 * waits, out: 2.0 * out, streamed, ..traffic(load) }
}

/// The share of a hop's time that one more host costs a rail's ring, by the twin: the rest overlaps with the
/// message before.
const HOP: f64 = 0.6;

fn across(load: &Across) -> NetTraffic {
    NetTraffic::new(load.bytes * (load.hosts - 1.0) / load.hosts, HOP * (load.hosts - 1.0)).over(load.local)
}

fn all_reduce_across(load: &Across) -> NetTraffic {
    let once = across(load);
    NetTraffic::new(2.0 * once.out, 2.0 * once.hops).over(load.local)
}

/// Data go up and down in channels of their own, so tiles follow each other. A block of a host with two hosts
/// below has more to do than others, by the twin as if all had three times as much.
fn tree_traffic(load: &Load) -> Traffic {
    let local = local(load);
    let (hops, inside) = (2.0 * (local - 1.0), 2.0 * load.bytes * (local - 1.0) / local);
    let (streamed, chunk) = (5.8 * load.bytes, load.bytes / local);
    Traffic { hops, fill: hops, out: inside, streamed, chunk, ..load.chain() }
}

/// Messages that the busiest rank of a tree has besides one each way for each level of hosts, by the twin.
const MORE_MESSAGES: f64 = 1.6;

/// Out of the rank with two hosts below: once up, twice down. As many rails have another tree, where its host
/// has nobody below.
fn tree_across(load: &Across) -> NetTraffic {
    let whole = NetTraffic::new(2.0 * load.bytes, 2.0 * load.levels());
    let more_messages = MORE_MESSAGES * load.levels();
    let out_of_rank = 3.0 * load.bytes / load.local;
    NetTraffic { out_of_rank, waits: 1.0, passes: super::tree::PASSES, more_messages, ..whole }
}

/// Reduce-scatter round the rail's ring, whose hosts add up inside first, then all-gather round it: chunk `i`
/// starts at host `i`, is complete at the host before it, and goes round once more.
fn ring_all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    rails(key, rank, |place| {
        let Place { host: h, hosts: n, .. } = *place;
        let chunk = |i: u32| place.chunk(i);
        if !place.is_on_rail() {
            return vec![place.for_all(place.add_up(chunk(h))), place.for_all(place.hand_on(chunk(h + 1)))];
        }
        let (from, to) = (place.from(&[place.previous]), place.to(&[place.next]));
        let mut steps = vec![add(place.from(&[]), chunk(h), vec![place.next])];
        place.push_round(&mut steps, add(from.clone(), chunk(h + n - 1), vec![place.next]));
        let complete = chunk(h + 1);
        steps.push(recv_reduce_copy_send(from, input(complete), 1, output(complete), to.clone()).finish());
        place.push_round(&mut steps, take(place.previous, chunk(h), to));
        steps.push(take(place.previous, chunk(h + 2), place.to(&[])));
        steps
    })
}

/// The block of every rank of the rail goes round its ring, and on every host along the chain.
fn ring_all_gather(key: &ProgramKey, rank: u32) -> RankProgram {
    rails(key, rank, |place| {
        let Place { host: h, hosts: n, .. } = *place;
        if !place.is_on_rail() {
            return vec![place.for_all(place.hand_on(place.chunk(h)))];
        }
        let to = place.to(&[place.next]);
        let mut steps = vec![copy_send(input(0), output(rank), to.clone())];
        place.push_round(&mut steps, take(place.previous, place.chunk(h + n - 1), to));
        steps.push(take(place.previous, place.chunk(h + 1), place.to(&[])));
        steps
    })
}

/// Block `b` of a rail starts at the host after that of rank `b`, whose hosts add up inside first, and is
/// complete at rank `b`.
fn ring_reduce_scatter(key: &ProgramKey, rank: u32) -> RankProgram {
    rails(key, rank, |place| {
        let Place { host: h, hosts: n, .. } = *place;
        let chunk = |i: u32| place.chunk(i);
        if !place.is_on_rail() {
            return vec![place.for_all(place.add_up(chunk(h + n - 1)))];
        }
        let from = place.from(&[place.previous]);
        let mut steps = vec![add(place.from(&[]), chunk(h + n - 1), vec![place.next])];
        place.push_round(&mut steps, add(from.clone(), chunk(h + n - 2), vec![place.next]));
        steps.push(recv_reduce_copy(from, input(rank), 1, output(0)).finish());
        steps
    })
}

/// Inside every host to the rank of the rail and up its tree of hosts, in channel `k` for rail `k`; down
/// again and inside to the others, in channel `L + k`. Every other rail has the other tree, whose inner hosts
/// are leaves of the first.
fn tree_all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let local = per_host(key);
    let channel = |channel: u32| {
        let (place, rail) = (Place::new(key, rank, channel % local), channel % local);
        let step = if channel < local { up(&place, rail) } else { down(&place, rail) };
        Channel { steps: vec![step] }
    };
    RankProgram { channels: (0..2 * local).map(channel).collect(), lanes: Vec::new(), runs: Vec::new() }
}

fn up(place: &Place, rail: u32) -> Step {
    if !place.is_on_rail() {
        return place.add_up(rail);
    }
    let (parent, children) = place.in_tree();
    match parent {
        Some(parent) => add(place.from(&children), rail, vec![parent]),
        None => recv_reduce_copy(place.from(&children), input(rail), 1, output(rail)).finish(),
    }
}

fn down(place: &Place, rail: u32) -> Step {
    if !place.is_on_rail() {
        return place.hand_on(rail);
    }
    let (parent, children) = place.in_tree();
    match parent {
        Some(parent) => take(parent, rail, place.to(&children)),
        None => send(output(rail), place.to(&children)).after(rail, 0),
    }
}

/// Adds a chunk of the input to what comes from others, if anything does, and sends it on.
fn add(from: Vec<u32>, chunk: u32, to: Vec<u32>) -> Step {
    match from.is_empty() {
        true => send(input(chunk), to),
        false => recv_reduce_send(from, input(chunk), 1, to),
    }
}

/// Takes a chunk of the output, and sends it on if there is anybody to send it to.
fn take(from: u32, chunk: u32, to: Vec<u32>) -> Step {
    match to.is_empty() {
        true => recv(from, output(chunk)),
        false => recv_copy_send(from, output(chunk), to),
    }
}

/// A program with a channel for each rail.
fn rails(key: &ProgramKey, rank: u32, steps: impl Fn(&Place) -> Vec<Step>) -> RankProgram {
    let channels = (0..per_host(key)).map(|rail| Channel { steps: steps(&Place::new(key, rank, rail)) });
    RankProgram { channels: channels.collect(), lanes: Vec::new(), runs: Vec::new() }
}

/// A rank's place for one rail.
struct Place {
    /// Ranks of a host.
    local: u32,
    hosts: u32,
    host: u32,
    rail: u32,
    /// Places behind the rank of the rail, inside the host: 0 for that rank itself.
    behind: u32,
    /// The rank before this one in the chains of the host.
    before: u32,
    /// The rank after it.
    after: u32,
    /// The rank before this one in the ring of hosts.
    previous: u32,
    /// The rank after it.
    next: u32,
}

impl Place {
    fn new(key: &ProgramKey, rank: u32, rail: u32) -> Self {
        let local = per_host(key);
        let (host, inside, hosts) = (rank / local, rank % local, key.ranks / local);
        let here = |inside: u32| host * local + inside % local;
        let there = |host: u32| host % hosts * local + inside;
        Self {
            local,
            hosts,
            host,
            rail,
            behind: (inside + local - rail) % local,
            before: here(inside + local - 1),
            after: here(inside + 1),
            previous: there(host + hosts - 1),
            next: there(host + 1),
        }
    }

    /// True for the rank that sends the rail's part to other hosts.
    fn is_on_rail(&self) -> bool {
        self.behind == 0
    }

    /// The rank of the rail on a host.
    fn on_host(&self, host: u32) -> u32 {
        host * self.local + self.rail
    }

    /// The ranks above and below in the rail's tree of hosts.
    fn in_tree(&self) -> (Option<u32>, Vec<u32>) {
        let node = Node::new(self.hosts, 0, self.host, self.rail % 2);
        let children = node.children().into_iter().map(|host| self.on_host(host));
        (node.parent().map(|host| self.on_host(host)), children.collect())
    }

    /// The number of a chunk of the rail.
    fn chunk(&self, i: u32) -> u32 {
        i % self.hosts * self.local + self.rail
    }

    /// Adds a step for each host but two: each time for the chunk before.
    fn push_round(&self, steps: &mut Vec<Step>, step: Step) {
        if self.hosts > 2 {
            steps.push(step.repeat(self.hosts - 2, -(self.local as i32)));
        }
    }

    /// The rank before this one in the chain that adds up, if there is one, and others.
    fn from(&self, others: &[u32]) -> Vec<u32> {
        let before = (self.behind != 1 && self.local > 1).then_some(self.before);
        before.into_iter().chain(others.iter().copied()).collect()
    }

    /// Others, and the rank after this one in the chain that hands on, if there is one.
    fn to(&self, others: &[u32]) -> Vec<u32> {
        let after = (self.behind + 1 != self.local).then_some(self.after);
        others.iter().copied().chain(after).collect()
    }

    /// Adds up one chunk along the chain, which begins behind the rank of the rail.
    fn add_up(&self, chunk: u32) -> Step {
        add(self.from(&[]), chunk, vec![self.after])
    }

    /// Takes one chunk from the chain, and hands it on unless it ends here.
    fn hand_on(&self, chunk: u32) -> Step {
        take(self.before, chunk, self.to(&[]))
    }

    /// The same step for each chunk of the rail, each time for the one before.
    fn for_all(&self, step: Step) -> Step {
        step.repeat(self.hosts, -(self.local as i32))
    }
}

//! All-to-all in two levels: what a host's ranks have for a rank of another host leaves as one message, by
//! the rank of the own host on the receiver's rail (NCCL's PXN, "PCI × NVLink").
//!
//! Rank `h * L + k` is rank `k` of host `h`, and rail `k` is the ranks with equal `k` of all hosts. For each
//! other host `t` the ranks of a host exchange their blocks for `t`: rank `k` collects those for rank `k` of
//! `t`, side by side in its scratch memory, and sends them on as a run of `L` blocks. They arrive side by
//! side in the output, where blocks are in the order of their senders. So a rank has `H - 1` messages for
//! other hosts instead of `L (H - 1)`, and none leaves its rail.
//!
//! Blocks have to fit into a slot; beyond that messages are long anyway.

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic};
use super::rails::{self, per_host};
use hawser_program::build::{copy, input, output, recv, scratch, send};
use hawser_program::{Channel, MAX_CHANNEL_STEPS, RankProgram, Step};
use hawser_types::{Algorithm, Collective, Measured, PlanError, Result};

/// Blocks by way of the neighbour on the receiver's rail.
pub const RAIL_RELAY: Entry = Entry {
    algorithm: Algorithm::RailRelay,
    measured: Measured::OwnNics,
    needs: Needs::Hosts,
    generators: &[Generator {
        channels: |key| 2 * groups(key) + 1,
        lanes: |key| groups(key) + 1,
        scratch: |key| key.ranks,
        run: per_host,
        max_ranks: MAX_RANKS,
        waits_across: true,
        check,
        ..Generator::new(Collective::AllToAll, all_to_all, traffic, across)
    }],
};

/// Most ranks for which the program is offered: 510 hosts of 8.
const MAX_RANKS: u32 = 4_080;

/// Groups of hosts that are served side by side, each by a channel that collects and one that sends on: the
/// usual number, and the largest.
const GROUPS: [u32; 2] = [8, 15];

/// Hosts for which blocks are exchanged in one step: as many as FIFOs surely have slots.
const TOGETHER: u32 = 2;

/// Checks that the ranks split into hosts, and that the channels take the steps.
fn check(key: &ProgramKey) -> Result<()> {
    rails::check(key)?;
    let (local, hosts) = (per_host(key), key.ranks / per_host(key));
    let most = most_hosts(local) * GROUPS[1];
    if hosts - 1 > most {
        let text = format!("relays: {hosts} hosts of {local} ranks, at most {} are possible", most + 1);
        return Err(PlanError::program(text));
    }
    Ok(())
}

/// Most hosts of a group: its channels take so many steps.
fn most_hosts(local: u32) -> u32 {
    let collected = MAX_CHANNEL_STEPS / (2 * local - 1) * TOGETHER;
    collected.min(MAX_CHANNEL_STEPS / 2)
}

/// The groups of hosts.
fn groups(key: &ProgramKey) -> u32 {
    let local = per_host(key);
    let others = (key.ranks / local).saturating_sub(1);
    let wanted = others.div_ceil(most_hosts(local).max(1));
    wanted.clamp(GROUPS[0], GROUPS[1]).min(others).max(1)
}

/// Every block goes to a neighbour first, and is then read again to be sent on.
fn traffic(load: &Load) -> Traffic {
    let local = f64::from(load.key.per_host.max(1));
    let out = load.bytes * (local - 1.0) / local;
    let hops = 1.0 + (load.ranks() / local / f64::from(groups(&load.key) * TOGETHER)).ceil() * (local - 1.0);
    Traffic { hops, waits: hops, out, streamed: 4.0 * load.part(), ..load.pairs() }
}

/// A message to each other host and one from it; one follows the other in a group.
fn across(load: &Across) -> NetTraffic {
    let others = load.hosts - 1.0;
    let net = NetTraffic::new(load.pairs(), 1.0).over(load.local);
    NetTraffic { busiest: others, more_messages: 2.0 * (others - 1.0), ..net }
}

/// The channels of the module's description: those that collect, those that send on, and one for the blocks
/// that stay on the host.
fn all_to_all(key: &ProgramKey, rank: u32) -> RankProgram {
    let place = Place::new(key, rank);
    let collecting = (0..place.groups).map(|group| Channel { steps: place.collect(group) });
    let sending = (0..place.groups).map(|group| Channel { steps: place.send_on(group) });
    let inside = Channel { steps: place.inside() };
    let lanes = (0..place.groups).chain(0..place.groups).chain([place.groups]);
    let (ones, runs) = (vec![1; place.groups as usize], vec![place.local; place.groups as usize]);
    let runs = if place.local > 1 { [ones, runs, vec![1]].concat() } else { Vec::new() };
    RankProgram {
        lanes: lanes.collect(),
        runs,
        channels: collecting.chain(sending).chain([inside]).collect(),
    }
}

/// A rank's place.
struct Place {
    /// Ranks of a host.
    local: u32,
    hosts: u32,
    host: u32,
    /// The rank's number on its host, and its rail.
    rail: u32,
    groups: u32,
}

impl Place {
    fn new(key: &ProgramKey, rank: u32) -> Self {
        let local = per_host(key);
        let (host, rail, hosts) = (rank / local, rank % local, key.ranks / local);
        Self { local, hosts, host, rail, groups: groups(key) }
    }

    /// A rank of the own host, so many places on.
    fn neighbour(&self, distance: u32) -> u32 {
        self.host * self.local + (self.rail + distance) % self.local
    }

    /// The host at a distance ahead, round all of them.
    fn ahead(&self, distance: u32) -> u32 {
        (self.host + distance) % self.hosts
    }

    /// The distances of a group's hosts.
    fn distances(&self, group: u32) -> Vec<u32> {
        (1..self.hosts).filter(|distance| (distance - 1) % self.groups == group).collect()
    }

    /// Exchanges the blocks for the hosts of a group with the neighbours, a few hosts at a time.
    fn collect(&self, group: u32) -> Vec<Step> {
        let stride = (self.groups * self.local) as i32;
        let mut steps = Vec::new();
        for hosts in self.distances(group).chunks(TOGETHER as usize) {
            let first = self.ahead(hosts[0]) * self.local;
            let times = |step: Step| if hosts.len() > 1 { step.repeat(TOGETHER, stride) } else { step };
            let own = first + self.rail;
            steps.push(times(copy(input(own), scratch(own))));
            for distance in 1..self.local {
                let (to, from) = (self.neighbour(distance), self.neighbour(self.local - distance));
                steps.push(times(send(input(first + to % self.local), vec![to])));
                steps.push(times(recv(from, scratch(first + from % self.local))));
            }
        }
        steps
    }

    /// Sends the runs for the hosts of a group on as soon as they are collected, and takes those from the
    /// hosts as far behind.
    fn send_on(&self, group: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, distance) in (0..).zip(self.distances(group)) {
            let (to, from) = (self.ahead(distance), self.ahead(self.hosts - distance));
            let of_round = 2 * self.local - 1;
            let collected = (number / TOGETHER + 1) * of_round - 1;
            let rank_of = |host: u32| host * self.local + self.rail;
            steps.push(send(scratch(to), vec![rank_of(to)]).after(group, collected));
            steps.push(recv(rank_of(from), output(from)));
        }
        steps
    }

    /// Exchanges the blocks that stay on the host.
    fn inside(&self) -> Vec<Step> {
        let own = self.neighbour(0);
        let mut steps = vec![copy(input(own), output(own))];
        for distance in 1..self.local {
            let (to, from) = (self.neighbour(distance), self.neighbour(self.local - distance));
            steps.push(send(input(to), vec![to]));
            steps.push(recv(from, output(from)));
        }
        steps
    }
}

//! Hosts of equally many ranks: reduce inside each host, all-reduce across, gather inside.
//!
//! Rank `h * L + l` is rank `l` of host `h`. Inside a host everyone sends everyone its share (all pairs).
//! Across, the ranks with equal `l` of all hosts reduce their share among themselves: in one exchange on two
//! hosts, round a ring on more. So a byte leaves a host `2 (H - 1) / H` times, as in the best ring, after
//! `2 (H - 1)` steps instead of `2 (H L - 1)`. Chunk `(r, l)` has number `r * L + l`: a step of a ring moves
//! by `L` chunks.

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic};
use hawser_program::build::{
    input, output, recv, recv_copy_send, recv_reduce_copy, recv_reduce_copy_send, recv_reduce_send, send,
};
use hawser_program::verify::{Declared, Order};
use hawser_program::{MAX_CHANNEL_STEPS, MAX_FAN, Op, RankProgram, Step};
use hawser_types::{Algorithm, PlanError, Result};
use hawser_types::{Collective, Measured};

/// Inside hosts, across hosts, inside again.
pub const HIERARCHICAL: Entry = Entry {
    algorithm: Algorithm::Hierarchical,
    measured: Measured::Everywhere,
    needs: Needs::Hosts,
    generators: &[Generator {
        max_ranks: MAX_RANKS,
        per_block,
        check,
        keeps,
        ..Generator::new(Collective::AllReduce, all_reduce, traffic, across)
    }],
};

/// The same, where the network adds up across hosts.
pub const COLLNET: Entry = Entry {
    algorithm: Algorithm::CollNet,
    measured: Measured::Everywhere,
    needs: Needs::ReducingNetwork,
    generators: &[Generator {
        per_block,
        check,
        ..Generator::new(Collective::AllReduce, collnet_all_reduce, traffic, collnet_across)
    }],
};

/// Two hosts of one or two ranks each combine as the nested tree does: inside each, then across.
fn keeps(key: &ProgramKey, declared: &Declared) -> bool {
    let local = per_host(key);
    key.ranks == 2 || declared.order == Order::Nested && local == 2 && key.ranks == 4
}

fn traffic(load: &Load) -> Traffic {
    let (local, bytes) = (f64::from(load.key.per_host.max(1)), load.bytes);
    let inside = 2.0 * bytes * (local - 1.0) / local;
    // What crosses is sent and combined by the blocks, unless the network combines it.
    let crossing = if load.key.algorithm == Algorithm::CollNet { bytes } else { 2.0 * bytes } / local;
    let streamed = 1.2 * inside + crossing;
    Traffic { hops: 2.0, waits: 3.0, out: inside, streamed, chunk: bytes / load.ranks(), ..load.pairs() }
}

fn across(load: &Across) -> NetTraffic {
    let (bytes, others) = (load.bytes, load.hosts - 1.0);
    match load.hosts == 2.0 {
        true => NetTraffic::new(bytes, 1.0).over(load.local),
        false => NetTraffic::new(2.0 * bytes * others / load.hosts, 2.0 * others).over(load.local),
    }
}

fn collnet_across(load: &Across) -> NetTraffic {
    NetTraffic::new(load.bytes, 1.0).over(load.local)
}

/// Most ranks for which a split into hosts exists whatever their number.
const MAX_RANKS: u32 = 120;

/// Most ranks of a host: everyone receives from all others of it in one step.
const MOST_LOCAL: u32 = MAX_FAN as u32;

/// Steps besides those per chunk of a rank.
const RING_STEPS: u32 = 5;

/// Checks that the ranks split into hosts of `key.per_host` ranks, and that the program fits a channel.
fn check(key: &ProgramKey) -> Result<()> {
    let local = per_host(key);
    let refuse =
        |why: String| Err(PlanError::program(format!("hierarchical {}: {why}", key.collective.name())));
    if !key.ranks.is_multiple_of(local) {
        return refuse(format!("{} ranks are not hosts of {local} ranks each", key.ranks));
    }
    if key.ranks > 1 && key.ranks == local {
        return refuse("there is one host only".into());
    }
    if local > MAX_FAN as u32 + 1 {
        return refuse(format!("{local} ranks per host, at most {} are possible", MAX_FAN + 1));
    }
    let steps = 2 * local * rounds(key) + RING_STEPS;
    if steps > MAX_CHANNEL_STEPS {
        return refuse(format!("{steps} steps per rank, a channel takes {MAX_CHANNEL_STEPS}"));
    }
    Ok(())
}

/// Chunks per block.
fn per_block(key: &ProgramKey) -> u32 {
    per_host(key) * rounds(key)
}

/// The all-reduce of the module's description.
fn all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let place = Place::new(key, rank);
    let mut steps = Vec::new();
    for round in 0..place.rounds {
        steps.extend(
            place.peers().map(|peer| send(input(place.chunk(round, peer % place.local)), vec![peer])),
        );
        steps.extend(place.reduce_inside(round));
    }
    place.across(&mut steps);
    if place.local > 1 {
        for round in 0..place.rounds {
            steps.push(send(output(place.chunk(round, place.inside)), place.peers().collect()));
            let from = |peer: u32| recv(peer, output(place.chunk(round, peer % place.local)));
            steps.extend(place.peers().map(from));
        }
    }
    RankProgram::single(steps)
}

/// As [`all_reduce`], but the network reduces across: peer `key.ranks` of every rank takes its share and
/// gives back the sum of all hosts' shares.
fn collnet_all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let place = Place { rounds: 1, ..Place::new(key, rank) };
    let own = place.chunk(0, place.inside);
    let network = key.ranks;
    let mut steps = Vec::new();
    if place.local == 1 {
        steps.push(send(input(own), vec![network]));
        steps.push(recv(network, output(own)).finish());
        return RankProgram::single(steps);
    }
    steps.extend(place.peers().map(|peer| send(input(peer % place.local), vec![peer])));
    steps.push(recv_reduce_send(place.in_order(), input(own), place.inside, vec![network]));
    steps.push(recv_copy_finish(network, own, place.peers().collect()));
    steps.extend(place.peers().map(|peer| recv(peer, output(peer % place.local))));
    RankProgram::single(steps)
}

/// The networks that [`collnet_all_reduce`] talks to, as programs for the verifier: one for each place on a
/// host.
pub fn networks(key: &ProgramKey) -> Vec<RankProgram> {
    let local = per_host(key);
    let network = |place: u32| {
        let ranks: Vec<u32> = (0..key.ranks / local).map(|host| host * local + place).collect();
        let step = Step { recv: ranks.clone(), send: ranks, ..Step::new(Op::RecvReduceSend) };
        RankProgram::single(vec![step])
    };
    (0..local).map(network).collect()
}

fn recv_copy_finish(from: u32, own: u32, to: Vec<u32>) -> Step {
    recv_copy_send(from, output(own), to).finish()
}

/// Ranks of a host: what the key says, or the largest possible divisor.
fn per_host(key: &ProgramKey) -> u32 {
    if key.per_host > 0 {
        return key.per_host;
    }
    (1..=MOST_LOCAL.min(key.ranks / 2).max(1)).rev().find(|l| key.ranks.is_multiple_of(*l)).unwrap_or(1)
}

/// Chunks that a rank is responsible for.
fn rounds(key: &ProgramKey) -> u32 {
    match key.ranks / per_host(key) {
        _ if key.algorithm == Algorithm::CollNet => 1,
        2 => 1,
        hosts => hosts,
    }
}

/// A rank's place.
struct Place {
    /// Ranks per host.
    local: u32,
    hosts: u32,
    rounds: u32,
    host: u32,
    /// Rank within the host.
    inside: u32,
}

impl Place {
    fn new(key: &ProgramKey, rank: u32) -> Self {
        let local = per_host(key);
        let hosts = key.ranks / local;
        Self { local, hosts, rounds: rounds(key), host: rank / local, inside: rank % local }
    }

    fn chunk(&self, round: u32, inside: u32) -> u32 {
        round * self.local + inside
    }

    /// The other ranks of the host, beginning with the successor.
    fn peers(&self) -> impl Iterator<Item = u32> {
        let (first, local, inside) = (self.host * self.local, self.local, self.inside);
        (1..local).map(move |d| first + (inside + d) % local)
    }

    /// The other ranks of the host in ascending order.
    fn in_order(&self) -> Vec<u32> {
        let first = self.host * self.local;
        (first..first + self.local).filter(|peer| *peer != first + self.inside).collect()
    }

    /// Folds the host's contributions to an own chunk, in rank order.
    fn reduce_inside(&self, round: u32) -> Option<Step> {
        let own = self.chunk(round, self.inside);
        (self.local > 1).then(|| recv_reduce_copy(self.in_order(), input(own), self.inside, output(own)))
    }

    /// All-reduce of the own chunks among the ranks with the same place in all hosts.
    fn across(&self, steps: &mut Vec<Step>) {
        let at = |host: u32| (host % self.hosts) * self.local + self.inside;
        let held = |round: u32| {
            let chunk = self.chunk(round % self.rounds, self.inside);
            if self.local > 1 { output(chunk) } else { input(chunk) }
        };
        let kept = |round: u32| output(self.chunk(round % self.rounds, self.inside));
        if self.hosts == 2 {
            let other = at(self.host + 1);
            steps.push(send(held(0), vec![other]));
            steps.push(recv_reduce_copy(vec![other], held(0), self.host, kept(0)).finish());
            return;
        }
        let (h, n) = (self.host, self.hosts);
        let (next, previous) = (vec![at(h + 1)], at(h + n - 1));
        let repeat = |steps: &mut Vec<Step>, step: Step| {
            if n > 2 {
                steps.push(step.repeat(n - 2, -(self.local as i32)));
            }
        };
        steps.push(send(held(h), next.clone()));
        repeat(steps, recv_reduce_send(vec![previous], held(h + n - 1), 1, next.clone()));
        let (from, complete) = (vec![previous], h + 1);
        steps.push(recv_reduce_copy_send(from, held(complete), 1, kept(complete), next.clone()).finish());
        repeat(steps, recv_copy_send(previous, kept(h), next));
        steps.push(recv(previous, kept(h + 2)));
    }
}

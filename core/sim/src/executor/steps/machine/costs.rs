//! The costs of a step, for the block that runs it, are passes over its tile and the wait for lines that lie
//! in other caches.

use super::Machine;
use crate::cluster::Host;
use crate::engine::Time;
use crate::executor::steps::load::SimStep;
use crate::executor::steps::proxy::Fed;

/// The cost of one more value that a step reads, as a share of its pass: the cost model has the same for a
/// ring's reduce-scatter.
const MORE_READS: f64 = 0.2;
/// The same of threads that share a core's caches, where a copy of the same bytes costs a pass.
const MORE_READS_IN_A_CORE: f64 = 2.0;

// Threads on several cores, by that of reading a slot that another core has filled: fitted by hand to half of
// the points of `bench/results/2026-11-29-host-ways.json`.

/// The cost of filling a slot, whose lines another core has read last.
const FILL: f64 = 1.7;
/// The cost of reading or writing the own buffer where a core's cache holds it.
const OWN_BUFFER: f64 = 0.1;
/// The same where it does not.
const OWN_BUFFER_BEYOND: f64 = 0.35;
/// The cost of adding a value to another.
const ADDING: f64 = 1.2;
/// The time until the first line of a slot comes, in hops.
const FIRST_LINE: f64 = 1.1;
/// The time that further lines take before they come ahead of being asked for, in hops.
const FURTHER_LINES: f64 = 3.5;
/// The bytes within which half of that time is spent.
const AHEAD_AFTER: f64 = 2560.0;
/// The cost of another thread on the same core, as a share of the own.
const SIBLING: f64 = 0.6;

/// As [`SIBLING`], for proxies, which are in the kernel most of the time.
const SIBLING_OF_PROXIES: f64 = 1.0;

impl Machine<'_> {
    /// The time that a step takes for a tile, by that of a pass over it.
    pub(super) fn passes(&self, rank: u32, step: &SimStep) -> f64 {
        let more_reads = f64::from(step.reads.saturating_sub(1));
        if self.crowd.is_none() {
            return f64::from(step.near + step.far).max(1.0) + MORE_READS * more_reads;
        }
        let host = self.host_of(rank);
        if !host.has_several_cores() {
            // A processor writes to each place in a pass of its own.
            return f64::from(step.writes).max(1.0) + MORE_READS_IN_A_CORE * more_reads;
        }
        let fills = step.near + step.far;
        let is_beyond = self.scene.buffers as f64 > host.core_cache_mib * f64::from(1 << 20);
        let own = f64::from(step.writes - fills) + f64::from(step.reads - step.recv);
        let own_costs = if is_beyond { OWN_BUFFER_BEYOND } else { OWN_BUFFER };
        let passes = f64::from(step.recv) + FILL * f64::from(fills) + own_costs * own + ADDING * more_reads;
        passes * (1.0 + SIBLING * self.shared_cores(rank))
    }

    /// The time that a step waits for lines of slots that are in the caches of other cores.
    pub(super) fn first_lines(&self, rank: u32, step: &SimStep, bytes: u64, hop: Time) -> Time {
        if self.crowd.is_none() || !self.host_of(rank).has_several_cores() {
            return Time::ZERO;
        }
        let processor = |member: u32| self.scene.links.processor_of(self.scene.members.of(member), false);
        let is_apart = |place: &u32| {
            let base = self.programs.peers[(step.peers + place) as usize];
            let connection = self.programs.connections[base as usize];
            processor(connection.from) != processor(connection.to)
        };
        let slots = (0..u32::from(step.recv + step.near)).filter(is_apart).count() as f64;
        let ahead = bytes as f64 / (bytes as f64 + AHEAD_AFTER);
        hop.stretched(slots * (FIRST_LINE + FURTHER_LINES * ahead))
    }

    /// The time of a rank's proxy for a message of a connection, which takes `length` without any bytes.
    pub(super) fn of_message(
        &self,
        (rank, connection): (u32, u32),
        length: Time,
        bytes: u64,
        is_taken: bool,
    ) -> Time {
        let copy = self.fed(connection).map_or(Time::ZERO, |fed| fed.copy(bytes, is_taken));
        let shared = if self.crowd.is_some() { self.shared_cores(rank) } else { 0.0 };
        (length + copy).stretched(1.0 + SIBLING_OF_PROXIES * shared)
    }

    /// A connection between hosts, if threads feed it.
    pub(super) fn fed(&self, connection: u32) -> Option<Fed> {
        let plan = self.programs.connections[(connection / self.programs.instances) as usize];
        let members = self.scene.members;
        Fed::of(self.scene.links, (members.of(plan.from), members.of(plan.to)))
    }

    /// The part of its time for which a thread of a rank's host shares its core.
    fn shared_cores(&self, rank: u32) -> f64 {
        let host = self.host_of(rank);
        let of_rank = if self.topology.hosts() > 1 { 2 } else { 1 };
        host.shared_cores(of_rank * host.ranks)
    }

    fn host_of(&self, rank: u32) -> &Host {
        self.scene.links.description(self.scene.members.of(rank))
    }
}

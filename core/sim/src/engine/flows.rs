//! Flows over links, in virtual time.
//!
//! When flows begin or end, only those that share a full link with them, directly or through others, get new
//! rates: a link that could carry all its flows at their own limits joins nobody. What begins or ends at one
//! moment is settled together.

use super::share::Problem;
use super::time::Time;

/// The number of a link.
pub type LinkId = u32;

/// The number of a flow; numbers of flows that have ended are used again.
pub type FlowId = u32;

/// A link on the way of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hop {
    /// The link.
    pub link: LinkId,
    /// Bytes on the link for each byte of the flow.
    pub weight: f64,
}

/// A flow that may end at a moment that was told with it: [`Flows::look`] says whether it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// The flow.
    pub flow: FlowId,
    /// The number of flows that have had this number.
    pub version: u32,
}

/// The outcome of a look at a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It has arrived.
    Arrived,
    /// It is slower than it was: to be looked at again at this moment.
    Later(Time),
    /// There is another moment at which it will be looked at, or it has ended.
    Nothing,
}

/// Links and the flows that are on them.
#[derive(Debug, Default)]
pub struct Flows {
    links: Vec<Link>,
    flows: Vec<Flow>,
    free: Vec<FlowId>,
    dirty: Vec<LinkId>,
    fresh: Vec<FlowId>,
    problem: Problem,
    /// Links and flows of the problem that is solved, in its order.
    members: (Vec<LinkId>, Vec<FlowId>),
}

#[derive(Debug)]
struct Link {
    capacity: f64,
    /// The flows on it, each with the place of the link on the flow's way.
    flows: Vec<(FlowId, u32)>,
    /// The load if every flow ran at its own limit.
    demand: f64,
    /// Flows without a limit of their own.
    unlimited: u32,
    is_dirty: bool,
    /// The link's number in the problem, if it is in it.
    member: Option<u32>,
    moved: f64,
}

#[derive(Debug, Default)]
struct Flow {
    way: Vec<Hop>,
    /// The flow's place in the list of each link of its way.
    places: Vec<u32>,
    limit: f64,
    bytes: f64,
    left: f64,
    rate: f64,
    since: Time,
    /// The end, as it stands now.
    end: Time,
    /// The earliest moment at which it will be looked at.
    look: Option<Time>,
    version: u32,
    is_member: bool,
    is_alive: bool,
}

/// Demand above this share of a link's capacity makes it one that has to be shared.
const FULL: f64 = 1.0 - 1e-9;

impl Flows {
    /// Links with these capacities in bytes per picosecond, each above 0.
    pub fn new(capacities: impl IntoIterator<Item = f64>) -> Self {
        let link = |capacity| Link {
            capacity,
            flows: Vec::new(),
            demand: 0.0,
            unlimited: 0,
            is_dirty: false,
            member: None,
            moved: 0.0,
        };
        Self { links: capacities.into_iter().map(link).collect(), ..Self::default() }
    }

    /// Begins a flow of `bytes` bytes (above 0), at most at `limit` bytes per picosecond (above 0). It moves
    /// from the next [`Flows::settle`] on. No link may be twice on its way.
    pub fn begin(&mut self, now: Time, bytes: f64, limit: f64, way: &[Hop]) -> FlowId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow::default());
            self.flows.len() as FlowId - 1
        });
        let flow = &mut self.flows[id as usize];
        (flow.limit, flow.bytes, flow.left, flow.rate, flow.since) = (limit, bytes, bytes, 0.0, now);
        flow.version = flow.version.wrapping_add(1);
        (flow.is_alive, flow.look) = (true, None);
        flow.way.clear();
        flow.way.extend_from_slice(way);
        flow.places.clear();
        for (place, hop) in (0..).zip(way) {
            let link = &mut self.links[hop.link as usize];
            flow.places.push(link.flows.len() as u32);
            link.flows.push((id, place));
            if limit.is_finite() {
                link.demand += limit * hop.weight
            } else {
                link.unlimited += 1
            }
            if !std::mem::replace(&mut link.is_dirty, true) {
                self.dirty.push(hop.link);
            }
        }
        self.fresh.push(id);
        id
    }

    /// Looks whether a flow has arrived, now, at the moment that was told. Flows that became slower are not
    /// told anew each time but found here.
    pub fn look(&mut self, now: Time, ending: &Ending) -> Found {
        let flow = &mut self.flows[ending.flow as usize];
        if !flow.is_alive || flow.version != ending.version || flow.look != Some(now) {
            return Found::Nothing;
        }
        if flow.end <= now {
            return Found::Arrived;
        }
        flow.look = Some(flow.end);
        Found::Later(flow.end)
    }

    /// Ends a flow that has arrived.
    pub fn end(&mut self, id: FlowId) {
        let flow = &mut self.flows[id as usize];
        flow.is_alive = false;
        let (way, places) = (std::mem::take(&mut flow.way), std::mem::take(&mut flow.places));
        let (limit, bytes) = (flow.limit, flow.bytes);
        for (hop, place) in way.iter().zip(&places) {
            let link = &mut self.links[hop.link as usize];
            link.flows.swap_remove(*place as usize);
            if limit.is_finite() {
                link.demand -= limit * hop.weight
            } else {
                link.unlimited -= 1
            }
            if link.flows.is_empty() {
                // Rounding leaves nothing behind.
                link.demand = 0.0;
            }
            link.moved += bytes * hop.weight;
            if !std::mem::replace(&mut link.is_dirty, true) {
                self.dirty.push(hop.link);
            }
            if let Some(&(other, hop_of_other)) = link.flows.get(*place as usize) {
                self.flows[other as usize].places[hop_of_other as usize] = *place;
            }
        }
        let flow = &mut self.flows[id as usize];
        (flow.way, flow.places) = (way, places);
        self.free.push(id);
    }

    /// Gives new rates to the flows that what has begun and ended since the last time concerns, and tells
    /// ends that are earlier than what was told before.
    pub fn settle(&mut self, now: Time, mut tell: impl FnMut(Time, Ending)) {
        if self.dirty.is_empty() && self.fresh.is_empty() {
            return;
        }
        self.collect();
        self.problem.solve();
        let (links, flows) = std::mem::take(&mut self.members);
        for link in &links {
            self.links[*link as usize].member = None;
        }
        for (number, id) in (0..).zip(&flows) {
            let flow = &mut self.flows[*id as usize];
            flow.is_member = false;
            let rate = self.problem.rate(number);
            if rate == flow.rate {
                continue;
            }
            flow.left -= flow.rate * (now - flow.since).ps() as f64;
            (flow.rate, flow.since) = (rate, now);
            // A moment too late rather than too early: nothing is faster than its links.
            flow.end = now + Time::from_ps((flow.left.max(0.0) / rate).ceil() as u64);
            if flow.look.is_none_or(|look| flow.end < look) {
                flow.look = Some(flow.end);
                tell(flow.end, Ending { flow: *id, version: flow.version });
            }
        }
        self.members = (links, flows);
    }

    /// Bytes per picosecond of a flow, as it was settled last.
    pub fn rate(&self, flow: FlowId) -> f64 {
        self.flows[flow as usize].rate
    }

    /// Bytes that have crossed a link in flows that are over.
    pub fn moved(&self, link: LinkId) -> f64 {
        self.links[link as usize].moved
    }

    /// Writes the problem: the dirty links, their flows, the full links of those, and so on.
    fn collect(&mut self) {
        self.problem.clear();
        self.members.0.clear();
        self.members.1.clear();
        let dirty = std::mem::take(&mut self.dirty);
        for &link in &dirty {
            self.links[link as usize].is_dirty = false;
            self.take_link(link);
        }
        self.dirty = dirty;
        self.dirty.clear();
        let fresh = std::mem::take(&mut self.fresh);
        for &flow in &fresh {
            // One that ended before it was settled has no rate to get.
            if self.flows[flow as usize].is_alive {
                self.take_flow(flow);
            }
        }
        self.fresh = fresh;
        self.fresh.clear();
        let mut looked = 0;
        while let Some(&link) = self.members.0.get(looked) {
            looked += 1;
            for place in 0..self.links[link as usize].flows.len() {
                self.take_flow(self.links[link as usize].flows[place].0);
            }
        }
        for &id in &self.members.1 {
            let flow = &self.flows[id as usize];
            self.problem.flow(flow.limit);
            for hop in &flow.way {
                if let Some(member) = self.links[hop.link as usize].member {
                    self.problem.cross(member, hop.weight);
                }
            }
        }
    }

    fn take_link(&mut self, id: LinkId) {
        let link = &mut self.links[id as usize];
        if link.member.is_none() {
            link.member = Some(self.problem.link(link.capacity));
            self.members.0.push(id);
        }
    }

    fn take_flow(&mut self, id: FlowId) {
        if std::mem::replace(&mut self.flows[id as usize].is_member, true) {
            return;
        }
        self.members.1.push(id);
        for place in 0..self.flows[id as usize].way.len() {
            let link = self.flows[id as usize].way[place].link;
            if self.links[link as usize].has_to_be_shared() {
                self.take_link(link);
            }
        }
    }
}

impl Link {
    fn has_to_be_shared(&self) -> bool {
        self.unlimited > 0 || self.demand > self.capacity * FULL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(flows: &mut Flows, now: Time) -> Vec<(FlowId, u64)> {
        flows.settle(now, |_, _| ());
        let alive = (0..).zip(&flows.flows).filter(|(_, flow)| flow.is_alive);
        alive.map(|(id, flow)| (id, flow.end.ps())).collect()
    }

    #[test]
    fn a_flow_that_ends_leaves_its_share_to_the_others() {
        let mut flows = Flows::new([2.0, 100.0]);
        let way = [Hop { link: 0, weight: 1.0 }];
        let (a, b) = (
            flows.begin(Time::ZERO, 100.0, f64::INFINITY, &way),
            flows.begin(Time::ZERO, 300.0, f64::INFINITY, &way),
        );
        let c = flows.begin(Time::ZERO, 50.0, 0.5, &[Hop { link: 1, weight: 2.0 }]);
        assert_eq!(ends(&mut flows, Time::ZERO), [(a, 100), (b, 300), (c, 100)]);
        flows.end(a);
        flows.end(c);
        assert_eq!(ends(&mut flows, Time::from_ps(100)), [(b, 200)]);
        flows.end(b);
        assert_eq!(ends(&mut flows, Time::from_ps(200)), []);
        assert_eq!((flows.moved(0), flows.moved(1)), (400.0, 100.0));
    }

    #[test]
    fn flows_that_become_slower_are_found_when_they_are_looked_at() {
        let mut flows = Flows::new([1.0]);
        let way = [Hop { link: 0, weight: 1.0 }];
        let first = flows.begin(Time::ZERO, 10.0, f64::INFINITY, &way);
        let mut told = Vec::new();
        flows.settle(Time::ZERO, |at, ending| told.push((at, ending)));
        let second = flows.begin(Time::from_ps(4), 10.0, f64::INFINITY, &way);
        flows.settle(Time::from_ps(4), |at, ending| told.push((at, ending)));
        assert_eq!(
            told.iter().map(|(at, e)| (e.flow, at.ps())).collect::<Vec<_>>(),
            [(first, 10), (second, 24)]
        );
        let (at, ending) = told[0];
        let Found::Later(again) = flows.look(at, &ending) else { panic!("it is slower now") };
        assert_eq!(again.ps(), 16);
        assert_eq!((flows.look(at, &ending), flows.look(again, &ending)), (Found::Nothing, Found::Arrived));
        flows.end(first);
        flows.settle(Time::from_ps(16), |at, ending| told.push((at, ending)));
        assert_eq!((told.len(), told[2].1.flow, told[2].0.ps()), (3, second, 20));
        let looks = [1, 2].map(|place: usize| flows.look(told[place].0, &told[place].1));
        assert_eq!(looks, [Found::Nothing, Found::Arrived]);
    }
}

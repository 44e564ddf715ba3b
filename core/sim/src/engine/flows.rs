//! Flows over links, in virtual time.
//!
//! When flows begin or end, few others get new rates. The flows that a link holds of which something has
//! begun or ended are shared out anew, while all others keep their rates. Where a link then holds nobody's
//! rate any more, or a flow that kept its rate is faster than its full link gives to others, these flows join
//! and all who have joined are shared out once more, until nobody joins. Then every flow is held by its own
//! limit or by a full link on which nobody is faster, and there is only one such solution. What begins or
//! ends at one moment is settled together.

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
    /// The rate of the flows that it holds, which none of its flows exceeds. Infinite if it holds none.
    level: f64,
    /// The link's number in the problem, if it is in it.
    member: Option<u32>,
    /// The load of the flows that are not in the problem.
    fixed: f64,
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
    /// The full link that it gets no more from; None if its own limit holds it.
    held_by: Option<LinkId>,
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

/// Rates that differ by less, as a part of them, differ by rounding.
const ROUNDING: f64 = 1e-10;

impl Flows {
    /// Links with these capacities in bytes per picosecond, each above 0.
    pub fn new(capacities: impl IntoIterator<Item = f64>) -> Self {
        let link = |capacity| Link {
            capacity,
            flows: Vec::new(),
            demand: 0.0,
            unlimited: 0,
            is_dirty: false,
            level: f64::INFINITY,
            member: None,
            fixed: 0.0,
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
        (flow.is_alive, flow.look, flow.held_by) = (true, None, None);
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
        self.gather();
        loop {
            self.share();
            if !self.spread() {
                break;
            }
        }
        let (links, flows) = std::mem::take(&mut self.members);
        self.set_levels(&links);
        for (number, id) in (0..).zip(&flows) {
            let flow = &mut self.flows[*id as usize];
            let rate = self.problem.rate(number);
            (flow.is_member, flow.held_by) = (false, self.problem.held_by(number).map(|n| links[n as usize]));
            if is_same(rate, flow.rate) {
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

    /// Takes what has begun, and the flows that the dirty links hold.
    fn gather(&mut self) {
        self.members.0.clear();
        self.members.1.clear();
        let dirty = std::mem::take(&mut self.dirty);
        for &id in &dirty {
            self.take_flows(id, |flow| flow.held_by == Some(id));
            self.take_link(id);
            let link = &mut self.links[id as usize];
            link.is_dirty = false;
            if link.member.is_none() {
                link.level = f64::INFINITY;
            }
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
    }

    /// Shares what the others leave among the flows that were taken.
    fn share(&mut self) {
        self.problem.clear();
        for &id in &self.members.0 {
            let link = &self.links[id as usize];
            self.problem.link((link.capacity - link.fixed).max(0.0));
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
        self.problem.solve();
    }

    /// Takes the flows that must not keep their rates beside these shares. True if there are any.
    fn spread(&mut self) -> bool {
        let taken = self.members.1.len();
        for number in 0..self.members.0.len() {
            let id = self.members.0[number];
            let level = self.new_level(id, number as u32);
            if !is_same(level, self.links[id as usize].level) {
                self.take_flows(id, |flow| {
                    is_faster(flow.rate, level) || flow.held_by == Some(id) && is_faster(level, flow.rate)
                });
            }
        }
        self.members.1.len() > taken
    }

    /// The level of a link with the shares that were found.
    fn new_level(&self, id: LinkId, number: u32) -> f64 {
        let (link, fastest) = (&self.links[id as usize], self.problem.fastest(number));
        // One that is full without holding a flow that was taken holds those that it held.
        let is_full = self.problem.left(number) <= link.capacity * ROUNDING;
        match self.problem.holds(number) {
            true => fastest,
            false if is_full && !is_faster(fastest, link.level) => link.level,
            false => f64::INFINITY,
        }
    }

    /// Notes the levels of the links of the problem, which is over.
    fn set_levels(&mut self, links: &[LinkId]) {
        for (number, &id) in (0..).zip(links) {
            let level = self.new_level(id, number);
            let link = &mut self.links[id as usize];
            (link.level, link.member) = (level, None);
        }
    }

    /// Takes a link, unless it can carry all its flows at their own limits.
    fn take_link(&mut self, id: LinkId) {
        let link = &self.links[id as usize];
        if link.member.is_some() || !link.has_to_be_shared() {
            return;
        }
        let mut fixed = 0.0;
        for &(flow, place) in &link.flows {
            let flow = &self.flows[flow as usize];
            if !flow.is_member {
                fixed += flow.rate * flow.way[place as usize].weight;
            }
        }
        let link = &mut self.links[id as usize];
        (link.member, link.fixed) = (Some(self.members.0.len() as u32), fixed);
        self.members.0.push(id);
    }

    /// Takes those flows of a link that are wanted.
    fn take_flows(&mut self, link: LinkId, is_wanted: impl Fn(&Flow) -> bool) {
        for place in 0..self.links[link as usize].flows.len() {
            let (flow, _) = self.links[link as usize].flows[place];
            if is_wanted(&self.flows[flow as usize]) {
                self.take_flow(flow);
            }
        }
    }

    /// Takes a flow and the links on its way.
    fn take_flow(&mut self, id: FlowId) {
        let flow = &mut self.flows[id as usize];
        if std::mem::replace(&mut flow.is_member, true) {
            return;
        }
        self.members.1.push(id);
        for place in 0..self.flows[id as usize].way.len() {
            let flow = &self.flows[id as usize];
            let (hop, rate) = (flow.way[place], flow.rate);
            let link = &mut self.links[hop.link as usize];
            if link.member.is_some() {
                link.fixed -= rate * hop.weight;
            } else {
                self.take_link(hop.link);
            }
        }
    }
}

/// True for rates that are the same but for rounding.
fn is_same(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= a.min(b) * ROUNDING
}

/// True if a rate is above another by more than rounding.
fn is_faster(rate: f64, than: f64) -> bool {
    rate > than * (1.0 + ROUNDING)
}

impl Link {
    fn has_to_be_shared(&self) -> bool {
        self.unlimited > 0 || self.demand > self.capacity * FULL
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
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

    /// The rates of all flows, shared out anew.
    fn all_at_once(flows: &Flows) -> Vec<(FlowId, f64)> {
        let mut problem = Problem::default();
        for link in &flows.links {
            problem.link(link.capacity);
        }
        let alive: Vec<FlowId> =
            (0..).zip(&flows.flows).filter(|(_, flow)| flow.is_alive).map(|(id, _)| id).collect();
        for &id in &alive {
            let flow = &flows.flows[id as usize];
            problem.flow(flow.limit);
            flow.way.iter().for_each(|hop| problem.cross(hop.link, hop.weight));
        }
        problem.solve();
        (0..).zip(alive).map(|(number, id)| (id, problem.rate(number))).collect()
    }

    /// A random way over some of the links, and a limit. Few different numbers, so that much is equal and
    /// links become full together.
    fn random_flow(random: &mut Random, links: u32) -> (Vec<Hop>, f64) {
        let mut way: Vec<Hop> = Vec::new();
        for link in 0..links {
            if one_of(random, [true, false, false, false]) {
                way.push(Hop { link, weight: one_of(random, [0.5, 1.0, 1.0, 2.0]) });
            }
        }
        way.truncate(4);
        let limit = if way.is_empty() { 1.0 } else { one_of(random, [0.25, 0.5, 1.0, 3.0, f64::INFINITY]) };
        (way, limit)
    }

    fn one_of<T: Copy, const N: usize>(random: &mut Random, all: [T; N]) -> T {
        all[(random.next() % N as u64) as usize]
    }

    #[test]
    fn few_are_shared_out_anew_and_all_have_what_they_would_have() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let links = 2 + (random.next() % 12) as u32;
            let capacities: Vec<f64> =
                (0..links).map(|_| one_of(&mut random, [1.0, 2.0, 3.0, 4.0])).collect();
            let mut flows = Flows::new(capacities);
            let mut alive: Vec<FlowId> = Vec::new();
            for step in 0..100 {
                for _ in 0..one_of(&mut random, [1, 2, 3]) {
                    if one_of(&mut random, [true, false]) && alive.len() > links as usize {
                        let place = random.next() as usize % alive.len();
                        flows.end(alive.swap_remove(place));
                    } else {
                        let (way, limit) = random_flow(&mut random, links);
                        alive.push(flows.begin(Time::from_ps(step), 1e6, limit, &way));
                    }
                }
                flows.settle(Time::from_ps(step), |_, _| ());
                for (id, rate) in all_at_once(&flows) {
                    let own = flows.rate(id);
                    assert!((own - rate).abs() <= 1e-8 * rate, "seed {seed}, step {step}: {own} not {rate}");
                }
            }
        }
    }
}

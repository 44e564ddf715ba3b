//! Max-min fair shares: nobody's rate can be raised without lowering that of somebody who has no more.
//!
//! All rates rise together from 0. A flow stops when it reaches its own limit, and all flows of a link stop
//! when the link is full. A flow may load a link more than once (a sender that writes to three peers loads
//! its own way out three times): its weight there says how often.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The links and flows of a problem, by small numbers, and room for the solution. It is kept between problems
/// so that nothing is allocated for each.
#[derive(Debug, Default)]
pub struct Problem {
    links: Vec<Link>,
    flows: Vec<Flow>,
    /// The crossings of all flows, flow after flow: (link, weight).
    crossings: Vec<(u32, f64)>,
    /// The crossings of all links, link after link: (flow, weight).
    by_link: Vec<u32>,
    /// The rates at which links fill up, lowest first. Entries may be too low.
    full_at: BinaryHeap<Reverse<(u64, u32)>>,
    /// Flows that have limits of their own, lowest first.
    by_limit: Vec<u32>,
}

/// Weights below this are what rounding leaves of others.
const TINY: f64 = 1e-9;

#[derive(Debug, Clone, Copy)]
struct Link {
    capacity: f64,
    /// The load of flows whose rate is settled.
    used: f64,
    /// The weights of flows whose rate is not.
    weight: f64,
    /// The rate of its fastest flow that is settled.
    fastest: f64,
    /// True once it was full before all its flows were settled.
    holds: bool,
    first: u32,
    count: u32,
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    limit: f64,
    rate: f64,
    settled: bool,
    /// The link that was full.
    held_by: Option<u32>,
    first: u32,
    count: u32,
}

impl Problem {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.links.clear();
        self.flows.clear();
        self.crossings.clear();
    }

    /// Adds a link. Returns its number.
    pub fn link(&mut self, capacity: f64) -> u32 {
        let (used, weight, fastest) = (0.0, 0.0, 0.0);
        self.links.push(Link { capacity, used, weight, fastest, holds: false, first: 0, count: 0 });
        self.links.len() as u32 - 1
    }

    /// Adds a flow with a limit of its own (which may be infinite). [`Problem::cross`] adds its links.
    pub fn flow(&mut self, limit: f64) -> u32 {
        let first = self.crossings.len() as u32;
        let rate = f64::INFINITY;
        self.flows.push(Flow { limit, rate, settled: false, held_by: None, first, count: 0 });
        self.flows.len() as u32 - 1
    }

    /// Lets the flow that was added last cross a link.
    pub fn cross(&mut self, link: u32, weight: f64) {
        if let Some(flow) = self.flows.last_mut() {
            self.crossings.push((link, weight));
            flow.count += 1;
        }
    }

    /// The rate of a flow, after [`Problem::solve`].
    pub fn rate(&self, flow: u32) -> f64 {
        self.flows[flow as usize].rate
    }

    /// The full link that a flow gets no more from, after [`Problem::solve`]; None if its own limit holds it.
    pub fn held_by(&self, flow: u32) -> Option<u32> {
        self.flows[flow as usize].held_by
    }

    /// True if a link holds flows, after [`Problem::solve`]. They are its fastest.
    pub fn holds(&self, link: u32) -> bool {
        self.links[link as usize].holds
    }

    /// The rate of the fastest flow of a link, after [`Problem::solve`]; 0 without flows.
    pub fn fastest(&self, link: u32) -> f64 {
        self.links[link as usize].fastest
    }

    /// The capacity that the flows of a link leave, after [`Problem::solve`].
    pub fn left(&self, link: u32) -> f64 {
        let Link { capacity, used, .. } = self.links[link as usize];
        capacity - used
    }

    /// Finds the rates of all flows. A flow that nothing limits gets an infinite one.
    pub fn solve(&mut self) {
        self.index();
        let mut limited = 0;
        loop {
            while self.by_limit.get(limited).is_some_and(|flow| self.flows[*flow as usize].settled) {
                limited += 1;
            }
            let next_limit = self.by_limit.get(limited).map(|flow| self.flows[*flow as usize].limit);
            let full = self.next_full();
            match (next_limit, full) {
                (None, None) => break,
                (Some(limit), None) => self.settle(self.by_limit[limited], limit, None),
                (Some(limit), Some((rate, _))) if limit <= rate => {
                    self.settle(self.by_limit[limited], limit, None)
                }
                (_, Some((rate, link))) => self.fill(link, rate),
            }
        }
    }

    /// Sorts crossings by link and flows by limit.
    fn index(&mut self) {
        for &(link, weight) in &self.crossings {
            let link = &mut self.links[link as usize];
            (link.count, link.weight) = (link.count + 1, link.weight + weight);
        }
        let mut first = 0;
        for link in &mut self.links {
            (link.first, first) = (first, first + link.count);
            link.count = 0;
        }
        self.by_link.clear();
        self.by_link.resize(self.crossings.len(), 0);
        for (number, flow) in (0..).zip(&self.flows) {
            for &(link, _) in &self.crossings[flow.first as usize..(flow.first + flow.count) as usize] {
                let link = &mut self.links[link as usize];
                self.by_link[(link.first + link.count) as usize] = number;
                link.count += 1;
            }
        }
        self.by_limit.clear();
        let limit = |flow: &u32| self.flows[*flow as usize].limit;
        self.by_limit.extend((0..self.flows.len() as u32).filter(|flow| limit(flow).is_finite()));
        self.by_limit.sort_by(|a, b| limit(a).total_cmp(&limit(b)));
        self.full_at.clear();
        for link in 0..self.links.len() as u32 {
            let full_at = self.fills_at(link);
            self.full_at.extend(full_at.map(|rate| Reverse((rate, link))));
        }
    }

    /// The rate at which a link fills up, as a number that sorts like it; None where all its flows are
    /// settled.
    fn fills_at(&self, link: u32) -> Option<u64> {
        let Link { capacity, used, weight, .. } = self.links[link as usize];
        (weight > 0.0).then(|| ((capacity - used).max(0.0) / weight).to_bits())
    }

    /// The link that fills up next, and the rate of its flows then.
    fn next_full(&mut self) -> Option<(f64, u32)> {
        while let Some(Reverse((rate, link))) = self.full_at.peek().copied() {
            match self.fills_at(link) {
                Some(now) if now <= rate => return Some((f64::from_bits(rate), link)),
                // What settled meanwhile took less than its share: the link fills up later.
                now => {
                    self.full_at.pop();
                    self.full_at.extend(now.map(|now| Reverse((now, link))));
                }
            }
        }
        None
    }

    /// The link is full: its flows get no more.
    fn fill(&mut self, link: u32, rate: f64) {
        let Link { first, count, .. } = self.links[link as usize];
        for place in first..first + count {
            let flow = self.by_link[place as usize];
            if !self.flows[flow as usize].settled {
                self.settle(flow, rate, Some(link));
            }
        }
        let link = &mut self.links[link as usize];
        // What rounding leaves must not keep the link in the queue.
        (link.weight, link.holds) = (0.0, true);
    }

    /// The flow has its rate.
    fn settle(&mut self, flow: u32, rate: f64, held_by: Option<u32>) {
        let flow = &mut self.flows[flow as usize];
        (flow.rate, flow.settled, flow.held_by) = (rate, true, held_by);
        let Flow { first, count, .. } = *flow;
        for place in first..first + count {
            let (link, weight) = self.crossings[place as usize];
            let at = &mut self.links[link as usize];
            at.used += weight * rate;
            at.fastest = at.fastest.max(rate);
            // Nothing is left but what rounding leaves.
            at.weight = if at.weight - weight < TINY { 0.0 } else { at.weight - weight };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_share_what_the_narrowest_link_leaves() {
        // The example of the textbooks: a long flow over both links, a short one on each.
        let mut problem = Problem::default();
        let (narrow, wide) = (problem.link(10.0), problem.link(30.0));
        for links in [&[narrow, wide][..], &[narrow], &[wide]] {
            problem.flow(f64::INFINITY);
            links.iter().for_each(|link| problem.cross(*link, 1.0));
        }
        problem.solve();
        assert_eq!([0, 1, 2].map(|flow| problem.rate(flow)), [5.0, 5.0, 25.0]);
    }

    #[test]
    fn limits_and_weights_count() {
        let mut problem = Problem::default();
        let link = problem.link(10.0);
        for (limit, weight) in [(1.0, 1.0), (f64::INFINITY, 2.0), (f64::INFINITY, 1.0)] {
            problem.flow(limit);
            problem.cross(link, weight);
        }
        problem.flow(7.0);
        problem.solve();
        assert_eq!([0, 1, 2, 3].map(|flow| problem.rate(flow)), [1.0, 3.0, 3.0, 7.0]);
        problem.clear();
        problem.flow(f64::INFINITY);
        problem.solve();
        assert_eq!(problem.rate(0), f64::INFINITY);
    }
}

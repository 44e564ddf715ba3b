//! Properties of the shares that flows get: they fit, they are max-min fair, and what is computed anew when
//! flows come and go is what a computation of everything gives.

use hawser_sim::engine::share::Problem;
use hawser_sim::engine::{Flows, Hop, Time};
use proptest::prelude::*;

/// A flow: its limit, and the links that it crosses with their weights.
type Wish = (f64, Vec<(u32, f64)>);

const EPSILON: f64 = 1e-6;

fn wishes(links: u32) -> impl Strategy<Value = Vec<Wish>> {
    let limit = prop_oneof![Just(f64::INFINITY), 0.1..50.0];
    let way = prop::collection::btree_map(0..links, prop_oneof![Just(1.0), 0.5..4.0], 1..5);
    prop::collection::vec((limit, way.prop_map(|way| way.into_iter().collect())), 1..30)
}

fn solved(capacities: &[f64], wishes: &[Wish]) -> Vec<f64> {
    let mut problem = Problem::default();
    capacities.iter().for_each(|capacity| {
        problem.link(*capacity);
    });
    for (limit, way) in wishes {
        problem.flow(*limit);
        way.iter().for_each(|(link, weight)| problem.cross(*link, *weight));
    }
    problem.solve();
    (0..wishes.len() as u32).map(|flow| problem.rate(flow)).collect()
}

fn load(link: u32, wishes: &[Wish], rates: &[f64]) -> f64 {
    let on = |(_, way): &Wish| way.iter().find(|(l, _)| *l == link).map_or(0.0, |(_, weight)| *weight);
    wishes.iter().zip(rates).map(|(wish, rate)| on(wish) * rate).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn shares_fit_and_nobody_can_get_more(
        capacities in prop::collection::vec(0.5..100.0f64, 6),
        wishes in wishes(6),
    ) {
        let rates = solved(&capacities, &wishes);
        let is_full = |link: u32| {
            load(link, &wishes, &rates) > capacities[link as usize] * (1.0 - EPSILON)
        };
        for link in 0..6 {
            prop_assert!(load(link, &wishes, &rates) <= capacities[link as usize] * (1.0 + EPSILON));
        }
        for ((limit, way), rate) in wishes.iter().zip(&rates) {
            prop_assert!(*rate > 0.0 && *rate <= limit * (1.0 + EPSILON));
            // It has all that it wants, or a full link on whose flows nobody has more.
            let is_largest_on = |link: u32| {
                let is_on = |way: &[(u32, f64)]| way.iter().any(|(other, _)| *other == link);
                let mut others = wishes.iter().zip(&rates).filter(|((_, way), _)| is_on(way));
                others.all(|(_, other)| *other <= rate * (1.0 + EPSILON))
            };
            let is_held = way.iter().any(|(link, _)| is_full(*link) && is_largest_on(*link));
            prop_assert!(*rate >= limit * (1.0 - EPSILON) || is_held, "{rate} of {limit} over {way:?}");
        }
    }

    #[test]
    fn rates_that_are_kept_are_those_of_a_computation_of_everything(
        capacities in prop::collection::vec(0.5..100.0f64, 6),
        wishes in wishes(6),
        moves in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..60),
    ) {
        let mut flows = Flows::new(capacities.iter().copied());
        let mut alive: Vec<(u32, Wish)> = Vec::new();
        for (number, (begins, which)) in moves.into_iter().enumerate() {
            let now = Time::from_ps(number as u64);
            if begins || alive.is_empty() {
                let wish = wishes[which.index(wishes.len())].clone();
                let way: Vec<Hop> = wish.1.iter().map(|&(link, weight)| Hop { link, weight }).collect();
                alive.push((flows.begin(now, 1e12, wish.0, &way), wish));
            } else {
                flows.end(alive.swap_remove(which.index(alive.len())).0);
            }
            // Several changes may be settled at once.
            if number % 3 == 0 {
                flows.settle(now, |_, _| ());
                let wishes: Vec<Wish> = alive.iter().map(|(_, wish)| wish.clone()).collect();
                for ((flow, _), expected) in alive.iter().zip(solved(&capacities, &wishes)) {
                    let rate = flows.rate(*flow);
                    prop_assert!((rate / expected - 1.0).abs() < EPSILON, "{rate} instead of {expected}");
                }
            }
        }
    }
}

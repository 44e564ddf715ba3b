//! The connections over the network that a launch needs.

use std::collections::BTreeMap;

use hawser_kernels_abi::Step;
use hawser_plan::executor::copy_engine::{self, inter_node};
use hawser_plan::executor::launch::LaunchPlan;
use hawser_plan::layout::HeapLayout;
use hawser_plan::{Route, Topology};

use crate::transport::net::{ConnectionKey, Stage};

/// The ends of connections that a plan of rank `rank` uses, and the slots that pass there.
pub fn ends(
    plan: &LaunchPlan,
    steps: &[Step],
    rank: u32,
    topology: &Topology,
    layout: &HeapLayout,
) -> Vec<(ConnectionKey, u64)> {
    let blocks = plan.args.blocks[..usize::from(plan.args.n_blocks)].iter();
    let used = blocks.flat_map(|block| {
        let tiles = u64::from(plan.args.works[usize::from(block.work)].tiles);
        let of_block = steps.iter().skip(block.first_step.into()).take(block.n_steps.into());
        of_block.map(move |step| (u32::from(block.lane), step, u64::from(step.times) * tiles))
    });
    let ends = used.flat_map(|(lane, step, slots)| {
        let end = move |&peer: &u16, send| (ConnectionKey { lane, peer: u32::from(peer), send }, slots);
        let receives = step.recv[..step.n_recv.into()].iter().map(move |peer| end(peer, false));
        receives.chain(step.send[..step.n_send.into()].iter().map(move |peer| end(peer, true)))
    });
    let ends = ends.filter(|(key, _)| topology.is_far(rank, key.peer));
    match plan.kernel.route {
        Route::COPY_ENGINE => staged(ends, layout.lanes),
        Route::LL => ends.map(|(key, slots)| (key.for_ll(layout.lanes), slots)).collect(),
        _ => ends.collect(),
    }
}

/// The slots of copy engines that such tiles pass through, each with a connection of its own.
fn staged(ends: impl Iterator<Item = (ConnectionKey, u64)>, lanes: u32) -> Vec<(ConnectionKey, u64)> {
    let mut tiles: BTreeMap<(u32, bool), u64> = BTreeMap::new();
    for (key, slots) in ends {
        *tiles.entry((key.peer, key.send)).or_default() += slots;
    }
    let slots = |((peer, send), tiles): ((u32, bool), u64)| {
        let end = move |slot| (Stage::key(lanes, peer, send, slot), inter_node::passes(tiles, slot));
        (0..copy_engine::DEPTH).map(end)
    };
    tiles.into_iter().flat_map(slots).filter(|(_, passes)| *passes > 0).collect()
}

//! The order in which the tiles of a launch come out: rounds of the blocks that go side by side.

use hawser_kernels_abi::{Block, Place, Step};

use crate::executor::launch::LaunchPlan;

/// A tile of a block: the block's index, the block, and the place of the tile.
pub(super) type Tile = (usize, Block, Place);

/// The blocks of a launch that are left, and those that go side by side now.
#[derive(Clone)]
pub(super) struct Rounds {
    /// Blocks that are left, with their indices, the next one last.
    pub(super) left: Vec<(usize, Block)>,
    /// Blocks under way, with their indices and places; those that send stand first.
    current: Vec<Tile>,
}

impl Rounds {
    /// All blocks of a launch that have anything to do.
    pub(super) fn new(plan: &LaunchPlan) -> Self {
        let used = &plan.args.blocks[..usize::from(plan.args.n_blocks)];
        let busy = |b: &&Block| plan.args.works[usize::from(b.work)].tiles > 0 && b.n_steps > 0;
        let left = used.iter().enumerate().filter(|(_, b)| busy(b)).rev().map(|(i, b)| (i, *b)).collect();
        Self { left, current: Vec::new() }
    }

    /// The tiles of the next round; none when all is over.
    pub(super) fn next(&mut self, plan: &LaunchPlan, steps: &[Step]) -> Vec<Tile> {
        if self.current.is_empty() {
            self.begin(steps);
        }
        let round = self.current.clone();
        self.current.retain_mut(|(_, block, place)| {
            let work = &plan.args.works[usize::from(block.work)];
            let step = &steps[usize::from(block.first_step) + place.step as usize];
            place.advance(work, step.times, block.n_steps.into());
            place.tile < work.tiles
        });
        round
    }

    /// Takes the next blocks that go side by side.
    fn begin(&mut self, steps: &[Step]) {
        let Some(channel) = self.left.last().map(|(_, block)| block.channel) else { return };
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        while let Some((index, block)) = self.left.pop_if(|(_, block)| block.channel == channel) {
            let receives = steps[usize::from(block.first_step)].n_send == 0;
            let side = if receives { &mut receivers } else { &mut senders };
            side.push((index, block, Place::default()));
        }
        self.current.extend(senders.into_iter().chain(receivers));
    }
}

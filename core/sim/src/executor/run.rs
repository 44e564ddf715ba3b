//! The loop of a run, which both executors share: what happens in the order of time, and the flows that
//! become faster or slower in between.

use std::fmt::{Debug, Write as _};

use super::Scene;
use crate::engine::flows::{Ending, Found};
use crate::engine::{Events, Flows};
use crate::error::{Result, SimError};

/// Events between two looks at the caller's wish to stop.
const EVENTS_PER_LOOK: u64 = 1 << 12;

/// The parts of a world that the loop moves.
pub struct Engine<'w, 'a, E> {
    /// The events to come.
    pub events: &'w mut Events<E>,
    /// The flows under way.
    pub flows: &'w mut Flows,
    /// The number of events that have happened.
    pub count: &'w mut u64,
    /// The trace, if one is kept.
    pub trace: &'w mut String,
    /// The surroundings of the run.
    pub scene: Scene<'a>,
}

/// Ranks, and what happens to them.
pub trait World<'a> {
    /// Something that happens.
    type Event: Copy + Debug;

    /// The parts that the loop moves.
    fn engine(&mut self) -> Engine<'_, 'a, Self::Event>;

    /// The event of a flow that ends.
    fn of_flow(ending: Ending) -> Self::Event;

    /// The flow whose end an event is, if it is one.
    fn flow_of(event: &Self::Event) -> Option<Ending>;

    /// Lets an event happen, now.
    fn happen(&mut self, event: Self::Event);
}

/// Runs until nothing happens any more.
///
/// # Errors
/// `Interrupted` if the caller asked to stop.
pub fn run<'a, W: World<'a>>(world: &mut W) -> Result<()> {
    while world.engine().events.advance() {
        loop {
            while let Some(event) = world.engine().events.take_now() {
                let Engine { count, scene, .. } = world.engine();
                *count += 1;
                if count.is_multiple_of(EVENTS_PER_LOOK) && (scene.stop)() {
                    return Err(SimError::Interrupted);
                }
                happen(world, event);
            }
            let Engine { flows, events, .. } = world.engine();
            flows.settle(events.now(), |at, ending| events.add(at, W::of_flow(ending)));
            // What ends at once, if anything, still belongs to this moment.
            match world.engine().events.take_now() {
                Some(event) => happen(world, event),
                None => break,
            }
        }
    }
    Ok(())
}

/// Lets an event happen, unless it is the end of a flow that has become slower or is over.
fn happen<'a, W: World<'a>>(world: &mut W, event: W::Event) {
    let Engine { flows, events, trace, scene, .. } = world.engine();
    if let Some(ending) = W::flow_of(&event) {
        match flows.look(events.now(), &ending) {
            Found::Arrived => {}
            Found::Later(at) => return events.add(at, event),
            Found::Nothing => return,
        }
    }
    if scene.is_traced {
        let _ = writeln!(trace, "{} {event:?}", events.now());
    }
    world.happen(event);
}

//! Decisions that a test makes itself, instead of the chooser.

use hawser_plan::Route;
use hawser_plan::algo::ProgramKey;
use hawser_plan::decision::{Decision, Why};

/// The decision for a program and a route, with one block for each instance.
pub fn decided(key: ProgramKey, route: Route, instances: u32, threads: u32) -> Decision {
    let why = Why {
        collective: key.collective,
        bytes: 0,
        ranks: key.ranks,
        candidates: Vec::new(),
        order: None,
        decided: String::new(),
        rule: None,
    };
    Decision { key, route, instances, channels: instances, threads, predicted_us: 0.0, why }
}

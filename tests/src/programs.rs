//! Built-in algorithms as files of MSCCL.

use std::ops::RangeInclusive;

use hawser_msccl::{Window, to_xml};
use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::{Collective, Protocol};

/// Every built-in algorithm for these numbers of ranks that MSCCL's words can say: name and text.
pub fn exported(ranks: RangeInclusive<u32>) -> Vec<(String, String)> {
    let window = Window { protocol: Protocol::Simple, bytes: (0, u64::MAX) };
    let mut found = Vec::new();
    for collective in Collective::ALL {
        for &algorithm in algo::algorithms(collective) {
            for ranks in ranks.clone() {
                let root = if collective.rooted() { ranks - 1 } else { 0 };
                let program = algo::program(&ProgramKey::new(collective, algorithm, ranks, root));
                let Ok(program) = program else { continue };
                if let Ok(xml) = to_xml(&program, &window) {
                    found.push((format!("{}_{ranks}.xml", program.shape.name), xml));
                }
            }
        }
    }
    found
}

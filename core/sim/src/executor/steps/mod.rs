//! The executor of steps: blocks that follow the steps of their channel, tile by tile.
//!
//! A block starts a step when every slot that it takes is full and every slot that it fills is free. It then
//! streams the tile at the rate of a block, or what the links leave it, and goes on after the overhead of a
//! step. Receivers see the slot after the time of a hop, senders have it back after half of that.

mod load;
mod machine;
mod names;
mod processors;
pub(super) mod proxy;

pub use load::Programs;
pub use machine::run;

#[cfg(test)]
mod tests {
    use hawser_plan::PlanConfig;
    use hawser_plan::p2p::Message;

    use super::*;
    use crate::cluster::{Cluster, File};
    use crate::engine::Time;
    use crate::executor::{Members, Scene};
    use crate::links::Links;

    /// An all-to-all of so many bytes for each peer: when it ends, without and with events of credits; None
    /// if its connections have not room for all of it.
    fn all_to_all(bytes: u64) -> Option<[Vec<Time>; 2]> {
        // Miri takes minutes for hosts of eight.
        let hosts = if cfg!(miri) { "4 hosts of cpu" } else { "4 hosts of hgx-h200, rail-optimised" };
        let file = File::sentence(hosts).expect("a cluster");
        let cluster = Cluster::new(&file, None).expect("a cluster");
        let (links, topology, config) = (Links::new(&cluster), &cluster.topology, PlanConfig::default());
        let each = topology.size();
        let ranks: Vec<u32> = (0..each).collect();
        let members = Members { ranks: &ranks, each, acting: each };
        let messages = |rank: u32| {
            let peers = (0..each).filter(|peer| *peer != rank);
            let both = |peer| [true, false].map(|send| Message { peer, send, addr: 1 << 20, bytes });
            peers.flat_map(both).collect()
        };
        let mut programs = Programs::of_messages(&messages, (topology, &config), (&links, members));
        let programs = programs.as_mut().expect("programs");
        if !programs.has_room_for_all {
            return None;
        }
        let starts = vec![Time::ZERO; ranks.len()];
        Some([true, false].map(|is_left_out| {
            programs.has_room_for_all = is_left_out;
            let scene = Scene {
                links: &links,
                members,
                starts: &starts,
                operations: 1,
                buffers: u64::MAX,
                is_traced: false,
                stop: &|| false,
            };
            run(programs, u32::MAX, topology, scene).expect("a run").ended
        }))
    }

    #[test]
    fn credits_are_left_out_where_nobody_waits_for_them() {
        let [without, with] = all_to_all(4 << 10).expect("room for all of it");
        assert_eq!(without, with);
        assert!(all_to_all(64 << 20).is_none(), "more tiles than slots: senders wait");
    }
}

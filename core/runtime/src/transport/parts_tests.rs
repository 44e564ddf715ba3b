//! Tests of ranks that ask each other for parts of their heaps.

use hawser_base::liveness::End;
use hawser_device::host::HostDevice;
use hawser_plan::PlanConfig;

use super::*;
use crate::bootstrap::UniqueId;
use crate::bootstrap::tests::{in_threads, patient, settings};

/// The late parts of ranks of one process, with their bootstraps.
fn world(ranks: u32) -> Vec<(Arc<Bootstrap>, LateParts)> {
    let id = UniqueId::create(&settings()).unwrap();
    let layout = HeapLayout::new(ranks, ranks, &PlanConfig { late_parts: true, ..PlanConfig::default() });
    in_threads(ranks, |rank| {
        let device: Arc<dyn Device> = Arc::new(HostDevice::beside().unwrap());
        let bootstrap = Arc::new(Bootstrap::join(&[id], rank, ranks, &settings(), &patient()).unwrap());
        let near = (0..ranks).filter(|other| *other != rank);
        let near = near.map(|rank| Near { rank, is_elsewhere: false }).collect();
        let parts = LateParts::new(&device, &bootstrap, near, &layout, &AbortFlag::new());
        (bootstrap, parts)
    })
}

/// The rank that a rank has said is to blame for its failure, if it has said that it failed.
fn blamed(bootstrap: &Bootstrap, rank: u32) -> Option<Option<u32>> {
    bootstrap.roster().all().into_iter().find_map(|(of, end, _)| match end {
        End::Failed { because_of, .. } if of == rank => Some(because_of),
        _ => None,
    })
}

#[test]
fn a_rank_that_does_not_answer_is_blamed_and_all_are_told() {
    let mut world = world(3);
    let (last, mut others) = (world.pop().unwrap(), world);
    drop(last);
    let (asked, asking) = (others.pop().unwrap(), others.pop().unwrap());
    let error = asking.1.reach(Part::Fifos, &patient()).unwrap_err();
    assert_eq!(error.peer, Some(2), "{error}");
    let told = || blamed(&asked.0, 0);
    let told = patient().until(told, || "rank 1 is not told".to_owned()).unwrap();
    assert_eq!(told, Some(2), "rank 0 is not to blame, which may end next");
}

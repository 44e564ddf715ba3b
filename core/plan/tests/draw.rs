//! Drawings of generated programs.

use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::{Algorithm, Collective};
use hawser_program::draw::to_svg;

#[test]
fn every_transfer_has_its_arrow() {
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::Ring, 4, 0);
    let svg = to_svg(&algo::program(&key).unwrap());
    assert_eq!(svg.matches("<line").count(), 4 * 2 * 3);
    // One background, seven steps per rank.
    assert_eq!(svg.matches("<rect").count(), 1 + 4 * 7);
    assert!(!svg.contains(r#"class="stuck""#));
}

#[test]
fn steps_that_cannot_run_are_shown() {
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::Ring, 2, 0);
    let mut program = algo::program(&key).unwrap();
    program.ranks[0].channels[0].steps.remove(0);
    program.shape.name = "a<b".into();
    let svg = to_svg(&program);
    assert!(svg.contains(r#"class="stuck""#) && svg.contains("a&lt;b"));
}

/// A picture that ends early shows no deadlock.
#[test]
fn large_programs_are_cut_off_and_say_so() {
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::Ring, 48, 0);
    let svg = to_svg(&algo::program(&key).unwrap());
    assert!(svg.contains("the picture ends there") && !svg.contains("deadlock"));
    assert!(!svg.contains("class=\"stuck\""));
}

//! Drawings of generated programs.

use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::{Algorithm, Collective};
use hawser_program::draw::{to_html, to_svg};

#[test]
fn every_transfer_has_its_arrow() {
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::Ring, 4, 0);
    let svg = to_svg(&algo::program(&key).unwrap());
    assert_eq!(svg.matches("class=\"arrow\"").count(), 4 * 2 * 3);
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
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::Ring, 2, 0);
    let mut program = algo::program(&key).unwrap();
    for rank in &mut program.ranks {
        for step in &mut rank.channels[0].steps {
            step.times = 2000;
        }
    }
    let svg = to_svg(&program);
    assert!(svg.contains("the picture ends there") && !svg.contains("deadlock"));
    assert!(!svg.contains("class=\"stuck\""));
}

/// The picture of many ranks is a matrix: a square for each pair that sends.
#[test]
fn many_ranks_are_a_matrix() {
    for (algorithm, ranks, squares) in
        [(Algorithm::Ring, 64, 64), (Algorithm::Ring, 1024, 128 * 2), (Algorithm::AllPairs, 32, 32 * 31)]
    {
        let key = ProgramKey::new(Collective::AllReduce, algorithm, ranks, 0);
        let svg = to_svg(&algo::program(&key).unwrap());
        assert_eq!(svg.matches("class=\"cell\"").count(), squares, "{algorithm:?} of {ranks}");
        for part in ["sending rank", "receiving rank", "slots sent, up to", "Steps of rank 0"] {
            assert!(svg.contains(part), "{part}");
        }
        assert!(!svg.contains("deadlock") && svg.len() < 400 << 10, "{}", svg.len());
    }
}

/// Pictures are for everybody: a title, a description, a legend, nothing outside.
#[test]
fn pictures_can_be_read_aloud_and_stay_within_their_frame() {
    for (algorithm, ranks) in [(Algorithm::AllPairs, 8), (Algorithm::Ring, 2), (Algorithm::Ring, 64)] {
        let key = ProgramKey::new(Collective::AllReduce, algorithm, ranks, 0);
        let program = algo::program(&key).unwrap();
        let svg = to_svg(&program);
        assert!(svg.contains("role=\"img\"") && svg.contains("<title id=") && svg.contains("<desc id="));
        let numbers = |name: &str| -> Vec<f64> {
            let word = format!(" {name}=\"");
            let after = svg.split(&word).skip(1);
            after.filter_map(|rest| rest.split('"').next()?.parse().ok()).collect()
        };
        let (width, height) = (numbers("width")[0], numbers("height")[0]);
        for (name, most) in [("x", width), ("x1", width), ("x2", width), ("y", height), ("y1", height)] {
            assert!(numbers(name).iter().all(|at| (0.0..=most).contains(at)), "{name} of {algorithm:?}");
        }
        let html = to_html(&program);
        assert!(html.starts_with("<!doctype html>") && html.contains("mouseenter") && html.contains(&svg));
    }
}

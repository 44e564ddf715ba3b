//! A failing world, made small: parts are left out as long as it still fails.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use crate::world::{Part, World};

/// Times that a smaller world is tried: the order of threads differs between runs.
const TRIES: usize = 4;

/// The arguments of `hawser-sim` that run a world without some parts.
pub fn arguments(seed: u64, without: &BTreeSet<Part>) -> Vec<String> {
    let mut arguments = vec!["--seed".to_owned(), seed.to_string()];
    if !without.is_empty() {
        let parts: Vec<String> = without.iter().map(Part::to_string).collect();
        arguments.extend(["--without".to_owned(), parts.join(",")]);
    }
    arguments
}

/// The parts without which the world of a seed still fails, each run in a process of its own.
pub fn shrink(seed: u64, without: &BTreeSet<Part>) -> BTreeSet<Part> {
    let fails = |without: &BTreeSet<Part>| (0..TRIES).any(|_| fails(&arguments(seed, without)));
    smallest(World::draw(seed, without).parts, without.clone(), fails)
}

/// Leaves out halves, quarters and so on, as long as what is left fails.
fn smallest(
    parts: usize,
    mut without: BTreeSet<Part>,
    mut fails: impl FnMut(&BTreeSet<Part>) -> bool,
) -> BTreeSet<Part> {
    let mut length = parts.div_ceil(2);
    while length > 0 {
        for first in (0..parts).step_by(length) {
            let less: BTreeSet<Part> =
                without.iter().copied().chain(first..(first + length).min(parts)).collect();
            if less.len() > without.len() && fails(&less) {
                without = less;
            }
        }
        length /= 2;
    }
    without
}

fn fails(arguments: &[String]) -> bool {
    let program = std::env::current_exe();
    let Ok(program) = program else { return false };
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| !status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_fails_and_each_part_of_it_is_needed() {
        let needed = [3, 17, 18];
        let fails = |without: &BTreeSet<Part>| needed.iter().all(|part| !without.contains(part));
        let without = smallest(25, BTreeSet::new(), fails);
        assert_eq!((0..25).filter(|part| !without.contains(part)).collect::<Vec<_>>(), needed);
    }
}

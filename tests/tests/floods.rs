//! Silent connections to every port of a job: it begins and works, and its program keeps its descriptors.

use hawser_tests::floods::Flood;
use hawser_tests::skip::skipped;
use hawser_tests::world::on_host;

/// The most lines about strangers that a rank may write, whatever comes.
const MOST_LINES: usize = 100;

/// A small version of what `attack --flood` measures.
#[test]
fn strangers_on_every_port_take_neither_descriptors_nor_log_lines() {
    if !on_host() {
        return;
    }
    let is_root = rustix::process::getuid().is_root();
    if !is_root {
        skipped("no process of another user: that needs root");
    }
    let from_another_user = if is_root { 100 } else { 0 };
    let flood = Flood { ranks: 3, files: 256, from_strangers: 600, from_another_user, nice: 0 };
    let outcome = flood.carry_out(env!("CARGO_BIN_EXE_hawser-test-rank")).unwrap();
    assert!(outcome.ports >= 4 && outcome.connections >= 600, "{outcome:?}");
    assert!(outcome.opened > 0 && outcome.failed == 0, "{outcome:?}");
    assert!(outcome.lines > 0 && outcome.lines <= MOST_LINES, "{outcome:?}");
}

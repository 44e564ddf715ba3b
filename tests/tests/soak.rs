//! Ranks that are late for good reasons are no hang: nobody tells a verdict. The long version is the program
//! `soak`.

use std::time::Duration;

use hawser_tests::soak::Soak;
use hawser_tests::world::on_host;

#[test]
fn ranks_that_sleep_below_the_limit_are_not_told_of() {
    if !on_host() {
        return;
    }
    let soak = Soak { ranks: 3, hosts: 2, hang_after: 3, time: Duration::from_secs(12), seed: 5 };
    let findings = soak.carry_out(env!("CARGO_BIN_EXE_hawser-test-rank"));
    assert!(findings.wrong.is_empty(), "{}", findings.wrong.join("\n"));
    assert!(findings.operations > 4, "{findings:?}");
}

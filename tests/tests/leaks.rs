//! Nothing is left behind: threads, descriptors and mappings after many rounds. Each scenario runs in a
//! process of its own, where nothing else comes and goes.

use hawser_tests::process::Process;

#[test]
fn rounds_of_init_and_destroy() {
    scenario("init");
}

#[test]
fn rounds_of_abort() {
    scenario("abort");
}

#[test]
fn rounds_of_split() {
    scenario("split");
}

#[test]
fn rounds_of_failed_init() {
    scenario("failed");
}

#[test]
fn rounds_of_shrink_revoke_suspend_and_resume() {
    scenario("elastic");
}

#[test]
fn groups_of_threads_that_end() {
    scenario("groups");
}

/// The long form, of a million, is `hawser-test-rank leaks watched-long`.
#[test]
fn many_operations_that_are_watched() {
    scenario("watched");
}

fn scenario(name: &str) {
    let args = ["leaks".to_owned(), name.to_owned()];
    // With one arena the C library keeps no more than was needed at once; with one for each of many threads
    // that come and go it takes hundreds of rounds until all have their size.
    let one_arena = [("MALLOC_ARENA_MAX", "1")];
    Process::start(env!("CARGO_BIN_EXE_hawser-test-rank"), &args, &one_arena).end().expect_success();
}

//! Tests that do not apply where they run say so, in a line that is seen whatever the test harness captures.

use std::io::Write;

/// Says why the running test is skipped: `skipped: NAME: REASON`, straight to standard error. `make test`
/// counts these lines.
pub fn skipped(reason: impl std::fmt::Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // The macros for printing are captured in tests that pass; this is not. A line that cannot be written is
    // lost.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

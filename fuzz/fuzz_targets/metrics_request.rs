//! The fuzz target `metrics_request`; see `hawser_fuzz_targets::TARGETS`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| hawser_fuzz_targets::run("metrics_request", data));

//! The fuzz target `link_constants`; see `hawser_fuzz_targets::TARGETS`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| hawser_fuzz_targets::run("link_constants", data));

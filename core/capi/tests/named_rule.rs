//! A call that names the rule by which it is to run (`HAWSER_OPTION_RULE`). The process has rules of its own,
//! so this is a test program of its own.

mod support;

use std::ffi::{CStr, c_int};
use std::ptr::null;
use std::sync::Once;

use support::*;

const RULE: c_int = 3;
const RULES: &str = "[[rule]]\nuse = { algorithm = \"ring\" }\n\
                     [[rule]]\nname = \"mine\"\nmatch.bytes = \"1K..1M\"\nuse = { algorithm = \"tree\" }\n";

/// The rules count from the first call on.
fn with_rules() {
    static ONCE: Once = Once::new();
    let file = std::env::temp_dir().join(format!("hawser-named-rule-{}.toml", std::process::id()));
    ONCE.call_once(|| {
        std::fs::write(&file, RULES).expect("the temporary folder can be written");
        // SAFETY: every test comes through here before it calls the library, and no other code of this
        // process reads or writes the environment.
        unsafe { std::env::set_var("HAWSER_RULES", &file) };
    });
}

/// An all-reduce of `count` floats by the rule of this name.
fn all_reduce(comms: &[Comm], count: usize, rule: Option<&CStr>, force: c_int) -> c_int {
    let value = rule.map_or(null(), CStr::as_ptr);
    let option = VendorOption { next: null(), vendor: VENDOR, option: RULE, value };
    let mut config = CollConfig::with(CollConfig::FORCE, force);
    let address = (&raw const option) as u64;
    (config.0[4], config.0[5]) = (address as c_int, (address >> 32) as c_int);
    let mut data = vec![vec![1f32; count]; comms.len()];
    ok(ncclGroupStart());
    for (&comm, data) in comms.iter().zip(&mut data) {
        let at = data.as_mut_ptr();
        let code = ncclAllReduceConfig(at.cast(), at.cast(), count, FLOAT32, SUM, comm, null(), &config);
        if code != SUCCESS {
            // The group ends with this error.
            assert_eq!(ncclGroupEnd(), code);
            return code;
        }
    }
    let code = ncclGroupEnd();
    let sum = if code == SUCCESS { comms.len() as f32 } else { 1.0 };
    assert!(data.iter().flatten().all(|element| *element == sum));
    code
}

#[test]
fn a_named_rule_decides_or_the_call_says_that_it_does_not() {
    with_rules();
    let _turn = turn();
    let comms = several(2);
    let algorithm = || last_decision(comms[0]).0.to_ascii_lowercase();
    ok(all_reduce(&comms, 1024, Some(c"mine"), 1));
    assert_eq!(algorithm(), "tree");
    // Not for such a size, and not there: an error, or the other rules.
    for (count, name) in [(16, c"mine"), (1024, c"other")] {
        assert_eq!(all_reduce(&comms, count, Some(name), 1), INVALID_ARGUMENT, "{name:?}");
        let said = last_error();
        assert!(said.contains("HAWSER_OPTION_RULE") && said.contains("all_reduce"), "{said}");
        ok(all_reduce(&comms, count, Some(name), 0));
        assert_eq!(algorithm(), "ring", "{name:?}");
    }
    assert_eq!(all_reduce(&comms, 1024, None, 1), INVALID_ARGUMENT);
    comms.into_iter().for_each(|comm| ok(ncclCommDestroy(comm)));
}

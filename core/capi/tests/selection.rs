//! Configurations of one call choose the algorithm and the channels that run, in results that are right.

mod support;

use std::ffi::{CStr, c_int};
use std::ptr::null;

use support::*;

/// Elements of each rank: enough for several channels.
const COUNT: usize = 1 << 18;

/// An all-reduce of all ranks with this configuration. Checks the sums if it runs.
fn all_reduce(comms: &[Comm], config: *const CollConfig) -> c_int {
    let inputs: Vec<Vec<f32>> = (0u8..).zip(comms).map(|(r, _)| vec![f32::from(r) + 1.0; COUNT]).collect();
    let mut outputs = vec![vec![0f32; COUNT]; comms.len()];
    ok(ncclGroupStart());
    for ((&comm, input), output) in comms.iter().zip(&inputs).zip(&mut outputs) {
        let (input, output) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        ok(ncclAllReduceConfig(input, output, COUNT, FLOAT32, SUM, comm, null(), config));
    }
    let code = ncclGroupEnd();
    let sum: f32 = inputs.iter().map(|input| input[0]).sum();
    assert!(code != SUCCESS || outputs.iter().flatten().all(|element| *element == sum));
    code
}

fn end(comms: Vec<Comm>) {
    comms.into_iter().for_each(|comm| ok(ncclCommDestroy(comm)));
}

#[test]
fn what_is_selected_runs() {
    let _turn = turn();
    let comms = several(4);
    ok(all_reduce(&comms, null()));
    let free = last_decision(comms[0]).0;
    for (text, name) in
        [(c"RING", "ring"), (c"tree", "tree"), (c"RING_SIMPLE", "ring"), (c"TREE,simple", "tree")]
    {
        for force in [1, 0] {
            ok(all_reduce(&comms, &CollConfig::filter(text, force)));
            for &comm in &comms {
                assert_eq!(last_decision(comm).0.to_ascii_lowercase(), name, "{text:?}");
            }
        }
    }
    // The next call is free again, and finds its own plan.
    ok(all_reduce(&comms, null()));
    assert_eq!(last_decision(comms[0]).0, free);
    end(comms);
}

#[test]
fn what_cannot_be_selected_is_an_error_or_left_to_the_library() {
    let _turn = turn();
    let comms = several(2);
    // The host device has one protocol, and there is no NVLS.
    for text in [c"RING_LL128", c"NVLS", c"SYMK_AGxLL_R", c"COLLNET_DIRECT_SIMPLE"] {
        assert_eq!(all_reduce(&comms, &CollConfig::filter(text, 1)), INVALID_ARGUMENT, "{text:?}");
        let said = last_error();
        assert!(said.contains("algSelection") && said.contains("forceAlgSelection = 0"), "{said}");
        ok(all_reduce(&comms, &CollConfig::filter(text, 0)));
    }
    end(comms);
}

const EXECUTOR: c_int = 1;
const PROTOCOL: c_int = 2;
const REPRODUCIBLE: c_int = 4;
const CLASS: c_int = 5;

/// An all-reduce with an option of ours behind one of another vendor, and with `RING` beside it.
fn with_option(comms: &[Comm], option: c_int, value: Option<&CStr>, force: c_int) -> c_int {
    let value = value.map_or(null(), CStr::as_ptr);
    let ours = VendorOption { next: null(), vendor: VENDOR, option, value };
    let first = VendorOption { next: &ours, vendor: 7, option: 1, value: null() };
    let mut config = CollConfig::filter(c"RING", force);
    let address = (&raw const first) as u64;
    (config.0[4], config.0[5]) = (address as c_int, (address >> 32) as c_int);
    all_reduce(comms, &config)
}

#[test]
fn options_of_ours_narrow_the_selection() {
    let _turn = turn();
    let comms = several(2);
    let taken = [
        (EXECUTOR, c"host"),
        (EXECUTOR, c"Interpreter"),
        (PROTOCOL, c"simple"),
        (CLASS, c"urgent"),
        (CLASS, c"BEST_EFFORT"),
    ];
    for (option, word) in taken {
        ok(with_option(&comms, option, Some(word), 1));
        assert_eq!(last_decision(comms[0]).0, "Ring", "{word:?}");
    }
    // The host device has neither.
    for (option, word) in [(EXECUTOR, c"fused"), (PROTOCOL, c"LL128")] {
        assert_eq!(with_option(&comms, option, Some(word), 1), INVALID_ARGUMENT, "{word:?}");
        ok(with_option(&comms, option, Some(word), 0));
    }
    end(comms);
}

/// Of four ranks a ring adds up in no declared order: the call that insists on it is told, others take what
/// keeps the order.
#[test]
fn a_reproducible_call_takes_what_keeps_the_order() {
    let _turn = turn();
    let comms = several(4);
    ok(with_option(&comms, REPRODUCIBLE, Some(c"0"), 1));
    assert_eq!(last_decision(comms[0]).0, "Ring");
    let one_step = &["OneShot", "AllPairs"][..];
    let others = &["OneShot", "AllPairs", "RecursiveDoubling", "Nested"][..];
    for (level, kept) in [(c"1", one_step), (c" 2 ", others)] {
        assert_eq!(with_option(&comms, REPRODUCIBLE, Some(level), 1), INVALID_ARGUMENT);
        assert!(last_error().contains("it combines in another order"), "{}", last_error());
        ok(with_option(&comms, REPRODUCIBLE, Some(level), 0));
        let (ran, _) = last_decision(comms[0]);
        assert!(kept.contains(&ran.as_str()), "{ran}");
    }
    end(comms);
}

#[test]
fn options_of_ours_that_are_none_are_refused() {
    let _turn = turn();
    let comm = single();
    let data = [0f32; 4];
    for (option, value, word) in [
        (EXECUTOR, Some(c"warp"), "no executor"),
        (PROTOCOL, Some(c"LL64"), "no protocol"),
        (EXECUTOR, None, "the text of option 1"),
        (REPRODUCIBLE, Some(c"3"), "no level"),
        (CLASS, Some(c"high"), "no class"),
        (9, Some(c"host"), "option 9"),
    ] {
        let value = value.map_or(null(), CStr::as_ptr);
        let ours = VendorOption { next: null(), vendor: VENDOR, option, value };
        let mut config = CollConfig::with(CollConfig::FORCE, 1);
        let address = (&raw const ours) as u64;
        (config.0[4], config.0[5]) = (address as c_int, (address >> 32) as c_int);
        let (address, mut out) = (data.as_ptr().cast(), data);
        let code =
            ncclAllReduceConfig(address, out.as_mut_ptr().cast(), 4, FLOAT32, SUM, comm, null(), &config);
        assert_eq!(code, INVALID_ARGUMENT, "{word}");
        let text = last_error();
        assert!(
            text.starts_with("ncclAllReduceConfig: ") && text.contains(word) && text.contains(';'),
            "{text}"
        );
    }
    ok(ncclCommDestroy(comm));
}

#[test]
fn ctas_of_one_call_are_bounded() {
    let _turn = turn();
    let comms = several(2);
    let channels = |field, value| {
        ok(all_reduce(&comms, &CollConfig::with(field, value)));
        last_decision(comms[1]).1
    };
    assert_eq!(channels(CollConfig::MAX_CTAS, 1), 1);
    assert!(channels(CollConfig::MAX_CTAS, 2) <= 2);
    let many = channels(CollConfig::MIN_CTAS, 6);
    // As many as the device has room for.
    assert!(many > 1, "{many} channels");
    end(comms);
}

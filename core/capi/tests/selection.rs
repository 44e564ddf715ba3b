//! Configurations of one call choose the algorithm and the channels that run, in results that are right.

mod support;

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{null, null_mut};

use support::*;

/// Elements of each rank: enough for several channels.
const COUNT: usize = 1 << 18;

/// `hawserDecision_t`, as bytes.
#[repr(C, align(8))]
struct Decision([u8; 448]);

// SAFETY: the signature is `hawser.h`'s. Safe to call from these tests, which pass live memory.
unsafe extern "C" {
    safe fn hawserLastDecision(
        comm: Comm,
        decision: *mut Decision,
        text: *mut c_char,
        capacity: usize,
    ) -> c_int;
}

/// The algorithm and the channels of a communicator's last operation.
fn last(comm: Comm) -> (String, u32) {
    let mut decision = Decision([0; 448]);
    decision.0[..8].copy_from_slice(&448u64.to_ne_bytes());
    decision.0[8..12].copy_from_slice(&0x5241_5748u32.to_ne_bytes());
    decision.0[12..16].copy_from_slice(&2u32.to_ne_bytes());
    ok(hawserLastDecision(comm, &mut decision, null_mut(), 0));
    let name = CStr::from_bytes_until_nul(&decision.0[88..152]).unwrap().to_str().unwrap();
    (name.to_owned(), u32::from_ne_bytes(decision.0[36..40].try_into().unwrap()))
}

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
    let free = last(comms[0]).0;
    for (text, name) in
        [(c"RING", "ring"), (c"tree", "tree"), (c"RING_SIMPLE", "ring"), (c"TREE,simple", "tree")]
    {
        for force in [1, 0] {
            ok(all_reduce(&comms, &CollConfig::filter(text, force)));
            for &comm in &comms {
                assert_eq!(last(comm).0.to_ascii_lowercase(), name, "{text:?}");
            }
        }
    }
    // The next call is free again, and finds its own plan.
    ok(all_reduce(&comms, null()));
    assert_eq!(last(comms[0]).0, free);
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

#[test]
fn ctas_of_one_call_are_bounded() {
    let _turn = turn();
    let comms = several(2);
    let channels = |field, value| {
        ok(all_reduce(&comms, &CollConfig::with(field, value)));
        last(comms[1]).1
    };
    assert_eq!(channels(CollConfig::MAX_CTAS, 1), 1);
    assert!(channels(CollConfig::MAX_CTAS, 2) <= 2);
    let many = channels(CollConfig::MIN_CTAS, 6);
    // As many as the device has room for.
    assert!(many > 1, "{many} channels");
    end(comms);
}

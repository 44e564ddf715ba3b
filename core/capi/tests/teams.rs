//! Teams, addresses of windows and requirements of the device API. Requirements are those that NVIDIA's
//! library 2.32.3 gives.

mod support;

use std::ffi::c_int;
use std::ptr::{dangling, null, null_mut};

use support::*;

#[test]
fn ranks_of_one_process_are_one_load_store_team() {
    let _turn = turn();
    let comms = several(3);
    for (rank, &comm) in (0..).zip(&comms) {
        assert_eq!(ncclTeamWorld(comm), Team(3, rank, 1));
        assert_eq!(ncclTeamLsa(comm), Team(3, rank, 1));
        assert_eq!(ncclTeamRail(comm), Team(1, 0, 3));
        let numbers = |team: Team, of: &dyn Fn(Team, c_int) -> c_int| [0, 1, 2].map(|r| of(team, r));
        let lsa = ncclTeamLsa(comm);
        assert_eq!(numbers(lsa, &|team, r| ncclTeamRankToWorld(comm, team, r)), [0, 1, 2]);
        assert_eq!(numbers(lsa, &|team, r| ncclTeamRankToLsa(comm, team, r)), [0, 1, 2]);
        assert_eq!(ncclTeamRankToWorld(comm, ncclTeamRail(comm), 0), rank);
        assert_eq!(ncclTeamRankToWorld(comm, lsa, 3), -1);
    }
    comms.into_iter().for_each(|comm| ok(ncclCommDestroy(comm)));
    assert_eq!(ncclTeamLsa(null_mut()), Team(0, 0, 0));
    assert!(last_error().starts_with("ncclTeamLsa: comm is NULL"), "{}", last_error());
    assert_eq!(ncclTeamRankToWorld(null_mut(), Team(1, 0, 1), 0), -1);
}

#[test]
fn windows_have_the_addresses_of_all_ranks() {
    let _turn = turn();
    let comms = several(2);
    let buffers = [[1f32; 64], [2f32; 64]];
    let mut windows = [null(); 2];
    for ((&comm, buffer), window) in comms.iter().zip(&buffers).zip(&mut windows) {
        // A window before it that was taken back changes no place of the others.
        let mut gone = null();
        ok(ncclCommWindowRegister(comm, buffer.as_ptr().cast(), 4, &mut gone, 0));
        ok(ncclCommWindowRegister(comm, buffer.as_ptr().cast(), 256, window, 1));
        ok(ncclCommWindowDeregister(comm, gone));
    }
    for window in windows {
        for (rank, buffer) in (0..).zip(&buffers) {
            let (mut near, mut peer) = (null(), null());
            ok(ncclGetLsaDevicePointer(window, 8, rank, &mut near));
            ok(ncclGetPeerDevicePointer(window, 8, rank, &mut peer));
            assert_eq!((near, peer), ((&raw const buffer[2]).cast(), (&raw const buffer[2]).cast()));
        }
        let mut multimem = dangling();
        ok(ncclGetLsaMultimemDevicePointer(window, 0, &mut multimem));
        assert!(multimem.is_null());
        let refused = [
            ncclGetPeerDevicePointer(window, 0, 2, &mut multimem),
            ncclGetPeerDevicePointer(window, 0, -1, &mut multimem),
            ncclGetLsaDevicePointer(window, 0, 2, &mut multimem),
            ncclGetPeerDevicePointer(window, 257, 0, &mut multimem),
            ncclGetPeerDevicePointer(window, 0, 0, null_mut()),
        ];
        assert_eq!(refused, [INVALID_ARGUMENT; 5]);
    }
    ok(ncclCommWindowDeregister(comms[1], windows[1]));
    assert_eq!(ncclGetPeerDevicePointer(windows[0], 0, 1, &mut null()), INVALID_USAGE);
    assert!(last_error().contains("rank 1 has not registered"), "{}", last_error());
    for window in [null(), windows[1], 0x55 as Ptr] {
        let mut untouched = 0x77 as Ptr;
        assert_eq!(ncclGetPeerDevicePointer(window, 0, 0, &mut untouched), INVALID_ARGUMENT);
        assert_eq!(ncclGetLsaMultimemDevicePointer(window, 0, &mut untouched), INVALID_ARGUMENT);
        assert_eq!(untouched, 0x77 as Ptr);
    }
    comms.into_iter().for_each(|comm| ok(ncclCommDestroy(comm)));
}

/// The values that a call stores: buffer bytes, alignment, signals, and the words of the handle.
fn stored(call: impl Fn(Words, Words) -> c_int) -> (u32, u32, u32, [u32; 4]) {
    let (mut handle, mut req) = ([0xaaaa_aaaa; 4], [0u32; 14]);
    ok(call(handle.as_mut_ptr(), req.as_mut_ptr()));
    let place = |at: usize| u64::from(req[at]) | u64::from(req[at + 1]) << 32;
    let handle_at = handle.as_ptr() as u64;
    assert!([0, handle_at].contains(&place(6)), "the buffer's place is the handle's first word");
    assert!([0, handle_at, handle_at + 4].contains(&place(10)));
    assert_eq!((place(0), place(12), req[9]), (0, 0, 0), "no next, no counters");
    (req[2], req[4], req[8], handle)
}

#[test]
fn requirements_are_nvidias() {
    let _turn = turn();
    let four = Team(4, 1, 1);
    let number = |at: usize, stored: (u32, u32, u32, [u32; 4])| (stored.0, stored.1, stored.2, stored.3[at]);
    let barrier = |n| stored(|h, r| ncclLsaBarrierCreateRequirement(four, n, h, r));
    assert_eq!((number(1, barrier(3)), number(1, barrier(0))), ((84, 4, 0, 3), (0, 4, 0, 0)));
    let barrier = stored(|h, r| ncclGinBarrierCreateRequirement(null_mut(), four, 3, h, r));
    assert_eq!((barrier.0, barrier.1, barrier.2), (0, 0, 12));
    for (ranks, blocks, log2, bytes, signals, reciprocal) in [
        (2, 1, 0, 256, 2052, 0),
        (4, 3, 10, 3456, 6180, 0x5555_5555),
        (3, 2, 13, 16640, 4112, 0x8000_0000),
        (8, 3, 11, 6528, 6228, 0x2492_4924),
    ] {
        let inbox = stored(|h, r| ncclGinInboxA2ACreateRequirement(Team(ranks, 0, 1), blocks, log2, h, r));
        let (size, reciprocal_word) = (log2.unsigned_abs(), inbox.3[3]);
        assert_eq!((inbox.0, inbox.1, inbox.2, inbox.3[2]), (bytes, 128, signals, size));
        assert_eq!(reciprocal_word, reciprocal, "{ranks} ranks");
    }
    for (blocks, log2, bytes, kept) in
        [(1, 0, 8448, 7), (1, 7, 8448, 7), (3, 10, 28032, 10), (2, 13, 33024, 13)]
    {
        let outbox = stored(|h, r| ncclGinOutboxCreateRequirement(blocks, log2, h, r));
        assert_eq!(number(1, outbox), (bytes, 128, 0, kept));
    }
    let low_latency = |b, s| number(1, stored(|h, r| ncclLLA2ACreateRequirement(b, s, h, r)));
    assert_eq!((low_latency(3, 10), low_latency(1, 0)), ((1008, 16, 0, 10), (16, 16, 0, 0)));
    let slots = [(0, 0, 0), (1, 1, 1), (4, 8, 4), (4, 16, 8), (7, 12, 14), (16, 24, 48), (3, 9, 6)];
    for (elements, size, slots) in slots {
        assert_eq!(ncclLLA2ACalcSlots(elements, size), slots);
    }
    assert_eq!(ncclLLA2ACalcSlots(c_int::MAX, 9), 0);
    let (handle, req) = ([0; 4].as_mut_ptr(), [0; 14].as_mut_ptr());
    let refused = [
        ncclLsaBarrierCreateRequirement(four, -1, handle, req),
        ncclLsaBarrierCreateRequirement(four, 1, null_mut(), req),
        ncclLsaBarrierCreateRequirement(four, 1, handle, null_mut()),
        ncclGinInboxA2ACreateRequirement(Team(1, 0, 1), 1, 4, handle, req),
        ncclGinInboxA2ACreateRequirement(four, 1, 32, handle, req),
        ncclLLA2ACreateRequirement(c_int::MAX, c_int::MAX, null_mut(), req),
    ];
    assert_eq!(refused, [INVALID_ARGUMENT; 6]);
}

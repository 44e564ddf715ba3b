//! Calls that work, from the caller's side: groups, reductions, windows, non-blocking and aborted
//! communicators.

mod support;

use std::ffi::{CStr, c_int};
use std::ptr::{null, null_mut};
use std::thread;
use std::time::{Duration, Instant};

use support::*;

fn all_reduce(comm: Comm, values: &mut [f32], op: i32) -> i32 {
    let address = values.as_mut_ptr().cast();
    ncclAllReduce(address, address, values.len(), FLOAT32, op, comm, null())
}

#[test]
fn an_error_in_a_group_fails_its_end_and_launches_nothing() {
    let _turn = turn();
    let comms = several(2);
    let mut data = [[1f32; 4], [2f32; 4]];
    ok(ncclGroupStart());
    ok(all_reduce(comms[0], &mut data[0], SUM));
    assert_eq!(all_reduce(comms[1], &mut data[1], 77777), INVALID_ARGUMENT);
    assert_eq!(ncclGroupEnd(), INVALID_ARGUMENT);
    assert_eq!(data[0], [1.0; 4]);

    // Also when the call failed before a communicator was known.
    ok(ncclGroupStart());
    assert_eq!(all_reduce(null_mut(), &mut data[1], SUM), INVALID_ARGUMENT);
    assert_eq!(ncclGroupEnd(), INVALID_ARGUMENT);

    // A question is no part of the group.
    ok(ncclGroupStart());
    assert_eq!(ncclCommCount(null_mut(), null_mut()), INVALID_ARGUMENT);
    ok(ncclGroupEnd());
    assert_eq!(ncclGroupEnd(), INVALID_USAGE);
    assert!(last_error().contains("ncclGroup"));

    ok(ncclGroupStart());
    for (comm, data) in comms.iter().zip(&mut data) {
        ok(all_reduce(*comm, data, SUM));
    }
    ok(ncclGroupEnd());
    assert_eq!(data, [[3.0; 4]; 2]);
    comms.iter().for_each(|c| ok(ncclCommDestroy(*c)));
}

/// From one thread: the ranks of each step in a group, as of communicators.
#[test]
fn a_communicator_shrinks_grows_and_is_revoked() {
    let _turn = turn();
    let world = several(3);
    let mut shrunk: [Comm; 2] = [null_mut(); 2];
    ok(ncclGroupStart());
    for (comm, out) in world[1..].iter().zip(&mut shrunk) {
        ok(ncclCommShrink(*comm, &0, 1, out, null(), 0));
    }
    ok(ncclGroupEnd());
    check_sum(&shrunk);

    let mut id = Id([0; 128]);
    ok(ncclCommGetUniqueId(shrunk[1], &mut id));
    let mut grown: [Comm; 3] = [null_mut(); 3];
    ok(ncclGroupStart());
    ok(ncclCommGrow(shrunk[0], 3, null(), -1, &mut grown[0], null()));
    ok(ncclCommGrow(shrunk[1], 3, &id, -1, &mut grown[1], null()));
    ok(ncclCommGrow(null_mut(), 3, &id, 2, &mut grown[2], null()));
    ok(ncclGroupEnd());
    check_sum(&grown);

    for comm in world {
        ok(ncclCommRevoke(comm, 0));
        assert_eq!(all_reduce(comm, &mut [0.0], SUM), INVALID_USAGE);
        assert!(last_error().contains("revoked"), "{}", last_error());
        assert_eq!(ncclCommFinalize(comm), INVALID_USAGE);
        // The program knows that it has revoked it.
        let mut state = INVALID_USAGE;
        ok(ncclCommGetAsyncError(comm, &mut state));
        assert_eq!(state, SUCCESS);
        ok(ncclCommDestroy(comm));
    }
    check_sum(&grown);
    shrunk.iter().chain(&grown).for_each(|comm| ok(ncclCommDestroy(*comm)));
}

#[test]
fn a_communicator_sleeps_and_wakes() {
    let _turn = turn();
    let comms = several(3);
    let stats = |comm| {
        [0, 1, 2, 3].map(|stat| {
            let mut value = 7;
            ok(ncclCommMemStats(comm, stat, &mut value));
            value
        })
    };
    check_sum(&comms);
    let before = stats(comms[0]);
    assert!(before[0] > 0 && before[1] == 0 && before[2] > 0 && before[3] == before[0] + before[2]);
    for _ in 0..2 {
        ok(ncclGroupStart());
        comms.iter().for_each(|comm| ok(ncclCommSuspend(*comm, 1)));
        ok(ncclGroupEnd());
        assert_eq!(stats(comms[1])[1], 1);
        assert_eq!(all_reduce(comms[0], &mut [0.0], SUM), INVALID_USAGE);
        assert!(last_error().contains("suspended"), "{}", last_error());
        assert_eq!(ncclCommSuspend(comms[2], 1), INVALID_USAGE);
        ok(ncclGroupStart());
        comms.iter().for_each(|comm| ok(ncclCommResume(*comm)));
        ok(ncclGroupEnd());
        assert_eq!(stats(comms[0]), before);
        check_sum(&comms);
    }
    ok(ncclGroupStart());
    comms.iter().for_each(|comm| ok(ncclCommSuspend(*comm, 1)));
    ok(ncclGroupEnd());
    comms.iter().for_each(|comm| ok(ncclCommDestroy(*comm)));
}

/// The ranks add up what each has.
fn check_sum(comms: &[Comm]) {
    let mut data = vec![[1f32; 3]; comms.len()];
    ok(ncclGroupStart());
    for ((rank, comm), data) in (0..).zip(comms).zip(&mut data) {
        let (mut own, mut ranks) = (-1, 0);
        ok(ncclCommUserRank(*comm, &mut own));
        ok(ncclCommCount(*comm, &mut ranks));
        assert_eq!((own, ranks as usize), (rank, comms.len()));
        ok(all_reduce(*comm, data, SUM));
    }
    ok(ncclGroupEnd());
    assert_eq!(data, vec![[comms.len() as f32; 3]; comms.len()]);
}

#[test]
fn a_reduction_of_the_user_is_bound_to_communicator_and_type() {
    let _turn = turn();
    let (one, other) = (single(), single());
    let (mut op, mut data, factor) = (-1, [8f32; 3], 0.25f32);
    ok(ncclRedOpCreatePreMulSum(&mut op, (&raw const factor).cast(), FLOAT32, 1, one));
    ok(all_reduce(one, &mut data, op));
    assert_eq!(data, [2.0; 3]);
    assert_eq!(all_reduce(other, &mut data, op), INVALID_ARGUMENT);
    assert!(last_error().contains("another communicator"), "{}", last_error());
    let wide = [1f64; 3];
    let address: Ptr = wide.as_ptr().cast();
    assert_eq!(ncclAllReduce(address, address, 3, FLOAT64, op, one, null()), INVALID_ARGUMENT);
    assert!(last_error().contains("created for float"), "{}", last_error());
    ok(ncclRedOpDestroy(op, one));
    assert_eq!(all_reduce(one, &mut data, op), INVALID_ARGUMENT);
    ok(ncclCommDestroy(one));
    ok(ncclCommDestroy(other));
}

#[test]
fn a_factor_in_device_memory_is_read_when_the_operation_runs() {
    let _turn = turn();
    let comm = single();
    let (mut op, mut data, mut factor) = (-1, [8f32; 3], 1f32);
    let address = &raw mut factor;
    ok(ncclRedOpCreatePreMulSum(&mut op, address.cast_const().cast(), FLOAT32, 0, comm));
    // SAFETY: the address of a live local that nothing else uses at the moment.
    unsafe { address.write_volatile(0.5) };
    ok(all_reduce(comm, &mut data, op));
    assert_eq!(data, [4.0; 3]);
    ok(ncclCommDestroy(comm));
}

/// From one thread, with signals and contexts of the communicators' configuration.
#[test]
fn puts_and_signals_around_a_ring() {
    const NUM_RMA_CTX: usize = 21;
    const NUM_RMA_SIG: usize = 25;
    let _turn = turn();
    let mut config = Config::with(NUM_RMA_SIG, 3);
    config.0[NUM_RMA_CTX] = 2;
    let mut id = Id([0; 128]);
    ok(ncclGetUniqueId(&mut id));
    let mut comms: [Comm; 3] = [null_mut(); 3];
    ok(ncclGroupStart());
    for (rank, comm) in (0..).zip(&mut comms) {
        ok(ncclCommInitRankConfig(comm, 3, id, rank, &config));
    }
    ok(ncclGroupEnd());
    let mut memory = [[0f32; 8]; 3];
    let mut windows = [null(); 3];
    ok(ncclGroupStart());
    for ((comm, memory), win) in comms.iter().zip(&mut memory).zip(&mut windows) {
        ok(ncclCommWindowRegister(*comm, memory.as_mut_ptr().cast(), 32, win, 1));
    }
    ok(ncclGroupEnd());
    for (value, memory) in [1f32, 2.0, 3.0].into_iter().zip(&mut memory) {
        memory[..4].fill(value);
    }
    ok(ncclGroupStart());
    for (rank, comm) in comms.iter().enumerate() {
        let next = c_int::try_from((rank + 1) % 3).unwrap();
        let from = memory[rank].as_ptr().cast();
        ok(ncclPutSignal(from, 4, FLOAT32, next, windows[rank], 16, 2, 1, 0, *comm, null()));
        ok(ncclSignal(next, 0, 1, 0, *comm, null()));
    }
    ok(ncclGroupEnd());
    ok(ncclGroupStart());
    for (rank, comm) in comms.iter().enumerate() {
        let before = c_int::try_from((rank + 2) % 3).unwrap();
        // Count, peer, index, context.
        let descriptors: [[c_int; 4]; 2] = [[1, before, 2, 1], [1, before, 0, 1]];
        ok(ncclWaitSignal(2, descriptors.as_ptr().cast(), *comm, null()));
    }
    ok(ncclGroupEnd());
    for (rank, memory) in memory.iter().enumerate() {
        assert_eq!(memory[4..], [((rank + 2) % 3 + 1) as f32; 4]);
    }
    assert_eq!(ncclSignal(0, 3, 0, 0, comms[0], null()), INVALID_ARGUMENT);
    assert_eq!(ncclSignal(0, 0, 2, 0, comms[0], null()), INVALID_ARGUMENT);
    comms.iter().for_each(|comm| ok(ncclCommDestroy(*comm)));
}

#[test]
fn memory_registrations_and_windows() {
    let _turn = turn();
    let comm = single();
    let (mut memory, mut handle, mut win, mut base) = (null_mut(), null(), null(), null());
    ok(ncclMemAlloc(&mut memory, 10_000));
    assert!(!memory.is_null());
    ok(ncclCommRegister(comm, memory, 10_000, &mut handle));
    ok(ncclCommWindowRegister(comm, memory, 10_000, &mut win, 1));
    assert!(!handle.is_null() && !win.is_null() && handle != win);
    ok(ncclWinGetUserPtr(comm, win, &mut base));
    assert_eq!(base, memory.cast_const());
    // A window is no registration and the other way round; each goes back once.
    assert_eq!(ncclCommDeregister(comm, win), INVALID_USAGE);
    ok(ncclCommWindowDeregister(comm, win));
    assert_eq!(ncclCommWindowDeregister(comm, win), INVALID_ARGUMENT);
    ok(ncclCommDeregister(comm, handle));
    assert_eq!(ncclCommDeregister(comm, handle), INVALID_USAGE);
    ok(ncclCommDeregister(comm, null()));
    ok(ncclCommWindowDeregister(comm, null()));
    ok(ncclMemFree(memory));
    ok(ncclMemFree(null()));
    ok(ncclCommDestroy(comm));
}

#[test]
fn a_communicator_may_be_made_without_blocking() {
    let _turn = turn();
    let (mut id, mut comm) = (Id([0; 128]), null_mut());
    let config = Config::with(Config::BLOCKING, 0);
    ok(ncclGetUniqueId(&mut id));
    let code = ncclCommInitRankConfig(&mut comm, 1, id, 0, &config);
    assert!(code == SUCCESS || code == IN_PROGRESS, "{code}: {}", last_error());
    wait_until_ready(comm);
    let mut count = 0;
    ok(ncclCommCount(comm, &mut count));
    assert_eq!(count, 1);
    let mut data = [5f32; 2];
    let code = all_reduce(comm, &mut data, SUM);
    assert!(code == SUCCESS || code == IN_PROGRESS, "{code}: {}", last_error());
    wait_until_ready(comm);
    assert_eq!(data, [5.0; 2]);
    let code = ncclCommFinalize(comm);
    assert!(code == SUCCESS || code == IN_PROGRESS, "{code}: {}", last_error());
    wait_until_ready(comm);
    ok(ncclCommDestroy(comm));
}

#[test]
fn the_end_of_a_group_tells_that_members_are_in_progress() {
    let _turn = turn();
    let (mut id, mut comms) = (Id([0; 128]), [null_mut(); 2]);
    let config = Config::with(Config::BLOCKING, 0);
    ok(ncclGetUniqueId(&mut id));
    ok(ncclGroupStart());
    for (rank, comm) in (0..).zip(&mut comms) {
        ok(ncclCommInitRankConfig(comm, 2, id, rank, &config));
    }
    // Success would say that the communicators can be used at once.
    let code = ncclGroupEnd();
    assert!(code == IN_PROGRESS || code == SUCCESS && ncclCommCount(comms[0], &mut 0) == SUCCESS, "{code}");
    comms.iter().for_each(|comm| wait_until_ready(*comm));
    let mut data = [[1f32; 4], [2f32; 4]];
    ok(ncclGroupStart());
    for (comm, data) in comms.iter().zip(&mut data) {
        ok(all_reduce(*comm, data, SUM));
    }
    let code = ncclGroupEnd();
    assert!(code == SUCCESS || code == IN_PROGRESS, "{code}: {}", last_error());
    comms.iter().for_each(|comm| wait_until_ready(*comm));
    assert_eq!(data, [[3.0; 4]; 2]);
    comms.iter().for_each(|comm| ok(ncclCommDestroy(*comm)));
}

/// Both claim to be rank 0.
#[test]
fn what_made_bring_up_fail_is_what_other_calls_answer() {
    let _turn = turn();
    let (mut id, mut comms) = (Id([0; 128]), [null_mut(); 2]);
    let config = Config::with(Config::BLOCKING, 0);
    ok(ncclGetUniqueId(&mut id));
    ok(ncclGroupStart());
    comms.iter_mut().for_each(|comm| ok(ncclCommInitRankConfig(comm, 2, id, 0, &config)));
    ncclGroupEnd();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut state = IN_PROGRESS;
    while state == IN_PROGRESS {
        assert!(Instant::now() < deadline, "still in progress");
        ok(ncclCommGetAsyncError(comms[1], &mut state));
        thread::sleep(Duration::from_millis(1));
    }
    assert_ne!(state, SUCCESS);
    assert_eq!(ncclCommCount(comms[1], &mut 0), state);
    assert_eq!(all_reduce(comms[1], &mut [1.0], SUM), state, "{}", last_error());
    comms.iter().for_each(|comm| ok(ncclCommAbort(*comm)));
}

#[test]
fn a_communicator_is_finalized_once() {
    let _turn = turn();
    let comm = single();
    ok(ncclCommFinalize(comm));
    assert_eq!(ncclCommFinalize(comm), INVALID_ARGUMENT);
    assert!(last_error().contains("called before"), "{}", last_error());
    ok(ncclCommDestroy(comm));
}

/// The text of a thread that has ended may still be read.
#[test]
fn the_last_error_stays_in_its_place() {
    let _turn = turn();
    let ask = || {
        ncclCommCount(null_mut(), null_mut());
        ncclGetLastError(null_mut()) as usize
    };
    let there = thread::spawn(ask).join().unwrap();
    assert_eq!(there, ask());
    // SAFETY: the text ends, wherever it was written.
    assert!(!unsafe { CStr::from_ptr(there as *const _) }.is_empty());
}

fn wait_until_ready(comm: Comm) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut state = IN_PROGRESS;
    while state == IN_PROGRESS {
        assert!(Instant::now() < deadline, "still in progress");
        ok(ncclCommGetAsyncError(comm, &mut state));
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(state, SUCCESS, "{}", last_error());
}

#[test]
fn scalable_init_takes_one_id_or_several() {
    let _turn = turn();
    for count in [1, 2] {
        let mut ids = [Id([0; 128]); 2];
        ids[..count].iter_mut().for_each(|id| ok(ncclGetUniqueId(id)));
        thread::scope(|scope| {
            for rank in 0..2 {
                scope.spawn(move || {
                    let mut comm = null_mut();
                    ok(ncclCommInitRankScalable(&mut comm, 2, rank, count as i32, ids.as_ptr(), null()));
                    let mut data = [rank as f32 + 1.0; 5];
                    ok(all_reduce(comm, &mut data, SUM));
                    assert_eq!(data, [3.0; 5]);
                    ok(ncclCommDestroy(comm));
                });
            }
        });
    }
}

#[test]
fn an_abort_from_another_thread_releases_a_receive_that_hangs() {
    let _turn = turn();
    let comms = several(2);
    let waiting = comms[0] as usize;
    let receiver = thread::spawn(move || {
        let mut data = [0f32; 4];
        let comm = waiting as Comm;
        ncclRecv(data.as_mut_ptr().cast_const().cast(), 4, FLOAT32, 1, comm, null())
    });
    // Whether the receive hangs already or comes too late: it must return, with an error.
    thread::sleep(Duration::from_millis(50));
    ok(ncclCommAbort(comms[0]));
    assert_ne!(receiver.join().unwrap(), SUCCESS);
    assert_eq!(ncclCommAbort(comms[0]), INVALID_ARGUMENT);
    ok(ncclCommAbort(comms[1]));
}

#[test]
fn simulation_fills_no_more_than_the_callers_struct() {
    let _turn = turn();
    let comm = single();
    let mut data = [1f32; 8];
    let mut info = SimInfo { size: 16, magic: 0x7468_5283, version: 22200, time: -7.0 };
    ok(ncclGroupStart());
    ok(all_reduce(comm, &mut data, SUM));
    ok(ncclGroupSimulateEnd(&mut info));
    assert_eq!(info.time, -7.0);
    info.size = size_of::<SimInfo>();
    ok(ncclGroupStart());
    ok(ncclGroupSimulateEnd(&mut info));
    assert!(info.time >= 0.0);
    assert_eq!(ncclGroupSimulateEnd(&mut info), INVALID_USAGE);
    ok(ncclGroupStart());
    // With NULL it is the group's end.
    ok(all_reduce(comm, &mut data, SUM));
    ok(ncclGroupSimulateEnd(null_mut()));
    assert_eq!(ncclGroupEnd(), INVALID_USAGE);
    ok(ncclCommDestroy(comm));
}

#[test]
fn every_result_has_a_text() {
    let _turn = turn();
    for code in -1..10 {
        // SAFETY: a static text.
        let text = unsafe { CStr::from_ptr(ncclGetErrorString(code)) };
        assert!(!text.is_empty());
    }
}

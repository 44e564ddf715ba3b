//! Bad arguments: each gets NCCL's code and a text that names the function and what is wrong.

mod support;

use std::ffi::{c_int, c_void};
use std::ptr::{dangling_mut, null, null_mut};

use support::*;

type Act = fn(Comm) -> c_int;
/// Function, a word that its text must have, the code, the call.
type Case = (&'static str, &'static str, c_int, Act);

/// A buffer that is long enough for what is called with it.
fn data() -> Ptr {
    static DATA: [f32; 64] = [1.0; 64];
    DATA.as_ptr().cast()
}

fn check(comm: Comm, cases: &[Case]) {
    for (function, word, code, call) in cases {
        let got = call(comm);
        let text = last_error();
        assert_eq!(got, *code, "{function} ({word}): {text}");
        assert!(
            text.starts_with(&format!("{function}: ")) && text.contains(word),
            "{function} ({word}): {text}"
        );
        assert!(text.contains(';'), "no remedy: {text}");
    }
}

#[test]
fn collectives_and_messages() {
    let _turn = turn();
    let comm = single();
    let cases: &[Case] = &[
        ("ncclAllReduce", "datatype 12", INVALID_ARGUMENT, |c| {
            ncclAllReduce(data(), data(), 1, 12, SUM, c, null())
        }),
        ("ncclAllReduce", "datatype -1", INVALID_ARGUMENT, |c| {
            ncclAllReduce(data(), data(), 1, -1, SUM, c, null())
        }),
        ("ncclAllReduce", "op 9999", INVALID_ARGUMENT, |c| {
            ncclAllReduce(data(), data(), 1, 7, 9999, c, null())
        }),
        ("ncclAllReduce", "op -1", INVALID_ARGUMENT, |c| ncclAllReduce(data(), data(), 1, 7, -1, c, null())),
        ("ncclReduceScatter", "op 5000", INVALID_ARGUMENT, |c| {
            ncclReduceScatter(data(), data(), 1, 7, 5000, c, null())
        }),
        ("ncclReduce", "root 1", INVALID_ARGUMENT, |c| ncclReduce(data(), data(), 1, 7, SUM, 1, c, null())),
        ("ncclBroadcast", "root -1", INVALID_ARGUMENT, |c| {
            ncclBroadcast(data(), data(), 1, 7, -1, c, null())
        }),
        ("ncclBcast", "root 7", INVALID_ARGUMENT, |c| ncclBcast(data(), 1, 7, 7, c, null())),
        ("ncclGather", "root 1", INVALID_ARGUMENT, |c| ncclGather(data(), data(), 1, 7, 1, c, null())),
        ("ncclScatter", "root 1", INVALID_ARGUMENT, |c| ncclScatter(data(), data(), 1, 7, 1, c, null())),
        ("ncclSend", "peer 1", INVALID_ARGUMENT, |c| ncclSend(data(), 1, 7, 1, c, null())),
        ("ncclSend", "datatype 12", INVALID_ARGUMENT, |c| ncclSend(data(), 1, 12, 0, c, null())),
        ("ncclSend", "sendbuff is NULL", INVALID_ARGUMENT, |c| ncclSend(null(), 1, 7, 0, c, null())),
        ("ncclSend", "count", INVALID_ARGUMENT, |c| ncclSend(data(), usize::MAX, 7, 0, c, null())),
        ("ncclRecv", "peer -2", INVALID_ARGUMENT, |c| ncclRecv(data(), 1, 7, -2, c, null())),
        ("ncclRecv", "recvbuff is NULL", INVALID_ARGUMENT, |c| ncclRecv(null(), 1, 7, 0, c, null())),
    ];
    check(comm, cases);
    ok(ncclCommDestroy(comm));
}

#[test]
fn buffers_and_counts_of_collectives() {
    let _turn = turn();
    let comm = single();
    // These texts come from the planner, in its words.
    let calls: &[(&str, &str, Act)] = &[
        ("ncclAllReduce", "NULL", |c| ncclAllReduce(null(), data(), 1, 7, SUM, c, null())),
        ("ncclAllReduce", "NULL", |c| ncclAllReduce(data(), null(), 1, 7, SUM, c, null())),
        ("ncclAllReduce", "count", |c| ncclAllReduce(data(), data(), usize::MAX, 8, SUM, c, null())),
        ("ncclAllGather", "count", |c| ncclAllGather(data(), data(), usize::MAX / 4, 8, c, null())),
        ("ncclAlltoAll", "NULL", |c| ncclAlltoAll(null(), null(), 1, 7, c, null())),
    ];
    for (function, word, call) in calls {
        assert_eq!(call(comm), INVALID_ARGUMENT);
        let text = last_error();
        assert!(text.starts_with(function) && text.contains(word) && text.contains("rank 0"), "{text}");
    }
    // Nothing to do: NULL buffers are fine then.
    ok(ncclAllReduce(null(), null(), 0, FLOAT32, SUM, comm, null()));
    ok(ncclAlltoAll(null(), null(), 0, FLOAT32, comm, null()));
    ok(ncclCommDestroy(comm));
}

#[test]
fn handles_that_are_none() {
    let _turn = turn();
    let dead = single();
    ok(ncclCommDestroy(dead));
    let aborted = single();
    ok(ncclCommAbort(aborted));
    let calls: &[(&str, Act)] = &[
        ("ncclAllReduce", |c| ncclAllReduce(data(), data(), 1, 7, SUM, c, null())),
        ("ncclBcast", |c| ncclBcast(data(), 1, 7, 0, c, null())),
        ("ncclSend", |c| ncclSend(data(), 1, 7, 0, c, null())),
        ("ncclRecv", |c| ncclRecv(data(), 1, 7, 0, c, null())),
        ("ncclCommCount", |c| ncclCommCount(c, &mut 0)),
        ("ncclCommUserRank", |c| ncclCommUserRank(c, &mut 0)),
        ("ncclCommCuDevice", |c| ncclCommCuDevice(c, &mut 0)),
        ("ncclCommGetAsyncError", |c| ncclCommGetAsyncError(c, &mut 0)),
        ("ncclCommSplit", |c| ncclCommSplit(c, 0, 0, &mut null_mut(), null())),
        ("ncclCommShrink", |c| ncclCommShrink(c, &0, 1, &mut null_mut(), null(), 0)),
        ("ncclCommSuspend", |c| ncclCommSuspend(c, 1)),
        ("ncclCommResume", |c| ncclCommResume(c)),
        ("ncclCommMemStats", |c| ncclCommMemStats(c, 3, &mut 0)),
        ("ncclCommGetUniqueId", |c| ncclCommGetUniqueId(c, &mut Id([0; 128]))),
        ("ncclRedOpCreatePreMulSum", |c| ncclRedOpCreatePreMulSum(&mut 0, data(), 7, 1, c)),
        ("ncclRedOpDestroy", |c| ncclRedOpDestroy(5, c)),
        ("ncclCommRegister", |c| ncclCommRegister(c, data(), 4, &mut null())),
        ("ncclCommDeregister", |c| ncclCommDeregister(c, null())),
        ("ncclCommWindowRegister", |c| ncclCommWindowRegister(c, data(), 4, &mut null(), 0)),
        ("ncclCommQueryProperties", |c| ncclCommQueryProperties(c, null_mut())),
        ("ncclPutSignal", |c| ncclPutSignal(data(), 1, 7, 0, null(), 0, 0, 0, 0, c, null())),
        ("ncclSignal", |c| ncclSignal(0, 0, 0, 0, c, null())),
        ("ncclWaitSignal", |c| ncclWaitSignal(0, null(), c, null())),
        ("ncclDevCommCreate", |c| ncclDevCommCreate(c, null(), null())),
        ("ncclDevCommDestroy", |c| ncclDevCommDestroy(c, null())),
    ];
    let garbage: Comm = dangling_mut::<c_void>();
    for (comm, word) in
        [(null_mut(), "NULL"), (garbage, "not a communicator"), (dead, "destroyed"), (aborted, "aborted")]
    {
        for (function, call) in calls {
            assert_eq!(call(comm), INVALID_ARGUMENT, "{function} {word}");
            let text = last_error();
            assert!(text.starts_with(&format!("{function}: ")) && text.contains(word), "{text}");
        }
    }
    // As NCCL: nothing to end is no error, ending twice is.
    ok(ncclCommRevoke(null_mut(), 0));
    assert_eq!(ncclCommRevoke(dead, 0), INVALID_ARGUMENT);
    for end in [ncclCommDestroy, ncclCommAbort, ncclCommFinalize] {
        ok(end(null_mut()));
        assert_eq!(end(dead), INVALID_ARGUMENT);
        assert_eq!(end(garbage), INVALID_ARGUMENT);
    }
}

#[test]
fn making_communicators() {
    let _turn = turn();
    let comm = single();
    let cases: &[Case] = &[
        ("ncclGetVersion", "version is NULL", INVALID_ARGUMENT, |_| ncclGetVersion(null_mut())),
        ("ncclGetUniqueId", "uniqueId is NULL", INVALID_ARGUMENT, |_| ncclGetUniqueId(null_mut())),
        ("ncclCommInitRank", "comm is NULL", INVALID_ARGUMENT, |_| {
            ncclCommInitRank(null_mut(), 1, Id([0; 128]), 0)
        }),
        ("ncclCommInitRank", "nranks 0", INVALID_ARGUMENT, |_| init(0, 0)),
        ("ncclCommInitRank", "nranks -4", INVALID_ARGUMENT, |_| init(-4, 0)),
        ("ncclCommInitRank", "nranks 16385", INVALID_ARGUMENT, |_| init(16_385, 0)),
        ("ncclCommInitRank", "rank 2", INVALID_ARGUMENT, |_| init(2, 2)),
        ("ncclCommInitRank", "rank -1", INVALID_ARGUMENT, |_| init(2, -1)),
        ("ncclCommInitRank", "unique id is empty", INVALID_ARGUMENT, |_| init(1, 0)),
        ("ncclCommInitRankConfig", "blocking is 3", INVALID_ARGUMENT, |_| {
            init_config(&Config::with(Config::BLOCKING, 3))
        }),
        ("ncclCommInitRankConfig", "minCTAs is -3", INVALID_ARGUMENT, |_| {
            init_config(&Config::with(Config::MIN_CTAS, -3))
        }),
        ("ncclCommInitRankConfig", "magic", INVALID_ARGUMENT, |_| init_config(&Config::with(2, 1))),
        ("ncclCommInitRankConfig", "size 12", INVALID_ARGUMENT, |_| init_config(&Config::with(0, 12))),
        ("ncclCommInitRankScalable", "nId 0", INVALID_ARGUMENT, |_| scalable(0, true)),
        ("ncclCommInitRankScalable", "nId 2", INVALID_ARGUMENT, |_| scalable(2, true)),
        ("ncclCommInitRankScalable", "commIds is NULL", INVALID_ARGUMENT, |_| scalable(1, false)),
        ("ncclCommInitAll", "comm is NULL", INVALID_ARGUMENT, |_| ncclCommInitAll(null_mut(), 1, null())),
        ("ncclCommInitAll", "ndev -1", INVALID_ARGUMENT, |_| ncclCommInitAll(&mut null_mut(), -1, null())),
        ("ncclCommInitAll", "twice", INVALID_USAGE, |_| {
            ncclCommInitAll([null_mut(); 3].as_mut_ptr(), 3, [0, 1, 0].as_ptr())
        }),
        ("ncclCommInitAll", "device -1", INVALID_ARGUMENT, |_| ncclCommInitAll(&mut null_mut(), 1, &-1)),
    ];
    check(comm, cases);
    ok(ncclCommDestroy(comm));
}

#[test]
fn changing_and_asking_communicators() {
    let _turn = turn();
    let comm = single();
    let cases: &[Case] = &[
        ("ncclCommSplit", "color -2", INVALID_ARGUMENT, |c| ncclCommSplit(c, -2, 0, &mut null_mut(), null())),
        ("ncclCommSplit", "newcomm is NULL", INVALID_ARGUMENT, |c| {
            ncclCommSplit(c, 0, 0, null_mut(), null())
        }),
        ("ncclCommShrink", "excludeRanksCount is 0", INVALID_ARGUMENT, |c| shrink(c, &[], 0)),
        ("ncclCommShrink", "excluded rank 5 does not exist", INVALID_ARGUMENT, |c| shrink(c, &[5], 0)),
        ("ncclCommShrink", "excluded itself", INVALID_ARGUMENT, |c| shrink(c, &[0], 1)),
        ("ncclCommShrink", "shrinkFlags 2", INVALID_ARGUMENT, |c| shrink(c, &[0], 2)),
        ("ncclCommShrink", "newcomm is NULL", INVALID_ARGUMENT, |c| {
            ncclCommShrink(c, &0, 1, null_mut(), null(), 0)
        }),
        ("ncclCommSuspend", "flags 2", INVALID_ARGUMENT, |c| ncclCommSuspend(c, 2)),
        ("ncclCommResume", "not suspended", INVALID_USAGE, |c| ncclCommResume(c)),
        ("ncclCommMemStats", "stat 4", INVALID_ARGUMENT, |c| ncclCommMemStats(c, 4, &mut 9)),
        ("ncclCommMemStats", "value is NULL", INVALID_ARGUMENT, |c| ncclCommMemStats(c, 3, null_mut())),
        ("ncclCommRevoke", "revokeFlags 3", INVALID_ARGUMENT, |c| ncclCommRevoke(c, 3)),
        ("ncclCommGetUniqueId", "uniqueId is NULL", INVALID_ARGUMENT, |c| ncclCommGetUniqueId(c, null_mut())),
        ("ncclCommGrow", "grow to 1 ranks", INVALID_ARGUMENT, |c| grow(c, 1, -1)),
        ("ncclCommGrow", "nRanks -2", INVALID_ARGUMENT, |c| grow(c, -2, -1)),
        ("ncclCommGrow", "rank 1 is given", INVALID_ARGUMENT, |c| grow(c, 2, 1)),
        ("ncclCommGrow", "uniqueId is NULL", INVALID_ARGUMENT, |_| grow(null_mut(), 2, 1)),
        ("ncclCommCount", "count is NULL", INVALID_ARGUMENT, |c| ncclCommCount(c, null_mut())),
        ("ncclCommUserRank", "rank is NULL", INVALID_ARGUMENT, |c| ncclCommUserRank(c, null_mut())),
        ("ncclCommCuDevice", "device is NULL", INVALID_ARGUMENT, |c| ncclCommCuDevice(c, null_mut())),
        ("ncclCommGetAsyncError", "asyncError is NULL", INVALID_ARGUMENT, |c| {
            ncclCommGetAsyncError(c, null_mut())
        }),
    ];
    check(comm, cases);
    ok(ncclCommDestroy(comm));
}

fn init(ranks: c_int, rank: c_int) -> c_int {
    let mut comm = dangling_mut();
    let code = ncclCommInitRank(&mut comm, ranks, Id([0; 128]), rank);
    assert!(code != SUCCESS);
    code
}

fn init_config(config: &Config) -> c_int {
    ncclCommInitRankConfig(&mut null_mut(), 1, Id([0; 128]), 0, config)
}

fn shrink(comm: Comm, excluded: &[c_int], flags: c_int) -> c_int {
    let mut out = dangling_mut();
    let code = ncclCommShrink(comm, excluded.as_ptr(), excluded.len() as c_int, &mut out, null(), flags);
    assert!(out.is_null());
    code
}

fn grow(comm: Comm, ranks: c_int, rank: c_int) -> c_int {
    let mut out = dangling_mut();
    let code = ncclCommGrow(comm, ranks, null(), rank, &mut out, null());
    assert!(out.is_null());
    code
}

fn scalable(count: c_int, given: bool) -> c_int {
    let ids = [Id([0; 128]); 2];
    let pointer = if given { ids.as_ptr() } else { null() };
    ncclCommInitRankScalable(&mut null_mut(), 1, 0, count, pointer, null())
}

#[test]
fn memory_and_reductions() {
    let _turn = turn();
    let comm = single();
    let cases: &[Case] = &[
        ("ncclMemAlloc", "ptr is NULL", INVALID_ARGUMENT, |_| ncclMemAlloc(null_mut(), 8)),
        ("ncclCommRegister", "buff is NULL", INVALID_ARGUMENT, |c| {
            ncclCommRegister(c, null(), 8, &mut null())
        }),
        ("ncclCommRegister", "handle is NULL", INVALID_ARGUMENT, |c| {
            ncclCommRegister(c, data(), 8, null_mut())
        }),
        ("ncclCommRegister", "size is 0", INVALID_ARGUMENT, |c| ncclCommRegister(c, data(), 0, &mut null())),
        ("ncclCommRegister", "exceeds", INVALID_ARGUMENT, |c| {
            ncclCommRegister(c, data(), usize::MAX, &mut null())
        }),
        ("ncclCommDeregister", "not registered", INVALID_USAGE, |c| ncclCommDeregister(c, data())),
        ("ncclCommWindowRegister", "winFlags 0x10", INVALID_ARGUMENT, |c| {
            ncclCommWindowRegister(c, data(), 8, &mut null(), 16)
        }),
        ("ncclCommWindowDeregister", "not registered", INVALID_ARGUMENT, |c| {
            ncclCommWindowDeregister(c, data())
        }),
        ("ncclWinGetUserPtr", "not registered", INVALID_ARGUMENT, |c| {
            ncclWinGetUserPtr(c, data(), &mut null())
        }),
        ("ncclRedOpCreatePreMulSum", "op is NULL", INVALID_ARGUMENT, |c| {
            ncclRedOpCreatePreMulSum(null_mut(), data(), 7, 1, c)
        }),
        ("ncclRedOpCreatePreMulSum", "scalar is NULL", INVALID_ARGUMENT, |c| {
            ncclRedOpCreatePreMulSum(&mut 0, null(), 7, 1, c)
        }),
        ("ncclRedOpCreatePreMulSum", "datatype 99", INVALID_ARGUMENT, |c| {
            ncclRedOpCreatePreMulSum(&mut 0, data(), 99, 1, c)
        }),
        ("ncclRedOpCreatePreMulSum", "residence 2", INVALID_ARGUMENT, |c| {
            ncclRedOpCreatePreMulSum(&mut 0, data(), 7, 2, c)
        }),
        ("ncclRedOpDestroy", "op 0 is built in", INVALID_ARGUMENT, |c| ncclRedOpDestroy(0, c)),
        ("ncclRedOpDestroy", "op 7777777", INVALID_ARGUMENT, |c| ncclRedOpDestroy(7777777, c)),
    ];
    check(comm, cases);
    ok(ncclCommDestroy(comm));
}

#[test]
fn configurations_of_one_call() {
    let _turn = turn();
    let comm = single();
    let cases: &[Case] = &[
        ("ncclAllReduceConfig", "magic", INVALID_ARGUMENT, |c| {
            with_config(c, &CollConfig::with(CollConfig::MAGIC, 0))
        }),
        ("ncclAllReduceConfig", "size 40", INVALID_ARGUMENT, |c| {
            with_config(c, &CollConfig::with(CollConfig::SIZE, 40))
        }),
        ("ncclAllReduceConfig", "forceAlgSelection", INVALID_ARGUMENT, |c| {
            with_config(c, &CollConfig::with(CollConfig::FORCE, 2))
        }),
        ("ncclAllReduceConfig", "launchCompletionEvent", INVALID_USAGE, |c| {
            with_config(c, &CollConfig::with(CollConfig::EVENT, 64))
        }),
        ("ncclAllReduceConfig", "algSelection \"warp\"", INVALID_ARGUMENT, |c| {
            with_config(c, &CollConfig::filter(c"warp", 1))
        }),
    ];
    check(comm, cases);
    ok(with_config(comm, &CollConfig::filter(c"warp", 0)));
    // As NCCL: numbers out of range are ignored.
    for (field, value) in [(CollConfig::MIN_CTAS, 0), (CollConfig::MAX_CTAS, 128), (CollConfig::CGA, 99)] {
        ok(with_config(comm, &CollConfig::with(field, value)));
    }
    let mut crossed = CollConfig::with(CollConfig::MIN_CTAS, 8);
    crossed.0[CollConfig::MAX_CTAS] = 4;
    ok(with_config(comm, &crossed));
    ok(with_config(comm, &CollConfig::filter(c"", 1)));
    ok(with_config(comm, &CollConfig::with(CollConfig::MIN_CTAS, 4)));
    ok(ncclCommDestroy(comm));
}

fn with_config(comm: Comm, config: &CollConfig) -> c_int {
    let mut out = [0f32; 4];
    ncclAllReduceConfig(data(), out.as_mut_ptr().cast(), 4, FLOAT32, SUM, comm, null(), config)
}

#[test]
fn functions_that_are_not_offered_say_so() {
    let _turn = turn();
    let comm = single();
    let word = "no counted transfers";
    assert_eq!(ncclTeamCft(comm, 0), Team(0, 0, 0));
    assert!(last_error().contains(word) && last_error().contains("ncclTeamLsa"), "{}", last_error());
    ncclResetDebugInit();
    ok(ncclCommDestroy(comm));
}

/// `ncclWaitSignalDesc_t`: count, peer, index, context.
fn wait_for(comm: Comm, count: c_int, words: [c_int; 4]) -> c_int {
    ncclWaitSignal(count, words.as_ptr().cast(), comm, null())
}

#[test]
fn one_sided_transfers() {
    let _turn = turn();
    let comm = single();
    let mut win = null();
    ok(ncclCommWindowRegister(comm, data(), 256, &mut win, 1));
    let mut plain = null();
    ok(ncclCommWindowRegister(comm, data(), 256, &mut plain, 0));
    let put = |buffer, n, t, peer, win, offset, sig, ctx, flags| {
        ncclPutSignal(buffer, n, t, peer, win, offset, sig, ctx, flags, comm, null())
    };
    let stranger = 0f32;
    let stranger: Ptr = (&raw const stranger).cast();
    let cases: &[(&str, &str, &dyn Fn() -> c_int)] = &[
        ("ncclPutSignal", "localbuff is NULL", &|| put(null(), 1, 7, 0, win, 0, 0, 0, 0)),
        ("ncclPutSignal", "localbuff is NULL", &|| put(null(), 0, 7, 0, win, 0, 0, 0, 0)),
        ("ncclPutSignal", "peerWin is NULL", &|| put(data(), 1, 7, 0, null(), 0, 0, 0, 0)),
        ("ncclPutSignal", "not registered", &|| put(data(), 1, 7, 0, data(), 0, 0, 0, 0)),
        ("ncclPutSignal", "not symmetric", &|| put(data(), 1, 7, 0, plain, 0, 0, 0, 0)),
        ("ncclPutSignal", "symmetric window", &|| put(stranger, 1, 7, 0, win, 0, 0, 0, 0)),
        ("ncclPutSignal", "symmetric window", &|| put(data(), 65, 7, 0, win, 0, 0, 0, 0)),
        ("ncclPutSignal", "do not fit", &|| put(data(), 64, 7, 0, win, 4, 0, 0, 0)),
        ("ncclPutSignal", "do not fit", &|| put(data(), 0, 7, 0, win, 257, 0, 0, 0)),
        ("ncclPutSignal", "datatype 12", &|| put(data(), 1, 12, 0, win, 0, 0, 0, 0)),
        ("ncclPutSignal", "count", &|| put(data(), usize::MAX, 7, 0, win, 0, 0, 0, 0)),
        ("ncclPutSignal", "peer 1", &|| put(data(), 1, 7, 1, win, 0, 0, 0, 0)),
        ("ncclPutSignal", "peer -1", &|| put(data(), 1, 7, -1, win, 0, 0, 0, 0)),
        ("ncclPutSignal", "sigIdx 1", &|| put(data(), 1, 7, 0, win, 0, 1, 0, 0)),
        ("ncclPutSignal", "sigIdx -1", &|| put(data(), 1, 7, 0, win, 0, -1, 0, 0)),
        ("ncclPutSignal", "ctx 1", &|| put(data(), 1, 7, 0, win, 0, 0, 1, 0)),
        ("ncclPutSignal", "flags 1", &|| put(data(), 1, 7, 0, win, 0, 0, 0, 1)),
        ("ncclSignal", "peer 1", &|| ncclSignal(1, 0, 0, 0, comm, null())),
        ("ncclSignal", "sigIdx 2", &|| ncclSignal(0, 2, 0, 0, comm, null())),
        ("ncclSignal", "ctx -1", &|| ncclSignal(0, 0, -1, 0, comm, null())),
        ("ncclSignal", "flags 4", &|| ncclSignal(0, 0, 0, 4, comm, null())),
        ("ncclWaitSignal", "signalDescs is NULL", &|| ncclWaitSignal(1, null(), comm, null())),
        ("ncclWaitSignal", "nDesc is 0", &|| wait_for(comm, 0, [1, 0, 0, 0])),
        ("ncclWaitSignal", "nDesc is -1", &|| wait_for(comm, -1, [1, 0, 0, 0])),
        ("ncclWaitSignal", "opCnt is 0", &|| wait_for(comm, 1, [0, 0, 0, 0])),
        ("ncclWaitSignal", "opCnt is -1", &|| wait_for(comm, 1, [-1, 0, 0, 0])),
        ("ncclWaitSignal", "peer 1", &|| wait_for(comm, 1, [1, 1, 0, 0])),
        ("ncclWaitSignal", "sigIdx 1", &|| wait_for(comm, 1, [1, 0, 1, 0])),
        ("ncclWaitSignal", "ctx 99", &|| wait_for(comm, 1, [1, 0, 0, 99])),
    ];
    for (function, word, call) in cases {
        let got = call();
        let text = last_error();
        assert_eq!(got, INVALID_ARGUMENT, "{function} ({word}): {text}");
        let names = text.starts_with(&format!("{function}: ")) && text.contains(word);
        assert!(names && text.contains(';'), "{function} ({word}): {text}");
    }
    // None of them raised anything; what is right does.
    ok(put(data(), 0, 7, 0, win, 256, 0, 0, 0));
    ok(ncclSignal(0, 0, 0, 0, comm, null()));
    ok(wait_for(comm, 1, [2, 0, 0, 0]));
    ok(ncclCommWindowDeregister(comm, win));
    assert_eq!(put(data(), 1, 7, 0, win, 0, 0, 0, 0), INVALID_ARGUMENT);
    ok(ncclCommDestroy(comm));
}

#[test]
fn encryption_is_none_or_a_long_key() {
    let _turn = turn();
    let none = EncryptionConfig { size: 32, magic: 0xcafe_beef, version: 23203, mode: 0, psk: null() };
    ok(ncclSetEncryption(null()));
    ok(ncclSetEncryption(&none));
    let refused = |config: EncryptionConfig, code, word: &str| {
        assert_eq!(ncclSetEncryption(&config), code, "{word}");
        let text = last_error();
        assert!(text.starts_with("ncclSetEncryption: ") && text.contains(word), "{text}");
    };
    let psk = EncryptionConfig { mode: 1, ..none };
    refused(psk, INVALID_ARGUMENT, "32 bytes");
    refused(
        EncryptionConfig { psk: c"thirty-one bytes are not enough".as_ptr(), ..psk },
        INVALID_ARGUMENT,
        "32",
    );
    let key = c"thirty-two bytes are just enough";
    ok(ncclSetEncryption(&EncryptionConfig { psk: key.as_ptr(), ..psk }));
    let comm = single();
    ok(ncclCommDestroy(comm));
    ok(ncclSetEncryption(null()));
    refused(EncryptionConfig { mode: 2, ..none }, INVALID_ARGUMENT, "mode 2");
    refused(EncryptionConfig { mode: -1, ..none }, INVALID_ARGUMENT, "mode -1");
    refused(EncryptionConfig { magic: 1, ..none }, INVALID_ARGUMENT, "magic");
}

#[test]
fn failed_inits_leave_no_communicator() {
    let _turn = turn();
    let mut id = Id([0; 128]);
    ok(ncclGetUniqueId(&mut id));
    let after = |init: &dyn Fn(*mut Comm) -> c_int| {
        let mut comm: Comm = dangling_mut();
        assert_eq!(init(&mut comm), INVALID_ARGUMENT);
        assert!(comm.is_null());
    };
    after(&|comm| ncclCommInitRank(comm, 0, id, 0));
    after(&|comm| ncclCommInitRank(comm, 1, id, 3));
    after(&|comm| ncclCommInitRank(comm, 1, Id([0; 128]), 0));
    after(&|comm| ncclCommInitRankConfig(comm, -1, id, 0, null()));
    after(&|comm| ncclCommInitRankScalable(comm, 1, 1, 1, &id, null()));
    after(&|comm| ncclCommInitRankScalable(comm, 1, 0, 0, &id, null()));
}

#[test]
fn flags_of_windows_and_structs_of_properties() {
    let _turn = turn();
    let comm = single();
    let cases: &[Case] = &[
        ("ncclCommWindowRegister", "cannot be combined", INVALID_ARGUMENT, |c| {
            ncclCommWindowRegister(c, data(), 64, &mut null(), 1 | 4)
        }),
        ("ncclCommWindowRegister", "cannot be combined", INVALID_ARGUMENT, |c| {
            ncclCommWindowRegister(c, data(), 64, &mut null(), 1 | 2 | 8)
        }),
        ("ncclCommQueryProperties", "magic", INVALID_USAGE, |c| {
            ncclCommQueryProperties(c, [0u64; 19].as_mut_ptr().cast())
        }),
        ("ncclCommQueryProperties", "props is NULL", INVALID_ARGUMENT, |c| {
            ncclCommQueryProperties(c, null_mut())
        }),
    ];
    check(comm, cases);
    for flags in [0, 2, 4, 8, 4 | 8, 1, 1 | 2] {
        let mut win = null();
        ok(ncclCommWindowRegister(comm, data(), 64, &mut win, flags));
        ok(ncclCommWindowDeregister(comm, win));
    }
    ok(ncclCommDestroy(comm));
}
